"""Write Markdown tables, and fill the templates of generated pages."""

from __future__ import annotations

import re
from collections.abc import Callable, Iterable, Mapping, Sequence
from pathlib import Path

__all__ = ["TemplateError", "count_threads", "fill_template", "table"]

_MARK = re.compile(r"\{\{ ?(.*?) ?\}\}")


class TemplateError(ValueError):
    """A template has an unknown mark; the message begins with the name of the file."""


def table(head: Sequence[str], rows: Iterable[Sequence[str]], left: int = 1) -> str:
    """Return a table with the first `left` columns aligned left and the others aligned right.

    Example:
        >>> print(table(["decoder", "F1"], [["viterbi", "91.4"]]), end="")
        | decoder | F1 |
        | --- | ---: |
        | viterbi | 91.4 |
    """
    rule = ["---" if column < left else "---:" for column in range(len(head))]
    lines = [head, rule, *rows]
    return "".join(f"| {' | '.join(line)} |\n" for line in lines)


def count_threads(count: int) -> str:
    """Return "1 thread", "2 threads" and so on."""
    return f"{count} thread{'' if count == 1 else 's'}"


def fill_template(path: Path, sections: Mapping[str, Callable[[str], str]]) -> str:
    """Return the text of a template, with marks such as `{{ table pos }}` replaced.

    Args:
        path: path of the template.
        sections: first word of a mark ("table") -> function that returns the text to insert. Its
            argument is the rest of the mark ("pos").

    Raises:
        TemplateError: `sections` lacks the first word of a mark.
    """

    def replace(match: re.Match[str]) -> str:
        kind, _, argument = match[1].partition(" ")
        if kind not in sections:
            known = ", ".join(sections)
            raise TemplateError(f"{path}: unknown mark {match[0]}; expected one of {known}")
        return sections[kind](argument).rstrip("\n")

    return _MARK.sub(replace, path.read_text(encoding="utf-8"))
