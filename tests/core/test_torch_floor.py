"""The oldest torch that pyproject.toml allows has every name that the package uses, and every
private function has a fallback."""

from __future__ import annotations

import json
import re
import subprocess
import sys
from collections.abc import Iterator
from pathlib import Path

import pytest
import torch
from torch import Tensor
from torch._dynamo.testing import CompileCounterWithBackend
from torch.autograd import forward_ad
from torch.fx.experimental import symbolic_shapes
from torch.testing import assert_close

import bcrf
from bcrf import kernels
from bcrf.compat import control_flow, private_torch
from tests import torch_floor
from tests.comparing import needs_native
from tests.torch_floor import exists, names_in, used_names

ROOT = Path(__file__).parents[2]
FLOOR = json.loads(torch_floor.MANIFEST.read_text(encoding="utf-8"))

# Names that the oldest torch does not have, and why the package runs without them.
GUARDED = {
    "torch.fx.experimental.symbolic_shapes.has_static_value": "called only if HAS_LOOPS",
    "torch.Tensor.__dlpack_c_exchange_api__": "native/python/tensors.cpp has another way",
    "torch.Tensor.index": "a method of lists here, not of tensors",
}
# Methods that torch's own modules override, and an attribute of ours that a tensor happens to have.
NO_INTERNALS = {
    "torch.nn.Module._apply",
    "torch.nn.Module._load_from_state_dict",
    "torch.Tensor._values",
}


# Programs beside the package, and the private names that they use, each with its reason.
PROGRAMS = ("benchmarks", "campaign", "examples", "measurement", "reproduction")
_DISPATCH = "torch.utils._python_dispatch.TorchDispatchMode"
_LEAVES = "torch.utils._pytree.tree_leaves"
_FAKE = "torch._subclasses.fake_tensor.FakeTensorMode"
INTERNALS_OF_PROGRAMS = {
    ("depth.py", _DISPATCH): "sees every operation; torch has no public way",
    ("launches.py", _DISPATCH): "sees every operation; torch has no public way",
    ("depth.py", _LEAVES): "finds the tensors among the arguments of an operation",
    ("launches.py", _LEAVES): "finds the tensors among the arguments of an operation",
    ("depth.py", _FAKE): "runs code on tensors whose values cannot be read",
}


# Names


@pytest.mark.skipif(torch.__version__ == FLOOR["version"], reason="the next test looks itself")
def test_the_oldest_torch_has_every_name() -> None:
    unknown = used_names() - {*FLOOR["names"]} - {*FLOOR["missing"]}
    assert not unknown, f"python -m tests.torch_floor has not looked for {sorted(unknown)}"
    assert set(FLOOR["missing"]) == set(GUARDED), f"torch {FLOOR['version']} lacks other names"


def test_this_torch_has_every_name() -> None:
    assert not [name for name in used_names() - {*GUARDED} if not exists(name)]


def test_the_manifest_is_that_of_the_declared_version() -> None:
    text = (ROOT / "pyproject.toml").read_text(encoding="utf-8")
    (declared,) = re.findall(r'^dependencies = \["torch>=([\d.]+)"\]$', text, flags=re.MULTILINE)
    version = FLOOR["version"].partition("+")[0]
    assert version == declared + ".0" * (2 - declared.count("."))


@pytest.mark.parametrize(
    ("source", "names"),
    [
        ("import torch\ntorch.nn.functional.pad(x)", {"torch.nn.functional.pad", "torch.nn"}),
        ("import torch.distributed as dist\ndist.barrier()", {"torch.distributed.barrier"}),
        ("import torch.fx\ntorch.fx.Graph", {"torch.fx", "torch.fx.Graph"}),
        ("from torch import nn as m\nm.Linear(2, 3)", {"torch.nn", "torch.nn.Linear"}),
        ("def f():\n    from torch._C import _x", {"torch._C._x"}),
        ("import torch\ngetattr(torch.compiler, '_flag', 1)", {"torch.compiler._flag"}),
        ("import math, numpy\nfrom .torch import x\nmath.sqrt(x.y)", set()),
    ],
)
def test_every_way_to_use_a_name_is_seen(source: str, names: set[str]) -> None:
    found, _ = names_in(source)
    assert names <= found
    assert bool(found) == bool(names)


