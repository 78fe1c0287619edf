"""Named entities: schemes converted, partial labels, metrics that equal seqeval's."""

import io
import itertools
import json
import random

import pytest
import torch
from hypothesis import given
from hypothesis import strategies as st
from nervaluate import Evaluator
from seqeval import metrics as seqeval

from bcrf import ForwardBackward, LinearChain
from bcrf.tagger.data import DataError, read
from bcrf.tagger.tasks import (
    Example,
    Ner,
    Span,
    encode_spans,
    find_spans,
    fit,
    from_dict,
    repair_all,
)


def sentences(text: str, name: str = "file.conll", format: str = "columns"):
    return list(read(io.BytesIO(text.encode()), format, name=name))


def column_file(*rows: str) -> str:
    """Each row has the labels of a sentence."""
    return "".join("".join(f"w {label}\n" for label in row.split()) + "\n" for row in rows)


def ner(*rows: str, **settings) -> Ner:
    return fit("ner", sentences(column_file(*rows)), settings)


IOB2 = ("B-PER I-PER B-PER O B-LOC", "O O", "B-LOC B-PER I-PER I-PER")
IOB1 = ("I-PER I-PER B-PER O I-LOC", "O O", "I-LOC I-PER I-PER I-PER")
BIOES = ("B-PER E-PER S-PER O S-LOC", "O O", "S-LOC B-PER I-PER E-PER")
BILOU = ("B-PER L-PER U-PER O U-LOC", "O O", "U-LOC B-PER I-PER L-PER")


@pytest.mark.parametrize("rows", [IOB2, IOB1, BIOES, BILOU], ids=["IOB2", "IOB1", "BIOES", "BILOU"])
@pytest.mark.parametrize(("scheme", "expected"), [("IOB2", IOB2), ("BIOES", BIOES)])
def test_every_scheme_is_converted(rows, scheme, expected):
    task = ner(*rows, scheme=scheme)
    letters = {"IOB2": "BI", "BIOES": "BIES"}[scheme]
    assert task.labels == ("O", *(f"{x}-{t}" for t in ("LOC", "PER") for x in letters))
    assert task.types == ("LOC", "PER")
    examples = task.annotated(sentences(column_file(*rows)))
    assert [" ".join(example.labels) for example in examples] == list(expected)
    assert [task.labels[i] for i in task.target(examples[0])] == expected[0].split()


def test_each_file_has_its_own_scheme():
    task = ner(*IOB2)
    mixed = sentences(column_file(*IOB1), "a") + sentences(column_file(*BIOES), "b")
    assert [" ".join(example.labels) for example in task.annotated(mixed)] == [*IOB2, *IOB2]


def test_entities_of_conllu_and_jsonl():
    conllu = "1\ta" + "\t_" * 7 + "\tNER=B-X\n2\tb" + "\t_" * 8 + "\n"
    task = fit("ner", sentences(conllu, format="conllu"))
    assert task.annotated(sentences(conllu, format="conllu"))[0].labels == ("B-X", "O")
    record = '{"words": ["a", "b"], "tags": ["I-X", "O"]}\n'
    assert task.annotated(sentences(record, format="jsonl"))[0].labels == ("B-X", "O")


def test_labels_without_a_type():
    task = ner("B I O", "B B O")
    assert task.labels == ("O", "B", "I")
    assert task.structure.num_tags == 3


@pytest.mark.parametrize(
    ("rows", "message"),
    [
        (
            ("B-X O", "O I-X"),
            "file.conll:5: 'I-X' after 'O' and at the end of the sentence is ill-formed in IOB2",
        ),
        (("I-X B-X O", "B-X O", "I-X"), "file.conll:5: 'B-X' at the start of a sentence"),
        (
            ("S-X", "B-X I-X", "S-X"),
            "file.conll:4: 'I-X' after 'B-X' and at the end of the sentence",
        ),
        (("B-X O", "O B-"), "file.conll:5: 'B-' is not a label"),
        (("B-X N-X",), "file.conll:2: 'N-X' is not a label"),
    ],
)
def test_ill_formed_files_are_refused(rows, message):
    task = ner("B-X I-X O")
    with pytest.raises(DataError) as caught:
        task.annotated(sentences(column_file(*rows)))
    assert message in str(caught.value)


