"""`python -m campaign.report`: write `docs/reliability.md` from the log.

The page shows the last full run of each part. The text around the tables is in `template.md`.
"""

from __future__ import annotations

import sys
from pathlib import Path
from typing import Any

from bcrf.tagger.files import JsonlLog
from measurement.markdown import fill_template, table

from .__main__ import LOG, PARTS

__all__ = ["page"]

PAGE = Path(__file__).parents[1] / "docs" / "reliability.md"
TEMPLATE = Path(__file__).parent / "template.md"


def page(log: Path = LOG) -> str:
    """Return the text of the page, made from the last full run of each part in the log."""
    last = {row["part"]: row for row in JsonlLog(log).rows() if not row["sample"]}
    missing = [name for name in PARTS if name not in last]
    if missing:
        raise SystemExit(f"{log}: has no full run of {', '.join(missing)}; run `make campaign`")
    sections = "\n".join(_section(name, last[name]) for name in PARTS)
    return fill_template(TEMPLATE, {"sections": lambda _: sections})


def _section(name: str, row: dict[str, Any]) -> str:
    """Return the section of one part: what it does, and its outcome."""
    counts = [[kind, f"{count:,}"] for kind, count in row["counts"].items()]
    counts.append(["**failures**", f"**{len(row['failures']):,}**"])
    lines = [
        f"### {name.replace('_', ' ').capitalize()}",
        "",
        f"{PARTS[name][0].upper()}{PARTS[name][1:]}.",
        "",
        table(["", ""], counts),
        *(f"- {failure}" for failure in row["failures"]),
        f"`{row['command']}`, commit {row['commit']}, {row['date']}, {row['seconds']:.0f} s.",
        "",
    ]
    return "\n".join(lines)


if __name__ == "__main__":
    PAGE.write_text(page(), encoding="utf-8")
    sys.stdout.write(f"{PAGE}\n")
