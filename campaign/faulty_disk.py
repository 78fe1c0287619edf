"""Simulate a disk that fails at the k-th operation.

`FaultyDisk.install` replaces functions of `os`, the function `open`, and the exchange of two
folders in this process. The replacements apply to paths below one folder. They count all
operations that change the disk, and make one of them fail.

To simulate lost writes, `FaultyDisk` tracks which changes have reached the disk. The data of a file
reach the disk when the file is synced. Changes of folders (new, renamed and removed entries) reach
the disk in their order, as in a journaling file system. A change has reached the disk at the latest
when one of the changed folders is synced.
"""

from __future__ import annotations

import builtins
import errno
import io
import os
import stat
from collections.abc import Callable
from pathlib import Path
from typing import Any

from bcrf.tagger.files import atomic_folder

__all__ = ["CRASHED", "FAULTS", "FaultyDisk", "can_occur"]

FAULTS = {
    "kill": "the process ends before the operation",
    "torn": "the process ends after half of a write",
    "lost": "the process ends, and everything that was not synced is lost",
    "ENOSPC": "the disk is full from this operation on",
    "EIO": "this operation fails; later ones succeed",
    "short": "a write writes half of its bytes, and returns that number",
}

CRASHED = 77
"""Exit code of a process that a simulated crash has ended."""

# Operations that need space on the disk.
_ADDING = {"open", "write", "mkdir", "rename", "exchange", "fsync"}


def can_occur(fault: str, operation: str) -> bool:
    """Whether a fault can occur at an operation such as "write run/metrics.jsonl"."""
    kind = operation.partition(" ")[0]
    if fault in ("torn", "short"):
        return kind == "write"
    return kind in _ADDING if fault == "ENOSPC" else True


