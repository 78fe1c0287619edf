"""Reports: their numbers against independent computations, the page, and awkward inputs."""

import dataclasses
import html.parser
import json
import math
from collections import Counter
from pathlib import Path

import pytest

from bcrf.tagger import Tagger
from bcrf.tagger.data import read
from bcrf.tagger.report import TaggingSystem, build_report, render_page, write_report
from bcrf.tagger.report.errors import _at_most
from tests.tagger_cases import config, pairs, run, trained, write

TASKS = ["pos", "segmentation", "ner"]


@pytest.fixture(scope="module")
def taggers(tmp_path_factory) -> dict[str, Tagger]:
    """Taggers after little training, which make errors."""
    return {
        task: trained(
            tmp_path_factory.mktemp(task), task, training={"epochs": 4, "calibrate": True}
        )
        for task in TASKS
    }


@pytest.fixture(scope="module")
def files(tmp_path_factory) -> dict[str, Path]:
    return {task: write(tmp_path_factory.mktemp("data"), task) for task in TASKS}


def system(tagger: Tagger, file: Path, name: str = "model", **options) -> TaggingSystem:
    return TaggingSystem(name, tagger, tagger.task.annotated(list(read(file))), **options)


@pytest.fixture(scope="module")
def reports(taggers, files) -> dict[str, dict]:
    found = {}
    for task in TASKS:
        own = system(taggers[task], files[task])
        other = system(taggers[task], files[task], decoder="unstructured")
        found[task] = build_report(own, other, file=str(files[task]))
    return found


# ------------------------------------------------------------------------------------------ numbers


@pytest.mark.parametrize("task", TASKS)
def test_scores_are_those_of_the_metric(taggers, files, reports, task):
    expected = taggers[task].evaluate(files[task]).scores
    names = {"f1/places": "f1/words"} if task == "segmentation" else {}
    for score in reports[task]["scores"]:
        name = names.get(score["name"], score["name"])
        if name in expected:
            assert score["value"] == pytest.approx(expected[name], abs=1e-6)
        assert score["low"] <= score["value"] <= score["high"]
    first = reports[task]["scores"][0]["name"]
    assert first == taggers[task].evaluate(files[task]).main


def test_tags_and_confusions_are_counted_right(taggers, files, reports):
    gold, predicted = [], []
    tagger = taggers["pos"]
    for example in tagger.task.annotated(list(read(files["pos"]))):
        gold += example.gold()
        predicted += tagger.tag([list(example.tokens)])[0].tags
    confused = Counter(zip(gold, predicted, strict=True))
    report = reports["pos"]
    matrix = report["confusion"]
    for row, one in enumerate(matrix["tags"]):
        for column, two in enumerate(matrix["tags"]):
            assert matrix["counts"][row][column] == confused[one, two]
    assert sum(map(sum, matrix["counts"])) == len(gold)
    for row in report["tags"]:
        tag = row["tag"]
        right = confused[tag, tag]
        assert (row["gold"], row["predicted"]) == (gold.count(tag), predicted.count(tag))
        if right:
            assert row["precision"] == pytest.approx(right / predicted.count(tag), abs=1e-6)
            assert row["recall"] == pytest.approx(right / gold.count(tag), abs=1e-6)


def test_scores_of_entity_types_are_those_of_nervaluate(taggers, files, reports):
    evaluate = pytest.importorskip("nervaluate").Evaluator
    tagger = taggers["ner"]
    examples = tagger.task.annotated(list(read(files["ner"])))
    gold = [list(example.gold()) for example in examples]
    found = [list(tagger.tag([list(example.tokens)])[0].labels) for example in examples]
    types = tagger.task.types
    strict = evaluate(gold, found, tags=list(types), loader="list").evaluate()
    for row in reports["ner"]["tags"]:
        expected = strict["entities"][row["tag"]]["strict"]
        for score in ("precision", "recall", "f1"):
            assert (row[score] or 0) == pytest.approx(getattr(expected, score), abs=1e-6)


def test_missed_and_invented_mentions_are_in_the_matrix(reports):
    matrix = reports["ner"]["confusion"]
    assert matrix["has_none"]
    none = len(matrix["tags"]) - 1
    missed = sum(row[none] for row in matrix["counts"])
    total = sum(map(sum, matrix["counts"][:none]))
    assert total == sum(row["gold"] for row in reports["ner"]["tags"])
    assert missed <= total


