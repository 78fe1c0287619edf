"""Write and read the log of all benchmark runs. Each row names its run."""

from __future__ import annotations

from collections.abc import Iterable
from pathlib import Path
from typing import Any

from bcrf.tagger.files import JsonlLog
from measurement.machine import provenance

__all__ = ["BenchmarkLog", "Row"]

Row = dict[str, Any]


class BenchmarkLog:
    """A JSONL file of several runs.

    The field `row` is the kind of a row: "start", "speed", "overhead", "growth", "depth", "memory",
    "tagging", "launches", "model", "kernel", "threads",
    "tagger", "shards" or "end". Other fields name the run, the
    commit and the command.

    Args:
        path: path of the file; the file need not exist yet.
        module: the module of the command that writes the log.
    """

    def __init__(self, path: Path, module: str = "benchmarks") -> None:
        self.path = path
        self.module = module
        self._log = JsonlLog(path)

    def append(self, run: str, kind: str, rows: Iterable[Row]) -> None:
        """Append rows of one kind to a run."""
        origin = provenance(self.module)
        about = {"run": run, "row": kind, "commit": origin["commit"], "command": origin["command"]}
        self._log.append(*({**about, **row} for row in rows))

    def rows(self, run: str | None = None) -> list[Row]:
        """Return the rows of one run; without a run, the rows of all runs."""
        return [row for row in self._log.rows() if run in (None, row["run"])]

    def last_run(self, finished: bool = False) -> str | None:
        """Return the name of the last run; with `finished`, of the last run that was finished."""
        runs = [row["run"] for row in self.rows() if not finished or row["row"] == "end"]
        return str(runs[-1]) if runs else None

    def runs_on_other_processors(self, run: str) -> list[str]:
        """Return the last finished run on each processor other than that of `run`.

        Processors count as different if their names or their vector instructions differ.
        """
        rows = self.rows()
        finished = {row["run"] for row in rows if row["row"] == "end"}
        machines = {row["run"]: row["machine"] for row in rows if row["row"] == "start"}
        processors = {name: (m.get("cpu"), m.get("vector")) for name, m in machines.items()}
        last = {cpu: name for name, cpu in processors.items() if name in finished}
        return [name for cpu, name in last.items() if cpu != processors.get(run)]
