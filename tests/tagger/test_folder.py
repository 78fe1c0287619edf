"""Model folders: saving and loading, atomic replacement, and errors for damaged files."""

import json
import os
import shutil
import subprocess
import sys
from pathlib import Path

import pytest
import torch

import bcrf
from bcrf.tagger import ModelError, Tagger
from bcrf.tagger.files import current_path, recover, replace_folder
from bcrf.tagger.model_folder.description import VERSION
from tests.tagger_cases import Change, pairs, trained, weights_equal

ROOT = Path(__file__).resolve().parents[2]


@pytest.fixture(scope="module")
def tagger(tmp_path_factory) -> Tagger:
    changes = {"characters": "cnn", "character_width": 4, "objective": "bregman"}
    return trained(tmp_path_factory.mktemp("pos"), model=changes, training={"epochs": 6})


def words(task: str = "pos") -> list[list[str]]:
    return [[word for word, _ in sentence] for sentence in pairs(task)]


# ------------------------------------------------------------------------------ saving and loading


def test_the_tagger_is_part_of_the_library():
    assert bcrf.Tagger is Tagger
    assert "Tagger" in bcrf.__all__
    with pytest.raises(AttributeError, match="module 'bcrf' has no attribute 'Taggre'"):
        _ = bcrf.Taggre


def test_save_and_load_round_trip(tagger, tmp_path):
    tagger.save(tmp_path / "model")
    again = Tagger.load(str(tmp_path / "model"))
    assert weights_equal(again, tagger)
    assert again.task == tagger.task
    assert again.vocabularies == tagger.vocabularies
    assert again.info == tagger.info
    assert (again.decoder, again.repair) == (tagger.decoder, tagger.repair)
    sentences = [*words(), ["unheard", "of"], []]
    found = again.tag(sentences, probabilities=True)
    assert [(t.tags, t.probabilities) for t in found] == [
        (t.tags, t.probabilities) for t in tagger.tag(sentences, probabilities=True)
    ]
    assert sorted(p.name for p in (tmp_path / "model").iterdir()) == [
        "model.json",
        "model.safetensors",
    ]


@pytest.mark.parametrize("task", ["segmentation", "ner"])
def test_other_tasks_are_loaded_with_their_structure(tmp_path, task):
    first = trained(tmp_path, task, training={"epochs": 1})
    first.save(tmp_path / "copy")
    again = Tagger.load(tmp_path / "copy")
    assert again.task == first.task
    assert weights_equal(again, first)


def test_repr_of_a_tagger(tagger, tmp_path):
    tagger.save(tmp_path)
    values = json.loads((tmp_path / "model.json").read_text(encoding="utf-8"))
    assert values["version"] == VERSION
    assert values["bcrf"] == bcrf.__version__
    assert values["task"]["labels"] == list(tagger.labels)
    assert values["model"]["objective"] == "bregman"
    assert values["info"]["config"]["training"]["epochs"] == 6
    assert values["files"].keys() == {"model.safetensors"}


def test_loading_does_not_change_the_random_state(tagger, tmp_path):
    tagger.save(tmp_path)
    before = torch.get_rng_state()
    Tagger.load(tmp_path)
    assert torch.equal(torch.get_rng_state(), before)


def test_devices(tagger, tmp_path):
    tagger.save(tmp_path)
    assert Tagger.load(tmp_path, device="cpu").device.type == "cpu"
    with pytest.raises(ValueError, match="device must be auto, cpu, cuda or cuda:N, got 'tpu9'"):
        Tagger.load(tmp_path, device="tpu9")
    with pytest.raises(TypeError, match="device must be a string"):
        Tagger.load(tmp_path, device=0)
    if not torch.cuda.is_available():
        with pytest.raises(ValueError, match="torch finds no GPU"):
            Tagger.load(tmp_path, device="cuda")


def test_a_missing_package_is_named(tagger, tmp_path, monkeypatch):
    tagger.save(tmp_path / "model")
    for name in ("safetensors", "safetensors.torch", "filelock"):
        monkeypatch.setitem(sys.modules, name, None)
    with pytest.raises(ImportError, match=r"safetensors.*pip install '\.\[tagger\]'"):
        Tagger.load(tmp_path / "model")
    with pytest.raises(ImportError, match=r"filelock: pip install '\.\[tagger\]'"):
        tagger.save(tmp_path / "other")
    assert not (tmp_path / "other").exists()


