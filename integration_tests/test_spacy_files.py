"""Pipelines with components of bcrf.spacy are saved, loaded, packaged and sent to processes."""

from __future__ import annotations

import multiprocessing
import os
import shutil
import subprocess
import sys
import textwrap
import warnings
from pathlib import Path

import pytest
import spacy
import srsly

from bcrf.spacy.pipeline_model import PipelineModel
from bcrf.tagger import ModelError

TEXTS = ["The ferry from Piraeus to Naxos was delayed.", "Maria lives in Turin.", "", "No."]
CHINESE = ["我昨天买了两个包子。", "今天早上"]


def annotations(docs: list[spacy.tokens.Doc]) -> list[object]:
    return [
        (
            [(t.text, t.pos_, t._.tag_probability) for t in doc],
            [(e.text, e.label_, e._.probability) for e in doc.ents],
        )
        for doc in docs
    ]


@pytest.fixture
def nlp(models: Path, tmp_path: Path) -> spacy.Language:
    """A pipeline whose models are in `tmp_path/runs`, so that tests can remove them."""
    shutil.copytree(models / "runs", tmp_path / "runs")
    nlp = spacy.blank("en")
    nlp.add_pipe("bcrf_tagger", config={"model": str(tmp_path / "runs/pos")})
    nlp.add_pipe("bcrf_ner", config={"model": str(tmp_path / "runs/ner")})
    return nlp


@pytest.fixture
def chinese(models: Path) -> spacy.Language:
    tokenizer = {"@tokenizers": "bcrf_segmenter", "model": str(models / "runs/zh")}
    return spacy.blank("zh", config={"nlp": {"tokenizer": tokenizer}})


def test_a_saved_pipeline_has_its_own_models(nlp: spacy.Language, tmp_path: Path) -> None:
    expected = annotations(list(nlp.pipe(TEXTS)))
    nlp.to_disk(tmp_path / "saved")
    shutil.rmtree(tmp_path / "runs")
    (tmp_path / "saved").rename(tmp_path / "moved")
    loaded = spacy.load(tmp_path / "moved")
    assert annotations(list(loaded.pipe(TEXTS))) == expected
    loaded.to_disk(tmp_path / "again")  # a loaded pipeline can be saved, too
    assert annotations(list(spacy.load(tmp_path / "again").pipe(TEXTS))) == expected


def test_the_original_model_is_not_read_again(nlp: spacy.Language, tmp_path: Path) -> None:
    """It may have become another model, which the saved pipeline must not notice."""
    nlp.to_disk(tmp_path / "saved")
    shutil.rmtree(tmp_path / "runs/pos")
    (tmp_path / "runs/ner").rename(tmp_path / "runs/pos")
    assert annotations([spacy.load(tmp_path / "saved")(TEXTS[0])]) == annotations([nlp(TEXTS[0])])


def test_the_folder_of_a_component_is_the_folder_of_a_model(
    nlp: spacy.Language, tmp_path: Path
) -> None:
    nlp.to_disk(tmp_path / "saved")
    nlp.to_disk(tmp_path / "saved")  # replaces the models
    files = sorted(path.name for path in (tmp_path / "saved/bcrf_ner").iterdir())
    assert files == ["model.json", "model.safetensors"]
    hidden = [path for path in (tmp_path / "saved").iterdir() if path.name.startswith(".")]
    assert not hidden  # no lock, no temporary folder


