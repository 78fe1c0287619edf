"""Upper limits of what the files of a model may ask for.

They keep a small file from asking for a year of work or a terabyte of memory. Sizes of layers need
no limit of their own: they must agree with the weights. Training keeps to the same limits, because
what it saves has to be read again; other calls from Python are not limited.
"""

from __future__ import annotations

from collections.abc import Iterable

from torch import Tensor

from ..nn import ModelConfig, named_iterations

__all__ = [
    "MAX_DESCRIPTION_BYTES",
    "MAX_ENCODER_FILES",
    "MAX_ENCODER_FILE_BYTES",
    "MAX_ENCODER_NUMBER",
    "MAX_ITERATIONS",
    "MAX_LABELS",
    "MAX_LAYERS",
    "MAX_WEIGHTS_BYTES",
    "check_labels",
    "check_methods",
    "check_network",
    "check_weights_size",
]

MAX_DESCRIPTION_BYTES = 32 << 20
"""Of `model.json`, which holds the vocabularies: some two million words. Parsed JSON takes up to 25
times the memory of its text."""

MAX_WEIGHTS_BYTES = 16 << 30
"""Of a safetensors file: four thousand million float32 weights."""

MAX_ENCODER_FILE_BYTES = 64 << 20
"""Of one file of a pretrained encoder; the tokenizers of large multilingual encoders take 20 MB."""

MAX_ENCODER_FILES = 32
"""Files of a pretrained encoder."""

MAX_ENCODER_NUMBER = 1 << 20
"""Of every integer in the configuration of a pretrained encoder. The largest in use are sizes of
vocabularies, some 250,000."""

MAX_LABELS = 4096
"""Labels of a task: a structure compares every pair of them."""

MAX_LAYERS = 256
"""Self-attentive layers."""

MAX_ITERATIONS = 10_000
"""Iterations in the name of an objective or decoder, such as `bregman-10`."""


def check_labels(labels: object) -> None:
    """Raise unless `labels` is a list of at most `MAX_LABELS`."""
    if isinstance(labels, list) and len(labels) > MAX_LABELS:
        raise ValueError(f"labels: found {len(labels)}; a model may have at most {MAX_LABELS}")


def check_network(config: ModelConfig) -> None:
    """Raise if a network has more layers, or an objective more iterations, than a file may ask."""
    if config.layers > MAX_LAYERS:
        raise ValueError(f"layers: found {config.layers}; a model may have at most {MAX_LAYERS}")
    check_methods(objective=config.objective)


def check_weights_size(weights: Iterable[Tensor]) -> None:
    """Raise if a file of these weights, which may have no memory, would be too long to be read."""
    size = sum(tensor.numel() * tensor.element_size() for tensor in weights)
    if size > MAX_WEIGHTS_BYTES:
        raise ValueError(
            f"the network has weights of {size:,} bytes; a model may have at most "
            f"{MAX_WEIGHTS_BYTES:,}. Choose a smaller width, hidden or score_width"
        )


def check_methods(**names: str) -> None:
    """Raise if an objective or decoder has more iterations than a file may ask for."""
    for what, name in names.items():
        iterations = named_iterations(name)
        if iterations > MAX_ITERATIONS:
            raise ValueError(
                f"{what} {name!r}: {iterations} iterations; a model may ask for at most "
                f"{MAX_ITERATIONS}"
            )