class FaultyDisk:
    """A disk below `root` that fails at one operation.

    Args:
        root: operations on paths below this folder may fail.
        fault: one of `FAULTS`; None: only count operations.
        at: number of the operation that fails, from 1. `can_occur` must be true for it.
        removed: an empty folder on the same file system, outside of `root`. Removed files are
            moved there, because a crash may lose the removal, and the file must then come back.
    """

    def __init__(self, root: Path, fault: str | None, at: int, removed: Path) -> None:
        self.root, self.fault, self.at = os.path.realpath(root), fault, at
        self.removed = removed
        self.operations: list[str] = []
        self._full = False
        # Changes of folders in their order. Each entry holds the changed folders and a function
        # that undoes the change. The first `_durable` entries have reached the disk.
        self._changes: list[tuple[set[str], Callable[[], object]]] = []
        self._durable = 0
        # Inode of each file with unsynced changes -> its handle, and its data on the disk.
        self._unsynced: dict[int, tuple[int, bytes]] = {}
        self._real = {
            name: getattr(os, name)
            for name in ("mkdir", "open", "rename", "unlink", "rmdir", "fsync")
        }
        self._real_open, self._real_exchange = io.open, atomic_folder._exchange

    def install(self) -> None:
        """Replace the functions until this process ends."""
        os.mkdir, os.open, os.rename = self._mkdir, self._os_open, self._rename  # type: ignore
        os.replace = self._rename  # type: ignore
        os.unlink, os.remove, os.rmdir = self._unlink, self._unlink, self._rmdir  # type: ignore
        os.fsync = self._fsync  # type: ignore
        io.open = builtins.open = self._open  # type: ignore
        atomic_folder._exchange = self._exchange

    # Replacements of the functions

    def _mkdir(self, path: Any, mode: int = 0o777, *, dir_fd: int | None = None) -> None:
        where = self._place(path, dir_fd)
        if os.path.exists(where):  # the real function raises an error and changes nothing
            where = ""
        if where:
            self.before("mkdir", where)
        self._real["mkdir"](path, mode, dir_fd=dir_fd)
        if where:
            self._changed([where], lambda: self._real["rmdir"](where))

    def _rename(self, source: Any, target: Any, **options: Any) -> None:
        here, there = self._place(source), self._place(target)
        if here:
            self.before("rename", there)
        self._real["rename"](source, target, **options)
        if here:
            self._changed([here, there], lambda: self._real["rename"](there, here))

    def _exchange(self, one: Path, other: Path) -> bool:
        self.before("exchange", str(other))
        done = self._real_exchange(one, other)
        if done:
            self._changed([str(one), str(other)], lambda: self._real_exchange(one, other))
        return done

    def _unlink(self, path: Any, *, dir_fd: int | None = None) -> None:
        where = self._place(path, dir_fd)
        if where:
            self.before("unlink", where)
        if where and self.fault == "lost":
            kept = str(self.removed / str(len(self.operations)))
            self._real["rename"](where, kept)
            self._changed([where], lambda: self._real["rename"](kept, where))
        else:
            self._real["unlink"](path, dir_fd=dir_fd)

    def _rmdir(self, path: Any, *, dir_fd: int | None = None) -> None:
        where = self._place(path, dir_fd)
        if where:
            self.before("rmdir", where)
        self._real["rmdir"](path, dir_fd=dir_fd)
        if where:
            self._changed([where], lambda: self._real["mkdir"](where))

    def _os_open(
        self, path: Any, flags: int, mode: int = 0o777, *, dir_fd: int | None = None
    ) -> int:
        where = self._place(path, dir_fd) if flags & os.O_CREAT else ""
        new = bool(where) and not os.path.exists(where)
        if new:
            self.before("open", where)
        handle: int = self._real["open"](path, flags, mode, dir_fd=dir_fd)
        if new:
            self.created(where)
        return handle

    def _open(
        self,
        file: Any,
        mode: str = "r",
        buffering: int = -1,
        encoding: str | None = None,
        errors: str | None = None,
        newline: str | None = None,
        **options: Any,
    ) -> Any:
        if not set(mode) & set("wax+") or isinstance(file, int) or not self._place(file):
            return self._real_open(file, mode, buffering, encoding, errors, newline, **options)
        raw = _File(self, os.fspath(file), mode.replace("b", "").replace("t", ""))
        if buffering == 0:
            return raw
        buffered = io.BufferedRandom(raw) if "+" in mode else io.BufferedWriter(raw)
        if "b" in mode:
            return buffered
        return io.TextIOWrapper(buffered, encoding, errors, newline)

    def _fsync(self, handle: int) -> None:
        where = os.readlink(f"/proc/self/fd/{handle}")
        if not self._place(where):
            self._real["fsync"](handle)
            return
        self.before("fsync", where)
        status = os.fstat(handle)
        if stat.S_ISDIR(status.st_mode):
            for number, (folders, _) in enumerate(self._changes, start=1):
                if where in folders:
                    self._durable = max(self._durable, number)
        elif status.st_ino in self._unsynced:
            os.close(self._unsynced.pop(status.st_ino)[0])

    # Counting and failing

    def before(self, operation: str, where: str) -> None:
        """Count an operation, and let it fail if its number is `at`."""
        if self._full and operation in _ADDING:
            raise OSError(errno.ENOSPC, os.strerror(errno.ENOSPC))
        self.operations.append(f"{operation} {os.path.relpath(where, self.root)}")
        if len(self.operations) != self.at:
            return
        if self.fault == "kill":
            os._exit(CRASHED)
        elif self.fault == "lost":
            self._lose()
            os._exit(CRASHED)
        elif self.fault == "EIO":
            raise OSError(errno.EIO, os.strerror(errno.EIO))
        elif self.fault == "ENOSPC":
            self._full = True
            raise OSError(errno.ENOSPC, os.strerror(errno.ENOSPC))

    @property
    def is_at_fault(self) -> bool:
        return len(self.operations) == self.at

    def changes_data(self, file: io.FileIO) -> None:
        """Store the data of a file before they change."""
        number = os.fstat(file.fileno()).st_ino
        if number not in self._unsynced:
            with self._real_open(f"/proc/self/fd/{file.fileno()}", "rb") as reading:
                self._unsynced[number] = (os.dup(file.fileno()), reading.read())

    def created(self, where: str) -> None:
        self._changed([where], lambda: self._real["unlink"](where))

    def _changed(self, paths: list[str], undo: Callable[[], object]) -> None:
        self._changes.append(({os.path.dirname(path) for path in paths}, undo))

    def _lose(self) -> None:
        """Undo all changes that have not reached the disk."""
        for handle, content in self._unsynced.values():
            os.ftruncate(handle, 0)
            os.pwrite(handle, content, 0)
        for _, undo in reversed(self._changes[self._durable :]):
            undo()

    def _place(self, path: Any, folder: int | None = None) -> str:
        """Return the absolute path if it is below the root, otherwise ""."""
        if isinstance(path, int):
            return ""
        base = "" if folder is None else os.readlink(f"/proc/self/fd/{folder}")
        name = os.path.abspath(os.path.join(base, os.fsdecode(path)))
        # We do not resolve the last part: it may be a link, or it may not exist.
        whole = os.path.join(os.path.realpath(os.path.dirname(name)), os.path.basename(name))
        return whole if whole.startswith(self.root + os.sep) else ""


class _File(io.FileIO):
    """A file on the faulty disk, opened for writing."""

    def __init__(self, disk: FaultyDisk, path: str, mode: str) -> None:
        self._disk = disk
        self._path = disk._place(path)
        new = not os.path.exists(self._path)
        disk.before("open", self._path)
        if not new and "w" in mode:  # opening truncates the file, which changes its data
            with io.FileIO(path, "r+") as before:
                disk.changes_data(before)
        super().__init__(path, mode)
        if new:
            disk.created(self._path)

    def write(self, data: Any, /) -> int:
        disk = self._disk
        disk.changes_data(self)
        disk.before("write", self._path)
        if disk.is_at_fault and disk.fault in ("torn", "short"):
            with memoryview(data) as view, view.cast("B") as whole:
                written = super().write(whole[: max(1, len(whole) // 2)])
            if disk.fault == "torn":
                os._exit(CRASHED)
            return written
        return super().write(data)

    def truncate(self, size: int | None = None, /) -> int:
        self._disk.changes_data(self)
        self._disk.before("truncate", self._path)
        return super().truncate(size)
