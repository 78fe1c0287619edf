"""Fetch public data sets by name: download them once, verify them, keep them in a cache.

Example:
    >>> treebank = fetch_treebank("en_ewt")  # doctest: +SKIP
    >>> sorted(treebank.files)  # doctest: +SKIP
    ['dev', 'test', 'train']
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
