"""Upper limits for the files of a model.

Without limits, a small file could cause a year of computation, or need a terabyte of memory. The
sizes of layers need no limit of their own, since they must agree with the weights. Training checks
the same limits, so that every trained model can be loaded. Other calls from Python are not limited.
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
"""Size of `model.json`, which holds the vocabularies: about two million words. Parsed JSON takes up
to 25 times the memory of its text."""

MAX_WEIGHTS_BYTES = 16 << 30
"""Size of a safetensors file: about four billion float32 weights."""

MAX_ENCODER_FILE_BYTES = 64 << 20
"""Size of one file of a pretrained encoder; tokenizers of large multilingual ones have 20 MB."""

MAX_ENCODER_FILES = 32
"""Number of files of a pretrained encoder."""

MAX_ENCODER_NUMBER = 1 << 20
"""Largest integer in the configuration of a pretrained encoder. The largest ones in use are sizes
of vocabularies, about 250,000."""

MAX_LABELS = 4096
"""Number of labels of a task; a structure has an entry for every pair of labels."""

MAX_LAYERS = 256
"""Number of self-attentive layers, and of layers of a context encoder."""

MAX_ITERATIONS = 10_000
"""Number of iterations in the name of an objective or decoder, such as `bregman-10`."""


def check_labels(labels: object) -> None:
    """Raise if `labels` is a list with more than `MAX_LABELS` entries."""
    if isinstance(labels, list) and len(labels) > MAX_LABELS:
        raise ValueError(
            f"labels: found {len(labels)} labels; a model may have at most {MAX_LABELS}"
        )


def check_network(config: ModelConfig) -> None:
    """Raise if a network has too many layers, or its objective too many iterations."""
    for name in ("layers", "context_layers"):
        layers = getattr(config, name)
        if layers > MAX_LAYERS:
            raise ValueError(
                f"model.{name}: found {layers} layers; a model may have at most {MAX_LAYERS}"
            )
    check_methods(objective=config.objective)


def check_weights_size(weights: Iterable[Tensor]) -> None:
    """Raise if a file with these weights would be too large; they may be meta tensors."""
    size = sum(tensor.numel() * tensor.element_size() for tensor in weights)
    if size > MAX_WEIGHTS_BYTES:
        raise ValueError(
            f"the network has weights of {size:,} bytes; a model may have at most "
            f"{MAX_WEIGHTS_BYTES:,}. Lower model.width, model.hidden or model.score_width"
        )


def check_methods(**names: str) -> None:
    """Raise if an objective or decoder has too many iterations."""
    for what, name in names.items():
        iterations = named_iterations(name)
        if iterations > MAX_ITERATIONS:
            raise ValueError(
                f"{what} {name!r} has {iterations} iterations; a model may have at most "
                f"{MAX_ITERATIONS}"
            )
