"""Describe an accuracy table: its training runs and the paper's numbers, from its TOML file."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field
from typing import Any

from bcrf.tagger.config_tables import deep_merge
from bcrf.tagger.training import Config

from .methods import Objective, check_decoder, check_objective
from .table_reader import TableReader

__all__ = [
    "SPLITS",
    "CorpusSpec",
    "Experiment",
    "ExperimentError",
    "NetworkSpec",
    "TrainingSettings",
    "Variant",
]

SPLITS = ("train", "dev", "test")

TrainingSettings = dict[str, dict[str, Any]]
"""Settings of a training config: section -> name -> value."""


class ExperimentError(ValueError):
    """A table or a selection of its runs is invalid; the message names the wrong value."""


@dataclass(frozen=True)
class CorpusSpec:
    """A corpus.

    Args:
        name: the name of the corpus on the command line and in tables.
        files: split -> possible names of its file; a name may be the end of a path.
        editions: SHA-256 of a training file -> edition of the corpus.
        networks: names of the networks to train on this corpus; if empty, all networks.
        extra: True if the paper does not use this corpus. An extra corpus is run only if it is
            selected by name.
        not_run: why we have no runs with this corpus, for the report; None: there may be some.
        settings: settings of training runs with this corpus.
    """

    name: str
    files: dict[str, tuple[str, ...]]
    editions: dict[str, str] = field(default_factory=dict)
    networks: tuple[str, ...] = ()
    extra: bool = False
    not_run: str | None = None
    settings: TrainingSettings = field(default_factory=dict)


@dataclass(frozen=True)
class NetworkSpec:
    """A network: its number of layers, or its pretrained encoder.

    Args:
        name: the name of the network on the command line.
        title: the name of the network in tables.
        extra: True if the network is run only when the user selects it or a corpus names it.
        not_run: why we have no runs with this network, for the report; None: there may be some.
        stands_in_for: the network of the paper that this one replaces, because it is smaller; None:
            it replaces none. The report shows the paper's numbers beside ours, and says so.
        settings: settings of training runs with this network.
    """

    name: str
    title: str
    extra: bool = False
    not_run: str | None = None
    stands_in_for: str | None = None
    settings: TrainingSettings = field(default_factory=dict)

    @property
    def pretrained(self) -> str | None:
        value: str | None = self.settings.get("model", {}).get("pretrained")
        return value


@dataclass(frozen=True)
class Variant:
    """A way to read the same data. The paper's table shows the first variant of an experiment.

    Args:
        name: the name of the variant in the log; "" for experiments without variants.
        title: the name of the variant in tables.
        seeds: seeds of its runs; if empty, the seeds of the experiment.
        settings: settings of training runs with this variant.
    """

    name: str = ""
    title: str = ""
    seeds: tuple[int, ...] = ()
    settings: TrainingSettings = field(default_factory=dict)


@dataclass(frozen=True)
class Experiment:
    """The training runs of a table of accuracies or F-scores.

    Args:
        name, title: name and title of the table.
        short_title: a title for lists, such as "Segmentation".
        task: "pos", "segmentation" or "ner".
        seeds, objectives: one model is trained for each pair of a seed and an objective.
        decoders: every model is evaluated with each decoder.
        corpora, networks, variants: name -> description.
        settings: settings of all training runs.
        objective_settings: family of objectives -> settings of training runs with them.
        longer: if the best epoch of a run is among its last three, a second run has this many times
            as many epochs; None: there is no second run.
        splits: the files to evaluate. A table that only chooses settings leaves out the test file.
        paper: (variant, network, corpus, objective, decoder) -> the paper's number, in percent.
    """

    name: str
    title: str
    short_title: str
    task: str
    seeds: tuple[int, ...]
    objectives: tuple[str, ...]
    decoders: tuple[str, ...]
    corpora: dict[str, CorpusSpec]
    networks: dict[str, NetworkSpec]
    variants: dict[str, Variant]
    settings: TrainingSettings = field(default_factory=dict)
    objective_settings: dict[str, TrainingSettings] = field(default_factory=dict)
    longer: float | None = None
    splits: tuple[str, ...] = ("dev", "test")
    paper: dict[tuple[str, str, str, str, str], float] = field(default_factory=dict)

    @classmethod
    def from_dict(cls, name: str, values: Mapping[str, Any]) -> Experiment:
        """Return the experiment that the values of a TOML file describe; errors name the key."""
        read = TableReader(values, error=ExperimentError)
        corpora = {key: _corpus(key, part) for key, part in read.parts("corpora").items()}
        networks = {key: _network(key, part) for key, part in read.parts("networks").items()}
        variants = {key: _variant(key, part) for key, part in read.parts("variants", {}).items()}
        experiment = cls(
            name,
            read.text("title"),
            read.text("short_title"),
            read.text("task"),
            read.numbers("seeds"),
            read.texts("objectives"),
            _with_iterations(read.texts("decoders"), read.numbers("iterations")),
            corpora,
            networks,
            variants or {"": Variant()},
            read.settings(),
            {
                family: part.settings(end=True)
                for family, part in read.parts("objective_settings", {}).items()
            },
            read.factor("longer"),
            read.texts("splits", ("dev", "test")),
        )
        experiment.paper.update(_paper(experiment, read.tables("paper")))
        read.finish()
        experiment._check()
        return experiment

    def _check(self) -> None:
        if self.splits not in (("dev",), ("dev", "test")):
            raise ExperimentError(
                f"splits must be ['dev'] or ['dev', 'test'], got {list(self.splits)}"
            )
        for objective in self.objectives:
            check_objective(objective)
        for decoder in self.decoders:
            check_decoder(decoder)
        for family in self.objective_settings:
            if family not in {Objective.parse(name).family for name in self.objectives}:
                raise ExperimentError(f"objective_settings: no objective is a {family!r}")
        for spec in self.networks.values():
            if spec.stands_in_for not in (None, *self.networks):
                raise ExperimentError(
                    f"networks.{spec.name}.stands_in_for: unknown network "
                    f"{spec.stands_in_for!r}; expected {', '.join(self.networks)}"
                )
        for corpus in self.corpora.values():
            for network in corpus.networks:
                if network not in self.networks:
                    raise ExperimentError(
                        f"corpora.{corpus.name}.networks: unknown network {network!r}; expected "
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
        overrides: TrainingSettings | None = None,
    ) -> Config:
        """Return the config of a training run; later settings override earlier ones."""
        loss = Objective.parse(objective)
        layers: Sequence[TrainingSettings] = (
            self.settings,
            self.corpora[corpus].settings,
            self.networks[network].settings,
            self.variants[variant].settings,
            self.objective_settings.get(loss.family, {}),
            {
                "data": {"task": self.task, "train": train, "dev": dev},
                "model": {"objective": loss.name, "temperature": loss.temperature},
                # The paper does not calibrate; decoders and scores would be the same.
                "training": {"seed": seed, "calibrate": False},
            },
            overrides or {},
        )
        values: TrainingSettings = {}
        for layer in layers:
            values = deep_merge(values, layer)
        try:
            return Config.from_dict({"output": output, **values})
        except (TypeError, ValueError) as error:
            raise ExperimentError(f"{self.name}, {corpus}, network {network}: {error}") from error


def _with_iterations(names: Sequence[str], iterations: Sequence[int]) -> tuple[str, ...]:
    """Return the names of the decoders, with one name for each iteration count in place of "-K"."""
    found: list[str] = []
    for name in names:
        counts = iterations if "-K" in name else iterations[:1]
        found += [name.replace("-K", f"-{k}") for k in counts]
    return tuple(found)


def _corpus(name: str, read: TableReader) -> CorpusSpec:
    files = {split: read.alternatives(split) for split in SPLITS}
    return CorpusSpec(
        name,
        files,
        read.text_table("editions", {}),
        read.texts("networks", ()),
        read.flag("extra"),
        read.optional_text("not_run"),
        read.settings(end=True),
    )


def _network(name: str, read: TableReader) -> NetworkSpec:
    return NetworkSpec(
        name,
        read.text("title", name),
        read.flag("extra"),
        read.optional_text("not_run"),
        read.optional_text("stands_in_for"),
        read.settings(end=True),
    )


def _variant(name: str, read: TableReader) -> Variant:
    return Variant(
        name, read.text("title", name), read.numbers("seeds", ()), read.settings(end=True)
    )


def _paper(
    experiment: Experiment, tables: Sequence[TableReader]
) -> dict[tuple[str, str, str, str, str], float]:
    numbers = {}
    for read in tables:
        variant = read.text("variant", next(iter(experiment.variants)))
        network, corpora = read.text("network"), read.texts("corpora")
        for corpus in corpora:
            if corpus not in experiment.corpora or network not in experiment.networks:
                where = read.where.rstrip(".")
                raise ExperimentError(
                    f"{where}: this table has no corpus {corpus} with the network {network}"
                )
        for objective, decoder, *values in read.rows("rows", 2 + len(corpora)):
            for corpus, value in zip(corpora, values, strict=True):
                numbers[variant, network, corpus, objective, decoder] = float(value)
        read.finish()
    return numbers
