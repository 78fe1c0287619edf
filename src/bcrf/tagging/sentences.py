"""Sentences that come from a program, not from a file."""

from __future__ import annotations

import json
from collections.abc import Sequence

from ..data import Sentence, format_named
from ..data.lines import Block
from ..tasks import Segmentation, Task

__all__ = ["as_sentence"]

_SOURCE = "<input>"


def as_sentence(value: object, number: int, task: Task) -> Sentence:
    """Sentence `number` (from 0) as the task takes it: a `Sentence` as it is; a text, where words
    are to be found; else a list of words."""
    if isinstance(value, Sentence):
        return value
    if isinstance(task, Segmentation):
        if not isinstance(value, str):
            raise TypeError(
                f"sentence {number}: expected a text (str), in which words are to be found; "
                f"got {_short(value)}"
            )
        block = Block(_SOURCE, number + 1, (value,))
        words = value.split()
        return Sentence(tuple(words), (0,) * len(words), block, format_named("text"), value)
    if isinstance(value, str) or not isinstance(value, Sequence):
        raise TypeError(
            f"sentence {number}: expected a list of words such as ['Hello', 'world'], "
            f"got {_short(value)}"
        )
    for position, word in enumerate(value):
        if not isinstance(word, str) or not word:
            raise TypeError(
                f"sentence {number}, word {position}: expected a non-empty str, got {word!r}"
            )
    # As if it had been read from JSON lines, which is then how it is written.
    line = json.dumps({"words": list(value)}, ensure_ascii=False) + "\n"
    block = Block(_SOURCE, number + 1, (line,))
    return Sentence(tuple(value), (0,) * len(value), block, format_named("jsonl"))


def _short(value: object) -> str:
    shown = repr(value)
    return shown if len(shown) <= 60 else f"{shown[:57]}..."
