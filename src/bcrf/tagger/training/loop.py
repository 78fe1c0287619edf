"""The training loop, a generator that reports what happens as events."""

from __future__ import annotations

import dataclasses
import math
import time
import warnings
from collections.abc import Iterator
from pathlib import Path

import torch
from torch import Tensor

from ...numerics.logspace import widest_dtype
from .. import Evaluation, Tagger, calibrate, choose_device
from ..data import LengthBatches
from ..model_folder.limits import check_labels, check_methods, check_network, check_weights_size
from ..nn import FeatureEncoder, TaggerModel, weight_shapes
from ..nn.batch import copy_to_device
from .checkpoint import TrainingProgress, load_checkpoint
from .config import Config
from .events import Epoch, Event, Finished, Started, Step
from .fine_tuning import copy_weights, encoder_parts, load_start
from .optimization import Optimization
from .output import BEST, LAST, RunFolder, reserve_output
from .randomness import seeded
from .training_data import TrainingData, prepare, stack_targets
from .workers import Workers, join

__all__ = ["train"]


def train(
    config: Config, *, resume: bool = False, overwrite: bool = False, extend: bool = True
) -> Iterator[Event]:
    """Train a tagger; after each epoch, save its best and last states in `config.output`.

    Under `torchrun` all processes train together; only the first one writes files and yields
    events. No other training can write to the folder meanwhile.

    Args:
        config: the configuration of the run.
        resume: whether to continue after the last epoch that is saved in the folder, if there is
            one. On a CPU the result equals, bit by bit, that of an uninterrupted run.
        overwrite: whether to remove the run in the folder and begin anew.
        extend: whether a run may be resumed with more epochs than it was begun with. Otherwise a
            changed number of epochs raises ValueError, as other changed settings do.

    Yields:
        `Started`, then a `Step` per batch and an `Epoch` per epoch, then `Finished`. On a GPU, the
        steps of `config.training.log_every` batches are yielded together, because the training
        does not wait for the GPU between them.

    Raises:
        FloatingPointError: a loss, a gradient or a weight is not finite. The last saved epoch is
            intact. On a GPU, this is noticed before the next `Step` is yielded.
        OSError: another training uses the folder, or an epoch cannot be saved.

    Example:
        >>> import tempfile
        >>> from bcrf.tagger.training import Config, Epoch, train
        >>> folder = tempfile.TemporaryDirectory()
        >>> file = Path(folder.name, "train.conllu")
        >>> _ = file.write_text("1\\tdogs\\t_\\tNOUN" + "\\t_" * 6 + "\\n\\n")
        >>> config = Config.from_dict({
        ...     "output": str(Path(folder.name, "run")),
        ...     "data": {"train": str(file), "dev": str(file)},
        ...     "model": {"width": 8, "score_width": 8},
        ...     "training": {"epochs": 2, "device": "cpu"},
        ... })
        >>> for event in train(config):
        ...     if isinstance(event, Epoch):
        ...         print(f"epoch {event.epoch}: {event.score:.0%}")
        epoch 1: 100%
        epoch 2: 100%
        >>> folder.cleanup()
    """
    with (
        join(choose_device(config.training.device)) as workers,
        reserve_output(Path(config.output), workers, resume or overwrite),
    ):
        for event in _Run(config, workers).events(resume, extend):
            if workers.is_main:
                yield event


