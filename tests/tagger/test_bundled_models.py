"""The models that come with the package: names, sizes, licences, and what they do."""

from __future__ import annotations

import json
from pathlib import Path

import pytest

import bcrf
from bcrf.cli import main
from bcrf.tagger import ModelError, Tagged, Tagger, Tokenizer, bundled_models
from bcrf.tagger.model_folder.bundled import BUNDLED_FOLDER, DEFAULT_MODEL, bundled_folder
from bundled_models.building import MOST_LOSS
from bundled_models.recipes import RECIPES

ROOT = Path(__file__).resolve().parents[2]

TEXT = "Ada visited Turin again. She didn't stay."
WORDS = [["Ada", "visited", "Turin", "again", "."], ["She", "did", "n't", "stay", "."]]

MOST_BYTES = {"en": 6_000_000, "ja": 8_000_000}
LEAST_SCORES = {
    "en": {"sentences": 0.80, "words": 0.985, "tags": 0.95},
    "ja": {"words": 0.96, "words with tags": 0.945},
}


@pytest.fixture
def elsewhere(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Path:
    """An empty current folder."""
    monkeypatch.chdir(tmp_path)
    return tmp_path


@pytest.fixture(scope="module")
def english() -> Tagger:
    return bcrf.Tagger.load("en")


def words(found: list[Tagged]) -> list[list[str]]:
    return [list(tagged.words) for tagged in found]


# ------------------------------------------------------------------------------------- the folders


def test_there_is_a_folder_for_each_recipe():
    assert [model.name for model in bundled_models()] == sorted(RECIPES)
    names = {path.name for path in BUNDLED_FOLDER.iterdir()}
    assert names == {*RECIPES, "README.md", "LICENSE.txt"}


@pytest.mark.parametrize("name", RECIPES)
def test_size_scores_and_licence(name):
    model = {model.name: model for model in bundled_models()}[name]
    assert model.size <= MOST_BYTES[name]
    assert model.scores.keys() == LEAST_SCORES[name].keys()
    for score, least in LEAST_SCORES[name].items():
        assert model.scores[score] >= least
    assert model.licence == "CC BY-SA 4.0"
    assert (model.does, model.data) == (RECIPES[name].does, RECIPES[name].data)


@pytest.mark.parametrize("name", RECIPES)
def test_the_scores_are_those_of_the_last_row_of_the_log(name):
    rows = map(json.loads, (ROOT / "bundled_models" / "log.jsonl").read_text().splitlines())
    *_, last = (row for row in rows if row["model"] == name)
    model = {model.name: model for model in bundled_models()}[name]
    assert last["scores"] == model.scores
    assert last["bytes"] == model.size
    for score, before in last["scores_before"].items():
        assert last["scores"][score] >= before - MOST_LOSS


@pytest.mark.parametrize("name", RECIPES)
def test_no_path_of_a_machine_is_in_a_model(name):
    for path in (BUNDLED_FOLDER / name).rglob("*.json"):
        config = json.loads(path.read_text(encoding="utf-8"))["info"]["config"]
        assert "output" not in config
        assert config["data"]["train"].endswith("-ud-train.conllu")
        assert "/" not in config["data"]["train"]


# ------------------------------------------------------------------------------------------- names


def test_a_name_loads_the_model_from_any_folder(elsewhere, english):
    assert words(english.tag_text(TEXT)) == WORDS
    assert words(Tokenizer.load("en").tagger.tag([TEXT])) == [WORDS[0] + WORDS[1]]


def test_a_folder_of_the_same_name_wins(elsewhere, english):
    english.info = {"mine": True}
    english.save("en")
    assert Tagger.load("en").info == {"mine": True}
    english.info = {}
    (elsewhere / "ja").mkdir()
    with pytest.raises(ModelError, match=r"^ja: holds no model"):
        Tagger.load("ja")


@pytest.mark.parametrize("name", ["fr", "EN", "en/", "./en", "../models/en", ""])
def test_other_names_are_paths(elsewhere, name):
    assert bundled_folder(name) is None
    if name not in ("", "en/", "./en"):  # `Path` drops a dot and a final slash
        with pytest.raises(ModelError, match=r"or the name of a bundled model: en, ja$"):
            Tagger.load(name)


def test_japanese():
    (tagged,) = Tagger.load("ja").tag(["膝より上にボールを浮かすことは反則になる。"])
    assert "".join(tagged.words) == "膝より上にボールを浮かすことは反則になる。"
    assert ("ボール", "NOUN") in list(zip(tagged.words, tagged.tags, strict=True))


# -------------------------------------------------------------------------------- the command line


def test_tag_without_a_model(elsewhere, monkeypatch, capfd, tmp_path):
    (elsewhere / DEFAULT_MODEL).mkdir()  # a folder of data must not disturb
    file = tmp_path / "input.txt"
    file.write_text(TEXT)
    with file.open() as stream:
        monkeypatch.setattr("sys.stdin", stream)
        assert main(["tag", "--format", "jsonl"]) == 0
    found = [json.loads(line) for line in capfd.readouterr().out.splitlines()]
    assert [row["words"] for row in found] == WORDS
    assert found[1]["tags"] == ["PRON", "AUX", "PART", "VERB", "PUNCT"]


def test_a_file_in_place_of_the_model_is_explained(elsewhere, capsys):
    (elsewhere / "input.txt").write_text(TEXT)
    assert main(["tag", "input.txt"]) == 1
    assert "`bcrf tag en input.txt` tags it" in capsys.readouterr().err


def test_models_lists_them(capsys):
    assert main(["models"]) == 0
    lines = capsys.readouterr().out.splitlines()
    assert max(map(len, lines)) <= 80
    assert any(line.startswith("en ") and line.endswith("CC BY-SA 4.0") for line in lines)
    assert any(line.startswith("ja ") and "words with tags 9" in line for line in lines)


def test_a_bundled_model_can_be_fine_tuned(elsewhere):
    (elsewhere / "mine.conllu").write_text("1\tdogs\t_\tNOUN" + "\t_" * 6 + "\n\n")
    data = ["--data.train", "mine.conllu", "--data.dev", "mine.conllu", "--training.epochs", "1"]
    assert main(["train", "--init-from", "en", "--output", "run", *data]) == 0
    assert Tagger.load("run").labels == Tagger.load("en").labels
