"""Cached properties that work under autograd and in graphs.

In Python 3.10 and 3.11 `functools.cached_property` takes a lock, which `torch.compile` cannot
trace. The properties of this module take no lock.
"""

from __future__ import annotations

from collections.abc import Callable
from typing import Any, Generic, Protocol, TypeVar, overload

import torch

__all__ = ["CachesResults", "cached_property", "cached_result"]

T = TypeVar("T")


class cached_property(Generic[T]):
    """A property that is computed when it is first read, and then stored in the instance."""

    def __init__(self, function: Callable[[Any], T]) -> None:
        self.function = function
        self.__doc__ = function.__doc__

    @overload
    def __get__(self, instance: None, owner: type) -> cached_property[T]: ...

    @overload
    def __get__(self, instance: object, owner: type) -> T: ...

    def __get__(self, instance: object | None, owner: type) -> cached_property[T] | T:
        if instance is None:
            return self
        name = self.function.__name__
        if name in instance.__dict__:
            found: T = instance.__dict__[name]
            return found
        value = self.function(instance)
        setattr(instance, name, value)
        return value


class CachesResults(Protocol):
    """What `cached_result` needs of an instance.

    Attributes:
        _graph_results: the results that were computed in a graph. In a graph, `torch.compile` of
            torch 2.13 loses an attribute that is set after a loop (`control_flow.loop`), but not an
            entry of a dict that existed before the loop.
    """

    _graph_results: dict[str, Any]

    @property
    def requires_grad(self) -> bool:
        """Whether the results have gradients."""
        ...


class cached_result(Generic[T]):
    """A cached property whose value may have a gradient.

    A value that is computed under `no_grad` has no gradient. If the instance `requires_grad`, such
    a value is not stored: a later reader may need the gradient.
    """

    def __init__(self, function: Callable[[Any], T]) -> None:
        self.function = function
        self.__doc__ = function.__doc__
        self.__isabstractmethod__ = getattr(function, "__isabstractmethod__", False)

    @overload
    def __get__(self, instance: None, owner: type) -> cached_result[T]: ...

    @overload
    def __get__(self, instance: CachesResults, owner: type) -> T: ...

    def __get__(self, instance: CachesResults | None, owner: type) -> cached_result[T] | T:
        if instance is None:
            return self
        name, in_graph = self.function.__name__, torch.compiler.is_compiling()
        stored = instance._graph_results if in_graph else instance.__dict__
        if name in stored:
            found: T = stored[name]
            return found
        value = self.function(instance)
        if torch.is_grad_enabled() or not instance.requires_grad:
            if in_graph:
                instance._graph_results[name] = value
            else:
                setattr(instance, name, value)
        return value
