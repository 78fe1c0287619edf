"""Runs of a table: logged rows, runs that are not repeated, and interrupted runs."""

from __future__ import annotations

import json
import shutil
from pathlib import Path
from typing import Any

import pytest

from bcrf.tagger import Tagger
from bcrf.tagger.files import hold_lock
from bcrf.tagger.training import Epoch, Finished, Started
from reproduction import ExperimentError, JobMessage, RunContext, Selection, job_statuses
from reproduction.jobs import find_row
from tests.reproduction_cases import SAMPLES, experiment_set, messages, run

CRF = Selection(("english",), objectives=("crf",), seeds=(0,))
TITLE = "pos english 0 crf seed 0"


@pytest.fixture(scope="module")
def finished(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """A folder with one finished run."""
    folder = tmp_path_factory.mktemp("finished")
    found = messages(run(folder, experiment_set(folder), "pos", CRF))
    assert found == [("begun", TITLE), ("done", done_text(folder))]
    return folder


@pytest.fixture
def done(finished: Path, tmp_path: Path) -> Path:
    """A copy of the folder with one finished run."""
    return Path(shutil.copytree(finished, tmp_path / "copy"))


def done_text(folder: Path) -> str:
    """Return the text of the finished run: its test score, and the paper's number."""
    score = experiment_set(folder).log("pos").rows()[0]["evaluations"]["test"]["decoders"]
    return f"{TITLE}: {100 * score['viterbi']['score']:.2f} (paper 91.3)"


def only_row(folder: Path, table: str = "pos") -> dict[str, Any]:
    (row,) = experiment_set(folder).log(table).rows()
    return row


def test_a_row_has_all_fields_of_the_report(finished):
    row = only_row(finished)
    assert {key: row[key] for key in ("table", "corpus", "network", "variant", "objective")} == {
        "table": "pos",
        "corpus": "english",
        "network": "0",
        "variant": "",
        "objective": "crf",
    }
    assert (row["seed"], row["config"]["training"]["seed"]) == (0, 0)
    assert row["config"]["model"]["objective"] == "crf"
    assert row["config"]["model"]["width"] == 16
    assert row["training"]["sentences"] == 354
    assert len(row["training"]["dev"]) == len(row["training"]["loss"]) == 2
    assert row["training"]["best_epoch"] in (1, 2)
    assert row["training"]["seconds"] > 0
    for name in ("date", "bcrf", "torch", "python", "commit", "command", "edition"):
        assert isinstance(row[name], str)
    assert row["machine"]["cores"] >= 1
    assert set(row["files"]) == {"train", "dev", "test"}


def test_a_row_has_no_absolute_paths(finished):
    text = (finished / "experiments" / "results" / "pos.jsonl").read_text()
    assert str(finished) not in text
    assert str(SAMPLES) not in text


def test_scores_equal_those_of_the_best_model(finished):
    row = only_row(finished)
    tagger = Tagger.load(finished / "runs" / "pos" / "english-0" / "crf-0")
    decoders = row["evaluations"]["test"]["decoders"]
    assert set(decoders) == {
        *("viterbi", "mean_field-5", "mean_field-10", "bregman-5", "bregman-10"),
        *("bregman-5-half", "bregman-10-half", "certified-5", "certified-10"),
    }
    for name in ("viterbi", "mean_field-5", "bregman-10", "certified-10"):
        expected = tagger.evaluate(SAMPLES / "english-dev.conllu", name)
        assert decoders[name]["score"] == pytest.approx(expected.score, abs=1e-6)
    # Dev and test are the same file here, and dev selects the best epoch.
    assert row["evaluations"]["dev"] == row["evaluations"]["test"]
    assert max(row["training"]["dev"]) == decoders["viterbi"]["score"]
    assert row["training"]["dev"][row["training"]["best_epoch"] - 1] == max(row["training"]["dev"])


def test_the_state_for_resuming_is_removed(finished):
    folder = finished / "runs" / "pos" / "english-0" / "crf-0"
    assert {path.name for path in folder.iterdir()} == {"best", "metrics.jsonl"}


def test_finished_runs_are_not_run_again(done):
    shutil.rmtree(done / "runs")
    found = run(done, experiment_set(done), "pos", CRF)
    assert found == [JobMessage("done", done_text(done))]
    assert not (done / "runs").exists()


def test_each_run_has_its_seed_and_objective(tmp_path):
    chosen = Selection(("english",), seeds=(1,), objectives=("unstructured", "bregman-3-relaxed"))
    run(tmp_path, experiment_set(tmp_path), "pos", chosen)
    rows = experiment_set(tmp_path).log("pos").rows()
    assert [row["config"]["training"]["seed"] for row in rows] == [1, 1]
    assert [row["config"]["model"]["objective"] for row in rows] == [
        "unstructured",
        "bregman-3-relaxed",
    ]
    # A model without transitions has but one decoder.
    assert list(rows[0]["evaluations"]["test"]["decoders"]) == ["unstructured"]
    assert "unstructured" not in rows[1]["evaluations"]["test"]["decoders"]


def test_missing_data_are_named_once_and_skipped(tmp_path):
    chosen = Selection(("klingon",), seeds=(0, 1), objectives=("crf",))
    assert messages(run(tmp_path, experiment_set(tmp_path), "pos", chosen)) == [
        (
            "skipped",
            "pos klingon 0 crf seed 0: there is no tlh-train.conllu, no tlh-dev.conllu, no tlh "
            f"or tlh2 under {SAMPLES}",
        )
    ]
    assert not experiment_set(tmp_path).log("pos").path.exists()


def test_settings_that_differ_from_the_log_are_an_error(done):
    other = experiment_set(done, pos={"training": {"epochs": 3, "batch": 64, "device": "cpu"}})
    with pytest.raises(ExperimentError) as error:
        run(done, other, "pos", CRF)
    assert str(error.value).startswith(
        f"{TITLE} is in the log with training.epochs = 2, but now training.epochs = 3; "
        "restore the setting, or replace the result with --again"
    )
    context = RunContext(other.experiments, SAMPLES, done / "runs", "cpu")
    (listed,) = job_statuses(other.jobs("pos", CRF, context), other.log("pos"))
    assert (listed.title, listed.state, listed.detail) == (TITLE, "differs", str(error.value))
    elsewhere = experiment_set(done, pos={"training": {"epochs": 2, "batch": 64, "log_every": 7}})
    assert messages(run(done, elsewhere, "pos", CRF)) == [("done", done_text(done))]


def test_a_folder_with_another_run_is_refused(tmp_path):
    events = work_until(tmp_path, lambda event: isinstance(event, Epoch))
    assert isinstance(events[-1], Epoch)
    other = experiment_set(tmp_path, pos={"training": {"epochs": 3, "batch": 64, "device": "cpu"}})
    with pytest.raises(
        ExperimentError, match=r"epochs = 2, but now training\.epochs = 3; to resume"
    ):
        run(tmp_path, other, "pos", CRF)


# ---------------------------------------------------------------------------------- interruptions


def work_until(folder: Path, stop: Any) -> list[Any]:
    """Run jobs until an event satisfies the condition; return the events so far."""
    from reproduction import run_jobs

    which = experiment_set(folder)
    context = RunContext(which.experiments, SAMPLES, folder / "runs", "cpu")
    found = []
    generator = run_jobs(which.jobs("pos", CRF, context), which.log("pos"))
    for event in generator:
        found.append(event)
        if stop(event):
            break
    generator.close()
    return found


def same(one: dict[str, Any], other: dict[str, Any]) -> bool:
    """Return whether two rows have the same results."""
    parts = ("evaluations", "config", "files")
    numbers = ("loss", "dev", "best_epoch")
    return all(one[part] == other[part] for part in parts) and all(
        one["training"][name] == other["training"][name] for name in numbers
    )


def test_a_stopped_run_is_continued(tmp_path, finished):
    work_until(tmp_path, lambda event: isinstance(event, Epoch))
    assert experiment_set(tmp_path).log("pos").rows() == []
    events = run(tmp_path, experiment_set(tmp_path), "pos", CRF)
    assert [e.first_epoch for e in events if isinstance(e, Started)] == [2]
    assert [e.epoch for e in events if isinstance(e, Epoch)] == [2]
    assert same(only_row(tmp_path), only_row(finished))


def test_a_run_that_was_stopped_before_its_evaluation_is_only_evaluated(tmp_path, finished):
    work_until(tmp_path, lambda event: isinstance(event, Finished))
    assert experiment_set(tmp_path).log("pos").rows() == []
    events = run(tmp_path, experiment_set(tmp_path), "pos", CRF)
    assert [e for e in events if isinstance(e, Epoch)] == []
    assert same(only_row(tmp_path), only_row(finished))


def test_decoders_that_are_added_later_are_evaluated_without_training(done):
    wider = experiment_set(done, pos={"decoders": ["viterbi", "bregman-K", "bregman-K-relaxed"]})
    before = only_row(done)
    events = run(done, wider, "pos", CRF)
    assert messages(events) == [("begun", TITLE), ("done", done_text(done))]
    assert len(events) == 2
    log = experiment_set(done).log("pos")
    assert len(log.rows()) == 2
    merged = find_row(log, {"seed": 0})
    added = {"bregman-5-relaxed", "bregman-10-relaxed"}
    decoders = merged["evaluations"]["test"]["decoders"]
    assert set(decoders) == set(before["evaluations"]["test"]["decoders"]) | added
    tagger = Tagger.load(done / "runs" / "pos" / "english-0" / "crf-0")
    expected = tagger.evaluate(SAMPLES / "english-dev.conllu", "bregman-5-relaxed").score
    assert decoders["bregman-5-relaxed"]["score"] == pytest.approx(expected, abs=1e-6)
    assert run(done, wider, "pos", CRF) == [JobMessage("done", done_text(done))]


def test_decoders_cannot_be_added_to_a_model_that_is_gone(done):
    shutil.rmtree(done / "runs")
    wider = experiment_set(done, pos={"decoders": ["viterbi", "bregman-K-relaxed"]})
    ((kind, text),) = messages(run(done, wider, "pos", CRF))
    assert kind == "skipped"
    assert "was not evaluated with bregman-5-relaxed, bregman-10-relaxed, and " in text


def test_runs_of_other_processes_are_skipped(tmp_path):
    folder = tmp_path / "runs" / "pos" / "english-0" / "crf-0"
    folder.mkdir(parents=True)
    with hold_lock(folder / ".lock", wait=False):
        found = messages(run(tmp_path, experiment_set(tmp_path), "pos", CRF))
    assert found == [("skipped", f"{TITLE}: another process works on this run")]


def test_a_run_that_diverges_does_not_stop_the_others(tmp_path):
    wild = experiment_set(tmp_path, pos={"optimizer": {"learning_rate": 1e30}})
    chosen = Selection(("english",), seeds=(0,), objectives=("crf", "bregman"))
    found = messages(run(tmp_path, wild, "pos", chosen))
    assert [kind for kind, _ in found] == ["begun", "failed", "begun", "failed"]
    assert "training diverges" in found[1][1]
    assert wild.log("pos").rows() == []


def test_an_encoder_that_cannot_be_loaded_is_skipped(tmp_path, monkeypatch):
    monkeypatch.setenv("HF_HUB_OFFLINE", "1")
    network = {"0": {"model": {"pretrained": str(tmp_path / "nowhere")}}}
    which = experiment_set(tmp_path, pos={"networks": network, "model": {}})
    found = messages(run(tmp_path, which, "pos", CRF))
    assert [kind for kind, _ in found] == ["begun", "skipped"]
    assert f"{TITLE}: pretrained: cannot load '{tmp_path}/nowhere'" in found[1][1]


def test_the_option_pretrained_sets_the_encoder(tmp_path):
    which = experiment_set(tmp_path, pos={"model": {}})
    context = RunContext(which.experiments, SAMPLES, tmp_path, "cpu", {"0": "somewhere/my-encoder"})
    (job,) = which.jobs("pos", CRF, context)
    assert job.config.model.pretrained == "somewhere/my-encoder"
    assert job.config.optimizer.learning_rate == 0.02


# ----------------------------------------------------------------------------------- what is done


def test_job_statuses_are_done_begun_or_missing(done):
    which = experiment_set(done)
    context = RunContext(which.experiments, SAMPLES, done / "runs", "cpu")
    other = Selection(("english",), objectives=("bregman",), seeds=(0,))
    jobs = list(which.jobs("pos", Selection(objectives=("crf", "bregman"), seeds=(0,)), context))
    (bregman,) = which.jobs("pos", other, context)
    bregman.folder.mkdir(parents=True)
    epoch = json.dumps({"event": "epoch", "epoch": 1})
    (bregman.folder / "metrics.jsonl").write_text(f"{epoch}\n{epoch[:5]}")
    found = [(one.title, one.state, one.detail) for one in job_statuses(jobs, which.log("pos"))]
    missing = f"there is no tlh-train.conllu, no tlh-dev.conllu, no tlh or tlh2 under {SAMPLES}"
    assert found == [
        (TITLE, "done", done_text(done).removeprefix(f"{TITLE}: ")),
        ("pos english 0 bregman seed 0", "begun", "1 epoch"),
        ("pos klingon 0 crf seed 0", "missing", missing),
        ("pos klingon 0 bregman seed 0", "missing", missing),
    ]


@pytest.mark.filterwarnings("ignore:.*score on dev is 0.00")
def test_variants_are_trained_on_their_reading(tmp_path):
    which = experiment_set(tmp_path, partial={"objectives": ["crf"], "seeds": [0]})
    events = run(tmp_path, which, "partial")
    assert [e.kind for e in events if isinstance(e, JobMessage)] == ["begun", "done"] * 2
    rows = which.log("partial").rows()
    assert [row["variant"] for row in rows] == ["exclusive", "literal"]
    assert [row["config"]["data"]["partial_reading"] for row in rows] == ["exclusive", "literal"]
    assert all(row["config"]["data"]["partial"] for row in rows)
    assert rows[0]["training"]["loss"] != rows[1]["training"]["loss"]
