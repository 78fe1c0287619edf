"""A cached property that works under autograd and in graphs.

In Python 3.10 and 3.11 `functools.cached_property` takes a lock, which `torch.compile` cannot
trace. The property of this module takes no lock.
"""

from __future__ import annotations

from collections.abc import Callable
from typing import Any, Generic, TypeVar, overload

import torch

__all__ = ["cached_property"]

T = TypeVar("T")


class cached_property(Generic[T]):
    """A property that is computed when it is first read, and then stored in the instance.

    In a graph the value is stored in the dict `_cache` of the instance, if there is one. A value
    that is computed under `no_grad` has no gradient. If the instance `requires_grad`, such a value
    is not stored: a later reader may need the gradient.
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
        name, stored = self.function.__name__, _storage(instance)
        if name in stored:
            found: T = stored[name]
            return found
        value = self.function(instance)
        if torch.is_grad_enabled() or not getattr(instance, "requires_grad", False):
            _store(instance, name, value)
        return value


def _uses_cache_dict(instance: object) -> bool:
    """Whether values are stored in the dict `_cache` of the instance.

    In a graph, `torch.compile` of torch 2.13 loses an attribute that is set after a loop
    (`control_flow.loop`), but not an entry of a dict that existed before the loop.
    """
    return torch.compiler.is_compiling() and hasattr(instance, "_cache")


def _storage(instance: Any) -> dict[str, Any]:
    stored: dict[str, Any] = instance._cache if _uses_cache_dict(instance) else instance.__dict__
    return stored


def _store(instance: Any, name: str, value: object) -> None:
    if _uses_cache_dict(instance):
        instance._cache[name] = value
    else:
        setattr(instance, name, value)
