"""Exported taggers give the tags of the tagger, in onnxruntime and in the example."""

from __future__ import annotations

import json
import subprocess
import sys
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import numpy as np
import onnx
import onnxruntime
import pytest
import torch
from torch.testing import assert_close

from bcrf.decoding import solver_of
from bcrf.tagger import Tagger
from bcrf.tagger.export import ExportedFile, ExportError, comparison, export_onnx
from bcrf.tagger.export.quantization import quantize_weights
from bcrf.tagger.nn import parse_decoder, training_solver
from tests import tagger_cases
from tests.tokenizer_cases import load_tokenizer

EXAMPLE = Path(__file__).parents[2] / "examples" / "onnx_tagger.py"
LOOPS = {"Loop", "Scan", "If"}
NETWORK = {"feature_width": 8, "context_width": 16, "context_layers": 2, "score_width": 8}

# Sentences with known and unknown words; characters with and without white space.
SENTENCES = {
    "pos": ["the old McDonald saw 3 ÉTÉ B-52 .", "no", "we saw", "Σίσυφος ran ²x 東京 dogs İx"],
    "ner": ["Ada Lovelace saw New Turin , no ?", "York", "Acme Corp", "she works in B-52s"],
    "segmentation": [
        "我们 看见Linux 了图书馆。",
        "书",
        "我 们",
        " 他有3 本 é书  。",
        "たé\U00020000",
    ],
}

slow = pytest.mark.slow


def trained(folder: Path, task: str, **model: Any) -> Tagger:
    kind = "character" if task == "segmentation" else "word"
    network = {"features": kind, "transitions": "shared", **NETWORK, **model}
    settings = tagger_cases.config(
        folder, task, model=network, data={"min_count": 1}, training={"epochs": 8}
    )
    tagger_cases.run(settings)
    return Tagger.load(settings.output, "cpu")


@pytest.fixture(scope="module")
def taggers(tmp_path_factory: pytest.TempPathFactory) -> dict[str, Tagger]:
    folder = tmp_path_factory.mktemp("taggers")
    return {task: trained(folder / task, task) for task in SENTENCES}


@pytest.fixture(scope="module")
def pos(taggers: dict[str, Tagger], tmp_path_factory: pytest.TempPathFactory) -> ExportedFile:
    path = tmp_path_factory.mktemp("pos") / "pos.onnx"
    return export_onnx(taggers["pos"], path, decoder="unstructured")


def inputs(task: str, text: str) -> Any:
    return text if task == "segmentation" else text.split()


def operators(graph: Any) -> Iterator[str]:
    """Yield the operators of an ONNX graph, those of its subgraphs included."""
    for node in graph.node:
        yield node.op_type
        for attribute in node.attribute:
            for inner in (attribute.g, *attribute.graphs):
                yield from operators(inner)


def from_example(path: Path, sentences: list[str]) -> list[list[str]]:
    """Return the tags that the example prints, in a process that cannot import torch and bcrf."""
    program = (
        "import runpy, sys; sys.modules['torch'] = sys.modules['bcrf'] = None; "
        "sys.argv = sys.argv[1:]; runpy.run_path(sys.argv[0])"
    )
    result = subprocess.run(
        [sys.executable, "-X", "utf8", "-c", program, EXAMPLE, path],
        input="".join(f"{text}\n" for text in ["", *sentences]),
        capture_output=True,
        text=True,
        check=True,
        encoding="utf-8",
    )
    return [[x.rpartition("/")[2] for x in line.split(" ")] for line in result.stdout.splitlines()]


def check_example(tagger: Tagger, file: ExportedFile, task: str) -> None:
    texts = SENTENCES[task]
    expected = tagger.tag_examples(
        [
            tagger.task.example(comparison.as_sentence(inputs(task, x), 0, tagger.task))
            for x in texts
        ],
        file.decoder,
        "none",
    )
    assert from_example(file.path, texts) == [list(tagged.labels) for tagged in expected]


