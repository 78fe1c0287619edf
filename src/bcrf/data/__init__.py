"""Data: sentences from files and back, vocabularies, batches.

for sentence in read("en_ewt-ud-train.conllu"):
    sentence.words, sentence.format.tags(sentence, "upos")
"""

from .batching import LengthBatches
from .detection import FORMATS, detect_format, format_named
from .errors import DataError
from .files import atomic_write, atomic_write_bytes
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
    "read",
    "read_with_errors",
    "surface",
]
