"""Let every disk operation fail in every way while a training run or a model is written.

A scenario writes a training run or a model. It first runs without a fault, which gives the list of
its disk operations and the right outcome. Then, in forked processes, each operation fails with each
of `FAULTS`. After each fault a second process checks four things:

- a model that was saved before the fault can be loaded;
- writing again succeeds;
- the outcome then equals the outcome without a fault, byte by byte;
- no other files are left.

A failure names the scenario, the fault and the operation. To repeat one crash point:

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
from bcrf.tagger import Tagger
from bcrf.tagger.files import JsonlLog, atomic_folder
from bcrf.tagger.training import Config, Epoch, train
from tests.tagger_cases import config, weights_equal

from .faulty_disk import CRASHED, FAULTS, FaultyDisk, can_occur
from .outcome import PartOutcome
from .processes import Child, folder_in_memory

__all__ = ["run"]

# A sample tries every fifth operation. Each fault has a different offset.
_STRIDE = 5

# Fields of metrics.jsonl that differ from run to run.
_TIMES = ("seconds", "dev_seconds", "tokens_per_second")

_SETTINGS: dict[str, dict[str, Any]] = {
    "model": {"width": 4, "heads": 1, "hidden": 4, "score_width": 4, "dropout": 0.2},
    "training": {"epochs": 2, "batch": 20, "log_every": 1},
}


def run(sample: bool) -> PartOutcome:
    """Try all crash points, or every fifth one for a sample."""
    torch.set_num_threads(1)  # a process with threads must not be forked
    outcome = PartOutcome()
    with _crash_fixture() as fixture:
        gc.freeze()  # otherwise garbage collection in a child would copy the memory pages it visits
        for scenario in scenarios(fixture):
            if sample and not scenario.in_sample:
                continue
            operations = scenario.list_operations()
            outcome.count("operations", len(operations))
            for number, fault in enumerate(FAULTS):
                points = [
                    (operation_number, operation)
                    for operation_number, operation in enumerate(operations, start=1)
                    if can_occur(fault, operation)
                ]
                for operation_number, operation in (
                    points[number % _STRIDE :: _STRIDE] if sample else points
                ):
                    problem = scenario.try_fault(fault, operation_number)
                    outcome.count(f"crash points ({fault})")
                    if problem:
                        outcome.fail(
                            f'"{scenario.name}" {fault} {operation_number} ({operation}): {problem}'
                        )
    return outcome


# ------------------------------------------------------------------------------------ scenarios


@dataclass(frozen=True)
class CrashFixture:
    """The folders and models that all scenarios share.

    Args:
        folder: the folder that contains all other folders.
        settings: settings of a training run with the output folder `folder/disk/run`.
        finished: copy of the output of a training run without faults.
        begun: copy of the output of a training run that was stopped after its first epoch.
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
def _crash_fixture() -> Iterator[CrashFixture]:
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
        yield CrashFixture(folder, settings, folder / "finished", folder / "begun", model, other)


class Scenario:
    """One way to write a training run or a model on a faulty disk.

    Args:
        name: the name of the scenario in reports.
        fixture: the shared folders and models.
        start: folder with the initial content of `run`; None: `run` does not exist at first.
        write: function that writes while the disk fails. It calls its argument when a model has
            been saved; from then on, the model must not be lost.
        check: function that checks the folder after the fault, writes again, and raises an
            exception if anything is wrong. Its arguments are whether there must be a model, and the
            number of the operation.
        exchange: whether the system can exchange two folders in one step.
        in_sample: whether a sample includes this scenario.
    """

    def __init__(
        self,
        name: str,
        fixture: CrashFixture,
        start: Path | None,
        write: Callable[[Callable[[], None]], None],
        check: Callable[[bool, int], None],
        exchange: bool = True,
        in_sample: bool = True,
    ) -> None:
        self.name, self.fixture, self.start = name, fixture, start
        self.write, self.check = write, check
        self.exchange, self.in_sample = exchange, in_sample
        self._saved_at: int | None = None  # number of operations until a model is saved durably

    def list_operations(self) -> list[str]:
        """Run the scenario without a fault, and return the list of its disk operations."""
        self._prepare()
        report = self.fixture.folder / "operations"
        code, text = Child(lambda: self._write(None, 0, report)).wait()
        assert code == 0, text
        found = json.loads(report.read_text())
        self._saved_at = found["saved_at"]
        return list(found["operations"])

    def try_fault(self, fault: str, operation_number: int) -> str:
        """Run the scenario with a fault; return a text that says what is wrong, or ""."""
        self._prepare()
        code, text = Child(lambda: self._write(fault, operation_number, None)).wait()
        if code not in (0, CRASHED):
            return f"the writing process ended with exit code {code}: {text}"
        must_exist = self._saved_at is not None and operation_number > self._saved_at
        code, text = Child(lambda: self.check(must_exist, operation_number)).wait()
        return "" if code == 0 else f"the check after the fault failed: {text}"

    def _prepare(self) -> None:
        for name in ("disk", "removed"):
            shutil.rmtree(self.fixture.folder / name, ignore_errors=True)
            (self.fixture.folder / name).mkdir()
        if self.start is not None:
            shutil.copytree(self.start, self.fixture.disk / "run")

    def _write(self, fault: str | None, operation_number: int, report: Path | None) -> None:
        if not self.exchange:
            atomic_folder._renameat2 = lambda: None
        disk = FaultyDisk(
            self.fixture.disk, fault, operation_number, self.fixture.folder / "removed"
        )
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


