"""Measure the tokens per second of `Tagger.tag` for each decoder, with the paper's network sizes.

The time includes reading sentences, the network, inference, repair and building the results. The
networks are trained for one epoch only, on the sample corpora of the library, because the time of
tagging hardly depends on what a network has learned.
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

from measurement.timer import SamplingPlan, interleave, torch_threads

from .log import Row

__all__ = ["NETWORKS", "TaggingNetwork", "tagging"]

DECODERS = ("viterbi", "certified-10", "bregman-10", "bregman-10-relaxed", "mean_field-10")
PROBABILITIES = "viterbi, with probabilities"


@dataclass(frozen=True)
class TaggingNetwork:
    """A network to train and to time.

    Args:
        corpus: name of a sample corpus.
        task: as in a training config.
        model: model settings that differ from those of the task.
        tokens: minimum number of tokens in a timed call.
    """

    corpus: str
    task: str
    model: dict[str, Any]
    tokens: int


NETWORKS = {
    "parts of speech, no layers": TaggingNetwork("english", "pos", {"layers": 0}, 10_000),
    "parts of speech, 2 layers, characters": TaggingNetwork(
        "english", "pos", {"layers": 2, "characters": "cnn"}, 2_000
    ),
    "segmentation + parts of speech, no layers": TaggingNetwork(
        "chinese", "segmentation", {"layers": 0}, 10_000
    ),
}


def tagging(
    plan: SamplingPlan,
    counts: Sequence[int],
    networks: dict[str, TaggingNetwork] = NETWORKS,
) -> Iterator[Row]:
    """Yield a row with tokens and seconds for each network, number of threads and decoder."""
    for name, network in networks.items():
        with tempfile.TemporaryDirectory() as folder:
            tagger = _trained(network, Path(folder))
        inputs, size = _inputs(tagger, network)
        calls = {d: partial(tagger.tag, inputs, decoder=d) for d in DECODERS}
        calls[PROBABILITIES] = partial(tagger.tag, inputs, True, "viterbi")
        for count in counts:
            with torch_threads(count):
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


def _sample(network: TaggingNetwork, part: str) -> Any:
    return resources.files("bcrf") / "samples" / f"{network.corpus}-{part}.conllu"


def _trained(network: TaggingNetwork, folder: Path) -> Any:
    from bcrf.tagger import Tagger
    from bcrf.tagger.training import Config, train

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


def _inputs(tagger: Any, network: TaggingNetwork) -> tuple[list[Any], int]:
    """Return sentences of the sample, repeated until there are enough, and their token count."""
    from bcrf.tagger.data import read

    found, size = [], 0
    for sentence in itertools.cycle(list(read(str(_sample(network, "train"))))):
        found.append(sentence)
        size += len(tagger.task.example(sentence))
        if size >= network.tokens:
            return found, size
    raise ValueError("the sample is empty")
