"""Find the mentions of a sentence in its text."""

from __future__ import annotations

from array import array
from collections.abc import Iterable, Iterator
from itertools import accumulate

from .lines import DataError
from .running_text import Surface, locate, surface
from .sentence import ComputedSequence, Entity, Sentence

__all__ = ["locate_entities"]


def locate_entities(
    sentence: Sentence, mentions: Iterable[tuple[int, int, str, float | None]]
) -> Iterator[Entity]:
    """Yield the entities of a sentence.

    Args:
        sentence: the sentence.
        mentions: of each entity the first word, the word after the last one, the label and the
            probability.
    """
    found = _places_of_words(sentence)
    for start_word, end_word, label, probability in mentions:
        if found is None:
            start = end = None
            text = " ".join(sentence.words[start_word:end_word])
        else:
            (start, _), (_, end) = found.spans[start_word], found.spans[end_word - 1]
            text = found.text[start:end]
        yield Entity(start, end, label, text, start_word, end_word, probability)


def _places_of_words(sentence: Sentence) -> Surface | None:
    """Return the text of a sentence, or its words joined by spaces, with the place of each word.

    A word of a multiword token that is not a part of the text (French `de` in `du`) has the place
    of the token. None: the words cannot be found in the text.
    """
    if sentence.text is None:
        return _joined_by_spaces(sentence)
    try:
        return surface(sentence)
    except DataError:
        return _places_of_tokens(sentence, sentence.text)


def _joined_by_spaces(sentence: Sentence) -> Surface:
    starts, end = array("q"), -1
    for word in sentence.words:
        starts.append(end + 1)
        end += 1 + len(word)
    words = sentence.words
    spans = ComputedSequence(len(words), lambda i: (starts[i], starts[i] + len(words[i])))
    return Surface(" ".join(words), spans)


def _places_of_tokens(sentence: Sentence, text: str) -> Surface | None:
    tokens = sentence.format.tokens(sentence)
    token_of_word = array("q", (i for i, token in enumerate(tokens) for _ in token.words))
    first_words = accumulate((len(token.words) for token in tokens[:-1]), initial=0)
    try:
        starts, ends = locate(sentence, text, (token.form for token in tokens), first_words)
    except DataError:
        return None
    places = [(starts[token], ends[token]) for token in token_of_word]
    return Surface(text, places)
