"""The decoders of the tables, and the evaluation of a model with all of them at once."""

from __future__ import annotations

import pytest
import torch

from bcrf import Bregman, LinearChain, Structure, certified_decode, decode, viterbi
from bcrf.tagger.data import read
from bcrf.tagger.nn import decoder as library_decoder
from bcrf.tagger.nn import training_solver
from reproduction.evaluation import evaluate
from reproduction.methods import Method, agreement, decoder, loss_solver, objective_title
from tests.reproduction_cases import SAMPLES
from tests.tagger_cases import config, trained

LABELS = [f"{prefix}-{kind}" for kind in "XY" for prefix in "BIES"]


def chains(batch: int = 12) -> LinearChain:
    generator = torch.Generator().manual_seed(5)
    unary = torch.randn(batch, 9, 8, generator=generator)
    pairs = torch.randn(batch, 8, 8, 8, generator=generator)
    lengths = torch.randint(1, 10, (batch,), generator=generator)
    chain = LinearChain(unary, pairs, lengths)
    return chain.constrain(Structure.from_labels(LABELS, "BIES"))


NAMES = [
    "viterbi",
    "unstructured",
    "mean_field-3",
    "bregman-5",
    "bregman-5-relaxed",
    "certified-5",
]


@pytest.mark.parametrize("name", NAMES)
@pytest.mark.parametrize("backend", ["auto", "torch"])
def test_decoders_equal_those_of_the_library(name, backend):
    chain = chains()
    torch.testing.assert_close(decoder(name, backend)(chain).tags, library_decoder(name)(chain))


@pytest.mark.parametrize("backend", ["auto", "torch"])
def test_half_split_projections_are_not_relaxed(backend):
    chain = chains(40)
    found = decoder("bregman-3-half", backend)(chain).tags
    expected = decode(Bregman(3, relaxation=1.0, gauge="half"), chain, 0.1)
    torch.testing.assert_close(found, expected)
    for other in ("bregman-3", "bregman-3-relaxed"):  # it differs from both
        assert not torch.equal(found, decoder(other)(chain).tags)


def test_the_certified_decoder_reports_certified_sentences():
    chain = chains(40)
    found = decoder("certified-5")(chain)
    assert found.certified is not None
    assert 0 < int(found.certified.sum()) < 40
    torch.testing.assert_close(found.certified, certified_decode(chain, 5, 0.1).certified)
    assert decoder("viterbi")(chain).certified is None


def test_solvers_use_the_given_backend():
    assert loss_solver("crf", "torch").backend == "torch"
    assert loss_solver("bregman-7", "torch") == training_solver("bregman-7").__class__(
        7, None, 1.0, gauge="right", first=2, marginals="outgoing", backend="torch"
    )
    assert loss_solver("mean_field-3", "torch") == training_solver("mean_field-3")


@pytest.mark.parametrize(
    "name",
    [
        *("bregman", "certified", "", "viterbi-3", "unstructured-1", "bregman-0", "bregman-5-"),
        *("bregman-5-slow", "mean_field-5-half", "certified-5-relaxed", "viterbi-mbr"),
        *("certified-5-mbr", "bregman-mbr", "bregman-5-mbr-relaxed"),
    ],
)
def test_wrong_names_are_errors(name):
    with pytest.raises(ValueError, match="decoder must be one of viterbi, certified-K, "):
        Method.parse(name)


@pytest.mark.parametrize(
    ("name", "title", "ours"),
    [
        ("viterbi", "Viterbi", False),
        ("mean_field-5", "MF, 5 it.", False),
        ("bregman-10", "BCRF, 10 it.", False),
        ("bregman-10-half", "ours: BCRF half-split, 10 it.", True),
        ("bregman-10-relaxed", "ours: BCRF relaxed, 10 it.", True),
        ("certified-10", "ours: certified, 10 it.", True),
        ("bregman-10-mbr", "ours: BCRF, 10 it., MBR repair", True),
        ("unstructured-mbr", "ours: Unstructured, MBR repair", True),
    ],
)
def test_our_decoders_are_labelled(name, title, ours):
    method = Method.parse(name)
    assert (method.title, method.ours) == (title, ours)


