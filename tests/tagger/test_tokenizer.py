"""The tokenizer: raw text in windows, offsets, unusual texts, and taggers that have one."""

import json
import random
import subprocess
import sys
from itertools import islice

import pytest
import torch

from bcrf.tagger import ModelError, Tagger, Tokenizer
from bcrf.tagger.prediction import tokenizer as tokenizer_module
from bcrf.tagger.tasks import Tokenization
from tests.cli_cases import environment
from tests.tagger_cases import trained
from tests.tampering import change_description, reseal
from tests.tokenizer_cases import TEXT, WORDS, load_tokenizer, train_tokenizer, treebank


@pytest.fixture(scope="module")
def tokenizer(tmp_path_factory) -> Tokenizer:
    return load_tokenizer(tmp_path_factory.mktemp("tokenizer"))


@pytest.fixture(scope="module")
def random_tokenizers(tokenizer) -> list[Tokenizer]:
    """Tokenizers with random weights, which are unsure; the second has transitions of pairs."""
    torch.manual_seed(1)
    found = []
    for transitions, labels in (("shared", 4), ("pairs", 5)):
        source = tokenizer.tagger
        from bcrf.tagger.nn import ModelConfig, TaggerModel

        names = ("inside", "word", "sentence", "space", "inner_space")[:labels]
        task = Tokenization(names)
        settings = source.model.config.to_dict() | {"transitions": transitions}
        sizes = source.vocabularies.sizes(labels)
        model = TaggerModel(ModelConfig.from_dict(settings), sizes, task.structure)
        with torch.no_grad():
            for parameter in model.scorer.parameters():
                parameter.normal_()
        found.append(Tokenizer(Tagger(model, task, source.vocabularies)))
    return found


def random_text(length: int, seed: int) -> str:
    chance = random.Random(seed)
    return "".join(chance.choice("Adi tsno' .?!  \n\n\t\u200b") for _ in range(length))


def check_offsets(text: str, sentences) -> None:
    """Check that the sentences cover the text, besides white space, and that offsets are right."""
    done = 0
    invisible = str.maketrans("", "", "\u200b\u2060\ufeff")
    for sentence in sentences:
        start, stop = sentence.offset, sentence.offset + len(sentence.text)
        assert start >= done
        assert not text[done:start].translate(invisible).strip()
        assert text[start:stop] == sentence.text
        assert sentence.first_line == 1 + text.count("\n", 0, start)
        place = 0
        for word in sentence.words:
            found = sentence.text.index(word, place)
            assert not sentence.text[place:found].translate(invisible).strip()
            place = found + len(word)
        assert place == len(sentence.text)
        done = stop
    assert not text[done:].translate(invisible).strip()


def test_words_and_sentences(tokenizer):
    found = tokenizer.split(TEXT)
    assert [sentence.words for sentence in found] == WORDS
    assert [sentence.text for sentence in found] == [TEXT[:24], TEXT[25:]]
    assert [sentence.offset for sentence in found] == [0, 25]
    assert repr(tokenizer).startswith("Tokenizer(Tagger(task=tokenization,")


@pytest.mark.parametrize("block", [1, 7, 64, 1000])
def test_windows_give_the_sentences_of_the_whole_text(random_tokenizers, monkeypatch, block):
    """The text is longer than all windows, and ends at each place of a window."""
    for number, tokenizer in enumerate(random_tokenizers):
        for length in (900, 901, 902, 903, 904, 64, 128):
            text = random_text(length, seed=length + number)
            monkeypatch.setattr(tokenizer_module, "BLOCK", 4096)
            monkeypatch.setattr(tokenizer_module, "OVERLAP", 0)
            monkeypatch.setattr(tokenizer_module, "_PIECE", 1 << 16)
            whole = tokenizer.split(text)
            check_offsets(text, whole)
            if block < 64 and number:  # many blocks have no white space whose label is known
                continue
            monkeypatch.setattr(tokenizer_module, "BLOCK", max(block, 40))
            monkeypatch.setattr(tokenizer_module, "_PIECE", block)
            again = tokenizer.split(text)
            assert [(s.offset, s.words) for s in again] == [(s.offset, s.words) for s in whole]


def test_texts_in_pieces_give_the_same_sentences(tokenizer):
    text = random_text(3000, seed=5)
    whole = [(s.offset, s.words, s.first_line) for s in tokenizer.split(text)]
    for size in (1, 10, 777):
        pieces = [text[i : i + size] for i in range(0, len(text), size)]
        found = tokenizer.sentences(["", *pieces, ""], "file")
        assert [(s.offset, s.words, s.first_line) for s in found] == whole


