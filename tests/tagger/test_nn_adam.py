"""The lazy optimiser against torch.optim.Adam, which moves every row in every step."""

import copy
import math
from collections.abc import Callable

import pytest
import torch
from torch import Tensor, nn

from bcrf.tagger.nn import LazyAdam
from bcrf.tagger.nn.adam_catch_up import CatchUpTable

ROWS, WIDTH = 40, 6


class Toy(nn.Module):
    """An embedding table with a dense layer on top."""

    def __init__(self, sparse: bool, dtype: torch.dtype = torch.float64) -> None:
        super().__init__()
        self.table = nn.Embedding(ROWS, WIDTH, sparse=sparse, dtype=dtype)
        self.head = nn.Linear(WIDTH, 3, dtype=dtype)

    def forward(self, ids: Tensor) -> Tensor:
        return self.head(self.table(ids)).square().sum((1, 2)).mean()


def twins(seed: int = 0, dtype: torch.dtype = torch.float64) -> tuple[Toy, Toy]:
    """Return a model with sparse gradients, and a copy with dense gradients."""
    torch.manual_seed(seed)
    lazy, dense = Toy(True, dtype), Toy(False, dtype)
    dense.load_state_dict(lazy.state_dict())
    return lazy, dense


def batches(count: int, seed: int = 1, rare: int = 20) -> list[Tensor]:
    """Yield ids [2, 3]: some rows often, the others rarely, the last five never."""
    generator = torch.Generator().manual_seed(seed)
    frequent = torch.randint(0, rare, (count, 2, 3), generator=generator)
    everywhere = torch.randint(0, ROWS - 5, (count, 2, 3), generator=generator)
    seldom = torch.rand(count, 2, 3, generator=generator) < 0.05
    return list(torch.where(seldom, everywhere, frequent))


def train(
    model: Toy,
    optimizer: torch.optim.Optimizer,
    data: list[Tensor],
    rate: Callable[[int], float] | None = None,
    first: int = 0,
) -> list[float]:
    losses = []
    for step, ids in enumerate(data, first):
        if rate is not None:
            optimizer.param_groups[0]["lr"] = rate(step)
        optimizer.zero_grad()
        loss = model(ids)
        loss.backward()
        optimizer.step()
        losses.append(loss.item())
    return losses


def warm_up_and_decay(step: int) -> float:
    return 0.02 * min(step / 30, (300 - step) / 270)


@pytest.mark.parametrize("rate", [None, warm_up_and_decay], ids=["constant", "schedule"])
@pytest.mark.parametrize("betas", [(0.9, 0.999), (0.5, 0.99), (0.0, 0.9)])
def test_the_trajectory_equals_that_of_adam(betas, rate):
    lazy, dense = twins()
    data = batches(300)
    fast, slow = LazyAdam(lazy, 0.01, betas), torch.optim.Adam(dense.parameters(), 0.01, betas)
    # The losses are computed from rows that were brought up to date on reading.
    torch.testing.assert_close(
        train(lazy, fast, data, rate), train(dense, slow, data, rate), rtol=1e-7, atol=1e-9
    )
    fast.flush()
    for ours, theirs in zip(lazy.parameters(), dense.parameters(), strict=True):
        torch.testing.assert_close(ours, theirs, rtol=1e-7, atol=1e-9)
        torch.testing.assert_close(
            [fast.state[ours][name] for name in ("exp_avg", "exp_avg_sq")],
            [slow.state[theirs][name] for name in ("exp_avg", "exp_avg_sq")],
            rtol=1e-9,
            atol=1e-15,
        )


def test_single_precision_stays_within_rounding():
    lazy, dense = twins(dtype=torch.float32)
    data = batches(500)
    fast, slow = LazyAdam(lazy, 3e-4), torch.optim.Adam(dense.parameters(), 3e-4)
    ours, theirs = train(lazy, fast, data), train(dense, slow, data)
    torch.testing.assert_close(ours, theirs, rtol=1e-5, atol=1e-6)
    fast.flush()
    torch.testing.assert_close(lazy.table.weight, dense.table.weight, rtol=1e-5, atol=1e-6)


