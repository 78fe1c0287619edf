"""The interface of all solvers: a solver takes a chain and returns a solution."""

from __future__ import annotations

import math
from abc import ABC, abstractmethod
from collections.abc import Callable
from dataclasses import fields, is_dataclass
from typing import Any

import torch
from torch import Tensor

from ..chain import LinearChain
from ..checks import NO_TEMPERATURE
from ..compat.caching import cached_result
from ..diagnosis import check_gold, check_sums, check_tag_sets

__all__ = ["FunctionSolver", "Solution", "Solver", "SolverLike", "as_solver"]


class Solution(ABC):
    """The result of a solver for a chain: value, marginals, losses, and most probable tags.

    Attributes are computed when they are first read. Values, losses and residuals are in float32
    or float64; marginals are in the dtype of the caller's scores. A solution that was made under
    `no_grad` has no gradients, even if it is read with gradients enabled. A solution refers to the
    scores of the chain: do not change these scores in place while you use the solution.

    Args:
        chain: the problem.
        solver: the solver that computed the solution, for `repr`; None: unknown.

    Example:
        >>> import torch, bcrf
        >>> chain = bcrf.LinearChain(torch.zeros(1, 3, 2))
        >>> solution = bcrf.ForwardBackward()(chain)
        >>> solution
        CRFSolution(solver=ForwardBackward(), batch_size=1, max_length=3, num_tags=2, ...)
        >>> solution.tag_marginals
        tensor([[[0.5000, 0.5000],
                 [0.5000, 0.5000],
                 [0.5000, 0.5000]]])
        >>> bool(torch.isclose(solution.value, torch.tensor(8.0).log()))  # 2 * 2 * 2 sequences
        True
    """

    def __init__(self, chain: LinearChain, solver: Solver | None = None) -> None:
        self.chain = chain if torch.is_grad_enabled() else chain.detach()
        self._solver = solver
        self._graph_results: dict[str, Any] = {}  # see `CachesResults`

    def __repr__(self) -> str:
        solver = "" if self._solver is None else f"solver={_brief(self._solver)}, "
        return repr(self.chain).replace("LinearChain(", f"{type(self).__name__}({solver}", 1)

    @property
    def requires_grad(self) -> bool:
        """Whether the scores of the chain require a gradient."""
        return self.chain.requires_grad

    @cached_result
    @abstractmethod
    def value(self) -> Tensor:
        """[B], differentiable; 0 for an empty sentence.

        It is A(w) for `ForwardBackward`, the upper bound D(lam) of B(w) for `Bregman`, and a lower
        bound of A(w) for `MeanField`.

        Example:
            >>> import torch, bcrf
            >>> bcrf.Unstructured()(bcrf.LinearChain(torch.zeros(1, 3, 2))).value  # 3 log 2
            tensor([2.0794])
        """

    @abstractmethod
    def tag_probabilities(self) -> Tensor:
        """Return the tag marginals [B, n, T] in the dtype of `value`; 0 beyond the length.

        Example:
            >>> import torch, bcrf
            >>> chain = bcrf.LinearChain(torch.zeros(1, 2, 2, dtype=torch.bfloat16))
            >>> solution = bcrf.Unstructured()(chain)
            >>> solution.tag_probabilities().dtype, solution.tag_marginals.dtype
            (torch.float32, torch.bfloat16)
        """

    @abstractmethod
    def edge_probabilities(self) -> Tensor:
        """Return the edge marginals [B, m, T, T] in the dtype of `value`; 0 beyond the length.

        Example:
            >>> import torch, bcrf
            >>> bcrf.Unstructured()(bcrf.LinearChain(torch.zeros(1, 2, 2))).edge_probabilities()
            tensor([[[[0.2500, 0.2500],
                      [0.2500, 0.2500]]]])
        """

    @abstractmethod
    def loss(self, tags: Tensor) -> Tensor:
        """Return the loss [B] of the sequences `tags` [B, n]; it is >= 0 in every dtype.

        Example:
            >>> import torch, bcrf
            >>> solution = bcrf.ForwardBackward()(bcrf.LinearChain(torch.zeros(1, 2, 2)))
            >>> solution.loss(torch.tensor([[0, 1]]))  # log 4: there are four sequences
            tensor([1.3863])
        """

    @abstractmethod
    def partial_loss(self, allowed: Tensor) -> Tensor:
        """Return the loss [B] of the tag sets `allowed` (bool [B, n, T]).

        Example:
            >>> import torch, bcrf
            >>> solution = bcrf.ForwardBackward()(bcrf.LinearChain(torch.zeros(1, 2, 2)))
            >>> allowed = torch.tensor([[[True, True], [True, False]]])
            >>> solution.partial_loss(allowed)  # log 2: half of the sequences are allowed
            tensor([0.6931])
        """

    @cached_result
    def tag_marginals(self) -> Tensor:
        """[B, n, T]: the probability of each tag at each position; 0 beyond the length.

        Example:
            >>> import torch, bcrf
            >>> chain = bcrf.LinearChain(torch.zeros(1, 2, 2), torch.eye(2), lengths=[1])
            >>> bcrf.Bregman(10)(chain).tag_marginals
            tensor([[[0.5000, 0.5000],
                     [0.0000, 0.0000]]])
        """
        return self.tag_probabilities().to(self.chain.dtype)

    @cached_result
    def edge_marginals(self) -> Tensor:
        """[B, max(n-1, 0), T, T], axes from -> to: the probability of each arc.

        It is 0 beyond the length.

        Example:
            >>> import torch, bcrf
            >>> chain = bcrf.LinearChain(torch.zeros(1, 2, 2), torch.eye(2))
            >>> bcrf.Bregman(10)(chain).edge_marginals
            tensor([[[[0.3655, 0.1345],
                      [0.1345, 0.3655]]]])
        """
        return self.edge_probabilities().to(self.chain.dtype)

    @cached_result
    def residual(self) -> Tensor:
        """[B]: the largest |incoming - outgoing| mass of a tag under the edge marginals.

        Example:
            >>> import torch, bcrf
            >>> chain = bcrf.LinearChain(torch.randn(1, 9, 2), torch.eye(2))
            >>> bool(bcrf.Bregman(50)(chain).residual < 1e-3)
            True
        """
        q = self.edge_probabilities().detach()
        gap = (q[:, :-1].sum(-2) - q[:, 1:].sum(-1)).abs() * self.chain.mask[:, 2:].unsqueeze(-1)
        return gap.flatten(1).amax(1) if gap.shape[1] else gap.new_zeros(gap.shape[0])

    def best_tags(self) -> Tensor:
        """Return the most probable tag of each position, [B, n], -100 beyond the length.

        Example:
            >>> import torch, bcrf
            >>> chain = bcrf.LinearChain(torch.tensor([[[0.0, 1.0], [2.0, 0.0]]]), lengths=[1])
            >>> bcrf.Bregman(10)(chain).best_tags()
            tensor([[   1, -100]])
        """
        return self.chain.pad(self.tag_probabilities().argmax(-1))

    def as_chain(self) -> LinearChain:
        """Return the Markov chain prod_e q_e / prod_i q_i of the marginals, as a CRF problem.

        Many distributions over sequences have the same marginals; this one has the most entropy.
        The log-partition of the chain is 0. So `chain.score` is a log-probability, and `viterbi`,
        `k_best`, `sample` and `entropy` can be used on the distribution. The marginals should be
        consistent, so use a converged solution.

        Example:
            >>> import torch, bcrf
            >>> chain = bcrf.LinearChain(torch.zeros(1, 2, 2), torch.eye(2))
            >>> model = bcrf.Bregman(50)(chain).as_chain()
            >>> model.score(torch.tensor([[0, 0]])).exp()  # the probability of the sequence 0, 0
            tensor([0.3655])
        """
        q, p = self.edge_probabilities(), self.tag_probabilities()
        unary = torch.zeros_like(p)
        unary[:, :1] = _log(p[:, :1])
        rows = q.sum(-1, keepdim=True)
        return LinearChain(unary, _log(q) - _log(rows, at_zero=0.0), self.chain.lengths)


