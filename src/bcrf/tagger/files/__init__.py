"""Files and folders: atomic writing, limited reading, checksums, locks and logs.

This package imports neither torch nor any other package of the tagger.
"""

from .atomic_file import atomic_write, atomic_write_bytes, remove_temporary_files
from .atomic_folder import (
    current_path,
    read_consistently,
    recover,
    remove_folder,
    replace_folder,
)
from .durability import make_folder, report_write_errors, sync, sync_tree
from .jsonl_log import JsonlError, JsonlLog, LogRow
from .locks import LockHeldError, hold_lock
from .regular_files import (
    open_regular,
    read_limited,
    sha256,
    sha256_of_bytes,
    sha256_of_parts,
    sha256_of_stream,
)

__all__ = [
    "JsonlError",
    "JsonlLog",
    "LockHeldError",
    "LogRow",
    "atomic_write",
    "atomic_write_bytes",
    "current_path",
    "hold_lock",
    "make_folder",
    "open_regular",
    "read_consistently",
    "read_limited",
    "recover",
    "remove_folder",
    "remove_temporary_files",
    "replace_folder",
    "report_write_errors",
    "sha256",
    "sha256_of_bytes",
    "sha256_of_parts",
    "sha256_of_stream",
    "sync",
    "sync_tree",
]
