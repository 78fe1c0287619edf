"""Atomic replacement of folders: a reader finds the old folder or the new one, never a mixture.

A new folder is written beside its target, below `.NAME.new.*`, and then swapped with it. Where the
system cannot swap two folders in one step, the old folder is `.NAME.old` for a moment. Writers hold
the lock file `.NAME.lock`; readers hold it only where they are slower than the writers.
"""

from __future__ import annotations

import ctypes
import errno
import functools
import glob
import os
import re
import shutil
import tempfile
from collections.abc import Callable, Iterator
from contextlib import ExitStack, contextmanager, suppress
from pathlib import Path
from typing import Any, TypeVar

from ..data import sync
from .locks import hold_lock

__all__ = [
    "current_path",
    "make_folder",
    "read_consistently",
    "recover",
    "remove_folder",
    "replace_folder",
    "report_write_errors",
]

_Result = TypeVar("_Result")

# How often a folder is read before we give up because it is replaced during each reading; the first
# attempts do without the lock, which a reader may not be permitted to create.
_READ_ATTEMPTS, _UNLOCKED_ATTEMPTS = 100, 3

# Arguments of renameat2, as in <linux/fs.h> and <fcntl.h>.
_AT_FDCWD, _RENAME_EXCHANGE = -100, 2


# Writing


@contextmanager
def replace_folder(path: str | os.PathLike[str]) -> Iterator[Path]:
    """Give an empty folder to fill, which then replaces `path` and everything in it.

    The old folder stays until the block has ended without an error and all new files have reached
    the disk. Several processes or threads that replace the same folder do so one after the other.
    """
    target = Path(os.path.realpath(path))
    make_folder(target.parent)
    with hold_lock(_lock_file(target), wait=True):
        _recover(target)
        fresh = _temporary_folder(target) / target.name
        try:
            fresh.mkdir()  # with the usual permissions; its parent is private
            yield fresh
            _sync_tree(fresh)
            _swap(fresh, target)
            sync(target.parent)
        finally:
            _recover(target)


def remove_folder(path: str | os.PathLike[str]) -> None:
    """Remove a folder: it is there as a whole, or gone, also if the process is killed."""
    target = Path(os.path.realpath(path))
    if not target.parent.is_dir():
        return
    with hold_lock(_lock_file(target), wait=True):
        _recover(target)
        if target.exists():
            os.rename(target, _temporary_folder(target) / target.name)
            sync(target.parent)
            _recover(target)


def recover(path: str | os.PathLike[str]) -> None:
    """Put a folder that was moved aside back, and remove what killed processes left behind."""
    target = Path(os.path.realpath(path))
    if target.parent.is_dir():
        with hold_lock(_lock_file(target), wait=True):
            _recover(target)


def make_folder(path: Path) -> None:
    """Create a folder and its parents, unless they exist, so that they survive a power cut."""
    missing = []
    while not path.exists():
        missing.append(path)
        path = path.parent
    for folder in reversed(missing):
        folder.mkdir(exist_ok=True)
        sync(folder.parent)


@contextmanager
def report_write_errors(path: str | os.PathLike[str], failure: str, remedy: str) -> Iterator[None]:
    """Turn a failure of the system into one OSError that names `path` and says what to do.

    Errors without an error number, such as our own FileExistsError, pass unchanged.
    """
    try:
        yield
    except Exception as error:
        number = _error_number(error)
        if number is None:
            raise
        reason = f"{failure}: {os.strerror(number)}; {remedy}"
        raise OSError(number, reason, str(path)) from error


# Reading


def current_path(path: str | os.PathLike[str]) -> Path:
    """Return where the folder `path` is now: there, or aside if a writer was killed at the wrong
    moment."""
    target = Path(os.path.realpath(path))
    if not target.exists() and _aside(target).exists():
        return _aside(target)
    return Path(path)


