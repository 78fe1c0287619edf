"""Public data sets by name: fetched once, checked, and kept in a folder.

treebank = fetch_treebank("en_ewt")
treebank.files["train"]
"""

from .cache import cache_folder
from .errors import FetchError
from .treebanks import DEFAULT_RELEASE, TREEBANKS
from .universal import Treebank, fetch_treebank

__all__ = [
    "DEFAULT_RELEASE",
    "TREEBANKS",
    "FetchError",
    "Treebank",
    "cache_folder",
    "fetch_treebank",
]
