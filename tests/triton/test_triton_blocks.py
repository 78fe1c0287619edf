"""The Triton kernels for more than 32 tags, in the interpreter, against the naive backend.

The size of a block is a power of two, and large blocks are computed in parts. So these sizes run
other code than the small ones of the other tests.
"""

from __future__ import annotations

from typing import Any

import pytest
import torch
from torch.testing import assert_close

import bcrf
from bcrf import Bregman, ForwardBackward, Solver, certified_decode, viterbi
from tests.comparing import any_path
from tests.strategies import Pairs
from tests.subjects import ragged_chain, scores_of, with_scores
from tests.triton.support import kernels, needs_triton

pytestmark = needs_triton

STEPS = 3
SETTINGS = Bregman(STEPS)._settings
PLAIN = Bregman(STEPS, backend="naive")


@pytest.mark.parametrize(("num_tags", "kind"), [(40, "per_pair"), (40, "shared"), (100, "shared")])
def test_blocks_of_many_tags(num_tags: int, kind: Pairs) -> None:
    """Blocks of 64 and 128 tags, part of which do not exist: losses, gradients and all decoders."""
    chain = ragged_chain(0, [3, 1], num_tags, n=4, pairs=kind, removed=0.2).to(torch.float32)
    tags, exact = any_path(chain), chain.double()
    solvers: tuple[tuple[Any, Solver, Any], ...] = (
        (kernels().bregman(chain, SETTINGS, tags, (True, True)), PLAIN, "bregman"),
        (kernels().crf(chain, tags, (True, True)), ForwardBackward(backend="naive"), "crf"),
    )
    for found, naive, name in solvers:
        scores = scores_of(exact)
        expected = bcrf.loss(naive, with_scores(exact, scores), tags)
        by_unary, by_pair = torch.autograd.grad(expected.sum(), scores)
        pair = found.by_pair.sum(0) if kind == "shared" else found.by_pair
        for one, other in ((found.value, expected), (found.by_unary, by_unary), (pair, by_pair)):
            assert_close(one.double(), other.detach(), rtol=0, atol=1e-4, msg=name)
    likely = kernels().most_probable(chain, SETTINGS, 1.0)
    assert torch.equal(likely, PLAIN(exact).best_tags())
    best, path = viterbi(exact, "naive")
    assert torch.equal(kernels().viterbi(chain)[0], path)
    assert_close(
        certified_decode(chain, STEPS, backend="triton").score.double(), best, rtol=1e-6, atol=0
    )
