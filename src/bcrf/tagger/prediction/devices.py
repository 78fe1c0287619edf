"""The device of a network."""

from __future__ import annotations

import torch

__all__ = ["choose_device"]


def choose_device(name: str) -> torch.device:
    """Return the device of that name; "auto" is a GPU with CUDA if there is one, else the CPU.

    Example:
        >>> from bcrf.tagger import choose_device
        >>> choose_device("cpu")
        device(type='cpu')
    """
    if not isinstance(name, str):
        raise TypeError(f"device must be a string, got {name!r}")
    if name == "auto":
        return torch.device("cuda" if torch.cuda.is_available() else "cpu")
    try:
        device = torch.device(name)
    except RuntimeError as error:
        raise ValueError(f"device must be auto, cpu, cuda or cuda:N, got {name!r}") from error
    if device.type == "cuda" and not torch.cuda.is_available():
        raise ValueError(f"device is {name!r}, but torch finds no GPU with CUDA; use auto or cpu")
    return device