def test_rows_are_updated_only_when_they_are_read():
    lazy, dense = twins()
    data = [torch.tensor([[1, 2]])] + [torch.tensor([[3, 4]])] * 10
    fast, slow = LazyAdam(lazy, 0.01), torch.optim.Adam(dense.parameters(), 0.01)
    train(lazy, fast, data[:1])
    before = lazy.table.weight[1:3].clone()
    train(lazy, fast, data[1:])
    train(dense, slow, data)
    assert torch.equal(lazy.table.weight[1:3], before)
    with torch.inference_mode():
        read = lazy.table(torch.tensor([1]))
    assert not torch.equal(read[0], before[0])
    torch.testing.assert_close(read[0], dense.table.weight[1])
    assert torch.equal(lazy.table.weight[2], before[1])
    # Rows that were read in inference mode can still be trained.
    torch.testing.assert_close(
        train(lazy, fast, data), train(dense, slow, data), rtol=1e-7, atol=1e-9
    )


def catch_up_exactly(
    missed: CatchUpTable, rates: list[float], since: int, eps_over_root: float
) -> float:
    """sum_u a_u b1^(u-s) z_u / (1 + x z_u), term by term: the change of p for m = sqrt(v) = 1."""
    b1, b2 = missed.betas
    total = 0.0
    for u in range(since + 1, missed.step + 1):
        node = math.sqrt((1 - b2**u) * b2 ** (since - u))
        rate = rates[u - 1] / (1 - b1**u)
        total += rate * b1 ** (u - since) * node / (1 + eps_over_root * node)
    return total


@pytest.mark.parametrize(
    ("eps_over_root", "since", "tolerance"),
    [
        # eps against sqrt(v): a gradient of 3e-7 gives 1 in the first step, one of 1e-8 gives 30.
        (1e-3, (1, 2, 5, 30, 100, 660), 1e-12),
        (1e-1, (1, 2, 5, 30, 100, 660), 1e-8),
        (1.0, (1, 2, 5, 30), 1e-5),
        (1.0, (100, 300, 660), 1e-7),
        (100.0, (300, 660), 1e-6),
        (100.0, (1,), 5e-2),
    ],
)
def test_two_nodes_replace_the_sum_over_skipped_steps(eps_over_root, since, tolerance):
    rates = [min(u / 100, (2000 - u) / 1900) for u in range(1, 1201)]
    worst = 0.0
    for start in since:
        missed = CatchUpTable((0.9, 0.999), eps_over_root)
        for u, rate in enumerate(rates, 1):
            missed.advance(rate)
            if u <= start or u - start not in (1, 2, 3, 10, 40, 500):
                continue
            weights, nodes, first, second = missed.since(torch.tensor([start]))
            ours = sum((w / (1 + z)).item() for w, z in zip(weights, nodes, strict=True))
            exact = catch_up_exactly(missed, rates, start, eps_over_root)
            worst = max(worst, abs(ours / exact - 1))
            assert first.item() == pytest.approx(0.9 ** (u - start))
            assert second.item() == pytest.approx(0.999 ** (u - start))
    assert worst < tolerance


def test_a_resumed_state_continues_bit_by_bit(tmp_path):
    data = batches(60)
    lazy, _ = twins(dtype=torch.float32)
    optimizer = LazyAdam(lazy, 0.01)
    train(lazy, optimizer, data[:30])
    torch.save((lazy.state_dict(), optimizer.state_dict()), tmp_path / "state")
    straight = train(lazy, optimizer, data[30:])

    resumed, _ = twins(seed=9, dtype=torch.float32)
    again = LazyAdam(resumed, 0.5)
    weights, state = torch.load(tmp_path / "state")
    resumed.load_state_dict(weights)
    again.load_state_dict(state)
    assert train(resumed, again, data[30:]) == straight
    for ours, theirs in zip(resumed.state_dict().values(), lazy.state_dict().values(), strict=True):
        assert torch.equal(ours, theirs)


def test_states_of_adam_and_lazy_adam_are_interchangeable():
    """Each optimizer continues from the state of the other."""
    data = batches(60)
    lazy, dense = twins()
    fast, slow = LazyAdam(lazy, 0.01), torch.optim.Adam(dense.parameters(), 0.01)
    train(lazy, fast, data[:30])
    train(dense, slow, data[:30])
    states, weights = (
        [x.state_dict() for x in (fast, slow)],
        [copy.deepcopy(x.state_dict()) for x in (lazy, dense)],
    )
    fast.load_state_dict(states[1])
    slow.load_state_dict(states[0])
    lazy.load_state_dict(weights[1])
    dense.load_state_dict(weights[0])
    torch.testing.assert_close(
        train(lazy, fast, data[30:]), train(dense, slow, data[30:]), rtol=1e-7, atol=1e-9
    )


