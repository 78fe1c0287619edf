"""An experiment, as its TOML file describes it: which runs a table is made of, and what the paper
reports for them."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field
from typing import Any

from ..training import Config
from ..training.recipes import merged
from .methods import check_decoder, check_objective
from .parsing import Reader

__all__ = ["SPLITS", "Corpus", "Experiment", "ExperimentError", "Network", "Settings", "Variant"]

SPLITS = ("train", "dev", "test")

Settings = dict[str, dict[str, Any]]
"""Of a training config, part by part."""


class ExperimentError(ValueError):
    """A table, or a choice of its runs, that makes no sense; the message says which."""


@dataclass(frozen=True)
class Corpus:
    """What is learned from.

    Args:
        name: by which it is chosen and shown.
        files: of each split, the names (or ends of paths) under which the file may be found.
        editions: SHA-256 of a training file -> which edition of the corpus that is.
        networks: the networks that make sense for it; none: all.
        extra: whether it is run only when asked for by name, since the paper has it not.
        settings: that go with it.
    """

    name: str
    files: dict[str, tuple[str, ...]]
    editions: dict[str, str] = field(default_factory=dict)
    networks: tuple[str, ...] = ()
    extra: bool = False
    settings: Settings = field(default_factory=dict)


@dataclass(frozen=True)
class Network:
    """What learns: the number of its layers, or the name of a pretrained encoder.

    Args:
        name, title: by which it is chosen, and shown.
        extra: whether it is run only when asked for, by name or by a corpus.
        settings: that make it.
    """

    name: str
    title: str
    extra: bool = False
    settings: Settings = field(default_factory=dict)

    @property
    def pretrained(self) -> str | None:
        value: str | None = self.settings.get("model", {}).get("pretrained")
        return value


@dataclass(frozen=True)
class Variant:
    """A way to read the same data. The first one of an experiment is the one of its table.

    Args:
        name, title: by which it is stored, and shown; "" for experiments without variants.
        seeds: those it is run with; none: all of the experiment.
        settings: that make it.
    """

    name: str = ""
    title: str = ""
    seeds: tuple[int, ...] = ()
    settings: Settings = field(default_factory=dict)


@dataclass(frozen=True)
class Experiment:
    """The runs of a table of accuracies, or F-scores.

    Args:
        name, title: of the table.
        task: "pos", "segmentation" or "ner".
        seeds, objectives, decoders: each model of an objective and a seed is evaluated with every
            decoder.
        settings: of all runs.
        paper: (variant, network, corpus, objective, decoder) -> the paper's number, in percent.
    """

    name: str
    title: str
    task: str
    seeds: tuple[int, ...]
    objectives: tuple[str, ...]
    decoders: tuple[str, ...]
    corpora: dict[str, Corpus]
    networks: dict[str, Network]
    variants: dict[str, Variant]
    settings: Settings = field(default_factory=dict)
    paper: dict[tuple[str, str, str, str, str], float] = field(default_factory=dict)

    @classmethod
    def from_dict(cls, name: str, values: Mapping[str, Any]) -> Experiment:
        """The experiment with these values, as read from a file; errors name the key."""
        read = Reader(values, error=ExperimentError)
        corpora = {key: _corpus(key, part) for key, part in read.parts("corpora").items()}
        networks = {key: _network(key, part) for key, part in read.parts("networks").items()}
        variants = {key: _variant(key, part) for key, part in read.parts("variants", {}).items()}
        experiment = cls(
            name,
            read.text("title"),
            read.text("task"),
            read.numbers("seeds"),
            read.texts("objectives"),
            _with_iterations(read.texts("decoders"), read.numbers("iterations")),
            corpora,
            networks,
            variants or {"": Variant()},
            read.settings(),
        )
        experiment.paper.update(_paper(experiment, read.tables("paper")))
        read.finish()
        experiment._check()
        return experiment

    def _check(self) -> None:
        for objective in self.objectives:
            check_objective(objective)
        for decoder in self.decoders:
            check_decoder(decoder)
        for corpus in self.corpora.values():
            for network in corpus.networks:
                if network not in self.networks:
                    raise ExperimentError(
                        f"corpora.{corpus.name}.networks: {network!r} is none of "
                        f"{', '.join(self.networks)}"
                    )
            for network in corpus.networks or self.networks:
                for variant in self.variants:
                    self.config(corpus.name, network, variant, "crf", 0, "run", "train", "dev")

    def config(
        self,
        corpus: str,
        network: str,
        variant: str,
        objective: str,
        seed: int,
        output: str,
        train: str,
        dev: str,
        overrides: Settings | None = None,
    ) -> Config:
        """The training run of a cell."""
        layers: Sequence[Settings] = (
            self.settings,
            self.corpora[corpus].settings,
            self.networks[network].settings,
            self.variants[variant].settings,
            {
                "data": {"task": self.task, "train": train, "dev": dev},
                "model": {"objective": objective},
                "training": {"seed": seed},
            },
            overrides or {},
        )
        values: Settings = {}
        for layer in layers:
            values = merged(values, layer)
        try:
            return Config.from_dict({"output": output, **values})
        except (TypeError, ValueError) as error:
            raise ExperimentError(f"{self.name}, {corpus}, network {network}: {error}") from error


def _with_iterations(names: Sequence[str], iterations: Sequence[int]) -> tuple[str, ...]:
    """The decoders, those with "-K" in their name for every number of iterations."""
    found: list[str] = []
    for name in names:
        counts = iterations if "-K" in name else iterations[:1]
        found += [name.replace("-K", f"-{k}") for k in counts]
    return tuple(found)


def _corpus(name: str, read: Reader) -> Corpus:
    files = {split: read.alternatives(split) for split in SPLITS}
    return Corpus(
        name,
        files,
        read.text_table("editions", {}),
        read.texts("networks", ()),
        read.flag("extra"),
        read.settings(end=True),
    )


def _network(name: str, read: Reader) -> Network:
    return Network(name, read.text("title", name), read.flag("extra"), read.settings(end=True))


def _variant(name: str, read: Reader) -> Variant:
    return Variant(
        name, read.text("title", name), read.numbers("seeds", ()), read.settings(end=True)
    )


def _paper(
    experiment: Experiment, tables: Sequence[Reader]
) -> dict[tuple[str, str, str, str, str], float]:
    numbers = {}
    for read in tables:
        variant = read.text("variant", next(iter(experiment.variants)))
        network, corpora = read.text("network"), read.texts("corpora")
        for corpus in corpora:
            if corpus not in experiment.corpora or network not in experiment.networks:
                where = read.where.rstrip(".")
                raise ExperimentError(f"{where}: {corpus}, network {network}: is not run")
        for objective, decoder, *values in read.rows("rows", 2 + len(corpora)):
            for corpus, value in zip(corpora, values, strict=True):
                numbers[variant, network, corpus, objective, decoder] = float(value)
        read.finish()
    return numbers