def test_our_objectives_are_labelled():
    assert objective_title("bregman") == "BCRF training"
    assert objective_title("bregman-10-relaxed") == "ours: BCRF training, 10 projections, relaxed"


def test_agreement_counts_tokens_and_sentences():
    one = torch.tensor([[1, 2, 3], [1, 2, -100], [-100, -100, -100]])
    other = torch.tensor([[1, 2, 4], [1, 2, -100], [-100, -100, -100]])
    assert agreement(one, other) == (4, 2)
    assert agreement(one, one) == (5, 3)


@pytest.mark.parametrize("task", ["pos", "segmentation", "ner"])
def test_evaluation_equals_that_of_the_tagger_for_every_decoder(tmp_path, task):
    tagger = trained(tmp_path, task, model={"objective": "crf"}, training={"epochs": 2})
    examples = tagger.task.annotated(list(read(config(tmp_path, task).data.dev)))
    found = evaluate(tagger, examples, NAMES)
    assert list(found) == NAMES
    best = tagger.tag([e.sentence for e in examples], decoder="viterbi", repair="none")
    repaired = 0
    for name in NAMES:
        expected = tagger.evaluate_examples(examples, name, "rule")
        assert found[name]["score"] == pytest.approx(expected.score, abs=1e-6)
        assert found[name]["scores"] == pytest.approx(expected.scores, abs=1e-6)
        assert found[name]["ill_formed"] == expected.repaired
        repaired += expected.repaired
        raw = tagger.tag([e.sentence for e in examples], decoder=name, repair="none")
        pairs = [list(zip(a.labels, b.labels, strict=True)) for a, b in zip(raw, best, strict=True)]
        tokens = [x == y for pair in pairs for x, y in pair]
        assert found[name]["agreement"] == pytest.approx(sum(tokens) / len(tokens), abs=1e-6)
        same = [all(x == y for x, y in pair) for pair in pairs]
        assert found[name]["same"] == pytest.approx(sum(same) / len(same), abs=1e-6)
        assert ("certified" in found[name]) == name.startswith("certified")
    assert (repaired > 0) == (task != "pos")
    assert found["viterbi"]["ill_formed"] == 0


@pytest.mark.parametrize("task", ["segmentation", "ner"])
def test_mbr_decoders_repair_labels_by_marginals(tmp_path, task):
    tagger = trained(tmp_path, task, model={"objective": "crf"}, training={"epochs": 2})
    examples = tagger.task.annotated(list(read(config(tmp_path, task).data.dev)))
    names = [f"{name}-mbr" for name in NAMES if not name.startswith(("viterbi", "certified"))]
    found = evaluate(tagger, examples, names)
    for name in names:
        expected = tagger.evaluate_examples(examples, name.removesuffix("-mbr"), "mbr")
        assert found[name]["scores"] == pytest.approx(expected.scores, abs=1e-6)
        assert found[name]["ill_formed"] == expected.repaired
    assert any(found[name]["ill_formed"] for name in names)


def test_scores_of_the_samples_do_not_depend_on_batches(tmp_path, monkeypatch):
    tagger = trained(tmp_path, "pos")
    examples = tagger.task.annotated(list(read(SAMPLES / "english-dev.conllu")))
    whole = evaluate(tagger, examples, ["viterbi", "bregman-5"])
    monkeypatch.setattr("bcrf.tagger.prediction.chains.batch_tokens", lambda device: 60)
    assert evaluate(tagger, examples, ["viterbi", "bregman-5"]) == whole


def test_viterbi_is_a_best_sequence():
    chain = chains()
    score, tags = viterbi(chain)
    torch.testing.assert_close(decoder("viterbi", "torch")(chain).tags, tags)
    torch.testing.assert_close(chain.score(decoder("certified-3")(chain).tags), score)
