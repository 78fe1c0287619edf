"""Data: read and write sentences, vocabularies, batches.

Example:
    >>> import io
    >>> (sentence,) = read(io.BytesIO(b"Ada B-PER\\nsings O\\n"), "columns")
    >>> sentence.words, sentence.format.tags(sentence, "ner")
    (('Ada', 'sings'), ['B-PER', 'O'])
"""

from .batching import LengthBatches
from .lines import DataError
from .reading import FORMATS, detect_format, format_named, read, read_with_errors
from .running_text import Surface, gaps_after, surface
from .sentence import ComputedSequence, Format, Sentence, Word
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
    "detect_format",
    "format_named",
    "gaps_after",
    "read",
    "read_with_errors",
    "surface",
]
