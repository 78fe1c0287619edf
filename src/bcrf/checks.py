"""When the library looks at values.

Reading a value makes a GPU wait and breaks a compiled graph. So NaN, sentences without a path and
illegal tags are looked for in eager mode on the CPU only, unless `set_checks` says otherwise.
"""

from __future__ import annotations

import math
from numbers import Real
from types import TracebackType

import torch
from torch import Tensor

from .torch_internals import in_vmap

__all__ = [
    "check_count",
    "check_number",
    "check_sums",
    "check_temperature",
    "checks_enabled",
    "set_checks",
    "values_visible",
]

_setting: bool | None = None


class set_checks:
    """Turn the checks that read values on (True), off (False) or back to automatic (None).

    Takes effect at once; as a context manager it restores the former setting on exit.
    Automatic means: on in eager mode on the CPU, off on other devices and while compiling.
    """

    def __init__(self, enabled: bool | None) -> None:
        global _setting
        if enabled is not None and not isinstance(enabled, bool):
            raise TypeError(f"set_checks takes True, False or None, got {enabled!r}")
        self._before = _setting
        _setting = enabled

    def __enter__(self) -> None:
        return None

    def __exit__(
        self,
        kind: type[BaseException] | None,
        error: BaseException | None,
        trace: TracebackType | None,
    ) -> None:
        global _setting
        _setting = self._before


def values_visible(x: Tensor) -> bool:
    """Whether a branch on the values of `x` is free: eager mode, on the CPU, a real tensor."""
    return (
        not torch.compiler.is_compiling()
        and x.is_cpu
        and type(x) in (Tensor, torch.nn.Parameter)
        and not in_vmap()
    )


def checks_enabled(x: Tensor) -> bool:
    """Whether the checks that read values should run on `x`."""
    return values_visible(x) if _setting is None else _setting


def check_count(name: str, value: object, least: int = 0) -> None:
    """Raise unless the argument `name` is an int of at least `least`."""
    if isinstance(value, bool) or not isinstance(value, int):
        raise TypeError(f"{name} must be an int, got {value!r}")
    if value < least:
        raise ValueError(f"{name} must be at least {least}, got {value}")


def check_number(name: str, value: object) -> None:
    """Raise unless the argument `name` is a number."""
    if isinstance(value, bool) or not isinstance(value, Real):
        raise TypeError(f"{name} must be a number, got {value!r}")


def check_sums(name: str, sums: Tensor) -> Tensor:
    """Return `sums` [B], one sum of scores per sentence; raise if one is infinite or NaN."""
    if checks_enabled(sums):
        bad = ~sums.detach().isfinite()
        if bool(bad.any()):
            sentence = int(bad.nonzero()[0])
            kind = str(sums.dtype).removeprefix("torch.")
            raise ValueError(
                f"sentence {sentence}: the {name} is {float(sums.detach()[sentence])}, because the "
                f"scores are so large that their sum overflows {kind}; divide them, use a wider "
                "dtype, or set the scores of tags and transitions to remove to -inf"
            )
    return sums


def check_temperature(tau: float | Tensor) -> float | Tensor:
    """Raise unless `tau` is one number > 0; a tensor comes back without dimensions."""
    if isinstance(tau, Tensor):
        if tau.numel() != 1:
            raise ValueError(f"temperature must be one number, got {list(tau.shape)}")
        tau = tau.reshape(())
    else:
        check_number("temperature", tau)
    readable = not isinstance(tau, Tensor) or checks_enabled(tau)
    if readable and not 0 < float(tau) < math.inf:
        raise ValueError(f"temperature must be positive and finite, got {tau!r}")
    return tau