def test_methods_are_seen_by_their_names() -> None:
    assert names_in("f(x).logsumexp(1).mT")[1] == {"logsumexp", "mT"}
    assert {"torch.Tensor.masked_fill_", "torch.nn.Module.register_buffer"} <= used_names()
    assert "torch.Tensor.resolve_neg" in used_names()  # native/python/tensors.cpp
    assert not exists("torch.Tensor.novelty")
    assert not exists("torch.novelty.function")
    assert exists("torch._higher_order_ops.scan.scan")  # a function hides the module


def test_private_names_are_used_in_one_module() -> None:
    def private(name: str) -> bool:
        return any(part.startswith("_") and part[:2] != "__" for part in name.split("."))

    allowed_in_use = set()
    folders = (torch_floor.SOURCE, *(ROOT / name for name in PROGRAMS))
    for path in (path for folder in folders for path in folder.rglob("*.py")):
        if path.name != "private_torch.py":
            found = {name for name in names_in(path.read_text("utf-8"))[0] if private(name)}
            allowed = {(path.name, name) for name in found} & INTERNALS_OF_PROGRAMS.keys()
            assert found == {name for _, name in allowed}, path
            allowed_in_use |= allowed
    assert allowed_in_use == INTERNALS_OF_PROGRAMS.keys()
    own, attributes = names_in(Path(private_torch.__file__).read_text(encoding="utf-8"))
    assert {name for name in used_names() if private(name)} - NO_INTERNALS <= own
    assert not attributes & {"_C", "_pytree"}


# Fallbacks


@pytest.fixture
def fresh_compiler() -> Iterator[None]:
    torch._dynamo.reset()
    yield
    torch._dynamo.reset()


@pytest.mark.parametrize("name", private_torch._PROBES)
def test_a_missing_probe_is_named(name: str, monkeypatch: pytest.MonkeyPatch) -> None:
    assert private_torch.missing_probe() is None
    monkeypatch.delattr(f"torch.{name}")
    assert private_torch.missing_probe() == f"torch.{name}"


class Without:
    """A module that lacks one of the attributes below it, such as "_C._get_tracing_state"."""

    def __init__(self, module: object, name: str) -> None:
        self.module, self.name = module, name

    def __getattr__(self, key: str) -> object:
        first, _, rest = self.name.partition(".")
        if key == self.name:
            raise AttributeError(key)
        found = getattr(self.module, key)
        return Without(found, rest) if key == first else found


def check_losses() -> None:
    """Check that losses and their gradients are finite, and losses are positive."""
    unary = torch.randn(2, 5, 3, dtype=torch.float64, requires_grad=True)
    chain = bcrf.LinearChain(unary, torch.zeros(3, 3, dtype=torch.float64), [5, 2])
    for solver in (bcrf.ForwardBackward(), bcrf.Bregman(), bcrf.MeanField()):
        value = bcrf.loss(solver, chain, torch.zeros(2, 5, dtype=torch.int64)).sum()
        (grad,) = torch.autograd.grad(value, unary)
        assert bool(value > 0)
        assert bool(grad.isfinite().all())


@pytest.mark.parametrize("name", private_torch._PROBES)
def test_eager_mode_needs_no_probe(name: str, monkeypatch: pytest.MonkeyPatch) -> None:
    """The probe is missing for the package only, because torch itself calls some probes in every
    operation."""
    monkeypatch.setattr(private_torch, "torch", Without(torch, name))
    in_forward_ad = name.removeprefix("autograd.forward_ad.")
    monkeypatch.setattr(private_torch, "forward_ad", Without(forward_ad, in_forward_ad))
    assert private_torch.missing_probe() == f"torch.{name}"
    monkeypatch.setattr(private_torch, "_CANNOT_TELL", True)  # as an import would find
    assert private_torch.must_stay_in_torch()
    assert private_torch.in_function_transform()
    assert private_torch.is_legacy_batched(torch.zeros(1))
    assert not private_torch.in_vmap()
    assert kernels.select_backend("auto", torch.zeros(1)) == "torch"
    check_losses()
    mask = torch.tensor([[1, 0, 1, 1]])
    assert len(bcrf.BregmanCRF(3).decode(torch.zeros(1, 4, 3), mask)[0]) == 3


