"""Named tensors in files, in the safetensors format: no code can hide in them."""

from __future__ import annotations

from collections.abc import Mapping
from pathlib import Path
from typing import Any

from torch import Tensor

__all__ = ["load_tensors", "save_tensors"]


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
    _safetensors().save_file(separate, path)


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
