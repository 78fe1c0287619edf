"""Word segmentation: words to characters and back, spaces, and the official scorer."""

import io
import itertools
import json
import math
import random
import shutil
import subprocess
import sys
from pathlib import Path

import pytest
import torch
from hypothesis import given
from hypothesis import strategies as st

from bcrf import ForwardBackward, LinearChain
from bcrf.tagger.data import DataError, read, surface
from bcrf.tagger.tasks import Segmentation, fit, from_dict

TAGS = ("NOUN", "VERB")


def sentences(text: str, format: str = "conllu"):
    return list(read(io.BytesIO(text.encode()), format, name="file"))


def conllu(words: list[tuple[str, str]], text: str | None = None) -> str:
    """Return a valid file of one sentence, with a tree, which the scorer requires."""
    comment = "" if text is None else f"# text = {text}\n"
    rows = [
        f"{i}\t{form}\t_\t{tag}\t_\t_\t{min(i - 1, 1)}\tdep\t_\t_\n"
        for i, (form, tag) in enumerate(words, 1)
    ]
    return comment + "".join(rows) + "\n"


def task_of(*words: str, **settings) -> Segmentation:
    rows = [(word, tag) for word in words or ("ab",) for tag in TAGS]
    return fit("segmentation", sentences(conllu(rows)), settings)


def forms(task, example, labels) -> list[tuple[str, str]]:
    return [
        (example.text[slice(*task.place(example, span))], span.type)
        for span in task.words(example, labels)
    ]


def test_labels_are_the_product_of_letters_and_tags():
    task = task_of()
    assert task.labels == tuple(f"{x}-{t}" for t in TAGS for x in "BIES")
    assert task.spaces == "boundary"
    assert task_of("New York").labels == ("O", *task.labels)
    assert task_of("New York").spaces == "token"
    assert from_dict(json.loads(json.dumps(task.to_dict()))) == task
    for settings, message in [
        ({"spaces": "never"}, "spaces must be 'boundary' or 'token', got 'never'"),
        ({"column": "pos"}, "column must be one of upos, xpos, got 'pos'"),
    ]:
        with pytest.raises(ValueError, match=message):
            task_of(**settings)


def test_words_become_characters():
    task = task_of()
    words = [("我們", "NOUN"), ("去", "VERB"), ("iPhone", "NOUN"), ("12", "NOUN")]
    (example,) = task.annotated(sentences(conllu(words, "我們去 iPhone 12")))
    assert "".join(example.tokens) == "我們去iPhone12"
    assert example.text == "我們去 iPhone 12"
    assert example.labels[:4] == ("B-NOUN", "E-NOUN", "S-VERB", "B-NOUN")
    assert list(example.offsets[2:5]) == [2, 4, 5]
    assert sorted(example.breaks) == [3, 9]
    assert forms(task, example, example.labels) == words


WORD = st.text(
    st.characters(exclude_characters="\t\n\r", exclude_categories=["Cs", "Zs", "Zl", "Zp", "Cc"]),
    min_size=1,
    max_size=4,
)
SPACED = st.lists(WORD, min_size=1, max_size=3).map(" ".join)


@st.composite
def annotated_texts(draw, words):
    """Words with tags, and a text with white space between some of them."""
    rows = draw(st.lists(st.tuples(words, st.sampled_from(TAGS)), min_size=1, max_size=6))
    text = ""
    for form, _ in rows:
        gap = draw(st.sampled_from(["", "", " ", "  ", "\u3000"])) if text else ""
        text += gap + form
    return rows, text


@given(annotated_texts(WORD))
def test_words_round_trip_if_space_is_a_boundary(case):
    words, text = case
    task = task_of()
    (example,) = task.annotated(sentences(conllu(words, text)))
    assert forms(task, example, example.labels) == words
    assert task.repair(example, example.labels) == list(example.labels)
    permitted = task.permitted_tags(example)
    if permitted is not None:
        assert bool((permitted | ~task.allowed(example)).all())
    assert (permitted is None) == (not any(map(str.isspace, text)))


@given(annotated_texts(SPACED))
def test_words_round_trip_if_space_is_a_token(case):
    words, text = case
    task = task_of("a b")
    (example,) = task.annotated(sentences(conllu(words, text)))
    assert "".join(example.tokens) == text
    assert forms(task, example, example.labels) == words
    assert task.repair(example, example.labels) == list(example.labels)
    assert bool((task.permitted_tags(example) | ~task.allowed(example)).all())


