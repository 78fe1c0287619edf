"""What a tagger gives back."""

from __future__ import annotations

from collections.abc import Iterator
from dataclasses import dataclass, field
from typing import Any

from ..data import Sentence
from ..tasks import CharacterExample, Example, Segmentation, Task

__all__ = ["Evaluation", "Tagged"]


@dataclass(frozen=True)
class Tagged:
    """A sentence with the labels that were found.

    Args:
        task: what was looked for.
        example: what was labelled.
        labels: one per token (per character, if words were to be found), after repair.
        repaired: whether the decoder's own labels were ill-formed, and so changed.
        probabilities: of each word's tag; where the words themselves were to be found, of each
            word with its tag. None if they were not asked for.
    """

    task: Task = field(repr=False)
    example: Example = field(repr=False)
    labels: tuple[str, ...]
    repaired: bool = False
    probabilities: tuple[float, ...] | None = None

    @property
    def sentence(self) -> Sentence:
        return self.example.sentence

    @property
    def words(self) -> tuple[str, ...]:
        """The words, as given or as found."""
        if not isinstance(self.task, Segmentation):
            return self.example.tokens
        assert isinstance(self.example, CharacterExample)
        text = self.example.text
        spans = self.task.words(self.example, self.labels)
        places = (self.task.place(self.example, span) for span in spans)
        return tuple(text[start:end] for start, end in places)

    @property
    def tags(self) -> tuple[str, ...]:
        """The tag of each word."""
        if not isinstance(self.task, Segmentation):
            return self.labels
        return tuple(span.type for span in self.task.words(self.example, self.labels))

    def render_lines(self, format: str | None = None) -> Iterator[str]:
        """The sentence as lines of a file; None: of the format that it came in
        (`Task.render_lines`)."""
        return self.task.render_lines(self.example, self.labels, format, self.probabilities)

    def render(self, format: str | None = None) -> str:
        """`render_lines` as one string."""
        return "".join(self.render_lines(format))


@dataclass(frozen=True)
class Evaluation:
    """How well a tagger does.

    Args:
        scores: the numbers of the task's metric; shares are in 0..1.
        main: which of them models are compared by.
        decoder, repair: by what the labels were chosen.
        sentences, tokens: how many there were.
        repaired: sentences whose labels were ill-formed, and so were repaired.
        seconds: that tagging took.
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
        """Plain values, for JSON."""
        rest = {name: value for name, value in vars(self).items() if name not in ("scores", "main")}
        return self.scores | {"main": self.main} | rest
