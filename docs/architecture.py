"""Draw docs/architecture.svg from the import graph of src/bcrf.

Run `python docs/architecture.py`; a test checks that the picture is up to date. A box is a module
or package; an arrow leads from a box to what it imports. A box stands above everything that it
imports. Arrows that follow from other arrows are left out: if cli imports layers and layers imports
chain, the arrow from cli to chain is not drawn.
"""

from __future__ import annotations

import ast
import functools
from collections.abc import Iterator
from html import escape
from pathlib import Path

ROOT = Path(__file__).resolve().parents[1]
SOURCE = ROOT / "src" / "bcrf"
PICTURE = ROOT / "docs" / "architecture.svg"

# Packages whose parts are drawn as boxes of their own. All other packages are one box.
OPEN = ("compat", "tagger")
# Files that only start the program or re-export names.
SKIPPED = ("__init__", "__main__")

WIDTH, HEIGHT, GAP_X, GAP_Y, MARGIN = 128, 34, 16, 44, 20


def box_of(parts: tuple[str, ...]) -> str | None:
    """The box that a dotted name below `bcrf` belongs to; None if it has none."""
    if not parts or parts[0] in SKIPPED:
        return None
    depth = 2 if parts[0] in OPEN else 1
    box = [part for part in parts[:depth] if part not in SKIPPED]
    path = SOURCE.joinpath(*box)
    if not path.is_dir() and not path.with_suffix(".py").exists():
        box = box[:-1]  # a name that a package exports
    if len(box) == 1 and box[0] in OPEN:
        return reexports(box[0]).get(parts[-1])
    return ".".join(box) if box else None


@functools.cache
def reexports(package: str) -> dict[str, str]:
    """The names that `package/__init__.py` imports from its parts, and the boxes of these parts."""
    tree = ast.parse((SOURCE / package / "__init__.py").read_text(encoding="utf-8"))
    return {
        alias.name: f"{package}.{node.module.split('.')[0]}"
        for node in ast.walk(tree)
        if isinstance(node, ast.ImportFrom) and node.level == 1 and node.module
        for alias in node.names
    }


def imports_of(path: Path) -> Iterator[tuple[str, ...]]:
    """Dotted names below `bcrf` that a file imports, also inside functions."""
    package = path.relative_to(SOURCE).parts[:-1]
    for node in ast.walk(ast.parse(path.read_text(encoding="utf-8"))):
        if isinstance(node, ast.ImportFrom):
            origin = tuple(node.module.split(".")) if node.module else ()
            if node.level:
                origin = (*package[: len(package) - node.level + 1], *origin)
            elif origin[0] == "bcrf":
                origin = origin[1:]
            else:
                continue
            for alias in node.names:
                yield (*origin, alias.name)
        elif isinstance(node, ast.Import):
            for alias in node.names:
                name = tuple(alias.name.split("."))
                if name[0] == "bcrf":
                    yield name[1:]


def import_graph() -> dict[str, set[str]]:
    """For each box the boxes that it imports."""
    graph: dict[str, set[str]] = {}
    for path in sorted(SOURCE.rglob("*.py")):
        box = box_of(path.relative_to(SOURCE).with_suffix("").parts)
        if box is not None:
            found = graph.setdefault(box, set())
            found |= {target for name in imports_of(path) if (target := box_of(name))}
            found.discard(box)
    for targets in graph.values():
        targets &= graph.keys()
    return graph


def levels(graph: dict[str, set[str]]) -> dict[str, int]:
    """The height of each box: one more than the highest box that it imports.

    Raises:
        RecursionError: the imports form a cycle.
    """

    @functools.cache
    def level(box: str) -> int:
        return 1 + max(map(level, graph[box]), default=-1)

    return {box: level(box) for box in graph}


def reachable(graph: dict[str, set[str]], start: str) -> set[str]:
    found: set[str] = set()
    todo = [start]
    while todo:
        for target in graph[todo.pop()] - found:
            found.add(target)
            todo.append(target)
    return found


def essential_arrows(graph: dict[str, set[str]]) -> list[tuple[str, str]]:
    """Return the imports that no chain of other imports implies."""
    below = {box: reachable(graph, box) for box in graph}
    return [
        (box, target)
        for box in sorted(graph)
        for target in sorted(graph[box])
        if not any(target in below[other] for other in graph[box])
    ]


def is_core(box: str) -> bool:
    """Whether a box belongs to the part that needs only torch."""
    return not box.startswith(("tagger", "cli", "huggingface", "ray", "spacy"))


def draw() -> str:
    """The picture as SVG text."""
    graph = import_graph()
    height = levels(graph)
    top = max(height.values())
    sides = [
        [box for box in sorted(graph) if is_core(box)],
        [box for box in sorted(graph) if not is_core(box)],
    ]
    centre: dict[str, float] = {}
    top_edge = {box: MARGIN + (top - height[box]) * (HEIGHT + GAP_Y) for box in graph}
    left = float(MARGIN)
    for side in sides:  # the core on the left, the tagger and the command line on the right
        rows = [[box for box in side if height[box] == level] for level in range(top + 1)]
        room = max(map(len, rows)) * (WIDTH + GAP_X)
        for row in rows:
            start = left + (room - len(row) * (WIDTH + GAP_X)) / 2
            for column, box in enumerate(row):
                centre[box] = start + column * (WIDTH + GAP_X) + (WIDTH + GAP_X) / 2
        left += room + GAP_X
    width = left - GAP_X + MARGIN
    total = 2 * MARGIN + (top + 1) * HEIGHT + top * GAP_Y

    lines = [
        f'<svg xmlns="http://www.w3.org/2000/svg" viewBox="0 0 {width:.0f} {total}" '
        'font-family="sans-serif" font-size="13">',
        "<title>The import graph of bcrf</title>",
        '<defs><marker id="tip" viewBox="0 0 8 8" refX="8" refY="4" markerWidth="7" '
        'markerHeight="7" orient="auto"><path d="M0 0L8 4L0 8z" fill="#667"/></marker></defs>',
        f'<rect width="{width:.0f}" height="{total}" fill="white"/>',
    ]
    for box, target in essential_arrows(graph):
        y1, y2 = top_edge[box] + HEIGHT, top_edge[target]
        lines.append(
            f'<line x1="{centre[box]:.0f}" y1="{y1:.0f}" x2="{centre[target]:.0f}" y2="{y2:.0f}" '
            'stroke="#667" stroke-width="1" marker-end="url(#tip)"/>'
        )
    for box in graph:
        fill = "#e8f0fb" if is_core(box) else "#fdf1e2" if box.startswith("tagger") else "#eee"
        lines.append(
            f'<rect x="{centre[box] - WIDTH / 2:.0f}" y="{top_edge[box]:.0f}" width="{WIDTH}" '
            f'height="{HEIGHT}" rx="5" fill="{fill}" stroke="#667"/>'
            f'<text x="{centre[box]:.0f}" y="{top_edge[box] + HEIGHT / 2 + 4:.0f}" '
            f'text-anchor="middle">{escape(box)}</text>'
        )
    return "\n".join([*lines, "</svg>", ""])


if __name__ == "__main__":
    PICTURE.write_text(draw(), encoding="utf-8")
