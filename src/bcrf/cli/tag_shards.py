"""`bcrf tag --engine ray`: tag the shards of a corpus on a Ray cluster."""

from __future__ import annotations

import argparse
import os
import sys
from collections.abc import Sequence
from pathlib import Path
from typing import TYPE_CHECKING

from .errors import UserError
from .terminal import progress_bar

if TYPE_CHECKING:
    from ..tagger.shards import Shard, ShardOptions, ShardRecord

__all__ = ["run_shards"]


def run_shards(options: argparse.Namespace) -> int:
    """Tag the shards that the options name; return the exit code."""
    _check_options(options)
    # Ray is imported later, by `connect`; this import only checks that it is installed.
    from .. import ray  # noqa: F401
    from ..tagger.prediction.windows import WINDOW
    from ..tagger.shards import ShardError, ShardOptions, find_shards, lock_results, plan_shards

    tagging = ShardOptions(
        probabilities=options.probabilities,
        decoder=options.decoder,
        repair=options.repair,
        threshold=options.threshold,
        window=options.window or WINDOW,
    )
    identity = _identity(options.model)
    records: list[ShardRecord] = []
    failures: list[str] = []
    try:
        shards = find_shards(options.files, options.output, options.input_format == "auto")
        with lock_results(options.output):
            plan = plan_shards(shards, tagging.settings(identity))
            if plan.waiting:
                records, failures = _tag(options, plan.waiting, tagging)
    except ShardError as error:
        raise UserError(str(error)) from error
    print(_summary(records, plan.finished, options.output))
    if failures:
        for reason in failures:
            print(f"bcrf: error: {reason}", file=sys.stderr)
        raise UserError(
            f"{len(failures)} of {len(shards)} shards failed; the same command tags them again"
        )
    every = [*records, *plan.finished]
    bad, rows = sum(r.bad_rows for r in every), sum(r.rows for r in every)
    if bad:
        place = os.path.join(options.output, "errors")
        print(f"bcrf: warning: {bad:,} of {rows:,} rows are bad; see {place}", file=sys.stderr)
    return 1 if bad and bad == rows else 0


def _check_options(options: argparse.Namespace) -> None:
    """Raise for options that do not fit the tagging of shards."""
    if options.output is None:
        raise UserError("--engine ray needs --output DIR, the folder of the tagged shards")
    if not options.files or "-" in options.files:
        raise UserError("--engine ray reads files of JSON lines, not standard input; name them")
    for name, value, permitted in (
        ("--input-format", options.input_format, ("auto", "jsonl")),
        ("--format", options.format, (None, "jsonl")),
    ):
        if value not in permitted:
            raise UserError(f"{name} {value}: --engine ray reads and writes jsonl only")
    if options.tokenizer is not None or options.split_lines:
        raise UserError("--tokenizer and --split-lines are for raw text; --engine ray reads jsonl")
    if options.device.startswith("cuda:"):
        raise UserError("--device: Ray chooses the GPU of each worker; use --device cuda")


def _identity(model: str) -> str:
    """Return the identity of a model that gives tags."""
    from ..tagger.model_folder.description import read_description
    from ..tagger.model_folder.location import locate, model_identity

    identity = model_identity(Path(model))
    if read_description(locate(Path(model))).values["task"].get("task") == "tokenization":
        raise UserError(f"{model} is a tokenizer, which reads raw text; --engine ray reads jsonl")
    return identity


def _tag(
    options: argparse.Namespace, shards: Sequence[Shard], tagging: ShardOptions
) -> tuple[list[ShardRecord], list[str]]:
    """Tag the shards; return the records of those that succeeded, and why others failed."""
    from ..ray import ClusterError, ShardFailure, connect, tag_shards

    threads = options.threads or 1
    address = options.ray_address or os.environ.get("RAY_ADDRESS")
    cpus = None if options.workers is None else options.workers * threads
    records: list[ShardRecord] = []
    failures: list[str] = []
    try:
        with progress_bar() as update:
            update("starting Ray", 0, None)
            with connect(address, cpus):
                update("loading the model", 0, None)
                for result in tag_shards(
                    options.model, shards, tagging, options.workers, threads, options.device
                ):
                    if isinstance(result, ShardFailure):
                        failures.append(result.reason)
                    else:
                        records.append(result[1])
                    update("tagged shards", len(records) + len(failures), len(shards))
    except ClusterError as error:
        raise UserError(str(error)) from error
    return records, failures


def _summary(new: Sequence[ShardRecord], finished: Sequence[ShardRecord], folder: str) -> str:
    rows, tokens = sum(r.rows for r in new), sum(r.tokens for r in new)
    text = f"tagged {_shards(len(new))} ({rows:,} rows, {tokens:,} tokens) in {folder}"
    if finished:
        text += f"; finished before: {_shards(len(finished))}"
    return text


def _shards(count: int) -> str:
    return "1 shard" if count == 1 else f"{count:,} shards"
