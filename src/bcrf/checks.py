"""Checks of arguments, and `set_checks`, which decides whether tensor values are checked.

Reading a value from a tensor makes the host wait for a GPU, and breaks a compiled graph. By default
the library therefore looks for NaN, sentences without a path and tags out of range in eager mode on
the CPU only. `set_checks` changes this.
"""

from __future__ import annotations

import math
import operator
from collections.abc import Iterable, Sequence
from numbers import Real
from types import TracebackType
from typing import Literal, NamedTuple, SupportsIndex

import torch
from torch import Tensor

from .compat.private_torch import in_vmap

__all__ = [
    "NO_TEMPERATURE",
    "Defect",
    "check_allowed",
    "check_count",
    "check_number",
    "check_shapes",
    "check_tags",
    "check_temperature",
    "checked_lengths",
    "checks_enabled",
    "sentence_index",
    "set_checks",
    "tag_out_of_range",
    "target_dtype",
    "values_readable",
    "working_scores",
]

_setting: bool | None = None


class set_checks:
    """Turn the checks that read values on (True), off (False) or back to automatic (None).

    The call takes effect at once. Used as a context manager, it restores the previous setting on
    exit. Automatic means on in eager mode on the CPU, and off on other devices and in graphs.

    Example:
        >>> import torch, bcrf
        >>> chain = bcrf.LinearChain(torch.tensor([[[0.0, float("nan")]]]))
        >>> bcrf.ForwardBackward()(chain).value  # doctest: +ELLIPSIS
        Traceback (most recent call last):
        ValueError: sentence 0, position 0: the score of tag 1 is nan; ...
        >>> with bcrf.set_checks(False):
        ...     bcrf.ForwardBackward()(chain).value
        tensor([nan])
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


def values_readable(x: Tensor) -> bool:
    """Whether Python can read values of `x` without a cost: eager mode, CPU, plain tensor."""
    return (
        not torch.compiler.is_compiling()
        and x.is_cpu
        and type(x) in (Tensor, torch.nn.Parameter)
        and not in_vmap()
    )


def checks_enabled(x: Tensor) -> bool:
    """Whether the checks that read values should run on `x`."""
    return values_readable(x) if _setting is None else _setting


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


NO_TEMPERATURE = 1
"""The temperature that changes nothing.

It is an int. With dynamic shapes, torch.compile makes a float that is the default of an argument,
or an attribute of a module, an input of the graph. It then finds that the graph depends on the
value, and traces the function a second time.
"""


def check_temperature(tau: float | Tensor) -> float | Tensor:
    """Return `tau`, with a tensor reshaped to a scalar; raise unless it is one positive number."""
    if isinstance(tau, Tensor):
        if tau.numel() != 1:
            raise ValueError(f"temperature must be one number, got {list(tau.shape)}")
        tau = tau.reshape(())
    else:
        check_number("temperature", tau)
    number = tau.detach() if isinstance(tau, Tensor) else tau
    readable = not isinstance(tau, Tensor) or checks_enabled(tau)
    if readable and not 0 < float(number) < math.inf:
        raise ValueError(f"temperature must be positive and finite, got {tau!r}")
    return tau


# The tensors of a chain

# The dtypes that scores are kept in.
_WORKING_DTYPES = (torch.float32, torch.float64)


def working_scores(
    unary: Tensor, transitions: Tensor | None
) -> tuple[Tensor, Tensor | None, torch.dtype]:
    """Return unary and transition scores in float32 or float64, and the caller's common dtype."""
    if not isinstance(unary, Tensor):
        raise TypeError(f"unary must be a tensor, got {type(unary).__name__}")
    dtype = unary.dtype
    if not dtype.is_floating_point:
        raise TypeError(f"unary must be floating point, got {dtype}")
    if transitions is not None:
        if not isinstance(transitions, Tensor):
            raise TypeError(f"transitions must be a tensor, got {type(transitions).__name__}")
        if not transitions.is_floating_point():
            raise TypeError(f"transitions must be floating point, got {transitions.dtype}")
        if transitions.device != unary.device:
            raise ValueError(f"unary is on {unary.device}, transitions on {transitions.device}")
    if dtype in _WORKING_DTYPES and (transitions is None or transitions.dtype is dtype):
        return unary, transitions, dtype  # the usual case: nothing to convert
    if transitions is not None:
        dtype = torch.promote_types(dtype, transitions.dtype)
    working = torch.promote_types(dtype, torch.float32)
    return unary.to(working), None if transitions is None else transitions.to(working), dtype


