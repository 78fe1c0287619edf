"""Crash points: every operation on the disk, of every way to write, fails in every way.

A scenario writes a run or a model. It is tried once without a fault, which counts its operations
and shows how it should end. Then each of its operations fails with each of `FAULTS`, in a process
of its own that is forked from this one, and a second process looks at what is left: a model that
was saved before can be loaded; writing again is accepted; the outcome then equals, byte by byte,
that of a run without a fault; and nothing else is left behind.

A failure names scenario, fault and operation. To repeat one point:

    python -m campaign.crash_points "resume" lost 17
"""

from __future__ import annotations

import gc
import json
import shutil
import sys
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import torch

from bcrf.cli.errors import explain
from bcrf.tagging import Tagger, atomic_folder
from bcrf.training import Config, Epoch, train
from tests.tagger_cases import config, weights_equal

from .faulty_disk import CRASHED, FAULTS, FaultyDisk, can_strike
from .processes import Child, folder_in_memory
from .tally import Tally

__all__ = ["run"]

# Of the sample: every fifth operation, and another one of five for each fault.
_STRIDE = 5

# What differs from run to run in metrics.jsonl.
_TIMES = ("seconds", "dev_seconds", "tokens_per_second")

_SETTINGS: dict[str, dict[str, Any]] = {
    "model": {"width": 4, "heads": 1, "hidden": 4, "score_width": 4, "dropout": 0.2},
    "training": {"epochs": 2, "batch": 20, "log_every": 1},
}


def run(sample: bool) -> Tally:
    """Try all crash points, or every fifth one."""
    torch.set_num_threads(1)  # a process with threads must not be forked
    tally = Tally()
    with _laboratory() as lab:
        gc.freeze()  # or else every child copies what its collector looks at
        for scenario in scenarios(lab):
            if sample and not scenario.in_sample:
                continue
            operations = scenario.list_operations()
            tally.count("operations", len(operations))
            for number, fault in enumerate(FAULTS):
                points = [
                    (at, operation)
                    for at, operation in enumerate(operations, start=1)
                    if can_strike(fault, operation)
                ]
                for at, operation in points[number % _STRIDE :: _STRIDE] if sample else points:
                    problem = scenario.try_fault(fault, at)
                    tally.count(f"crash points ({fault})")
                    if problem:
                        tally.fail(f'"{scenario.name}" {fault} {at} ({operation}): {problem}')
    return tally


# ------------------------------------------------------------------------------------ scenarios


@dataclass(frozen=True)
class Laboratory:
    """What all scenarios share.

    Args:
        folder: for everything.
        settings: of a run, whose output is `folder/disk/run`.
        finished: copy of the output of a run without faults.
        begun: copy of the output of a run that was stopped after its first epoch.
        model, other: two models.
    """

    folder: Path
    settings: Config
    finished: Path
    begun: Path
    model: Tagger
    other: Tagger

    @property
    def disk(self) -> Path:
        return self.folder / "disk"


@contextmanager
def _laboratory() -> Iterator[Laboratory]:
    with folder_in_memory("bcrf-crash-points-") as folder:
        made = config(folder / "data", **_SETTINGS)
        output = folder / "disk" / "run"
        settings = Config.from_dict(made.to_dict() | {"output": str(output)})
        for event in train(settings):
            if isinstance(event, Epoch):
                break
        shutil.copytree(output, folder / "begun")
        for _ in train(settings, resume=True):
            pass
        shutil.copytree(output, folder / "finished")
        model = Tagger.load(output)
        other = Tagger.load(folder / "begun")
        assert not weights_equal(model, other)
        yield Laboratory(folder, settings, folder / "finished", folder / "begun", model, other)


