"""The benchmarks: problems, systems, depth, memory, the log and the page."""

from __future__ import annotations

import itertools
import json
from importlib import util
from pathlib import Path
from typing import Any

import pytest
import torch

import bcrf
from benchmarks import peers, report, run
from benchmarks.cases import CASES, PAIRS, PENALTY, TASKS, BenchmarkCase, make_problem
from benchmarks.depth import OURS, DepthCounter, depths, fake_depth
from benchmarks.log import BenchmarkLog
from benchmarks.memory import peak_added
from benchmarks.overhead import OVERHEADS, measure_overheads
from benchmarks.requirements import REQUIREMENTS, verdicts
from benchmarks.run import describe_run, describe_systems
from benchmarks.run_results import BenchmarkResults, duration
from benchmarks.systems import SYSTEMS, System, brief
from benchmarks.tagging import DECODERS, PROBABILITIES, TaggingNetwork, tagging
from benchmarks.verification import Verifier
from measurement.timer import SamplingPlan

SMALL = BenchmarkCase(3, 7, 5)
BIES = BenchmarkCase(3, 6, 8, constraints=True)
MODULES = {
    "pytorch-crf": "torchcrf",
    "pytorch-crf, mask": "torchcrf",
    "TorchCRF": "TorchCRF",
    "torch-struct": "torch_struct",
    "supar": "supar",
    "torbi": "torbi",
    "python-crfsuite": "pycrfsuite",
}

# ----------------------------------------------------------------------------------------- problems


@pytest.mark.parametrize("pairs", PAIRS)
@pytest.mark.parametrize("case", [SMALL, BIES], ids=lambda case: case.name)
def test_gold_sequences_are_legal_and_problems_are_the_same_every_time(case, pairs):
    problem = make_problem(case, pairs)
    assert bool(problem.chain().score(problem.tags).isfinite().all())
    assert problem.unary.dtype == torch.float32
    assert torch.equal(problem.unary, make_problem(case, pairs).unary)
    assert not torch.equal(problem.unary, make_problem(case, pairs, seed=1).unary)


def test_peaked_chains_have_five_more_along_the_gold_path():
    normal, peaked = (
        make_problem(SMALL, "shared", "normal"),
        make_problem(SMALL, "shared", "peaked"),
    )
    more = (peaked.unary - normal.unary).gather(-1, normal.tags.unsqueeze(-1))
    torch.testing.assert_close(more, torch.full_like(more, 5.0))


def test_forbidden_tags_and_transitions_get_the_penalty():
    problem = make_problem(BIES, "shared")
    unary, transitions = problem.penalised()
    assert problem.structure is not None
    assert torch.equal(transitions == PENALTY, ~problem.structure.follow)
    assert torch.equal(unary[0, 0] == PENALTY, ~problem.structure.start)
    assert torch.equal(unary[0, -1] == PENALTY, ~problem.structure.end)


def test_cases_are_those_of_the_issue():
    shapes = [(c.batch, c.length, c.tags, c.constraints) for c in CASES.values()]
    assert (32, 64, 17, False) in shapes
    assert (32, 40, 64, True) in shapes
    assert len(shapes) == 7
    assert [name for name, case in CASES.items() if case.arcs < 100_000] == ["1x30x17"]


# -------------------------------------------------------------------------------------- competitors


@pytest.mark.parametrize("case", [SMALL, BIES, BenchmarkCase(2, 2, 3)], ids=lambda c: c.name)
@pytest.mark.parametrize("name", SYSTEMS)
def test_systems_agree(name: str, case: BenchmarkCase) -> None:
    system = SYSTEMS[name]
    if name in MODULES and util.find_spec(MODULES[name]) is None:
        pytest.skip(f"{name} is not installed")
    done = 0
    for pairs, task in itertools.product(PAIRS, TASKS):
        problem = make_problem(case, pairs, task)
        call = system.prepare(problem, task)
        if callable(call):
            assert "error" not in Verifier(problem, task).check(system, call)
            done += 1
    assert done


def test_wrong_results_are_detected():
    problem = make_problem(SMALL, "shared")

    value, grads = SYSTEMS["eager loop"].prepare(problem, "loss")()
    liar = System("liar", "peer", "")

    def verdict(loss: float, gradient: float) -> str:
        result = (value * loss, [grads[0] * gradient])
        return Verifier(problem, "loss").check(liar, lambda: result).get("error", "")

    assert not verdict(1.0, 1.0)
    assert verdict(1.01, 1.0).startswith("wrong loss")
    assert verdict(1.0, 1.1).startswith("wrong gradient")
    assert verdict(float("nan"), 1.0).startswith("wrong loss")
    zeros = Verifier(problem, "normal").check(liar, lambda: torch.zeros_like(problem.tags))
    assert "wrong tags" in zeros["error"]
    crash = Verifier(problem, "loss").check(liar, lambda: 1 / 0)
    assert crash["error"].startswith("ZeroDivisionError")


