"""The comparison of taggers: corpora, the log, errors and the page. No other library is needed."""

from __future__ import annotations

import json
import sys
from dataclasses import replace
from pathlib import Path
from typing import Any

import pytest

from benchmarks.log import BenchmarkLog, Row
from benchmarks.taggers import __main__ as command
from benchmarks.taggers import install, report, run
from benchmarks.taggers.corpora import CORPORA, TaggerData, read_corpus
from benchmarks.taggers.job import TaggerJob
from benchmarks.taggers.systems import SYSTEMS, TaggerSystem

ROOT = Path(__file__).parents[2]

WORDS = [("Ada", "PROPN"), ("sings", "VERB"), (".", "PUNCT")]
CONLLU = "".join(
    f"{i}\t{word}\t_\t{tag}" + "\t_" * 6 + "\n" for i, (word, tag) in enumerate(WORDS, 1)
)
MENTIONS = "Ada\tB-person\nLovelace\tI-person\nsings\tO\n"

# An adapter that learns nothing; it is imported by the process that runs a stage.
TRAINED = {
    "seconds": 60.0,
    "cpu_seconds": 50.0,
    "curve": [[10.0, 0.5, 1, 9.0], [20.0, 0.9, 2, 18.0], [30.0, 0.9, 3, 27.0]],
    "memory": 200_000_000,
    "bytes": 5_000_000,
}


def write_corpora(folder: Path) -> Path:
    for part in ("train", "dev", "test"):
        (folder / f"en_ewt-ud-{part}.conllu").write_text(f"{CONLLU}\n{CONLLU}\n")
        (folder / "wnut17").mkdir(exist_ok=True)
        (folder / "wnut17" / f"{part}.conll").write_text(f"{MENTIONS}\n")
    return folder


@pytest.fixture
def data(tmp_path: Path) -> TaggerData:
    return read_corpus("en_ewt", write_corpora(tmp_path))


def fake_stage(tags: list[list[str]]) -> Any:
    """Return a function in place of `run_stage`, whose tagger gives these tags."""

    def stage(python: str, name: str, folder: Path, threads: int, limit: float) -> Row:
        job = TaggerJob.read(folder)
        assert [words for words, _ in job.sentences("test")] == [["Ada", "sings", "."]] * 2
        tagging = {"seconds": [0.5, 0.4, 0.6], "cpu_seconds": [0.4] * 3, "memory": 10**8}
        answers = {"train": TRAINED, "tag": {**tagging, "tags": tags}, "start": {"finished": 2e9}}
        return dict(answers[name])

    return stage


def measured(system: str, corpus: str = "en_ewt", **values: Any) -> Row:
    """Return a synthetic row of the log."""
    row: Row = {
        "run": "r",
        "row": "tagger",
        "commit": "abc",
        "command": "python -m benchmarks.taggers",
        "system": system,
        "corpus": corpus,
        "seed": 0,
        "threads": 1,
        "version": "1.0",
        "machine": {"cpu": "a processor", "cores": 2},
        "software": {"python": "3.11", "torch": "2.13"},
        "test": {"score": 0.95},
        "training": TRAINED,
        "tagging": {"cpu_seconds": [0.5], "tokens": 10_000, "memory": 10**8},
        "startup": [1.0, 2.0, 3.0],
        "loads": [0.1, 0.9, None],
    }
    return {**row, **values}


# ----------------------------------------------------------------------------------------- corpora


def test_corpora_are_found_anywhere_below_the_folder(tmp_path: Path) -> None:
    (tmp_path / "ud").mkdir()
    write_corpora(tmp_path / "ud")
    data = read_corpus("wnut17", tmp_path)
    assert data.sentences()["dev"] == [
        (["Ada", "Lovelace", "sings"], ["B-person", "I-person", "O"])
    ]
    assert data.test_scores([["B-person", "O", "O"]])["score"] == 0.0
    assert data.test_scores([["B-person", "I-person", "O"]])["score"] == 1.0


def test_tags_of_another_length_are_an_error(data: TaggerData) -> None:
    with pytest.raises(ValueError, match="shorter"):
        data.test_scores([["PROPN", "VERB", "PUNCT"]])
    with pytest.raises(ValueError, match="argument"):
        data.test_scores([["PROPN"], ["PROPN"]])


@pytest.mark.parametrize(
    ("name", "content", "message"),
    [
        ("en_ewt-ud-dev.conllu", "1\tAda\n\n", r"en_ewt-ud-dev\.conllu:1: "),
        ("en_ewt-ud-test.conllu", CONLLU.replace("VERB", "_"), r"en_ewt-ud-test\.conllu:2: .*upos"),
        ("wnut17/train.conll", "Ada\tI-person\nsings\tB-\n\n", r"train\.conll:2: "),
        ("wnut17/train.conll", None, r"wnut17: there is no wnut17/train\.conll under"),
    ],
)
def test_faults_in_the_data_are_reported_before_any_training(
    tmp_path: Path, name: str, content: str | None, message: str, monkeypatch: pytest.MonkeyPatch
) -> None:
    path = write_corpora(tmp_path) / name
    path.unlink() if content is None else path.write_text(content)
    monkeypatch.setattr(run, "run_stage", pytest.fail)
    with pytest.raises(SystemExit, match=message):
        command.main(["--data", str(tmp_path), "--log", str(tmp_path / "log.jsonl")])
    assert not (tmp_path / "log.jsonl").exists()


