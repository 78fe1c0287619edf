"""Tag one shard: the rows of a file go to an output file, bad rows to an error file.

A shard has three results. They are written atomically and in this order, so that a shard with an
output file is finished:

    errors/NAME    bad rows, if there are any
    records/NAME   what was tagged, and with which settings (`ShardRecord`)
    NAME           the tagged rows
"""

from __future__ import annotations

import json
import os
import time
from contextlib import ExitStack
from dataclasses import asdict, dataclass, field
from pathlib import Path
from typing import Any, TextIO

from ..data import BadRow, read_rows
from ..files import (
    atomic_write,
    atomic_write_bytes,
    make_folder,
    open_regular,
    read_limited,
    remove_temporary_files,
    report_write_errors,
)
from ..prediction.options import TaggingOptions
from ..prediction.tagger import Tagger
from ..prediction.tolerant_tagging import tag_rows
from ..prediction.windows import WINDOW

__all__ = ["Shard", "ShardOptions", "ShardRecord", "read_record", "tag_shard"]

_MAX_RECORD_BYTES = 1 << 20


@dataclass(frozen=True)
class Shard:
    """A file to be tagged, and the files of its results; all paths are absolute."""

    source: str
    output: str
    errors: str
    record: str


@dataclass(frozen=True)
class ShardOptions:
    """How all shards are tagged.

    Args:
        probabilities, decoder, repair, threshold: as for `Tagger.tag`.
        window: number of rows that are read at a time, as for `Tagger.stream`.
    """

    probabilities: bool = False
    decoder: str | None = None
    repair: str | None = None
    threshold: float | None = None
    window: int = WINDOW

    def settings(self, identity: str) -> dict[str, Any]:
        """Return what the tags depend on, for the records; `identity` is that of the model."""
        values = asdict(self) | {"model": identity}
        del values["window"]
        return values


@dataclass(frozen=True)
class ShardRecord:
    """What is known about a finished shard.

    Args:
        source_bytes, source_modified_ns: size and time of the source when it was read.
        output_bytes: size of the output.
        settings: see `ShardOptions.settings`.
        rows: number of rows of the source: those of the output and the bad ones.
        bad_rows: number of rows of the error file.
        tokens: number of tagged tokens (in tasks on text, of characters).
        seconds: time that tagging took.
    """

    source_bytes: int
    source_modified_ns: int
    output_bytes: int
    settings: dict[str, Any] = field(repr=False)
    rows: int = 0
    bad_rows: int = 0
    tokens: int = 0
    seconds: float = 0.0

    def matches(self, shard: Shard) -> bool:
        """Return whether the source is the one that was tagged, and the output is complete."""
        try:
            source, output = os.stat(shard.source), os.stat(shard.output)
        except FileNotFoundError:
            return False
        found = (source.st_size, source.st_mtime_ns, output.st_size)
        return found == (self.source_bytes, self.source_modified_ns, self.output_bytes)


def tag_shard(tagger: Tagger, shard: Shard, options: ShardOptions, identity: str) -> ShardRecord:
    """Tag one shard and write its results; those of an earlier attempt are removed first.

    Rows are streamed: memory holds one window of them. Every row of the source is either in the
    output or in the error file, in the order of the source.

    Args:
        tagger: the tagger.
        shard: the files.
        options: how to tag.
        identity: that of the model (see `model_identity`); it goes into the record.

    Raises:
        DataError: the source cannot be read.
        OSError: the results cannot be written; there is then no output.
    """
    start = time.perf_counter()
    tagging = TaggingOptions(
        options.decoder or tagger.decoder,
        options.repair or tagger.repair,
        probabilities=options.probabilities,
        threshold=options.threshold,
    )
    rows = bad_rows = tokens = 0
    remedy = "the shard has no output; run the command again when the cause is removed"
    with (
        open_regular(shard.source) as source,
        report_write_errors(shard.output, "cannot write the tagged shard", remedy),
    ):
        status = os.fstat(source.fileno())
        _remove_results(shard)
        with atomic_write_bytes(shard.output) as output:
            with ExitStack() as stack:
                errors: TextIO | None = None
                found = tag_rows(tagger, read_rows(source, shard.source), tagging, options.window)
                for result in found:
                    rows += 1
                    if isinstance(result, BadRow):
                        bad_rows += 1
                        if errors is None:
                            errors = stack.enter_context(atomic_write(shard.errors))
                        errors.write(_error_line(result))
                    else:
                        tokens += len(result.example)
                        for line in result.render_lines("jsonl"):
                            output.write(line.encode())
                    del result  # so that a long sentence is freed before the next one is read
            record = ShardRecord(
                source_bytes=status.st_size,
                source_modified_ns=status.st_mtime_ns,
                output_bytes=output.tell(),
                settings=options.settings(identity),
                rows=rows,
                bad_rows=bad_rows,
                tokens=tokens,
                seconds=round(time.perf_counter() - start, 3),
            )
            with atomic_write(shard.record) as stream:
                stream.write(json.dumps(asdict(record)) + "\n")
    return record


def _remove_results(shard: Shard) -> None:
    """Remove the results of an earlier attempt, and the temporary files of a killed one."""
    for path in map(Path, (shard.output, shard.record, shard.errors)):
        make_folder(path.parent)
        path.unlink(missing_ok=True)
        remove_temporary_files(path)


def _error_line(row: BadRow) -> str:
    error = row.error
    place = {"file": error.path, "line": error.line, "error": error.message, "row": row.text}
    return json.dumps(place, ensure_ascii=False) + "\n"


def read_record(shard: Shard) -> ShardRecord | None:
    """Return the record of a shard; None if there is none, or none that can be read."""
    try:
        values = json.loads(read_limited(shard.record, _MAX_RECORD_BYTES))
        record = ShardRecord(**values)
        return record if isinstance(record.settings, dict) else None
    except (OSError, ValueError, TypeError, RecursionError):
        return None
