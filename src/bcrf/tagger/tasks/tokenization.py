"""Tokenization: find the words and the sentences of running text, as labels of its characters.

The labels are `sentence` (the first character of a sentence and of its first word), `word` (the
first character of another word), `inside` (any other character of a word), `space` (between words)
and, if a word of the training data holds a space, `inner_space`.

Transitions and the kinds of characters (`KindReader`) exclude all other label sequences. So every
result of Viterbi is well-formed: words cover all characters besides white space, no word begins or
ends with white space, and sentences begin at words.
"""

from __future__ import annotations

from collections.abc import Container, Iterator, Mapping, Sequence
from dataclasses import dataclass, field, replace
from functools import cached_property
from itertools import pairwise
from typing import ClassVar, NamedTuple

import torch
from torch import Tensor

from ...spans import Score
from ...structure import Structure
from ..data import Sentence, Word, annotated_text, format_named
from .augmentation import LabeledText, augmented, cut_at_sentences
from .characters import CharacterKind, KindReader, with_plain_spaces
from .task import Example, Metric, Task

__all__ = ["TextExample", "Tokenization", "TokenizationF1", "WordPlaces"]

_LABELS = ("inside", "word", "sentence", "space")
_INNER = "inner_space"

# Labels that each kind of character permits, in the order of `CharacterKind`.
_PERMITTED: tuple[frozenset[str], ...] = (
    frozenset({"space"}),
    frozenset({"space", _INNER}),
    frozenset({"inside", "word", "sentence"}),
    frozenset({"inside"}),
    frozenset({"sentence"}),
)

_ALLOWED_AFTER = {
    "inside": {*_LABELS, _INNER},
    "word": {*_LABELS, _INNER},
    "sentence": {*_LABELS, _INNER},
    "space": {"word", "sentence", "space"},
    _INNER: {"inside", _INNER},
}


@dataclass(frozen=True, slots=True)
class TextExample(Example):
    """A text to be divided into words.

    The tokens are the characters of the text, with plain spaces in place of other white space.

    Args:
        text: the text.
        kinds: the `CharacterKind` of each character.
        hidden: tokens whose gold words are not parts of the text, see `AnnotatedText`.
    """

    text: str = ""
    kinds: bytes | bytearray = b""
    hidden: Mapping[tuple[int, int], int] = field(default_factory=dict)

    def part(self, start: int, stop: int) -> TextExample:
        inside = slice(start, stop)
        tokens, text, kinds = self.tokens[inside], self.text[inside], self.kinds[inside]
        return replace(self, tokens=tokens, text=text, kinds=kinds, labels=None, allowed=None)


class WordPlaces(NamedTuple):
    """Where words start and end in a text, and the indices of the words that begin sentences."""

    starts: list[int]
    ends: list[int]
    sentences: list[int]

    def of_sentences(self) -> Iterator[tuple[int, int]]:
        """Yield, for each sentence, the index of its first word, and that after its last word."""
        return pairwise([*self.sentences, len(self.starts)])


