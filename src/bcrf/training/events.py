"""What happens during training, as it is told to whoever looks on."""

from __future__ import annotations

from dataclasses import dataclass

__all__ = ["Epoch", "Event", "Finished", "Started", "Step"]


@dataclass(frozen=True)
class Started:
    """Training begins, or goes on.

    Args:
        output: folder of the run.
        sentences, tokens, dev_sentences: what there is to learn from (0: no dev set).
        labels, words: how many there are (0 words: those of a pretrained encoder).
        parameters: numbers that are learned.
        device: where.
        workers: processes that share the work.
        steps: of an epoch.
        epochs: in all.
        first_epoch: 1, or the one to go on with.
        best_score: of the epochs before.
    """

    output: str
    sentences: int
    tokens: int
    dev_sentences: int
    labels: int
    words: int
    parameters: int
    device: str
    workers: int
    steps: int
    epochs: int
    first_epoch: int
    best_score: float | None


@dataclass(frozen=True)
class Step:
    """One batch was learned.

    Args:
        epoch, step, steps: which one, counted from 1, and how many there are in an epoch.
        loss: mean of its sentences.
        learning_rate: that was applied.
        sentences, tokens: of the batch.
    """

    epoch: int
    step: int
    steps: int
    loss: float
    learning_rate: float
    sentences: int
    tokens: int


@dataclass(frozen=True)
class Epoch:
    """All sentences were seen once more, and what came out is saved.

    Args:
        epoch, epochs: which one, counted from 1, of how many.
        loss: mean of all sentences.
        metric: name of the score.
        score: on dev; None without a dev set.
        dev: all numbers of the metric.
        repaired: dev sentences whose labels were ill-formed.
        improved: whether it is the best one so far.
        seconds, dev_seconds: for training and for dev.
        tokens_per_second: of training.
    """

    epoch: int
    epochs: int
    loss: float
    metric: str
    score: float | None
    dev: dict[str, float] | None
    repaired: int
    improved: bool
    seconds: float
    dev_seconds: float
    tokens_per_second: float


@dataclass(frozen=True)
class Finished:
    """Training is over.

    Args:
        reason: "done", or "early stopping".
        best_epoch, best_score: of the best model.
        model: its folder.
    """

    reason: str
    best_epoch: int
    best_score: float | None
    model: str


Event = Started | Step | Epoch | Finished
