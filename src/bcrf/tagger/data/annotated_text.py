"""The text of an annotated file: paragraphs of sentences, with the positions of their words."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass, field
from itertools import accumulate, pairwise
from typing import NamedTuple

from .lines import DataError
from .running_text import locate
from .sentence import Sentence

__all__ = ["PARAGRAPH_BREAK", "AnnotatedText", "annotated_text"]

PARAGRAPH_BREAK = "\n\n"
"""What separates paragraphs in raw text: an empty line."""


class _SentenceText(NamedTuple):
    """The text of a sentence, the (start, end) of each word, and hidden tokens with their size."""

    text: str
    words: list[tuple[int, int]]
    hidden: list[tuple[int, int, int]]


@dataclass(frozen=True)
class AnnotatedText:
    """The text of several sentences, with the positions of their words.

    Args:
        text: the text of all sentences: a space between two sentences of a paragraph, an empty line
            between two paragraphs.
        sentences: for each sentence, the (start, end) of each of its words in `text`.
        hidden: tokens that their words do not make up, such as French `du` with the words `de le`:
            the (start, end) of the token, which is also in `sentences`, and the number of words.
    """

    text: str
    sentences: list[list[tuple[int, int]]]
    hidden: dict[tuple[int, int], int] = field(default_factory=dict)


def annotated_text(sentences: Sequence[Sentence]) -> AnnotatedText:
    """Return the text of the sentences of a file; sentences without words are left out.

    Multiword tokens are divided into their words if these make up the token (`don't` is `do n't`).

    Raises:
        DataError: the white space between the words of a sentence is not known, or its text does
            not consist of its words.

    Example:
        >>> import io
        >>> from bcrf.tagger.data import read
        >>> rows = ["1-2\\tdon't", "1\\tdo", "2\\tn't"]
        >>> file = "# text = don't\\n" + "".join(row + "\\t_" * 8 + "\\n" for row in rows)
        >>> annotated_text(list(read(io.BytesIO(file.encode()), "conllu")))
        AnnotatedText(text="don't", sentences=[[(0, 2), (2, 5)]], hidden={})
    """
    texts: list[str] = []
    placed: list[list[tuple[int, int]]] = []
    hidden: dict[tuple[int, int], int] = {}
    length = 0
    for sentence in filter(len, sentences):
        if texts:
            gap = PARAGRAPH_BREAK if sentence.format.starts_paragraph(sentence) else " "
            texts.append(gap)
            length += len(gap)
        text, words, hidden_tokens = _sentence_text(sentence)
        placed.append([(start + length, end + length) for start, end in words])
        texts.append(text)
        hidden |= {(start + length, end + length): n for start, end, n in hidden_tokens}
        length += len(text)
    return AnnotatedText("".join(texts), placed, hidden)


def _sentence_text(sentence: Sentence) -> _SentenceText:
    """Return the text of a sentence, without white space at its ends."""
    tokens = sentence.format.tokens(sentence)
    text = sentence.text
    if text is None:
        if any(token.space is None for token in tokens):
            raise DataError(
                sentence.path,
                sentence.first_line,
                "the white space between the words of the sentence is not known; expected CoNLL-U "
                "with '# text = ...' or SpaceAfter=No",
            )
        text = "".join(token.form + (token.space or "") for token in tokens)
    text = text.strip()
    sizes = accumulate((len(token.words) for token in tokens[:-1]), initial=0)
    starts, ends = locate(sentence, text, (token.form for token in tokens), sizes)
    words: list[tuple[int, int]] = []
    hidden: list[tuple[int, int, int]] = []
    for token, start, end in zip(tokens, starts, ends, strict=True):
        if "".join(token.words) == token.form:
            bounds = list(accumulate(map(len, token.words), initial=start))
            words += pairwise(bounds)
        else:
            words.append((start, end))
            hidden.append((start, end, len(token.words)))
    return _SentenceText(text, words, hidden)