def check_all_sizes(tagger: Tagger, file: ExportedFile) -> None:
    """Tags and probabilities of batches of any size, with sentences of any length, are eager's."""
    session = onnxruntime.InferenceSession(file.path)
    method = parse_decoder(file.decoder)
    solver = training_solver(tagger.model.config.objective)
    if not method.finds_best_sequence:
        solver = solver_of(method)
    samples = comparison.sample_sentences(tagger)
    task = tagger.task
    for lengths in ([1], [2], [3, 1], [5, 8, 2, 1], [40], [13, 2, 34, 5, 1, 3]):
        # Samples are sorted by length; a text of some characters may have fewer tokens.
        pairs = [next(s for s in samples if len(s) >= length) for length in lengths]
        cut = [s[:length] for s, length in zip(pairs, lengths, strict=True)]
        examples = [task.example(comparison.as_sentence(s, 0, task)) for s in cut]
        examples = [x for x in examples if len(x)]
        if not examples:
            continue
        feed = comparison._feed(tagger, examples)
        tags, probabilities = session.run(["tags", "probabilities"], feed)
        expected = [x.labels for x in tagger.tag_examples(examples, file.decoder, "none")]
        for row, labels in zip(tags, expected, strict=True):
            assert [tagger.labels[tag] for tag in row[: len(labels)]] == list(labels)
            assert (row[len(labels) :] == -100).all()
        chain = tagger.chain(
            [tagger.reader(x.tokens) for x in examples], [task.permitted_tags(x) for x in examples]
        )
        with torch.no_grad():
            marginals = solver(chain / tagger.probability_temperature).tag_marginals
        assert_close(torch.from_numpy(probabilities), marginals, rtol=1e-3, atol=1e-5)


@slow
@pytest.mark.parametrize(
    ("task", "decoder"),
    [
        ("pos", "viterbi"),
        ("pos", "bregman-4"),
        ("ner", "bregman-3-relaxed"),
        ("segmentation", "bregman-4-relaxed"),
        ("segmentation", "viterbi"),
        ("ner", "mean_field-3"),
    ],
)
def test_files_give_the_tags_of_the_tagger(
    taggers: dict[str, Tagger], task: str, decoder: str, tmp_path: Path
) -> None:
    tagger = taggers[task]
    tagger.probability_temperature = 1.3
    file = export_onnx(tagger, tmp_path / "tagger.onnx", decoder=decoder, probabilities=True)
    assert file.agreement.same == file.agreement.tokens > 300
    model = onnx.load(file.path)
    onnx.checker.check_model(model, full_check=True)
    has_loop = not LOOPS.isdisjoint(operators(model.graph))
    assert has_loop == file.has_loops == (decoder == "viterbi")
    check_all_sizes(tagger, file)
    check_example(tagger, file, task)


@slow
def test_networks_with_scores_of_pairs_vectors_and_dilation(tmp_path: Path) -> None:
    vectors = tmp_path / "words.vec"
    vectors.write_text("3 2\nthe 1 0\nSaw 0 1\ndog 1 1\n")
    tagger = trained(tmp_path, "pos", transitions="pairs", context_dilation=2, vectors=str(vectors))
    file = export_onnx(tagger, tmp_path / "x.onnx", decoder="bregman-2-relaxed", probabilities=True)
    assert not file.has_loops
    assert file.agreement.same == file.agreement.tokens
    check_all_sizes(tagger, file)
    check_example(tagger, file, "pos")


def test_the_file_describes_itself(pos: ExportedFile, taggers: dict[str, Tagger]) -> None:
    model = onnx.load(pos.path)
    onnx.checker.check_model(model, full_check=True)
    assert pos.size == pos.path.stat().st_size
    assert pos.agreement.same == pos.agreement.tokens > 300
    (entry,) = model.metadata_props
    about = json.loads(entry.value)
    assert entry.key == "bcrf"
    assert tuple(about["labels"]) == taggers["pos"].labels
    assert about["decoder"] == pos.decoder == "unstructured"
    assert about["task"]["task"] == "pos"
    assert str(Path(__file__).parents[2]).encode() not in pos.path.read_bytes()
    check_example(taggers["pos"], pos, "pos")


def test_characters_have_the_classes_of_the_ranges(taggers: dict[str, Tagger]) -> None:
    from bcrf.tagger.data.features import character_class
    from bcrf.tagger.export.metadata import describe

    tagger = taggers["segmentation"]
    ranges = json.loads(describe(tagger, "viterbi", False))["character_classes"]
    starts = [start for start, _, _ in ranges]
    assert starts == sorted(starts)
    assert all(last < start for (_, last, _), start in zip(ranges, starts[1:], strict=False))
    for first, last, name in ranges:
        assert character_class(chr(first)) == character_class(chr(last)) == name
    features = tagger.vocabularies.features
    assert features is not None
    assert {name for *_, name in ranges} == set(features.values["class"])