def check_allowed(allowed: Tensor, shape: Sequence[int], axes: str = "[B, n, T]") -> None:
    """Raise unless `allowed` is a bool tensor of this shape; `axes` names its axes in the error."""
    if not isinstance(allowed, Tensor) or allowed.dtype != torch.bool:
        kind = allowed.dtype if isinstance(allowed, Tensor) else type(allowed).__name__
        raise TypeError(f"allowed must be a bool tensor, got {kind}")
    if allowed.shape != shape:
        raise ValueError(f"allowed must be {axes} = {list(shape)}, got {list(allowed.shape)}")


def check_tags(tags: Tensor, shape: Sequence[int]) -> None:
    """Raise unless `tags` is an integer tensor whose last two axes have this shape, [B, n]."""
    if not isinstance(tags, Tensor):
        raise TypeError(f"tags must be a tensor, got {type(tags).__name__}")
    if tags.shape[-2:] != shape:
        raise ValueError(f"tags must be [..., B, n] = {list(shape)}, got {list(tags.shape)}")
    if tags.dtype == torch.bool or tags.is_floating_point() or tags.is_complex():
        raise TypeError(f"tags must be integers, got {tags.dtype}")


def sentence_index(
    index: SupportsIndex | slice | list[int] | Tensor, size: int
) -> slice | list[int] | Tensor:
    """Return an index of sentences of a batch of `size`; an int becomes a slice of one sentence."""
    if isinstance(index, Tensor) and not index.dim() and index.dtype != torch.bool:
        index = int(index)
    elif hasattr(index, "__index__") and not isinstance(index, bool | Tensor):
        index = operator.index(index)
    if isinstance(index, int) and not isinstance(index, bool):
        if not -size <= index < size:
            raise IndexError(f"there is no sentence {index} in a batch of {size}")
        index %= size
        index = slice(index, index + 1)
    if not isinstance(index, slice | list | Tensor):
        raise TypeError(f"sentences are chosen by int, slice, list or tensor, not {index!r}")
    return index


def target_dtype(dtype: torch.dtype, arguments: Iterable[object]) -> torch.dtype:
    """Return the dtype of scores of `dtype` after `Tensor.to` with these arguments."""
    for argument in arguments:
        if isinstance(argument, torch.dtype):
            dtype = argument
        elif isinstance(argument, Tensor):
            dtype = argument.dtype
    if not dtype.is_floating_point:
        raise TypeError(f"a chain holds floating point scores, not {dtype}")
    return dtype


def check_shapes(unary: Tensor, transitions: Tensor | None) -> None:
    """Raise unless `unary` is [B, n, T] and `transitions` is [T, T] or [B, n-1, T, T]."""
    if unary.dim() != 3:
        raise ValueError(f"unary must be [B, n, T], got {list(unary.shape)}")
    batch, n, tags = unary.shape
    if tags == 0:
        raise ValueError("unary must have at least one tag, got T = 0")
    if transitions is None:
        return
    pairs = (batch, max(n - 1, 0), tags, tags)
    # We compare only with the shape of equal rank: torch.compile adds a guard for each comparison.
    if transitions.shape != ((tags, tags) if transitions.dim() == 2 else pairs):
        raise ValueError(
            f"transitions must be [T, T] = {[tags, tags]} or [B, n-1, T, T] = {list(pairs)}, "
            f"got {list(transitions.shape)}"
        )


