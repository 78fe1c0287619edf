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

    Example:
        >>> from bcrf.tagger.training import Started
        >>> started = Started(
        ...     "runs/pos", sentences=90, tokens=900, dev_sentences=10, labels=17, words=400,
        ...     parameters=5000, device="cpu", workers=1, steps=3, epochs=12, first_epoch=4,
        ...     best_score=0.9,
        ... )
        >>> f"{started.output} continues with epoch {started.first_epoch} of {started.epochs}"
        'runs/pos continues with epoch 4 of 12'
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
        loss: mean loss of the sentences, or tokens, of the batch (see `TrainingConfig.loss_unit`).
        learning_rate: learning rate of the step.
        sentences, tokens: size of the batch.

    Example:
        >>> from bcrf.tagger.training import Step
        >>> step = Step(1, 2, steps=3, loss=3.5, learning_rate=3e-4, sentences=32, tokens=300)
        >>> f"epoch {step.epoch}, step {step.step} of {step.steps}: loss {step.loss}"
        'epoch 1, step 2 of 3: loss 3.5'
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
        calibration: the values of `Calibration` on dev, if this epoch improved; None if it did not,
            or if the run does not calibrate.

    Example:
        >>> from bcrf.tagger.training import Epoch
        >>> epoch = Epoch(
        ...     1, 12, loss=3.5, metric="accuracy", score=0.9, dev={"accuracy": 0.9}, repaired=0,
        ...     improved=True, seconds=1.0, dev_seconds=0.1, tokens_per_second=900.0,
        ... )
        >>> f"epoch {epoch.epoch} of {epoch.epochs}: {epoch.metric} {epoch.score}"
        'epoch 1 of 12: accuracy 0.9'
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
    calibration: dict[str, float] | None = None


@dataclass(frozen=True)
class Finished:
    """The training is over.

    Args:
        reason: "done", or "early stopping".
        best_epoch, best_score: epoch and score of the best model.
        model: folder of the best model.

    Example:
        >>> from bcrf.tagger.training import Finished
        >>> Finished("done", best_epoch=11, best_score=0.9, model="runs/pos/best").model
        'runs/pos/best'
    """

    reason: str
    best_epoch: int
    best_score: float | None
    model: str


Event = Started | Step | Epoch | Finished
