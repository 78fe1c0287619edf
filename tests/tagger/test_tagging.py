"""Tagging: order, decoders, repair, probabilities against enumeration, and awkward sentences."""

import itertools
import math
from collections.abc import Iterator
from pathlib import Path

import numpy as np
import pytest
import torch

import bcrf
from bcrf.decoding import decoder_marginals
from bcrf.tagger import Tagger
from bcrf.tagger.data import DataError, LengthBatches, read
from bcrf.tagger.nn import parse_decoder
from bcrf.tagger.tasks import find_spans
from tests import oracles
from tests.tagger_cases import config, pairs, run, trained, write

POINTWISE = ["unstructured", "mean_field-3", "bregman-2", "bregman-10", "bregman-3-relaxed"]
TASKS = ["pos", "segmentation", "ner"]


@pytest.fixture(scope="module")
def taggers(tmp_path_factory) -> dict[str, Tagger]:
    """Taggers after little training: they are unsure, so that their decoders disagree."""
    return {
        task: trained(tmp_path_factory.mktemp(task), task, training={"epochs": 2}) for task in TASKS
    }


def inputs(task: str) -> list:
    """Return the sentences of the corpus as Python values."""
    words = [[word for word, _ in sentence] for sentence in pairs(task)]
    return ["".join(sentence) for sentence in words] if task == "segmentation" else words


def chain_of(tagger: Tagger, sentence: object) -> bcrf.LinearChain:
    (tagged,) = tagger.tag([sentence])
    example = tagged.example
    with torch.no_grad():
        return tagger.chain([tagger.reader(example.tokens)], [tagger.task.permitted_tags(example)])


# ------------------------------------------------------------------------------------ order, inputs


@pytest.mark.parametrize("task", TASKS)
def test_results_keep_the_order_and_do_not_depend_on_the_batch(taggers, task):
    tagger = taggers[task]
    empty = "" if task == "segmentation" else []
    sentences = [*inputs(task), empty, inputs(task)[0], empty]
    found = tagger.tag(sentences, probabilities=True)
    assert [t.words for t in found] == [t.words for t in tagger.stream(sentences, window=2)]
    for sentence, tagged in zip(sentences, found, strict=True):
        (alone,) = tagger.tag([sentence], probabilities=True)
        assert tagged.labels == alone.labels
        assert tagged.probabilities == pytest.approx(alone.probabilities, rel=1e-4)
        assert len(tagged.words) == len(tagged.tags) == len(tagged.probabilities)
        if task == "segmentation":
            assert "".join(tagged.words) == sentence
        else:
            assert tagged.words == tuple(sentence)
    assert found[-1].words == found[-1].tags == found[-1].probabilities == ()


def test_a_stream_reads_at_most_its_window_ahead(taggers):
    taken = 0

    def sentences() -> Iterator[list[str]]:
        nonlocal taken
        for number in itertools.count():
            taken += 1
            yield ["the", "cat"] * (number % 3)

    stream = taggers["pos"].stream(sentences(), window=10)
    assert taken == 0
    lengths = [len(next(stream).words) for _ in range(25)]
    assert lengths == [2 * (number % 3) for number in range(25)]
    assert taken == 30


def test_long_sentences_fill_a_window_by_themselves(taggers, monkeypatch):
    from bcrf.tagger.prediction import windows

    monkeypatch.setattr(windows, "WINDOW_TOKENS", 5)
    sentences = iter([["a"] * 4, ["a"], ["the"] * 9, ["cat"]])
    stream = taggers["pos"].stream(sentences)
    assert len(next(stream).words) == 4
    assert next(sentences) == ["the"] * 9


def test_sentences_of_files_keep_their_place(taggers, tmp_path):
    path = write(tmp_path, "pos")
    text = "# a comment\n" + path.read_text()
    path.write_text(text)
    found = taggers["pos"].tag(read(path))
    assert "".join(tagged.render() for tagged in found).count("\n") == text.count("\n")
    assert found[0].render().startswith("# a comment\n1\tthe\t_\t")
    assert found[0].sentence.path == str(path)
    assert found[2].render("jsonl").startswith('{"words": ["dogs", "run"], "tags": ["')


def test_sentences_of_programs_are_written_as_json_or_conllu(taggers):
    (tagged,) = taggers["ner"].tag([["Ada", "saw"]], probabilities=True)
    assert tagged.render().startswith('{"words": ["Ada", "saw"], "tags": ["')
    assert '"probabilities": [0.' in tagged.render()
    (tagged,) = taggers["segmentation"].tag(["我们 看 Linux"])
    assert tagged.render().startswith("# text = 我们 看 Linux\n1\t")