def test_the_command_line_needs_a_folder(capsys: pytest.CaptureFixture[str]) -> None:
    with pytest.raises(SystemExit):
        command.main(["--seeds", "1"])
    assert "--data DIR is required" in capsys.readouterr().err


# --------------------------------------------------------------------------------------------- log


def test_finished_rows_are_not_repeated(
    tmp_path: Path, data: TaggerData, monkeypatch: pytest.MonkeyPatch
) -> None:
    tags = [["PROPN", "VERB", "PUNCT"], ["PROPN", "NOUN", "PUNCT"]]
    monkeypatch.setattr(run, "run_stage", fake_stage(tags))
    monkeypatch.setattr(TaggerSystem, "version", lambda self: "1.0")
    log = BenchmarkLog(tmp_path / "log.jsonl", "benchmarks.taggers")
    plan = run.Plan(["bcrf", "spaCy"], ["en_ewt"], [0])
    first = list(run.measure(log, plan, {"en_ewt": data}))
    assert [row["system"] for row in first] == ["bcrf", "spaCy"]
    assert first[0]["test"]["score"] == pytest.approx(5 / 6)
    assert "tags" not in first[0]["tagging"]
    assert list(run.measure(log, plan, {"en_ewt": data})) == []
    more = replace(plan, seeds=[0, 1])
    assert [row["seed"] for row in run.measure(log, more, {"en_ewt": data})] == [1, 1]
    assert len(list(run.measure(log, replace(plan, again=True), {"en_ewt": data}))) == 2
    logged = log.rows()
    assert len(logged) == 6
    about = {"run", "row", "commit", "command", "machine", "software", "version", "files", "loads"}
    assert all(about <= row.keys() for row in logged)
    assert str(tmp_path) not in (tmp_path / "log.jsonl").read_text()


