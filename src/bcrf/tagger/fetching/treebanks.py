"""Fetch treebanks of Universal Dependencies into the cache."""

from __future__ import annotations

import logging
import os
import re
from collections.abc import Iterator
from dataclasses import dataclass
from pathlib import Path

from ..data import DataError, read
from ..files import atomic_write_bytes, hold_lock, sha256
from .cache import (
    CHECKSUM_FILE,
    cache_folder,
    parse_checksums,
    read_checksums,
    read_small,
    record_checksum,
    refuse_link,
)
from .errors import FetchError, FileMissing, import_optional
from .sources import ReportBytes, Source, WebSource, open_source
from .treebank_names import DEFAULT_RELEASE, TREEBANKS, unknown_treebank

__all__ = ["Treebank", "fetch_treebank", "load_cached_treebank"]

SPLITS = ("train", "dev", "test")

_OFFICIAL = "https://raw.githubusercontent.com/UniversalDependencies"
_NAME = re.compile(r"[a-z]+_[a-z0-9]+")

# File that names the source of a treebank. It is written last, so a folder that has it is complete.
_SOURCE_FILE = "SOURCE"


@dataclass(frozen=True)
class Treebank:
    """A treebank on this machine.

    Attributes:
        name: language and treebank, such as "en_ewt".
        files: the path of each split that the treebank has: "train", "dev", "test".
        source: the folder or address that it came from.
        fetched: True if it was fetched just now, False if it was in the cache.

    Example:
        >>> Treebank("en_ewt", {"dev": Path("dev.conllu")}, "/data/ud", fetched=False).files
        {'dev': ...Path('dev.conllu')}
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
    progress: ReportBytes = lambda file, done, size: None,
) -> Treebank:
    """Return a treebank; fetch it first if it is not on this machine.

    A new file is verified against the checksum file beside it (`SHA256SUMS`, or the file's name
    with `.sha256`). If there is no checksum file, the SHA-256 of the first download is recorded,
    and later downloads must agree with it. A file is moved into place when it is complete. An
    interrupted download is resumed. A treebank in the cache is verified against its recorded sums,
    without a connection.

    Args:
        name: language and treebank, such as "en_ewt".
        source: the folder or http(s) address of the files. The files are there directly, in a
            subfolder `name`, or in a subfolder with the name of the official repository (as in the
            archives of releases). None: the official repositories.
        target: the folder in which to create the treebank's own folder. None: the cache, where each
            source has its own folder.
        release: the release of the official repositories.
        refresh: whether to fetch the files even if they are on this machine.
        progress: called while a file is fetched.

    Raises:
        FetchError: the source cannot be reached, does not have the treebank, or a file is not what
            was expected.

    Example:
        >>> from pathlib import Path
        >>> Path("mirror").mkdir()
        >>> text = "1\\tHello\\t_\\tINTJ" + "\\t_" * 6 + "\\n\\n"
        >>> _ = Path("mirror/en_toy-ud-train.conllu").write_text(text)
        >>> treebank = fetch_treebank("en_toy", source="mirror", target="data")
        >>> treebank.files["train"].name, treebank.fetched
        ('en_toy-ud-train.conllu', True)
    """
    if not _NAME.fullmatch(name):
        raise FetchError(f"{name!r} is not the name of a treebank; expected one such as 'en_ewt'")
    origin, layouts = _source_and_layouts(name, source, release)
    parent = Path(target) if target is not None else cache_folder() / "ud" / _slug(origin, source)
    folder = parent / name
    folder.mkdir(parents=True, exist_ok=True)
    with hold_lock(refuse_link(folder / ".lock"), wait=True):
        if not refresh and (folder / _SOURCE_FILE).exists():
            return load_cached_treebank(name, folder)
        for layout in layouts:
            files = dict(_fetch_splits(name, origin, layout, folder, refresh, progress))
            if files:
                with atomic_write_bytes(refuse_link(folder / _SOURCE_FILE)) as stream:
                    stream.write(os.fsencode(f"{origin}\n"))  # a path may be invalid UTF-8
                return Treebank(name, files, str(origin), fetched=True)
    tried = " or ".join(f"{layout}{_file_name(name, 'train')}" for layout in layouts)
    raise FileMissing(
        f"{origin} has no treebank {name}: there is no file {tried}, and no dev or test file of "
        "the same name; check the name and the source (--from)"
    )


def load_cached_treebank(name: str, folder: Path) -> Treebank:
    """Return the cached treebank after verifying its checksums."""
    checksums = read_checksums(folder)
    files = {}
    for split in SPLITS:
        path = folder / _file_name(name, split)
        if path.name not in checksums:
            continue
        if not path.exists():
            raise FetchError(f"{path} was removed since it was fetched; fetch it again (--refresh)")
        if sha256(path) != checksums[path.name]:
            raise FetchError(
                f"{path} was changed since it was fetched: its SHA-256 is not the one in "
                f"{folder / CHECKSUM_FILE}; fetch it again (--refresh)"
            )
        files[split] = path
    source = os.fsdecode(read_small(folder / _SOURCE_FILE)).strip()
    return Treebank(name, files, source, fetched=False)


def _source_and_layouts(
    name: str, source: str | os.PathLike[str] | None, release: str
) -> tuple[Source, list[str]]:
    """Return the source, and its folders that may hold the treebank."""
    repository = TREEBANKS.get(name)
    if source is not None:
        return open_source(source), [f"{name}/", *([f"{repository}/"] if repository else []), ""]
    if repository is None:
        raise FetchError(unknown_treebank(name))
    return WebSource(f"{_OFFICIAL}/{repository}/r{release}"), [""]


def _slug(origin: Source, source: str | os.PathLike[str] | None) -> str:
    """Return the name of a source's own folder in the cache."""
    if source is None:
        return str(origin).rpartition("/")[2]
    where = str(origin) if isinstance(origin, WebSource) else os.path.abspath(str(origin))
    return re.sub(r"[^\w.]+", "-", where).strip("-")