class Solver(ABC):
    """A method of inference: it takes a chain and returns a solution.

    A subclass has to implement `__call__`. `bcrf.loss`, `bcrf.partial_loss` and `bcrf.decode` call
    the other methods. A subclass can override these methods with faster ones.

    Example:
        >>> import torch, bcrf
        >>> class UniformTags(bcrf.Solver):
        ...     def __call__(self, chain):
        ...         return bcrf.Unstructured()(chain / 1e6)
        >>> chain = bcrf.LinearChain(torch.tensor([[[0.0, 5.0]]]))
        >>> UniformTags()(chain).tag_marginals
        tensor([[[0.5000, 0.5000]]])
        >>> bcrf.loss(UniformTags(), chain, torch.tensor([[1]]))
        tensor([0.6931])
    """

    @abstractmethod
    def __call__(self, chain: LinearChain) -> Solution:
        """Return the solution of `chain`."""

    def loss(self, chain: LinearChain, tags: Tensor) -> Tensor:
        """Return the loss [B] of gold `tags`, int64 [B, n] on the device of the chain.

        Example:
            >>> import torch, bcrf
            >>> chain = bcrf.LinearChain(torch.zeros(1, 2, 2))
            >>> bcrf.ForwardBackward().loss(chain, torch.tensor([[0, 1]]))
            tensor([1.3863])
        """
        check_gold(chain, tags)
        return check_sums("loss", self(chain).loss(tags))

    def partial_loss(self, chain: LinearChain, allowed: Tensor) -> Tensor:
        """Return the loss [B] of the tag sets `allowed`, bool [B, n, T] on the chain's device.

        Example:
            >>> import torch, bcrf
            >>> allowed = torch.tensor([[[True, True], [True, False]]])
            >>> bcrf.Unstructured().partial_loss(bcrf.LinearChain(torch.zeros(1, 2, 2)), allowed)
            tensor([0.6931])
        """
        check_tag_sets(chain, allowed)
        return check_sums("partial loss", self(chain).partial_loss(allowed))

    def decode(self, chain: LinearChain, temperature: float | Tensor = NO_TEMPERATURE) -> Tensor:
        """Return the most probable tags [B, n] at a temperature, -100 beyond the length.

        Example:
            >>> import torch, bcrf
            >>> chain = bcrf.LinearChain(torch.tensor([[[0.0, 1.0], [2.0, 0.0]]]))
            >>> bcrf.Bregman.paper(10).decode(chain, temperature=0.1)
            tensor([[1, 0]])
        """
        with torch.no_grad():
            return self(chain.detach() / temperature).best_tags()