def read_consistently(find: Callable[[], Path], read: Callable[[Path], _Result]) -> _Result:
    """Return `read(find())`, read from one and the same folder.

    If the folder was replaced during the reading, the result, or the error, may come from a mixture
    of the old files and the new ones: it is dropped, and the folder is found and read again. After
    a few attempts, writers are kept away meanwhile, if this process may create their lock file.

    Args:
        find: returns the folder, as `current_path` does. Its errors count only if they persist.
        read: reads the folder; may be called several times.
    """
    missing: Exception | None = None
    for attempt in range(_READ_ATTEMPTS):
        with ExitStack() as stack:
            try:
                folder = find()
                if attempt >= _UNLOCKED_ATTEMPTS:
                    with suppress(OSError):
                        lock = _lock_file(Path(os.path.realpath(folder)))
                        stack.enter_context(hold_lock(lock, wait=True))
                    folder = find()
                identity = stack.enter_context(_Identity(folder))
            except Exception as error:  # perhaps because the folder was just being moved
                missing = error
                continue
            missing = None
            try:
                result = read(folder)
            except Exception:
                if identity.is_at(folder):
                    raise
            else:
                if identity.is_at(folder):
                    return result
    if missing is not None:
        raise missing
    raise OSError(
        errno.EBUSY,
        f"was replaced during each of {_READ_ATTEMPTS} attempts to read it; read it when fewer "
        "processes write to it",
        str(folder),
    )


class _Identity:
    """Which folder is at a path. It stays open, so that its number goes to no other folder."""

    def __init__(self, folder: Path) -> None:
        self._handle = os.open(folder, os.O_RDONLY) if os.name == "posix" else None
        self._status = os.stat(folder if self._handle is None else self._handle)

    def __enter__(self) -> _Identity:
        return self

    def __exit__(self, *_: object) -> None:
        if self._handle is not None:
            os.close(self._handle)

    def is_at(self, folder: Path) -> bool:
        try:
            return os.path.samestat(os.stat(folder), self._status)
        except OSError:
            return False


# Parts; the caller holds the lock of the target


def _recover(target: Path) -> None:
    aside = _aside(target)
    if aside.exists():
        if target.exists():
            shutil.rmtree(aside, ignore_errors=True)
        else:
            os.rename(aside, target)
    # What cannot be removed now is removed by the next writer.
    for abandoned in target.parent.glob(f".{glob.escape(target.name)}.new.*"):
        shutil.rmtree(abandoned, ignore_errors=True)


def _swap(fresh: Path, target: Path) -> None:
    """Put `fresh` in the place of the target, which may exist."""
    if not target.exists():
        os.rename(fresh, target)
    elif not _exchange(fresh, target):
        os.rename(target, _aside(target))
        os.rename(fresh, target)


def _exchange(one: Path, other: Path) -> bool:
    """Swap two folders in one step; return False where the system cannot."""
    renameat2 = _renameat2()
    if renameat2 is None:
        return False
    names = [os.fsencode(one), os.fsencode(other)]
    if renameat2(_AT_FDCWD, names[0], _AT_FDCWD, names[1], _RENAME_EXCHANGE) == 0:
        return True
    number = ctypes.get_errno()
    if number in (errno.ENOSYS, errno.EINVAL):  # no such call, or not on this file system
        return False
    raise OSError(number, os.strerror(number), str(one), None, str(other))


@functools.cache
def _renameat2() -> Any:
    """The function of the C library; None if it has none."""
    if os.name != "posix":
        return None
    return getattr(ctypes.CDLL(None, use_errno=True), "renameat2", None)


def _temporary_folder(target: Path) -> Path:
    return Path(tempfile.mkdtemp(prefix=f".{target.name}.new.", dir=target.parent))


def _aside(target: Path) -> Path:
    return target.with_name(f".{target.name}.old")


def _lock_file(target: Path) -> Path:
    return target.with_name(f".{target.name}.lock")


def _sync_tree(folder: Path) -> None:
    """Wait until all files below have reached the disk."""
    for parent, _, files in os.walk(folder):
        for name in files:
            sync(Path(parent) / name)
        sync(Path(parent))


def _error_number(error: Exception) -> int | None:
    """The system's error number; libraries written in Rust put it into the text."""
    if isinstance(error, OSError):
        return error.errno
    found = re.search(r"\(os error (\d+)\)", str(error))
    return None if found is None else int(found[1])
