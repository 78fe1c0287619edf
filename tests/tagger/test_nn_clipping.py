"""Clipping of gradients, and the largest gradient."""

import pytest
import torch
from torch import nn

from bcrf.tagger.nn import clip_gradients, largest_gradient
from tests.tagger.test_nn_model import TAGS, batch, model


@pytest.mark.parametrize("max_norm", [0.01, 1e6])
def test_clipping_counts_sparse_rows_once(max_norm):
    """The norm equals that of dense gradients; a word that occurs twice is one row."""
    norms, gradients = [], []
    for sparse in (True, False):
        network = model()
        network.encoder.table.sparse = sparse
        (network.loss(network(batch()), TAGS).mean() * 3).backward()
        if sparse:
            norms.append(clip_gradients(network.parameters(), max_norm))
        else:
            norms.append(nn.utils.clip_grad_norm_(network.parameters(), max_norm))
        gradients.append([p.grad.to_dense() for p in network.parameters() if p.grad is not None])
    torch.testing.assert_close(*norms)
    torch.testing.assert_close(*gradients)
    assert 0.01 < float(norms[0]) < 1e6


@pytest.mark.parametrize("sparse", [True, False])
def test_the_largest_gradient_is_finite_only_if_all_are(sparse):
    network = model()
    assert largest_gradient(network.parameters()) == 0
    network.encoder.table.sparse = sparse
    (network.loss(network(batch()), TAGS).mean() * 3).backward()
    dense = [p.grad.to_dense() for p in network.parameters() if p.grad is not None]
    assert largest_gradient(network.parameters()) == max(g.abs().max() for g in dense)
    for parameter in network.parameters():
        if parameter.grad is None:
            continue
        for bad in (float("nan"), float("inf"), -float("inf")):
            gradient = parameter.grad
            changed = gradient.clone().coalesce() if gradient.is_sparse else gradient.clone()
            (changed.values() if changed.is_sparse else changed).view(-1)[-1] = bad
            parameter.grad = changed
            assert not largest_gradient(network.parameters()).isfinite()
            parameter.grad = gradient
    assert largest_gradient(network.parameters()).isfinite()
    # The rows of an uncoalesced gradient are finite, their sum is not.
    if sparse:
        table = network.encoder.table.weight
        rows = torch.full((2, table.shape[1]), 3e38)
        table.grad = torch.sparse_coo_tensor([[1, 1]], rows, table.shape, check_invariants=False)
        assert not largest_gradient(network.parameters()).isfinite()
        table.grad = torch.sparse_coo_tensor(
            torch.zeros(1, 0, dtype=torch.int64), rows[:0], table.shape, check_invariants=False
        )
        assert largest_gradient(network.parameters()).isfinite()


def test_clipping_without_gradients():
    assert clip_gradients(model().parameters(), 1.0) == 0
    with pytest.raises(ValueError, match="max_norm must be positive, got 0"):
        clip_gradients(model().parameters(), 0)
