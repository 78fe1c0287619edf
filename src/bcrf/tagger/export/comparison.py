"""Run an exported file in onnxruntime, and compare its tags with those of the tagger."""

from __future__ import annotations

import random
from collections.abc import Iterable, Iterator, Sequence
from dataclasses import dataclass
from itertools import islice
from typing import Any

from ..data import Sentence
from ..prediction.sentences import as_sentence
from ..prediction.tagger import Tagger
from ..prediction.tagging import LONGEST_WHOLE
from ..tasks import Example
from ..tasks.segmentation import CharacterExample

__all__ = ["Agreement", "compare", "sample_sentences"]

# Sizes of batches in turn: all of them must give the same tags.
_BATCHES = (1, 5, 16)

_SAMPLE_LENGTHS = (1, 2, 3, 4, 5, 8, 13, 21, 34, 55)
_SAMPLES_PER_LENGTH = 4


@dataclass(frozen=True)
class Agreement:
    """How many tags of a file and of the tagger agree.

    Args:
        same: number of tokens with the same tag.
        tokens: number of all tokens.

    Example:
        >>> from bcrf.tagger.export import Agreement
        >>> print(Agreement(99, 100))
        99 of 100 tags agree
    """

    same: int
    tokens: int

    @property
    def share(self) -> float:
        """The share of tokens with the same tag; 1 if there are no tokens."""
        return self.same / self.tokens if self.tokens else 1.0

    def __str__(self) -> str:
        return f"{self.same:,} of {self.tokens:,} tags agree"


def sample_sentences(tagger: Tagger) -> list[Any]:
    """Return sentences of random known and unknown words, or texts of random characters."""
    features = tagger.vocabularies.features
    assert features is not None
    draw = random.Random(0)
    is_text = features.kind == "character"
    known = features.values["character" if is_text else "word"]
    # White space is between characters, not a character.
    tokens = [x for x in known if x.strip()] + ([" ", "?"] if is_text else ["?!", "Unseen-1"])
    words = [
        [draw.choice(tokens) for _ in range(length)]
        for length in _SAMPLE_LENGTHS
        for _ in range(_SAMPLES_PER_LENGTH)
    ]
    return ["".join(letters) for letters in words] if is_text else words


def compare(
    content: bytes, tagger: Tagger, sentences: Iterable[Sentence | Sequence[str]], decoder: str
) -> Agreement:
    """Return how many tags of the file agree with those of the tagger, without repair.

    Sentences that the tagger would read in parts are left out.
    """
    import onnxruntime

    options = onnxruntime.SessionOptions()
    options.intra_op_num_threads = 1
    options.log_severity_level = 3
    session = onnxruntime.InferenceSession(content, options, providers=["CPUExecutionProvider"])
    task = tagger.task
    examples = (task.example(as_sentence(x, i, task)) for i, x in enumerate(sentences))
    usable = (x for x in examples if 0 < len(x) <= LONGEST_WHOLE)
    same = tokens = 0
    for batch in _batches(usable):
        tags = session.run(["tags"], _feed(tagger, batch))[0]
        for row, tagged in zip(
            tags, tagger.tag_examples(batch, decoder, repair="none"), strict=True
        ):
            found = [tagger.labels[tag] for tag in row[: len(tagged.labels)]]
            same += sum(map(str.__eq__, found, tagged.labels))
            tokens += len(found)
    return Agreement(same, tokens)


def _batches(examples: Iterator[Example]) -> Iterator[list[Example]]:
    number = 0
    while batch := list(islice(examples, _BATCHES[number % len(_BATCHES)])):
        yield batch
        number += 1


def _feed(tagger: Tagger, examples: Sequence[Example]) -> dict[str, Any]:
    """Return the inputs of the graph as arrays."""
    import numpy as np

    rows = [tagger.reader(example.tokens).features for example in examples]
    arrays = [
        np.frombuffer(b"".join(row or []), np.int32).reshape(len(row or []), -1) for row in rows
    ]
    n = max(map(len, arrays))
    features = np.zeros((len(arrays), n, arrays[0].shape[1]), np.int32)
    breaks = np.zeros((len(arrays), n), bool)
    for b, (array, example) in enumerate(zip(arrays, examples, strict=True)):
        features[b, : len(array)] = array
        if isinstance(example, CharacterExample):
            breaks[b, sorted(example.breaks)] = True
    feed = {"features": features, "lengths": np.array([len(x) for x in arrays], np.int32)}
    return feed | {"breaks": breaks} if isinstance(examples[0], CharacterExample) else feed