def test_a_text_equals_the_evaluation_of_it(tokenizer, tmp_path):
    """The labels of the windows are those that evaluation computes another way."""
    file = tmp_path / "gold.conllu"
    file.write_text(treebank())
    evaluation = tokenizer.tagger.evaluate(file)
    (example,) = tokenizer.tagger.task.annotated(_read(file))
    metric = tokenizer.tagger.task.metric()
    text = "".join(example.tokens)
    labels = ["space"] * len(text)
    for tagged in tokenizer.stream([text]):
        start = tagged.sentence.offset
        labels[start : start + len(tagged.labels)] = tagged.labels
    metric.add(example, labels)
    assert metric.result() == evaluation.scores
    assert evaluation.scores["f1"] > 0.95


def _read(file):
    from bcrf.tagger.data import read

    return list(read(file))


@pytest.mark.parametrize(
    ("text", "words"),
    [
        ("", []),
        (" \t\r\n \n\n ", []),
        ("\ufeff", []),
        ("\ufeffRome.\r\n", [["Rome", "."]]),
        ("Rome.\r\n\r\nRome.", [["Rome", "."], ["Rome", "."]]),
        ("Rome\n\nRome", [["Rome"], ["Rome"]]),
    ],
)
def test_unusual_texts(tokenizer, text, words):
    found = tokenizer.split(text)
    assert [list(sentence.words) for sentence in found] == words
    check_offsets(text.removeprefix("\ufeff"), found)


@pytest.mark.parametrize(
    "text",
    [
        "see http://example.org/a?b=c&d#e, or mail ada@example.org :-)",
        "tab\tand\vform\ffeed\x85next\u2028line\x1cfile",
        "zero\u200bwidth \u200d joiner\u200d \u0301mark e\u0301\u0301 \u200c",
        "👩\u200d👩\u200d👧\u200d👦 👍🏽👍🏿 🇮🇹 ✌\ufe0f",
        "\x00\x01 \x7f \ue000 \U000e0001 \ud7ff",
        "我们看见了。مرحبا שלום ไทย",
        "A" * 100 + "." * 100 + "!?" * 50,
    ],
)
def test_all_characters_are_kept(tokenizer, random_tokenizers, text):
    for one in (tokenizer, *random_tokenizers):
        check_offsets(text, one.split(text))


def test_graphemes_are_not_divided(random_tokenizers):
    for tokenizer in random_tokenizers:
        for sentence in tokenizer.split("e\u0301o\u0308 👩\u200d👧 👍🏽 ✌\ufe0f " * 9):
            for word in sentence.words:
                assert word[0] not in "\u0301\u0308\u200d🏽\ufe0f"


def test_very_long_words_and_sentences_are_divided(tokenizer, monkeypatch):
    monkeypatch.setattr(tokenizer_module, "LONGEST_SENTENCE", 1000)
    monkeypatch.setattr(tokenizer_module, "BLOCK", 300)
    for text in ("a" * 5000, "and " * 2000, "a" * 1500 + " and " * 300 + "b" * 3000):
        found = tokenizer.split(text)
        check_offsets(text, found)
        assert max(len(sentence.text) for sentence in found) < 2000


def test_sentences_of_a_line_do_not_wait_for_the_next_line(tokenizer):
    read: list[int] = []

    def lines():
        for number in range(3):
            read.append(number)
            yield "\ufeff" * (number == 0) + TEXT + "\r\n"

    found = tokenizer.sentences(lines(), "file", line_by_line=True)
    assert [sentence.words for sentence in islice(found, 2)] == WORDS
    assert read == [0]
    rest = [(sentence.offset, sentence.first_line) for sentence in found]
    size = len(TEXT) + 2
    assert rest == [(size, 2), (size + 25, 2), (2 * size, 3), (2 * size + 25, 3)]


MEMORY = """
import resource, sys
import torch
from bcrf.tagger import Tokenizer
torch.set_num_threads(1)
tokenizer = Tokenizer.load(sys.argv[1], "cpu")
list(tokenizer.sentences(["Rome is old. " * 1000]))
before = resource.getrusage(resource.RUSAGE_SELF).ru_maxrss
count = sum(1 for _ in tokenizer.sentences(["Rome is old. "] * 40_000))
assert count == 40_000, count
print(resource.getrusage(resource.RUSAGE_SELF).ru_maxrss - before)
"""


