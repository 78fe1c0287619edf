"""Tasks: sentences to labels and back. What is labelled, what is well-formed, what is right.

task = fit("ner", list(read("train.conll")))
examples = task.annotated(list(read("dev.conll")))
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import fields
from typing import Any

from ..data import Sentence
from .checking import Report, check
from .example import Example, Metric, Task
from .ner import Ner
from .pos import Pos
from .repair import Repaired, mbr_repair, repair_all
from .segmentation import CharacterExample, Segmentation
from .spans import Span, encode_spans, find_spans

__all__ = [
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
    "check",
    "encode_spans",
    "find_spans",
    "fit",
    "from_dict",
    "mbr_repair",
    "repair_all",
]

TASKS: dict[str, type[Task]] = {task.name: task for task in (Pos, Segmentation, Ner)}
"""All tasks by name."""


def fit(name: str, sentences: Sequence[Sentence], **settings: Any) -> Task:
    """The task of that name, with the labels of the training sentences and these settings."""
    task = _named(name)
    known = [field.name for field in fields(task) if field.name != "labels"]
    for setting in settings:
        if setting not in known:
            raise ValueError(f"the {name} task has the settings {', '.join(known)}; not {setting}")
    return task.fit(sentences, **settings)


def from_dict(values: Mapping[str, Any]) -> Task:
    """The task of which `Task.to_dict` gave these values."""
    rest = dict(values)
    return _named(rest.pop("task", None)).from_dict(rest)


def _named(name: object) -> type[Task]:
    if not isinstance(name, str) or name not in TASKS:
        raise ValueError(f"task must be one of {', '.join(TASKS)}, got {name!r}")
    return TASKS[name]