@pytest.mark.parametrize(
    ("task", "sentences", "message"),
    [
        ("pos", "the cat", "sentences must be a list of sentences, got one string"),
        ("pos", ["the", "cat"], r"sentence 0: expected a list of words .* got 'the'"),
        ("pos", [["a"], None], "sentence 1: expected a list of words .* got None"),
        ("pos", [["a", ""]], "sentence 0, word 1: expected a non-empty str, got ''"),
        ("ner", [["a"], ["b", 3]], "sentence 1, word 1: expected a non-empty str, got 3"),
        ("segmentation", [["我", "们"]], "sentence 0: expected a text .*str.* to split into words"),
    ],
)
def test_inputs_that_are_not_sentences_are_errors(taggers, task, sentences, message):
    with pytest.raises(TypeError, match=message):
        taggers[task].tag(sentences)


@pytest.mark.parametrize("method", ["tag", "stream", "evaluate"])
def test_decoder_and_repair_are_checked_before_reading(taggers, method):
    call = getattr(taggers["pos"], method)
    with pytest.raises(ValueError, match=r"decoder must be one of viterbi, .*got 'veterbi'"):
        call("nowhere" if method == "evaluate" else [], decoder="veterbi")
    with pytest.raises(ValueError, match="decoder must be one of"):
        call("nowhere" if method == "evaluate" else [], decoder="")
    with pytest.raises(ValueError, match="repair must be one of rule, mbr, none, got 'fix'"):
        call("nowhere" if method == "evaluate" else [], repair="fix")
    with pytest.raises(ValueError, match="window must be at least 1"):
        taggers["pos"].stream([], window=0)


# ------------------------------------------------------------------------------- awkward sentences


@pytest.mark.parametrize("decoder", ["viterbi", "certified", "bregman-5", "mean_field-5"])
@pytest.mark.parametrize("task", TASKS)
def test_ten_thousand_tokens(taggers, task, decoder):
    corpus = [word for sentence in pairs(task) for word, _ in sentence]
    words = list(itertools.islice(itertools.cycle(corpus), 10_000))
    text = "".join(words)[:10_000]
    long, short = (text, "书") if task == "segmentation" else (words, [words[0]])
    found = taggers[task].tag([short, long, short], decoder=decoder)
    assert len(found[1].labels) == 10_000
    assert found[0].labels == found[2].labels
    if task == "segmentation":
        assert "".join(found[1].words) == text


def test_unknown_characters_and_spaces_are_unchanged(taggers):
    texts = ["𠮷😀 é\u0301", "  Linux\t6.1  ", " ", "ａ１\u3000我们", "\u200b"]
    for text, tagged in zip(texts, taggers["segmentation"].tag(texts, True), strict=True):
        assert "".join(tagged.words) == "".join(text.split())
        assert not any(any(map(str.isspace, word)) for word in tagged.words)
        assert tagged.example.text == text
    words = [["𠮷", "the " * 3, "\u200b"], ["<pad>", "<unk>"]]
    assert [t.words for t in taggers["pos"].tag(words, True)] == [tuple(w) for w in words]


@pytest.mark.parametrize("decoder", ["viterbi", "unstructured", "mean_field-3", "bregman-3"])
def test_labels_respect_spaces_without_repair(taggers, decoder):
    tagger = taggers["segmentation"]
    texts = [
        text[:place] + " " + text[place:] for text in inputs("segmentation") for place in (1, 2)
    ]
    for tagged in tagger.tag(texts, decoder=decoder, repair="none"):
        for place in tagged.example.breaks:
            assert tagged.labels[place - 1][0] in "ES"
            assert tagged.labels[place][0] in "BS"


# ------------------------------------------------------------------------------ decoders and repair


@pytest.mark.parametrize("task", TASKS)
def test_decoders_by_name(taggers, task):
    tagger = taggers[task]
    for sentence in inputs(task)[:4]:
        chain = chain_of(tagger, sentence)
        best = [tagger.labels[i] for i in bcrf.viterbi(chain)[1][0].tolist()]
        for decoder in ("viterbi", "certified"):
            (tagged,) = tagger.tag([sentence], decoder=decoder)
            assert list(tagged.labels) == best
            assert not tagged.repaired
        (own,) = tagger.tag([sentence])
        assert list(own.labels) == best  # a CRF decodes by Viterbi
        for name in POINTWISE:
            (raw,) = tagger.tag([sentence], decoder=name, repair="none")
            expected = tagger.model.decode(chain, name)[0].tolist()
            assert [tagger.labels.index(label) for label in raw.labels] == expected


@pytest.mark.parametrize("name", POINTWISE)
@pytest.mark.parametrize("task", TASKS)
def test_decoder_marginals_give_the_decoded_tags(taggers, task, name):
    tagger = taggers[task]
    for sentence in inputs(task):
        chain = chain_of(tagger, sentence)
        chosen = decoder_marginals(parse_decoder(name), chain).argmax(-1)
        assert torch.equal(chosen, tagger.model.decode(chain, name))


