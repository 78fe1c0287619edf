"""Attributes that are computed when they are first read.

Like `functools.cached_property`, without its lock, which Python 3.10 and 3.11 take and which
`torch.compile` cannot trace; and with autograd in mind.
"""

from __future__ import annotations

from collections.abc import Callable
from typing import Any, Generic, TypeVar, overload

import torch

__all__ = ["cached_property"]

T = TypeVar("T")


class cached_property(Generic[T]):
    """Computed when first read, then kept in the instance's `__dict__` (frozen dataclasses too),
    or in a graph in its dict `_kept`, if it has one.

    What is read under `no_grad` has no graph. If the instance says that it `requires_grad`, such a
    value is returned but not kept: it would cut the gradient of whoever reads it later.
    """

    def __init__(self, function: Callable[[Any], T]) -> None:
        self.function = function
        self.__doc__ = function.__doc__
        self.__isabstractmethod__ = getattr(function, "__isabstractmethod__", False)

    @overload
    def __get__(self, instance: None, owner: type) -> cached_property[T]: ...

    @overload
    def __get__(self, instance: object, owner: type) -> T: ...

    def __get__(self, instance: object | None, owner: type) -> cached_property[T] | T:
        if instance is None:
            return self
        name, kept = self.function.__name__, _kept(instance)
        if name in kept:
            found: T = kept[name]
            return found
        value = self.function(instance)
        if torch.is_grad_enabled() or not getattr(instance, "requires_grad", False):
            _keep(instance, name, value)
        return value


def _in_own_dict(instance: object) -> bool:
    """Whether values are kept in the dict `_kept`: in a graph, `torch.compile` (2.13) forgets an
    attribute that is set after a loop (`loops`), but not an entry of a dict that the instance had
    before."""
    return torch.compiler.is_compiling() and hasattr(instance, "_kept")


def _kept(instance: Any) -> dict[str, Any]:
    kept: dict[str, Any] = instance._kept if _in_own_dict(instance) else instance.__dict__
    return kept


def _keep(instance: Any, name: str, value: object) -> None:
    if _in_own_dict(instance):
        instance._kept[name] = value
    else:
        # Not in `__dict__`: torch.compile of torch 2.8 cannot write there if the class is frozen.
        object.__setattr__(instance, name, value)
