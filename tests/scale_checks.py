"""Check the results of a solver for a chain with scores of any size.

Values are compared with float64 up to C * eps * max|w| * n. For scores above about 1e6 in float32,
this error exceeds 1, so the comparison says nothing about marginals. Therefore marginals must also
be probabilities (finite, in range, of sum 1), and within 0.01 of float64 if an error of this size
in the scores does not change them (`is_well_conditioned`).
"""

from __future__ import annotations

import dataclasses
from collections.abc import Iterator
from typing import NamedTuple

import torch
from torch import Tensor
from torch.nn.functional import one_hot

import bcrf
from bcrf import Bregman, ForwardBackward, LinearChain, MeanField, Solver, Unstructured
from tests.comparing import allowance, any_path
from tests.subjects import allowed_with, scores_of, slopes, with_scores

MASS = 1e-4
"""The accepted error of masses, ranges and flows."""
NEAR = 0.01
"""The accepted distance from probabilities in float64 of well-conditioned cases."""

Answers = dict[str, Tensor]


class Case(NamedTuple):
    """A chain with gold tags [B, n] and sets of allowed tags, bool [B, n, T]."""

    chain: LinearChain
    gold: Tensor
    allowed: Tensor


def label(chain: LinearChain, seed: int = 0) -> Case:
    """Return `chain` with gold tags: a random path, and a best one for every second sentence."""
    gold = any_path(chain, seed)
    best = bcrf.viterbi(chain.double(), "torch")[1]
    gold[::2] = best[::2]
    return Case(chain, gold, allowed_with(chain, gold, seed))


FAMILIES = ("crf", "scan", "bregman", "paper", "tolerance", "mean field", "unstructured")


def backends_of(family: str, small: bool) -> tuple[str, ...]:
    """Return the backends of a family; the naive one only if chains are small."""
    if family in ("scan", "mean field", "unstructured"):
        return ("torch",)
    native = ("native",) if bcrf.backends()["native"] is None else ()
    return (*native, "torch", *(("naive",) if small else ()))


def solver_of(family: str, backend: str) -> Solver:
    if family == "crf":
        return ForwardBackward(backend=backend)
    if family == "scan":
        return ForwardBackward(parallel=True)
    if family == "bregman":
        return Bregman(10, backend=backend)
    if family == "paper":
        return dataclasses.replace(Bregman.paper(7), backend=backend)
    if family == "tolerance":
        return Bregman(12, tolerance=1e-3, backend=backend)
    return MeanField(5) if family == "mean field" else Unstructured()


def answers(solver: Solver, case: Case) -> Answers:
    """Return the results of `expected`, and those that other kernels compute without gradients."""
    chain, gold, _ = case
    with torch.no_grad():
        solution = solver(chain)
        plain = {
            "value without gradient": solution.value,
            "loss without gradient": bcrf.loss(solver, chain, gold),
            "residual": solution.residual,
            "tag marginals": solution.tag_marginals,
            "edge marginals": solution.edge_marginals,
            "decoded": bcrf.decode(solver, chain),
        }
    return expected(solver, case) | plain


def expected(solver: Solver, case: Case) -> Answers:
    """Return values, losses, marginals, residual and first derivatives."""
    chain, gold, allowed = case
    scores = scores_of(chain)
    traced = with_scores(chain, scores)
    solution = solver(traced)
    found = {
        "residual": solution.residual,
        "tag marginals": solution.tag_marginals.detach(),
        "edge marginals": solution.edge_marginals.detach(),
    }
    outputs = {
        "value": solution.value,
        "loss": bcrf.loss(solver, traced, gold),
        "partial loss": bcrf.partial_loss(solver, traced, allowed),
    }
    for name, output in outputs.items():
        found[name] = output.detach()
        for part, slope in zip(("unary", "transitions"), slopes(output, scores), strict=False):
            found[f"{name} by {part}"] = slope
    return found


def problems(family: str, found: Answers, exact: Answers, case: Case, near: bool) -> list[str]:
    """Return descriptions of all wrong results of a solver.

    Args:
        exact: the results of `expected` for the same scores in float64.
        near: whether probabilities must be near those of `exact`, see `is_well_conditioned`.
    """
    for name, answer in found.items():
        if not answer.isfinite().all():
            return [f"{name}: not finite"]
    wrong = [*_wrong_values(found, exact, case.chain), *_wrong_masses(family, found, case)]
    if near:
        wrong += _far(found, exact, case.chain)
    return wrong


def _wrong_values(found: Answers, exact: Answers, chain: LinearChain) -> Iterator[str]:
    for name in found:
        kind = name.removesuffix(" without gradient")
        if kind not in ("value", "loss", "partial loss"):
            continue
        error = largest(found[name].double() - exact[kind])
        if error > allowance(chain):
            yield f"{name}: off by {error:.3g}, allowed {allowance(chain):.3g}"
        if "loss" in name and (found[name] < 0).any():
            yield f"{name}: negative"


