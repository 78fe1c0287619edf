"""Build a report: evaluate a system, and compare it with another one."""

from __future__ import annotations

import copy
from collections.abc import Sequence
from dataclasses import dataclass
from typing import Any

import torch

from ...decoding import named_decoder
from .. import Tagger
from ..nn import parse_decoder
from ..prediction.chains import iterate_chains
from ..prediction.tagging import LONGEST_WHOLE
from ..tasks import Example
from . import measures
from .errors import differences, worst_errors
from .measures import rounded
from .outcomes import Outcome, collect_outcomes
from .resampling import LEVEL, RESAMPLES, ROUNDS, approximate_randomisation, paired_interval

__all__ = ["TaggingSystem", "build_report"]

CERTIFIER = "certified-10"
"""The decoder whose share of certified sentences is reported."""


@dataclass(frozen=True)
class TaggingSystem:
    """A tagger with a decoder, and the sentences that it is evaluated on.

    Args:
        name: what the report calls it, such as the folder of the model.
        tagger: the tagger.
        examples: annotated examples of its task.
        decoder, repair: None: those of the tagger.

    Example (`tagger` and `file` as in `Tagger`):
        >>> from bcrf.tagger.data import read
        >>> from bcrf.tagger.report import TaggingSystem
        >>> examples = tagger.task.annotated(list(read(file)))
        >>> TaggingSystem("small", tagger, examples).used_decoder
        'viterbi'
    """

    name: str
    tagger: Tagger
    examples: Sequence[Example]
    decoder: str | None = None
    repair: str | None = None

    @property
    def used_decoder(self) -> str:
        """The decoder that tags the sentences."""
        return self.tagger.decoder if self.decoder is None else self.decoder

    @property
    def used_repair(self) -> str:
        """How ill-formed labels are repaired."""
        return self.tagger.repair if self.repair is None else self.repair


def build_report(
    system: TaggingSystem, other: TaggingSystem | None = None, *, file: str = "", seed: int = 0
) -> dict[str, Any]:
    """Return a report as nested plain values, which JSON can hold.

    Args:
        system: the system to report on.
        other: the system to compare it with, on the same sentences.
        file: name of the file of the sentences.
        seed: seed of the resampling; the same seed gives the same report.

    Raises:
        ValueError: the two systems have different tasks or different gold annotations.

    Example (`tagger` and `file` as in `Tagger`):
        >>> from bcrf.tagger.data import read
        >>> from bcrf.tagger.report import TaggingSystem, build_report
        >>> examples = tagger.task.annotated(list(read(file)))
        >>> report = build_report(TaggingSystem("small", tagger, examples))
        >>> report["scores"][0]["name"], report["scores"][0]["value"]
        ('accuracy', 1.0)
    """
    if other is not None and other.tagger.task.name != system.tagger.task.name:
        raise ValueError(
            f"{system.name} is a model for {system.tagger.task.name}, but {other.name} is one for "
            f"{other.tagger.task.name}; compare models for the same task"
        )
    outcomes = _outcomes(system)
    task, known = system.tagger.task.name, system.tagger.vocabularies.words
    counts = measures.score_counts(outcomes, task, known)
    report: dict[str, Any] = {
        "file": file,
        "task": task,
        "sentences": len(outcomes),
        "tokens": sum(len(outcome.tokens) for outcome in outcomes),
        "system": _describe(system, outcomes),
        "resampling": {"seed": seed, "resamples": RESAMPLES, "rounds": ROUNDS, "level": LEVEL},
        "scores": measures.scores_with_intervals(counts, seed),
        "tags": measures.by_tag(outcomes),
        "confusion": measures.confusion(outcomes),
        "unknown_words": measures.unknown_words(outcomes, task, known),
        "calibration": _calibration(system, outcomes),
        "certified": _certified(system),
        "errors": worst_errors(outcomes),
    }
    if other is not None:
        report["comparison"] = _comparison(system, other, outcomes, seed)
    return report


def _outcomes(system: TaggingSystem) -> list[Outcome]:
    return list(
        collect_outcomes(system.tagger, system.examples, system.used_decoder, system.used_repair)
    )


def _describe(system: TaggingSystem, outcomes: Sequence[Outcome]) -> dict[str, Any]:
    tagger = system.tagger
    return {
        "name": system.name,
        "decoder": system.used_decoder,
        "repair": system.used_repair,
        "objective": tagger.model.config.objective,
        "parameters": sum(parameter.numel() for parameter in tagger.model.parameters()),
        "labels": len(tagger.labels),
        "repaired": sum(outcome.repaired for outcome in outcomes),
    }


def _calibration(system: TaggingSystem, outcomes: Sequence[Outcome]) -> dict[str, Any]:
    """Return the calibration; with a fitted temperature, also that of the raw probabilities."""
    found = measures.calibration(outcomes)
    temperature = system.tagger.probability_temperature
    found["temperature"] = temperature
    found["before"] = None
    if temperature != 1:
        raw = copy.copy(system.tagger)
        raw.probability_temperature = 1.0
        before = measures.calibration(
            collect_outcomes(raw, system.examples, system.used_decoder, system.used_repair)
        )
        found["before"] = {name: before[name] for name in ("ece", "brier", "confidence")}
    return found


@torch.no_grad()
def _certified(system: TaggingSystem) -> dict[str, Any]:
    """Return how many sentences certified decoding proves; very long sentences are not tried."""
    decode = named_decoder(parse_decoder(CERTIFIER))
    tried = [e for e in system.examples if 0 < len(e) <= LONGEST_WHOLE]
    count = 0
    for _, chain in iterate_chains(system.tagger, tried):
        certified = decode(chain).certified
        assert certified is not None
        count += int(certified.sum())
    return {
        "decoder": CERTIFIER,
        "sentences": len(tried),
        "certified": count,
        "share": rounded(count / len(tried)) if tried else None,
    }


def _comparison(
    system: TaggingSystem, other: TaggingSystem, outcomes: Sequence[Outcome], seed: int
) -> dict[str, Any]:
    others = _outcomes(other)
    _check_same_gold(system, other, outcomes, others)
    task, known = system.tagger.task.name, system.tagger.vocabularies.words
    first, second = (measures.score_counts(some, task, known) for some in (outcomes, others))
    rows = []
    for name, counts in first.items():
        interval = paired_interval(counts, second[name], seed=seed)
        if interval is None:
            continue
        values = [float(c[:, 0].sum() / c[:, 1].sum()) for c in (counts, second[name])]
        low, high = map(rounded, interval)
        rows.append(
            {
                "name": name,
                "first": rounded(values[0]),
                "second": rounded(values[1]),
                "difference": rounded(values[0] - values[1]),
                "low": low,
                "high": high,
                "p": rounded(approximate_randomisation(counts, second[name], seed=seed)),
            }
        )
    return {
        "system": _describe(other, others),
        "scores": rows,
        "sentences": differences(outcomes, others),
    }


def _check_same_gold(
    system: TaggingSystem, other: TaggingSystem, first: Sequence[Outcome], second: Sequence[Outcome]
) -> None:
    for one, two in zip(first, second, strict=True):
        if one.gold_keys != two.gold_keys:
            raise ValueError(
                f"{one.path}:{one.line}: the gold tags are not the same for {system.name} and "
                f"{other.name}; compare models with the same settings of the task"
            )
