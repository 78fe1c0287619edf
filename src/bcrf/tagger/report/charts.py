"""The pictures of a report: the calibration curve (SVG) and the confusion matrix (a table)."""

from __future__ import annotations

import math
from collections.abc import Mapping, Sequence
from typing import Any

from .markup import escape, number

__all__ = ["calibration_curve", "confusion_matrix"]

# Size of the curve, of the bars below it, and of the margins around both, in pixels.
_SIZE, _BARS, _LEFT, _TOP, _GAP = 360, 90, 56, 12, 34


def calibration_curve(bins: Sequence[Mapping[str, Any]]) -> str:
    """Return the picture of a calibration: accuracy by confidence, and the number of items."""
    total = sum(one["count"] for one in bins)
    if not total:
        return ""
    points = [one for one in bins if one["count"]]
    summary = "; ".join(
        f"confidence {one['confidence']:.2f}, right {one['accuracy']:.2f}, {one['count']} items"
        for one in points
    )
    height = _TOP + _SIZE + _GAP + _BARS + 46
    parts = [
        f'<svg viewBox="0 0 {_LEFT + _SIZE + 16} {height}" width="{_LEFT + _SIZE + 16}" '
        f'height="{height}" role="img" aria-labelledby="curve-title curve-text">',
        '<title id="curve-title">Calibration curve</title>',
        f'<desc id="curve-text">{escape(summary)}</desc>',
    ]
    for step in range(6):
        share = step / 5
        x, y = _x(share), _y(share)
        parts.append(_line(x, _y(0), x, _y(1), "grid") + _line(_x(0), y, _x(1), y, "grid"))
        parts.append(_text(_LEFT - 8, y + 4, f"{share:.1f}", "end"))
        parts.append(_text(x, _TOP + _SIZE + 18, f"{share:.1f}", "middle"))
    parts.append(_line(_x(0), _y(0), _x(1), _y(1), "ideal"))
    path = " ".join(f"{_x(p['confidence']):.1f},{_y(p['accuracy']):.1f}" for p in points)
    parts.append(f'<polyline class="curve" points="{path}"/>')
    for point in points:
        radius = 3 + 9 * math.sqrt(point["count"] / total)
        parts.append(
            f'<circle class="dot" cx="{_x(point["confidence"]):.1f}" '
            f'cy="{_y(point["accuracy"]):.1f}" r="{radius:.1f}"/>'
        )
    bottom = _TOP + _SIZE + _GAP + _BARS
    for one in bins:
        size = _BARS * one["count"] / total
        left, width = _x(one["from"]), _x(one["to"]) - _x(one["from"]) - 2
        parts.append(
            f'<rect class="bar" x="{left + 1:.1f}" y="{bottom - size:.1f}" width="{width:.1f}" '
            f'height="{size:.1f}"/>'
        )
    parts.append(_line(_x(0), bottom, _x(1), bottom, "axis"))
    parts.append(_text(_LEFT - 8, bottom - _BARS + 10, "100 %", "end"))
    parts.append(_text(_LEFT - 8, bottom, "0 %", "end"))
    parts.append(_text(_x(0.5), bottom + 22, "confidence (bars: share of the items)", "middle"))
    middle = _TOP + _SIZE / 2
    parts.append(
        f'<text x="14" y="{middle}" text-anchor="middle" '
        f'transform="rotate(-90 14 {middle})">share of right items</text>'
    )
    return "".join([*parts, "</svg>"])


def confusion_matrix(matrix: Mapping[str, Any]) -> str:
    """Return the confusion matrix as a table whose cells are coloured by their share of the row."""
    tags, counts = [escape(tag) for tag in matrix["tags"]], matrix["counts"]
    head = "".join(f'<th scope="col"><span>{tag}</span></th>' for tag in tags)
    rows = []
    for row, (tag, line) in enumerate(zip(tags, counts, strict=True)):
        total = sum(line)
        cells = "".join(_cell(count, total, row == column) for column, count in enumerate(line))
        rows.append(f'<tr><th scope="row">{tag}</th>{cells}</tr>')
    return (
        '<table class="heat" aria-label="Confusion matrix">'
        f'<thead><tr><th class="corner">gold \\ predicted</th>{head}</tr></thead>'
        f"<tbody>{''.join(rows)}</tbody></table>"
    )


def _cell(count: int, total: int, is_right: bool) -> str:
    if not count:
        return "<td></td>"
    # The square root makes rare errors visible.
    level = max(1, min(10, math.ceil(10 * math.sqrt(count / total))))
    return f'<td class="{"g" if is_right else "r"}{level}">{number(count)}</td>'


def _x(share: float) -> float:
    return _LEFT + _SIZE * share


def _y(share: float) -> float:
    return _TOP + _SIZE * (1 - share)


def _line(x1: float, y1: float, x2: float, y2: float, kind: str) -> str:
    return f'<line class="{kind}" x1="{x1:.1f}" y1="{y1:.1f}" x2="{x2:.1f}" y2="{y2:.1f}"/>'


def _text(x: float, y: float, text: str, anchor: str) -> str:
    return f'<text x="{x:.1f}" y="{y:.1f}" text-anchor="{anchor}">{escape(text)}</text>'
