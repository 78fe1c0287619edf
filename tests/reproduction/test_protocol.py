"""The protocol of a run: a longer schedule where dev still rises, and what is evaluated when."""

from __future__ import annotations

import json
from pathlib import Path
from typing import Any

import pytest
import torch

from bcrf.tagger import Tagger
from bcrf.tagger.data import read
from bcrf.tagger.training import Started
from reproduction import ExperimentError, RunContext, Selection, run_jobs
from reproduction.calibration import calibration
from reproduction.methods import Objective
from reproduction.training_job import TrainingJob
from tests.reproduction_cases import POS, SAMPLES, experiment_set, messages, run

CRF = Selection(("english",), objectives=("crf",), seeds=(0,))


def training_job(folder: Path, **changes: Any) -> TrainingJob:
    which = experiment_set(folder, pos=changes)
    context = RunContext(which.experiments, SAMPLES, folder / "runs", "cpu")
    (job,) = which.jobs("pos", CRF, context)
    assert isinstance(job, TrainingJob)
    return job


def logged(folder: Path) -> dict[str, Any]:
    return experiment_set(folder).log("pos").rows()[-1]


def test_a_second_run_is_longer_if_the_best_epoch_is_among_the_last(tmp_path):
    changes = {"longer": 1.5}  # the best of two epochs is among the last three
    events = run(tmp_path, experiment_set(tmp_path, pos=changes), "pos", CRF)
    assert [event.epochs for event in events if isinstance(event, Started)] == [2, 3]
    row, job = logged(tmp_path), training_job(tmp_path, **changes)
    training = row["training"]
    both = [training["dev"], training["other_run"]["dev"]]
    assert sorted(map(len, both)) == [2, 3]
    assert max(both[0]) >= max(both[1])
    assert row["config"]["training"]["epochs"] == len(both[0])
    # The evaluated model is that of the better run.
    better = max(job.folder, job.longer_folder, key=lambda f: len(both[0]) == _epochs(f))
    assert job.model_folder == better
    tagger = Tagger.load(better, "cpu")
    examples = tagger.task.annotated(list(read(SAMPLES / "english-dev.conllu")))
    expected = tagger.evaluate_examples(examples, "viterbi").score
    assert row["evaluations"]["test"]["decoders"]["viterbi"]["score"] == pytest.approx(expected)
    # The finished run is recognised, and not run again.
    ((kind, text),) = messages(run(tmp_path, experiment_set(tmp_path, pos=changes), "pos", CRF))
    assert kind == "done"
    assert text.startswith("pos english 0 crf seed 0: ")


def _epochs(folder: Path) -> int:
    rows = map(json.loads, (folder / "metrics.jsonl").read_text().splitlines())
    return sum(row["event"] == "epoch" for row in rows)


def test_no_second_run_if_dev_has_stopped_rising(tmp_path):
    changes = {"longer": 2.0, "training": {**POS["training"], "epochs": 6}}
    changes["optimizer"] = {"learning_rate": 1e-9}  # all epochs have the same score
    events = run(tmp_path, experiment_set(tmp_path, pos=changes), "pos", CRF)
    assert [event.epochs for event in events if isinstance(event, Started)] == [6]
    training = logged(tmp_path)["training"]
    assert len(set(training["dev"])) == 1
    assert "other_run" not in training


def test_a_table_may_leave_out_the_test_file(tmp_path):
    which = experiment_set(tmp_path, pos={"splits": ["dev"], "paper": []})
    ((_, _), (kind, text)) = messages(run(tmp_path, which, "pos", CRF))
    evaluations = logged(tmp_path)["evaluations"]
    assert list(evaluations) == ["dev"]
    score = evaluations["dev"]["decoders"]["viterbi"]["score"]
    assert (kind, text) == ("done", f"pos english 0 crf seed 0: {100 * score:.2f}")
    with pytest.raises(ExperimentError, match=r"splits must be \['dev'\]"):
        experiment_set(tmp_path, pos={"splits": ["test"]})


