"""The folder of a training run: its lock, its log, its best model and its last state."""

from __future__ import annotations

import dataclasses
import warnings
from collections.abc import Iterator
from contextlib import AbstractContextManager, ExitStack, contextmanager, suppress
from pathlib import Path

import torch

from .. import Tagger
from ..files import (
    JsonlLog,
    LockHeldError,
    current_path,
    hold_lock,
    make_folder,
    recover,
    remove_folder,
    replace_folder,
    report_write_errors,
)
from ..model_folder.description import check_replaceable
from .checkpoint import TrainingProgress, save_checkpoint
from .config import Config
from .events import Epoch, Finished, Started, Step
from .optimization import Optimization
from .workers import Workers

__all__ = ["BEST", "LAST", "RunFolder", "reserve_output"]

BEST, LAST, _LOG = "best", "last", "metrics.jsonl"
_LOCK = ".training.lock"


@contextmanager
def reserve_output(output: Path, workers: Workers, replace: bool) -> Iterator[None]:
    """Keep other trainings out of a folder until the end of the block.

    The main process holds the lock. It tells the other processes whether it has got the lock.

    Args:
        output: the folder; it is created.
        workers: all processes of this training.
        replace: whether a run in the folder may be replaced or resumed.

    Raises:
        OSError: another training uses the folder, or the folder holds something that must not be
            replaced.
    """
    error: Exception | None = None
    with ExitStack() as stack:
        if workers.is_main:
            try:
                stack.enter_context(_lock_output(output))
                _check_output(output, replace)
            except Exception as reason:
                error = reason
        if workers.from_main(float(error is not None)):
            raise error or OSError(f"{output}: the main process cannot write to this folder")
        yield


@contextmanager
def _lock_output(output: Path) -> Iterator[None]:
    if output.exists() and not output.is_dir():
        raise FileExistsError(
            f"{output} is a file; expected a folder, or a path that does not exist"
        )
    created = not output.exists()
    make_folder(output)
    try:
        with hold_lock(output / _LOCK, wait=False):
            yield
    except LockHeldError as error:
        raise FileExistsError(
            f"{output} is in use by another training ({error.holder}); wait until that training "
            "ends, stop it, or choose another output folder"
        ) from error
    finally:
        if created:
            with suppress(OSError):  # `rmdir` removes only an empty folder
                output.rmdir()


def _check_output(output: Path, replace: bool) -> None:
    """Raise if `replace` is False and a run exists, or if `BEST` or `LAST` is not a model."""
    for name in (BEST, LAST):
        check_replaceable(output / name)
    if not replace and current_path(output / LAST).exists():
        raise FileExistsError(
            f"{output} already holds a training run; continue it (--resume, or resume=True in "
            "Python), replace it (--overwrite, or overwrite=True), or choose another output folder"
        )


class RunFolder:
    """The files that the main process of a run writes.

    Args:
        config: the configuration of the run.
        tagger, optimization: the state that is saved.
        fingerprint: the checksum of the data, see `TrainingData.fingerprint`.
    """

    def __init__(
        self, config: Config, tagger: Tagger, optimization: Optimization, fingerprint: str
    ) -> None:
        self.config, self.tagger, self.optimization = config, tagger, optimization
        self.fingerprint = fingerprint
        self.path = Path(config.output)
        # The log is not shared, because the run holds the lock of the whole folder.
        self._log = JsonlLog(self.path / _LOG, shared=False)

    def recover(self) -> None:
        """Recover the two model folders, in case a process was killed while it replaced one."""
        for name in (BEST, LAST):
            recover(self.path / name)

    def open(self, progress: TrainingProgress, started: Started) -> None:
        """Prepare the folder for the epochs that follow; a new run removes the old one."""
        with self._saving(progress):
            if progress.epoch:
                self._warn_of_threads()
            else:
                # Remove the last state first. Otherwise, after an interruption, someone could
                # resume a run whose best model is gone.
                for name in (LAST, BEST):
                    remove_folder(self.path / name)
            self._log.truncate(progress.log_size)
            if not progress.log_size:
                values = dataclasses.asdict(started)
                del values["reason"]  # a run without a log has not ended
                values |= {"torch": torch.__version__, "threads": torch.get_num_threads()}
                self._append("start", values | {"config": self.config.to_dict()})
            elif progress.is_extended:
                self._append("extend", {"epochs": self.config.training.epochs})

    def log_step(self, progress: TrainingProgress, step: Step) -> None:
        """Write every `log_every`-th step to the log."""
        if step.step % self.config.training.log_every == 0:
            with self._saving(progress):
                self._append("step", dataclasses.asdict(step))

    def save(
        self, progress: TrainingProgress, after: TrainingProgress, epoch: Epoch, finished: Finished
    ) -> TrainingProgress:
        """Save an epoch: first the log, then the best model if it improved, then the last state.

        A run resumes from its last state. Since the last state is written at the end, the log and
        the best model that belong to it are always complete.

        Args:
            progress, after: the progress before and after the epoch.
            epoch: the event of the epoch.
            finished: the event of the end of the run; used if `after.reason` is not None.

        Returns:
            `after`, with the size of the log.
        """
        with self._saving(progress):
            self._append("epoch", dataclasses.asdict(epoch))
            if after.reason is not None:
                self._append("finish", dataclasses.asdict(finished))
            after = dataclasses.replace(after, log_size=self._log.size())
            tagger = self.tagger
            tagger.info = {
                "config": self.config.to_dict(),
                "epoch": epoch.epoch,
                "loss": epoch.loss,
                "dev": epoch.dev,
            }
            if epoch.improved:
                with replace_folder(self.path / BEST) as folder:
                    tagger.write(folder)
        with self._saving(progress, epoch.epoch if epoch.improved else None):
            last = self.path / LAST
            save_checkpoint(last, tagger, self.optimization, after, self.config, self.fingerprint)
        return after

    def _append(self, event: str, values: dict[str, object]) -> None:
        # A step does not wait for the disk; `JsonlLog.size` does so at the end of an epoch.
        self._log.append({"event": event, **values}, durable=False)

    def _saving(
        self, progress: TrainingProgress, in_best: int | None = None
    ) -> AbstractContextManager[None]:
        """Add to errors of the system in the block what is saved, and what the user can do with it.

        Args:
            progress: the progress at the last state that is saved.
            in_best: the epoch of the best model if it is later than that state; else None.
        """
        if progress.epoch:
            saved = f"epoch {progress.epoch} is saved; continue after it with --resume"
        elif in_best is None:
            saved = "no epoch is saved yet"
        else:
            saved = "no epoch can be continued yet"
        if in_best is not None:
            saved += f"; `{BEST}` holds the complete model of epoch {in_best}"
        failure = f"cannot save epoch {progress.epoch + 1}"
        return report_write_errors(self.path, failure, saved)

    def _warn_of_threads(self) -> None:
        before, now = self._logged_threads(), torch.get_num_threads()
        if before not in (None, now):
            warnings.warn(
                f"{self.path} was started with {before} threads, but now there are {now}, so the "
                "weights may differ in the last bits from those of an uninterrupted run; to avoid "
                f"this, resume with --threads {before} (torch.set_num_threads({before}))",
                stacklevel=2,
            )

    def _logged_threads(self) -> int | None:
        """Return the number of threads that the run began with; None if its log does not say."""
        try:
            start = self._log.first_row()
        except (OSError, ValueError):
            return None
        threads = None if start is None else start.get("threads")
        return threads if isinstance(threads, int) else None