WITHOUT_INTERNALS = """
import sys
import torch
from torch.utils import _pytree

for name in ("scan",):
    sys.modules[f"torch._higher_order_ops.{name}"] = None
del torch._C._functorch.is_legacy_batchedtensor, _pytree.register_pytree_node

import bcrf
from bcrf import kernels
from bcrf.compat import private_torch

assert not private_torch.HAS_LOOPS
assert private_torch.must_stay_in_torch()
print(kernels.backends()["native"])

unary = torch.randn(2, 5, 3, dtype=torch.float64, requires_grad=True)
chain = bcrf.LinearChain(unary, torch.zeros(3, 3, dtype=torch.float64), [5, 2])
for solver in (bcrf.ForwardBackward, bcrf.Bregman, bcrf.MeanField):
    value = bcrf.loss(solver(), chain, torch.zeros(2, 5, dtype=torch.int64)).sum()
    (grad,) = torch.autograd.grad(value, unary)
    assert bool(value > 0) and bool(grad.isfinite().all())
assert not _pytree.tree_leaves(chain)[0] is unary
"""


def test_eager_mode_needs_no_internals() -> None:
    """Without the private functions, torch operations run, and `backends` says why."""
    run = subprocess.run(
        [sys.executable, "-c", WITHOUT_INTERNALS], capture_output=True, text=True, check=False
    )
    assert run.returncode == 0, run.stderr
    assert f"torch {torch.__version__} has no torch._C._functorch.is_legacy" in run.stdout


@needs_native
def test_a_graph_that_may_be_exported_has_no_operators_of_ours(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    monkeypatch.setattr(torch.compiler, "is_compiling", lambda: True)
    assert kernels.select_backend("auto", torch.zeros(1)) == "custom_op"
    monkeypatch.delattr("torch.compiler._is_exporting_flag")
    assert kernels.select_backend("auto", torch.zeros(1)) == "torch"


def test_a_size_that_torch_cannot_tell_is_any_size(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.delattr(symbolic_shapes, "has_static_value", raising=False)
    assert not private_torch.has_static_value(3)


@pytest.mark.usefixtures("fresh_compiler")
def test_without_loops_every_length_has_a_graph(monkeypatch: pytest.MonkeyPatch) -> None:
    """This is the case before torch 2.13."""
    monkeypatch.setattr(control_flow, "HAS_LOOPS", False)

    def loss(unary: Tensor, transitions: Tensor) -> Tensor:
        chain = bcrf.LinearChain(unary, transitions)
        tags = torch.zeros(unary.shape[:2], dtype=torch.int64)
        return bcrf.loss(bcrf.ForwardBackward(backend="torch"), chain, tags)

    counter = CompileCounterWithBackend("eager")
    compiled = torch.compile(loss, fullgraph=True, backend=counter)
    transitions = torch.randn(3, 3)
    for n in (2, 3, 2):
        unary = torch.randn(2, n, 3)
        assert_close(compiled(unary, transitions), loss(unary, transitions))
    assert counter.frame_count == 2


class Best(torch.nn.Module):
    def forward(self, unary: Tensor) -> Tensor:
        return bcrf.viterbi(bcrf.LinearChain(unary, torch.zeros(3, 3)))[1]


def test_without_loops_a_program_has_one_length(monkeypatch: pytest.MonkeyPatch) -> None:
    """torch reports this during export."""
    monkeypatch.setattr(control_flow, "HAS_LOOPS", False)
    unary = torch.randn(2, 4, 3)
    program = torch.export.export(Best(), (unary,), strict=False)
    assert torch.equal(program.module()(unary), Best()(unary))
    sizes = ({1: torch.export.Dim("n", max=512)},)
    with pytest.raises(torch._dynamo.exc.UserError, match=r"constant \(4\)"):
        torch.export.export(Best(), (unary,), dynamic_shapes=sizes, strict=False)
