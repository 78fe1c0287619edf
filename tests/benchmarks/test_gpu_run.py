"""`python -m benchmarks --device cuda`, with CPU tensors and a stub in the place of the device."""

from __future__ import annotations

import contextlib
import time
from collections.abc import Callable
from pathlib import Path

import pytest
import torch

from benchmarks import run
from benchmarks.cases import BenchmarkCase, Problem, make_problem
from benchmarks.log import BenchmarkLog
from benchmarks.systems import SYSTEMS
from measurement.timer import CudaClock


class Event:
    """A CUDA event of a device that computes as soon as the host calls it."""

    waited = 0

    def __init__(self, enable_timing: bool = False) -> None:
        assert enable_timing

    def record(self) -> None:
        self.seconds = time.perf_counter()

    def synchronize(self) -> None:
        Event.waited += 1

    def elapsed_time(self, end: Event) -> float:
        return (end.seconds - self.seconds) * 1e3


@pytest.fixture
def stub(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(torch.cuda, "Event", Event)
    monkeypatch.setattr(torch.cuda, "device", lambda device: contextlib.nullcontext())
    monkeypatch.setattr(torch.cuda, "is_available", lambda: True)
    monkeypatch.setattr(torch.cuda, "get_device_name", lambda device: "Imaginary 9000")
    monkeypatch.setattr(Problem, "to", lambda problem, device: problem)


def test_the_clock_of_a_device_waits_and_counts_seconds(stub: None) -> None:
    clock = CudaClock(torch.device("cuda"))
    waited, start, began = Event.waited, clock(), time.perf_counter()
    time.sleep(0.05)
    measured = clock() - start
    assert Event.waited == waited + 2
    assert 0.05 <= measured <= time.perf_counter() - began + 1e-3


def test_a_run_on_a_gpu_has_its_own_log_and_page(
    stub: None,
    tmp_path: Path,
    capsys: pytest.CaptureFixture[str],
) -> None:
    log, page = tmp_path / "log.jsonl", tmp_path / "page.md"
    systems = ("crf", "crf torch", "eager loop", "torch.exp")
    choice = ["--cases", "1x30x17", "--budget", "0", "--tasks", "loss", "--log", str(log)]
    run.main(["--device", "cuda", *choice, "--quick", "--systems", *systems])
    printed = capsys.readouterr().out
    assert "# Benchmarks on a GPU" in printed
    assert "Imaginary 9000" in printed
    assert "## Loss + gradient: shared transitions\n" in printed
    rows = BenchmarkLog(log).rows()
    assert rows[0]["device"] == "cuda"
    assert {row["row"] for row in rows} == {"start", "speed", "end"}
    timed = {row["system"] for row in rows if "median" in row}
    assert timed == set(systems)

    run.main(["--device", "cuda", "--report", "--log", str(log), "--page", str(page)])
    assert page.read_text().startswith("# Benchmarks on a GPU\n")


def test_a_missing_gpu_is_an_error_that_says_so(capsys: pytest.CaptureFixture[str]) -> None:
    if torch.cuda.is_available():
        pytest.skip("there is a GPU")
    with pytest.raises(SystemExit):
        run.main(["--device", "cuda"])
    assert "finds no CUDA device" in capsys.readouterr().err


ON_GPUS = [
    pytest.param(make, id=f"{name}-{task}")
    for name, system in SYSTEMS.items()
    for task, make in (("loss", system.loss), ("decode", system.decode))
    if make is not None and "shared" in system.pairs and not system.cpu_only
]


@pytest.mark.parametrize("make", ON_GPUS)
def test_no_system_leaves_the_device_of_the_problem(
    make: Callable[[Problem], Callable[[], object]],
) -> None:
    """On meta tensors an operation that mixes devices raises an error."""
    problem = make_problem(BenchmarkCase(2, 5, 4), "shared").to(torch.device("meta"))
    try:
        make(problem)()
    except ModuleNotFoundError as missing:
        pytest.skip(f"{missing}: it is in the environment of the benchmark only")
    except (RuntimeError, NotImplementedError) as error:
        if not any(text in str(error) for text in READS_VALUES):
            raise


READS_VALUES = ("meta tensor", "Meta tensor", "meta device", "data-dependent")
"""Meta tensors have no values. A system that reads some raises an error with such a text."""