def test_unsupported_problems_have_a_reason():
    per_pair, shared = make_problem(SMALL, "per-pair"), make_problem(SMALL, "shared")
    assert "per-pair" in SYSTEMS["pytorch-crf"].prepare(per_pair, "loss")
    assert SYSTEMS["torbi"].prepare(shared, "loss") == "decodes only"
    assert SYSTEMS["viterbi"].prepare(shared, "loss") is None

    def broken(problem: object) -> Any:
        raise ImportError(f"no library in {Path.cwd()}\nand more")

    system = System("broken", "peer", "", loss=broken)
    assert system.prepare(shared, "loss") == "ImportError: no library in ..."


def test_errors_are_brief():
    assert brief("\n\n one line \n another") == "one line"
    assert len(brief("x" * 1000)) == 300


# ------------------------------------------------------------------------------------------ tagging


def test_tagging_is_measured_by_network_decoder_and_threads():
    pytest.importorskip("safetensors")
    networks = {
        "small": TaggingNetwork("english", "pos", {"width": 16, "score_width": 8}, tokens=100)
    }
    rows = list(tagging(SamplingPlan(budget=0.0, least=2, sample=1e-3), [1], networks))
    assert {row["decoder"] for row in rows} == {*DECODERS, PROBABILITIES}
    for row in rows:
        assert row["tokens"] >= 100
        assert row["samples"] == 2
        assert 0 < row["low"] <= row["median"] <= row["high"]


# -------------------------------------------------------------------------------------------- depth


def depth_of(call: Any) -> int:
    with DepthCounter() as depth:
        call()
    return depth.longest


def test_depth_is_the_longest_path():
    x, y = torch.randn(4, 4), torch.randn(4, 4)
    assert depth_of(lambda: x + y) == 1
    assert depth_of(lambda: (x.exp() + y.exp()).sum()) == 3
    assert depth_of(lambda: [x.exp() for _ in range(10)]) == 1
    assert depth_of(lambda: x.T[1:].unsqueeze(0).exp()) == 1
    assert depth_of(lambda: x.view(16).detach()) == 0


def test_depth_follows_memory_and_values():
    def in_place() -> None:
        a = torch.zeros(4)  # 1
        a[:2].copy_(torch.ones(2))  # 2
        a.sum()  # 3

    def read() -> None:
        x = torch.ones(3).sum()  # 1, 2
        if x > 0:  # 3, and 4 to read it
            torch.ones(1)  # 5

    def gradient() -> None:
        x = torch.ones(3, requires_grad=True)  # 1
        torch.autograd.grad(x.exp().sum(), x)  # 2, 3; ones, expand, times exp

    assert depth_of(in_place) == 3
    assert depth_of(read) == 5
    assert depth_of(gradient) >= 3


def test_loops_are_deep_and_projections_are_not():
    def growth(name: str) -> int:
        short, long = (make_problem(BenchmarkCase(2, n, 3), "shared") for n in (4, 8))
        return fake_depth(OURS[name], long) - fake_depth(OURS[name], short)

    # Each of the 4 additional positions takes at least 3 operations, one after the other.
    assert growth("crf: loss") >= 4 * 3
    assert growth("viterbi") >= 4 * 3
    # Grows with log n: the search for tags that lie on some path.
    assert growth("bregman-10: loss") < 16


@pytest.mark.slow
def test_all_our_systems_have_a_depth():
    rows = {(row["system"], row["length"]): row for row in depths((4, 8)) if row["ours"]}
    assert {name for name, _ in rows} == set(OURS)
    assert not [row for row in rows.values() if "error" in row]
    mean_field = [rows["mean field-10: loss + gradient", n]["depth"] for n in (4, 8)]
    assert mean_field[0] == mean_field[1]


def test_memory_of_a_small_case():
    assert peak_added("crf", BenchmarkCase(2, 16, 4)) >= 0


# ----------------------------------------------------------------------------- the log and the page

SECONDS = {"ours": 1e-3, "peer": 0.2, "floor": 5e-4}


