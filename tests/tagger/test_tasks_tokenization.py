"""Tokenization: texts to labels of characters and back, kinds of characters, and the scorer."""

import io
import json
import random
import shutil
import subprocess
import sys
from pathlib import Path

import pytest
import torch
from hypothesis import given
from hypothesis import strategies as st

from bcrf import LinearChain, viterbi
from bcrf.tagger.data import DataError, annotated_text, read
from bcrf.tagger.tasks import Tokenization, check_gold_labels, fit, from_dict
from bcrf.tagger.tasks.augmentation import LabeledText, augmented, cut_at_sentences
from bcrf.tagger.tasks.characters import CharacterKind, KindReader


def sentences(text: str, format: str = "conllu"):
    return list(read(io.BytesIO(text.encode()), format, name="file"))


def conllu(*texts: list[str], comments: str = "") -> str:
    """Return a file with sentences, given as words; a word that ends in "+" has no space after.

    Comments come before each sentence. The sentences have trees, which the scorer requires.
    """
    blocks = []
    for words in texts:
        rows = []
        for i, word in enumerate(words, 1):
            form, space = (word[:-1], "SpaceAfter=No") if word.endswith("+") else (word, "_")
            rows.append(f"{i}\t{form}\t_\tX\t_\t_\t{min(i - 1, 1)}\tdep\t_\t{space}\n")
        rows[0] = rows[0].replace("\tdep\t", "\troot\t")
        text = "".join(w[:-1] if w.endswith("+") else f"{w} " for w in words).rstrip()
        blocks.append(f"{comments}# text = {text}\n" + "".join(rows) + "\n")
    return "".join(blocks)


TWO = conllu(["Hi+", ",", "you+", "!"], ["It", "does+", "n't", "10 000+", "."])


def words_of(task: Tokenization, text: str, labels) -> list[list[str]]:
    places = task.spans(labels)
    spans = list(zip(places.starts, places.ends, strict=True))
    return [[text[a:b] for a, b in spans[i:j]] for i, j in places.of_sentences()]


# ------------------------------------------------------------------------- files to text and labels


def test_sentences_are_joined_to_paragraphs():
    file = sentences(TWO + conllu(["New"], comments="# newpar id = 1\n") + conllu(["x"]))
    found = annotated_text(file)
    assert found.text == "Hi, you! It doesn't 10 000.\n\nNew x"
    assert [[found.text[a:b] for a, b in words] for words in found.sentences] == [
        ["Hi", ",", "you", "!"],
        ["It", "does", "n't", "10 000", "."],
        ["New"],
        ["x"],
    ]
    assert annotated_text([]).text == ""


def test_documents_begin_paragraphs():
    for comment in ("# newdoc\n", "# newdoc id = 7\n", "# newpar\n", "#newpar id = 3\n"):
        file = sentences(conllu(["a"]) + conllu(["b"], comments=comment))
        assert annotated_text(file).text == "a\n\nb", comment
    file = sentences(conllu(["a"]) + conllu(["b"], comments="# newparty = 1\n"))
    assert annotated_text(file).text == "a b"


def multiword(token: str, *words: str, misc: str = "_", comment: str = "") -> str:
    rows = [f"1-{len(words)}\t{token}" + "\t_" * 7 + f"\t{misc}\n"]
    rows += [f"{i}\t{w}\t_\tX\t_\t_\t{min(i - 1, 1)}\tdep\t_\t_\n" for i, w in enumerate(words, 1)]
    rows.append(f"{len(words) + 1}\tx\t_\tX\t_\t_\t1\tdep\t_\t_\n")
    rows[1] = rows[1].replace("\tdep\t", "\troot\t")
    return comment + "".join(rows) + "\n"


def test_multiword_tokens_are_divided_if_their_words_make_them_up():
    (sentence,) = sentences(multiword("don't", "do", "n't", misc="SpaceAfter=No"))
    found = annotated_text([sentence])
    assert (found.text, found.sentences, found.hidden) == ("don'tx", [[(0, 2), (2, 5), (5, 6)]], {})
    (sentence,) = sentences(multiword("du", "de", "le", comment="# text = du x\n"))
    found = annotated_text([sentence])
    assert (found.sentences, found.hidden) == ([[(0, 2), (3, 4)]], {(0, 2): 2})


