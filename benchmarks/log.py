"""The log of all runs: one JSON object per line, each with the run that it belongs to."""

from __future__ import annotations

import json
from collections.abc import Iterable
from pathlib import Path
from typing import Any

__all__ = ["Log", "Row"]

Row = dict[str, Any]


class Log:
    """Rows have a `run` and a `row`: "start", "speed", "depth", "growth", "memory" or "end"."""

    def __init__(self, path: Path) -> None:
        self.path = path

    def append(self, run: str, kind: str, rows: Iterable[Row]) -> None:
        self.path.parent.mkdir(parents=True, exist_ok=True)
        with self.path.open("a") as file:
            for row in rows:
                file.write(json.dumps({"run": run, "row": kind, **row}) + "\n")

    def rows(self, run: str | None = None) -> list[Row]:
        """All rows, or those of one run."""
        if not self.path.exists():
            return []
        rows = map(json.loads, self.path.read_text().splitlines())
        return [row for row in rows if run in (None, row["run"])]

    def last(self, finished: bool = False) -> str | None:
        """The last run, or the last that came to its end."""
        runs = [row["run"] for row in self.rows() if not finished or row["row"] == "end"]
        return str(runs[-1]) if runs else None

    def elsewhere(self, run: str) -> list[str]:
        """For every processor but the one of `run`: the last run on it that came to its end.

        Of those that have the same name, some have longer vectors.
        """
        rows = self.rows()
        finished = {row["run"] for row in rows if row["row"] == "end"}
        machines = {row["run"]: row["machine"] for row in rows if row["row"] == "start"}
        processors = {name: (m.get("cpu"), m.get("vector")) for name, m in machines.items()}
        last = {cpu: name for name, cpu in processors.items() if name in finished}
        return [name for cpu, name in last.items() if cpu != processors.get(run)]
