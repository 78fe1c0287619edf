"""Exported programs, of torch.export and ONNX, give the results of eager mode at every length."""

from __future__ import annotations

import io
from collections.abc import Callable, Iterator
from typing import Any, NamedTuple

import onnxruntime
import pytest
import torch
from torch import Tensor
from torch.testing import assert_close

import bcrf
from bcrf import Bregman, ForwardBackward, LinearChain, MeanField, Structure, Unstructured
from tests.strategies import Pairs

LABELS = ["O", "B-X", "I-X", "B-Y", "I-Y"]
TAGS = len(LABELS)
STRUCTURE = Structure.from_labels(LABELS, "IOB2")
DYNAMIC = torch.export.Dim.DYNAMIC

# Batch and length: first those of the exported example. Sentences of length 0 occur, too.
EXAMPLE = (3, 7)
SIZES = (EXAMPLE, (2, 1), (4, 2), (2, 3), (1, 1), (1, 6), (6, 5), (2, 40))

slow = pytest.mark.slow

Head = Callable[[LinearChain], Any]

# Exporting a projection takes seconds. Three of them cover both parities, and one parity twice.
HEADS: dict[str, Head] = {
    "viterbi": lambda chain: bcrf.viterbi(chain),
    "mbr": lambda chain: bcrf.decode(Bregman(4), chain, temperature=0.1),
    "bregman": lambda chain: Bregman(3)(chain).tag_marginals,
    "tolerance": lambda chain: Bregman(3, tolerance=1e-3)(chain).tag_marginals,
    "crf": lambda chain: ForwardBackward()(chain).tag_marginals,
    "edges": lambda chain: (
        ForwardBackward()(chain).edge_marginals,
        Bregman(3)(chain).edge_marginals,
    ),
    "values": lambda chain: (ForwardBackward()(chain).value, Bregman(3)(chain).value),
    "scan": lambda chain: ForwardBackward(parallel=True)(chain).best_tags(),
    "mean field": lambda chain: MeanField(3)(chain).tag_marginals,
    "unstructured": lambda chain: bcrf.decode(Unstructured(), chain),
    "certified": lambda chain: tuple(bcrf.certified_decode(chain, 4)),
}


class ExportableModel(torch.nn.Module):
    """Apply a head to the chain of emissions and a mask; transitions are a parameter or an
    argument."""

    def __init__(self, head: Head, constrained: bool = True) -> None:
        super().__init__()
        generator = torch.Generator().manual_seed(0)
        self.transitions = torch.nn.Parameter(torch.randn(TAGS, TAGS, generator=generator))
        self.head = head
        self.constrained = constrained

    def forward(self, emissions: Tensor, mask: Tensor, pairs: Tensor | None = None) -> Any:
        transitions = self.transitions if pairs is None else pairs
        chain = LinearChain(emissions, transitions, mask.sum(1))
        return self.head(chain.constrain(STRUCTURE) if self.constrained else chain)


def inputs(batch: int, n: int, kind: Pairs, whole: bool = False) -> tuple[Tensor, ...]:
    """Return ragged sentences with removed tags; `whole` makes scores small integers, with many
    ties."""
    generator = torch.Generator().manual_seed(97 * batch + n)
    emissions = 3 * torch.randn(batch, n, TAGS, generator=generator)
    pairs = 2 * torch.randn(batch, max(n - 1, 0), TAGS, TAGS, generator=generator)
    if whole:
        emissions, pairs = (x.sign().clamp(min=0) for x in (emissions, pairs))
    emissions[:, :, 3] = emissions[:, :, 3].masked_fill(emissions[:, :, 3] < -2, -torch.inf)
    lengths = torch.randint(0, n + 1, (batch,), generator=generator)
    lengths[0] = n
    mask = torch.arange(n) < lengths.unsqueeze(1)
    return (emissions, mask) if kind == "shared" else (emissions, mask, pairs)


def sizes(arguments: tuple[Tensor, ...]) -> tuple[dict[int, Any], ...]:
    return ({0: DYNAMIC, 1: DYNAMIC},) * len(arguments)


def outputs(found: Any) -> tuple[Tensor, ...]:
    return found if isinstance(found, tuple) else (found,)