def _file_name(name: str, split: str) -> str:
    return f"{name}-ud-{split}.conllu"


def _fetch_splits(
    name: str, origin: Source, layout: str, folder: Path, refresh: bool, progress: ReportBytes
) -> Iterator[tuple[str, Path]]:
    for split in SPLITS:
        path = folder / _file_name(name, split)
        recorded = read_checksums(folder).get(path.name)
        if not refresh and path.exists() and recorded == sha256(path):
            yield split, path  # an earlier, interrupted run completed this file
            continue
        try:
            _fetch_file(origin, f"{layout}{path.name}", path, recorded, progress)
        except FileMissing:
            continue  # not every treebank has all splits
        yield split, path


def _fetch_file(
    origin: Source, source_path: str, path: Path, recorded: str | None, progress: ReportBytes
) -> None:
    """Fetch one file, verify it, move it to `path` and record its checksum."""
    pooch = import_optional("pooch")
    pooch.get_logger().setLevel(logging.WARNING)  # pooch logs each download to standard error
    address = f"{origin}/{source_path}"
    new = refuse_link(path.with_name(f"{path.name}.new"))
    new.unlink(missing_ok=True)  # otherwise pooch would use it and download nothing
    download = origin.downloader(path.with_name(f"{path.name}.part"), progress)
    pooch.retrieve(address, known_hash=None, fname=new.name, path=new.parent, downloader=download)
    try:
        checksum = sha256(new)
        _check_checksum(address, checksum, _served_checksum(origin, source_path), recorded, path)
        try:
            next(read(new, "conllu", name=address), None)
        except DataError as error:
            raise FetchError(f"the fetched file is not CoNLL-U: {error}") from error
        os.replace(new, path)
    finally:
        new.unlink(missing_ok=True)
    record_checksum(path.parent, path.name, checksum)


def _check_checksum(
    address: str, checksum: str, served: str | None, recorded: str | None, path: Path
) -> None:
    """Compare a file with the server's checksum file, or else with the recorded checksum."""
    if served is not None and checksum != served:
        raise FetchError(
            f"{address}: the SHA-256 of the fetched file is {checksum}, but the checksum file "
            f"beside it says {served}; try again"
        )
    if served is None and recorded is not None and checksum != recorded:
        raise FetchError(
            f"{address}: the SHA-256 of the fetched file is {checksum}, but that of its first "
            f"download was {recorded}; delete {path.parent} to accept the new version"
        )


def _served_checksum(origin: Source, source_path: str) -> str | None:
    """Return the SHA-256 in the checksum file beside a file; None if there is none."""
    folder, slash, file = source_path.rpartition("/")
    for candidate in (f"{folder}{slash}{CHECKSUM_FILE}", f"{source_path}.sha256"):
        try:
            text = origin.read(candidate).decode("utf-8", "replace")
        except FileMissing:
            continue
        checksums = parse_checksums(text, f"{origin}/{candidate}")
        if file in checksums:
            return checksums[file]
    return None