def test_texts_without_known_spaces_are_errors():
    file = "".join(f"{i}\t{w}" + "\t_" * 8 + "\n" for i, w in enumerate("ab", 1))
    with pytest.raises(DataError, match=r"file:1: the white space .* is not known; expected CoNLL"):
        annotated_text(sentences(file))
    with pytest.raises(DataError, match="file:2: expected the word 'a' in the text, found 'x'"):
        annotated_text(sentences("# text = xy\n" + file))


def test_labels_of_a_text():
    task = fit("tokenization", sentences(TWO))
    assert task.labels == ("inside", "word", "sentence", "space", "inner_space")
    (example,) = task.annotated(sentences(TWO))
    letters = {"inside": "i", "word": "w", "sentence": "S", "space": " ", "inner_space": "_"}
    assert "".join(example.tokens) == "Hi, you! It doesn't 10 000."
    assert "".join(map(letters.__getitem__, example.labels)) == "Siw wiiw Si wiiiwii wi_iiiw"
    plain = fit("tokenization", sentences(conllu(["a", "b"])))
    assert plain.labels == ("inside", "word", "sentence", "space")
    assert from_dict(json.loads(json.dumps(task.to_dict()))) == task
    assert check_gold_labels(task, [example], "file") is None


SEPARATORS = st.sampled_from([" ", "\n", "\n\n", "  ", "\t", "\u200b", "", "\r\n", "\u3000"])
WORDS = st.text(st.characters(exclude_categories=["Z", "C", "M"]), min_size=1, max_size=4)


@given(st.lists(st.lists(st.tuples(WORDS, SEPARATORS), min_size=1), min_size=1, max_size=4))
def test_text_and_words_round_trip(texts):
    """Labels of any words with any white space between them give these words again."""
    task = Tokenization(("inside", "word", "sentence", "space"))
    text, labels = "", []
    for words in texts:
        for i, (word, gap) in enumerate(words):
            labels += ["word" if i else "sentence", *["inside"] * (len(word) - 1)]
            labels += ["space"] * len(gap)
            text += word + gap
    assert words_of(task, text, labels) == [[word for word, _ in words] for words in texts]
    starts, ends, _ = task.spans(labels)
    outside = set(range(len(text))).difference(*map(range, starts, ends))
    assert all(labels[i] == "space" for i in outside)
    example = task._labeled(sentences("x\n", "text")[0], text, tuple(labels))
    assert task.repair(example, labels) == labels
    permitted, target = task.permitted_tags(example), torch.tensor(task.target(example))
    assert permitted[torch.arange(len(text)), target].all()


# --------------------------------------------------------------- kinds of characters and structure


def kinds(*pieces: str) -> list[str]:
    reader = KindReader()
    return [CharacterKind(kind).name for piece in pieces for kind in reader(piece)]


def test_kinds_of_characters():
    assert kinds("a b") == ["FIRST", "SPACE", "LETTER"]
    assert kinds(" a\tb\u00a0c\u200bd") == (
        ["SPACE", "FIRST", "LINE_SPACE", "LETTER", "SPACE", "LETTER", "LINE_SPACE", "LETTER"]
    )
    assert kinds("e\u0301 \u0301") == ["FIRST", "MARK", "SPACE", "LETTER"]
    assert kinds("👩\u200d👧👍🏽") == ["FIRST", "MARK", "MARK", "LETTER", "MARK"]
    assert kinds("a\nb\n \r\n c") == [
        *["FIRST", "LINE_SPACE", "LETTER", "LINE_SPACE", "SPACE", "LINE_SPACE"],
        *["LINE_SPACE", "SPACE", "FIRST"],
    ]


def test_the_network_reads_plain_spaces():
    text = "a\tb\u00a0c\r\nd\u200be\u200d\x85"
    task = Tokenization(("inside", "word", "sentence", "space"))
    example = task.text_example(sentences("x\n", "text")[0], text, KindReader()(text))
    assert "".join(example.tokens) == "a b c \nd e\u200d "
    assert (example.text, example.part(1, 3).text) == (text, "\tb")