def checked_lengths(lengths: Tensor | Sequence[int] | None, unary: Tensor) -> Tensor:
    """Return `lengths` as a new int64 tensor [B] on the device of `unary`; None: all n."""
    batch, n, _ = unary.shape
    if lengths is None:
        return torch.full((batch,), n, dtype=torch.int64, device=unary.device)
    if not isinstance(lengths, Tensor):
        try:
            lengths = torch.tensor(lengths, device=unary.device)
        except (TypeError, ValueError, RuntimeError) as error:
            raise TypeError(f"lengths must be integers [B], got {lengths!r}") from error
        if not lengths.numel():
            lengths = lengths.long()  # an empty list has no type
    if lengths.dtype == torch.bool or lengths.is_floating_point() or lengths.is_complex():
        raise TypeError(f"lengths must be integers, got {lengths.dtype}")
    if list(lengths.shape) != [batch]:
        raise ValueError(f"lengths must be [B] = {[batch]}, got {list(lengths.shape)}")
    lengths = lengths.to(unary.device, torch.int64, copy=True)
    if checks_enabled(unary):
        bad = (lengths < 0) | (lengths > n)
        if bool(bad.any()):
            sentence = int(bad.nonzero()[0])
            raise ValueError(
                f"lengths[{sentence}] = {int(lengths[sentence])} is not in 0..n = 0..{n}"
            )
    return lengths


# Defects of the data

DefectKind = Literal[
    "unary score",
    "transition score",
    "tag out of range",
    "start",
    "end",
    "removed tag",
    "removed transition",
    "nothing allowed",
    "allowed tags removed",
    "no path",
]

_NUMBERS = "scores must be finite, or -inf to remove"
_REASONS: dict[DefectKind, str] = {
    "unary score": f"the score of tag {{tag}} is {{value}}; {_NUMBERS} a tag",
    "transition score": (
        f"the transition from tag {{previous_tag}} to tag {{tag}} is {{value}}; "
        f"{_NUMBERS} a transition"
    ),
    "tag out of range": "tag {tag} is not in 0..{value:.0f}",
    "start": "gold tag {tag} may not start a sentence",
    "end": "gold tag {tag} may not end a sentence",
    "removed tag": "gold tag {tag} is removed (-inf) there",
    "removed transition": (
        "gold tag {tag} may not follow tag {previous_tag} of position {previous_position}: this "
        "transition is removed (-inf)"
    ),
    "nothing allowed": "no tag is allowed",
    "allowed tags removed": "every allowed tag is removed (-inf) there",
    "no path": "no path is left: every tag is removed (-inf) there",
}


class Defect(NamedTuple):
    """One error in the data of a problem, and its location.

    Args:
        kind: the kind of error.
        sentence, position: the location; None if the error is in no single sentence or position.
        tag, previous_tag: the tags of the error. A transition goes from `previous_tag` at
            `previous_position` to `tag` at `position`. A str holds a tag and its label.
        value: the bad score. For a tag out of range it is the largest valid tag.
    """

    kind: DefectKind
    sentence: int | None = None
    position: int | None = None
    tag: int | str | None = None
    previous_tag: int | str | None = None
    previous_position: int | None = None
    value: float = math.nan

    @property
    def message(self) -> str:
        """The message of the exception: location and kind of the defect."""
        if self.kind == "no path" and self.position is None:
            return (
                f"sentence {self.sentence} has no path left: every tag sequence uses a removed "
                "(-inf) tag or transition"
            )
        place = "" if self.sentence is None else f"sentence {self.sentence}, "
        place += "" if self.position is None else f"position {self.position}: "
        return place + _REASONS[self.kind].format(**self._asdict())


def tag_out_of_range(index: Tensor, num_tags: int) -> Defect | None:
    """Return the defect of the first entry of `index` [..., B, n] outside 0..T-1, or None."""
    bad = (index < 0) | (index >= num_tags)
    if not bool(bad.any()):
        return None
    where = bad.nonzero()[0].tolist()
    tag = int(index[tuple(where)])
    return Defect("tag out of range", where[-2], where[-1], tag, value=num_tags - 1)
