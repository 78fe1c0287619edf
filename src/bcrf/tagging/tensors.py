"""Named tensors in files, in the safetensors format: no code can hide in them."""

from __future__ import annotations

import ctypes
import json
import sys
from collections.abc import Mapping
from pathlib import Path
from typing import Any, BinaryIO

import torch
from torch import Tensor

__all__ = ["load_tensors", "save_tensors"]

# Names of the format, in the order in which it stores tensors: by the size of their elements.
_DTYPES = {
    torch.int64: "I64",
    torch.float64: "F64",
    torch.float32: "F32",
    torch.int32: "I32",
    torch.bfloat16: "BF16",
    torch.float16: "F16",
    torch.int16: "I16",
    torch.int8: "I8",
    torch.uint8: "U8",
    torch.bool: "BOOL",
}


def save_tensors(path: Path, tensors: Mapping[str, Tensor]) -> None:
    """Write a file of these tensors, byte by byte what the package safetensors would write.

    Unlike that package, we need no second copy of the tensors, the file gets the permissions that
    the umask asks for, and a failure of the system is an OSError.
    """
    for name, tensor in tensors.items():
        if tensor.dtype not in _DTYPES:
            raise TypeError(f"{name}: tensors of {tensor.dtype} cannot be saved")
    rank = {dtype: number for number, dtype in enumerate(_DTYPES)}
    names = sorted(tensors, key=lambda name: (rank[tensors[name].dtype], name))
    header, end = {}, 0
    for name in names:
        start, end = end, end + tensors[name].nbytes
        header[name] = {
            "dtype": _DTYPES[tensors[name].dtype],
            "shape": list(tensors[name].shape),
            "data_offsets": [start, end],
        }
    text = json.dumps(header, ensure_ascii=False, separators=(",", ":")).encode()
    text += b" " * (-len(text) % 8)  # so that the numbers are aligned
    with path.open("wb") as file:
        file.write(len(text).to_bytes(8, "little") + text)
        for name in names:
            _write(file, tensors[name])


def _write(file: BinaryIO, tensor: Tensor) -> None:
    """Write the numbers of a tensor, without a copy if it is contiguous and on the CPU."""
    data = tensor.detach().cpu().contiguous()
    if sys.byteorder == "big":  # the format is little-endian
        data = data.reshape(-1, 1).view(torch.uint8).flip(1).contiguous()
    if data.nbytes:
        file.write((ctypes.c_ubyte * data.nbytes).from_address(data.data_ptr()))


def load_tensors(path: Path) -> dict[str, Tensor]:
    """The tensors of such a file, on the CPU."""
    tensors: dict[str, Tensor] = _safetensors().load_file(path)
    return tensors


def _safetensors() -> Any:
    try:
        import safetensors.torch
    except ImportError as error:
        raise ImportError(
            "models are kept in safetensors files; that package is missing: "
            "pip install 'bcrf[tagger]'"
        ) from error
    return safetensors.torch
