"""Sentences that are passed as Python values, not read from a file."""

from __future__ import annotations

import json
from collections.abc import Sequence

from ..data import Sentence, format_named
from ..data.lines import Block
from ..tasks import Task

__all__ = ["as_sentence"]

_SOURCE = "<input>"


def as_sentence(value: object, number: int, task: Task) -> Sentence:
    """Return the sentence `number` (from 0) as a `Sentence`.

    Args:
        value: a `Sentence`, which is returned unchanged; a text for tasks on text; a list of
            words for other tasks.
        number: for error messages.
        task: the task of the tagger.
    """
    if isinstance(value, Sentence):
        return value
    if task.is_on_text:
        if not isinstance(value, str):
            raise TypeError(
                f"sentence {number}: expected a text (str) to split into words, got {_short(value)}"
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
    # The format is JSON lines, so that the sentence is written as JSON lines by default.
    line = json.dumps({"words": list(value)}, ensure_ascii=False) + "\n"
    block = Block(_SOURCE, number + 1, (line,))
    return Sentence(tuple(value), (0,) * len(value), block, format_named("jsonl"))


def _short(value: object) -> str:
    shown = repr(value)
    return shown if len(shown) <= 60 else f"{shown[:57]}..."