@pytest.mark.parametrize("task", TASKS)
def test_errors_are_sorted_by_confidence(reports, task):
    errors = reports[task]["errors"]
    confidences = [error["confidence"] for error in errors["shown"]]
    assert confidences == sorted(confidences, reverse=True)
    assert errors["count"] >= len(errors["shown"]) > 0
    for error in errors["shown"]:
        assert error["gold"] or error["predicted"]
        keys = {(item["text"], item["tag"]) for item in error["gold"]}
        assert keys != {(item["text"], item["tag"]) for item in error["predicted"]}


def test_every_wrong_word_is_an_error(reports):
    report = reports["pos"]
    matrix = report["confusion"]["counts"]
    wrong = sum(map(sum, matrix)) - sum(matrix[i][i] for i in range(len(matrix)))
    assert report["errors"]["count"] == wrong


@pytest.mark.parametrize("task", TASKS)
def test_calibration_is_that_of_the_items(taggers, files, reports, task):
    tagger = taggers[task]
    values = []
    examples = tagger.task.annotated(list(read(files[task])))
    for tagged, example in zip(
        tagger.tag_examples(examples, probabilities=True), examples, strict=True
    ):
        gold = tagger.task.items(example, example.gold())
        found = tagger.task.items(example, tagged.labels)
        values += [(p, x in gold) for x, p in zip(found, tagged.item_probabilities, strict=True)]
    bins: dict[int, list[tuple[float, bool]]] = {}
    for p, right in values:
        bins.setdefault(min(14, math.floor(p * 15)), []).append((p, right))
    gaps = [abs(sum(p for p, _ in group) - sum(r for _, r in group)) for group in bins.values()]
    result = reports[task]["calibration"]
    assert result["items"] == len(values)
    assert result["ece"] == pytest.approx(sum(gaps) / len(values), abs=1e-5)
    brier = sum((p - right) ** 2 for p, right in values) / len(values)
    assert result["brier"] == pytest.approx(brier, abs=1e-5)
    assert result["temperature"] == tagger.probability_temperature != 1
    assert result["before"]["ece"] != result["ece"]


def test_unknown_words_are_those_that_the_training_data_lack(taggers, files, tmp_path):
    text = files["pos"].read_text().replace("\tcat\t", "\tkitten\t").replace("\tdog\t", "\tpuppy\t")
    file = tmp_path / "unknown.conllu"
    file.write_text(text)
    report = build_report(system(taggers["pos"], file))
    words = [word for line in pairs("pos") for word, _ in line]
    expected = words.count("cat") + words.count("dog")
    unknown = report["unknown_words"]
    assert (unknown["words"], unknown["items"]) == (expected, expected)
    assert unknown["known_items"] == len(words) - expected
    assert {row["text"] for row in unknown["wrong"]} <= {"kitten", "puppy"}
    named = {score["name"]: score["value"] for score in report["scores"]}
    assert unknown["recall"] == named["unknown_accuracy"]


def test_certified_sentences_are_counted(taggers, files, reports):
    tagger = taggers["pos"]
    count = 0
    for example in tagger.task.annotated(list(read(files["pos"]))):
        from bcrf import certified_decode

        chain = tagger.chain([tagger.reader(example.tokens)], [None])
        count += int(certified_decode(chain.detach(), 10).certified.sum())
    assert reports["pos"]["certified"]["certified"] == count


# --------------------------------------------------------------------------------------- comparison


def test_a_system_does_not_differ_from_itself(taggers, files):
    own = system(taggers["ner"], files["ner"])
    comparison = build_report(own, own)["comparison"]
    assert {row["difference"] for row in comparison["scores"]} == {0}
    assert {row["p"] for row in comparison["scores"]} == {1}
    assert comparison["sentences"]["shown"] == []
    assert comparison["sentences"]["same"] == len(own.examples)


@pytest.mark.parametrize("task", TASKS)
def test_comparisons_count_all_sentences(reports, files, taggers, task):
    counts = reports[task]["comparison"]["sentences"]
    kinds = ("same", "first_better", "second_better", "equally_good")
    assert sum(counts[kind] for kind in kinds) == reports[task]["sentences"]
    other = taggers[task].evaluate(files[task], decoder="unstructured")
    row = reports[task]["comparison"]["scores"][0]
    assert row["second"] == pytest.approx(other.score, abs=1e-6)
    gains = [abs(sentence["gain"]) for sentence in counts["shown"]]
    assert gains == sorted(gains, reverse=True)