def test_int8_weights_are_close_to_the_floats(
    pos: ExportedFile, taggers: dict[str, Tagger]
) -> None:
    """The tiny network has few weights that are large enough, so its matrices are enlarged."""
    floats = onnx.load(pos.path)
    small = onnx.ModelProto()
    small.CopyFrom(floats)
    quantize_weights(small)
    onnx.checker.check_model(small, full_check=True)
    assert small.ByteSize() < 0.8 * floats.ByteSize()
    kinds = {x.name: x.data_type for x in small.graph.initializer}
    assert onnx.TensorProto.INT8 in kinds.values()
    agreement = comparison.compare(
        small.SerializeToString(),
        taggers["pos"],
        comparison.sample_sentences(taggers["pos"]),
        pos.decoder,
    )
    assert agreement.share > 0.95


@pytest.mark.parametrize("operation", ["Gather", "MatMul", "Gemm", "Gemm transposed"])
def test_rows_and_columns_are_rounded_to_their_scales(operation: str) -> None:
    generator = np.random.default_rng(0)
    matrix = generator.normal(size=(40, 50)).astype(np.float32)
    matrix *= generator.uniform(0.01, 10, size=(40, 1)).astype(np.float32)
    matrix[7] = matrix[:, 3] = 0
    name, transposed = operation.partition(" ")[::2]
    arguments: dict[str, Any] = {"transB": 1} if transposed else {}
    x = generator.normal(size=(6, 50 if transposed else 40)).astype(np.float32)
    given = np.array([[0, 7], [39, 1]]) if name == "Gather" else x
    order = ["m", "x"] if name == "Gather" else ["x", "m"]
    node = onnx.helper.make_node(name, order, ["y"], **arguments)
    kind = onnx.helper.np_dtype_to_tensor_dtype(given.dtype)
    value = onnx.helper.make_tensor_value_info
    graph = onnx.helper.make_graph(
        [node],
        "g",
        [value("x", kind, list(given.shape))],
        [value("y", onnx.TensorProto.FLOAT, None)],
        [onnx.numpy_helper.from_array(matrix, "m")],
    )
    opset = [onnx.helper.make_opsetid("", 20)]
    model = onnx.helper.make_model(graph, opset_imports=opset, ir_version=10)
    quantize_weights(model)
    assert "m" not in {x.name for x in model.graph.initializer}
    (found,) = onnxruntime.InferenceSession(model.SerializeToString()).run(None, {"x": given})
    axis = 1 if name == "Gather" or transposed else 0
    step = np.abs(matrix).max(axis=axis, keepdims=True) / 127
    rounded = np.rint(matrix / np.where(step == 0, 1, step)) * step
    expected = (
        rounded[given] if name == "Gather" else given @ (rounded.T if transposed else rounded)
    )
    np.testing.assert_allclose(found, expected, rtol=1e-4, atol=1e-4)


# What cannot be exported, and where the file may not be written


def test_other_networks_and_tasks_are_refused(tmp_path: Path) -> None:
    words = tagger_cases.trained(tmp_path / "words")
    lstm = trained(tmp_path / "lstm", "pos", context="bilstm")
    tokenizer = load_tokenizer(tmp_path).tagger
    for tagger, message in (
        (words, "reads words, not features"),
        (lstm, "train with --model.context cnn"),
        (tokenizer, "the task tokenization cannot be exported"),
    ):
        with pytest.raises(ExportError, match=message):
            export_onnx(tagger, tmp_path / "x.onnx")
    assert not (tmp_path / "x.onnx").exists()


def test_decoders_and_files_are_checked_first(
    taggers: dict[str, Tagger], pos: ExportedFile, tmp_path: Path
) -> None:
    tagger = taggers["pos"]
    with pytest.raises(ExportError, match="viterbi gives the same tags"):
        export_onnx(tagger, tmp_path / "x.onnx", decoder="certified")
    with pytest.raises(ValueError, match="decoder must be one of"):
        export_onnx(tagger, tmp_path / "x.onnx", decoder="beam")
    before = pos.path.read_bytes()
    with pytest.raises(FileExistsError, match=r"pos\.onnx exists.*--overwrite"):
        export_onnx(tagger, pos.path)
    assert pos.path.read_bytes() == before
    with pytest.raises(IsADirectoryError, match="is a folder"):
        export_onnx(tagger, tmp_path, overwrite=True)
    with pytest.raises(FileNotFoundError, match="there is no folder"):
        export_onnx(tagger, tmp_path / "nowhere" / "x.onnx")


def test_a_missing_package_names_the_extra(
    taggers: dict[str, Tagger], tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setitem(sys.modules, "onnxscript", None)
    with pytest.raises(ImportError, match=r"pip install '\.\[onnx\]'"):
        export_onnx(taggers["pos"], tmp_path / "x.onnx")
