"""The solvers and functions of the common tests, chains for them, and comparison of results."""

from collections.abc import Sequence
from typing import Any

import numpy as np
import pytest
import torch
from torch import Tensor

from bcrf import (
    Bregman,
    ForwardBackward,
    LinearChain,
    MeanField,
    Solver,
    Unstructured,
    certified_decode,
    decode,
    entropy,
    k_best,
    kl,
    loss,
    partial_loss,
    sample,
    viterbi,
)
from tests import oracles
from tests.strategies import ChainArrays, Pairs, random_chain_arrays

TOLERANCE = 1e-9
"""Of exact methods in float64, everywhere."""

CONVERGED = Bregman(20000, tolerance=1e-13)

CRF: dict[str, Solver] = {
    "crf": ForwardBackward(),
    "crf-torch": ForwardBackward(backend="torch"),
    "crf-parallel": ForwardBackward(parallel=True),
    "crf-few-launches": ForwardBackward(backend="few_launches"),
    "crf-naive": ForwardBackward(backend="naive"),
}
BREGMAN: dict[str, Solver] = {
    "bregman": Bregman(),
    "bregman-paper": Bregman.paper(10),
    "bregman-tolerance": Bregman(100, tolerance=1e-5),
    "bregman-torch": Bregman(backend="torch"),
    "bregman-few-launches": Bregman(backend="few_launches"),
    "bregman-naive": Bregman(backend="naive"),
}
FACTORIZED: dict[str, Solver] = {
    "mean-field": MeanField(5),
    "unstructured": Unstructured(),
}
STRUCTURED = CRF | BREGMAN
SOLVERS = STRUCTURED | FACTORIZED

# Solvers whose tag and edge marginals agree: all but Bregman with few projections.
CONSISTENT = CRF | FACTORIZED | {"bregman-converged": CONVERGED}

LENGTHS = (0, 1, 2, 3, 5)
KINDS: tuple[Pairs, ...] = ("none", "shared", "per_pair")


def close(actual: Any, expected: Any) -> None:
    """Assert equality up to `TOLERANCE`, and equal shapes and dtypes.

    `actual` is a tensor, or a tuple or dict of them; numbers and arrays are expected as float64.
    """
    if not isinstance(expected, (Tensor, tuple, dict)):
        expected = torch.tensor(np.asarray(expected, dtype=np.float64))
    torch.testing.assert_close(actual, expected, rtol=TOLERANCE, atol=TOLERANCE)


def arrays_of(chain: LinearChain) -> ChainArrays:
    """Return the constructor arguments of a chain."""
    return ChainArrays(chain.unary, chain.transitions, chain.lengths)


def padded(parts: Sequence[oracles.Array], like: Tensor) -> Tensor:
    """Return the arrays [L, ...] of sentences as one batch [B, n, ...], 0 beyond the lengths."""
    full = torch.zeros(like.shape, dtype=torch.float64)
    for row, part in zip(full, parts, strict=True):
        row[: len(part)] = torch.from_numpy(part)
    return full


def ragged_chain(
    seed: int,
    lengths: Sequence[int],
    num_tags: int,
    *,
    n: int | None = None,
    pairs: Pairs = "per_pair",
    removed: float = 0.0,
    scale: float = 1.0,
) -> LinearChain:
    """Return a random chain with these lengths; n defaults to the longest."""
    n = max(lengths) if n is None else n
    arrays = random_chain_arrays(
        seed, len(lengths), n, num_tags, pairs=pairs, removed=removed, scale=scale, ragged=False
    )
    return LinearChain(arrays.unary, arrays.transitions, lengths)


def gold_of(chain: LinearChain, seed: int = 0) -> Tensor:
    """Return the tags [B, n] of a path of each sentence, -100 beyond the length."""
    return sample(chain, 1, torch.Generator().manual_seed(seed))[0]


def allowed_with(chain: LinearChain, tags: Tensor, seed: int = 0) -> Tensor:
    """Return random sets of tags that contain `tags`, bool [B, n, T]; random beyond the lengths."""
    generator = torch.Generator().manual_seed(seed)
    chosen = torch.rand(chain.unary.shape, generator=generator) < 0.4
    return chosen | torch.nn.functional.one_hot(tags.clamp(min=0), chain.num_tags).bool()


def scores_of(chain: LinearChain) -> tuple[Tensor, ...]:
    """Return the score tensors of a chain as new leaves that require grad; see `with_scores`."""
    given = (chain.unary, chain.transitions)
    return tuple(x.detach().clone().requires_grad_() for x in given if x is not None)


def with_scores(chain: LinearChain, scores: Sequence[Tensor]) -> LinearChain:
    return LinearChain(scores[0], *(scores[1:] or (None,)), chain.lengths)


def alone(chain: LinearChain, i: int) -> LinearChain:
    """Return sentence `i` as a new batch of one, without padding."""
    length = int(chain.lengths[i])
    transitions = chain.transitions
    if transitions is not None and not chain.shared:
        transitions = transitions[i : i + 1, : max(length - 1, 0)]
    return LinearChain(chain.unary[i : i + 1, :length], transitions)


def parametrize(subjects: dict[str, Solver]) -> pytest.MarkDecorator:
    return pytest.mark.parametrize("solver", subjects.values(), ids=list(subjects))


# Results for a chain. The batch is the first axis; the second axis of the results in `ALONG` is
# that of positions or edges.

