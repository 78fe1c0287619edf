"""`python -m campaign.report`: write `docs/reliability.md` from the logged runs.

Each part of the campaign has a table of its last full run. The text around it is in `template.md`.
"""

from __future__ import annotations

import json
import sys
from pathlib import Path
from typing import Any

from .__main__ import LOG, PARTS

__all__ = ["page"]

PAGE = Path(__file__).parents[1] / "docs" / "reliability.md"
TEMPLATE = Path(__file__).parent / "template.md"


def page(log: Path = LOG) -> str:
    """The page, from the last full run of each part in the log."""
    rows = [json.loads(line) for line in log.read_text(encoding="utf-8").splitlines()]
    last = {row["part"]: row for row in rows if not row["sample"]}
    missing = [name for name in PARTS if name not in last]
    if missing:
        raise SystemExit(f"{log}: has no full run of {', '.join(missing)}; run `make campaign`")
    sections = "\n".join(_section(name, last[name]) for name in PARTS)
    return TEMPLATE.read_text(encoding="utf-8").replace("{sections}\n", sections)


def _section(name: str, row: dict[str, Any]) -> str:
    """One part: what it tries, and how that ended."""
    lines = [
        f"### {name.replace('_', ' ').capitalize()}",
        "",
        f"{PARTS[name][0].upper()}{PARTS[name][1:]}.",
        "",
    ]
    lines += ["| | |", "|---|---:|"]
    lines += [f"| {kind} | {count:,} |" for kind, count in row["counts"].items()]
    lines += [f"| **failures** | **{len(row['failures']):,}** |", ""]
    lines += [f"- {failure}" for failure in row["failures"]]
    lines += [
        f"`{row['command']}`, commit {row['commit']}, {row['date']}, {row['seconds']:.0f} s.",
        "",
    ]
    return "\n".join(lines)


if __name__ == "__main__":
    PAGE.write_text(page(), encoding="utf-8")
    sys.stdout.write(f"{PAGE}\n")
