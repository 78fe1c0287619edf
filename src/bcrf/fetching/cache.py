"""Where fetched data are kept, one process at a time."""

from __future__ import annotations

import os
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path

__all__ = ["cache_folder", "locked"]


def cache_folder() -> Path:
    """`$BCRF_CACHE`, else `bcrf` in the user's cache folder."""
    own = os.environ.get("BCRF_CACHE")
    if own:
        return Path(own)
    return Path(os.environ.get("XDG_CACHE_HOME") or Path.home() / ".cache") / "bcrf"


@contextmanager
def locked(folder: Path) -> Iterator[None]:
    """Wait until no other process works in `folder`, where the system has locks (not Windows)."""
    if os.name != "posix":
        yield
        return
    import fcntl

    with (folder / ".lock").open("w") as handle:
        fcntl.flock(handle, fcntl.LOCK_EX)  # given back when the file is closed
        yield