class _Run:
    """One training run, as seen by one of its processes."""

    def __init__(self, config: Config, workers: Workers) -> None:
        self.config, self.workers = config, workers
        settings = config.training
        start = load_start(settings.init_from)
        data = TrainingData.read(config.data, config.model, settings.seed, start)
        self.data, self.fingerprint = data, data.fingerprint()
        workers.check_same("the training data", self.fingerprint)
        task, vocabularies = data.task, data.vocabularies
        _check_loadable(config, data)
        with seeded(workers.device, settings.seed, "first weights"):
            sizes = vocabularies.sizes(len(task.labels))
            model = TaggerModel(config.model, sizes, task.structure, encoder_parts(start))
        if data.vectors is not None and isinstance(model.encoder, FeatureEncoder):
            width = data.vectors.width
            numbers = torch.tensor(data.vectors.numbers, dtype=torch.float32).view(-1, width)
            model.encoder.embeddings.load_vectors(numbers)
        if start is not None:
            copy_weights(model, start.model)
        model.to(workers.device)
        decoding = config.decoding
        self.tagger = Tagger(model, task, vocabularies, decoding.decoder, decoding.repair)
        self.items = prepare(data.train, task, self.tagger.reader)
        batch_size = {settings.batch_unit: settings.batch}
        lengths = [len(item.inputs) for item in self.items]
        self.batches = LengthBatches(lengths, seed=settings.seed, **batch_size)
        self.steps = len(self.batches.in_order())  # per epoch
        # On other devices, reading a loss makes the host wait until all steps are computed.
        self.reads_every_step = workers.device.type == "cpu"
        total = self.steps * settings.epochs
        self.optimization = Optimization(model, config.optimizer, total)
        self.folder = RunFolder(config, self.tagger, self.optimization, self.fingerprint)

    def events(self, resume: bool, extend: bool) -> Iterator[Event]:
        """Train until the run is over; yield its events."""
        main = self.workers.is_main
        if main:
            self.folder.recover()
        self.workers.wait()
        progress = self._restore(extend) if resume else TrainingProgress()
        self.workers.check_same("the last saved epoch", str(progress.epoch))
        started = self._started(progress)
        if main:
            self.folder.open(progress, started)
        yield started
        while progress.reason is None:
            loss, seconds = 0.0, 0.0
            for step, duration in self._train_epoch(progress.epoch + 1):
                yield step
                loss += step.loss * getattr(step, self.config.training.loss_unit)
                seconds += duration
                if main:
                    self.folder.log_step(progress, step)
            self._update_weights(progress.epoch + 1)
            epoch, after = self._judge(progress, loss, seconds, self._evaluate())
            if main:
                epoch = self._calibrate(epoch)
                after = self.folder.save(progress, after, epoch, self._finished(after))
            progress = after
            yield epoch
        if main and progress.best_score == 0:
            self._warn_of_zero_score()
        yield self._finished(progress)

    def _restore(self, extend: bool) -> TrainingProgress:
        """Load the last state, if there is one, into network and optimizer."""
        path = self.folder.path / LAST
        checkpoint = load_checkpoint(path, self.config, self.fingerprint, extend)
        if checkpoint is None:
            return TrainingProgress()
        progress = checkpoint.progress
        checkpoint.restore(self.tagger, self.optimization, progress.epoch * self.steps)
        optimizer = self.config.optimizer
        depends_on_epochs = optimizer.schedule != "constant" or optimizer.warmup > 0
        if progress.is_extended and depends_on_epochs and self.workers.is_main:
            warnings.warn(
                f"{self.folder.path} is extended after epoch {progress.epoch}. The earlier epochs "
                "had the learning rates of a shorter schedule, so the result differs from that of "
                f"a new run with {self.config.training.epochs} epochs",
                stacklevel=2,
            )
        return progress

    # The parts of an epoch

    def _train_epoch(self, epoch: int) -> Iterator[tuple[Step, float]]:
        """Train on every batch; yield each step with the seconds that it took.

        With `reads_every_step`, each loss is read and each step is yielded at once. Otherwise all
        losses since the last logged step are read together, and then their steps are yielded.
        """
        workers, model = self.workers, self.tagger.model
        per_token = self.config.training.loss_unit == "tokens"
        checked = 0  # the last step whose gradients are known to be finite
        unread: list[tuple[Step, Tensor]] = []  # steps with their losses on the device
        seconds: list[float] = []
        batches = self.batches.epoch(epoch)
        shares = self.batches.epoch(epoch, workers.rank, workers.world)
        for number, (batch, share) in enumerate(zip(batches, shares, strict=True), start=1):
            start = time.perf_counter()
            tokens = sum(len(self.data.train[index]) for index in batch)
            model.train()
            with seeded(workers.device, self.config.training.seed, epoch, number, workers.rank):
                try:
                    loss = self._compute_gradients(share, tokens if per_token else len(batch))
                except ValueError as error:  # the labels were checked, so the scores are wrong
                    raise _diverged(epoch, f"step {number}", str(error)) from error
            workers.sum_gradients(model)
            rate = self.optimization.step((epoch - 1) * self.steps + number - 1)
            # `loss` is only this process's part, still on the device.
            step = Step(epoch, number, self.steps, math.nan, rate, len(batch), tokens)
            unread.append((step, loss))
            is_logged = number % self.config.training.log_every == 0 or number == self.steps
            steps = []
            if is_logged or self.reads_every_step:
                steps = self._read_losses(unread, checked + 1 if is_logged else None)
                unread = []
            if is_logged:
                checked = number
            seconds.append(time.perf_counter() - start)
            if steps:
                yield from zip(steps, seconds, strict=True)
                seconds = []

    def _compute_gradients(self, share: list[int], count: int) -> Tensor:
        """Compute the gradients of this process's share of a batch; return its part of the loss.

        The loss is the mean over the `count` sentences, or tokens, of the whole batch: a scalar on
        the device.
        """
        self.optimization.zero_gradients()
        device = self.workers.device
        if not share:
            return torch.zeros((), device=device)
        items = [self.items[index] for index in share]
        use_bfloat16 = self.config.training.precision == "bfloat16"
        with torch.autocast(device.type, torch.bfloat16, enabled=use_bfloat16):
            chain = self.tagger.chain(
                [item.inputs for item in items], [item.permitted for item in items]
            )
            target = copy_to_device(stack_targets(items, chain.max_length), device)
            loss = self.tagger.model.loss(chain, target).sum() / count
        loss.backward()  # type: ignore[no-untyped-call]
        return loss.detach()

    def _read_losses(self, unread: list[tuple[Step, Tensor]], first: int | None) -> list[Step]:
        """Return the steps with the losses of all processes; this waits for the device, once.

        Raises, in all processes, if a loss is not finite.

        Args:
            unread: steps of one epoch, each with this process's part of the loss.
            first: raise also if a gradient of the steps from `first` on was not finite; None: do
                not check gradients.
        """
        numbers = [loss for _, loss in unread]
        if first is not None:
            numbers.append(~self.optimization.gradients_are_finite())
        wide = widest_dtype(numbers[0].device)
        values = self.workers.sum_tensor(torch.stack([number.to(wide) for number in numbers]))
        steps = [dataclasses.replace(s, loss=x) for (s, _), x in zip(unread, values, strict=False)]
        for step in steps:
            if not math.isfinite(step.loss):
                raise _diverged(step.epoch, f"step {step.step}", f"the loss is {step.loss}")
        if first is not None and values[-1]:
            epoch, last = steps[-1].epoch, steps[-1].step
            which = f"step {last}" if first == last else f"steps {first} to {last}"
            raise _diverged(epoch, which, "a gradient is not finite")
        return steps

    def _update_weights(self, epoch: int) -> None:
        """Bring all weights up to date at the end of an epoch.

        Raises, in all processes, if a weight is not finite.
        """
        self.optimization.flush()
        finite = self.optimization.weights_are_finite()
        if any(self.workers.sum(not finite)):
            raise _diverged(epoch, f"step {self.steps}", "a weight is not finite")

    def _evaluate(self) -> Evaluation | None:
        """Return the evaluation on dev; None without a dev file, or outside the main process."""
        if self.data.dev is None or not self.workers.is_main:
            return None
        return self.tagger.evaluate_examples(self.data.dev)

    def _calibrate(self, epoch: Epoch) -> Epoch:
        """Calibrate the probabilities of the best model on dev; return the event with the result.

        Other states are saved without a temperature, since nobody reads their probabilities.
        """
        self.tagger.probability_temperature = 1.0
        if not (self.config.training.calibrate and epoch.improved and self.data.dev):
            return epoch
        found = calibrate(self.tagger, self.data.dev)
        if found is None:
            return epoch
        self.tagger.probability_temperature = found.temperature
        return dataclasses.replace(epoch, calibration=found.to_dict())

    def _judge(
        self, progress: TrainingProgress, loss: float, seconds: float, evaluation: Evaluation | None
    ) -> tuple[Epoch, TrainingProgress]:
        """Return the event of an epoch, and the progress after it, which all processes share.

        If several epochs have the same score, the last one is the best, since it has trained
        longest. `patience` counts the epochs since the score last became higher.
        """
        settings = self.config.training
        number = progress.epoch + 1
        tokens = sum(map(len, self.data.train))
        score = None
        if self.data.dev is not None:
            score = self.workers.from_main(0.0 if evaluation is None else evaluation.score)
        best = progress.best_score
        higher = score is None or best is None or score > best
        improved = higher or score == best
        improved_epoch = number if higher else progress.improved_epoch
        waited = settings.patience is not None and number - improved_epoch >= settings.patience
        stopped = "early stopping" if waited else None
        after = dataclasses.replace(
            progress,
            epoch=number,
            best_epoch=number if improved else progress.best_epoch,
            best_score=score if improved else best,
            improved_epoch=improved_epoch,
            reason="done" if number == settings.epochs else stopped,
            is_extended=False,
        )
        epoch = Epoch(
            epoch=number,
            epochs=settings.epochs,
            loss=loss / (tokens if settings.loss_unit == "tokens" else len(self.items)),
            metric="" if evaluation is None else evaluation.main,
            score=score,
            dev=None if evaluation is None else evaluation.scores,
            repaired=0 if evaluation is None else evaluation.repaired,
            improved=improved,
            seconds=seconds,
            dev_seconds=0.0 if evaluation is None else evaluation.seconds,
            tokens_per_second=tokens / max(seconds, 1e-9),
        )
        return epoch, after

    def _warn_of_zero_score(self) -> None:
        warnings.warn(
            f"{self.folder.path}: the score on dev is 0.00 in all epochs; train longer "
            "(training.epochs), raise optimizer.learning_rate, or check that the dev file has the "
            "labels of the training file",
            stacklevel=2,
        )

    # Events

    def _started(self, progress: TrainingProgress) -> Started:
        words = self.data.vocabularies.words
        return Started(
            output=self.config.output,
            sentences=len(self.items),
            tokens=sum(map(len, self.data.train)),
            dev_sentences=len(self.data.dev or ()),
            labels=len(self.data.task.labels),
            words=0 if words is None else len(words),
            parameters=sum(p.numel() for p in self.tagger.model.parameters()),
            device=str(self.workers.device),
            workers=self.workers.world,
            steps=self.steps,
            epochs=self.config.training.epochs,
            first_epoch=progress.epoch + 1,
            best_score=progress.best_score,
            reason=progress.reason,
        )

    def _finished(self, progress: TrainingProgress) -> Finished:
        model = str(self.folder.path / BEST)
        return Finished(progress.reason or "", progress.best_epoch, progress.best_score, model)


def _check_loadable(config: Config, data: TrainingData) -> None:
    """Raise if the trained model would exceed the limits of `Tagger.load`, before it is built."""
    check_network(config.model)
    if config.decoding.decoder is not None:
        check_methods(decoder=config.decoding.decoder)
    check_labels(list(data.task.labels))
    if config.model.pretrained is None:
        sizes = data.vocabularies.sizes(len(data.task.labels))
        check_weights_size(weight_shapes(config.model, sizes, data.task.structure).values())


def _diverged(epoch: int, steps: str, symptom: str) -> FloatingPointError:
    return FloatingPointError(
        f"epoch {epoch}, {steps}: training diverges ({symptom}); lower optimizer.learning_rate, or "
        "set optimizer.clip"
    )