@given(st.lists(st.integers(1, 3), min_size=1, max_size=3))
def test_permitted_tags_leave_exactly_the_segmentations_that_respect_spaces(sizes):
    # k tags: a chunk of m characters has k (k + 1)^(m - 1) segmentations into tagged words.
    task = task_of()
    (sentence,) = sentences("  ".join("x" * size for size in sizes), "text")
    example = task.example(sentence)
    chain = LinearChain(torch.zeros(1, len(example), len(task.labels), dtype=torch.float64))
    permitted = task.permitted_tags(example)
    if permitted is not None:
        chain = chain.restrict(permitted.unsqueeze(0))
    value = ForwardBackward()(chain.constrain(task.structure)).value.item()
    assert value == pytest.approx(math.log(math.prod(2 * 3 ** (m - 1) for m in sizes)))


def test_permitted_tags_if_spaces_are_tokens():
    task = task_of("a b")
    (sentence,) = sentences("a b", "text")
    example = task.example(sentence)
    chain = LinearChain(torch.zeros(1, 3, len(task.labels), dtype=torch.float64))
    chain = chain.restrict(task.permitted_tags(example).unsqueeze(0)).constrain(task.structure)
    # Two words with two possible tags each, or one word with two possible tags.
    assert ForwardBackward()(chain).value.exp().item() == pytest.approx(6)


@given(
    st.lists(st.sampled_from([f"{x}-{t}" for t in TAGS for x in "BIES"]), min_size=5, max_size=5)
)
def test_any_labels_are_repaired(labels):
    task = task_of()
    (sentence,) = sentences("ab cde", "text")
    example = task.example(sentence)
    repaired = task.repair(example, labels)
    ids = [task.labels.index(label) for label in repaired]
    structure = task.structure
    assert bool(structure.start[ids[0]] & structure.end[ids[-1]])
    assert all(structure.follow[a, b] for a, b in itertools.pairwise(ids))
    assert all(task.permitted_tags(example)[i, tag] for i, tag in enumerate(ids))
    words = forms(task, example, labels)
    assert words == forms(task, example, repaired)
    assert "".join(form for form, _ in words) == "abcde"


def test_repair_if_space_is_a_token():
    task = task_of("a b")
    (sentence,) = sentences("a b c", "text")
    example = task.example(sentence)
    labels = ["B-NOUN", "I-NOUN", "S-VERB", "I-VERB", "E-VERB"]
    assert forms(task, example, labels) == [("a", "NOUN"), ("b", "VERB"), ("c", "VERB")]
    assert task.repair(example, labels) == ["S-NOUN", "O", "S-VERB", "O", "S-VERB"]
    with pytest.raises(
        ValueError, match=r"'b' has the label O, .*; remove the tags that `permitted_tags`"
    ):
        task.repair(example, ["S-NOUN", "O", "O", "O", "S-VERB"])


def test_unknown_spacing_and_contractions():
    task = task_of()
    (example,) = task.annotated(sentences(conllu([("ab", "NOUN"), ("c", "VERB")])))
    assert example.text == "abc"  # neither a text nor SpaceAfter: nothing between words
    row = "{}\t{}\t_\tNOUN\t_\t_\t_\t_\t_\t{}\n"
    (example,) = task.annotated(
        sentences(
            row.format(1, "ab", "SpaceAfter=No") + row.format(2, "c", "_") + row.format(3, "d", "_")
        )
    )
    assert example.text == "abc d"
    (sentence,) = sentences(conllu([("de", "NOUN"), ("le", "NOUN")], "du"))
    with pytest.raises(DataError, match="file:2: expected the word 'de' in the text, found 'du'"):
        task.annotated([sentence])
    assert task.example(sentence).tokens == ("d", "u")  # tagging needs the text only
    (missing,) = sentences(conllu([("a", "NOUN"), ("b", "_")]))
    with pytest.raises(DataError, match="file:2: the word has no upos: found '_'"):
        task.annotated([missing])
    (spaced,) = sentences(conllu([("a ", "NOUN")]))
    with pytest.raises(DataError, match="file:1: the word starts or ends with white space"):
        task_of("a b").annotated([spaced])


def test_errors_name_the_character():
    task = task_of()
    (example,) = task.annotated(sentences(conllu([("a", "NOUN"), ("b", "X")])))
    with pytest.raises(DataError, match=r"file:1: character 1: 'S-X' is not among the 8 labels"):
        task.target(example)


def test_empty_and_long_texts():
    task = task_of()
    empty, long = sentences("\n" + "x" * 10_000 + "\n", "text")
    assert task.render(task.example(empty), []) == "# text =\n\n"
    assert task.permitted_tags(task.example(empty)) is None
    labels = ["S-NOUN"] * 10_000
    assert len(forms(task, task.example(long), labels)) == 10_000


# ------------------------------------------------------------------------------------------- output


@given(annotated_texts(WORD))
def test_raw_text_is_unchanged_in_the_output(case):
    words, text = case
    task = task_of()
    (gold,) = task.annotated(sentences(conllu(words, text)))
    (sentence,) = sentences(text + "\n", "text")
    example = task.example(sentence)
    assert example.tokens == gold.tokens
    (written,) = sentences(task.render(example, gold.labels))
    assert written.text == text
    assert list(zip(written.words, written.format.tags(written, "upos"), strict=True)) == words
    assert surface(written).text == text
    record = json.loads(task.render(example, gold.labels, "jsonl"))
    assert record["text"] == text
    assert [
        text[s : s + len(w)] for s, w in zip(record["starts"], record["words"], strict=True)
    ] == [form for form, _ in words]


