"""The arguments of a kernel launch, and the description of kernels that can be compiled ahead.

The first parameters of every kernel that reads a chain are the fields of `ChainArguments`, in this
order. Outputs, settings and constants follow.
"""

from __future__ import annotations

from collections.abc import Callable, Mapping
from contextlib import nullcontext
from dataclasses import dataclass
from typing import Any, NamedTuple

import torch
from torch import Tensor

from ...chain import LinearChain
from ..triton_support import MOST_TAGS

__all__ = [
    "UNSPECIALIZED",
    "BlockLayout",
    "Build",
    "BuildArguments",
    "ChainArguments",
    "chain_arguments",
    "chain_signature",
    "chunk_size",
    "launch",
    "layout",
    "pointer",
]

UNSPECIALIZED = ("max_length",)
"""Parameters whose value does not matter for the code, so that not every n is compiled anew.

Triton compiles a kernel again if an integer is 1, or is a multiple of 16: multiples allow wider
loads, which matters for strides and T.
"""

_FEWEST = 16  # a smaller block would leave most lanes of a warp idle

_MOST_CHUNKS = 65535  # the second and the third axis of a grid are limited; the first is not

_MOST_OFFSET = 2**31 - 1  # of 32-bit offsets

_MOST_WARPS = 16
_TILE = 4096  # bytes of a matrix that one warp holds: 32 registers of each thread


class BlockLayout(NamedTuple):
    """The size of the blocks of tags, and the number of warps of a program.

    Args:
        block: the smallest power of two that is at least the number of tags, and at least 16.
        num_warps: an option of the launch.
    """

    block: int
    num_warps: int


def layout(num_tags: int, itemsize: int = 4, shared: bool = True) -> BlockLayout:
    """Return the layout for `num_tags` tags and scores of `itemsize` bytes; raise if too many.

    One matrix of transitions is held in registers. With one matrix per edge there are two: the
    next one is loaded while the current one is used.
    """
    if num_tags > MOST_TAGS:
        raise ValueError(
            f"backend 'triton' is for at most {MOST_TAGS} tags, the chain has {num_tags}; use "
            "backend='torch'"
        )
    block = max(_FEWEST, 1 << max(num_tags - 1, 0).bit_length())
    tiles = block * block * itemsize * (1 if shared else 2) // _TILE
    return BlockLayout(block, min(max(tiles, 1), _MOST_WARPS))


class ChainArguments(NamedTuple):
    """The first arguments of every kernel that reads a chain.

    Args:
        unary: [B, n, T] in float32 or float64; its last stride is 1. Beyond a length it may be NaN.
        pair: [T, T] or [B, n-1, T, T] in the dtype of `unary`; None: all zero.
        lengths: int64 [B].
        start_end: [2T], scores of start tags and end tags to add; None: there are none.
        follow: uint8 [T, T], 0 where a transition is forbidden; None: `pair` says it already.
        max_length: n.
        num_tags: T.
        unary_batch, unary_position: strides of `unary`.
        pair_batch, pair_edge, pair_from, pair_to: strides of `pair`; 0 for axes that it lacks.
    """

    unary: Tensor
    pair: Tensor | None
    lengths: Tensor
    start_end: Tensor | None
    follow: Tensor | None
    max_length: int
    num_tags: int
    unary_batch: int
    unary_position: int
    pair_batch: int
    pair_edge: int
    pair_from: int
    pair_to: int

    @property
    def shared(self) -> bool:
        """Whether one matrix of transitions serves all edges."""
        return self.pair is None or self.pair.dim() == 2


