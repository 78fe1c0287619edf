"""A call of a layer passes few functions and takes little time; signatures name every argument."""

import inspect
import subprocess
import sys
import time
from collections.abc import Callable
from pathlib import Path

import pytest
import torch

import bcrf
from tests.call_path import functions_before_kernel
from tests.comparing import needs_native

T = 17
STRUCTURE = bcrf.Structure(start=[True] * (T - 1) + [False])


def batch(size: int, n: int) -> tuple[torch.Tensor, torch.Tensor, torch.Tensor]:
    """Return emissions, tags of which two are -100, and a mask for right padding."""
    generator = torch.Generator().manual_seed(0)
    emissions = torch.randn(size, n, T, generator=generator)
    tags = torch.randint(T - 1, (size, n), generator=generator)
    lengths = torch.randint(2, n + 1, (size,), generator=generator)
    mask = torch.arange(n) < lengths.unsqueeze(1)
    tags[0, -2:] = -100
    return emissions, tags, mask


BREGMAN = bcrf.BregmanCRF(T, constraints=STRUCTURE)
EXACT = bcrf.CRF(T, batch_first=True)
EMISSIONS, TAGS, MASK = batch(4, 7)
HOLES = MASK.clone()
HOLES[:, 1] = False
# Three of the functions of a mask with holes move positions: `Layout.of`, `Layout.compact` and
# `_take_rows`.
CALLS: dict[str, tuple[Callable[[], object], int]] = {
    "Bregman loss": (lambda: BREGMAN.loss(EMISSIONS, TAGS, MASK), 20),
    "CRF loss": (lambda: EXACT.loss(EMISSIONS, TAGS, MASK), 20),
    "Bregman loss, mask with holes": (lambda: BREGMAN.loss(EMISSIONS, TAGS, HOLES), 20),
    "CRF loss, mask with holes": (lambda: EXACT.loss(EMISSIONS, TAGS, HOLES), 20),
    "Bregman decode": (lambda: BREGMAN.decode(EMISSIONS, MASK), 20),
    "CRF decode": (lambda: EXACT.decode(EMISSIONS, MASK), 20),
    "Bregman decode, mask with holes": (lambda: BREGMAN.decode(EMISSIONS, HOLES), 23),
    "CRF decode, mask with holes": (lambda: EXACT.decode(EMISSIONS, HOLES), 23),
}


@needs_native
@pytest.mark.parametrize("name", CALLS)
def test_calls_pass_few_functions(name: str, monkeypatch: pytest.MonkeyPatch) -> None:
    call, most = CALLS[name]
    functions, files = functions_before_kernel(call, monkeypatch)
    assert len(functions) <= most, functions
    assert len(files) <= 9, files


# Seconds that a layer may add to the core's function on the same scores: three times the floors of
# 60 and 120 us, so that a busy machine passes. It does not show that the floors hold.
@needs_native
@pytest.mark.parametrize(
    ("masked", "most"), [(False, 180e-6), (True, 360e-6)], ids=["no mask", "mask, -100, rules"]
)
@pytest.mark.parametrize("layer", [BREGMAN, EXACT], ids=["bregman", "exact"])
def test_layers_add_little_time(layer: bcrf.ChainLayer, masked: bool, most: float) -> None:
    emissions, tags, mask = batch(32, 64)
    emissions.requires_grad_()
    if not masked:
        tags = tags.clamp(min=0)
    arguments = (emissions, tags, mask if masked else None)
    chain = layer.chain(emissions, mask if masked else None)
    chain = bcrf.LinearChain(
        chain.unary.detach().requires_grad_(), layer.transitions, chain.lengths
    )
    calls = (
        lambda: bcrf.loss(layer.solver, chain, tags.clamp(min=0)),
        lambda: layer.loss(*arguments),
    )
    best = [float("inf")] * 2
    for _ in range(300):
        for number, call in enumerate(calls):
            start = time.perf_counter()
            call()
            best[number] = min(best[number], time.perf_counter() - start)
    assert best[1] - best[0] < most


LAYERS = (
    bcrf.BregmanCRF, bcrf.ExactCRF, bcrf.MeanFieldCRF, bcrf.TokenSoftmax, bcrf.CRF, bcrf.ChainLayer
)  # fmt: skip


@pytest.mark.parametrize("layer", LAYERS)
def test_signatures_show_every_argument(layer: type[bcrf.ChainLayer]) -> None:
    parameters = inspect.signature(layer).parameters
    assert {"num_tags", "batch_first", "constraints", "penalty", "decoder"} <= set(parameters)
    assert inspect.Parameter.VAR_KEYWORD not in {x.kind for x in parameters.values()}
    for method in ("loss", "decode", "marginals", "chain"):
        found = inspect.signature(getattr(layer, method)).parameters.values()
        assert inspect.Parameter.VAR_KEYWORD not in {x.kind for x in found}


@pytest.mark.slow
def test_mypy_refuses_misspelled_arguments(tmp_path: Path) -> None:
    names = ["BregmanCRF", "ExactCRF", "MeanFieldCRF", "TokenSoftmax", "CRF"]
    lines = ["import bcrf", *(f"bcrf.{name}(3, batch_first=True)" for name in names)]
    lines += [f"bcrf.{name}(3, batch_frist=True)" for name in names]
    chain = "bcrf.LinearChain(torch.zeros(1, 2, 3))"
    lines += ["import torch", f"{chain}.to(device='cpu')", f"{chain}.to(torch.float64)"]
    lines += [f"{chain}.to(deivce='cpu')"]
    snippet = tmp_path / "snippet.py"
    snippet.write_text("\n".join(lines) + "\n")
    done = subprocess.run(
        [sys.executable, "-m", "mypy", "--strict", str(snippet)], capture_output=True, text=True
    )
    errors = [line for line in done.stdout.splitlines() if "error:" in line]
    assert len(errors) == len(names) + 1, done.stdout + done.stderr
    for name, error in zip(names, errors[:-1], strict=True):
        assert f'"batch_frist" for "{name}"' in error
    assert '"deivce"' in errors[-1]
    assert '"to" of "LinearChain"' in errors[-1]
