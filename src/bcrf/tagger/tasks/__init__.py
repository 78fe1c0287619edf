"""Tasks: the labels of sentences, the well-formed label sequences, and the metrics.

Example:
    >>> import io
    >>> from bcrf.tagger.data import read
    >>> file = b"Ada B-PER\\nLovelace I-PER\\nlives O\\n"
    >>> sentences = list(read(io.BytesIO(file), "columns"))
    >>> task = fit("ner", sentences)
    >>> task.annotated(sentences)[0].labels
    ('B-PER', 'I-PER', 'O')
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import fields
from typing import Any

from ...spans import Span, encode_spans, find_spans
from ..data import Sentence
from .checking import Report, check, check_gold_labels
from .ner import Ner
from .pos import Pos
from .repair import Repaired, repair_all
from .segmentation import CharacterExample, Segmentation
from .task import NO_TAG, Example, Metric, Task
from .tokenization import TextExample, Tokenization, WordPlaces

__all__ = [
    "NO_TAG",
    "TASKS",
    "CharacterExample",
    "Example",
    "Metric",
    "Ner",
    "Pos",
    "Repaired",
    "Report",
    "Segmentation",
    "Span",
    "Task",
    "TextExample",
    "Tokenization",
    "WordPlaces",
    "check",
    "check_gold_labels",
    "encode_spans",
    "find_spans",
    "fit",
    "from_dict",
    "repair_all",
]

TASKS: dict[str, type[Task]] = {task.name: task for task in (Pos, Segmentation, Ner, Tokenization)}
"""All tasks by name."""


def fit(
    name: str, sentences: Sequence[Sentence], settings: Mapping[str, Any] | None = None
) -> Task:
    """Return the task of that name with the labels of the training sentences.

    Args:
        settings: values of the task's own settings, by name. The `fit` of the task has defaults.
    """
    settings = settings or {}
    task: Any = _named(name)
    known = [field.name for field in fields(task) if field.name != "labels"]
    for setting in settings:
        if setting not in known:
            raise ValueError(
                f"the {name} task has no setting {setting!r}; expected {', '.join(known)}"
            )
    fitted: Task = task.fit(sentences, **settings)
    return fitted


def from_dict(values: Mapping[str, Any]) -> Task:
    """Return the task from the values that `Task.to_dict` returned."""
    rest = dict(values)
    return _named(rest.pop("task", None)).from_dict(rest)


def _named(name: object) -> type[Task]:
    if not isinstance(name, str) or name not in TASKS:
        raise ValueError(f"task must be one of {', '.join(TASKS)}, got {name!r}")
    return TASKS[name]