def test_a_failed_save_leaves_the_old_model(
    nlp: spacy.Language, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    nlp.to_disk(tmp_path / "saved")
    tagger = nlp.get_pipe("bcrf_tagger").model.tagger

    def fail(folder: Path, storage: str) -> None:
        (folder / "model.safetensors").write_bytes(b"half")
        raise OSError(28, "No space left on device")

    monkeypatch.setattr(tagger, "write", fail)
    with pytest.raises(OSError, match="cannot save the model"):
        nlp.to_disk(tmp_path / "saved")
    monkeypatch.undo()
    assert annotations([spacy.load(tmp_path / "saved")(TEXTS[0])]) == annotations([nlp(TEXTS[0])])


def test_a_saved_pipeline_without_its_model_is_an_error(
    nlp: spacy.Language, tmp_path: Path
) -> None:
    nlp.to_disk(tmp_path / "saved")
    shutil.rmtree(tmp_path / "saved/bcrf_ner")
    with pytest.raises(ModelError, match=r"saved/bcrf_ner: there is no such folder"):
        spacy.load(tmp_path / "saved")
    shutil.copytree(tmp_path / "saved/bcrf_tagger", tmp_path / "saved/bcrf_ner")
    with pytest.raises(ModelError, match="task pos; bcrf_ner needs one of ner"):
        spacy.load(tmp_path / "saved")


def test_a_damaged_model_is_an_error(nlp: spacy.Language, tmp_path: Path) -> None:
    nlp.to_disk(tmp_path / "saved")
    path = tmp_path / "saved/bcrf_ner/model.safetensors"
    content = bytearray(path.read_bytes())
    content[-1] ^= 1
    path.write_bytes(content)
    with pytest.raises(ModelError, match=r"model\.safetensors"):
        spacy.load(tmp_path / "saved")


def test_the_tokenizer_is_saved(chinese: spacy.Language, tmp_path: Path) -> None:
    expected = annotations([chinese(text) for text in CHINESE])
    chinese.to_disk(tmp_path / "saved")
    loaded = spacy.load(tmp_path / "saved")
    assert annotations([loaded(text) for text in CHINESE]) == expected


def test_bytes(nlp: spacy.Language, chinese: spacy.Language, tmp_path: Path) -> None:
    for pipeline, texts in ((nlp, TEXTS), (chinese, CHINESE)):
        expected = annotations(list(pipeline.pipe(texts)))
        content, config = pipeline.to_bytes(), pipeline.config
        shutil.rmtree(tmp_path / "runs", ignore_errors=True)
        other = type(pipeline).from_config(config).from_bytes(content)
        assert annotations(list(other.pipe(texts))) == expected


def test_a_pipeline_from_a_config_loads_its_models_when_needed(nlp: spacy.Language) -> None:
    other = type(nlp).from_config(nlp.config)
    assert not other.get_pipe("bcrf_tagger").model.is_loaded
    assert other.pipe_labels["bcrf_tagger"] == []
    other.initialize()
    assert other.get_pipe("bcrf_tagger").model.is_loaded
    assert annotations([other(TEXTS[0])]) == annotations([nlp(TEXTS[0])])


@pytest.mark.parametrize("kind", [bytes, bytearray, lambda b: memoryview(b).toreadonly()])
def test_buffers_may_be_read_only(nlp: spacy.Language, kind: type) -> None:
    expected = annotations([nlp(TEXTS[0])])
    tagger = nlp.get_pipe("bcrf_tagger")
    with warnings.catch_warnings():
        warnings.simplefilter("error")
        tagger.from_bytes(kind(tagger.to_bytes()))
    assert annotations([nlp(TEXTS[0])]) == expected


@pytest.mark.parametrize(
    ("content", "message"),
    [
        (b"\xc1", "not MessagePack"),
        (b"", "not MessagePack"),
        (srsly.msgpack_dumps([1]), "expected a table of files, got list"),
        (srsly.msgpack_dumps({"../model.json": b""}), r"'../model.json' is not the name"),
        (srsly.msgpack_dumps({"/etc/model.json": b""}), "is not the name"),
        (srsly.msgpack_dumps({"model.json": 1}), "is not the name"),
        (srsly.msgpack_dumps({"a": b"", "a/b": b""}), "'a' is a file and a folder"),
        (srsly.msgpack_dumps({}), "the bytes: holds no model"),
        (srsly.msgpack_dumps({"model.json": b"{"}), "the bytes/model.json: is damaged"),
    ],
)
def test_damaged_bytes_are_errors(nlp: spacy.Language, content: bytes, message: str) -> None:
    tagger = nlp.get_pipe("bcrf_tagger")
    with pytest.raises(ModelError, match=message):
        tagger.from_bytes(content)
    assert nlp(TEXTS[0])[0].pos_ == "DET"  # the model in memory stays


def test_a_model_that_cannot_be_written_elsewhere_can_be_loaded(
    nlp: spacy.Language, tmp_path: Path
) -> None:
    """An installed pipeline may be in a folder that its users cannot write to."""
    nlp.to_disk(tmp_path / "saved")
    before = sorted((path, path.stat().st_mtime_ns) for path in (tmp_path / "saved").rglob("*"))
    expected = annotations([nlp(TEXTS[0])])
    assert annotations([spacy.load(tmp_path / "saved")(TEXTS[0])]) == expected
    after = sorted((path, path.stat().st_mtime_ns) for path in (tmp_path / "saved").rglob("*"))
    assert after == before


# Processes


def test_two_processes_give_the_same_annotations(
    nlp: spacy.Language, chinese: spacy.Language
) -> None:
    for pipeline, texts in ((nlp, TEXTS), (chinese, CHINESE)):
        expected = annotations(list(pipeline.pipe(texts * 5, batch_size=3)))
        found = pipeline.pipe(texts * 5, n_process=2, batch_size=3)
        assert annotations(list(found)) == expected


@pytest.mark.skipif(not hasattr(os, "fork"), reason="the system has no fork")
def test_forked_processes_do_not_wait_for_threads(nlp: spacy.Language, tmp_path: Path) -> None:
    """The threads of OpenMP, started before the fork, do not exist in the new process."""
    nlp.to_disk(tmp_path / "saved")
    program = f"""
        import multiprocessing, spacy, torch
        multiprocessing.set_start_method("fork")
        torch.set_num_threads(2)
        nlp = spacy.load({str(tmp_path / "saved")!r})
        texts = ["The ferry from Piraeus to Naxos was delayed. " * 5] * 200
        one = [[t.pos_ for t in doc] for doc in nlp.pipe(texts)]
        two = [[t.pos_ for t in doc] for doc in nlp.pipe(texts, n_process=2, batch_size=50)]
        print(one == two, torch.get_num_threads())
    """
    command = [sys.executable, "-c", textwrap.dedent(program)]
    environment = {**os.environ, "OMP_NUM_THREADS": "2"}
    done = subprocess.run(command, capture_output=True, text=True, timeout=180, env=environment)
    assert done.stdout.strip() == "True 2", done.stderr


def test_spawned_processes_get_the_model_without_its_folder(
    nlp: spacy.Language, tmp_path: Path
) -> None:
    """Where processes are not forked, components are pickled: as files, not as objects."""
    shutil.rmtree(tmp_path / "runs")
    model: PipelineModel = nlp.get_pipe("bcrf_tagger").model
    with multiprocessing.get_context("spawn").Pool(1) as pool:
        (tagged,) = pool.apply(tags_in_process, (model,))
    assert tagged == ("DET", "NOUN")


def tags_in_process(model: PipelineModel) -> list[tuple[str, ...]]:
    return [tagged.tags for tagged in model.tagger.tag([["The", "ferry"]])]


# Packages


def test_packaged_pipeline(nlp: spacy.Language, tmp_path: Path) -> None:
    expected = annotations([nlp(TEXTS[0])])
    nlp.meta.update(name="demo", version="1.0.0")
    nlp.to_disk(tmp_path / "saved")
    shutil.rmtree(tmp_path / "runs")
    (tmp_path / "package").mkdir()
    command = [sys.executable, "-m", "spacy", "package", "saved", "package", "--build", "none"]
    done = subprocess.run(command, capture_output=True, text=True, cwd=tmp_path)
    assert done.returncode == 0, done.stdout + done.stderr
    (place,) = (tmp_path / "package").glob("en_demo-1.0.0")
    install = ["-m", "pip", "install", "-q", "--no-deps", "--no-build-isolation", "--no-index"]
    subprocess.run(
        [sys.executable, *install, "--target", tmp_path / "installed", place], check=True
    )
    sys.path.insert(0, str(tmp_path / "installed"))
    try:
        assert annotations([__import__("en_demo").load()(TEXTS[0])]) == expected
    finally:
        sys.path.remove(str(tmp_path / "installed"))