class FunctionSolver(Solver):
    """A solver that calls a function from chains to solutions."""

    def __init__(self, function: Callable[[LinearChain], Solution]) -> None:
        self.function = function

    def __call__(self, chain: LinearChain) -> Solution:
        return self.function(chain)


SolverLike = Solver | Callable[[LinearChain], Solution]
"""A solver, or a function from chains to solutions."""


def as_solver(solver: SolverLike) -> Solver:
    """Return `solver` as a `Solver`; a function is wrapped in a `FunctionSolver`."""
    return solver if isinstance(solver, Solver) else FunctionSolver(solver)


def _brief(solver: Solver) -> str:
    """Return the repr of `solver` with its iterations, and the settings that are no defaults."""
    if not is_dataclass(solver):
        return repr(solver)
    settings = ((f, getattr(solver, f.name)) for f in fields(solver) if f.repr)
    shown = [f"{f.name}={x!r}" for f, x in settings if f.name == "iterations" or x != f.default]
    return f"{type(solver).__name__}({', '.join(shown)})"


def _log(p: Tensor, at_zero: float = -math.inf) -> Tensor:
    """Return log p, or `at_zero` with gradient zero where p = 0."""
    zero = p == 0
    return torch.where(zero, at_zero, torch.log(torch.where(zero, 1.0, p)))
