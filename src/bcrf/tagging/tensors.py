"""Named tensors in files, in the safetensors format: no code can hide in them."""

from __future__ import annotations

import os
from collections.abc import Mapping
from pathlib import Path
from typing import Any, NamedTuple

from torch import Tensor

from .errors import ModelError
from .limits import MAX_DESCRIPTION_BYTES, MAX_WEIGHTS_BYTES
from .regular_files import open_regular, parse_json

__all__ = ["TensorInfo", "load_tensors", "save_tensors", "tensor_infos"]


class TensorInfo(NamedTuple):
    """What the header of a file says of a tensor: its type, such as "F32", and its shape."""

    dtype: str
    shape: tuple[int, ...]


def save_tensors(path: Path, tensors: Mapping[str, Tensor]) -> None:
    """Write a file of these tensors."""
    seen: set[int] = set()
    separate = {}
    for name, tensor in tensors.items():
        tensor = tensor.detach().cpu().contiguous()
        if tensor.numel() and tensor.data_ptr() in seen:
            tensor = tensor.clone()  # two names of one tensor: the format keeps them apart
        seen.add(tensor.data_ptr())
        separate[name] = tensor
    _safetensors().torch.save_file(separate, path)


def load_tensors(path: Path) -> dict[str, Tensor]:
    """The tensors of such a file, on the CPU.

    Raises:
        ModelError: the file is no safetensors file.
    """
    library = _safetensors()
    try:
        tensors: dict[str, Tensor] = library.torch.load_file(path)
    except library.SafetensorError as error:
        raise _damaged(path, error) from error
    return tensors


def tensor_infos(folder: Path, name: str) -> dict[str, TensorInfo]:
    """Types and shapes of the tensors of such a file; only its header is read.

    A safetensors file is the length of the header in eight bytes, the header in JSON, and the
    numbers of all tensors. The library maps the whole file into memory before it looks at the
    header; this function first makes sure that the file is as long as its header says.

    Raises:
        ModelError: the file is no safetensors file, or not as long as its header says.
    """
    path = folder / name
    with open_regular(folder, name, MAX_WEIGHTS_BYTES) as stream:
        size = int.from_bytes(stream.read(8), "little")
        if size > MAX_DESCRIPTION_BYTES:
            raise _damaged(path, "its header is too long")
        try:
            header = parse_json(path, stream.read(size))
        except ModelError as error:
            raise _damaged(path, "its header is no JSON object") from error
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
        raise _damaged(path, f"it has {length:,} bytes, by its header {8 + size + end}")
    return infos


def _damaged(path: Path, error: Exception | str) -> ModelError:
    reason = " ".join(str(error).split())
    return ModelError(f"{path}: has been changed since it was written, or damaged: {reason}")


def _safetensors() -> Any:
    try:
        import safetensors.torch
    except ImportError as error:
        raise ImportError(
            "models are kept in safetensors files; that package is missing: "
            "pip install 'bcrf[tagger]'"
        ) from error
    return safetensors