def scenarios(fixture: CrashFixture) -> list[Scenario]:
    """Return all scenarios."""
    output = fixture.disk / "run"
    expected = _run_content(fixture.finished)

    def training(**options: bool) -> Callable[[Callable[[], None]], None]:
        def write(saved: Callable[[], None]) -> None:
            if options.get("resume"):
                saved()
            for event in train(fixture.settings, **options):
                if isinstance(event, Epoch):
                    saved()

        return write

    def check_run(must_exist: bool, operation_number: int, overwrite: bool = False) -> None:
        if must_exist:
            Tagger.load(output)
        JsonlLog(output / "metrics.jsonl").rows()  # raises if a complete line is not JSON
        # After a crash while overwriting, the user can resume or overwrite again. We alternate.
        again = overwrite and operation_number % 2 == 0
        for _ in train(fixture.settings, resume=not again, overwrite=again):
            pass
        found = _run_content(output)
        for name, value in expected.items():
            assert found.get(name) == value, f"{name} differs"
        assert found.keys() == expected.keys(), f"files left over: {found.keys() - expected.keys()}"
        assert _names(fixture.disk) == ["run"], f"files left over: {_names(fixture.disk)}"

    def check_overwritten(must_exist: bool, operation_number: int) -> None:
        check_run(must_exist, operation_number, overwrite=True)

    def save(saved: Callable[[], None]) -> None:
        saved()  # the other model has been there from the beginning
        fixture.model.save(output)

    def check_model(must_exist: bool, operation_number: int) -> None:
        found = Tagger.load(output)
        assert any(weights_equal(found, one) for one in (fixture.model, fixture.other)), (
            "the loaded model is a mixture of two models"
        )
        fixture.model.save(output)
        assert weights_equal(Tagger.load(output), fixture.model)
        assert _names(fixture.disk) == ["run"], f"files left over: {_names(fixture.disk)}"

    other = fixture.begun / "best"
    return [
        Scenario("fresh", fixture, None, training(), check_run),
        Scenario("resume", fixture, fixture.begun, training(resume=True), check_run),
        Scenario(
            "overwrite", fixture, fixture.finished, training(overwrite=True), check_overwritten
        ),
        Scenario("save", fixture, other, save, check_model),
        Scenario("save by two renames", fixture, other, save, check_model, exchange=False),
        Scenario(
            "resume by two renames",
            fixture,
            fixture.begun,
            training(resume=True),
            check_run,
            exchange=False,
            in_sample=False,
        ),
    ]


def _run_content(folder: Path) -> dict[str, object]:
    """Return file name -> content for the folder of a training run, without times."""
    found: dict[str, object] = {}
    for path in folder.rglob("*"):
        name = path.relative_to(folder).as_posix()
        if path.suffix == ".safetensors":
            found[name] = path.read_bytes()
        elif name == "metrics.jsonl":
            assert path.read_bytes().endswith(b"\n"), f"{name}: the last line is incomplete"
            rows = JsonlLog(path).rows()
            found[name] = [{k: v for k, v in row.items() if k not in _TIMES} for row in rows]
        else:
            found[name] = None
    return found


def _names(folder: Path) -> list[str]:
    return sorted(path.name for path in folder.iterdir())


def _repeat(name: str, fault: str, operation_number: int) -> int:
    torch.set_num_threads(1)
    with _crash_fixture() as fixture:
        (scenario,) = [one for one in scenarios(fixture) if one.name == name]
        for number, operation in enumerate(scenario.list_operations(), start=1):
            print(f"{number}: {operation}{'  <-- ' + fault if number == operation_number else ''}")
        problem = scenario.try_fault(fault, operation_number)
        print(problem or "no problem")
    return 1 if problem else 0


if __name__ == "__main__":
    sys.exit(_repeat(sys.argv[1], sys.argv[2], int(sys.argv[3])))
