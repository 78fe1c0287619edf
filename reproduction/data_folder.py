"""Find the files of corpora by name, anywhere below a folder."""

from __future__ import annotations

import os
from collections.abc import Iterator
from dataclasses import dataclass
from pathlib import Path, PurePosixPath

from bcrf.tagger.files import sha256

from .experiment import CorpusSpec, ExperimentError

__all__ = ["DataFolder", "LocatedCorpus"]


@dataclass(frozen=True)
class LocatedCorpus:
    """The paths of the files of a corpus.

    Args:
        paths: split -> path; a file that was not found is left out.
        missing: text that names the files that were not found; None: all were found.
    """

    paths: dict[str, Path]
    missing: str | None = None

    def description(self, corpus: CorpusSpec) -> dict[str, object]:
        """Return the edition of the corpus, and names and checksums of its files, for the log."""
        digests = {split: sha256(path) for split, path in self.paths.items()}
        return {
            "edition": corpus.editions.get(digests["train"], "unknown edition"),
            "files": {
                split: {"name": path.name, "sha256": digests[split]}
                for split, path in self.paths.items()
            },
        }


class DataFolder:
    """All files in a folder and its subfolders.

    Args:
        root: the folder.
    """

    def __init__(self, root: Path) -> None:
        self.root = root
        self._by_name: dict[str, list[Path]] = {}
        for path in _walk(root):
            self._by_name.setdefault(path.name, []).append(path)

    def locate(self, corpus: CorpusSpec) -> LocatedCorpus:
        """Find the files of a corpus, and return their paths.

        Raises:
            ExperimentError: different files have the same name.
        """
        paths, lacking = {}, []
        for split, names in corpus.files.items():
            found = next(filter(None, map(self._find, names)), None)
            if found is None:
                lacking.append(" or ".join(names))
            else:
                paths[split] = found
        missing = f"there is no {', no '.join(lacking)} under {self.root}" if lacking else None
        return LocatedCorpus(paths, missing)

    def _find(self, name: str) -> Path | None:
        """Return the file whose path ends in `name`."""
        parts = PurePosixPath(name).parts
        found = [
            path
            for path in self._by_name.get(parts[-1], ())
            if path.relative_to(self.root).parts[-len(parts) :] == parts
        ]
        if len(found) > 1 and len(set(map(sha256, found))) > 1:
            raise ExperimentError(
                f"files with the name {name} under {self.root} differ: "
                f"{', '.join(map(str, found))}; name a folder that has only the right one (--data)"
            )
        return found[0] if found else None


def _walk(root: Path) -> Iterator[Path]:
    for folder, folders, names in os.walk(root, followlinks=False):
        folders.sort()  # so that every system finds the same file first
        for name in sorted(names):
            yield Path(folder, name)
