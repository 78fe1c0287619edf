"""The interface of the kernels for devices on which launches take longer than arithmetic."""

from __future__ import annotations

from collections.abc import Sequence
from typing import Protocol

from torch import Tensor

from ..chain import LinearChain
from .results import BregmanResult, ProjectionSettings, ValueAndGradient

__all__ = ["DeviceKernels"]


class DeviceKernels(Protocol):
    """The functions of a module that solves whole chains without waiting for the device.

    Autograd does not see them: they run on detached scores, and return gradients on request.
    `chain.raw_transitions` and `chain.structure` must both be respected: see `LinearChain`. Scores
    beyond a length may be NaN. The caller has checked the values, if checks are enabled. Values are
    in float64 where the device has it (see `widest_dtype`).

    In `crf` and `bregman`, `tags` (int64 [B, n], any values beyond the lengths) requests the loss
    instead of the value, and `wanted` says which gradients to return: with respect to the unary
    scores, and to the pairs. Without tags the gradients are the marginals. `start_end` [2T] holds
    scores of start and end tags to add first: see `LinearChain._add_start_end`. With `every_edge`
    the gradient of a shared matrix is [B, n-1, T, T], and `by_shared_pair` is None.
    """

    def crf(
        self,
        chain: LinearChain,
        tags: Tensor | None = None,
        wanted: Sequence[bool] = (False, False),
        *,
        start_end: Tensor | None = None,
        every_edge: bool = False,
        parallel: bool = False,
    ) -> ValueAndGradient:
        """Return A(w), or the negative log-likelihood of `tags`.

        `parallel` requests an associative scan; a module that has none may ignore it.
        """

    def bregman(
        self,
        chain: LinearChain,
        settings: ProjectionSettings,
        tags: Tensor | None = None,
        wanted: Sequence[bool] = (False, False),
        *,
        start_end: Tensor | None = None,
        every_edge: bool = False,
    ) -> ValueAndGradient:
        """Return D(lam), or the Fenchel-Young loss of `tags`; `settings` have no tolerance."""

    def bregman_partial(
        self,
        chain: LinearChain,
        allowed: Tensor,
        settings: ProjectionSettings,
        wanted: Sequence[bool] = (False, False),
    ) -> ValueAndGradient:
        """Return D(lam) - D~(lam~), clamped to >= 0: see `BregmanSolution.partial_loss`.

        The value is inf for a sentence without an allowed path.
        """

    def bregman_result(self, chain: LinearChain, settings: ProjectionSettings) -> BregmanResult:
        """Run the projections; return the value, residual, dual point and tag marginals."""

    def most_probable(
        self, chain: LinearChain, settings: ProjectionSettings, temperature: float | Tensor
    ) -> Tensor:
        """Return the most probable tags [B, n] at a temperature, -100 beyond the length."""

    def viterbi(self, chain: LinearChain) -> tuple[Tensor, Tensor]:
        """Return the tags [B, n] of a best path, -100 beyond the length, and its score [B]."""

    def certified(
        self, chain: LinearChain, omegas: Sequence[float], temperature: float | Tensor
    ) -> tuple[Tensor, Tensor]:
        """Return tags [B, n] and bool [B], True where they are proved to be a best path.

        The tags of the other sentences have no meaning.
        """
