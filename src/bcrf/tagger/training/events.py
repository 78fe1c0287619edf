"""The events that `train` yields."""

from __future__ import annotations

from dataclasses import dataclass

__all__ = ["Epoch", "Event", "Finished", "Started", "Step"]


@dataclass(frozen=True)
class Started:
    """A training run has begun, is resumed, or was finished before.

    Args:
        output: folder of the run.
        sentences, tokens: size of the training data.
        dev_sentences: number of dev sentences (0: no dev file).
        labels: number of labels.
        words: size of the vocabulary of words (0: a pretrained encoder has its own).
        parameters: number of weights.
        device: device of the network.
        workers: number of processes.
        steps: batches per epoch.
        epochs: epochs of the whole run.
        first_epoch: 1, or the epoch after the last saved one.
        best_score: best score of the epochs before `first_epoch`; None: there is none.
        reason: why the run is over already, as in `Finished`; None: it is not.
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
    reason: str | None = None


@dataclass(frozen=True)
class Step:
    """A batch has been trained on.

    Args:
        epoch, step: number of the epoch, and of the batch in it, counted from 1.
        steps: batches per epoch.
        loss: mean loss of the sentences of the batch.
        learning_rate: learning rate of the step.
        sentences, tokens: size of the batch.
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
    """An epoch is complete and saved.

    Args:
        epoch, epochs: number of the epoch, counted from 1, and epochs of the whole run.
        loss: mean loss of all sentences.
        metric: name of the score.
        score: score on dev; None without a dev file.
        dev: all values of the metric on dev.
        repaired: number of dev sentences whose labels were ill-formed.
        improved: whether this is the best epoch so far: no earlier score is higher.
        seconds, dev_seconds: time of training and of evaluation on dev.
        tokens_per_second: speed of training.
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
    """The training is over.

    Args:
        reason: "done", or "early stopping".
        best_epoch, best_score: epoch and score of the best model.
        model: folder of the best model.
    """

    reason: str
    best_epoch: int
    best_score: float | None
    model: str


Event = Started | Step | Epoch | Finished