def _wrong_masses(family: str, found: Answers, case: Case) -> Iterator[str]:
    chain, gold, _ = case
    positions = chain.mask
    edges = chain.mask[:, 1:]
    tags = one_hot(gold.clamp(min=0), chain.num_tags) * positions.unsqueeze(-1)
    arcs = tags[:, :-1].unsqueeze(-1) * tags[:, 1:].unsqueeze(-2)
    masses = {
        "tag marginals": (found["tag marginals"], positions),
        "edge marginals": (found["edge marginals"].flatten(2), edges),
    }
    if family == "mean field":  # its derivatives go through all updates: they are no marginals
        return (yield from _wrong_distributions(masses))
    for name, taken in (("value", 0), ("loss", 1)):
        masses[f"{name} by unary"] = (found[f"{name} by unary"] + taken * tags, positions)
        by_pair = found.get(f"{name} by transitions")
        if by_pair is None or family == "unstructured":
            continue
        if chain.shared:
            # Expected counts, which add up to the number of edges: their shares are a distribution.
            shares = (by_pair + taken * arcs.sum((0, 1))) / _edges(chain)
            masses[f"{name} by transitions"] = (shares.flatten(), edges.any())
            continue
        by_pair = by_pair + taken * arcs
        masses[f"{name} by transitions"] = (by_pair.flatten(2), edges)
        yield from _wrong_flow(name, by_pair, masses[f"{name} by unary"][0], chain)
    yield from _wrong_distributions(masses)
    differences = found["partial loss by unary"]
    if largest(differences) > 1 + MASS or largest(differences.sum(-1)) > MASS:
        yield "partial loss by unary: no difference of two distributions"


def _wrong_distributions(masses: dict[str, tuple[Tensor, Tensor]]) -> Iterator[str]:
    """Yield results that are negative, or whose sum is not 1 inside a sentence and 0 outside."""
    for name, (mass, expected) in masses.items():
        if mass.numel() and float(mass.min()) < -MASS:
            yield f"{name}: {float(mass.min()):.3g} is negative"
        error = largest(mass.double().sum(-1) - expected.double())
        if error > MASS:
            yield f"{name}: mass off by {error:.3g}"


def _wrong_flow(name: str, q: Tensor, p: Tensor, chain: LinearChain) -> Iterator[str]:
    """Yield a problem if a unary gradient is not the mean of incoming and outgoing mass."""
    if chain.max_length < 2:
        return
    incoming = torch.cat([q[:, :1].sum(-1), q.sum(-2)], 1)
    outgoing = torch.cat([q.sum(-1), torch.zeros_like(p[:, :1])], 1)
    outgoing = torch.where(chain.last.unsqueeze(-1), incoming, outgoing)
    long = (chain.lengths > 1).view(-1, 1, 1)
    error = largest((incoming + outgoing) / 2 - p, long)
    if error > MASS:
        yield f"{name}: derivatives with respect to unary and transitions differ by {error:.3g}"


def _far(found: Answers, exact: Answers, chain: LinearChain) -> Iterator[str]:
    for name in found:
        if name not in ("residual", "tag marginals", "edge marginals") and " by " not in name:
            continue
        many = _edges(chain) if found[name].dim() == 2 else 1
        error = largest(found[name].double() - exact[name]) / many
        scale = max(1.0, largest(exact[name]) / many)
        if error > NEAR * scale:
            yield f"{name}: {error:.3g} from float64"
    if "decoded" not in found:
        return
    p = exact["tag marginals"]
    chosen = p.gather(-1, found["decoded"].clamp(min=0).unsqueeze(-1)).squeeze(-1)
    if ((chosen < p.amax(-1) - 2 * NEAR) & chain.mask).any():
        yield "decoded: not the most probable tags"


def is_well_conditioned(solver: Solver, case: Case, exact: Answers) -> bool:
    """Whether errors of 4 eps max|w| n in the scores change no probability by half of `NEAR`.

    A case is not if the scores of two paths, or of two arcs of an edge, differ by rounding only.
    """
    chain = case.chain
    generator = torch.Generator().manual_seed(0)

    def moved(w: Tensor) -> Tensor:
        noise = torch.rand(w.shape, generator=generator, dtype=torch.float64) * 2 - 1
        return w + allowance(chain) / 8 * noise

    found = expected(solver, case._replace(chain=chain.double()._map(moved, torch.float64)))
    for name, answer in found.items():
        if answer.dim() == 1 and name != "residual":
            continue
        many = _edges(chain) if answer.dim() == 2 else 1
        bound = NEAR / 2 * max(1.0, largest(exact[name]) / many)
        if not largest(answer - exact[name]) / many <= bound:
            return False
    return True


def decoder_problems(case: Case, small: bool) -> list[str]:
    """Return the defects of the best sequences and of their scores."""
    chain = case.chain
    wide, atol = chain.double(), allowance(chain)
    best = bcrf.viterbi(wide, "torch")[0]
    wrong = []
    for backend in backends_of("crf", small):
        score, tags = bcrf.viterbi(chain, backend)
        found = {"viterbi": (score, tags)}
        if backend != "naive":
            certified = bcrf.certified_decode(chain, backend=backend)
            found["certified"] = (certified.score, certified.tags)
        for name, (score, tags) in found.items():
            if not torch.equal(tags == -100, ~chain.mask):
                wrong.append(f"{backend} {name}: tags beyond the length, or none within")
            if largest(wide.score(tags) - best) > 1e-13 * atol / torch.finfo(chain.dtype).eps:
                wrong.append(f"{backend} {name}: no best sequence")
            if not largest(score.double() - best) <= atol:
                wrong.append(f"{backend} {name}: wrong score")
    return wrong


def _edges(chain: LinearChain) -> int:
    """Return the number of edges over which the gradient of shared transitions is summed."""
    return max(int(chain.mask[:, 1:].sum()), 1)


def largest(x: Tensor, where: Tensor | None = None) -> float:
    """Return max |x|: inf if x has a NaN, 0 if x is empty."""
    x = x if where is None else torch.where(where, x, 0.0)
    return float(x.nan_to_num(torch.inf).abs().max()) if x.numel() else 0.0
