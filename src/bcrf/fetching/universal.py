"""Treebanks of Universal Dependencies."""

from __future__ import annotations

import os
import re
from collections.abc import Iterator
from dataclasses import dataclass
from pathlib import Path

from ..data import DataError, atomic_write_bytes, read, sha256
from .cache import cache_folder, locked, read_small, without_link
from .checksums import SUMS_FILE, parse_sums, read_sums, record_sum
from .errors import FetchError, NotThere
from .places import Place, Progress, Web, place
from .treebanks import DEFAULT_RELEASE, TREEBANKS, unknown_treebank

__all__ = ["Treebank", "fetch_treebank"]

SPLITS = ("train", "dev", "test")

_OFFICIAL = "https://raw.githubusercontent.com/UniversalDependencies"
_NAME = re.compile(r"[a-z]+_[a-z0-9]+")

# Written last: a folder that has it has every file that the treebank has.
_SOURCE_FILE = "SOURCE"


@dataclass(frozen=True)
class Treebank:
    """A treebank on this machine.

    Attributes:
        name: such as "en_ewt".
        files: by split: "train", "dev" and "test", as far as the treebank has them.
        source: where it came from.
        fetched: whether it was fetched just now; else it had been there before.
    """

    name: str
    files: dict[str, Path]
    source: str
    fetched: bool


def fetch_treebank(
    name: str,
    source: str | os.PathLike[str] | None = None,
    target: str | os.PathLike[str] | None = None,
    release: str = DEFAULT_RELEASE,
    refresh: bool = False,
    progress: Progress = lambda file, done, size: None,
) -> Treebank:
    """Bring a treebank to this machine, unless it is there.

    A file is checked against the checksum file that lies beside it (`SHA256SUMS`, or the file's
    name with `.sha256`); where there is none, the sum of the first download is recorded, and later
    ones have to agree. A file appears whole or not at all, and an interrupted download goes on
    where it stopped. What is there already is checked against its recorded sum, without any
    connection.

    Args:
        name: language and treebank, such as "en_ewt".
        source: folder or http(s) address to take it from: the files may be there themselves, or in
            a folder with the name or the repository's name (as in the archives of releases). None:
            the official repositories.
        target: the folder in which to put the treebank's own folder; None: the cache, where each
            source has its own.
        release: of the official repositories.
        refresh: fetch even what is there.
        progress: told of each file while it comes.

    Raises:
        FetchError: the place cannot be reached, does not have it, or what it has is not right.
    """
    if not _NAME.fullmatch(name):
        raise FetchError(f"{name!r} is no treebank's name; expected one such as 'en_ewt'")
    origin, layouts = _origin(name, source, release)
    parent = Path(target) if target is not None else cache_folder() / "ud" / _slug(origin, source)
    folder = parent / name
    folder.mkdir(parents=True, exist_ok=True)
    with locked(folder):
        if not refresh and (folder / _SOURCE_FILE).exists():
            return _present(name, folder)
        for layout in layouts:
            files = dict(_fetch_splits(name, origin, layout, folder, refresh, progress))
            if files:
                with atomic_write_bytes(without_link(folder / _SOURCE_FILE)) as stream:
                    stream.write(os.fsencode(f"{origin}\n"))  # a path may be no valid text
                return Treebank(name, files, str(origin), fetched=True)
    tried = ", ".join(f"{layout}{_file(name, 'train')}" for layout in layouts)
    raise NotThere(f"{origin} has no treebank {name}: there is no {tried}, nor dev or test")


def _origin(
    name: str, source: str | os.PathLike[str] | None, release: str
) -> tuple[Place, list[str]]:
    """Where to look, and in which folders there."""
    repository = TREEBANKS.get(name)
    if source is not None:
        return place(source), [f"{name}/", *([f"{repository}/"] if repository else []), ""]
    if repository is None:
        raise FetchError(unknown_treebank(name))
    return place(f"{_OFFICIAL}/{repository}/r{release}"), [""]


def _slug(origin: Place, source: str | os.PathLike[str] | None) -> str:
    """The name of a place's own folder in the cache."""
    if source is None:
        return str(origin).rpartition("/")[2]
    where = str(origin) if isinstance(origin, Web) else os.path.abspath(str(origin))
    return re.sub(r"[^\w.]+", "-", where).strip("-")


def _file(name: str, split: str) -> str:
    return f"{name}-ud-{split}.conllu"


def _present(name: str, folder: Path) -> Treebank:
    """What is there, if it is as it was when it came."""
    sums = read_sums(folder)
    files = {}
    for split in SPLITS:
        path = folder / _file(name, split)
        if path.name not in sums:
            continue
        if not path.exists():
            raise FetchError(f"{path} is gone since it was fetched; fetch it anew (--refresh)")
        if sha256(path) != sums[path.name]:
            raise FetchError(
                f"{path} was changed since it was fetched: its SHA-256 is not the one in "
                f"{folder / SUMS_FILE}; fetch it anew (--refresh)"
            )
        files[split] = path
    source = os.fsdecode(read_small(folder / _SOURCE_FILE)).strip()
    return Treebank(name, files, source, fetched=False)


def _fetch_splits(
    name: str, origin: Place, layout: str, folder: Path, refresh: bool, progress: Progress
) -> Iterator[tuple[str, Path]]:
    for split in SPLITS:
        path = folder / _file(name, split)
        known = read_sums(folder).get(path.name)
        if not refresh and path.exists() and known == sha256(path):
            yield split, path  # an earlier run was interrupted after it
            continue
        try:
            _fetch_file(origin, f"{layout}{path.name}", path, known, progress)
        except NotThere:
            continue  # not every treebank has all splits
        yield split, path


def _fetch_file(
    origin: Place, source: str, path: Path, known: str | None, progress: Progress
) -> None:
    part = path.with_name(f"{path.name}.part")
    origin.fetch(source, part, progress)
    digest = sha256(part)
    served = _served_sum(origin, source)
    if served is not None and digest != served:
        part.unlink()
        raise FetchError(
            f"{origin}/{source}: the SHA-256 of what came is {digest}, but the checksum file "
            f"beside it says {served}; try again"
        )
    if served is None and known is not None and digest != known:
        part.unlink()
        raise FetchError(
            f"{origin}/{source}: the SHA-256 of what came is {digest}, but when it was fetched "
            f"first it was {known}; delete {path.parent} to accept the new version"
        )
    try:
        next(read(part, "conllu", name=f"{origin}/{source}"), None)
    except DataError as error:
        part.unlink()
        raise FetchError(f"what came is no CoNLL-U: {error}") from error
    os.replace(part, path)
    record_sum(path.parent, path.name, digest)


def _served_sum(origin: Place, source: str) -> str | None:
    """The sum that the checksum file beside a file says, if there is one."""
    folder, slash, file = source.rpartition("/")
    for candidate in (f"{folder}{slash}{SUMS_FILE}", f"{source}.sha256"):
        try:
            text = origin.read(candidate).decode("utf-8", "replace")
        except NotThere:
            continue
        sums = parse_sums(text, f"{origin}/{candidate}")
        if file in sums:
            return sums[file]
    return None