def ill_formed(tagger: Tagger, name: str) -> list[tuple[object, tuple[str, ...]]]:
    """Return the sentences for which this decoder gives ill-formed labels, with the labels."""
    found = []
    for sentence in inputs(tagger.task.name):
        (raw,) = tagger.tag([sentence], decoder=name, repair="none")
        (repaired,) = tagger.tag([sentence], decoder=name, repair="rule")
        assert not raw.repaired
        assert repaired.repaired == (repaired.labels != raw.labels)
        if repaired.repaired:
            found.append((sentence, raw.labels))
    return found


@pytest.mark.parametrize("task", ["segmentation", "ner"])
def test_ill_formed_labels_are_repaired(taggers, task):
    tagger = taggers[task]
    structure = tagger.task.structure
    cases = [(name, *case) for name in POINTWISE[:3] for case in ill_formed(tagger, name)]
    enumerated = 0
    for name, sentence, labels in cases:
        (by_rule,) = tagger.tag([sentence], decoder=name)
        assert list(by_rule.labels) == tagger.task.repair(by_rule.example, labels)
        # By enumeration: the best sum of the decoder's marginals among all well-formed sequences.
        (by_risk,) = tagger.tag([sentence], decoder=name, repair="mbr")
        assert by_risk.repaired
        assert tagger.task.repair(by_risk.example, by_risk.labels) == list(by_risk.labels)
        if len(tagger.labels) ** len(labels) > 1e5:
            continue
        enumerated += 1
        chain = chain_of(tagger, sentence)
        marginals = decoder_marginals(parse_decoder(name), chain)[0].double().numpy()
        unary = np.where(chain.unary[0].isfinite().numpy(), marginals, -math.inf)
        pair = np.where(structure.follow.numpy(), 0.0, -math.inf)
        scores, _ = oracles.best_paths(unary, np.stack([pair] * (len(labels) - 1)), 1)
        chosen = [tagger.labels.index(label) for label in by_risk.labels]
        assert sum(marginals[range(len(chosen)), chosen]) == pytest.approx(scores[0], rel=1e-6)
    assert enumerated


def test_repair_is_counted(taggers, tmp_path):
    tagger = taggers["segmentation"]
    path = write(tmp_path, "segmentation")
    for name in POINTWISE[:3]:
        count = len(ill_formed(tagger, name))
        assert tagger.evaluate(path, decoder=name).repaired == count
        assert tagger.evaluate(path, decoder=name, repair="mbr").repaired == count
        assert tagger.evaluate(path, decoder=name, repair="none").repaired == 0
    assert tagger.evaluate(path).repaired == 0


# ------------------------------------------------------------------------------------ probabilities


@pytest.mark.parametrize("task", ["pos", "ner"])
def test_probabilities_of_a_crf_by_enumeration(taggers, task):
    tagger = taggers[task]
    short = [sentence for sentence in inputs(task) if len(sentence) <= 4]
    assert len(short) > 2
    for tagged in tagger.tag(short, probabilities=True):
        chain = chain_of(tagger, list(tagged.words))
        (parts,) = oracles.sentences(chain.unary, chain.transitions, chain.lengths)
        expected = oracles.crf_tag_marginals(*parts)
        tags = [tagger.labels.index(tag) for tag in tagged.tags]
        assert tagged.probabilities == pytest.approx(expected[range(len(tags)), tags], rel=1e-4)


def test_probabilities_of_a_bregman_model_are_those_at_convergence(tmp_path):
    tagger = trained(tmp_path, model={"objective": "bregman-2"}, training={"epochs": 2})
    for tagged in tagger.tag(inputs("pos"), probabilities=True):
        chain = chain_of(tagger, list(tagged.words))
        (parts,) = oracles.sentences(chain.unary, chain.transitions, chain.lengths)
        tags = [tagger.labels.index(tag) for tag in tagged.tags]
        if len(tags) == 1:
            expected = np.exp(parts[0]) / np.exp(parts[0]).sum()
        else:
            expected = oracles.dual(*parts).tag_marginals
        assert tagged.probabilities == pytest.approx(expected[range(len(tags)), tags], abs=1e-4)