def test_lines_may_be_paragraphs():
    found = KindReader(split_lines=True)("a\n b c")
    assert [kind for kind in found if kind > CharacterKind.SPACE] == (
        [CharacterKind.FIRST, CharacterKind.FIRST, CharacterKind.LETTER]
    )


@given(st.lists(st.text("a \n\t\u0301\u200d👩é", max_size=6), max_size=6))
def test_kinds_do_not_depend_on_the_pieces(pieces):
    assert kinds(*pieces) == kinds("".join(pieces))


@given(st.text("ab \n\t\u0301\u200d👩.", max_size=30), st.integers(0, 1000), st.booleans())
def test_best_labels_are_always_well_formed(text, seed, inner):
    """Whatever the scores are, words cover the text, and no repair is needed."""
    labels = ("inside", "word", "sentence", "space") + ("inner_space",) * inner
    task = Tokenization(labels)
    example = task.text_example(sentences("x\n", "text")[0], text, KindReader()(text))
    if not text:
        return
    torch.manual_seed(seed)
    chain = LinearChain(torch.randn(1, len(text), len(labels)) * 3).constrain(task.structure)
    tags = viterbi(chain.restrict(task.permitted_tags(example)[None]))[1][0]
    found = [labels[tag] for tag in tags.tolist()]
    assert task.repair(example, found) == found
    for words in words_of(task, text, found):
        assert all(word and not word[0].isspace() and not word[-1].isspace() for word in words)
    joined = "".join(word for words in words_of(task, text, found) for word in words)
    assert "".join(joined.split()) == "".join(text.split())
    starts, _, firsts = task.spans(found)
    assert not starts or firsts[0] == 0


def test_ill_formed_labels_are_repaired():
    task = Tokenization(("inside", "word", "sentence", "space", "inner_space"))
    (sentence,) = sentences("a bc \n", "text")
    example = task.example(sentence)
    assert task.repair(example, ["sentence", "space", "inside", "inside", "inner_space"]) == (
        ["sentence", "space", "word", "inside", "space"]
    )
    labels = ["sentence", "inner_space", "word", "inner_space", "inner_space"]
    assert task.repair(example, labels) == ["sentence", "space", "word", "space", "space"]


def test_treebanks_may_contradict_the_kinds():
    file = sentences(conllu(["a+", "\u0301b"]))
    task = fit("tokenization", file)
    (example,) = task.annotated(file)
    assert example.labels == ("sentence", "word", "inside")
    assert task.permitted_tags(example)[1, task.labels.index("word")]


# --------------------------------------------------------------------------------------- the metric


def score(gold: str, predicted: list[str], task: Tokenization | None = None) -> dict[str, float]:
    task = task or fit("tokenization", sentences(gold))
    (example,) = task.annotated(sentences(gold))
    metric = task.metric()
    metric.add(example, predicted)
    return metric.result()


def test_scores_by_hand():
    gold = conllu(["Hi+", "!"], ["I", "do+", "n't"])  # Hi! I don't
    task = fit("tokenization", sentences(gold))
    (example,) = task.annotated(sentences(gold))
    assert score(gold, list(example.labels))["f1"] == 1
    # One sentence "Hi! I don't" of the words "Hi!", "I", "don't".
    labels = ["sentence", *["inside"] * 2, "space", "word", "space", "word", *["inside"] * 4]
    found = score(gold, labels)
    assert found["precision/words"] == 1 / 3
    assert found["recall/words"] == 1 / 5
    assert found["f1/words"] == 2 / 8
    assert found["f1/sentences"] == 0
    assert found["f1"] == 1 / 8
    assert (found["words"], found["sentences"]) == (5, 2)


def test_words_that_are_not_in_the_text_are_missed():
    gold = multiword("du", "de", "le", comment="# text = du x\n")
    found = score(gold, ["sentence", "inside", "space", "word"])
    assert (found["words"], found["precision/words"], found["recall/words"]) == (3, 1 / 2, 1 / 3)


