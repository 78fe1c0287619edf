"""Atomic replacement of folders: a reader finds the old folder or the new one, never a mixture.

A new folder is written beside its target, in `.NAME.new.*`, and then exchanged with it. If the
system cannot exchange two folders in one step, the old folder is renamed to `.NAME.old` for a
moment. Writers hold the lock file `.NAME.lock`. A reader holds it only if the folder was replaced
during each of its first attempts to read it.
"""

from __future__ import annotations

import ctypes
import errno
import functools
import glob
import os
import shutil
import tempfile
from collections.abc import Callable, Iterator
from contextlib import ExitStack, contextmanager, suppress
from pathlib import Path
from typing import Any, TypeVar

from .durability import make_folder, sync, sync_tree
from .locks import hold_lock

__all__ = [
    "current_path",
    "read_consistently",
    "recover",
    "remove_folder",
    "replace_folder",
]

_Result = TypeVar("_Result")

# How often a reader tries to read a folder that is replaced each time. The first attempts do not
# need the lock, since a reader may have no permission to create the lock file.
_READ_ATTEMPTS, _UNLOCKED_ATTEMPTS = 100, 3

# Arguments of renameat2, as in <linux/fs.h> and <fcntl.h>.
_AT_FDCWD, _RENAME_EXCHANGE = -100, 2


# Writing


@contextmanager
def replace_folder(path: str | os.PathLike[str]) -> Iterator[Path]:
    """Yield an empty folder, which replaces `path` at the end of the block.

    The old folder stays until the block has ended without an error and all new files have reached
    the disk. Several processes or threads may replace the same folder; they take turns.
    """
    target = Path(os.path.realpath(path))
    make_folder(target.parent)
    with hold_lock(_lock_file(target), wait=True):
        _recover(target)
        fresh = _temporary_folder(target) / target.name
        try:
            fresh.mkdir()  # its mode follows the umask; its parent folder is private
            yield fresh
            sync_tree(fresh)
            _swap(fresh, target)
            sync(target.parent)
        finally:
            _recover(target)


def remove_folder(path: str | os.PathLike[str]) -> None:
    """Remove a folder such that it is complete or gone, also if the process is killed."""
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
    """Rename `.NAME.old`, left by a killed writer, back to its name; remove temporary folders."""
    target = Path(os.path.realpath(path))
    if target.parent.is_dir():
        with hold_lock(_lock_file(target), wait=True):
            _recover(target)


# Reading


def current_path(path: str | os.PathLike[str]) -> Path:
    """Return the path at which the folder `path` is now.

    It is `.NAME.old` if a writer was killed between its two renames.
    """
    target = Path(os.path.realpath(path))
    if not target.exists() and _aside(target).exists():
        return _aside(target)
    return Path(path)


def read_consistently(find: Callable[[], Path], read: Callable[[Path], _Result]) -> _Result:
    """Return `read(find())`, with all files from the same version of the folder.

    If the folder was replaced while it was read, the result or the error may come from a mixture of
    old and new files. Then the result is discarded, and the folder is read again. After a few
    attempts the reader holds the writers' lock, if it may create the lock file.

    Args:
        find: returns the folder, as `current_path` does. An error is raised only if it persists.
        read: reads the folder; it may be called several times.
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
            except Exception as error:  # perhaps because the folder was being moved
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
        f"the folder was replaced during each of {_READ_ATTEMPTS} attempts to read it; try again "
        "when fewer processes write to it",
        str(folder),
    )


class _Identity:
    """The identity of a folder. The folder is kept open, so that no other gets its inode number."""

    def __init__(self, folder: Path) -> None:
        self._handle = os.open(folder, os.O_RDONLY) if os.name == "posix" else None
        self._status = os.stat(folder if self._handle is None else self._handle)

    def __enter__(self) -> _Identity:
        return self

    def __exit__(self, *_: object) -> None:
        if self._handle is not None:
            os.close(self._handle)

    def is_at(self, folder: Path) -> bool:
        """Return whether the path `folder` still leads to this folder."""
        try:
            return os.path.samestat(os.stat(folder), self._status)
        except OSError:
            return False


# Helpers; the caller holds the lock of the target


def _recover(target: Path) -> None:
    aside = _aside(target)
    if aside.exists():
        if target.exists():
            shutil.rmtree(aside, ignore_errors=True)
        else:
            os.rename(aside, target)
    # If a temporary folder cannot be removed now, the next writer tries again.
    for abandoned in target.parent.glob(f".{glob.escape(target.name)}.new.*"):
        shutil.rmtree(abandoned, ignore_errors=True)


def _swap(fresh: Path, target: Path) -> None:
    """Move `fresh` to the target; if the target exists, replace it."""
    if not target.exists():
        os.rename(fresh, target)
    elif not _exchange(fresh, target):
        os.rename(target, _aside(target))
        os.rename(fresh, target)


def _exchange(one: Path, other: Path) -> bool:
    """Exchange two folders in one step; return False if the system cannot do that."""
    renameat2 = _renameat2()
    if renameat2 is None:
        return False
    names = [os.fsencode(one), os.fsencode(other)]
    if renameat2(_AT_FDCWD, names[0], _AT_FDCWD, names[1], _RENAME_EXCHANGE) == 0:
        return True
    number = ctypes.get_errno()
    if number in (
        errno.ENOSYS,
        errno.EINVAL,
    ):  # not supported by the kernel, or by this file system
        return False
    raise OSError(number, os.strerror(number), str(one), None, str(other))


@functools.cache
def _renameat2() -> Any:
    """Return `renameat2` of the C library; None if the library lacks it."""
    if os.name != "posix":
        return None
    return getattr(ctypes.CDLL(None, use_errno=True), "renameat2", None)


def _temporary_folder(target: Path) -> Path:
    return Path(tempfile.mkdtemp(prefix=f".{target.name}.new.", dir=target.parent))


def _aside(target: Path) -> Path:
    return target.with_name(f".{target.name}.old")


def _lock_file(target: Path) -> Path:
    return target.with_name(f".{target.name}.lock")
