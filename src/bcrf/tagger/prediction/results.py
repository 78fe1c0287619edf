"""The results of a tagger: tagged sentences and evaluations."""

from __future__ import annotations

from collections.abc import Iterator
from dataclasses import dataclass, field, replace
from typing import Any

from ..data import Entity, Sentence
from ..tasks import CharacterExample, Example, Segmentation, Task, TextExample, Tokenization

__all__ = ["Evaluation", "Tagged"]


@dataclass(frozen=True)
class Tagged:
    """A sentence with its predicted labels.

    Args:
        task: the task of the tagger.
        example: the sentence.
        labels: one label per token (per character in segmentation), after repair. With a threshold,
            `_` stands for a tag that is not told.
        repaired: whether the labels of the decoder were ill-formed and have been repaired.
        probabilities: the probability of each word's tag; in segmentation, of each word with its
            tag. None if they were not asked for. With a threshold, the words of a mention have the
            probability of the mention.
        item_probabilities: the probability of each item of `labels` (see `Task.items`), also of
            those whose tag is not told; None if they were not asked for.

    Example (`tagger` as in `Tagger`):
        >>> (tagged,) = tagger.tag([["dogs", "bark"]])
        >>> tagged
        Tagged(labels=('NOUN', 'NOUN'), repaired=False, probabilities=None)
        >>> tagged.words
        ('dogs', 'bark')
    """

    task: Task = field(repr=False)
    example: Example = field(repr=False)
    labels: tuple[str, ...]
    repaired: bool = False
    probabilities: tuple[float, ...] | None = None
    item_probabilities: tuple[float, ...] | None = field(default=None, repr=False)

    @property
    def sentence(self) -> Sentence:
        """The sentence, as it was read."""
        return self.example.sentence

    @property
    def words(self) -> tuple[str, ...]:
        """The words of the sentence; for tasks on characters, the predicted words."""
        if isinstance(self.task, Tokenization):
            assert isinstance(self.example, TextExample)
            text = self.example.text
            starts, ends, _ = self.task.spans(self.labels)
            return tuple(text[start:end] for start, end in zip(starts, ends, strict=True))
        if not isinstance(self.task, Segmentation):
            return self.example.tokens
        assert isinstance(self.example, CharacterExample)
        text = self.example.text
        spans = self.task.words(self.example, self.labels)
        places = (self.task.place(self.example, span) for span in spans)
        return tuple(text[start:end] for start, end in places)

    @property
    def tags(self) -> tuple[str, ...]:
        """The tag of each word; a tokenizer gives no tags."""
        if isinstance(self.task, Tokenization):
            return ()
        if not isinstance(self.task, Segmentation):
            return self.labels
        return tuple(span.type for span in self.task.words(self.example, self.labels))

    @property
    def entities(self) -> list[Entity]:
        """The mentions with their places in the text; none if the task has no mentions.

        Their probabilities are None if the sentence was tagged without probabilities.

        Example (`tagger` as in `Tagger`, whose task is parts of speech):
            >>> (tagged,) = tagger.tag([["dogs", "bark"]])
            >>> tagged.entities
            []
        """
        return self.task.entities(self.example, self.labels, self.item_probabilities)

    def above(self, threshold: float) -> Tagged:
        """Return the sentence without the tags whose probability is below a threshold.

        A word whose tag is left out has the tag `_`; a mention that is left out becomes O. The
        probabilities are those that were compared with the threshold.

        Raises:
            ValueError: the sentence was tagged without the probabilities of items.

        Example (`tagger` and `file` as in `Tagger`):
            >>> from bcrf.tagger.data import read
            >>> examples = tagger.task.annotated(list(read(file)))
            >>> (tagged,) = tagger.tag_examples(examples, probabilities=True)
            >>> tagged.above(0.5).tags
            ('NOUN',)
        """
        items = self.item_probabilities
        if self.probabilities is None or items is None:
            raise ValueError("a threshold needs probabilities; tag with `probabilities=True`")
        kept = [p >= threshold for p in items]
        labels = self.task.withhold(self.example, self.labels, kept)
        if not self.task.has_mentions:
            return replace(self, labels=labels)
        shown = list(self.probabilities)  # of each word, also of the words of a mention
        for span, p in zip(self.task.items(self.example, self.labels), items, strict=True):
            shown[span.start : span.end] = [p] * (span.end - span.start)
        left = tuple(p for p, keep in zip(items, kept, strict=True) if keep)
        return replace(self, labels=labels, probabilities=tuple(shown), item_probabilities=left)

    def render_lines(self, format: str | None = None) -> Iterator[str]:
        """Yield the sentence as lines of a file, by default in the format that it was read in.

        Example (`tagger` as in `Tagger`):
            >>> (tagged,) = tagger.tag([["dogs", "bark"]])
            >>> [line.split() for line in tagged.render_lines("columns")]
            [['dogs', 'NOUN'], ['bark', 'NOUN'], []]
        """
        return self.task.render_lines(
            self.example, self.labels, format, self.probabilities, self.item_probabilities
        )

    def render(self, format: str | None = None) -> str:
        """Return the lines of `render_lines` as one string.

        Example (`tagger` as in `Tagger`):
            >>> (tagged,) = tagger.tag([["dogs"]])
            >>> tagged.render("jsonl").strip()
            '{"words": ["dogs"], "tags": ["NOUN"]}'
        """
        return "".join(self.render_lines(format))


@dataclass(frozen=True)
class Evaluation:
    """The scores of a tagger on annotated sentences.

    Args:
        scores: name -> value of the metric of the task; shares are between 0 and 1.
        main: name of the score by which models are compared.
        decoder, repair: the decoder and the repair that were used.
        sentences, tokens: size of the data.
        repaired: number of sentences whose labels were ill-formed and have been repaired.
        seconds: time that tagging took.

    Example:
        >>> from bcrf.tagger import Evaluation
        >>> found = Evaluation({"accuracy": 0.9}, "accuracy", "viterbi", "rule", 5, 70, 0, 0.1)
        >>> found.score
        0.9
    """

    scores: dict[str, float]
    main: str
    decoder: str
    repair: str
    sentences: int
    tokens: int
    repaired: int
    seconds: float

    @property
    def score(self) -> float:
        """The main score."""
        return self.scores[self.main]

    def to_dict(self) -> dict[str, Any]:
        """Return the evaluation as a table of plain values, for JSON.

        Example:
            >>> from bcrf.tagger import Evaluation
            >>> Evaluation({"f1": 0.9}, "f1", "viterbi", "rule", 5, 70, 0, 0.1).to_dict()["f1"]
            0.9
        """
        rest = {name: value for name, value in vars(self).items() if name not in ("scores", "main")}
        return self.scores | {"main": self.main} | rest