def synthetic_log(path: Path, factor: float = 1.0, name: str = "r1", **facts: str) -> BenchmarkLog:
    """A finished run in which all peers take 200 times as long as ours."""
    log = BenchmarkLog(path)
    about = {**describe_run(torch.device("cpu")), "cpu": "Z80", **facts}
    log.append(name, "start", [{"machine": about, "budget": 1, "systems": describe_systems()}])
    for case, pairs, task, count in itertools.product(CASES, PAIRS, TASKS, (1, 2)):
        about = {"case": case, "pairs": pairs, "task": task, "threads": count}
        rows = []
        for system in SYSTEMS.values():
            seconds = SECONDS[system.role] * (factor if system.role == "ours" else 1.0)
            numbers = {"median": seconds, "low": seconds, "high": seconds, "samples": 15}
            does = system.loss if task == "loss" else system.decode
            fact = numbers if does and pairs in system.pairs else {"error": "cannot | does not"}
            rows.append({**about, "system": system.name, **fact})
        log.append(name, "speed", rows)
    for case, overhead, count in itertools.product(CASES, OVERHEADS, (1, 2)):
        about = {"case": case, "layer": overhead.layer, "base": overhead.base, "threads": count}
        seconds = {"median": 1e-5 * factor, "low": 9e-6 * factor, "high": 1.2e-5 * factor}
        log.append(name, "overhead", [{**about, **seconds, "rounds": 15}])
    growth = {"system": "crf", "task": "loss", "threads": 1, "cases": ["4x256x17", "4x2048x17"]}
    log.append(name, "growth", [{**growth, "seconds": [1.0, 8.5 * factor]}])
    log.append(name, "memory", [{"system": "crf", "case": "8x4096x64", "bytes": 5e7 * factor}])
    log.append(name, "depth", [{"system": "viterbi", "length": 32, "ours": True, "depth": 99}])
    log.append(name, "end", [{}])
    return log


def test_requirements_are_judged_by_the_worst_case(tmp_path):
    good = list(verdicts(BenchmarkResults(synthetic_log(tmp_path / "good.jsonl").rows())))
    assert {v.number for v in good} == {"1", "2", "3", "4", "5", "6"}
    assert {v.mark(n) for v in good for n in v.measured} == {"yes", "reported"}
    bad = list(verdicts(BenchmarkResults(synthetic_log(tmp_path / "bad.jsonl", 60.0).rows())))
    assert {v.mark(n) for v in bad for n in v.measured} == {"**no**", "reported"}


def test_the_overhead_of_the_layers_is_judged_and_shown(tmp_path):
    log = synthetic_log(tmp_path / "log.jsonl")
    found = {v.text: v for v in verdicts(BenchmarkResults(log.rows()))}
    text = "bcrf.CRF takes at most 60 µs longer than crf (shared, loss + gradient, 32x64x17)"
    assert found[text].measured == {1: "10 µs", 2: "10 µs"}
    assert found[text].passed == {1: True, 2: True}
    constrained = text.replace("60 µs", "120 µs").replace("32x64x17", "32x40x64-BIES")
    assert found[constrained].passed == {1: True, 2: True}
    slow = synthetic_log(tmp_path / "slow.jsonl", 7.0)
    again = {v.text: v for v in verdicts(BenchmarkResults(slow.rows()))}
    assert again[text].passed == {1: False, 2: False}
    assert again[constrained].passed == {1: True, 2: True}
    page = report.text(log.rows())
    assert "| bcrf.CRF | crf | 1 thread | 10 µs [9, 12] | 10 µs [9, 12] |" in page
    assert {overhead.layer for overhead in OVERHEADS} <= set(SYSTEMS)
    assert {overhead.base for overhead in OVERHEADS} <= set(SYSTEMS)


def test_overheads_are_differences_of_alternating_calls():
    plan = SamplingPlan(budget=0.0, least=3)
    rows = list(measure_overheads(plan, [1], ["1x30x17"]))
    assert [row["layer"] for row in rows] == [overhead.layer for overhead in OVERHEADS]
    for row in rows:
        assert (row["case"], row["threads"], row["rounds"]) == ("1x30x17", 1, 3)
        assert row["low"] <= row["median"] <= row["high"]
        assert abs(row["median"]) < 0.1  # a difference, not the time of a call


def test_a_missing_rival_leaves_a_requirement_open(tmp_path):
    rows = synthetic_log(tmp_path / "log.jsonl").rows()
    kept = [row for row in rows if row.get("system") != "torch-struct"]
    found = {v.text: v for v in verdicts(BenchmarkResults(kept))}
    open_ones = [v for v in found.values() if "torch-struct" in v.text]
    assert len(open_ones) == 2
    assert all(v.passed == {1: None, 2: None} for v in open_ones)
    assert all("not measured" in v.measured[1] for v in open_ones)


def test_every_comparison_names_systems_that_exist():
    for requirement in REQUIREMENTS:
        comparison = requirement.comparison
        assert SYSTEMS[comparison.ours].role == "ours"
        assert comparison.pairs in SYSTEMS[comparison.rival].pairs
        assert comparison.task in TASKS