def test_probabilities_of_words_by_enumeration(taggers):
    """The probability that the characters of a word have its labels, summed over all paths."""
    tagger = taggers["segmentation"]
    for decoder in ("viterbi", "unstructured"):
        for text in ("我看书", "书", "看 书", "图书馆"):
            (tagged,) = tagger.tag([text], probabilities=True, decoder=decoder)
            chain = chain_of(tagger, text)
            (parts,) = oracles.sentences(chain.unary, chain.transitions, chain.lengths)
            paths, scores = oracles.paths(*parts)
            weights = np.exp(scores - scores.max())
            weights /= weights.sum()
            numbers = np.array([tagger.labels.index(label) for label in tagged.labels])
            expected = [
                weights[(paths[:, a:b] == numbers[a:b]).all(1)].sum()
                for a, b, _ in find_spans(tagged.labels, tagged.example.breaks)
            ]
            assert tagged.probabilities == pytest.approx(expected, rel=1e-4)
            assert len(tagged.words) == len(expected)


def test_probabilities_of_ill_formed_words(taggers):
    """Ill-formed labels also define words, and these words have a probability."""
    tagger = taggers["segmentation"]
    cases = [case for name in POINTWISE[:3] for case in ill_formed(tagger, name)]
    for sentence, _ in cases:
        for name in POINTWISE[:3]:
            (raw,) = tagger.tag([sentence], True, decoder=name, repair="none")
            (fine,) = tagger.tag([sentence], True, decoder=name, repair="rule")
            assert raw.words == fine.words
            assert raw.probabilities == fine.probabilities
            assert all(0 <= p <= 1 for p in raw.probabilities)


# --------------------------------------------------------------------------------------- evaluation


@pytest.mark.parametrize("task", TASKS)
@pytest.mark.parametrize("decoder", [None, "bregman-2"])
def test_evaluation_is_that_of_the_metric(taggers, tmp_path, task, decoder):
    tagger = taggers[task]
    path = write(tmp_path, task, "dev", skip=2)
    found = tagger.evaluate(path, decoder=decoder)
    examples = tagger.task.annotated(list(read(path)))
    metric = tagger.task.metric(known_words=tagger.vocabularies.words)
    for example, tagged in zip(examples, tagger.tag(read(path), decoder=decoder), strict=True):
        metric.add(example, tagged.labels)
    assert found.scores == metric.result()
    assert found.score == metric.result()[metric.main]
    assert (found.decoder, found.repair) == (decoder or "viterbi", "rule")
    assert (found.sentences, found.tokens) == (len(examples), sum(map(len, examples)))
    assert tagger.evaluate(read(path), decoder=decoder).scores == found.scores
    assert found.to_dict()["sentences"] == len(examples)
    assert found.to_dict()[metric.main] == found.score


def test_unknown_words_are_those_outside_the_training_data(taggers, tmp_path):
    path = write(tmp_path, "pos")
    path.write_text(path.read_text().replace("\tcat\t", "\tChat\t").replace("\tdog\t", "\tDOG\t"))
    scores = taggers["pos"].evaluate(path).scores
    assert scores["unknown_tokens"] == 3  # in lower case, the word is known


def test_files_that_cannot_be_evaluated(taggers, tmp_path):
    with pytest.raises(DataError, match=r"nowhere\.conllu: cannot be read"):
        taggers["pos"].evaluate(tmp_path / "nowhere.conllu")
    text = tmp_path / "text.txt"
    text.write_text("the cat\n")
    with pytest.raises(DataError, match="raw text and has no upos tags"):
        taggers["pos"].evaluate(text)
    partial = tmp_path / "partial.conll"
    partial.write_text("Ada\t?\nsaw\tO\n")
    with pytest.raises(
        DataError, match=r"partial\.conll:1: .* partial labels or none; expected one gold label"
    ):
        taggers["ner"].evaluate(partial)
    empty = tmp_path / "empty.conllu"
    empty.write_text("")
    assert taggers["pos"].evaluate(empty).sentences == 0


def test_batches_have_at_most_their_size(taggers, monkeypatch):
    from bcrf.tagger.prediction import tagging

    sizes = []
    plan = LengthBatches.in_order

    def recorded(self: LengthBatches) -> list[list[int]]:
        batches = plan(self)
        sizes.extend(max(self.lengths[i] for i in batch) * len(batch) for batch in batches)
        return batches

    monkeypatch.setattr(LengthBatches, "in_order", recorded)
    monkeypatch.setattr(tagging, "batch_tokens", lambda device: 12)
    expected = [t.labels for t in taggers["pos"].tag(inputs("pos"))]
    assert max(sizes) <= 12
    assert len(sizes) > 3
    monkeypatch.setattr(tagging, "batch_tokens", lambda device: 4096)
    assert [t.labels for t in taggers["pos"].tag(inputs("pos"))] == expected


def test_a_run_and_its_best_and_last_states_can_be_loaded(tmp_path):
    settings = config(tmp_path, training={"epochs": 1})
    run(settings)
    for path in (settings.output, Path(settings.output, "best"), Path(settings.output, "last")):
        assert Tagger.load(path).info["epoch"] == 1
