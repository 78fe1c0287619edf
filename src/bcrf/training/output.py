"""The folder of a training run, and the lock that keeps other trainings out of it."""

from __future__ import annotations

from collections.abc import Iterator
from contextlib import ExitStack, contextmanager, suppress
from pathlib import Path

from ..tagging.atomic_folder import current_path, make_folder
from ..tagging.folder import check_replaceable
from ..tagging.locks import LockHeldError, hold_lock
from .workers import Workers

__all__ = ["BEST", "LAST", "LOG", "reserve_output"]

BEST, LAST, LOG = "best", "last", "metrics.jsonl"
_LOCK = ".training.lock"


@contextmanager
def reserve_output(output: Path, workers: Workers, replace: bool) -> Iterator[None]:
    """Keep other trainings out of a folder until the end of the block.

    The main process holds the lock; the others learn from it whether to go on.

    Args:
        output: the folder; it is created.
        workers: all processes of this training.
        replace: whether a run that is there may be replaced or resumed.

    Raises:
        OSError: another training holds the folder, or something there must not be replaced.
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
        raise FileExistsError(f"{output} is a file; expected a folder, or nothing yet")
    created = not output.exists()
    make_folder(output)
    try:
        with hold_lock(output / _LOCK, wait=False):
            yield
    except LockHeldError as error:
        raise FileExistsError(
            f"{output} is in use by another training ({error.holder}); wait until it has ended, "
            "stop it, or choose another output folder"
        ) from error
    finally:
        if created:
            with suppress(OSError):  # unless it is empty, since nothing was saved
                output.rmdir()


def _check_output(output: Path, replace: bool) -> None:
    """Raise unless a run can be written there: over another one only if so wanted, and never over
    anything else."""
    for name in (BEST, LAST):
        check_replaceable(output / name)
    if not replace and current_path(output / LAST).exists():
        raise FileExistsError(
            f"{output} holds a training run already; resume it, overwrite it, or choose another "
            "output folder"
        )
