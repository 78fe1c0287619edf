"""Bootstrap intervals and the paired test, against exact distributions and scipy."""

import itertools

import numpy as np
import pytest
import torch
from scipy import stats

from bcrf.tagger.report import approximate_randomisation, bootstrap_interval, paired_interval


def counts(seed: int, sentences: int = 40) -> torch.Tensor:
    """Return right words and words of sentences of different lengths."""
    generator = np.random.default_rng(seed)
    words = generator.integers(1, 15, sentences)
    right = generator.binomial(words, generator.uniform(0.6, 0.95, sentences))
    return torch.tensor(np.stack([right, words], 1), dtype=torch.float64)


def test_the_interval_of_words_is_that_of_the_binomial_distribution():
    """Sentences of one word: a resample is a binomial random number."""
    rows = torch.tensor([[1.0, 1.0]] * 40 + [[0.0, 1.0]] * 10)
    low, high = bootstrap_interval(rows, resamples=20_000)
    exact = stats.binom(50, 0.8).ppf([0.025, 0.975]) / 50
    assert (low, high) == pytest.approx(tuple(exact), abs=1e-9)


@pytest.mark.parametrize("seed", range(3))
def test_the_interval_is_that_of_scipy(seed):
    rows = counts(seed)
    right, words = rows.numpy().T
    expected = stats.bootstrap(
        (right, words),
        lambda a, b, axis: a.sum(axis) / b.sum(axis),
        paired=True,
        vectorized=True,
        n_resamples=20_000,
        method="percentile",
        rng=np.random.default_rng(0),
    ).confidence_interval
    found = bootstrap_interval(rows, resamples=20_000)
    assert found == pytest.approx(tuple(expected), abs=0.003)


def test_the_paired_interval_is_that_of_scipy():
    first, second = counts(1), counts(2)
    second[:, 1] = first[:, 1]
    second[:, 0] = torch.minimum(second[:, 0], second[:, 1])
    arrays = (*first.numpy().T, second[:, 0].numpy())
    expected = stats.bootstrap(
        arrays,
        lambda a, n, b, axis: (a.sum(axis) - b.sum(axis)) / n.sum(axis),
        paired=True,
        vectorized=True,
        n_resamples=20_000,
        method="percentile",
        rng=np.random.default_rng(0),
    ).confidence_interval
    found = paired_interval(first, second, resamples=20_000)
    assert found == pytest.approx(tuple(expected), abs=0.004)


@pytest.mark.parametrize("seed", range(4))
def test_the_paired_test_is_that_of_all_exchanges(seed):
    """With 10 sentences, all 1,024 exchanges can be enumerated; the score is F1."""
    generator = np.random.default_rng(seed)
    first, second = (
        torch.tensor(
            np.stack([2 * generator.binomial(4, p, 10), generator.integers(5, 10, 10)], 1)
        ).double()
        for p in (0.8, 0.6)
    )

    def difference(one: torch.Tensor, two: torch.Tensor) -> float:
        return float(one[:, 0].sum() / one[:, 1].sum() - two[:, 0].sum() / two[:, 1].sum())

    observed = abs(difference(first, second))
    extreme = 0
    for swaps in itertools.product([False, True], repeat=10):
        mask = torch.tensor(swaps).unsqueeze(1)
        one, two = torch.where(mask, second, first), torch.where(mask, first, second)
        extreme += abs(difference(one, two)) >= observed - 1e-12
    found = approximate_randomisation(first, second, rounds=20_000)
    assert found == pytest.approx(extreme / 1024, abs=0.015)


def test_one_better_word_in_each_of_ten_sentences():
    """Only the two exchanges of all sentences are as extreme: p = 2 / 1,024."""
    first = torch.tensor([[1.0, 1.0]] * 10)
    second = torch.tensor([[0.0, 1.0]] * 10)
    found = approximate_randomisation(first, second, rounds=100_000)
    assert found == pytest.approx(2 / 1024, abs=0.0006)
    assert approximate_randomisation(second, first, rounds=100_000) == found


def test_equal_systems_do_not_differ():
    rows = counts(0)
    assert approximate_randomisation(rows, rows) == 1
    assert paired_interval(rows, rows) == (0, 0)


def test_the_same_seed_gives_the_same_numbers():
    first, second = counts(0), counts(1)
    for function in (bootstrap_interval, lambda x, seed: paired_interval(x, second, seed=seed)):
        assert function(first, seed=3) == function(first, seed=3)
        assert function(first, seed=3) != function(first, seed=4)
    found = [approximate_randomisation(first, second, rounds=500, seed=3) for _ in range(2)]
    assert found[0] == found[1]


def test_chunks_do_not_change_the_interval_much(monkeypatch):
    rows = counts(0)
    whole = bootstrap_interval(rows)
    monkeypatch.setattr("bcrf.tagger.report.resampling._CHUNK", 1)
    assert bootstrap_interval(rows) == pytest.approx(whole, abs=0.01)


def test_scores_without_items_have_no_interval():
    nothing = torch.zeros(5, 2)
    assert bootstrap_interval(nothing) is None
    assert bootstrap_interval(torch.zeros(0, 2)) is None
    assert paired_interval(nothing, counts(0, 5)) is None
    assert approximate_randomisation(nothing, nothing) == 1


def test_resamples_without_items_are_left_out():
    """One of two sentences has no unknown word: a quarter of the resamples have none."""
    low, high = bootstrap_interval(torch.tensor([[1.0, 1.0], [0.0, 0.0]]))
    assert (low, high) == (1, 1)
