"""Find the shards of a corpus, and decide which of them are finished."""

from __future__ import annotations

import glob
import os
from collections.abc import Iterator, Sequence
from contextlib import contextmanager
from dataclasses import dataclass
from pathlib import Path
from typing import Any

from ..data import detect_format, read_lines
from ..files import LockHeldError, hold_lock, make_folder
from .tag_shard import Shard, ShardRecord, read_record

__all__ = ["ShardError", "ShardPlan", "find_shards", "lock_results", "plan_shards"]

_ERRORS, _RECORDS, _LOCK = "errors", "records", ".lock"

_PATTERN_CHARACTERS = "*?["


class ShardError(ValueError):
    """The shards, or the folder of their results, are not as they have to be."""


@dataclass(frozen=True)
class ShardPlan:
    """What is to be done.

    Args:
        waiting: the shards to be tagged, the largest first.
        finished: the records of the shards that were tagged by an earlier command.
    """

    waiting: tuple[Shard, ...]
    finished: tuple[ShardRecord, ...]


def find_shards(
    patterns: Sequence[str], folder: str | os.PathLike[str], check_format: bool = True
) -> list[Shard]:
    """Return the shards that paths and patterns such as "corpus/*.jsonl" name.

    Args:
        patterns: paths, or patterns with `*`, `?`, `[...]`, or `**` for any folders.
        folder: the folder of the results. The output of a shard has the name of the shard.
        check_format: whether to refuse files that are not JSON lines.

    Raises:
        ShardError: a pattern matches nothing, a file is not JSON lines, two shards have one name,
            or a result would overwrite a shard.
        DataError: a file cannot be read.
    """
    root = os.path.abspath(folder)
    shards: dict[str, Shard] = {}
    for path in _expanded(patterns):
        name = os.path.basename(path)
        shard = Shard(
            os.path.abspath(path),
            os.path.join(root, name),
            os.path.join(root, _ERRORS, name),
            os.path.join(root, _RECORDS, name),
        )
        if name in (_ERRORS, _RECORDS, _LOCK):
            raise ShardError(f"{path}: the results cannot have the name {name}; rename the file")
        other = shards.setdefault(name, shard)
        if other.source != shard.source:
            raise ShardError(
                f"{other.source} and {shard.source} have the same name, but their outputs go to "
                "one folder; tag each folder of shards into an output folder of its own"
            )
        if os.path.exists(shard.output) and os.path.samefile(path, shard.output):
            raise ShardError(f"{path}: the output would replace the shard; choose another folder")
        if check_format:
            _check_format(path)
    return list(shards.values())


def _expanded(patterns: Sequence[str]) -> Iterator[str]:
    for pattern in patterns:
        if os.path.isdir(pattern):
            raise ShardError(f"{pattern}: is a folder; name its files: '{pattern}/*.jsonl'")
        if os.path.exists(pattern):
            yield pattern
            continue
        found = []
        if any(character in pattern for character in _PATTERN_CHARACTERS):
            found = [path for path in glob.glob(pattern, recursive=True) if os.path.isfile(path)]
        if not found:
            raise ShardError(f"{pattern}: there is no such file")
        yield from sorted(found)


def _check_format(path: str) -> None:
    if os.path.getsize(path) == 0:
        return
    found = detect_format(path, read_lines(path, path)).name
    if found != "jsonl":
        raise ShardError(
            f'{path}: expected JSON lines, one {{"words": [...]}} or {{"text": "..."}} per line; '
            f"this looks like {found}. If it is JSON lines, say so with --input-format jsonl"
        )


def plan_shards(shards: Sequence[Shard], settings: dict[str, Any]) -> ShardPlan:
    """Divide the shards into those that are finished and those to be tagged.

    A shard is finished if its output is complete, and its source has not changed since.

    Args:
        shards: see `find_shards`.
        settings: see `ShardOptions.settings`.

    Raises:
        ShardError: an output was tagged with other settings, or was not written by this command.
    """
    waiting, finished = [], []
    for shard in shards:
        record = read_record(shard)
        has_output = os.path.exists(shard.output)
        if record is None and has_output:
            raise ShardError(
                f"{shard.output}: exists, and there is no record that this command wrote it; "
                "remove it, or choose another output folder"
            )
        if record is not None and has_output and record.settings != settings:
            raise ShardError(
                f"{shard.output}: was tagged with {_difference(record.settings, settings)}; choose "
                "another output folder, or remove this one"
            )
        if record is not None and record.matches(shard):
            finished.append(record)
        else:
            waiting.append(shard)
    # A large shard that is started last would keep one worker busy while the others are idle.
    waiting.sort(key=lambda shard: os.path.getsize(shard.source), reverse=True)
    return ShardPlan(tuple(waiting), tuple(finished))


def _difference(old: dict[str, Any], new: dict[str, Any]) -> str:
    if old.get("model") != new["model"]:
        return "another model"
    name = next(name for name in (*new, *old) if old.get(name) != new.get(name))
    return f"{name} = {old.get(name)}, which is now {new.get(name)}"


@contextmanager
def lock_results(folder: str | os.PathLike[str]) -> Iterator[None]:
    """Hold the lock of a folder of results; create the folder if it does not exist.

    Raises:
        ShardError: another command writes to the folder.
        OSError: the folder cannot be created.
    """
    root = Path(os.path.abspath(folder))
    if root.exists() and not root.is_dir():
        raise ShardError(f"{folder}: is a file; expected a folder for the tagged shards")
    make_folder(root)
    try:
        with hold_lock(root / _LOCK, wait=False):
            yield
    except LockHeldError as error:
        raise ShardError(
            f"{folder}: another command writes to this folder ({error.holder}); wait until it "
            "ends, or choose another output folder"
        ) from error
