"""Write a tagger as an ONNX file, and compare the file with the tagger."""

from __future__ import annotations

import contextlib
import copy
import logging
import os
import warnings
from collections.abc import Callable, Iterable, Iterator, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import torch

from ..data import Sentence
from ..files import atomic_write_bytes, report_write_errors
from ..nn import check_decoder
from ..prediction.tagger import Tagger
from .comparison import Agreement, compare, sample_sentences
from .metadata import METADATA_KEY, describe
from .quantization import quantize_weights
from .tagger_graph import ExportError, TaggerGraph, check_exportable, reads_white_space

__all__ = ["ExportedFile", "check_replaceable", "export_onnx"]

_OPSET = 20

# The format stores a file as one message of protobuf, which cannot be larger.
_MOST_WEIGHT_BYTES = 1_500_000_000

# Without quantisation, almost all tags must agree: only ties may be broken in another way.
_LEAST_AGREEMENT = 0.99


@dataclass(frozen=True)
class ExportedFile:
    """What `export_onnx` has written.

    Args:
        path: the file.
        size: its size in bytes.
        decoder: the decoder in the graph.
        has_loops: whether the graph has a loop over the words (ONNX: Scan, Loop or If).
        agreement: how many tags agree with those of the tagger.

    Example:
        >>> from bcrf.tagger.export import ExportedFile
        >>> ExportedFile(Path("tagger.onnx"), 1000, "viterbi", True, Agreement(10, 10)).size
        1000
    """

    path: Path
    size: int
    decoder: str
    has_loops: bool
    agreement: Agreement


def check_replaceable(path: str | os.PathLike[str], overwrite: bool) -> None:
    """Raise OSError if `path` is a folder, lies in no folder, or is a file that must stay."""
    target = Path(path)
    if target.is_dir():
        raise IsADirectoryError(f"{target} is a folder; expected the path of a file")
    if not target.parent.is_dir():
        raise FileNotFoundError(f"{target}: there is no folder {target.parent}; create it first")
    if target.exists() and not overwrite:
        raise FileExistsError(
            f"{target} exists; choose another file, or replace it with --overwrite (in Python: "
            "overwrite=True)"
        )


def export_onnx(
    tagger: Tagger,
    path: str | os.PathLike[str],
    *,
    decoder: str | None = None,
    probabilities: bool = False,
    quantize: bool = False,
    overwrite: bool = False,
    sentences: Iterable[Sentence | Sequence[str]] | None = None,
    progress: Callable[[str], None] | None = None,
) -> ExportedFile:
    """Write network and decoder of a tagger as one ONNX file, and compare it with the tagger.

    Inputs of the graph are `features`, int32 [B, n, F], `lengths`, int32 [B], and for segmentation
    `breaks`, bool [B, n]: white space before a character. Outputs are `tags`, int64 [B, n], -100
    after the end of a sentence, and with `probabilities` float32 [B, n, T]. The metadata `bcrf` of
    the file has labels and vocabularies as JSON. Tags are not repaired (`repair="none"`).

    With the decoders bregman-K and unstructured, the graph has no loop over the words.

    Args:
        tagger: a tagger with the default network.
        path: the file; it appears when it is complete.
        decoder: viterbi, bregman-K, bregman-K-relaxed, mean_field-K or unstructured; by default
            that of the tagger.
        probabilities: whether the graph returns the marginals of the tags, too.
        quantize: whether weights are stored in eight bits.
        overwrite: whether an existing file may be replaced.
        sentences: the sentences on which the file is compared with the tagger; None: sentences of
            random words of the vocabulary.
        progress: called with a few words before each step.

    Raises:
        ExportError: the tagger cannot be exported.
        OSError: the file exists, or cannot be written.
        ImportError: the packages of the extra `onnx` are missing.

    Example:
        >>> import tempfile
        >>> from pathlib import Path
        >>> from bcrf import Tagger
        >>> from bcrf.tagger.export import export_onnx
        >>> from bcrf.tagger.training import Config, train
        >>> folder = Path(tempfile.mkdtemp())
        >>> _ = (folder / "train.conllu").write_text("1\\tdogs\\t_\\tNOUN" + "\\t_" * 6 + "\\n\\n")
        >>> events = train(Config.from_dict({
        ...     "output": str(folder / "run"),
        ...     "data": {"train": str(folder / "train.conllu")},
        ...     "model": {"features": "word", "context_width": 8, "transitions": "shared"},
        ...     "training": {"epochs": 1, "device": "cpu"},
        ... }))
        >>> tagger = Tagger.load(list(events)[-1].model, device="cpu")
        >>> file = export_onnx(tagger, folder / "dogs.onnx", decoder="unstructured")
        >>> file.agreement.share, file.has_loops
        (1.0, False)
    """
    say = progress or (lambda _: None)
    name = tagger.decoder if decoder is None else decoder
    check_decoder(name)
    check_exportable(tagger, name)
    check_replaceable(path, overwrite)
    _check_packages()
    tagger = _on_cpu(tagger)
    weights = sum(x.numel() * x.element_size() for x in tagger.model.state_dict().values())
    if weights > _MOST_WEIGHT_BYTES:
        raise ExportError(
            f"the weights have {weights:,} bytes; an ONNX file can have {_MOST_WEIGHT_BYTES:,}"
        )
    description = describe(tagger, name, quantize)
    say("tracing the tagger")
    model = _traced(TaggerGraph(tagger, name, probabilities).eval(), tagger, probabilities)
    if quantize:
        quantize_weights(model)
    model.metadata_props.add(key=METADATA_KEY, value=description)
    content = model.SerializeToString()
    say("comparing the file with the tagger")
    given = sample_sentences(tagger) if sentences is None else sentences
    agreement = compare(content, tagger, given, name)
    if not quantize and agreement.share < _LEAST_AGREEMENT:
        raise ExportError(
            f"the file gives other tags than the tagger ({agreement}), so it is not written; "
            "please report this as a bug of bcrf"
        )
    with (
        report_write_errors(path, "cannot write the file", "an older file is unchanged"),
        atomic_write_bytes(path) as stream,
    ):
        check_replaceable(path, overwrite)
        stream.write(content)
    return ExportedFile(Path(path), len(content), name, _has_loops(model.graph), agreement)


