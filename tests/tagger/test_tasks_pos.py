"""Part-of-speech tagging of given words."""

import io
import json

import pytest

from bcrf.tagger.data import DataError, Vocabulary, read
from bcrf.tagger.tasks import fit, from_dict, repair_all


def sentences(text: str, format: str = "conllu"):
    return list(read(io.BytesIO(text.encode()), format, name="file"))


def conllu(*rows: str, end: str = "\n") -> str:
    """Each row has words as form/UPOS/XPOS."""
    lines = []
    for row in rows:
        for number, word in enumerate(row.split(), 1):
            form, upos, xpos = word.split("/")
            lines.append(f"{number}\t{form}\t_\t{upos}\t{xpos}" + "\t_" * 5)
        lines.append("")
    return "".join(line + end for line in lines)


TEXT = conllu("The/DET/DT cat/NOUN/NN", "Stop/VERB/VB")


def test_labels_are_those_of_the_column():
    upos, xpos = fit("pos", sentences(TEXT)), fit("pos", sentences(TEXT), {"column": "xpos"})
    assert upos.labels == ("DET", "NOUN", "VERB")
    assert xpos.labels == ("DT", "NN", "VB")
    assert upos.structure is None
    first, _ = upos.annotated(sentences(TEXT))
    assert first.labels == ("DET", "NOUN")
    assert upos.target(first) == [0, 1]
    assert upos.allowed(first).tolist() == [[True, False, False], [False, True, False]]
    assert upos.permitted_tags(first) is None
    assert from_dict(json.loads(json.dumps(xpos.to_dict()))) == xpos
    with pytest.raises(ValueError, match="column must be one of upos, xpos, got 'lemma'"):
        fit("pos", sentences(TEXT), {"column": "lemma"})
    with pytest.raises(ValueError, match="task must be one of pos, segmentation, ner"):
        fit("parsing", sentences(TEXT))


def test_missing_and_unseen_tags_are_named():
    task = fit("pos", sentences(TEXT))
    with pytest.raises(DataError, match=r"file:2: the word has no upos: found '_'"):
        task.annotated(sentences(conllu("a/X/X b/_/X")))
    (example,) = task.annotated(sentences(conllu("a/DET/X b/INTJ/X")))
    with pytest.raises(
        DataError, match=r"file:2: 'INTJ' is not among the 3 labels of the training data"
    ):
        task.target(example)


def test_accuracy_also_of_unknown_words():
    task = fit("pos", sentences(TEXT))
    words = Vocabulary.build(["the", "cat"], lowercase=True)
    metric = task.metric(words)
    examples = task.annotated(sentences(conllu("The/DET/_ dog/NOUN/_ ran/VERB/_", "Go/VERB/_")))
    metric.add(examples[0], ["DET", "NOUN", "DET"])
    metric.add(examples[1], ["VERB"])
    assert metric.result() == {
        "accuracy": 3 / 4,
        "tokens": 4,
        "unknown_accuracy": 2 / 3,
        "unknown_tokens": 3,
    }
    assert metric.main == "accuracy"
    assert task.metric().result() == {"accuracy": 0, "tokens": 0}
    with pytest.raises(ValueError, match="zip"):
        metric.add(examples[1], [])


def test_render_into_every_format():
    task = fit("pos", sentences(TEXT))
    source = conllu("a/X/Y b/X/Y", end="\r\n")
    example = task.example(sentences(source)[0])
    assert task.render(example, ["P", "Q"]) == conllu("a/P/Y b/Q/Y", end="\r\n")
    assert task.render(example, ["P", "Q"], "columns") == "a\tP\nb\tQ\n\n"
    assert json.loads(task.render(example, ["P", "Q"], "jsonl")) == {
        "words": ["a", "b"],
        "tags": ["P", "Q"],
    }
    (text, empty) = sentences("a b\n\n", "text")
    expected = conllu("a/P/_ b/Q/_")
    assert task.render(task.example(text), ["P", "Q"]) == "# text = a b\n" + expected
    assert task.render(task.example(empty), []) == "# text =\n\n"
    assert task.render(task.example(empty), [], "columns") == "\n"
    with pytest.raises(ValueError, match="zip"):
        task.render(example, ["P"])


def test_nothing_to_repair():
    task = fit("pos", sentences(TEXT))
    examples = task.annotated(sentences(TEXT))
    assert repair_all(task, examples, [["VERB", "DET"], ["X"]]) == ([["VERB", "DET"], ["X"]], 0)
