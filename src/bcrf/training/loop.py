"""Training, as a generator that tells what happens."""

from __future__ import annotations

import dataclasses
import math
import time
import warnings
from collections.abc import Iterator
from contextlib import AbstractContextManager
from pathlib import Path

import torch

from ..data import LengthBatches
from ..nn import TaggerModel, weight_shapes
from ..tagging import Evaluation, Tagger, choose_device
from ..tagging.atomic_folder import recover, remove_folder, replace_folder, report_write_errors
from ..tagging.limits import check_labels, check_methods, check_network, check_weights_size
from .checkpoint import Progress, load_checkpoint, save_checkpoint
from .config import Config
from .corpus import Corpus, prepare, stack_targets
from .events import Epoch, Event, Finished, Started, Step
from .log import MetricsLog, logged_threads
from .optimization import Optimization
from .output import BEST, LAST, LOG, reserve_output
from .randomness import seeded
from .workers import Workers, join

__all__ = ["train"]


def train(config: Config, *, resume: bool = False, overwrite: bool = False) -> Iterator[Event]:
    """Train a tagger; its best and last states are saved in `config.output` after each epoch.

    Under `torchrun` all processes train together; only the first one writes, and tells anything.
    While it runs, no other training can write to the folder.

    Args:
        resume: go on from the last epoch that was saved there, if there is one. On a CPU the
            outcome equals, bit by bit, that of a run that was never interrupted.
        overwrite: begin anew, whatever is saved there.

    Raises:
        FloatingPointError: a loss or a gradient is not finite; the last saved epoch is intact.
        OSError: another training writes to the folder, or an epoch cannot be saved.
    """
    with (
        join(choose_device(config.training.device)) as workers,
        reserve_output(Path(config.output), workers, resume or overwrite),
    ):
        for event in _Run(config, workers).events(resume):
            if workers.is_main:
                yield event