def test_models_with_other_schemes_can_be_compared(taggers, files, tmp_path):
    other = trained(tmp_path, "ner", data={"scheme": "BIOES"})
    report = build_report(system(taggers["ner"], files["ner"]), system(other, files["ner"]))
    assert report["comparison"]["scores"]


def test_models_for_other_tasks_cannot_be_compared(taggers, files):
    one, two = system(taggers["pos"], files["pos"]), system(taggers["ner"], files["ner"])
    with pytest.raises(ValueError, match="compare models for the same task"):
        build_report(one, two)


def test_other_gold_tags_cannot_be_compared(taggers, files):
    own = system(taggers["pos"], files["pos"])
    changed = [
        dataclasses.replace(example, labels=("NOUN",) * len(example)) for example in own.examples
    ]
    with pytest.raises(ValueError, match=r"train.conllu:1: the gold tags are not the same"):
        build_report(own, dataclasses.replace(own, examples=changed))


# --------------------------------------------------------------------------------------------- page


class Page(html.parser.HTMLParser):
    """Collects the elements of a page, and checks that they are nested."""

    VOID = ("meta", "line", "polyline", "circle", "rect")

    def __init__(self, text: str) -> None:
        super().__init__()
        self.names: Counter[str] = Counter()
        self.attributes: list[tuple[str, str, str | None]] = []
        self.open: list[str] = []
        self.feed(text)
        self.close()
        assert self.open == []

    def handle_starttag(self, tag, attrs):
        self.names[tag] += 1
        self.attributes += [(tag, name, value) for name, value in attrs]
        if tag not in self.VOID:
            self.open.append(tag)

    def handle_startendtag(self, tag, attrs):
        self.names[tag] += 1
        self.attributes += [(tag, name, value) for name, value in attrs]

    def handle_endtag(self, tag):
        assert self.open.pop() == tag


@pytest.mark.parametrize("task", TASKS)
def test_the_page_is_well_formed_and_needs_nothing_else(reports, task):
    text = render_page(reports[task])
    page = Page(text)
    assert page.names["script"] == page.names["link"] == page.names["img"] == 0
    assert "url(" not in text
    assert "@import" not in text
    for tag, name, value in page.attributes:
        assert not name.startswith("on"), (tag, name)
        if name in ("href", "src"):
            assert value.startswith("#")
    ids = {value for _, name, value in page.attributes if name == "id"}
    for _, name, value in page.attributes:
        if name in ("aria-labelledby", "aria-describedby"):
            assert set(value.split()) <= ids
        if name == "href":
            assert value[1:] in ids
    assert page.names["svg"] == 1
    assert page.names["h1"] == 1


EVIL = [
    "<script>alert(1)</script>",
    "</style><img src=x onerror=alert(1)>",
    "\"onmouseover='alert(1)",
    "&lt;b&gt;",
    "\u202eevil",
    "a\x01b\x7f",
]


def test_words_and_tags_are_escaped(tmp_path):
    """Every word and every tag of the corpus is a piece of markup."""
    lines = [f"{word}\t<b>{tag}\n" for word in EVIL for tag in ("x", "y")]
    file = tmp_path / "train.tsv"
    file.write_text("".join(f"{line}\n" for line in lines), encoding="utf-8")
    settings = config(tmp_path / "run", data={"train": str(file), "dev": str(file)})
    run(settings)
    tagger = Tagger.load(settings.output)
    own = system(tagger, file, name="<i>model</i>")
    other = system(tagger, file, decoder="bregman-1")
    report = build_report(own, other, file="<u>file</u>")
    text = render_page(report)
    page = Page(text)
    for element in ("script", "img", "i", "u", "b"):
        assert page.names[element] == 0
    assert "&lt;script&gt;alert(1)&lt;/script&gt;" in text
    assert "&lt;b&gt;x" in text
    assert "\x01" not in text
    assert report["errors"]["count"] > 0


