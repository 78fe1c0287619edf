"""Small pieces of HTML. Every text from the corpus goes through `escape`."""

from __future__ import annotations

import html
from collections.abc import Sequence

__all__ = ["corpus_text", "escape", "number", "percent", "scrollable", "table"]


def escape(text: object) -> str:
    """Return a text for HTML, in elements and in quoted attributes.

    Control characters, which HTML forbids, and lone surrogates, which UTF-8 cannot encode, become
    U+FFFD. Tabs and line ends become spaces.

    Example:
        >>> escape("<script>\\0")
        '&lt;script&gt;\ufffd'
    """
    return html.escape("".join(map(_printable, str(text))))


def _printable(character: str) -> str:
    if character in "\t\n\r":
        return " "
    code = ord(character)
    is_control = code < 0x20 or 0x7F <= code < 0xA0
    is_forbidden = 0xD800 <= code < 0xE000 or code & 0xFFFE == 0xFFFE or 0xFDD0 <= code < 0xFDF0
    return "\ufffd" if is_control or is_forbidden else character


def corpus_text(text: object) -> str:
    """Return a text of the corpus; `bdi` keeps its writing direction out of the rest of the page.

    Example:
        >>> corpus_text("a < b")
        '<bdi>a &lt; b</bdi>'
    """
    return f"<bdi>{escape(text)}</bdi>"


def percent(share: float | None) -> str:
    """Return a share as a percentage; "–" if there is none.

    Example:
        >>> percent(0.91434), percent(None)
        ('91.43\u202f%', '–')
    """
    return "–" if share is None else f"{100 * share:.2f}\u202f%"


def number(count: int) -> str:
    """Return a count with separators of thousands.

    Example:
        >>> number(12544)
        '12,544'
    """
    return f"{count:,}"


def table(
    caption: str, columns: Sequence[str], rows: Sequence[Sequence[str]], text_columns: int = 1
) -> str:
    """Return a table; the first cell of a row is its header.

    Args:
        caption: what the table shows.
        columns: names of the columns, as HTML.
        rows: cells, as HTML.
        text_columns: how many columns, from the first one on, hold text and not numbers.
    """
    head = "".join(
        f'<th scope="col"{_numeric(i, text_columns)}>{c}</th>' for i, c in enumerate(columns)
    )
    body = []
    for first, *rest in rows:
        cells = "".join(
            f"<td{_numeric(i, text_columns)}>{cell}</td>" for i, cell in enumerate(rest, start=1)
        )
        body.append(f'<tr><th scope="row">{first}</th>{cells}</tr>')
    return (
        f"<table><caption>{caption}</caption><thead><tr>{head}</tr></thead>"
        f"<tbody>{''.join(body)}</tbody></table>"
    )


def _numeric(column: int, text_columns: int) -> str:
    return ' class="n"' if column >= text_columns else ""


def scrollable(content: str, label: str) -> str:
    """Return wide content in a box that scrolls sideways, also with the keyboard."""
    name = escape(label)
    return f'<div class="scroll" tabindex="0" role="region" aria-label="{name}">{content}</div>'
