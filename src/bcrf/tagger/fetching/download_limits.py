"""Limits on the bytes read from a source: a server or a folder may offer endless data."""

from __future__ import annotations

__all__ = ["MAX_DOWNLOAD", "MAX_REDIRECTS", "MAX_SMALL_FILE", "TIMEOUT"]

MAX_SMALL_FILE = 1 << 20
"""Bytes of a checksum file, or of a small file in the cache."""

MAX_DOWNLOAD = 2 << 30
"""Bytes of a treebank file. The largest one of Universal Dependencies has about 100 MB."""

MAX_REDIRECTS = 10
"""Redirects that are followed for one request."""

TIMEOUT = 30.0
"""Seconds without a byte after which a connection counts as broken. A download from a slow server
continues as long as bytes arrive."""
