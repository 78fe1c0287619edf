"""Data: read and write sentences, vocabularies, batches.

Example:
    >>> import io
    >>> (sentence,) = read(io.BytesIO(b"Ada B-PER\\nsings O\\n"), "columns")
    >>> sentence.words, sentence.format.tags(sentence, "ner")
    (('Ada', 'sings'), ['B-PER', 'O'])
"""

from .annotated_text import PARAGRAPH_BREAK, AnnotatedText, annotated_text
from .batching import LengthBatches
from .entities import locate_entities
from .features import FeatureKind, FeatureVocabulary
from .lines import DataError, read_lines
from .reading import FORMATS, SplitText, detect_format, format_named, read, read_with_errors
from .rows import BadRow, parse_row, read_rows
from .running_text import Surface, gaps_after, surface
from .sentence import ComputedSequence, Entity, Format, Sentence, Token, Word
from .vocabulary import Vocabulary
from .word_vectors import WordVectors, read_word_vectors

__all__ = [
    "FORMATS",
    "PARAGRAPH_BREAK",
    "AnnotatedText",
    "BadRow",
    "ComputedSequence",
    "DataError",
    "Entity",
    "FeatureKind",
    "FeatureVocabulary",
    "Format",
    "LengthBatches",
    "Sentence",
    "SplitText",
    "Surface",
    "Token",
    "Vocabulary",
    "Word",
    "WordVectors",
    "annotated_text",
    "detect_format",
    "format_named",
    "gaps_after",
    "locate_entities",
    "parse_row",
    "read",
    "read_lines",
    "read_rows",
    "read_with_errors",
    "read_word_vectors",
    "surface",
]