def test_the_error_of_an_ill_formed_file_names_the_remedy():
    """CoNLL-2003, as it circulates, is IOB1 with two B- that follow O."""
    task = ner("B-X I-X O")
    file = column_file("I-X B-X O", "O I-X", "O B-X", "I-X", "B-X O")
    with pytest.raises(DataError) as caught:
        task.annotated(sentences(file))
    message = str(caught.value)
    assert message.startswith(
        "file.conll:9: 'B-X' after 'O' and at the end of the sentence is ill-formed in IOB1"
    )
    assert "2 of 5 sentences of the file are ill-formed" in message
    assert "`bcrf check --task ner`" in message
    assert "Train with --data.strict false" in message
    task = ner("B-X I-X O", strict=False)
    with pytest.warns(
        UserWarning, match=r"file\.conll:9: .* 2 of 5 sentences .* as conlleval does"
    ):
        lenient = task.annotated(sentences(file))
    assert [" ".join(example.labels) for example in lenient] == [
        "B-X B-X O",
        "O B-X",
        "O B-X",
        "B-X",
        "B-X O",
    ]


def test_without_strict_ill_formed_files_are_read_as_by_conlleval():
    task = ner("B-X I-X O", strict=False)
    with pytest.warns(UserWarning, match="One sentence of the file is ill-formed; they"):
        (first, second) = task.annotated(sentences(column_file("B-X O", "O I-X")))
    assert second.labels == ("O", "B-X")
    assert first.labels == ("B-X", "O")


def test_files_without_mentions_are_refused():
    with pytest.raises(DataError, match=r"file.conll: no mention found"):
        ner("O O")
    with pytest.raises(ValueError, match="no setting 'sheme'; expected scheme, strict"):
        ner("B-X", sheme="IOB2")
    with pytest.raises(ValueError, match="scheme must be one of IOB2, BIOES, got 'IOB1'"):
        ner("B-X", scheme="IOB1")


def test_unseen_labels_are_errors_when_tags_are_needed():
    task = ner("B-X I-X O")
    (example,) = task.annotated(sentences(column_file("O B-Y")))
    assert example.labels == ("O", "B-Y")
    with pytest.raises(DataError, match=r"file.conll:2: 'B-Y' is not among the 3 labels"):
        task.target(example)


def test_task_round_trip_through_json():
    task = ner(*IOB2, scheme="BIOES")
    assert from_dict(json.loads(json.dumps(task.to_dict()))) == task
    for bad, message in [
        (
            {"task": "chunking"},
            "task must be one of pos, segmentation, ner, tokenization, got 'chunking'",
        ),
        ({}, "got None"),
        (
            {"task": "ner", "labels": ["O"]},
            "the ner task has the fields labels, scheme, strict; got labels",
        ),
        (task.to_dict() | {"labels": "O"}, "labels must be a list of strings"),
        (task.to_dict() | {"scheme": "X"}, "scheme must be one of"),
    ]:
        with pytest.raises(ValueError, match=message):
            from_dict(bad)


# ----------------------------------------------------------------------------------- partial labels


def test_partial_labels_of_files():
    task = ner(*IOB2)
    full, partial = task.annotated(sentences(column_file("B-PER I-PER O", "? B-PER|B-LOC I-PER")))
    assert full.labels == ("B-PER", "I-PER", "O")
    assert full.allowed is None
    assert partial.labels is None
    assert partial.allowed == (None, {"B-PER", "B-LOC"}, {"I-PER"})
    expected = torch.zeros(3, 5, dtype=torch.bool)
    expected[0] = True
    expected[1, [task.labels.index("B-PER"), task.labels.index("B-LOC")]] = True
    expected[2, task.labels.index("I-PER")] = True
    assert torch.equal(task.allowed(partial), expected)
    assert task.allowed(full).sum(-1).tolist() == [1, 1, 1]
    with pytest.raises(DataError, match="the sentence has partial labels or none"):
        task.metric().add(partial, ["O", "O", "O"])


def test_fit_collects_types_from_partial_labels():
    assert ner("? B-X|I-Y").labels == ("O", "B-X", "I-X", "B-Y", "I-Y")


