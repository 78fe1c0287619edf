"""Write and read safetensors files, which hold named tensors and no code."""

from __future__ import annotations

import ctypes
import json
import os
import sys
from collections.abc import Mapping
from pathlib import Path
from typing import Any, BinaryIO, NamedTuple

import torch
from torch import Tensor

from .limits import MAX_DESCRIPTION_BYTES, MAX_WEIGHTS_BYTES
from .model_files import ModelError, open_model_file, parse_json

__all__ = ["DTYPES", "TensorInfo", "load_tensors", "save_tensors", "tensor_infos"]


class TensorInfo(NamedTuple):
    """The type (such as "F32") and the shape of a tensor in a safetensors file."""

    dtype: str
    shape: tuple[int, ...]


# Names of the types in a safetensors file, which stores tensors in this order of their types.
DTYPES = {
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
    """Write a safetensors file with the same bytes that the package safetensors would write.

    We do not use the writer of that package for three reasons. It needs a second copy of all
    tensors in memory. It creates files with the mode 0600, whatever the umask permits. It does not
    report an error of the system as an OSError.
    """
    for name, tensor in tensors.items():
        if tensor.dtype not in DTYPES:
            raise TypeError(f"{name}: tensors of {tensor.dtype} cannot be saved")
    rank = {dtype: number for number, dtype in enumerate(DTYPES)}
    names = sorted(tensors, key=lambda name: (rank[tensors[name].dtype], name))
    header, end = {}, 0
    for name in names:
        start, end = end, end + tensors[name].nbytes
        header[name] = {
            "dtype": DTYPES[tensors[name].dtype],
            "shape": list(tensors[name].shape),
            "data_offsets": [start, end],
        }
    text = json.dumps(header, ensure_ascii=False, separators=(",", ":")).encode()
    text += b" " * (-len(text) % 8)  # so that the elements are aligned
    with path.open("wb") as file:
        file.write(len(text).to_bytes(8, "little") + text)
        for name in names:
            _write(file, tensors[name])


def _write(file: BinaryIO, tensor: Tensor) -> None:
    """Write the elements of a tensor; without a copy if it is contiguous and on the CPU."""
    data = tensor.detach().cpu().contiguous()
    if sys.byteorder == "big":  # the format is little-endian
        data = data.reshape(-1, 1).view(torch.uint8).flip(1).contiguous()
    if data.nbytes:
        file.write((ctypes.c_ubyte * data.nbytes).from_address(data.data_ptr()))


def load_tensors(path: Path) -> dict[str, Tensor]:
    """Return the tensors of a safetensors file, on the CPU.

    Raises:
        ModelError: the file is not a valid safetensors file.
    """
    library = _safetensors()
    try:
        tensors: dict[str, Tensor] = library.torch.load_file(path)
    except library.SafetensorError as error:
        raise _damaged(path, error) from error
    return tensors


def tensor_infos(folder: Path, name: str) -> dict[str, TensorInfo]:
    """Return types and shapes of the tensors of a safetensors file, read from its header.

    Layout of the file: [size of the header, 8 bytes][header, JSON][elements of all tensors].

    The package safetensors maps the whole file into memory before it reads the header. This
    function reads only the header, and checks that the file has the size that the header implies.

    Raises:
        ModelError: the file is not a valid safetensors file.
    """
    path = folder / name
    with open_model_file(folder, name, MAX_WEIGHTS_BYTES) as stream:
        size = int.from_bytes(stream.read(8), "little")
        if size > MAX_DESCRIPTION_BYTES:
            raise _damaged(path, "its header is too long")
        try:
            header = parse_json(path, stream.read(size))
        except ModelError as error:
            raise _damaged(path, "its header is not a JSON object") from error
        length = os.fstat(stream.fileno()).st_size
    header.pop("__metadata__", None)
    try:
        infos = {
            key: TensorInfo(value["dtype"], tuple(value["shape"])) for key, value in header.items()
        }
        end = max((value["data_offsets"][1] for value in header.values()), default=0)
    except (KeyError, IndexError, TypeError) as error:
        raise _damaged(path, "its header is malformed") from error
    if length != 8 + size + end:
        raise _damaged(path, f"it has {length:,} bytes, but its header implies {8 + size + end:,}")
    return infos


def _damaged(path: Path, error: Exception | str) -> ModelError:
    reason = " ".join(str(error).split())
    return ModelError(f"{path}: has been changed since it was written, or damaged: {reason}")


def _safetensors() -> Any:
    try:
        import safetensors.torch
    except ImportError as error:
        raise ImportError(
            "saving and loading models needs the package safetensors: pip install '.[tagger]'"
        ) from error
    return safetensors