def test_our_tagger_is_trained_and_measured(
    tmp_path: Path, data: TaggerData, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(run, "STARTS", 1)
    log = BenchmarkLog(tmp_path / "log.jsonl", "benchmarks.taggers")
    plan = run.Plan(["bcrf"], ["en_ewt"], [0], keep=tmp_path / "kept")
    (row,) = run.measure(log, plan, {"en_ewt": data})
    assert "error" not in row, row["error"]
    assert row["test"]["score"] == 1.0  # the test file is the training file
    assert row["test"]["tokens"] == row["tagging"]["tokens"] == 6
    assert row["training"]["bytes"] > 10_000
    assert min(row["training"]["memory"], row["tagging"]["memory"]) > 10_000_000
    assert 0 < row["startup"][0] < 100
    best, seconds = report.best_on_dev(row)
    assert best == 1.0
    assert 0 < seconds <= row["training"]["cpu_seconds"]
    (kept,) = (tmp_path / "kept").iterdir()
    assert (kept / "run" / "best").is_dir()
    assert "| bcrf | 1 | 100.00 | 100.00 |" in report.render(log.rows())


def test_characters_are_given_to_a_segmenter(tmp_path: Path) -> None:
    for part in ("train", "dev", "test"):
        text = f"# text = Ada sings .\n{CONLLU}\n"
        (tmp_path / f"ja_gsd-ud-{part}.conllu").write_text(text)
    data = read_corpus("ja_gsd", tmp_path)
    ((given, labels),) = data.sentences()["test"]
    assert "".join(given) == "Ada sings ."
    assert labels[:3] == ["B-PROPN", "I-PROPN", "E-PROPN"]
    assert len(labels) == data.test_tokens == 9
    assert data.test_scores([labels])["score"] == 1.0


def test_a_tagger_that_cannot_learn_the_task_is_left_out(tmp_path: Path, data: TaggerData) -> None:
    log = BenchmarkLog(tmp_path / "log.jsonl", "benchmarks.taggers")
    plan = run.Plan(["spaCy", "flair", "stanza"], ["ja_gsd"], [0])
    assert list(run.measure(log, plan, {"ja_gsd": data})) == []


def test_a_missing_library_is_an_error_row_that_is_tried_again(
    tmp_path: Path, data: TaggerData, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(TaggerSystem, "version", lambda self: None)
    monkeypatch.setattr(run, "ERRORS", tmp_path / "errors.json")
    log = BenchmarkLog(tmp_path / "log.jsonl", "benchmarks.taggers")
    plan = run.Plan(["spaCy"], ["en_ewt"], [0])
    (row,) = run.measure(log, plan, {"en_ewt": data})
    assert row["error"].startswith("spacy is not installed: run `python -m benchmarks.taggers.ins")
    (tmp_path / "errors.json").write_text(json.dumps({"spacy": "no wheel"}))
    (row,) = run.measure(log, plan, {"en_ewt": data})
    assert row["error"] == "spacy is not installed: no wheel"
    assert "spaCy, seed 0, was not measured: spacy is not installed: no wheel." in report.render(
        log.rows()
    )


def test_wrong_tags_are_an_error_row(
    tmp_path: Path, data: TaggerData, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(run, "run_stage", fake_stage([["PROPN"]]))
    monkeypatch.setattr(TaggerSystem, "version", lambda self: "1.0")
    log = BenchmarkLog(tmp_path / "log.jsonl", "benchmarks.taggers")
    (row,) = run.measure(log, run.Plan(["spaCy"], ["en_ewt"], [0]), {"en_ewt": data})
    assert row["error"].startswith("the tags do not fit the test sentences: ")


def save_job(folder: Path, adapter: str = "no_such_adapter") -> Path:
    pairs = [(["Ada", "sings"], ["PROPN", "VERB"])]
    job = TaggerJob(folder, adapter, "pos", "en", 0, 1, {})
    job.save({"train": pairs, "dev": pairs, "test": pairs})
    return folder


def test_a_stage_that_fails_gives_the_last_line_of_its_output(tmp_path: Path) -> None:
    with pytest.raises(run.StageError, match=r"^start: ModuleNotFoundError: .*no_such_adapter"):
        run.run_stage(sys.executable, "start", save_job(tmp_path), 1, 60)


def test_a_stage_is_stopped_at_the_limit(tmp_path: Path) -> None:
    with pytest.raises(run.StageError, match=r"^train: stopped after 0 s$"):
        run.run_stage(sys.executable, "train", save_job(tmp_path), 1, 0.01)


def test_a_corrupt_log_is_named(tmp_path: Path) -> None:
    (tmp_path / "log.jsonl").write_text("{}\nno JSON\n")
    arguments = ["--report", "--log", str(tmp_path / "log.jsonl"), "--page", str(tmp_path / "p.md")]
    with pytest.raises(SystemExit, match=r"log\.jsonl:2: expected JSON"):
        command.main(arguments)
    (tmp_path / "log.jsonl").unlink()
    with pytest.raises(SystemExit, match="has no rows"):
        command.main(arguments)


def test_libraries_are_pinned() -> None:
    assert set(install.LIBRARIES) == {s.package for s in SYSTEMS.values()} - {"bcrf"}
    for steps in install.LIBRARIES.values():
        assert all("==" in step for words in steps for step in words)
    missing = TaggerSystem("flair_tagger", "flair", "", environment=".venv-none")
    assert missing.version() is None


# -------------------------------------------------------------------------------------------- page


def test_the_page_has_means_and_names_losses() -> None:
    faster = {"cpu_seconds": [0.25], "tokens": 10_000, "memory": 10**8}
    rows = [
        measured("bcrf", test={"score": 0.95}),
        measured("bcrf", seed=1, test={"score": 0.97}),
        measured("spaCy", tagging=faster),
        measured("spaCy", corpus="wnut17", error="OSError: no space"),
    ]
    page = report.render(rows)
    assert "| bcrf | 2 | 96.00 ± 1.41 | 90.00 ± 0.00 | 50 s | 18 s | 20,000 |" in page
    assert "**bcrf is worse than spaCy** in: tokens per second (20,000 against 40,000)." in page
    assert "WNUT-17" in page
    assert "spaCy, seed 0, was not measured: OSError: no space." in page
    assert "The load average was between 0.1 and 0.9 on 2 cores." in page


def test_a_tie_in_the_shown_digits_is_no_loss() -> None:
    systems = {
        "bcrf": [measured("bcrf", test={"score": 0.95001})],
        "spaCy": [measured("spaCy", test={"score": 0.95004})],
    }
    text = "bcrf is not worse than spaCy in any of these numbers."
    assert list(report.losses(systems)) == [text]


def test_a_busy_machine_is_said_to_be_busy() -> None:
    assert "other programs were running" in report.render([measured("bcrf", loads=[9.5, 3.0])])


def test_the_last_row_counts() -> None:
    rows = [measured("bcrf", test={"score": 0.9}), measured("bcrf", test={"score": 0.8})]
    assert report.render(rows).count("| bcrf | 1 | 80.00 |") == 1
    late_error = [*rows, measured("bcrf", error="stopped")]
    assert "was not measured" not in report.render(late_error)


def test_the_page_is_that_of_the_log() -> None:
    rows = BenchmarkLog(command.LOG).rows()
    assert rows
    assert report.render(rows) == command.PAGE.read_text(encoding="utf-8")
    assert {row["corpus"] for row in rows} <= set(CORPORA)