# ------------------------------------------------------------------------------------------- damage


def edit(**changes: object) -> Change:
    """Change values of model.json without updating its checksum."""

    def change(folder: Path) -> None:
        path = folder / "model.json"
        path.write_text(json.dumps(json.loads(path.read_text()) | changes))

    return change


def cut(name: str, size: int) -> Change:
    def change(folder: Path) -> None:
        content = (folder / name).read_bytes()
        (folder / name).write_bytes(content[:size])

    return change


def flip(name: str) -> Change:
    def change(folder: Path) -> None:
        content = bytearray((folder / name).read_bytes())
        content[-5] ^= 1
        (folder / name).write_bytes(bytes(content))

    return change


def retag(folder: Path) -> None:
    """Change a label; the file is still valid JSON, and every value has the right type."""
    path = folder / "model.json"
    path.write_text(path.read_text().replace('"NOUN"', '"VREB"'))


@pytest.mark.parametrize(
    ("change", "message"),
    [
        (
            cut("model.safetensors", 100),
            r"model\.safetensors: has been changed .* or damaged: .*header",
        ),
        (cut("model.safetensors", 0), r"model\.safetensors: has been changed"),
        (flip("model.safetensors"), r"model\.safetensors: has been changed .* SHA-256 is not"),
        (lambda folder: (folder / "model.safetensors").unlink(), r"model\.safetensors: is missing"),
        (cut("model.json", 200), r"model\.json: is damaged, not JSON"),
        (cut("model.json", 0), r"model\.json: is damaged, not JSON"),
        (lambda f: (f / "model.json").write_text("[]"), r"model\.json: .*expected a JSON object"),
        (lambda f: (f / "model.json").write_bytes(b"\xff"), r"model\.json: is damaged"),
        (lambda f: (f / "model.json").write_text("{}"), r"model\.json: does not describe a model"),
        (retag, r"model\.json: has been changed since it was written"),
        (edit(decoder="viterbi"), r"model\.json: has been changed since it was written"),
        (edit(version=VERSION + 1), rf"model\.json: has format version {VERSION + 1}, newer than"),
        (
            edit(version=VERSION - 1),
            rf"version {VERSION - 1}, older than {VERSION}.*train it again",
        ),
        (edit(version="one"), r"model\.json: expected the format version 1, found 'one'"),
        (lambda folder: (folder / "model.json").unlink(), "holds no model; expected model.json"),
    ],
)
def test_errors_name_the_damaged_file(tagger, tmp_path, change, message):
    tagger.save(tmp_path / "m")
    Tagger.load(tmp_path / "m")
    change(tmp_path / "m")
    with pytest.raises(ModelError, match=message):
        Tagger.load(tmp_path / "m")


def test_paths_without_a_model_are_errors(tmp_path):
    with pytest.raises(ModelError, match="nowhere: there is no such folder"):
        Tagger.load(tmp_path / "nowhere")
    (tmp_path / "file").write_text("")
    with pytest.raises(ModelError, match="file: expected the folder of a model, found a file"):
        Tagger.load(tmp_path / "file")


def test_a_model_of_another_library_is_refused(tagger, tmp_path, monkeypatch):
    """The checksums are right, but the weights do not fit the network."""
    tagger.save(tmp_path)
    load = torch.nn.Module.load_state_dict
    monkeypatch.setattr(
        torch.nn.Module, "load_state_dict", lambda self, state: load(self, {"other": torch.ones(1)})
    )
    with pytest.raises(ModelError, match=r"does not fit this version of bcrf: .*Missing key"):
        Tagger.load(tmp_path)


# ------------------------------------------------------------------------------ whole or not at all


def test_a_model_is_replaced(tagger, tmp_path):
    other = trained(tmp_path, "ner", training={"epochs": 1})
    other.save(tmp_path / "model")
    tagger.save(tmp_path / "model")
    assert Tagger.load(tmp_path / "model").task == tagger.task
    assert not list(tmp_path.glob(".model*"))


