"""How much is taken from a source at most: a server or a folder may offer bytes without end."""

from __future__ import annotations

__all__ = ["MAX_DOWNLOAD", "MAX_SMALL_FILE", "TIMEOUT"]

MAX_SMALL_FILE = 1 << 20
"""Bytes of a checksum file, or of a note in the cache."""

MAX_DOWNLOAD = 2 << 30
"""Bytes of a treebank file; the largest one of Universal Dependencies has some 100 MB."""

TIMEOUT = 30.0
"""Seconds without any byte after which a connection counts as broken. A server that sends slowly,
but sends, is waited for."""