@pytest.mark.parametrize(
    ("row", "message"),
    [
        ("? S-PER", "file.conll:2: 'S-PER' is not a label of IOB2; a file with partial labels"),
        ("? B-ORG|O", "file.conll:2: 'B-ORG' is not among the 5 labels of the model"),
        ("? O I-PER|I-LOC", "file.conll:3: none of these labels can stand here"),
        ("I-PER ?", "file.conll:1: none of these labels can stand here"),
        ("? B-PER|", "file.conll:2: '' is not a label"),
    ],
)
def test_impossible_partial_labels(row, message):
    with pytest.raises(DataError) as caught:
        ner(*IOB2).annotated(sentences(column_file(row)))
    assert message in str(caught.value)


def well_formed(task: Ner, length: int) -> list[tuple[str, ...]]:
    return [
        labels
        for labels in itertools.product(task.labels, repeat=length)
        if encode_spans(find_spans(labels), length, task.scheme) == list(labels)
    ]


@pytest.mark.parametrize("scheme", ["IOB2", "BIOES"])
@pytest.mark.parametrize("reading", ["exclusive", "literal"])
@pytest.mark.parametrize("row", ["B-PER I-PER O B-LOC", "B-PER B-PER B-LOC O", "B-LOC O O O"])
def test_partial_split_allows_the_labels_of_its_reading(scheme, reading, row):
    task = ner(*IOB2, scheme=scheme)
    (example,) = task.annotated(sentences(column_file(row)))
    every = well_formed(task, 4)
    expected = []
    for kind in task.types:
        own = mentions(example.labels, kind)
        if reading == "exclusive":  # exactly the mentions of this type are annotated
            expected.append({labels for labels in every if mentions(labels, kind) == own})
        else:
            same = {i: example.labels[i] for span in own for i in range(span.start, span.end)}
            expected.append({x for x in every if all(x[i] == y for i, y in same.items())})
    found = []
    for partial in task.partial_split([example, example], reading=reading):  # one of each type
        assert partial.labels is None
        mask = task.allowed(partial)
        rows = [{x for x, ok in zip(task.labels, row, strict=True) if ok} for row in mask.tolist()]
        found.append({x for x in every if all(map(set.__contains__, rows, x))})
        # The core counts the same number of sequences.
        chain = LinearChain(torch.zeros(1, 4, len(task.labels), dtype=torch.float64))
        chain = chain.constrain(task.structure).restrict(mask.unsqueeze(0))
        assert round(ForwardBackward()(chain).value.exp().item()) == len(found[-1])
    assert found in (expected, expected[::-1])


def mentions(labels, kind: str) -> list[Span]:
    return [span for span in find_spans(labels) if span.type == kind]


def test_partial_split_makes_equal_parts():
    task = ner("B-A", "B-B", "B-C", "O")
    examples = task.annotated(sentences(column_file(*["B-A B-B B-C"] * 100)))
    split = task.partial_split(examples, seed=1)
    kinds = [
        next(t for i, t in enumerate("ABC") if example.allowed[i] == {f"B-{t}"})
        for example in split
    ]
    assert sorted(map(kinds.count, "ABC")) == [33, 33, 34]
    assert split == task.partial_split(examples, seed=1)
    assert split != task.partial_split(examples, seed=2)
    assert [e.tokens for e in split] == [e.tokens for e in examples]
    with pytest.raises(ValueError, match="reading must be one of exclusive, literal"):
        task.partial_split(examples, reading="loose")


# ---------------------------------------------------------------------------------- repair, metrics


def test_repair_is_counted():
    task = ner("B-X I-X O")
    examples = [Example(("a", "b"), None)] * 3
    repaired = repair_all(task, examples, [["O", "I-X"], ["B-X", "I-X"], ["I-X", "I-X"]])
    assert repaired.sequences == [["O", "B-X"], ["B-X", "I-X"], ["B-X", "I-X"]]
    assert repaired.changed == 2


LABELS = ["O", "O", "O", *(f"{x}-{t}" for t in ("PER", "LOC", "X-y") for x in "BIES")]


def corpus(chance: random.Random, labels: list[str]) -> tuple[list[list[str]], list[list[str]]]:
    """Return gold and predicted sequences that agree in part; both may be ill-formed."""
    gold = [[chance.choice(labels) for _ in range(chance.randrange(1, 9))] for _ in range(20)]
    predicted = [
        [x if chance.random() < 0.7 else chance.choice(labels) for x in row] for row in gold
    ]
    return gold, predicted


