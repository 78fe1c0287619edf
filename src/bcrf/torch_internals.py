"""The private functions of torch that the package uses, each with what happens without it.

Torch may rename or remove them in any release. No other module uses a private name of torch.
"""

from __future__ import annotations

from collections.abc import Callable, Iterable, Sequence
from operator import attrgetter
from typing import Any

import torch
from torch import Tensor
from torch.autograd import forward_ad

__all__ = [
    "HAS_LOOPS",
    "count_derivatives",
    "has_static_value",
    "in_transform",
    "in_vmap",
    "is_legacy_batched",
    "may_be_exporting",
    "missing_probe",
    "observed",
    "register_pytree_node",
    "requires_grad_outside",
    "scan",
    "while_loop",
]

# Control flow in graphs. The operators are prototypes; the package was tested with those of torch
# 2.13 and later. Without them loops are unrolled, and each length has a graph of its own.
# (`torch.__version__` compares numbers, not text: 2.9 is less than 2.13.)
scan: Any
while_loop: Any
try:
    from torch._higher_order_ops.scan import scan
    from torch._higher_order_ops.while_loop import while_loop
except ImportError:
    scan = while_loop = None
HAS_LOOPS = scan is not None and torch.__version__ >= "2.13"


def has_static_value(size: int) -> bool:
    """Whether a size in a graph is one number, not a symbol for all; False if torch cannot tell."""
    # Imported here because it takes long; whoever makes graphs has imported it before.
    from torch.fx.experimental import symbolic_shapes

    test = getattr(symbolic_shapes, "has_static_value", None)
    return test is not None and test(size)


def may_be_exporting() -> bool:
    """Whether the graph that is being made may be one of torch.export; True if torch cannot tell.

    The public `torch.compiler.is_exporting` will not do: under the torch.compile of torch 2.7 and
    2.8 it is always True.
    """
    flag: bool = getattr(torch.compiler, "_is_exporting_flag", True)
    return flag


# Modes, transforms and tracers that have to see every operation. Without one of these probes a
# compiled kernel could hide operations from them, so there are no compiled kernels then.
_PROBES = (
    "_C._len_torch_dispatch_stack",
    "_C._are_functorch_transforms_active",
    "_C._get_tracing_state",
    "_C._functorch.is_legacy_batchedtensor",
    "_C._functorch.get_interpreter_stack",
    "_C._functorch.TransformType",
    "_C._functorch.is_functorch_wrapped_tensor",
    "_C._functorch.get_unwrapped",
    "autograd.forward_ad._current_level",
)


def missing_probe() -> str | None:
    """The name of a probe that torch does not have, or None if it has them all."""
    for name in _PROBES:
        try:
            attrgetter(name)(torch)
        except AttributeError:
            return f"torch.{name}"
    return None


_CANNOT_TELL = missing_probe() is not None


def observed() -> bool:
    """Whether a mode, a transform or a tracer has to see every torch operation; True if torch
    cannot tell."""
    return (
        _CANNOT_TELL
        or torch._C._len_torch_dispatch_stack() > 0
        or torch._C._are_functorch_transforms_active()
        or forward_ad._current_level >= 0
        or torch._C._get_tracing_state() is not None
    )


def is_legacy_batched(x: Tensor) -> bool:
    """Whether `x` is a batch under `torch.autograd.grad(is_grads_batched=True)`."""
    return _CANNOT_TELL or torch._C._functorch.is_legacy_batchedtensor(x)


def in_transform() -> bool:
    """Whether a transform of torch.func runs; False if torch cannot tell."""
    return not _CANNOT_TELL and torch._C._are_functorch_transforms_active()


def in_vmap() -> bool:
    """Whether `torch.func.vmap` runs: one operation then has many values, and no branch."""
    return in_transform() and "Vmap" in _transforms()


def count_derivatives() -> int:
    """How many transforms of torch.func run that take a derivative."""
    return sum(name in ("Grad", "Jvp") for name in _transforms())


def requires_grad_outside(tensors: Iterable[Tensor]) -> bool:
    """Whether one of the tensors that torch.func was given requires a gradient of autograd."""
    return any(_original(x).requires_grad for x in tensors)


def _transforms() -> list[str]:
    """The names of the transforms that run, the outermost first."""
    return [level.key().name for level in torch._C._functorch.get_interpreter_stack() or ()]


def _original(x: Tensor) -> Tensor:
    """The tensor that the outermost transform was given."""
    while torch._C._functorch.is_functorch_wrapped_tensor(x):
        x = torch._C._functorch.get_unwrapped(x)
    return x


def register_pytree_node(
    cls: type,
    names: Sequence[str],
    flatten: Callable[[Any], tuple[list[Any], Any]],
    unflatten: Callable[[Iterable[Any], Any], Any],
    **context: Callable[[Any], Any],
) -> None:
    """Let torch see the leaves of a `cls`, called `names`: objects of that class can then be
    arguments and results of compiled and exported functions. Without a registry they cannot.

    Args:
        flatten: object -> leaves, context.
        unflatten: leaves, context -> object.
        context: `to_dumpable_context` and `from_dumpable_context`, if there is one.
    """
    try:
        from torch.utils._pytree import GetAttrKey, register_pytree_node
    except ImportError:
        return

    def flatten_with_keys(x: Any) -> tuple[list[tuple[Any, Any]], Any]:
        leaves, about = flatten(x)
        return [(GetAttrKey(k), leaf) for k, leaf in zip(names, leaves, strict=True)], about

    register_pytree_node(
        cls,
        flatten,
        unflatten,
        serialized_type_name=f"bcrf.{cls.__name__}",
        flatten_with_keys_fn=flatten_with_keys,
        **context,
    )
