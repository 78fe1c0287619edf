"""Named tensors in files, in the safetensors format: no code can hide in them."""

from __future__ import annotations

from collections.abc import Mapping
from pathlib import Path
from typing import Any, NamedTuple

from torch import Tensor

from .errors import ModelError

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


def tensor_infos(path: Path) -> dict[str, TensorInfo]:
    """Types and shapes of the tensors of such a file; only its header is read.

    Raises:
        ModelError: the file is no safetensors file, or not as long as its header says.
    """
    library = _safetensors()
    try:
        with library.safe_open(path, framework="pt") as file:
            slices = {name: file.get_slice(name) for name in file.keys()}  # noqa: SIM118
            return {
                name: TensorInfo(part.get_dtype(), tuple(part.get_shape()))
                for name, part in slices.items()
            }
    except library.SafetensorError as error:
        raise _damaged(path, error) from error


def _damaged(path: Path, error: Exception) -> ModelError:
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