def result(gold, predicted):
    metric = ner("B-PER").metric()
    for row, found in zip(gold, predicted, strict=True):
        metric.add(Example(("w",) * len(row), None, tuple(row)), found)
    return metric.result()


@pytest.mark.parametrize("seed", range(5))
def test_scores_are_those_of_seqeval_on_ill_formed_labels_too(seed):
    gold, predicted = corpus(random.Random(seed), LABELS)
    ours = result(gold, predicted)
    assert 0 < ours["f1"] < 1
    assert ours["f1"] == pytest.approx(seqeval.f1_score(gold, predicted))
    assert ours["precision"] == pytest.approx(seqeval.precision_score(gold, predicted))
    assert ours["recall"] == pytest.approx(seqeval.recall_score(gold, predicted))
    report = seqeval.classification_report(gold, predicted, output_dict=True)
    for kind in ("PER", "LOC", "X-y"):
        assert ours[f"f1/{kind}"] == pytest.approx(report[kind]["f1-score"])
        assert ours[f"precision/{kind}"] == pytest.approx(report[kind]["precision"])
        assert ours[f"recall/{kind}"] == pytest.approx(report[kind]["recall"])
    assert ours["mentions"] == report["micro avg"]["support"]


@pytest.mark.parametrize("seed", range(3))
def test_nervaluate_agrees_on_iob2_and_refuses_bioes(seed):
    labels = [label for label in LABELS if label[0] in "BIO"]
    gold, predicted = (
        [encode_spans(find_spans(row), len(row), "IOB2") for row in rows]
        for rows in corpus(random.Random(seed), labels)
    )
    kinds = ["PER", "LOC", "X-y"]
    strict = Evaluator(gold, predicted, tags=kinds, loader="list").evaluate()["overall"]["strict"]
    assert result(gold, predicted)["f1"] == pytest.approx(strict.f1)
    with pytest.raises(ValueError, match="Invalid tag format"):
        Evaluator([["S-PER"]], [["S-PER"]], tags=kinds, loader="list").evaluate()


def test_scores_without_mentions_are_zero():
    assert result([["O"]], [["O"]]) == {"f1": 0, "precision": 0, "recall": 0, "mentions": 0}
    assert result([], [])["f1"] == 0
    with pytest.raises(ValueError, match="expected 2 predicted labels, one for each token, got 1"):
        result([["O", "O"]], [["O"]])


@given(st.lists(st.sampled_from(LABELS), min_size=1, max_size=6))
def test_a_repair_never_changes_the_score(labels):
    task = ner("B-PER", "B-LOC", "B-X-y", scheme="BIOES")
    example = Example(("w",) * len(labels), None)
    repaired = task.repair(example, labels)
    assert result([labels], [repaired])["f1"] == (1 if find_spans(labels) else 0)


# ------------------------------------------------------------------------------------------- output


def test_render_writes_into_the_input_or_composes():
    task = ner("B-X I-X O")
    (sentence,) = sentences("a O\r\nb O\r\n\r\n")
    example = task.example(sentence)
    assert example.labels is None
    labels = ["B-X", "I-X"]
    assert task.render(example, labels) == "a B-X\r\nb I-X\r\n\r\n"
    assert json.loads(task.render(example, labels, "jsonl", [0.5, 1.0])) == {
        "words": ["a", "b"],
        "tags": labels,
        "probabilities": [0.5, 1.0],
        "entities": [
            {"start": 0, "end": 3, "label": "X", "text": "a b", "start_word": 0, "end_word": 2}
        ],
    }
    (text,) = sentences("a  b\n", format="text")
    assert task.render(task.example(text), labels) == "a\tB-X\nb\tI-X\n\n"
    assert task.render(task.example(text), labels, "conllu").splitlines() == [
        "# text = a  b",
        "1\ta" + "\t_" * 7 + "\tSpacesAfter=\\s\\s|NER=B-X",
        "2\tb" + "\t_" * 7 + "\tNER=I-X",
        "",
    ]
    with pytest.raises(ValueError, match="raw text cannot hold tags"):
        task.render(example, labels, "text")