@pytest.mark.skipif(sys.platform != "linux", reason="measures kilobytes")
def test_memory_does_not_grow_with_the_text(tokenizer, tmp_path):
    """Half a megabyte without a line end; all at once, the labels and scores would take 100 MB."""
    tokenizer.tagger.save(tmp_path / "model")
    command = [sys.executable, "-c", MEMORY, str(tmp_path / "model")]
    output = subprocess.run(
        command, capture_output=True, text=True, check=True, env=environment()
    ).stdout
    assert int(output) < 20_000


# ------------------------------------------------------------------------------------------ taggers


@pytest.fixture(scope="module")
def tagger(tmp_path_factory, tokenizer) -> Tagger:
    tagger = trained(tmp_path_factory.mktemp("pos"), training={"epochs": 1})
    tagger.tokenizer = tokenizer
    return tagger


def test_a_tagger_has_a_tokenizer(tagger, tmp_path):
    tagger.save(tmp_path / "model")
    again = Tagger.load(tmp_path / "model", "cpu")
    names = {p.relative_to(tmp_path / "model").as_posix() for p in (tmp_path / "model").rglob("*")}
    assert names == {
        "model.json",
        "model.safetensors",
        "tokenizer",
        "tokenizer/model.json",
        "tokenizer/model.safetensors",
    }
    found = again.tag_text(TEXT, probabilities=True)
    assert [tagged.words for tagged in found] == WORDS
    assert [tagged.sentence.offset for tagged in found] == [0, 25]
    record = json.loads(found[1].render("jsonl"))
    assert (record["text"], record["offset"]) == ("She didn't stay.", 25)
    assert record["starts"] == [0, 4, 7, 11, 15]
    again.save(tmp_path / "model")  # replaces it
    Tagger.load(tmp_path / "model", "cpu").tokenizer = None


def test_a_tagger_without_a_tokenizer_says_so(tmp_path):
    tagger = trained(tmp_path, training={"epochs": 1})
    with pytest.raises(ValueError, match="the tagger has no tokenizer; pass lists of words"):
        tagger.tag_text(TEXT)
    with pytest.raises(ValueError, match="expected a model of the task tokenization, got one of p"):
        Tokenizer(tagger)
    tagger.save(tmp_path / "model")
    with pytest.raises(ModelError, match="model: expected a model of the task tokenization, got"):
        Tokenizer.load(tmp_path / "model", "cpu")


def test_tokenizers_in_folders_are_checked(tagger, tmp_path):
    tagger.save(tmp_path / "model")
    weights = tmp_path / "model" / "tokenizer" / "model.safetensors"
    saved = weights.read_bytes()
    weights.write_bytes(saved[:-1] + bytes([saved[-1] ^ 1]))
    with pytest.raises(ModelError, match=r"tokenizer/model\.safetensors: has been changed"):
        Tagger.load(tmp_path / "model", "cpu")
    weights.unlink()
    with pytest.raises(ModelError, match=r"tokenizer/model\.safetensors: is missing"):
        Tagger.load(tmp_path / "model", "cpu")


def test_a_tokenizer_cannot_be_another_model(tagger, tmp_path):
    tagger.save(tmp_path / "model")
    inner = tmp_path / "model" / "tokenizer"
    for name in ("model.json", "model.safetensors"):
        (inner / name).write_bytes((tmp_path / "model" / name).read_bytes())
    values = json.loads((inner / "model.json").read_text())
    files = {name: digest for name, digest in values["files"].items() if "/" not in name}
    change_description(inner, lambda document: document.update(files=files))
    reseal(tmp_path / "model")
    with pytest.raises(ModelError, match="expected a model of the task tokenization, got one of p"):
        Tagger.load(tmp_path / "model", "cpu")


def test_a_tokenizer_cannot_have_a_tokenizer(tokenizer, tmp_path):
    outer = Tokenizer(Tagger.load(_saved(tokenizer, tmp_path / "inner"), "cpu"))
    outer.tagger.tokenizer = tokenizer
    outer.tagger.save(tmp_path / "outer")
    tagger = Tagger.load(tmp_path / "outer", "cpu")  # useless, but harmless
    tagger.tokenizer = outer
    with pytest.raises(ModelError, match="is not the name of a file of a model"):
        tagger.save(tmp_path / "nested")


def _saved(tokenizer: Tokenizer, folder):
    tokenizer.tagger.save(folder)
    return folder


def test_tokenizers_of_other_networks(tmp_path):
    """Word embeddings of characters, with self-attentive layers, work as well."""
    path = train_tokenizer(
        tmp_path,
        model={"features": "none", "layers": 1, "width": 16, "heads": 2, "hidden": 16},
        training={"epochs": 1, "batch": 4, "batch_unit": "sentences"},
    )
    text = random_text(2000, seed=8)
    check_offsets(text, Tokenizer.load(path, "cpu").split(text))