class Scenario:
    """One way to write, with faults.

    Args:
        name: for the reports.
        lab: what it works with.
        start: what is in the folder `run` before; None: nothing.
        write: the work, in which the disk fails; it calls its argument when a model is saved that
            must not be lost any more.
        check: looks at the folder afterwards, writes again, and raises if anything is wrong. Its
            argument says whether there must be a model.
        exchange: whether the system can swap two folders in one step.
        in_sample: whether the sample tries it.
    """

    def __init__(
        self,
        name: str,
        lab: Laboratory,
        start: Path | None,
        write: Callable[[Callable[[], None]], None],
        check: Callable[[bool, int], None],
        exchange: bool = True,
        in_sample: bool = True,
    ) -> None:
        self.name, self.lab, self.start = name, lab, start
        self.write, self.check = write, check
        self.exchange, self.in_sample = exchange, in_sample
        self._saved_at: int | None = None  # operations done when a model is saved for good

    def list_operations(self) -> list[str]:
        """Run without a fault; its operations."""
        self._prepare()
        report = self.lab.folder / "operations"
        code, text = Child(lambda: self._write(None, 0, report)).wait()
        assert code == 0, text
        found = json.loads(report.read_text())
        self._saved_at = found["saved_at"]
        return list(found["operations"])

    def try_fault(self, fault: str, at: int) -> str:
        """What is wrong after this fault; nothing if all is well."""
        self._prepare()
        code, text = Child(lambda: self._write(fault, at, None)).wait()
        if code not in (0, CRASHED):
            return f"writing ended with {code}: {text}"
        must_exist = self._saved_at is not None and at > self._saved_at
        code, text = Child(lambda: self.check(must_exist, at)).wait()
        return "" if code == 0 else f"afterwards: {text}"

    def _prepare(self) -> None:
        for name in ("disk", "graveyard"):
            shutil.rmtree(self.lab.folder / name, ignore_errors=True)
            (self.lab.folder / name).mkdir()
        if self.start is not None:
            shutil.copytree(self.start, self.lab.disk / "run")

    def _write(self, fault: str | None, at: int, report: Path | None) -> None:
        if not self.exchange:
            atomic_folder._renameat2 = lambda: None
        disk = FaultyDisk(self.lab.disk, fault, at, self.lab.folder / "graveyard")
        saved_at: list[int] = []
        disk.install()
        try:
            self.write(lambda: saved_at.append(len(disk.operations)))
        except OSError as error:
            message = explain(error)
            if fault not in ("ENOSPC", "EIO") or message is None or "\n" in message:
                raise
        if report is not None:
            found = {"operations": disk.operations, "saved_at": min(saved_at, default=None)}
            report.write_text(json.dumps(found))


def scenarios(lab: Laboratory) -> list[Scenario]:
    """All ways to write."""
    output = lab.disk / "run"
    expected = _outcome(lab.finished)

    def training(**options: bool) -> Callable[[Callable[[], None]], None]:
        def write(saved: Callable[[], None]) -> None:
            if options.get("resume"):
                saved()
            for event in train(lab.settings, **options):
                if isinstance(event, Epoch):
                    saved()

        return write

    def check_run(must_exist: bool, at: int, overwrite: bool = False) -> None:
        if must_exist:
            Tagger.load(output)
        log = output / "metrics.jsonl"
        for line in log.read_bytes().split(b"\n")[:-1] if log.exists() else []:
            json.loads(line)
        # A run that is overwritten may be resumed as well, or overwritten again.
        again = overwrite and at % 2 == 0
        for _ in train(lab.settings, resume=not again, overwrite=again):
            pass
        found = _outcome(output)
        for name, value in expected.items():
            assert found.get(name) == value, f"{name} differs"
        assert found.keys() == expected.keys(), f"left behind: {found.keys() - expected.keys()}"
        assert _names(lab.disk) == ["run"], f"left behind: {_names(lab.disk)}"

    def check_overwritten(must_exist: bool, at: int) -> None:
        check_run(must_exist, at, overwrite=True)

    def save(saved: Callable[[], None]) -> None:
        saved()  # the other model is there all the time
        lab.model.save(output)

    def check_model(must_exist: bool, at: int) -> None:
        found = Tagger.load(output)
        assert any(weights_equal(found, one) for one in (lab.model, lab.other)), "a mixture"
        lab.model.save(output)
        assert weights_equal(Tagger.load(output), lab.model)
        assert _names(lab.disk) == ["run"], f"left behind: {_names(lab.disk)}"

    other = lab.begun / "best"
    return [
        Scenario("fresh", lab, None, training(), check_run),
        Scenario("resume", lab, lab.begun, training(resume=True), check_run),
        Scenario("overwrite", lab, lab.finished, training(overwrite=True), check_overwritten),
        Scenario("save", lab, other, save, check_model),
        Scenario("save by two renames", lab, other, save, check_model, exchange=False),
        Scenario(
            "resume by two renames",
            lab,
            lab.begun,
            training(resume=True),
            check_run,
            exchange=False,
            in_sample=False,
        ),
    ]


def _outcome(folder: Path) -> dict[str, object]:
    """Everything in the folder of a run, by name, but for times."""
    found: dict[str, object] = {}
    for path in folder.rglob("*"):
        name = path.relative_to(folder).as_posix()
        if path.suffix == ".safetensors":
            found[name] = path.read_bytes()
        elif name == "metrics.jsonl":
            lines = [json.loads(line) for line in path.read_text().splitlines()]
            found[name] = [{k: v for k, v in line.items() if k not in _TIMES} for line in lines]
        else:
            found[name] = None
    return found


def _names(folder: Path) -> list[str]:
    return sorted(path.name for path in folder.iterdir())


def _repeat(name: str, fault: str, at: int) -> int:
    torch.set_num_threads(1)
    with _laboratory() as lab:
        (scenario,) = [one for one in scenarios(lab) if one.name == name]
        for number, operation in enumerate(scenario.list_operations(), start=1):
            print(f"{number}: {operation}{'  <-- ' + fault if number == at else ''}")
        problem = scenario.try_fault(fault, at)
        print(problem or "all is well")
    return 1 if problem else 0


if __name__ == "__main__":
    sys.exit(_repeat(sys.argv[1], sys.argv[2], int(sys.argv[3])))