def chain_arguments(chain: LinearChain, start_end: Tensor | None = None) -> ChainArguments:
    """Return the arguments for the scores of `chain`, without gradients.

    `start_end` is added inside the kernels: see `LinearChain._add_start_end`.
    """
    unary, pair, structure = chain.unary.detach(), chain.raw_transitions, chain.structure
    if chain.max_length * chain.num_tags > _MOST_OFFSET:
        raise ValueError(
            f"backend 'triton' is for sentences of at most {_MOST_OFFSET // chain.num_tags} "
            f"positions with {chain.num_tags} tags, got {chain.max_length}; use backend='torch'"
        )
    if unary.stride(2) != 1:
        unary = unary.contiguous()
    if pair is not None:
        pair = pair.detach()
        if (chain.num_tags - 1) * sum(pair.stride()[-2:]) > _MOST_OFFSET:
            pair = pair.contiguous()
    follow = None
    if pair is not None and pair.dim() == 4 and structure is not None:
        follow = structure.follow.contiguous().view(torch.uint8)
    strides = (0, 0, 0, 0) if pair is None else (*(0,) * (4 - pair.dim()), *pair.stride())
    return ChainArguments(
        unary,
        pair,
        chain.lengths.contiguous(),
        None if start_end is None else start_end.detach().contiguous(),
        follow,
        chain.max_length,
        chain.num_tags,
        unary.stride(0),
        unary.stride(1),
        *strides,
    )


def chunk_size(n: int, least: int) -> int:
    """Return the positions of a program: `least`, or so many times more that a grid has the chunks.

    Above 65535 chunks of a sentence, the size is doubled until they are fewer.
    """
    while -(-n // least) > _MOST_CHUNKS:
        least *= 2
    return least


def launch(
    kernel: Any,
    grid: tuple[int, ...],
    chain: ChainArguments,
    *others: Any,
    num_warps: int | None = None,
    **constants: int | None,
) -> None:
    """Run `kernel` on the device of the chain, once for each index of `grid`.

    Its parameters are the fields of `chain`, `others`, and the constants SHARED, BLOCK and
    `constants`. Without `num_warps`, programs have the warps of `layout`.
    """
    if 0 in grid:
        return
    block, warps = layout(chain.num_tags, chain.unary.element_size(), chain.shared)
    constants |= {"SHARED": chain.shared, "BLOCK": block}
    device = chain.unary.device
    # Triton launches on the current device.
    with torch.cuda.device(device) if device.type == "cuda" else nullcontext():
        kernel[grid](*chain, *others, **constants, num_warps=num_warps or warps, num_stages=1)


BuildArguments = tuple[dict[str, str], dict[str, Any], dict[str, int]]
"""The signature, the constants and the options of a compilation."""


@dataclass(frozen=True)
class Build:
    """A kernel, and how to compile it without a device.

    Example:
        signature, constants, options = build.arguments("fp32", 17, True)
        source = ASTSource(build.kernel, signature, constants)
        triton.compile(source, target=GPUTarget("cuda", 80, 32), options=options)

    Attributes:
        name: unique among all builds; it appears in reports.
        kernel: the function that `triton.jit` returned.
        arguments: (dtype, num_tags, shared) -> signature, constants, options. The dtype is "fp32"
            or "fp64"; `shared` says whether one matrix of transitions serves all edges.
    """

    name: str
    kernel: Any
    arguments: Callable[[str, int, bool], BuildArguments]


def pointer(dtype: str) -> str:
    """Return the type of a pointer to `dtype`, as signatures spell it."""
    return f"*{dtype}"


def chain_signature(
    dtype: str, num_tags: int, shared: bool, others: Mapping[str, str], **constants: int | None
) -> BuildArguments:
    """Return what compiles a kernel whose first parameters are `ChainArguments`.

    Args:
        others: the types of the parameters that are neither in `ChainArguments` nor constants.
        constants: values of constants; `SHARED` and `BLOCK` are always there.
    """
    scores = pointer(dtype)
    signature = dict.fromkeys(ChainArguments._fields, "i32")
    signature |= {"unary": scores, "pair": scores, "lengths": pointer("i64"), "start_end": scores}
    signature |= {"follow": "constexpr" if shared else pointer("u8")} | dict(others)
    block, warps = layout(num_tags, {"fp32": 4, "fp64": 8}[dtype], shared)
    # A launch, too, makes strides of 1 constants.
    constants |= {"SHARED": shared, "BLOCK": block, "pair_to": 1}
    signature |= dict.fromkeys(constants, "constexpr")
    if shared:
        constants["follow"] = None
    return signature, constants, {"num_warps": warps, "num_stages": 1}
