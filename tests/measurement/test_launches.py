"""The counter of launches and synchronisations."""

from __future__ import annotations

from collections.abc import Callable

import pytest
import torch

from measurement.launches import LaunchCounter, SynchronisationError

X = torch.zeros(4, 3)


@pytest.mark.parametrize(
    ("call", "launches"),
    [
        (lambda x: x.view(12), 0),
        (lambda x: x[1:].mT.unsqueeze(0), 0),
        (lambda x: x.new_empty(3), 0),
        (lambda x: x + x, 1),
        (lambda x: x @ x.mT, 1),
        (lambda x: torch.logsumexp(x, 1), 9),
        (lambda x: x[:0] + 1, 0),  # nothing to compute
        (lambda x: x.add_(1).mul_(2), 2),
    ],
)
@pytest.mark.parametrize("device", ["cpu", "meta"])
def test_launches(call: Callable[[torch.Tensor], object], launches: int, device: str) -> None:
    x = X.clone().to(device)
    with LaunchCounter() as counter:
        call(x)
    assert counter.launches == launches
    assert counter.synchronisations == 0
    assert sum(counter.by_name.values()) == launches


def test_a_backward_pass_counts() -> None:
    x = X.clone().requires_grad_()
    with LaunchCounter() as counter:
        x.exp().sum().backward()
    assert counter.by_name["exp"] == 1
    assert counter.by_name["mul"] == 1  # the derivative of exp


def test_bytes_are_those_of_inputs_and_outputs() -> None:
    x = X.clone()
    with LaunchCounter() as counter:
        x + x.view(4, 3)
    assert counter.bytes == 3 * 12 * 4


WAITS: dict[str, Callable[[torch.Tensor], object]] = {
    "item": lambda x: x[0, 0].item(),
    "float": lambda x: float(x.sum()),
    "bool": lambda x: bool((x > 0).any()),
    "branch": lambda x: 1 if x.sum() > 0 else 0,
    "nonzero": lambda x: x.nonzero(),
    "mask": lambda x: x[x > 0],
    "assignment by a mask": lambda x: x.index_put_((x > 0,), torch.ones(())),
    "equal": lambda x: torch.equal(x, x),
    "repeat": lambda x: torch.repeat_interleave(torch.tensor([1, 2])),
}


@pytest.mark.parametrize("name", WAITS)
def test_waiting_is_counted_and_can_be_refused(name: str) -> None:
    with LaunchCounter() as counter:
        WAITS[name](X.clone())
    assert counter.synchronisations >= 1
    refused = pytest.raises(SynchronisationError, match="makes the host wait")
    with refused, LaunchCounter(refuse_waiting=True):
        WAITS[name](X.clone())


def test_filling_by_a_mask_does_not_wait() -> None:
    with LaunchCounter(refuse_waiting=True):
        torch.where(X > 0, X, 0.0)
        X.masked_fill(X > 0, 1.0)
        X[:, torch.tensor([0, 2])]
