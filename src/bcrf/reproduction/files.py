"""The files of corpora, found by name under the folder that the user gives."""

from __future__ import annotations

import os
from collections.abc import Iterator
from dataclasses import dataclass
from pathlib import Path, PurePosixPath

from ..data import sha256
from .experiment import Corpus, ExperimentError

__all__ = ["CorpusFiles", "DataFolder"]


@dataclass(frozen=True)
class CorpusFiles:
    """Where the splits of a corpus are.

    Args:
        paths: by split.
        missing: what was looked for in vain, in words; None: all is there.
    """

    paths: dict[str, Path]
    missing: str | None = None

    def description(self, corpus: Corpus) -> dict[str, object]:
        """Plain values for the log: names and digests, and which edition that is."""
        digests = {split: sha256(path) for split, path in self.paths.items()}
        return {
            "edition": corpus.editions.get(digests["train"], "unknown edition"),
            "files": {
                split: {"name": path.name, "sha256": digests[split]}
                for split, path in self.paths.items()
            },
        }


class DataFolder:
    """All files below a folder, whichever way they are sorted into folders.

    Args:
        root: the folder.
    """

    def __init__(self, root: Path) -> None:
        self.root = root
        self._by_name: dict[str, list[Path]] = {}
        for path in _walk(root):
            self._by_name.setdefault(path.name, []).append(path)

    def corpus(self, corpus: Corpus) -> CorpusFiles:
        """The files of a corpus.

        Raises:
            ExperimentError: there are two different files of that name.
        """
        paths, lacking = {}, []
        for split, names in corpus.files.items():
            found = next(filter(None, map(self._find, names)), None)
            if found is None:
                lacking.append(" or ".join(names))
            else:
                paths[split] = found
        missing = f"no {', no '.join(lacking)} under {self.root}" if lacking else None
        return CorpusFiles(paths, missing)

    def _find(self, name: str) -> Path | None:
        """The file whose path ends in `name`."""
        parts = PurePosixPath(name).parts
        found = [
            path
            for path in self._by_name.get(parts[-1], ())
            if path.relative_to(self.root).parts[-len(parts) :] == parts
        ]
        if len(found) > 1 and len(set(map(sha256, found))) > 1:
            raise ExperimentError(
                f"there are different files {name} under {self.root}: "
                f"{', '.join(map(str, found))}; give the folder of those that you mean"
            )
        return found[0] if found else None


def _walk(root: Path) -> Iterator[Path]:
    for folder, folders, names in os.walk(root, followlinks=False):
        folders.sort()  # so that the same file is found everywhere
        for name in sorted(names):
            yield Path(folder, name)