def test_finished_runs_can_be_run_again(tmp_path):
    which = experiment_set(tmp_path)
    run(tmp_path, which, "pos", CRF)
    context = RunContext(which.experiments, SAMPLES, tmp_path / "runs", "cpu")
    log = which.log("pos")
    first = log.rows()[0]
    changed = experiment_set(tmp_path, pos={"training": {**POS["training"], "epochs": 1}})
    context = RunContext(changed.experiments, SAMPLES, tmp_path / "runs", "cpu")
    jobs = list(changed.jobs("pos", CRF, context))
    with pytest.raises(ExperimentError, match=r"training.epochs = 2, but now .* = 1"):
        list(run_jobs(jobs, log))
    found = messages(list(run_jobs(jobs, log, again=True)))
    assert [kind for kind, _ in found] == ["begun", "done"]
    assert len(log.rows()) == 2
    assert len(log.rows()[1]["training"]["dev"]) == 1
    assert len(first["training"]["dev"]) == 2
    assert [kind for kind, _ in messages(list(run_jobs(jobs, log)))] == ["done"]


def test_the_factor_of_the_longer_run_is_checked(tmp_path):
    for wrong in (1, 0.5, "2", True):
        with pytest.raises(ExperimentError, match="longer must be a number greater than 1"):
            experiment_set(tmp_path, pos={"longer": wrong})


def test_settings_of_an_objective_are_those_of_its_runs(tmp_path):
    settings = {"mean_field": {"model": {"forbidden_transitions": "scored"}}}
    experiment = experiment_set(tmp_path, pos={"objective_settings": settings}).experiments["pos"]

    def model(objective: str) -> Any:
        return experiment.config("english", "0", "", objective, 0, "run", "train", "dev").model

    assert model("mean_field-5").forbidden_transitions == "scored"
    assert model("crf").forbidden_transitions == "removed"
    colder = model("bregman-tau0.3")
    assert (colder.objective, colder.temperature) == ("bregman", 0.3)
    assert model("crf").temperature == 1
    with pytest.raises(ExperimentError, match="no objective is a 'svm'"):
        experiment_set(tmp_path, pos={"objective_settings": {"svm": {}}})


def test_names_of_objectives_with_a_temperature():
    assert Objective.parse("bregman-10-relaxed-tau0.1") == Objective("bregman-10-relaxed", 0.1)
    assert Objective.parse("crf-tau3").temperature == 3
    assert Objective.parse("crf").title == "CRF training"
    assert Objective.parse("crf-tau0.3").title == "ours: CRF training, τ = 0.3"
    uniform = Objective.parse("mean_field-5-uniform").title
    assert uniform == "ours: MF training, 5 updates, uniform start"
    for wrong in ("crf-tau0", "crf-tau", "crf-tau-1", "svm-tau0.3", "crf-taux", ""):
        with pytest.raises(ValueError, match="objective"):
            Objective.parse(wrong)


class _Certain:
    """A tagger whose model is 90 % sure of tag 0 everywhere."""

    def __init__(self, tagger: Tagger) -> None:
        self.task, self.reader, self.chain = tagger.task, tagger.reader, tagger.chain
        self.model, self.device = self, tagger.device

    def eval(self) -> None:
        pass

    def marginals(self, chain: Any) -> torch.Tensor:
        found = torch.full(chain.unary.shape, 0.1 / (chain.num_tags - 1), dtype=torch.float64)
        found[..., 0] = 0.9
        return found


def test_calibration_is_the_gap_between_confidence_and_accuracy(tmp_path):
    run(tmp_path, experiment_set(tmp_path), "pos", CRF)
    tagger = Tagger.load(training_job(tmp_path).model_folder, "cpu")
    examples = tagger.task.annotated(list(read(SAMPLES / "english-dev.conllu")))
    gold = [label for example in examples for label in example.gold()]
    share = gold.count(tagger.task.labels[0]) / len(gold)
    found = calibration(_Certain(tagger), examples)  # type: ignore[arg-type]
    assert found == pytest.approx(
        {"ece": 0.9 - share, "confidence": 0.9, "accuracy": share}, abs=1e-6
    )
    own = calibration(tagger, examples)
    assert 0 <= own["ece"] <= 1
    assert abs(own["confidence"] - own["accuracy"]) <= own["ece"] + 1e-6
    assert logged(tmp_path)["evaluations"]["test"]["calibration"] == own
