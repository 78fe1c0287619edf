"""Count the kernels that a GPU would launch, and find the places where the host would wait for it.

    with LaunchCounter() as counter:
        bcrf.loss(...)
    counter.launches, counter.synchronisations

The counter sees every operation that torch dispatches on any device, also in a backward pass.
Most operations launch one kernel. Views, empty tensors and metadata launch none. `COMPOSITE` lists
the operations that launch several kernels on CUDA.
"""

from __future__ import annotations

from collections import Counter
from typing import Any

import torch
from torch.utils._python_dispatch import TorchDispatchMode
from torch.utils._pytree import tree_leaves

__all__ = ["COMPOSITE", "LaunchCounter", "SynchronisationError"]

# Operations that launch nothing, besides views.
_FREE = {
    "_has_compatible_shallow_copy_type",
    "_unsafe_view",
    "alias",
    "detach",
    "empty",
    "empty_like",
    "empty_strided",
    "lift_fresh",
    "new_empty",
    "new_empty_strided",
    "resize_",
    "set_",
    "sym_size",
}

COMPOSITE = {
    # amax, abs, == inf, masked_fill, then sub, exp, sum, log and add
    "logsumexp": 9,
    "cat": 1,
    "stack": 1,
    "aminmax": 1,
    "index_put_": 1,
    "index_put": 2,  # a copy first
    "index_add": 2,
    "scatter_add": 2,
    "scatter": 2,
    "index_copy": 2,
    "masked_fill": 2,
    "embedding_dense_backward": 4,
    "sort": 4,
    "topk": 2,
    "nonzero": 4,
    "cumsum": 1,
    "logcumsumexp": 1,
}
"""Kernels that CUDA launches for one dispatched operation; 1 if an operation is not listed."""

# Operations whose result the host needs before it can go on.
_WAITS = {"_local_scalar_dense", "is_nonzero", "equal", "nonzero", "masked_select", "unique_dim"}


class SynchronisationError(RuntimeError):
    """An operation that makes the host wait for the device."""


class LaunchCounter(TorchDispatchMode):  # type: ignore[no-untyped-call]
    """Context manager that counts the kernels and synchronisations of the operations in its block.

    Args:
        refuse_waiting: raise `SynchronisationError` at operations that make the host wait.

    Attributes:
        launches: number of kernels.
        synchronisations: number of operations that make the host wait.
        by_name: number of kernels of each operation.
        bytes: bytes that these operations read and write, once for each operation.
    """

    def __init__(self, refuse_waiting: bool = False) -> None:
        super().__init__()  # type: ignore[no-untyped-call]
        self.refuse_waiting = refuse_waiting
        self.launches = 0
        self.synchronisations = 0
        self.by_name: Counter[str] = Counter()
        self.bytes = 0

    def __torch_dispatch__(self, func: Any, types: Any, args: Any = (), kwargs: Any = None) -> Any:
        kwargs = kwargs or {}
        name: str = func.overloadpacket.__name__
        if _waits(name, args, kwargs):
            if self.refuse_waiting:
                raise SynchronisationError(f"{name} makes the host wait for the device")
            self.synchronisations += 1
        result = func(*args, **kwargs)
        if not (func.is_view or name in _FREE):
            launched = _launches(name, args, kwargs, result)
            self.launches += launched
            self.by_name[name] += launched
            if launched:
                tensors = (x for x in tree_leaves((args, kwargs, result)) if _is_tensor(x))
                self.bytes += sum(x.numel() * x.element_size() for x in tensors)
        return result


def _launches(name: str, args: Any, kwargs: Any, result: Any) -> int:
    if name in ("_to_copy", "copy_", "clone"):
        return 1
    if all(not x.numel() for x in tree_leaves(result) if _is_tensor(x)):
        return 0
    return COMPOSITE.get(name, 1)


def _is_tensor(x: object) -> bool:
    return isinstance(x, torch.Tensor)


def _waits(name: str, args: Any, kwargs: Any) -> bool:
    """Whether the operation needs a value on the host: `.item()`, `nonzero`, boolean indexing."""
    if name in _WAITS:
        return True
    if name in ("index", "index_put", "index_put_", "_index_put_impl_"):
        indices = args[1]
        return any(x is not None and x.dtype in (torch.bool, torch.uint8) for x in indices)
    if name in ("repeat_interleave",):
        return kwargs.get("output_size") is None
    if name in ("_to_copy", "copy_"):
        return _moves_to_host(name, args, kwargs)
    return False


def _moves_to_host(name: str, args: Any, kwargs: Any) -> bool:
    """Whether a copy brings data from another device to the CPU.

    Copies from the CPU to a device are not counted, although they wait if memory is not pinned.
    """
    if name == "copy_":
        target, source = args[0].device.type, args[1].device.type
    else:
        source = args[0].device.type
        target = torch.device(kwargs.get("device") or source).type
    return bool(source != target and target == "cpu")