@dataclass(frozen=True)
class Tokenization(Task):
    """The task of finding the words and sentences of running text.

    Example:
        >>> import io
        >>> from bcrf.tagger.data import read
        >>> rows = ["1\\tHi", "2\\tthere", "3\\t!"]
        >>> file = "# text = Hi there!\\n" + "".join(row + "\\t_" * 8 + "\\n" for row in rows)
        >>> sentences = list(read(io.BytesIO(file.encode()), "conllu"))
        >>> (example,) = Tokenization.fit(sentences).annotated(sentences)
        >>> [label for token, label in zip(example.tokens, example.labels) if token in "Ht!"]
        ['sentence', 'word', 'word']
    """

    name: ClassVar[str] = "tokenization"
    is_on_text: ClassVar[bool] = True

    @classmethod
    def fit(cls, sentences: Sequence[Sentence]) -> Tokenization:
        task = cls((*_LABELS, _INNER))
        has_inner = any(_INNER in (example.labels or ()) for example in task.annotated(sentences))
        return task if has_inner else cls(_LABELS)

    def annotated(self, sentences: Sequence[Sentence]) -> list[Example]:
        """Return one example: the text of all sentences, as `annotated_text` joins them."""
        gold = annotated_text(sentences)
        if not gold.sentences:
            return []
        text = gold.text
        labels = ["space"] * len(text)
        for words in gold.sentences:
            for number, (start, end) in enumerate(words):
                labels[start] = "word" if number else "sentence"
                for i in range(start + 1, end):
                    labels[i] = _INNER if text[i].isspace() else "inside"
        first = next(filter(len, sentences))
        return [self._labeled(first, text, tuple(labels), gold.hidden)]

    def training_examples(self, examples: Sequence[Example], seed: int) -> list[Example]:
        """Return pieces of the examples, as they are and as careless users would write them."""
        found: list[Example] = []
        for example in examples:
            texts = cut_at_sentences(LabeledText(_text_of(example).text, list(example.gold())))
            for text, labels in (*texts, *augmented(texts, seed)):
                found.append(self._labeled(example.sentence, text, tuple(labels)))
        return found

    def example(self, sentence: Sentence) -> TextExample:
        text = sentence.text
        if text is None:
            text = annotated_text([sentence]).text
        return self.text_example(sentence, text, KindReader()(text))

    def text_example(self, sentence: Sentence, text: str, kinds: bytes | bytearray) -> TextExample:
        """Return the example of a text or of a part of a text.

        Args:
            sentence: what error messages refer to.
            text: the text.
            kinds: the kinds of its characters, from a `KindReader`.
        """
        return TextExample(tuple(with_plain_spaces(text)), sentence, text=text, kinds=kinds)

    def words(self, labels: Tensor) -> WordPlaces:
        """Return the words of well-formed labels, given as tag ids (int64 [n])."""
        number = {label: index for index, label in enumerate(self.labels)}
        is_first = (labels == number["word"]) | (labels == number["sentence"])
        is_space = labels == number["space"]
        starts = is_first.nonzero().squeeze(1)
        # A word ends before the next first character or space, or at the end of the text.
        after = torch.cat([(is_first | is_space)[1:], torch.ones(1, dtype=torch.bool)])
        ends = (after[: len(labels)] & ~is_space).nonzero().squeeze(1) + 1
        sentences = (labels[starts] == number["sentence"]).nonzero().squeeze(1)
        return WordPlaces(starts.tolist(), ends.tolist(), sentences.tolist())

    def spans(self, labels: Sequence[str]) -> WordPlaces:
        """Return the words of well-formed labels."""
        return self.words(torch.tensor([self._ids[label] for label in labels], dtype=torch.int64))

    def repair(self, example: Example, labels: Sequence[str]) -> list[str]:
        """Return well-formed labels.

        A character after `space` begins a word, spaces at the end of a word are `space`, and the
        first word begins a sentence.
        """
        repaired: list[str] = []
        before = "space"
        for label in labels:
            if before == "space":
                label = {"inside": "word", _INNER: "space"}.get(label, label)
            repaired.append(label)
            before = label
        after = "space"
        for i in reversed(range(len(repaired))):
            if repaired[i] == _INNER and after not in ("inside", _INNER):
                repaired[i] = "space"
            after = repaired[i]
        first = next((i for i, label in enumerate(repaired) if label != "space"), None)
        if first is not None:
            repaired[first] = "sentence"
        return repaired

    def metric(self, known_words: Container[str] | None = None) -> Metric:
        return TokenizationF1(self)

    def permitted_tags(self, example: Example) -> Tensor:
        table = torch.tensor(
            [[label in permitted for label in self.labels] for permitted in _PERMITTED]
        )
        kinds = torch.frombuffer(bytearray(_text_of(example).kinds), dtype=torch.uint8)
        return table[kinds.to(torch.int64)]

    def render_lines(
        self,
        example: Example,
        labels: Sequence[str],
        format: str | None = None,
        probabilities: Sequence[float] | None = None,
        item_probabilities: Sequence[float] | None = None,
    ) -> Iterator[str]:
        """Yield the lines of the sentences of the text; there are no tags, and no probabilities."""
        text = _text_of(example).text
        places = self.spans(labels)
        starts, ends, _ = places
        name = self._output_format(example.sentence, format, new_words=True)
        for first, last in places.of_sentences():
            begin = starts[first]
            gaps = [*starts[first + 1 : last], ends[last - 1]]
            words = [
                Word(text[start:end], None, None, text[end:after], start - begin)
                for start, end, after in zip(
                    starts[first:last], ends[first:last], gaps, strict=True
                )
            ]
            part = text[begin : ends[last - 1]]
            offset = example.sentence.offset
            yield from format_named(name).compose_lines(
                words, "upos", part, None if offset is None else offset + begin
            )

    @cached_property
    def structure(self) -> Structure:
        follow = [
            [after in _ALLOWED_AFTER[label] for after in self.labels] for label in self.labels
        ]
        start = [label in ("sentence", "space") for label in self.labels]
        end = [label != _INNER for label in self.labels]
        return Structure(start, end, follow, self.labels)

    def _labeled(
        self,
        sentence: Sentence,
        text: str,
        labels: tuple[str, ...],
        hidden: Mapping[tuple[int, int], int] | None = None,
    ) -> TextExample:
        """Return an annotated text.

        If the label of a character contradicts its kind, the kind is changed: in a treebank, a word
        may begin with a combining mark.
        """
        kinds = KindReader()(text)
        for i, (kind, label) in enumerate(zip(kinds, labels, strict=True)):
            if label not in _PERMITTED[kind]:
                is_space = label in ("space", _INNER)
                kinds[i] = CharacterKind.SPACE if is_space else CharacterKind.LETTER
        tokens = tuple(with_plain_spaces(text))
        return TextExample(tokens, sentence, labels, None, text, kinds, hidden or {})


class TokenizationF1(Metric):
    """F1 of words ("f1/words"), of sentences ("f1/sentences"), and the mean of both ("f1").

    A sentence is right if its first and last character are right. The scores are those of the
    CoNLL 2018 scorer on the raw text; words that are not parts of the text count as missed.
    """

    main: ClassVar[str] = "f1"

    def __init__(self, task: Tokenization) -> None:
        self._task = task
        self._words, self._sentences = Score(), Score()

    def add(self, example: Example, labels: Sequence[str]) -> None:
        gold, predicted = self._task.spans(example.gold()), self._task.spans(labels)
        hidden = example.hidden if isinstance(example, TextExample) else {}
        words = set(zip(gold.starts, gold.ends, strict=True)) - hidden.keys()
        self._words.add(words, zip(predicted.starts, predicted.ends, strict=True))
        self._words.gold += sum(hidden.values())
        self._sentences.add(_sentence_spans(gold), _sentence_spans(predicted))

    def result(self) -> dict[str, float]:
        mean = (self._words.f1 + self._sentences.f1) / 2
        scores = {"f1": mean} | self._words.named("/words") | self._sentences.named("/sentences")
        return scores | {"words": self._words.gold, "sentences": self._sentences.gold}


def _text_of(example: Example) -> TextExample:
    if not isinstance(example, TextExample):
        raise TypeError(f"expected an example of a text, got {type(example).__name__}")
    return example


def _sentence_spans(places: WordPlaces) -> list[tuple[int, int]]:
    return [(places.starts[first], places.ends[last - 1]) for first, last in places.of_sentences()]
