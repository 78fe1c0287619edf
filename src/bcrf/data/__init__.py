"""Data: sentences from files and back, vocabularies, batches.

for sentence in read("en_ewt-ud-train.conllu"):
    sentence.words, sentence.format.tags(sentence, "upos")
"""

from .batching import LengthBatches
from .detection import FORMATS, detect_format, format_named
from .errors import DataError
from .files import (
    atomic_write,
    atomic_write_bytes,
    open_regular,
    read_limited,
    sha256,
    sha256_of_stream,
    sync,
)
from .reading import read, read_with_errors
from .running_text import Surface, gaps_after, surface
from .sentence import Format, Sentence, Word
from .sequences import ComputedSequence
from .vocabulary import Vocabulary

__all__ = [
    "FORMATS",
    "ComputedSequence",
    "DataError",
    "Format",
    "LengthBatches",
    "Sentence",
    "Surface",
    "Vocabulary",
    "Word",
    "atomic_write",
    "atomic_write_bytes",
    "detect_format",
    "format_named",
    "gaps_after",
    "open_regular",
    "read",
    "read_limited",
    "read_with_errors",
    "sha256",
    "sha256_of_stream",
    "surface",
    "sync",
]
