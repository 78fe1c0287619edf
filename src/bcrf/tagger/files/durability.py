"""Wait until changes have reached the disk, and report errors of the system during writing."""

from __future__ import annotations

import os
import re
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path

__all__ = ["make_folder", "report_write_errors", "sync", "sync_tree"]


def sync(path: Path) -> None:
    """Wait until the content of a file, or the list of names in a folder, has reached the disk."""
    if os.name != "posix":  # other systems cannot open folders
        return
    handle = os.open(path, os.O_RDONLY)
    try:
        os.fsync(handle)
    finally:
        os.close(handle)


def sync_tree(folder: Path) -> None:
    """Wait until a folder, with all files and folders below it, has reached the disk."""
    for parent, _, files in os.walk(folder):
        for name in files:
            sync(Path(parent) / name)
        sync(Path(parent))


def make_folder(path: Path) -> None:
    """Create a folder and its missing parents; wait until they have reached the disk."""
    missing = []
    while not path.exists():
        missing.append(path)
        path = path.parent
    for folder in reversed(missing):
        folder.mkdir(exist_ok=True)
        sync(folder.parent)


@contextmanager
def report_write_errors(path: str | os.PathLike[str], failure: str, remedy: str) -> Iterator[None]:
    """Replace an error of the system in the block by an OSError with `path` and the remedy.

    Errors without an error number, such as our own FileExistsError, pass unchanged.

    Args:
        path: the file or folder that is written.
        failure: what failed, such as "cannot save the model".
        remedy: what the user can do, or what is still intact.
    """
    try:
        yield
    except Exception as error:
        number = _error_number(error)
        if number is None:
            raise
        reason = f"{failure}: {os.strerror(number)}; {remedy}"
        raise OSError(number, reason, str(path)) from error


def _error_number(error: Exception) -> int | None:
    """Return the error number (errno); libraries written in Rust have it only in the text."""
    if isinstance(error, OSError):
        return error.errno
    found = re.search(r"\(os error (\d+)\)", str(error))
    return None if found is None else int(found[1])
