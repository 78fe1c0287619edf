"""Folders that appear whole or not at all."""

from __future__ import annotations

import glob
import os
import shutil
import tempfile
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path

__all__ = ["replace_folder", "settle", "standing"]


@contextmanager
def replace_folder(path: str | os.PathLike[str]) -> Iterator[Path]:
    """An empty folder to be filled, which then takes the place of `path` and all that is in it.

    What was there stays until the block has ended without an error and the new files have reached
    the disk. A file system swaps no folders in one step, so for a moment the old one stands aside
    under another name: who reads asks `standing` where it is.
    """
    target = Path(os.path.realpath(path))
    target.parent.mkdir(parents=True, exist_ok=True)
    settle(target)
    # Inside a temporary folder, whose permissions are private, one with the usual permissions.
    fresh = Path(tempfile.mkdtemp(prefix=f".{target.name}.new.", dir=target.parent)) / target.name
    try:
        fresh.mkdir()
        yield fresh
        _sync(fresh)
        if target.exists():
            os.rename(target, _aside(target))
        os.rename(fresh, target)
        _sync_one(target.parent)
    finally:
        shutil.rmtree(fresh.parent, ignore_errors=True)
    shutil.rmtree(_aside(target), ignore_errors=True)


def standing(path: str | os.PathLike[str]) -> Path:
    """Where the folder that `replace_folder` wrote to `path` is: there, or, if a process was killed
    at the wrong moment, still aside."""
    target = Path(os.path.realpath(path))
    if not target.exists() and _aside(target).exists():
        return _aside(target)
    return Path(path)


def settle(path: str | os.PathLike[str]) -> None:
    """Put a folder that stands aside back, and remove what else killed processes left behind."""
    target = Path(os.path.realpath(path))
    aside = _aside(target)
    if aside.exists():
        if target.exists():
            shutil.rmtree(aside)
        else:
            os.rename(aside, target)
    for abandoned in target.parent.glob(f".{glob.escape(target.name)}.new.*"):
        shutil.rmtree(abandoned, ignore_errors=True)


def _aside(target: Path) -> Path:
    return target.with_name(f".{target.name}.old")


def _sync(folder: Path) -> None:
    """Let all files below reach the disk."""
    for parent, _, files in os.walk(folder):
        for name in files:
            _sync_one(Path(parent) / name)
        _sync_one(Path(parent))


def _sync_one(path: Path) -> None:
    if os.name != "posix":  # elsewhere folders cannot be opened
        return
    handle = os.open(path, os.O_RDONLY)
    try:
        os.fsync(handle)
    finally:
        os.close(handle)