class _Run:
    """One training run, as seen by one of its processes."""

    def __init__(self, config: Config, workers: Workers) -> None:
        self.config, self.workers = config, workers
        self.output = Path(config.output)
        settings = config.training
        corpus = Corpus.read(config.data, config.model, settings.seed)
        self.corpus, self.fingerprint = corpus, corpus.fingerprint()
        workers.check_same("data", self.fingerprint)
        task, vocabularies = corpus.task, corpus.vocabularies
        _check_limits(config, corpus)
        with seeded(workers.device, settings.seed, "first weights"):
            model = TaggerModel(config.model, vocabularies.sizes(len(task.labels)), task.structure)
        model.to(workers.device)
        decoding = config.decoding
        self.tagger = Tagger(model, task, vocabularies, decoding.decoder, decoding.repair)
        self.items = prepare(corpus.train, task, self.tagger.reader)
        sizes = {settings.batch_unit: settings.batch}
        lengths = [len(item.inputs) for item in self.items]
        self.plan = LengthBatches(lengths, seed=settings.seed, **sizes)
        self.steps = len(self.plan.in_order())
        total = self.steps * settings.epochs
        self.optimization = Optimization(model, config.optimizer, total)

    def events(self, resume: bool) -> Iterator[Event]:
        progress = Progress()
        if self.workers.is_main:
            for name in (BEST, LAST):
                recover(self.output / name)
        self.workers.wait()
        if resume:
            checkpoint = load_checkpoint(self.output / LAST, self.config, self.fingerprint)
            if checkpoint is not None:
                progress = checkpoint.progress
                steps = progress.epoch * self.steps
                checkpoint.restore(self.tagger, self.optimization, steps)
        self.workers.check_same("last epoch", str(progress.epoch))
        log = self._open_output(progress) if self.workers.is_main else None
        try:
            yield self._started(progress)
            while progress.reason is None:
                loss, seconds = 0.0, 0.0
                for step, duration in self._epoch(progress.epoch + 1):
                    yield step
                    loss += step.loss * step.sentences
                    seconds += duration
                    if log is not None and step.step % self.config.training.log_every == 0:
                        with self._saving(progress):
                            log.add("step", dataclasses.asdict(step))
                self._update_weights(progress.epoch + 1)
                evaluation = self._evaluate()
                epoch, after = self._judge(progress, loss, seconds, evaluation)
                if log is not None:
                    with self._saving(progress):
                        after = self._save(after, epoch, log)
                progress = after
                yield epoch
            yield self._finished(progress)
        finally:
            if log is not None:
                log.close()

    # The parts of an epoch

    def _epoch(self, epoch: int) -> Iterator[tuple[Step, float]]:
        """Learn from every batch; what happened, and the seconds it took."""
        workers, model = self.workers, self.tagger.model
        checked = 0
        batches = self.plan.epoch(epoch)
        shares = self.plan.epoch(epoch, workers.rank, workers.world)
        for number, (batch, share) in enumerate(zip(batches, shares, strict=True), start=1):
            start = time.perf_counter()
            model.train()
            with seeded(workers.device, self.config.training.seed, epoch, number, workers.rank):
                try:
                    loss = self._gradients(share, len(batch))
                except ValueError as error:  # labels are legal, so the scores are not
                    raise _diverged(epoch, f"step {number}", str(error)) from error
            workers.sum_gradients(model)
            (loss,) = workers.sum(loss)
            if not math.isfinite(loss):
                raise _diverged(epoch, f"step {number}", f"the loss is {loss}")
            rate = self.optimization.step((epoch - 1) * self.steps + number - 1)
            if number % self.config.training.log_every == 0 or number == self.steps:
                self._check_gradients(epoch, checked + 1, number)
                checked = number
            tokens = sum(len(self.corpus.train[index]) for index in batch)
            step = Step(epoch, number, self.steps, loss, rate, len(batch), tokens)
            yield step, time.perf_counter() - start

    def _gradients(self, share: list[int], count: int) -> float:
        """Gradients of this process's share of the loss, which is the mean of `count` sentences."""
        self.optimization.zero_gradients()
        if not share:
            return 0.0
        device = self.workers.device
        items = [self.items[index] for index in share]
        half = self.config.training.precision == "bfloat16"
        with torch.autocast(device.type, torch.bfloat16, enabled=half):
            chain = self.tagger.chain(
                [item.inputs for item in items], [item.limits for item in items]
            )
            target = stack_targets(items, chain.max_length).to(device)
            loss = self.tagger.model.loss(chain, target).sum() / count
        loss.backward()  # type: ignore[no-untyped-call]
        return loss.item()

    def _check_gradients(self, epoch: int, first: int, last: int) -> None:
        """Raise, in all processes, if a gradient of these steps was not finite."""
        finite = self.optimization.gradients_are_finite()
        if any(self.workers.sum(not finite)):
            steps = f"step {last}" if first == last else f"steps {first} to {last}"
            raise _diverged(epoch, steps, "a gradient is not finite")

    def _update_weights(self, epoch: int) -> None:
        """Complete the weights at the end of an epoch, in all processes; raise, in all of them,
        if one is not finite."""
        self.optimization.flush()
        finite = self.optimization.weights_are_finite()
        if any(self.workers.sum(not finite)):
            raise _diverged(epoch, f"step {self.steps}", "a weight is not finite")

    def _evaluate(self) -> Evaluation | None:
        """On dev, in the main process."""
        if self.corpus.dev is None or not self.workers.is_main:
            return None
        return self.tagger.evaluate_examples(self.corpus.dev)

    def _judge(
        self, progress: Progress, loss: float, seconds: float, evaluation: Evaluation | None
    ) -> tuple[Epoch, Progress]:
        """What an epoch has brought, and whether to go on: the same in all processes."""
        settings = self.config.training
        epoch = progress.epoch + 1
        score = None
        if self.corpus.dev is not None:
            score = self.workers.from_main(0.0 if evaluation is None else evaluation.score)
        best = progress.best_score
        improved = score is None or best is None or score > best
        best_epoch = epoch if improved else progress.best_epoch
        waited = settings.patience is not None and epoch - best_epoch >= settings.patience
        after = dataclasses.replace(
            progress,
            epoch=epoch,
            best_epoch=best_epoch,
            best_score=score if improved else best,
            reason="done" if epoch == settings.epochs else "early stopping" if waited else None,
        )
        told = Epoch(
            epoch,
            settings.epochs,
            loss / len(self.items),
            "" if evaluation is None else evaluation.main,
            score,
            None if evaluation is None else evaluation.scores,
            0 if evaluation is None else evaluation.repaired,
            improved,
            seconds,
            0.0 if evaluation is None else evaluation.seconds,
            sum(map(len, self.corpus.train)) / max(seconds, 1e-9),
        )
        return told, after

    # Files, in the main process

    def _open_output(self, progress: Progress) -> MetricsLog:
        path = self.output / LOG
        with self._saving(progress):
            if not progress.epoch:
                # In this order: without a last state, nobody takes up the run whose best is gone.
                for name in (LAST, BEST):
                    remove_folder(self.output / name)
            else:
                self._warn_of_threads(logged_threads(path))
            log = MetricsLog(path, progress.log_size)
            if not progress.log_size:
                versions = {"torch": torch.__version__, "threads": torch.get_num_threads()}
                values = dataclasses.asdict(self._started(progress)) | versions
                log.add("start", values | {"config": self.config.to_dict()})
        return log

    def _warn_of_threads(self, before: int | None) -> None:
        now = torch.get_num_threads()
        if before not in (None, now):
            warnings.warn(
                f"{self.output} was begun with {before} threads, now there are {now}: the weights "
                f"may differ in the last bits from those of an uninterrupted run; with "
                f"OMP_NUM_THREADS={before} they do not",
                stacklevel=2,
            )

    def _saving(self, progress: Progress) -> AbstractContextManager[None]:
        """Errors of the system within this context say what is saved already."""
        saved = (
            f"epoch {progress.epoch} is saved, and --resume goes on after it"
            if progress.epoch
            else "no epoch is saved yet"
        )
        failure = f"cannot save epoch {progress.epoch + 1}"
        return report_write_errors(self.output, failure, saved)

    def _save(self, progress: Progress, epoch: Epoch, log: MetricsLog) -> Progress:
        """Write the epoch to the log, the best model if this is it, and then the last state: so
        whenever a process is killed, that state is one from which all else follows."""
        log.add("epoch", dataclasses.asdict(epoch))
        if progress.reason is not None:
            log.add("finish", dataclasses.asdict(self._finished(progress)))
        progress = dataclasses.replace(progress, log_size=log.size())
        tagger = self.tagger
        tagger.info = {
            "config": self.config.to_dict(),
            "epoch": epoch.epoch,
            "loss": epoch.loss,
            "dev": epoch.dev,
        }
        if epoch.improved:
            with replace_folder(self.output / BEST) as folder:
                tagger.write(folder)
        last = self.output / LAST
        save_checkpoint(last, tagger, self.optimization, progress, self.config, self.fingerprint)
        return progress

    def _started(self, progress: Progress) -> Started:
        words = self.corpus.vocabularies.words
        return Started(
            self.config.output,
            len(self.items),
            sum(map(len, self.corpus.train)),
            len(self.corpus.dev or ()),
            len(self.corpus.task.labels),
            0 if words is None else len(words),
            sum(p.numel() for p in self.tagger.model.parameters()),
            str(self.workers.device),
            self.workers.world,
            self.steps,
            self.config.training.epochs,
            progress.epoch + 1,
            progress.best_score,
        )

    def _finished(self, progress: Progress) -> Finished:
        return Finished(
            progress.reason or "",
            progress.best_epoch,
            progress.best_score,
            str(self.output / BEST),
        )


def _check_limits(config: Config, corpus: Corpus) -> None:
    """Raise unless the model that training will save can be loaded again, before it is built."""
    check_network(config.model)
    if config.decoding.decoder is not None:
        check_methods(decoder=config.decoding.decoder)
    check_labels(list(corpus.task.labels))
    if config.model.pretrained is None:
        sizes = corpus.vocabularies.sizes(len(corpus.task.labels))
        check_weights_size(weight_shapes(config.model, sizes, corpus.task.structure).values())


def _diverged(epoch: int, steps: str, symptom: str) -> FloatingPointError:
    return FloatingPointError(
        f"epoch {epoch}, {steps}: training diverges ({symptom}); lower optimizer.learning_rate, or "
        "set optimizer.clip"
    )