def test_saving_and_loading_weights_flushes():
    data = batches(30)
    lazy, dense = twins()
    fast, slow = LazyAdam(lazy, 0.01), torch.optim.Adam(dense.parameters(), 0.01)
    train(lazy, fast, data)
    train(dense, slow, data)
    torch.testing.assert_close(dict(lazy.state_dict()), dict(dense.state_dict()))
    # Steps before loading do not move loaded rows, as in dense Adam.
    train(lazy, fast, data)
    fresh = {name: torch.zeros_like(value) for name, value in lazy.state_dict().items()}
    lazy.load_state_dict(fresh)
    assert not lazy.table(torch.arange(ROWS)).any()


def test_a_copy_of_the_model_is_not_updated():
    lazy, _ = twins()
    optimizer = LazyAdam(lazy, 0.01)
    train(lazy, optimizer, batches(20))
    optimizer.flush()
    other = copy.deepcopy(lazy)
    train(lazy, optimizer, batches(20, seed=5))
    before = other.table.weight.clone()
    other(torch.arange(ROWS).view(1, -1))
    assert torch.equal(other.table.weight, before)


def test_a_table_without_gradient_does_not_move_as_in_adam():
    lazy, dense = twins()
    fast, slow = LazyAdam(lazy, 0.01), torch.optim.Adam(dense.parameters(), 0.01)
    ids = batches(10)
    for model, optimizer in ((lazy, fast), (dense, slow)):
        train(model, optimizer, ids[:5])
        optimizer.zero_grad()
        model.head(torch.ones(1, WIDTH, dtype=torch.float64)).sum().backward()
        optimizer.step()
        train(model, optimizer, ids[5:])
    fast.flush()
    torch.testing.assert_close(lazy.table.weight, dense.table.weight, rtol=1e-7, atol=1e-9)


def test_gradients_accumulate():
    lazy, dense = twins()
    fast, slow = LazyAdam(lazy, 0.01), torch.optim.Adam(dense.parameters(), 0.01)
    ids = batches(40)
    for first, second in zip(ids[::2], ids[1::2], strict=True):
        for model, optimizer in ((lazy, fast), (dense, slow)):
            optimizer.zero_grad()
            model(first).backward()
            model(second).backward()
            optimizer.step()
    fast.flush()
    torch.testing.assert_close(lazy.table.weight, dense.table.weight, rtol=1e-7, atol=1e-9)


def test_a_scheduler_sets_the_learning_rate():
    lazy, dense = twins()
    fast, slow = LazyAdam(lazy, 0.01), torch.optim.Adam(dense.parameters(), 0.01)
    for model, optimizer in ((lazy, fast), (dense, slow)):
        schedule = torch.optim.lr_scheduler.LambdaLR(optimizer, lambda step: 1 / (1 + step))
        for ids in batches(50):
            train(model, optimizer, [ids])
            schedule.step()
    torch.testing.assert_close(dict(lazy.state_dict()), dict(dense.state_dict()))


def test_groups_have_their_own_rates():
    lazy, dense = twins()
    optimizers = []
    for model, kind in ((lazy, LazyAdam), (dense, torch.optim.Adam)):
        groups = [
            {"params": [model.table.weight], "lr": 0.03},
            {"params": list(model.head.parameters())},
        ]
        optimizer = kind(model, 0.01, groups=groups) if kind is LazyAdam else kind(groups, 0.01)
        optimizers.append(optimizer)
        train(model, optimizer, batches(50))
    torch.testing.assert_close(dict(lazy.state_dict()), dict(dense.state_dict()))


def test_invalid_arguments_are_errors():
    with pytest.raises(ValueError, match=r"betas\[1\]"):
        LazyAdam(Toy(True), betas=(0.9, 0.0))
    with pytest.raises(ValueError, match="learning rate"):
        LazyAdam(Toy(True), lr=-1.0)