def test_output_for_formats_that_cannot_be_composed():
    task = task_of(spaces="auto")
    (sentence,) = sentences("1\tab\tO\t-\t-\n", "uner")
    assert task.render(task.example(sentence), ["S-NOUN", "S-VERB"]).splitlines() == [
        "# text = ab",
        "1\ta\t_\tNOUN" + "\t_" * 5 + "\tSpaceAfter=No",
        "2\tb\t_\tVERB" + "\t_" * 6,
        "",
    ]


def test_comments_and_keys_are_kept():
    task = task_of()
    source = "# sent_id = 7\n# text = ab c\n" + conllu([("ab", "NOUN"), ("c", "NOUN")])
    (sentence,) = sentences(source)
    labels = ["S-VERB", "S-VERB", "S-NOUN"]
    assert task.render(task.example(sentence), labels, probabilities=[1, 0.5, 0]).splitlines() == [
        "# sent_id = 7",
        "# text = ab c",
        "1\ta\t_\tVERB" + "\t_" * 5 + "\tSpaceAfter=No|Prob=1.0000",
        "2\tb\t_\tVERB" + "\t_" * 5 + "\tProb=0.5000",
        "3\tc\t_\tNOUN" + "\t_" * 5 + "\tProb=0.0000",
        "",
    ]
    (sentence,) = sentences('{"id": 1, "text": "ab c"}\n', "jsonl")
    assert json.loads(task.render(task.example(sentence), labels)) == {
        "id": 1,
        "text": "ab c",
        "words": ["a", "b", "c"],
        "tags": ["VERB", "VERB", "NOUN"],
        "starts": [0, 1, 3],
    }
    assert task.render(task.example(sentence), labels, "columns") == "a\tVERB\nb\tVERB\nc\tNOUN\n\n"


# ------------------------------------------------------------------------------------------- scores


def official(gold: Path, system: Path) -> dict[str, tuple[float, float, float]]:
    """Return precision, recall and F1 in percent; run the scorer of CoNLL 2018 as a program."""
    program = shutil.which("udeval", path=str(Path(sys.executable).parent))
    command = [program, str(gold), str(system), "-v"]
    output = subprocess.run(command, capture_output=True, text=True, check=True).stdout
    rows = [[cell.strip() for cell in line.split("|")] for line in output.splitlines()]
    return {row[0]: tuple(map(float, row[1:4])) for row in rows if row[0] in ("Words", "UPOS")}


@pytest.mark.parametrize("spaced", [False, True], ids=["boundary", "token"])
def test_scores_are_those_of_the_official_scorer(tmp_path, spaced):
    chance = random.Random(spaced)
    task = task_of("a b") if spaced else task_of()
    metric = task.metric()
    gold_text, system_text = "", ""
    for _ in range(30):
        words = []
        for _ in range(chance.randrange(1, 12)):
            form = "".join(chance.choice("天地人abc1") for _ in range(chance.randrange(1, 4)))
            if spaced and chance.random() < 0.2:
                form += " " + chance.choice("xyz")
            words.append((form, chance.choice(TAGS)))
        text = ""
        for form, _ in words:
            text += ("" if not text else chance.choice(["", "", " "])) + form
        source = conllu(words, text)
        gold_text += source
        (example,) = task.annotated(sentences(source))
        permitted = task.permitted_tags(example)
        labels = [
            label if chance.random() < 0.8 else chance.choice(permitted_labels(task, permitted, i))
            for i, label in enumerate(example.labels)
        ]
        metric.add(example, labels)
        repaired = task.repair(example, labels)
        (system,) = sentences(task.render(example, repaired))
        tags = system.format.tags(system, "upos")
        system_text += conllu(list(zip(system.words, tags, strict=True)), text)
    gold, system = tmp_path / "gold.conllu", tmp_path / "system.conllu"
    gold.write_text(gold_text, encoding="utf-8")
    system.write_text(system_text, encoding="utf-8")
    scores, ours = official(gold, system), metric.result()
    assert 0.2 < ours["f1"] < ours["f1/words"] < 0.95
    for name, suffix in [("Words", "/words"), ("UPOS", "")]:
        found = [100 * ours[f"{key}{suffix}"] for key in ("precision", "recall", "f1")]
        assert found == pytest.approx(scores[name], abs=0.00501)


def permitted_labels(task, permitted, position: int) -> list[str]:
    if permitted is None:
        return list(task.labels)
    return [x for x, ok in zip(task.labels, permitted[position].tolist(), strict=True) if ok]