def test_the_page_is_bounded(taggers, tmp_path):
    """Many errors, long words and many tags make a page of limited size."""
    lines = [f"1\t{'w' * 3000}{i}\t_\tTAG{i % 500}" + "\t_" * 6 + "\n\n" for i in range(1000)]
    file = tmp_path / "many.conllu"
    file.write_text("".join(lines))
    own = system(taggers["pos"], file)
    report = build_report(own, system(taggers["pos"], file, decoder="unstructured"))
    assert report["errors"]["count"] == 1000
    assert len(report["errors"]["shown"]) == 50
    assert len(render_page(report)) < 400_000
    assert report["confusion"]["has_other"]
    assert sum(map(sum, report["confusion"]["counts"])) == 1000


def test_the_same_input_gives_the_same_bytes(taggers, files, tmp_path):
    for name in ("one", "two"):
        own = system(taggers["ner"], files["ner"])
        write_report(build_report(own, file="data"), tmp_path / name)
    for name in ("report.html", "report.json"):
        assert (tmp_path / "one" / name).read_bytes() == (tmp_path / "two" / name).read_bytes()


def test_the_json_has_the_values_of_the_report(reports, tmp_path):
    page = write_report(reports["pos"], tmp_path / "new" / "folder")
    assert json.loads((page.parent / "report.json").read_text()) == reports["pos"]
    assert page.read_text(encoding="utf-8") == render_page(reports["pos"])
    assert sorted(p.name for p in page.parent.iterdir()) == ["report.html", "report.json"]


# ------------------------------------------------------------------------------------- awkward data


def test_a_file_without_errors_has_a_page(tmp_path):
    tagger = trained(tmp_path, "pos", training={"epochs": 1})
    file = write(tmp_path, "pos")
    examples = tagger.task.annotated(list(read(file)))
    perfect = [
        dataclasses.replace(example, labels=tagged.labels)
        for example, tagged in zip(examples, tagger.tag_examples(examples), strict=True)
    ]
    report = build_report(TaggingSystem("perfect", tagger, perfect))
    assert report["scores"][0]["value"] == 1
    assert "There are no errors." in render_page(report)


def test_sentences_without_words_and_without_mentions(taggers, tmp_path):
    file = tmp_path / "empty.jsonl"
    rows = [{"words": [], "tags": []}, {"words": ["no", "names"], "tags": ["O", "O"]}]
    file.write_text("".join(json.dumps(row) + "\n" for row in rows))
    report = build_report(system(taggers["ner"], file))
    assert report["sentences"] == 2
    Page(render_page(report))
    only_empty = tmp_path / "none.jsonl"
    only_empty.write_text(json.dumps(rows[0]) + "\n")
    for task in ("ner", "pos"):
        report = build_report(system(taggers[task], only_empty))
        assert report["certified"]["share"] is None
        Page(render_page(report))


def test_long_sentences_are_reported(taggers, files, monkeypatch):
    expected = build_report(system(taggers["ner"], files["ner"]))
    monkeypatch.setattr("bcrf.tagger.prediction.tagging.LONGEST_WHOLE", 3)
    found = build_report(system(taggers["ner"], files["ner"]))
    assert found["scores"] == expected["scores"]
    assert found["errors"] == expected["errors"]


def test_a_file_in_place_of_the_folder_is_an_error(reports, tmp_path):
    (tmp_path / "file").write_text("")
    with pytest.raises(FileExistsError, match="expected a folder for the report"):
        write_report(reports["pos"], tmp_path / "file")
    (tmp_path / "report.html").mkdir()
    with pytest.raises(IsADirectoryError, match="choose another folder"):
        write_report(reports["pos"], tmp_path)


def test_a_failed_write_leaves_the_old_page(reports, tmp_path, monkeypatch):
    page = write_report(reports["pos"], tmp_path / "report")
    old = page.read_bytes()

    def full(*_: object) -> None:
        raise OSError(28, "No space left on device")

    monkeypatch.setattr("bcrf.tagger.files.atomic_file.os.fsync", full)
    with pytest.raises(OSError, match="cannot write the report: No space left"):
        write_report(reports["ner"], tmp_path / "report")
    assert page.read_bytes() == old


def test_the_context_of_an_error_is_cut_between_words():
    words = " ".join(["word"] * 30)
    assert _at_most(words, 80) == " ".join(["word"] * 16) + "\u00a0…"
    assert _at_most(words[::-1], 80)[::-1] == "…\u00a0" + " ".join(["word"] * 16)
    assert _at_most("a b", 80) == "a b"
    assert _at_most("x" * 81, 80) == "x" * 80 + "…"
    assert _at_most("short " + "x" * 100, 80) == "short " + "x" * 74 + "…"
