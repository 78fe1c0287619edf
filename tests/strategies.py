"""Random chains as torch tensors, and a hypothesis strategy over small ones."""

from collections.abc import Sequence
from typing import Literal, NamedTuple

import torch
from hypothesis import strategies as st
from torch import Tensor

Pairs = Literal["none", "shared", "per_pair"]


class ChainArrays(NamedTuple):
    """The three arguments of a chain."""

    unary: Tensor  # [B, n, T]
    transitions: Tensor | None  # None | [T, T] | [B, n-1, T, T]
    lengths: Tensor | None  # [B], int64; None: all n


def _integer(high: int, generator: torch.Generator) -> int:
    return int(torch.randint(high, (), generator=generator))


def _plant(
    unary: Tensor,  # scores that must not be removed, bool [n, T]; changed in place
    arcs: list[Tensor],  # n - 1 bool [T, T], possibly the same tensor; changed in place
    generator: torch.Generator,
) -> None:
    """Walk at random along kept arcs, and restore an arc or tag if the walk cannot go on."""
    tag = -1
    for i in range(unary.shape[0]):
        if i == 0:
            tag = _integer(unary.shape[1], generator)
        else:
            options = arcs[i - 1][tag].nonzero().flatten()
            if len(options):
                following = int(options[_integer(len(options), generator)])
            else:
                following = _integer(unary.shape[1], generator)
            arcs[i - 1][tag, following] = True
            tag = following
        unary[i, tag] = True


def random_chain_arrays(
    seed: int | torch.Generator,
    batch: int,
    n: int,
    num_tags: int,
    *,
    pairs: Pairs = "shared",
    removed: float = 0.0,
    scale: float = 1.0,
    dtype: torch.dtype = torch.float64,
    ragged: bool = True,
) -> ChainArrays:
    """Normal scores times `scale`, some removed (-inf), but every sentence keeps a path.

    Each transition is removed with probability `removed`, each unary score with a third of it.
    Ragged lengths are uniform in 0..n, one of them n; otherwise lengths is None. Scores beyond the
    length are random, too, because no result may depend on them.
    """
    generator = torch.Generator().manual_seed(seed) if isinstance(seed, int) else seed

    def normal(*shape: int) -> Tensor:
        return scale * torch.randn(*shape, generator=generator, dtype=torch.float64)

    def kept(probability: float, shape: torch.Size) -> Tensor:
        return torch.rand(shape, generator=generator, dtype=torch.float64) >= probability

    edges = max(n - 1, 0)
    unary = normal(batch, n, num_tags)
    keep_unary = kept(removed / 3, unary.shape)
    transitions = {
        "none": None,
        "shared": normal(num_tags, num_tags),
        "per_pair": normal(batch, edges, num_tags, num_tags),
    }[pairs]
    if transitions is None:
        keep_arcs = torch.ones(num_tags, num_tags, dtype=torch.bool)
    else:
        keep_arcs = kept(removed, transitions.shape)
    for b in range(batch):
        arcs = [keep_arcs] * edges if keep_arcs.ndim == 2 else list(keep_arcs[b])
        _plant(keep_unary[b], arcs, generator)
    unary = unary.masked_fill(~keep_unary, -torch.inf).to(dtype)
    if transitions is not None:
        transitions = transitions.masked_fill(~keep_arcs, -torch.inf).to(dtype)
    if not ragged:
        return ChainArrays(unary, transitions, None)
    lengths = torch.randint(n + 1, (batch,), generator=generator)
    lengths[_integer(batch, generator)] = n
    return ChainArrays(unary, transitions, lengths)


@st.composite
def chains(
    draw: st.DrawFn,
    max_n: int = 6,
    max_tags: int = 4,
    max_batch: int = 3,
    *,
    min_n: int = 0,
    pairs: Sequence[Pairs] = ("none", "shared", "per_pair"),
    removed: Sequence[float] = (0.0, 0.3, 0.6),
    scales: Sequence[float] = (1.0, 0.1, 3.0),
    ragged: bool | None = None,
    dtype: torch.dtype = torch.float64,
) -> ChainArrays:
    """Draw a chain of any kind. Hypothesis draws sizes, kind and seed; torch draws the scores."""
    return random_chain_arrays(
        draw(st.integers(0, 2**16)),
        draw(st.integers(1, max_batch)),
        draw(st.integers(min_n, max_n)),
        draw(st.integers(1, max_tags)),
        pairs=draw(st.sampled_from(pairs)),
        removed=draw(st.sampled_from(removed)),
        scale=draw(st.sampled_from(scales)),
        ragged=draw(st.booleans()) if ragged is None else ragged,
        dtype=dtype,
    )


def bies_follow(
    types: Sequence[str] = (), *, outside: bool = False
) -> tuple[list[str], Tensor, Tensor, Tensor]:
    """Labels, start [T], end [T] and follow [T, T] (from, to) of BIES x types.

    Labels are "B-X", "I-X", "E-X", "S-X" for each type in turn (bare letters without types), then
    "O" if `outside`.
    """
    suffixes = [f"-{kind}" for kind in types] or [""]
    labels = [letter + suffix for suffix in suffixes for letter in "BIES"] + ["O"] * outside

    def may_follow(left: str, right: str) -> bool:
        if left[0] in "BI":  # the span is open: only its own type goes on
            return right[0] in "IE" and left[1:] == right[1:]
        return right[0] in "BSO"

    start = torch.tensor([label[0] in "BSO" for label in labels])
    end = torch.tensor([label[0] in "ESO" for label in labels])
    follow = torch.tensor([[may_follow(left, right) for right in labels] for left in labels])
    return labels, start, end, follow