@pytest.fixture(autouse=True)
def fresh_compiler() -> Iterator[None]:
    """The compiler also traces loops, so its caches are emptied."""
    torch._dynamo.reset()
    yield
    torch._dynamo.reset()


# torch.export


@pytest.mark.parametrize(
    ("head", "kind"),
    [
        ("viterbi", "shared"),
        pytest.param("viterbi", "per_pair", marks=slow),
        pytest.param("mbr", "shared", marks=slow),
        pytest.param("certified", "shared", marks=slow),
        *(pytest.param(head, "shared", marks=slow) for head in ("bregman", "crf", "edges")),
    ],
)
def test_programs(head: str, kind: Pairs) -> None:
    """Programs, also saved and loaded ones, agree with the model, which is exported in training
    mode."""
    model = ExportableModel(HEADS[head])
    arguments = inputs(*EXAMPLE, kind)
    program = torch.export.export(model, arguments, dynamic_shapes=sizes(arguments))
    assert not any("bcrf" in str(node.target) for node in program.graph.nodes)
    file = io.BytesIO()
    torch.export.save(program, file)
    file.seek(0)
    loaded = torch.export.load(file)
    for batch, n in SIZES:
        # torch treats a size of 1 as a special case; these inputs or outputs have one.
        if (head == "edges" and n == 2) or (kind == "per_pair" and (n < 3 or batch == 1)):
            continue
        arguments = inputs(batch, n, kind)
        with torch.no_grad():
            expected = model(*arguments)
            for run in (program.module(), loaded.module()):
                assert_close(outputs(run(*arguments)), outputs(expected), rtol=1e-5, atol=1e-5)


# ONNX


class Session(NamedTuple):
    model: ExportableModel
    run: Callable[..., tuple[Tensor, ...]]
    operators: set[str]


def session(head: str, kind: Pairs = "shared", constrained: bool = True) -> Session:
    model = ExportableModel(HEADS[head], constrained).eval()
    arguments = inputs(*EXAMPLE, kind)
    program = torch.onnx.export(
        model, arguments, dynamic_shapes=sizes(arguments), dynamo=True, verbose=False
    )
    assert program is not None
    proto = program.model_proto
    options = onnxruntime.SessionOptions()
    options.intra_op_num_threads = 1
    runtime = onnxruntime.InferenceSession(proto.SerializeToString(), options)
    names = [x.name for x in runtime.get_inputs()]

    def run(*arguments: Tensor) -> tuple[Tensor, ...]:
        feed = {name: x.numpy() for name, x in zip(names, arguments, strict=True)}
        return tuple(torch.from_numpy(x) for x in runtime.run(None, feed))

    return Session(model, run, {node.op_type for node in proto.graph.node})


@pytest.mark.parametrize(
    ("head", "kind"),
    [
        ("viterbi", "shared"),
        pytest.param("viterbi", "per_pair", marks=slow),
        pytest.param("bregman", "per_pair", marks=slow),
        *(pytest.param(head, "shared", marks=slow) for head in HEADS if head != "viterbi"),
    ],
)
def test_onnx(head: str, kind: Pairs) -> None:
    exported = session(head, kind)
    for batch, n in SIZES:
        arguments = inputs(batch, n, kind)
        with torch.no_grad():
            expected = outputs(exported.model(*arguments))
        assert_close(exported.run(*arguments), expected, rtol=1e-4, atol=1e-5)
    if head in ("viterbi", "crf"):
        assert "Scan" in exported.operators  # not one copy of the step per position


@slow
def test_ties_are_broken_as_by_torch_operations() -> None:
    """Sums of small integers are exact, and often equal.

    The compiled kernels may choose another one of several best sequences.
    """
    exported = session("viterbi", "per_pair", constrained=False)
    ties = 0
    for n in range(1, 12):
        emissions, mask, pairs = inputs(8, n, "per_pair", whole=True)
        chain = LinearChain(emissions, pairs, mask.sum(1))
        assert_close(exported.run(emissions, mask, pairs), bcrf.viterbi(chain, "torch"))
        best, second = bcrf.k_best(chain, 2)[0].unbind(1)
        ties += int((best == second).sum())
    assert ties > 40
