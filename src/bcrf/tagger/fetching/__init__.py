"""Fetch public data sets by name: download them once, verify them, keep them in a cache.

`fetch_treebank("en_ewt")` fetches a treebank from its official repository.

Example:
    >>> len(TREEBANKS) > 50, DEFAULT_RELEASE
    (True, '2.15')
"""

from .cache import cache_folder
from .errors import FetchError
from .treebank_names import DEFAULT_RELEASE, TREEBANKS
from .treebanks import Treebank, fetch_treebank

__all__ = [
    "DEFAULT_RELEASE",
    "TREEBANKS",
    "FetchError",
    "Treebank",
    "cache_folder",
    "fetch_treebank",
]