def test_folders_with_other_files_are_not_replaced(tagger, tmp_path):
    (tmp_path / "thesis.tex").write_text("precious")
    with pytest.raises(FileExistsError, match=r"files that do not belong to a model \(thesis\.tex"):
        tagger.save(tmp_path)
    (tmp_path / "file").write_text("")
    with pytest.raises(FileExistsError, match="is a file"):
        tagger.save(tmp_path / "file")
    tagger.save(tmp_path / "new" / "model")  # missing parent folders are created
    (tmp_path / "new" / "model" / "notes.txt").write_text("mine")
    with pytest.raises(FileExistsError, match=r"notes\.txt"):
        tagger.save(tmp_path / "new" / "model")
    assert (tmp_path / "thesis.tex").read_text() == "precious"


def fill(folder: Path, text: str, fail: bool = False) -> None:
    with replace_folder(folder) as fresh:
        (fresh / "file").write_text(text)
        assert not list(fresh.glob("other"))
        if fail:
            raise KeyboardInterrupt


def test_a_failure_leaves_the_old_folder(tmp_path):
    folder = tmp_path / "folder"
    fill(folder, "old")
    (folder / "other").write_text("")
    with pytest.raises(KeyboardInterrupt):
        fill(folder, "new", fail=True)
    assert (folder / "file").read_text() == "old"
    assert [p.name for p in tmp_path.iterdir()] == ["folder"]
    fill(folder, "new")
    assert [p.name for p in folder.iterdir()] == ["file"]
    assert (folder / "file").read_text() == "new"


KILLED = """
import os, signal, sys
from bcrf.tagger.files import atomic_folder
from bcrf.tagger.files.atomic_folder import replace_folder, os as module

atomic_folder._exchange = lambda one, other: False  # a system that needs two renames
moment = int(sys.argv[2])
rename, count = os.rename, 0
def rename_and_die(source, target):
    global count
    if count == moment:
        os.kill(os.getpid(), signal.SIGKILL)
    count += 1
    rename(source, target)
module.rename = rename_and_die
with replace_folder(sys.argv[1]) as fresh:
    (fresh / "file").write_text("new")
"""


@pytest.mark.slow
@pytest.mark.skipif(os.name != "posix", reason="needs SIGKILL")
@pytest.mark.parametrize("moment", [0, 1])
def test_a_killed_process_leaves_a_complete_folder(tmp_path, moment):
    folder = tmp_path / "a[b]"
    fill(folder, "old")
    command = [sys.executable, "-c", KILLED, str(folder), str(moment)]
    assert subprocess.run(command, cwd=ROOT).returncode < 0
    assert folder.exists() == (moment == 0)
    assert (current_path(folder) / "file").read_text() == "old"
    recover(folder)
    assert (folder / "file").read_text() == "old"
    assert [p.name for p in tmp_path.iterdir()] == ["a[b]"]


def test_a_model_under_its_temporary_name_is_found(tagger, tmp_path):
    tagger.save(tmp_path / "model")
    (tmp_path / "model").rename(tmp_path / ".model.old")
    assert weights_equal(Tagger.load(tmp_path / "model"), tagger)
    tagger.save(tmp_path / "model")
    assert [p.name for p in tmp_path.iterdir()] == ["model"]


@pytest.mark.skipif(os.name != "posix", reason="needs permissions and links")
def test_permissions_and_links(tmp_path):
    umask = os.umask(0o027)
    try:
        fill(tmp_path / "folder", "old")
    finally:
        os.umask(umask)
    assert (tmp_path / "folder").stat().st_mode & 0o777 == 0o750
    (tmp_path / "link").symlink_to(tmp_path / "folder")
    fill(tmp_path / "link", "new")
    assert (tmp_path / "link").is_symlink()
    assert (tmp_path / "folder" / "file").read_text() == "new"


def test_a_copied_folder_is_a_model(tagger, tmp_path):
    tagger.save(tmp_path / "model")
    shutil.copytree(tmp_path / "model", tmp_path / "elsewhere")
    shutil.rmtree(tmp_path / "model")
    assert weights_equal(Tagger.load(tmp_path / "elsewhere"), tagger)
