"""Long sentences: tagged in blocks, with the labels and probabilities of the whole sentence."""

from __future__ import annotations

import json
import random
import subprocess
import sys
import time
from itertools import cycle, islice

import pytest
import torch

import bcrf
from bcrf.tagger import Tagger
from bcrf.tagger.prediction import long_sentences, tagging
from bcrf.tagger.prediction.blocks import BlockedChain
from bcrf.tagger.prediction.long_sentences import LongSentence
from bcrf.tagger.tasks import Example
from tests.cli_cases import COMMAND, environment
from tests.tagger_cases import SEGMENTATION, pairs, trained

DECODERS = [
    "viterbi",
    "certified",
    "unstructured",
    "mean_field-1",
    "mean_field-4",
    "bregman-1",
    "bregman-2",
    "bregman-5",
    "bregman-10-relaxed",
]
TASKS = ["pos", "ner", "segmentation", "spaces"]
BLOCK = 16
LENGTHS = [1, 2, 3, BLOCK - 1, BLOCK, BLOCK + 1, 2 * BLOCK, 2 * BLOCK + 1, 5 * BLOCK + 7]


@pytest.fixture(scope="module")
def taggers(tmp_path_factory) -> dict[str, Tagger]:
    """Taggers after little training, which are unsure. For "spaces", spaces are tokens."""
    return {
        task: trained(
            tmp_path_factory.mktemp(task),
            "segmentation" if task == "spaces" else task,
            training={"epochs": 2},
            **({"data": {"spaces": "token"}} if task == "spaces" else {}),
        )
        for task in TASKS
    }


@pytest.fixture
def in_blocks(monkeypatch):
    """Return a function that lets taggers process all sentences in blocks of a given size."""

    def set_size(size: int) -> None:
        monkeypatch.setattr(tagging, "LONGEST_WHOLE", 0)
        monkeypatch.setattr(long_sentences, "BLOCK_TOKENS", size)

    return set_size


def blocked_chain(tagger: Tagger, example: Example, size: int, context: int) -> BlockedChain:
    @torch.no_grad()
    def score(part: Example) -> bcrf.LinearChain:
        return tagger.chain([tagger.reader(part.tokens)], [tagger.task.permitted_tags(part)])

    return BlockedChain(score, example, size, context)


def sentence(task: str, length: int, seed: int = 0) -> list[str] | str:
    """Return random words of the tiny corpus, some of them unknown; or a text with spaces."""
    chance = random.Random(f"{task} {length} {seed}")
    if task in ("segmentation", "spaces"):
        characters = [*"".join(SEGMENTATION.split()).replace("/", ""), *"   魚"]
        return "".join(chance.choice(characters) for _ in range(length - 1)) + "书"
    words = [word for line in pairs(task) for word, _ in line]
    return [chance.choice([*words, "unknown"]) for _ in range(length)]


# ------------------------------------------------------------------------------------------ labels


@pytest.mark.parametrize("decoder", DECODERS)
@pytest.mark.parametrize("task", TASKS)
def test_labels_are_those_of_the_whole_sentence(taggers, in_blocks, task, decoder):
    tagger = taggers[task]
    sentences = [sentence(task, length, seed) for length in LENGTHS for seed in range(2)]
    expected = {
        repair: tagger.tag(sentences, decoder=decoder, repair=repair)
        for repair in ("none", "rule", "mbr")
    }
    in_blocks(BLOCK)
    for repair, whole in expected.items():
        for one, other in zip(
            whole, tagger.tag(sentences, decoder=decoder, repair=repair), strict=True
        ):
            assert other.labels == one.labels
            assert other.repaired == one.repaired


def test_some_labels_need_repair(taggers):
    """The test above covers repair only if some labels are ill-formed."""
    for task in ("ner", "segmentation", "spaces"):
        sentences = [sentence(task, 5 * BLOCK + 7, seed) for seed in range(3)]
        assert all(t.repaired for t in taggers[task].tag(sentences, decoder="unstructured"))


@pytest.mark.parametrize("size", [2, 4, 6, 64])
@pytest.mark.parametrize("decoder", ["viterbi", "mean_field-3", "bregman-4"])
def test_the_size_of_blocks_does_not_matter(taggers, decoder, size):
    for task in TASKS:
        whole = sentence(task, 100)
        (expected,) = taggers[task].tag([whole], decoder=decoder, repair="mbr")
        with pytest.MonkeyPatch.context() as patch:
            patch.setattr(tagging, "LONGEST_WHOLE", 99)
            patch.setattr(long_sentences, "BLOCK_TOKENS", size)
            (found,) = taggers[task].tag([whole], decoder=decoder, repair="mbr")
        assert found.labels == expected.labels