def test_scores_equal_those_of_the_official_scorer(tmp_path):
    """Random words and sentences of a random text; udtools is the official scorer."""
    program = shutil.which("udeval", path=str(Path(sys.executable).parent))
    if program is None:
        pytest.skip("udtools is not installed")
    chance = random.Random(3)
    text = "".join(chance.choice("abcd  ") for _ in range(400))
    text = " ".join(text.split())
    task = Tokenization(("inside", "word", "sentence", "space"))
    (sentence,) = sentences(text + "\n", "text")
    example = task.example(sentence)
    drawn = []
    for rate in (0.3, 0.32):
        labels = []
        for i, character in enumerate(text):
            before = text[i - 1] if i else " "
            if character == " ":
                labels.append("space")
            elif i == 0 or (chance.random() < 0.1 and rate < 1):
                labels.append("sentence")
            elif before == " " or chance.random() < rate:
                labels.append("word")
            else:
                labels.append("inside")
        drawn.append(labels)
    gold, predicted = drawn
    for i in range(0, len(text), 2):  # half of them agree
        if predicted[i] != "space" and (i == 0 or text[i - 1] != " " or gold[i] != "inside"):
            predicted[i] = gold[i]
    paths = []
    for name, labels in (("gold", gold), ("system", predicted)):
        lines = task.render_lines(example, labels, "conllu")
        rows = [line.rstrip("\n").split("\t") for line in lines]
        for row in rows:
            if len(row) == 10:
                row[6:8] = ["0", "root"] if row[0] == "1" else ["1", "dep"]
        paths.append(tmp_path / f"{name}.conllu")
        paths[-1].write_text("".join("\t".join(row) + "\n" for row in rows))
    result = subprocess.run([program, "-v", *paths], capture_output=True, text=True)
    assert result.returncode == 0, result.stderr
    official = {}
    for line in result.stdout.splitlines():
        cells = [cell.strip() for cell in line.split("|")]
        if cells[0] in ("Words", "Sentences"):
            official[cells[0].lower()] = [float(cell) for cell in cells[1:4]]
    metric = task.metric()
    metric.add(task._labeled(sentence, text, tuple(gold)), predicted)
    found = metric.result()
    for what, numbers in official.items():
        ours = [found[f"{name}/{what}"] for name in ("precision", "recall", "f1")]
        assert [round(100 * number, 2) for number in ours] == numbers
    assert set(official) == {"words", "sentences"}
    assert 0.2 < found["f1/words"] < 1


# ------------------------------------------------------------------------------------- augmentation


def labeled(task: Tokenization, file: str) -> LabeledText:
    (example,) = task.annotated(sentences(file))
    return LabeledText("".join(example.tokens), list(example.labels))


def test_augmentation_keeps_text_and_labels_aligned():
    words = ["It", "does+", "n't", "rain+", "."]
    other = ["Wait", "...", "what+", "?!"]
    file = conllu(*[words, other] * 20) + conllu(words, comments="# newpar\n")
    task = fit("tokenization", sentences(file))
    pieces = cut_at_sentences(labeled(task, file * 9))
    assert len(pieces) > 5
    assert all(text.strip() == text and labels[0] == "sentence" for text, labels in pieces)
    edited = list(augmented(pieces * 20, seed=1))
    assert edited == list(augmented(pieces * 20, seed=1)) != list(augmented(pieces * 20, seed=2))
    expected = {"it", "does", "n't", "rain", ".", "wait", "...", "what", "?!"}
    seen = set()
    for text, labels in edited:
        assert len(text) == len(labels)
        for sentence in words_of(task, text, labels):
            assert {word.lower() for word in sentence} <= expected
            seen.add((sentence[-1].lower(), "\n" in text, "\n\n" in text))
    assert {("rain", True, False), ("rain", True, True), (".", False, False)} <= seen


def test_training_examples_are_pieces():
    file = conllu(*[["It", "rains+", "."]] * 200)
    task = fit("tokenization", sentences(file))
    examples = task.annotated(sentences(file))
    pieces = task.training_examples(examples, seed=0)
    assert sum(map(len, pieces)) > len(examples[0])
    assert max(map(len, pieces)) < 1000
    for piece in pieces:
        target = torch.tensor(task.target(piece))
        assert task.structure.follow[target[:-1], target[1:]].all()
        assert task.permitted_tags(piece)[torch.arange(len(piece)), target].all()
