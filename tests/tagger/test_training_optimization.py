"""Learning rates, clipping, and random numbers."""

import dataclasses

import numpy as np
import pytest
import torch

from bcrf.tagger.nn import ModelConfig, Sizes, TaggerModel, collate
from bcrf.tagger.training.config import OptimizerConfig
from bcrf.tagger.training.optimization import Optimization, rate_factor
from bcrf.tagger.training.randomness import seeded
from tests.tagger_cases import SMALL

CPU = torch.device("cpu")


@pytest.mark.parametrize("total", [1, 7, 10, 400])
@pytest.mark.parametrize("warmup", [0.0, 0.1, 0.5])
def test_the_rate_rises_and_falls_on_straight_lines(total, warmup):
    steps = np.arange(total)
    rising = int(np.ceil(warmup * total))
    # Through (-1, 0), the highest rate at the last step of the rise, and 0 after the last step.
    line = np.interp(steps, [-1, max(rising - 1, -1), total], [0, 1, 0])
    falling = (total - steps) / max(total - rising, 1)
    expected = np.where(steps < rising, line, falling)
    found = [rate_factor(step, total, warmup, "linear") for step in range(total)]
    np.testing.assert_allclose(found, expected, rtol=1e-12)
    assert 0 < min(found) <= max(found) <= 1
    constant = [rate_factor(step, total, warmup, "constant") for step in range(total)]
    np.testing.assert_allclose(constant, np.where(steps < rising, line, 1.0), rtol=1e-12)


def optimization(**settings: object) -> Optimization:
    torch.manual_seed(0)
    model = TaggerModel(ModelConfig(**SMALL), Sizes(3, 9))
    return Optimization(model, OptimizerConfig(**settings), 10)


def gradients(self: Optimization, scale: float = 1.0) -> None:
    self.zero_gradients()
    chain = self.model(collate([[2, 3, 4], [5, 2]]))
    (self.model.loss(chain, torch.tensor([[0, 1, 2], [1, 1, 0]])).mean() * scale).backward()


def test_encoder_and_scorer_may_have_rates_of_their_own():
    subject = optimization(learning_rate=0.1, scorer_learning_rate=0.5, warmup=0.0)
    gradients(subject)
    assert subject.step(4) == pytest.approx(0.1 * 0.6)
    assert [group["lr"] for group in subject.adam.param_groups] == pytest.approx([0.06, 0.3])
    grouped = {id(p) for group in subject.adam.param_groups for p in group["params"]}
    assert grouped == {id(p) for p in subject.model.parameters()}


@pytest.mark.parametrize("lazy", [True, False])
def test_embeddings_have_gradients_with_and_without_lazy_updates(lazy):
    subject = optimization(lazy=lazy)
    gradients(subject)
    names = [name for name, p in subject.model.named_parameters() if p.grad.is_sparse]
    assert [name.split(".")[-2] for name in names] == (["table"] if lazy else [])


def norm(subject: Optimization) -> float:
    squares = [p.grad.to_dense().double().square().sum() for p in subject.model.parameters()]
    return float(torch.stack(squares).sum().sqrt())


def test_gradients_are_clipped_to_a_common_norm():
    subject = optimization(clip=0.5)
    gradients(subject, scale=100.0)
    assert norm(subject) > 50
    subject.step(0)
    assert norm(subject) == pytest.approx(0.5, rel=1e-4)
    free = optimization()
    gradients(free, scale=100.0)
    before = norm(free)
    free.step(0)
    assert norm(free) == before


def test_a_loaded_state_continues_the_optimization():
    first, second = optimization(), optimization()
    for step in range(3):
        gradients(first)
        first.step(step)
    second.model.load_state_dict(first.model.state_dict())
    second.load_state({name: tensor.clone() for name, tensor in first.state().items()}, steps=3)
    assert {name.rpartition(".")[2] for name in first.state()} == {"step", "exp_avg", "exp_avg_sq"}
    for subject in (first, second):
        gradients(subject)
        subject.step(3)
    for name, tensor in first.model.state_dict().items():
        assert torch.equal(second.model.state_dict()[name], tensor), name
    fresh = optimization()
    fresh.model.load_state_dict(first.model.state_dict())
    gradients(fresh)
    fresh.step(3)  # without the moments, the weights differ
    assert not torch.equal(fresh.model.scorer.start, second.model.scorer.start)


def test_random_numbers_depend_only_on_their_place():
    def draw(*where: object) -> torch.Tensor:
        with seeded(CPU, *where):
            return torch.rand(5)

    torch.manual_seed(1)
    before = torch.get_rng_state()
    first = draw(0, 1, 2)
    assert torch.equal(torch.get_rng_state(), before)
    torch.rand(3)
    assert torch.equal(draw(0, 1, 2), first)
    others = [draw(0, 1, 3), draw(0, 2, 1), draw(1, 1, 2), draw(0, 12), draw(0, 1, 2, 1)]
    assert not any(torch.equal(other, first) for other in others)


def test_an_error_restores_the_random_state():
    def fail() -> None:
        with seeded(CPU, 1):
            torch.rand(2)
            raise KeyboardInterrupt

    before = torch.get_rng_state()
    with pytest.raises(KeyboardInterrupt):
        fail()
    assert torch.equal(torch.get_rng_state(), before)


def test_settings_are_frozen():
    with pytest.raises(dataclasses.FrozenInstanceError):
        OptimizerConfig().clip = 1.0
