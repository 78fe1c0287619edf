"""The results of a tagger on annotated sentences, one `Outcome` for each sentence."""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from dataclasses import dataclass
from functools import cached_property

from .. import Tagged, Tagger
from ..tasks import CharacterExample, Example, Span, Task

__all__ = ["Item", "Outcome", "collect_outcomes"]


@dataclass(frozen=True, slots=True)
class Item:
    """A tagged word, or a mention.

    Args:
        start, end: its place in the text of the sentence, in characters.
        tag: its tag or type.
        confidence: its probability under the model; None for gold items.
    """

    start: int
    end: int
    tag: str
    confidence: float | None = None

    @property
    def key(self) -> tuple[int, int, str]:
        """The place and the tag: an item is right if a gold item has the same ones."""
        return self.start, self.end, self.tag

    @property
    def place(self) -> tuple[int, int]:
        """The place without the tag."""
        return self.start, self.end


@dataclass(frozen=True)
class Outcome:
    """The gold items and the predicted items of one sentence.

    Args:
        path, line: file and line of the sentence.
        text: its text; for tasks on words, the words with spaces between them.
        tokens: places of the tokens in the text.
        token_confidences: probability of the predicted label of each token; for segmentation empty.
        gold, predicted: the items, in order.
        repaired: whether ill-formed labels have been repaired.
    """

    path: str
    line: int
    text: str
    tokens: Sequence[tuple[int, int]]
    token_confidences: Sequence[float]
    gold: Sequence[Item]
    predicted: Sequence[Item]
    repaired: bool

    @cached_property
    def gold_keys(self) -> frozenset[tuple[int, int, str]]:
        """The keys of the gold items."""
        return frozenset(item.key for item in self.gold)

    @cached_property
    def predicted_keys(self) -> frozenset[tuple[int, int, str]]:
        """The keys of the predicted items."""
        return frozenset(item.key for item in self.predicted)

    @cached_property
    def correct(self) -> int:
        """The number of predicted items that are right."""
        return len(self.gold_keys & self.predicted_keys)

    @property
    def is_perfect(self) -> bool:
        """Whether the sentence has no error."""
        return self.gold_keys == self.predicted_keys


def collect_outcomes(
    tagger: Tagger, examples: Sequence[Example], decoder: str, repair: str
) -> Iterator[Outcome]:
    """Tag annotated sentences; yield their outcomes in order."""
    for tagged in tagger.tag_examples(examples, decoder, repair, probabilities=True):
        yield _outcome(tagged)


def _outcome(tagged: Tagged) -> Outcome:
    task, example = tagged.task, tagged.example
    text, tokens = _text(example)
    assert tagged.item_probabilities is not None
    assert tagged.probabilities is not None
    spans = task.items(example, tagged.labels)
    predicted = [
        _item(span, tokens, p) for span, p in zip(spans, tagged.item_probabilities, strict=True)
    ]
    has_words = len(tagged.probabilities) == len(tokens)
    return Outcome(
        example.sentence.path,
        example.sentence.first_line,
        text,
        tokens,
        tagged.probabilities if has_words else (),
        [_item(span, tokens) for span in _gold_spans(task, example)],
        predicted,
        tagged.repaired,
    )


def _gold_spans(task: Task, example: Example) -> list[Span]:
    return task.items(example, example.gold())


def _text(example: Example) -> tuple[str, list[tuple[int, int]]]:
    """Return the text of a sentence, and the places of its tokens in it."""
    if isinstance(example, CharacterExample):
        return example.text, [(offset, offset + 1) for offset in example.offsets]
    places, start = [], 0
    for token in example.tokens:
        places.append((start, start + len(token)))
        start += len(token) + 1
    return " ".join(example.tokens), places


def _item(span: Span, tokens: Sequence[tuple[int, int]], confidence: float | None = None) -> Item:
    return Item(tokens[span.start][0], tokens[span.end - 1][1], span.type, confidence)
