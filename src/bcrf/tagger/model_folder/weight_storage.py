"""Store the weights of a model in fewer bytes: half precision, or integers of 8 bits.

The network computes with float32 all the same: weights are expanded when they are loaded. With
"int8", each row of a matrix has a scale of its own,

    W[r, c] is about scale[r] * q[r, c],    scale[r] = max_c |W[r, c]| / 127,    q integer.

A table of embeddings keeps its precision best in this way, because each of its rows is scaled for
itself. Vectors and small matrices (biases, transition scores) stay as they are: they need few
bytes, and much depends on them.
"""

from __future__ import annotations

from collections.abc import Mapping
from typing import Literal, get_args

import torch
from torch import Tensor

from .tensors import DTYPES, TensorInfo

__all__ = ["WeightStorage", "check_storage", "compress", "expand", "stored_infos"]

WeightStorage = Literal["float32", "float16", "int8"]
"""How the large weights of a model are stored."""

_LEAST_ELEMENTS = 50_000  # smaller weights need few bytes, and stay as they are
_LARGEST = 127  # of int8, with either sign

# Appended to the name of a weight; names in torch have no slash.
_SCALE = "/scale"


def check_storage(storage: object) -> None:
    """Raise ValueError unless `storage` is the name of a storage."""
    if storage not in get_args(WeightStorage):
        names = ", ".join(map(repr, get_args(WeightStorage)))
        raise ValueError(f"storage must be one of {names}; got {storage!r:.60}")


def compress(weights: Mapping[str, Tensor], storage: WeightStorage) -> dict[str, Tensor]:
    """Return the tensors to store; with "int8" there are two of them for a large matrix.

    Raises:
        ValueError: a weight is not finite, or too large for half precision.

    Example:
        >>> import torch
        >>> from bcrf.tagger.model_folder.weight_storage import compress, expand
        >>> table = torch.randn(1000, 64)
        >>> stored = compress({"table": table}, "int8")
        >>> {name: (str(tensor.dtype), list(tensor.shape)) for name, tensor in stored.items()}
        {'table': ('torch.int8', [1000, 64]), 'table/scale': ('torch.float32', [1000])}
        >>> bool((expand(stored)["table"] - table).abs().max() < 0.02)
        True
    """
    check_storage(storage)
    stored: dict[str, Tensor] = {}
    for name, weight in weights.items():
        if storage == "float32" or not _is_compressed(weight):
            stored[name] = weight
        elif storage == "float16":
            half = weight.to(torch.float16)
            if not half.isfinite().all():
                raise ValueError(f"{name}: a weight does not fit into half precision")
            stored[name] = half
        else:
            stored[name], stored[name + _SCALE] = _quantize(name, weight)
    return stored


def expand(stored: Mapping[str, Tensor]) -> dict[str, Tensor]:
    """Return the weights from the tensors that `compress` returned, in float32."""
    weights = {}
    for name, tensor in stored.items():
        scale = stored.get(name + _SCALE)
        if scale is not None:
            weights[name] = tensor.to(torch.float32) * _column(scale, tensor)
        elif not name.endswith(_SCALE):
            weights[name] = tensor.to(torch.float32) if tensor.dtype == torch.float16 else tensor
    return weights


def stored_infos(weights: Mapping[str, Tensor], storage: WeightStorage) -> dict[str, TensorInfo]:
    """Return types and shapes of the tensors to store, for weights that may be meta tensors."""
    infos = {}
    for name, weight in weights.items():
        dtype, shape = DTYPES.get(weight.dtype, str(weight.dtype)), tuple(weight.shape)
        if storage != "float32" and _is_compressed(weight):
            dtype = {"float16": "F16", "int8": "I8"}[storage]
            if storage == "int8":
                infos[name + _SCALE] = TensorInfo("F32", shape[:1])
        infos[name] = TensorInfo(dtype, shape)
    return infos


def _is_compressed(weight: Tensor) -> bool:
    is_large_matrix = weight.dim() >= 2 and weight.numel() >= _LEAST_ELEMENTS
    return is_large_matrix and weight.dtype == torch.float32


def _quantize(name: str, weight: Tensor) -> tuple[Tensor, Tensor]:
    """Return the integers q and the scale of each row."""
    if not weight.isfinite().all():
        raise ValueError(f"{name}: a weight is NaN or infinite")
    scale = weight.flatten(1).abs().amax(1) / _LARGEST
    # A row of zeros, or of numbers so small that their scale is zero, is stored as zeros.
    divisor = torch.where(scale > 0, scale, torch.ones_like(scale))
    q = (weight / _column(divisor, weight)).round().clamp(-_LARGEST, _LARGEST)
    return q.to(torch.int8), scale


def _column(scale: Tensor, weight: Tensor) -> Tensor:
    """Return the scales of the rows in a shape that fits the weight."""
    return scale.reshape(-1, *[1] * (weight.dim() - 1))
