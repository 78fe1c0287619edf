"""Collect all results of a backend for a chain, and compare those of two backends."""

import math
from typing import Any

import pytest
import torch
from torch import Tensor

import bcrf
from bcrf import Bregman, ForwardBackward, LinearChain, Solver
from bcrf.chain import PAD
from bcrf.inference.implicit import dual_terms
from bcrf.kernels.folded_chain import fold
from tests.strategies import Pairs
from tests.subjects import allowed_with, gold_of, ragged_chain, scores_of, slopes, with_scores

SINGLE, DOUBLE = torch.float32, torch.float64
DTYPES = (SINGLE, DOUBLE)

unavailable = bcrf.backends()["native"]
needs_native = pytest.mark.skipif(unavailable is not None, reason=f"no kernels: {unavailable}")

Answers = dict[str, Tensor]


def solvers(backend: str, **settings: Any) -> dict[str, Solver]:
    return {
        "crf": ForwardBackward(backend=backend),
        "bregman": Bregman(**settings, backend=backend),
    }


def problem(
    seed: int,
    lengths: list[int],
    num_tags: int,
    kind: Pairs,
    dtype: torch.dtype = SINGLE,
    removed: float = 0.0,
    scale: float = 1.0,
) -> LinearChain:
    return ragged_chain(
        seed, lengths, num_tags, pairs=kind, removed=removed, scale=scale, n=max(lengths, default=0)
    ).to(dtype)


def any_path(chain: LinearChain, seed: int = 0) -> Tensor:
    """Return the tags [B, n] of a random path of each sentence; -100 beyond the length."""
    return gold_of(chain._map(lambda w: torch.where(w > -math.inf, 0.0, w), chain.dtype), seed)


def answers(chain: LinearChain, gold: Tensor, subjects: dict[str, Solver]) -> Answers:
    """Return values, losses, marginals and gradients; the weights of the sentences differ."""
    found: Answers = {}
    weights = torch.linspace(0.5, 1.5, len(chain), dtype=chain.unary.dtype)
    allowed = allowed_with(chain, gold)
    for family, solver in subjects.items():
        plain, scores = solver(chain), scores_of(chain)
        traced = with_scores(chain, scores)
        functions = {
            "value": solver(traced).value,
            "loss": bcrf.loss(solver, traced, gold),
            "partial loss": bcrf.partial_loss(solver, traced, allowed),
        }
        with torch.no_grad():
            found[f"{family} value, no grad"] = plain.value
            found[f"{family} loss, no grad"] = bcrf.loss(solver, traced, gold)
        found[f"{family} residual"] = plain.residual
        found[f"{family} tags"] = plain.tag_marginals
        found[f"{family} edges"] = plain.edge_marginals
        for name, output in functions.items():
            found[f"{family} {name}"] = output.detach()
            by = slopes(output * weights, scores)
            for part, slope in zip(("unary", "transitions"), by, strict=False):
                found[f"{family} {name} by {part}"] = slope
    return found


def allowance(chain: LinearChain) -> float:
    """Return the accepted rounding error, 32 eps max(1, max|w|) n."""
    scores = torch.cat([chain.unary.flatten(), chain.pair_scores.flatten()])
    scores = scores[scores > -math.inf].abs()
    largest = max(1.0, float(scores.max())) if len(scores) else 1.0
    return 32 * torch.finfo(chain.unary.dtype).eps * largest * max(chain.max_length, 1)


def assert_same(found: Answers, expected: Answers, chain: LinearChain, slack: float = 1.0) -> None:
    """Assert that results agree up to rounding in the dtype of `chain`, and no loss is negative."""
    assert found.keys() == expected.keys()
    edges = max(int((chain.lengths - 1).clamp(min=0).sum()), 1)
    for name, one in found.items():
        assert one.dtype == chain.unary.dtype, name
        assert one.isfinite().all(), name
        assert "loss" not in name or "by" in name or (one >= 0).all(), name
        many = edges if name.endswith("by transitions") and chain.shared else 1
        torch.testing.assert_close(
            one.double(),
            expected[name].double(),
            rtol=0,
            atol=slack * allowance(chain) * many,
            msg=lambda text, name=name: f"{name}: {text}",
        )


def check_answers(chain: LinearChain, slack: float = 1.0, **settings: Any) -> None:
    """Compare the compiled kernels with torch in float64, on the same scores."""
    gold = any_path(chain)
    found = answers(chain, gold, solvers("native", **settings))
    expected = answers(chain.double(), gold, solvers("torch", **settings))
    assert_same(found, expected, chain, slack)


def check_dual(chain: LinearChain, solver: Bregman) -> None:
    """Check the value of the dual at lam. lam itself is not unique, so it is not compared."""
    solution = solver(chain)
    folded = fold(chain.double())
    assert not solution.lam[~folded.interior_live].any()
    value = dual_terms(folded, solution.lam.double()).sum(1)
    long = chain.lengths > 1
    atol = allowance(chain)
    torch.testing.assert_close(value[long], solution.value.double()[long], rtol=0, atol=atol)


def check_decoders(chain: LinearChain, **settings: Any) -> Tensor:
    """Check the best sequences and the most probable tags; return which sentences are certified."""
    wide, atol = chain.double(), allowance(chain)
    best = bcrf.viterbi(wide, "torch")[0]
    score, tags = bcrf.viterbi(chain, "native")
    proved = bcrf.certified_decode(chain, backend="native")
    for found, sequence in ((score, tags), (proved.score, proved.tags)):
        assert torch.equal(sequence == PAD, ~chain.mask)
        # The kernels compare scores in float64, so only the order of the sums differs.
        torch.testing.assert_close(wide.score(sequence), best, rtol=1e-13, atol=1e-13)
        torch.testing.assert_close(found.double(), best, rtol=0, atol=atol)
    for tau in (1.0, 0.5):
        likely = bcrf.decode(Bregman(**settings, backend="native"), chain, tau)
        assert torch.equal(likely == PAD, ~chain.mask)
        marginals = Bregman(**settings, backend="torch")(wide / tau).tag_marginals
        chosen = marginals.gather(-1, likely.clamp(min=0).unsqueeze(-1)).squeeze(-1)
        assert (chosen >= marginals.amax(-1) - atol / tau)[chain.mask].all()
    return proved.certified
