"""All private functions of torch that the package uses, each with a fallback.

Torch may rename or remove these functions in any release. No other module uses a private name of
torch.
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
    "in_function_transform",
    "in_transform",
    "in_vmap",
    "is_legacy_batched",
    "may_be_exporting",
    "missing_probe",
    "must_stay_in_torch",
    "register_pytree_node",
    "requires_grad_outside",
    "scan",
    "was_written",
]

# Loop operators. They are prototypes in torch; the package was tested with torch 2.13 and later.
# Without the operators loops are unrolled, and each length has its own graph.
# (`torch.__version__` compares as a version, not as text: 2.9 is less than 2.13.)
scan: Any
try:
    from torch._higher_order_ops.scan import scan
except ImportError:
    scan = None
HAS_LOOPS = scan is not None and torch.__version__ >= "2.13"


def has_static_value(size: int) -> bool:
    """Whether a size in a graph is a known number, not a symbol; False if torch cannot tell."""
    # Imported here because it is slow to import. Tracing a graph has imported it already.
    from torch.fx.experimental import symbolic_shapes

    test = getattr(symbolic_shapes, "has_static_value", None)
    return test is not None and test(size)


def may_be_exporting() -> bool:
    """Whether torch.export may be tracing this call; True if torch cannot tell.

    The public `torch.compiler.is_exporting` cannot be used: under torch.compile of torch 2.7 and
    2.8 it is always True.
    """
    flag: bool = getattr(torch.compiler, "_is_exporting_flag", True)
    return flag


def was_written(tensor: torch.Tensor) -> bool:
    """Whether an in-place operation has written to a tensor since it was created.

    False for tensors of inference mode, of which torch does not count the operations.
    """
    if tensor.is_inference():
        return False
    version: int = attrgetter("_version")(tensor)
    return version > 0


# Functions that tell whether a dispatch mode, a function transform or a tracer is active. Such a
# mode must see every operation, and a compiled kernel hides its operations. So the package uses no
# compiled kernels if torch lacks one of these functions.
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
    """Return the name of a function of `_PROBES` that torch lacks, or None if it has all."""
    for name in _PROBES:
        try:
            attrgetter(name)(torch)
        except AttributeError:
            return f"torch.{name}"
    return None


_CANNOT_TELL = missing_probe() is not None


def must_stay_in_torch() -> bool:
    """Whether a dispatch mode, a function transform or a tracer must see every torch operation.

    True if torch cannot tell.
    """
    return (
        _CANNOT_TELL
        or torch._C._len_torch_dispatch_stack() > 0
        or torch._C._are_functorch_transforms_active()
        or forward_ad._current_level >= 0
        or torch._C._get_tracing_state() is not None
    )


def in_function_transform() -> bool:
    """Whether a function transform, forward-mode differentiation or torch.jit.trace is active.

    They cannot handle every in-place operation. True if torch cannot tell.
    """
    return (
        _CANNOT_TELL
        or torch._C._are_functorch_transforms_active()
        or forward_ad._current_level >= 0
        or torch._C._get_tracing_state() is not None
    )


def is_legacy_batched(x: Tensor) -> bool:
    """Whether `x` is a batched gradient of `torch.autograd.grad(is_grads_batched=True)`.

    True if torch cannot tell.
    """
    return _CANNOT_TELL or torch._C._functorch.is_legacy_batchedtensor(x)


def in_transform() -> bool:
    """Whether a transform of torch.func is active; False if torch cannot tell."""
    return not _CANNOT_TELL and torch._C._are_functorch_transforms_active()


def in_vmap() -> bool:
    """Whether `torch.func.vmap` is active, so that Python cannot branch on tensor values."""
    return in_transform() and "Vmap" in _transforms()


def count_derivatives() -> int:
    """Return the number of active torch.func transforms that differentiate."""
    return sum(name in ("Grad", "Jvp") for name in _transforms())


def requires_grad_outside(tensors: Iterable[Tensor]) -> bool:
    """Whether one of `tensors`, as passed to torch.func by the caller, requires a gradient."""
    return any(_original(x).requires_grad for x in tensors)


def _transforms() -> list[str]:
    """Return the names of the active transforms, the outermost first."""
    return [level.key().name for level in torch._C._functorch.get_interpreter_stack() or ()]


def _original(x: Tensor) -> Tensor:
    """Return the tensor that was passed to the outermost transform."""
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
    """Register `cls` as a pytree with leaves called `names`.

    Objects of the class can then be arguments and results of compiled and exported functions. If
    torch has no such registry, nothing is registered.

    Args:
        flatten: object -> leaves, context.
        unflatten: leaves, context -> object.
        context: `to_dumpable_context` and `from_dumpable_context`, if there is a context.
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