@pytest.mark.parametrize("decoder", ["viterbi", "mean_field-2", "bregman-3", "bregman-3-relaxed"])
def test_spaces_restrict_labels_in_other_blocks(taggers, in_blocks, decoder):
    """I cannot follow the O of a space, so the first of many spaces determines all others."""
    text = " " * 40 + "我们" + " " * 40 + "书" + " " * 40
    (expected,) = taggers["spaces"].tag([text], True, decoder, "none")
    in_blocks(6)
    (found,) = taggers["spaces"].tag([text], True, decoder, "none")
    assert found.labels == expected.labels
    assert set(found.labels[:40]) == {"O"} or decoder.startswith("mean_field")


def test_ties_are_broken_as_in_the_whole_sentence(taggers):
    tagger = taggers["pos"]
    weights = {name: value.clone() for name, value in tagger.model.state_dict().items()}
    with torch.no_grad():
        for parameter in tagger.model.scorer.parameters():
            parameter.zero_()
    try:
        for decoder in DECODERS:
            (expected,) = tagger.tag([sentence("pos", 50)], decoder=decoder)
            with pytest.MonkeyPatch.context() as patch:
                patch.setattr(tagging, "LONGEST_WHOLE", 0)
                patch.setattr(long_sentences, "BLOCK_TOKENS", 6)
                (found,) = tagger.tag([sentence("pos", 50)], decoder=decoder)
            assert found.labels == expected.labels
    finally:
        tagger.model.load_state_dict(weights)


@pytest.mark.parametrize("transitions", ["shared", "none"])
@pytest.mark.parametrize("characters", ["none", "cnn"])
def test_other_networks_without_layers(tmp_path, in_blocks, transitions, characters):
    model = {"transitions": transitions, "characters": characters}
    tagger = trained(tmp_path, "ner", model=model, training={"epochs": 2})
    sentences = [sentence("ner", length) for length in LENGTHS]
    names = ("viterbi", "mean_field-3", "bregman-3")
    expected = {name: tagger.tag(sentences, True, name, "mbr") for name in names}
    in_blocks(BLOCK)
    for name, whole in expected.items():
        found = tagger.tag(sentences, True, name, "mbr")
        assert [t.labels for t in found] == [t.labels for t in whole]


def test_long_and_short_sentences_keep_their_order(taggers, monkeypatch):
    sentences = [sentence("pos", length) for length in (5, 30, 3, 20, 0, 21, 4)]
    expected = taggers["pos"].tag(sentences)
    monkeypatch.setattr(tagging, "LONGEST_WHOLE", 20)
    monkeypatch.setattr(long_sentences, "BLOCK_TOKENS", 8)
    found = taggers["pos"].tag(sentences)
    assert [t.words for t in found] == [tuple(words) for words in sentences]
    assert [t.labels for t in found] == [t.labels for t in expected]


def test_sentences_as_long_as_a_batch_are_tagged_as_a_whole(taggers, monkeypatch):
    tagger, seen = taggers["pos"], []
    tag_long = tagging._tag_long
    monkeypatch.setattr(tagging, "_tag_long", lambda *all: seen.append(all[1]) or tag_long(*all))
    most = tagging.LONGEST_WHOLE
    tagger.tag([["a"] * most, ["a"] * (most + 1)])
    assert [len(example) for example in seen] == [most + 1]


def test_a_sentence_is_freed_after_it_is_yielded(taggers, monkeypatch):
    import gc
    import weakref

    monkeypatch.setattr(tagging, "LONGEST_WHOLE", 5)
    monkeypatch.setattr("bcrf.tagger.prediction.windows.WINDOW_TOKENS", 1)
    stream = taggers["pos"].stream(sentence("pos", 40, seed) for seed in range(10))
    alive: list[weakref.ref] = []
    for tagged in stream:
        alive.append(weakref.ref(tagged))
        del tagged
        gc.collect()
        assert sum(reference() is not None for reference in alive) == 0


# ----------------------------------------------------------------------------------- probabilities


@pytest.mark.parametrize("objective", ["unstructured", "crf", "mean_field-3", "bregman"])
@pytest.mark.parametrize("task", TASKS)
def test_probabilities_are_those_of_the_whole_sentence(tmp_path, in_blocks, task, objective):
    data = {"data": {"spaces": "token"}} if task == "spaces" else {}
    name = "segmentation" if task == "spaces" else task
    tagger = trained(tmp_path, name, model={"objective": objective}, **data)
    sentences = [sentence(task, 500), sentence(task, 1)]
    expected = tagger.tag(sentences, True)
    in_blocks(64)
    worst = 0.0
    for whole, found in zip(expected, tagger.tag(sentences, True), strict=True):
        assert found.labels == whole.labels
        assert len(found.probabilities) == len(found.tags)
        difference = torch.tensor(whole.probabilities) - torch.tensor(found.probabilities)
        worst = max(worst, float(difference.abs().max()))
    print(f"largest difference of probabilities, {task}, {objective}: {worst:.1e}")
    # Bregman projections stop at a flow residual of 1e-5, sooner in some blocks than in others.
    assert worst < (2e-4 if objective == "bregman" else 1e-5)


