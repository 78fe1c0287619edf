"""Layers in exported programs and in ONNX: batches of any size, masks of any pattern."""

import io
from collections.abc import Callable, Iterator
from typing import Any

import pytest
import torch
from torch import Tensor, nn
from torch.testing import assert_close

import bcrf
from bcrf import Bregman, ChainLayer

T, STATES = 5, 4
RULES = bcrf.Structure.from_labels(["O", "B-X", "I-X", "B-Y", "I-Y"], "IOB2")
LOOPS = {"Loop", "Scan", "If"}
SHAPES = [(2, 4), (5, 23), (1, 2), (4, 1)]
slow = pytest.mark.slow


class Decoder(nn.Module):
    """A linear layer and a CRF layer: states and a mask -> tags."""

    def __init__(self, layer: ChainLayer) -> None:
        super().__init__()
        torch.manual_seed(0)
        self.linear = nn.Linear(STATES, T)
        self.layer = layer
        with torch.no_grad():
            for parameter in layer.parameters():
                parameter.normal_()

    def forward(self, states: Tensor, mask: Tensor) -> Tensor:
        return self.layer.decode_tensor(self.linear(states), mask)


class MarginalsOfLayer(Decoder):
    """The layer's marginals without further iterations, because a program runs a fixed number."""

    def forward(self, states: Tensor, mask: Tensor) -> Tensor:
        converge = None if torch.compiler.is_exporting() else False
        return self.layer.marginals(self.linear(states), mask, converge=converge)


MODELS: dict[str, Callable[[], Decoder]] = {
    "viterbi": lambda: Decoder(bcrf.ExactCRF(T)),
    "viterbi, constrained": lambda: Decoder(bcrf.BregmanCRF(T, constraints=RULES)),
    "bregman": lambda: Decoder(
        bcrf.BregmanCRF(
            T, constraints=RULES, decoder=Bregman(4), temperature=0.5, finite_emissions=True
        )
    ),
    "mean field": lambda: Decoder(bcrf.MeanFieldCRF(T, 3)),
    "mean field, constrained": lambda: Decoder(
        bcrf.MeanFieldCRF(T, 2, constraints=RULES, finite_emissions=True)
    ),
    "softmax": lambda: Decoder(bcrf.TokenSoftmax(T)),
    "marginals: exact": lambda: MarginalsOfLayer(bcrf.ExactCRF(T, constraints=RULES)),
    "marginals: bregman": lambda: MarginalsOfLayer(bcrf.BregmanCRF(T, 3, finite_emissions=True)),
    "marginals: bregman, constrained": lambda: MarginalsOfLayer(
        bcrf.BregmanCRF(T, 3, constraints=RULES, finite_emissions=True)
    ),
    "bregman, undeclared": lambda: Decoder(bcrf.BregmanCRF(T, decoder=Bregman(3))),
    "marginals: softmax": lambda: MarginalsOfLayer(bcrf.TokenSoftmax(T)),
}


# Recursions over the positions. A mean field model with constraints decodes by Viterbi over its
# marginals. Without `finite_emissions`, scores may be -inf, and trimming has to look for them.
WITH_LOOP = {
    "viterbi",
    "viterbi, constrained",
    "mean field, constrained",
    "marginals: exact",
    "bregman, undeclared",
}


def batch(size: int, n: int) -> tuple[Tensor, Tensor]:
    """Return states, and a mask with holes that removes all positions of the last sentence."""
    generator = torch.Generator().manual_seed(100 * size + n)
    states = 2 * torch.randn(size, n, STATES, generator=generator)
    mask = torch.rand(size, n, generator=generator) < 0.7
    mask[0] = True
    if size > 1:
        mask[-1] = False
    return states, mask


def sizes() -> dict[str, dict[int, torch.export.Dim]]:
    axes = {0: torch.export.Dim("B", max=64), 1: torch.export.Dim("n", max=512)}
    return {"states": axes, "mask": axes}


def exported(model: nn.Module) -> torch.export.ExportedProgram:
    with torch.no_grad():
        return torch.export.export(model, batch(3, 7), dynamic_shapes=sizes(), strict=False)


@pytest.mark.parametrize(
    "name",
    [x if x in ("viterbi", "softmax") else pytest.param(x, marks=slow) for x in MODELS],
)
@torch.no_grad()
def test_exported_programs(name: str) -> None:
    model = MODELS[name]().eval()
    program = exported(model)
    assert not [node for node in program.graph.nodes if str(node.target).startswith("bcrf.")]
    for size, n in ((3, 7), *SHAPES):
        arguments = batch(size, n)
        assert_close(program.module()(*arguments), model(*arguments), rtol=1e-5, atol=1e-6)


def operators(graph: Any) -> Iterator[str]:
    """Yield the operators of an ONNX graph, those of its subgraphs included."""
    for node in graph.node:
        yield node.op_type
        for attribute in node.attribute:
            for inner in (attribute.g, *attribute.graphs):
                yield from operators(inner)


@slow
@pytest.mark.parametrize("name", MODELS)
@torch.no_grad()
def test_onnx(name: str) -> None:
    pytest.importorskip("onnxscript")
    onnxruntime = pytest.importorskip("onnxruntime")
    model = MODELS[name]().eval()
    program = torch.onnx.export(
        model, batch(3, 7), dynamic_shapes=sizes(), dynamo=True, verbose=False
    )
    buffer = io.BytesIO()
    program.save(buffer)
    session = onnxruntime.InferenceSession(buffer.getvalue())
    names = [entry.name for entry in session.get_inputs()]
    for size, n in ((3, 7), *SHAPES):
        arguments = batch(size, n)
        given = dict(zip(names, (x.numpy() for x in arguments), strict=True))
        (found,) = session.run(None, given)
        assert_close(torch.from_numpy(found), model(*arguments), rtol=1e-4, atol=1e-5)
    has_loop = not LOOPS.isdisjoint(operators(program.model_proto.graph))
    assert has_loop == (name in WITH_LOOP)