def _check_packages() -> None:
    try:
        import onnx  # noqa: F401
        import onnxruntime  # noqa: F401
        import onnxscript  # noqa: F401
    except ImportError as error:
        raise ImportError(
            f"exporting to ONNX needs the package {error.name or 'onnx'}: pip install '.[onnx]'"
        ) from error


def _on_cpu(tagger: Tagger) -> Tagger:
    """Return the tagger, or a copy of it on the CPU."""
    if tagger.device.type == "cpu":
        return tagger
    tagger = copy.deepcopy(tagger)
    tagger.model.to("cpu")
    return tagger


@torch.no_grad()
def _traced(graph: TaggerGraph, tagger: Tagger, probabilities: bool) -> Any:
    """Return the graph as an ONNX model for batches of all sizes and sentences of all lengths."""
    # torch takes sizes that are equal in the example for one size, so these differ from T and F.
    vocabularies = tagger.vocabularies
    width = vocabularies.sizes(len(tagger.labels)).features + (vocabularies.vectors is not None)
    batch, n = [size for size in (3, 7, 11, 13) if size not in (len(tagger.labels), width)][:2]
    lengths = torch.arange(n, n - batch, -1, dtype=torch.int32)
    inputs = {"features": torch.zeros(batch, n, width, dtype=torch.int32), "lengths": lengths}
    if reads_white_space(tagger):
        inputs["breaks"] = torch.zeros(batch, n, dtype=torch.bool)
    dynamic = torch.export.Dim.DYNAMIC
    sizes = {name: dict.fromkeys(range(min(x.dim(), 2)), dynamic) for name, x in inputs.items()}
    with _quiet():
        program = torch.onnx.export(
            graph,
            kwargs=inputs,
            dynamic_shapes=sizes,
            dynamo=True,
            verbose=False,
            opset_version=_OPSET,
            input_names=list(inputs),
            output_names=["tags", "probabilities"][: 1 + probabilities],
        )
    assert program is not None
    model = program.model_proto
    _remove_traces(model.graph)
    _name_sizes(model.graph)
    return model


@contextlib.contextmanager
def _quiet() -> Iterator[None]:
    """Hide the warnings of torch's exporter about itself, and its notes on missing packages."""
    logger = logging.getLogger("torch.onnx")
    level = logger.level
    logger.setLevel(logging.ERROR)
    try:
        with warnings.catch_warnings():
            warnings.simplefilter("ignore")
            yield
    finally:
        logger.setLevel(level)


def _remove_traces(graph: Any) -> None:
    """Remove what the exporter notes about the source of each operation: paths of this machine."""
    for subgraph in _subgraphs(graph):
        for part in (*subgraph.node, *subgraph.value_info, *subgraph.input, *subgraph.output):
            del part.metadata_props[:]
            part.doc_string = ""
        del subgraph.metadata_props[:]


def _name_sizes(graph: Any) -> None:
    """Call the dynamic sizes of the inputs and outputs `batch` and `length`."""
    for part in (*graph.input, *graph.output):
        for dim, name in zip(part.type.tensor_type.shape.dim, ("batch", "length"), strict=False):
            dim.dim_param = name
    del graph.value_info[:]  # they use the old names, and runtimes infer the shapes again


def _subgraphs(graph: Any) -> Iterator[Any]:
    """Yield a graph and all graphs in the attributes of its operations."""
    yield graph
    for node in graph.node:
        for attribute in node.attribute:
            for inner in (attribute.g, *attribute.graphs):
                if inner.node:
                    yield from _subgraphs(inner)


def _has_loops(graph: Any) -> bool:
    loops = {"Scan", "Loop", "If"}
    return any(node.op_type in loops for inner in _subgraphs(graph) for node in inner.node)