def test_a_smaller_overlap_changes_probabilities(taggers, in_blocks, monkeypatch):
    """This shows that the test above depends on the overlap."""
    whole = sentence("ner", 200)
    (expected,) = taggers["ner"].tag([whole], True)
    in_blocks(8)
    monkeypatch.setattr(long_sentences, "OVERLAP", 0)
    (found,) = taggers["ner"].tag([whole], True)
    assert found.probabilities != pytest.approx(expected.probabilities, abs=1e-4)


# -------------------------------------------------------------- networks that read whole sentences


def test_self_attention_reads_blocks_with_context(tmp_path, monkeypatch):
    tagger = trained(tmp_path, model={"layers": 1}, training={"epochs": 20})
    most = tagging.LONGEST_WHOLE
    whole = sentence("pos", most + 1)
    (in_blocks,) = tagger.tag([whole])
    monkeypatch.setattr(tagging, "LONGEST_WHOLE", most + 1)
    (at_once,) = tagger.tag([whole])
    same = sum(a == b for a, b in zip(in_blocks.labels, at_once.labels, strict=True)) / len(whole)
    print(f"{same:.2%} of the labels of {len(whole)} tokens agree")
    assert same > 0.9


@pytest.mark.filterwarnings("ignore:.*score on dev is 0.00")  # after two epochs
@pytest.mark.parametrize("decoder", ["viterbi", "bregman-5"])
def test_scores_of_self_attention_do_not_depend_on_the_requested_part(tmp_path, in_blocks, decoder):
    """Solving all blocks at once gives the same labels as solving them one by one."""
    tagger = trained(tmp_path, "ner", model={"layers": 1}, training={"epochs": 2})
    whole = sentence("ner", 90)
    in_blocks(16)
    (found,) = tagger.tag([whole], decoder=decoder, repair="none")
    chain = blocked_chain(tagger, found.example, 16, 4)
    parts = [chain.part(start, stop) for start, stop in chain.blocks()]
    complete = chain.part(0, 90)
    assert torch.equal(torch.cat([part.unary for part in parts], 1), complete.unary)
    for start, stop in ((0, 1), (3, 40), (15, 17), (16, 32), (89, 90)):
        part = chain.part(start, stop)
        assert torch.equal(part.unary, complete.unary[:, start:stop])
        assert torch.equal(part.transitions, complete.transitions[:, start : stop - 1])
    expected = tagger.model.decode(complete, decoder)[0].tolist()
    sentence_in_blocks = LongSentence(tagger.model, tagger.task, chain)
    labels = sentence_in_blocks.label(decoder, "none").labels
    assert [tagger.labels.index(label) for label in labels] == expected


# ----------------------------------------------------------------------------------------- memory

# An intermediate process, because the peak memory of a process includes that of its parent.
MEASURED = """
import resource, subprocess, sys
code = subprocess.call(sys.argv[1:])
print(resource.getrusage(resource.RUSAGE_CHILDREN).ru_maxrss, file=sys.stderr)
sys.exit(code)
"""


@pytest.mark.slow
@pytest.mark.skipif(sys.platform != "linux", reason="the unit of ru_maxrss is that of Linux")
@pytest.mark.parametrize(
    ("task", "suffix", "decoder"),
    [
        ("pos", "txt", "viterbi"),
        ("pos", "conllu", "unstructured"),
        ("pos", "jsonl", "unstructured"),
        ("ner", "conll", "mean_field-2"),
        ("segmentation", "txt", "bregman-5"),
    ],
)
def test_a_million_tokens_take_less_than_500_megabytes(tmp_path, taggers, task, suffix, decoder):
    n = 1_000_000
    taggers[task].save(tmp_path / "model")
    words = list(islice(cycle(word for line in pairs(task) for word, _ in line), n))
    texts = {
        "txt": " ".join(words) + "\n",
        "jsonl": json.dumps({"words": words}) + "\n",
        "conll": "".join(f"{word}\t_\n" for word in words) + "\n",
        "conllu": "".join(f"{i}\t{w}" + "\t_" * 8 + "\n" for i, w in enumerate(words, 1)) + "\n",
    }
    text = "".join(words)[:n] + "\n" if task == "segmentation" else texts[suffix]
    (tmp_path / f"long.{suffix}").write_text(text, encoding="utf-8")
    command = [*COMMAND, "tag", str(tmp_path / "model"), str(tmp_path / f"long.{suffix}")]
    start = time.perf_counter()
    with (tmp_path / "tagged").open("wb") as output:
        result = subprocess.run(
            [sys.executable, "-c", MEASURED, *command, "--decoder", decoder],
            stdout=output,
            stderr=subprocess.PIPE,
            env=environment(),
            text=True,
        )
    assert result.returncode == 0, result.stderr
    megabytes = int(result.stderr.split()[-1]) / 1024
    seconds = time.perf_counter() - start
    print(f"{task}, {suffix}, {decoder}: {megabytes:.0f} MB, {seconds:.0f} s")
    assert (tmp_path / "tagged").stat().st_size > n
    assert megabytes < 500
