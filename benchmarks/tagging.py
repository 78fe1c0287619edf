"""Tagging from end to end: tokens per second of the paper's networks under each decoder.

Reading sentences, network, structured inference, repair and results are all within the clock. The
networks are of the paper's size, trained for one epoch on the sample corpora that come with the
library: how long tagging takes hardly depends on what was learned.
"""

from __future__ import annotations

import itertools
import tempfile
from collections.abc import Iterator, Sequence
from dataclasses import dataclass
from functools import partial
from importlib import resources
from pathlib import Path
from typing import Any

from .log import Row
from .timing import Plan, interleave, threads

__all__ = ["NETWORKS", "Network", "tagging"]

DECODERS = ("viterbi", "certified-10", "bregman-10", "bregman-10-relaxed", "mean_field-10")
PROBABILITIES = "viterbi, with probabilities"


@dataclass(frozen=True)
class Network:
    """A network to train and to run.

    Args:
        corpus: of the samples.
        task: as in a config.
        model: settings that differ from the task's own.
        tokens: to tag in a call.
    """

    corpus: str
    task: str
    model: dict[str, Any]
    tokens: int


NETWORKS = {
    "parts of speech, no layers": Network("english", "pos", {}, 10_000),
    "parts of speech, 2 layers, characters": Network(
        "english", "pos", {"layers": 2, "characters": "cnn"}, 2_000
    ),
    "segmentation + parts of speech, no layers": Network("chinese", "segmentation", {}, 10_000),
}


def tagging(
    plan: Plan,
    counts: Sequence[int],
    networks: dict[str, Network] = NETWORKS,
) -> Iterator[Row]:
    """Rows for the log: tokens and seconds by network, decoder and number of threads."""
    for name, network in networks.items():
        with tempfile.TemporaryDirectory() as folder:
            tagger = _trained(network, Path(folder))
        inputs, size = _inputs(tagger, network)
        calls = {d: partial(tagger.tag, inputs, decoder=d) for d in DECODERS}
        calls[PROBABILITIES] = partial(tagger.tag, inputs, True, "viterbi")
        for count in counts:
            with threads(count):
                found = interleave(calls, plan)
            for decoder, timing in found.items():
                if timing.error is not None:
                    raise timing.error
                yield {
                    "network": name,
                    "decoder": decoder,
                    "threads": count,
                    "tokens": size,
                    "sentences": len(inputs),
                    **timing.numbers,
                }


def _sample(network: Network, part: str) -> Any:
    return resources.files("bcrf") / "samples" / f"{network.corpus}-{part}.conllu"


def _trained(network: Network, folder: Path) -> Any:
    from bcrf.tagging import Tagger
    from bcrf.training import Config, train

    config = Config.from_dict(
        {
            "output": str(folder / "model"),
            "data": {
                "task": network.task,
                "train": str(_sample(network, "train")),
                "dev": str(_sample(network, "dev")),
            },
            "model": {"objective": "crf", **network.model},
            "training": {"epochs": 1},
        }
    )
    for _ in train(config):
        pass
    return Tagger.load(config.output)


def _inputs(tagger: Any, network: Network) -> tuple[list[Any], int]:
    """The sentences of the sample, again and again until there are so many tokens."""
    from bcrf.data import read

    found, size = [], 0
    for sentence in itertools.cycle(list(read(str(_sample(network, "train"))))):
        found.append(sentence)
        size += len(tagger.task.example(sentence))
        if size >= network.tokens:
            return found, size
    raise ValueError("the sample is empty")