ALONG = {"tag_marginals", "edge_marginals", "decode", "tags"}


def solved(solver: Solver, chain: LinearChain, gold: Tensor, allowed: Tensor) -> dict[str, Tensor]:
    solution = solver(chain)
    return {
        "value": solution.value,
        "residual": solution.residual,
        "tag_marginals": solution.tag_marginals,
        "edge_marginals": solution.edge_marginals,
        "decode": decode(solver, chain),
        "loss": loss(solver, chain, gold),
        "partial_loss": partial_loss(solver, chain, allowed),
    }


def decoded(name: str, chain: LinearChain) -> dict[str, Tensor]:
    if name == "viterbi":
        score, tags = viterbi(chain)
        return {"score": score, "tags": tags}
    if name.startswith("viterbi-"):
        backend = name.removeprefix("viterbi-").replace("-", "_")
        score, tags = viterbi(chain, backend=backend)
        return {"score": score, "tags": tags}
    if name == "certified_decode":
        return certified_decode(chain)._asdict()
    if name.startswith("certified_decode-"):
        backend = name.removeprefix("certified_decode-").replace("-", "_")
        return certified_decode(chain, backend=backend)._asdict()
    if name == "k_best":
        score, tags = k_best(chain, 5)
        return {"score": score, "tags": tags.transpose(1, 2)}
    if name == "entropy":
        return {"entropy": entropy(chain)}
    if name == "kl":
        return {"kl": kl(chain, chain / 2), "none": kl(chain, chain)}
    draws = sample(chain, 50, torch.Generator().manual_seed(0))
    return {"tags": draws.permute(1, 2, 0)}


FUNCTIONS = (
    *("viterbi", "viterbi-torch", "viterbi-few-launches", "viterbi-naive"),
    *("certified_decode", "certified_decode-torch", "certified_decode-few-launches"),
    *("k_best", "entropy", "kl", "sample"),
)


def row(outputs: dict[str, Tensor], i: int, length: int | None = None) -> dict[str, Tensor]:
    """Return the outputs of sentence i of a batch, cut to its length if that is given."""
    cut = {name: x[i : i + 1] for name, x in outputs.items()}
    if length is None:
        return cut
    edges = max(length - 1, 0)
    return {
        name: x[:, : edges if name == "edge_marginals" else length] if name in ALONG else x
        for name, x in cut.items()
    }


def ragged(
    pairs: Pairs = "per_pair",
    removed: float = 0.0,
    *,
    lengths: Sequence[int] = LENGTHS,
    seed: int = 0,
) -> LinearChain:
    """Return short and empty sentences of three tags; even the longest one is padded."""
    n = max(lengths) + 1
    return ragged_chain(seed, lengths, 3, n=n, pairs=pairs, removed=removed)


def labelled(
    pairs: Pairs = "per_pair", removed: float = 0.0, *, lengths: Sequence[int] = LENGTHS
) -> tuple[LinearChain, Tensor, Tensor]:
    """Return `ragged` with gold tags and sets of allowed tags."""
    chain = ragged(pairs, removed, lengths=lengths)
    gold = gold_of(chain)
    return chain, gold, allowed_with(chain, gold)


def random_like(scores: Sequence[Tensor], seed: int = 0) -> tuple[Tensor, ...]:
    generator = torch.Generator().manual_seed(seed)
    return tuple(torch.randn(x.shape, generator=generator, dtype=x.dtype) for x in scores)


def slopes(output: Tensor, scores: Sequence[Tensor], graph: bool = False) -> tuple[Tensor, ...]:
    """Return the gradients of the sum; zeros, not None, for scores that the output does not depend
    on."""
    found = torch.autograd.grad(
        output.sum(), scores, create_graph=graph, retain_graph=True, allow_unused=True
    )
    return tuple(
        torch.zeros_like(x) if g is None else g for g, x in zip(found, scores, strict=True)
    )


def curvature(
    output: Tensor, scores: Sequence[Tensor], directions: Sequence[Tensor]
) -> tuple[Tensor, ...]:
    """Return a Hessian-vector product, by double backward."""
    first = slopes(output, scores, graph=True)
    along = sum(((g * v).sum() for g, v in zip(first, directions, strict=True)), torch.zeros(()))
    return slopes(along, scores)


def everything(
    solver: Solver,
    chain: LinearChain,
    gold: Tensor,
    allowed: Tensor,
    weights: Tensor,
    directions: Sequence[Tensor],
) -> dict[str, tuple[Tensor, ...]]:
    """Return values, marginals, losses, their gradients and Hessian-vector products.

    The tensors of a group are (unary-like, transitions-like), so that a test can delete a tag
    from all of them.
    """
    scores = scores_of(chain)
    solution = solver(with_scores(chain, scores))
    full = loss(solver, with_scores(chain, scores), gold)
    partial = partial_loss(solver, with_scores(chain, scores), allowed)
    weighted = (solution.tag_marginals * weights).sum()
    return {
        "numbers": (solution.value, solution.residual, full, partial),
        "marginals": (solution.tag_marginals, solution.edge_marginals),
        "gradient of the value": slopes(solution.value, scores),
        "gradient of the loss": slopes(full, scores),
        "gradient of the partial loss": slopes(partial, scores),
        "gradient of marginals": slopes(weighted, scores),
        "curvature of the loss": curvature(full, scores, directions),
        "curvature of the value": curvature(solution.value, scores, directions),
    }