def test_the_page_says_where_we_lose(tmp_path):
    log = synthetic_log(tmp_path / "log.jsonl")
    page = report.text(log.rows(log.last_run(finished=True)))
    lost = page.partition("## Where we lose")[2].partition("\n## ")[0]
    assert "| crf | loss + gradient | torch.exp 28 of 28, 2x at " in lost
    assert "pytorch-crf" not in lost
    assert "Exact Viterbi is cheaper than the certified decoder in 0 of 56" in lost
    slow = synthetic_log(tmp_path / "slow.jsonl", 300.0)
    assert "pytorch-crf 14 of 14, 1.5x at" in report.text(slow.rows())


def test_the_page_is_written_from_the_log(tmp_path):
    log, page = synthetic_log(tmp_path / "log.jsonl"), tmp_path / "page.md"
    run.main(["--report", "--log", str(log.path), "--page", str(page)])
    text = page.read_text()
    for heading in ("Requirements", "Where we lose", "Depth", "Memory", "Systems"):
        assert f"\n## {heading}\n" in text
    assert "200x" in text
    for line in text.splitlines():
        assert not line.startswith("|") or line.endswith("|")
    assert (tmp_path / "page.svg").exists() == (util.find_spec("matplotlib") is not None)


def test_the_page_has_the_last_run_of_every_processor(tmp_path):
    path, page = tmp_path / "log.jsonl", tmp_path / "page.md"
    for name, cpu, factor in (("r1", "6502", 60.0), ("r2", "6502", 1.0), ("r3", "Z80", 60.0)):
        log = synthetic_log(path, factor, name, cpu=cpu)
    log.append("r4", "start", [{"machine": {"cpu": "8086"}}])  # and stopped
    run.main(["--report", "--log", str(path), "--page", str(page)])
    here, _, there = page.read_text().partition("\n## Requirements on 6502")
    assert "| cpu | Z80 |" in here
    assert "**no**" in here
    there = there.partition("\n## ")[0]
    assert "Run r2, " in there
    assert "**no**" not in there
    assert "200x" in there
    assert "8086" not in page.read_text()


def test_processors_of_the_same_name_differ_by_their_vectors(tmp_path):
    path = tmp_path / "log.jsonl"
    for name, vector in (("r1", "SSE"), ("r2", "AVX"), ("r3", "SSE")):
        log = synthetic_log(path, name=name, cpu="6502", vector=vector)
    assert log.runs_on_other_processors("r3") == ["r2"]
    assert log.runs_on_other_processors("r2") == ["r3"]


def test_a_run_can_be_resumed(tmp_path, capsys):
    path = tmp_path / "log.jsonl"
    choice = ["--cases", "1x30x17", "--pairs", "shared", "--systems", "vit", "torch.exp"]
    arguments = [*choice, "--threads", "1", "--budget", "0", "--quick", "--log", str(path)]
    run.main([*arguments, "--tasks", "normal"])
    assert "# Benchmarks" in capsys.readouterr().out
    first = BenchmarkLog(path).rows()
    systems = [row["system"] for row in first if row["row"] == "speed"]
    assert systems == ["viterbi", "viterbi torch", "viterbi, lengths", "torch.exp"]
    assert all(row["commit"] is not None and row["command"] for row in first)
    run.main([*arguments, "--tasks", "normal", "peaked", "--resume"])
    rows = BenchmarkLog(path).rows()
    assert {row["run"] for row in rows} == {first[0]["run"]}
    speed = [row for row in rows if row["row"] == "speed"]
    assert [row["task"] for row in speed] == ["normal"] * 4 + ["peaked"] * 4
    assert all(row["median"] > 0 for row in speed)


def test_no_page_without_a_finished_run(tmp_path):
    path = tmp_path / "log.jsonl"
    path.write_text(json.dumps({"run": "r", "row": "start"}) + "\n")
    with pytest.raises(SystemExit, match="no finished run"):
        run.main(["--report", "--log", str(path)])


def test_durations_are_readable():
    assert duration(0.0123) == "12.3 ms"
    assert duration(2.5) == "2.5 s"
    assert duration(4.2e-5, 4e-5, 5e-5) == "42 µs [40, 50]"
    assert bcrf.__version__ in describe_systems()[0]["version"]


def test_installation_errors_are_kept_without_addresses():
    output = (
        "WARNING: Location 'x' is ignored\nERROR: No matching distribution found for y\n[notice]"
    )
    assert peers._reason(output) == "ERROR: No matching distribution found for y"
    assert peers._reason("") == "pip failed"
    assert {s.package for s in SYSTEMS.values() if s.name in MODULES} <= set(peers.PEERS)
    assert not any("torch" in step for steps in peers.PEERS.values() for step in steps)
