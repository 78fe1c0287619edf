"""Adam that updates only those rows of an embedding table that a batch uses.

`torch.optim.SparseAdam` is another algorithm: it never moves a row without a gradient, so its
results differ from Adam's. Adam itself spends most of a step on the table, since it updates all
rows. For example, a batch uses about a thousand of the 250,000 rows of a multilingual encoder.
"""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

import torch
from torch import Tensor, nn

from .adam_catch_up import CatchUpTable

__all__ = ["LazyAdam"]

# Rows that are updated at a time, so few that they fit into the cache of a processor.
_ROWS = 128


class LazyAdam(torch.optim.Adam):
    """`torch.optim.Adam`, up to rounding; the time of a step does not depend on the table size.

    A table is an `nn.Embedding` with sparse gradients. In every step Adam moves all rows of a
    table, also those that the batch does not use, because their moments decay gradually. Here the
    unused rows wait. Hooks on the module bring rows up to date in one update (`adam_catch_up`) just
    before the module reads them. Other hooks bring all rows up to date before a state of the module
    or the optimizer is saved or loaded. Code that reads or copies `weight` in any other way must
    call `flush` first.

    On a GPU, every step would wait for the device to report the number of used rows. `Optimization`
    therefore uses dense gradients there. Without tables, this class is `torch.optim.Adam`.

    The state has the same format as that of Adam. A run that is resumed from a saved state equals,
    bit by bit, the run that saved it.

    Args:
        model: the module whose parameters are optimized.
        lr, betas, eps: the settings of Adam. The learning rates in `param_groups` may change
            between steps.
        groups: parameter groups with their own settings, as for other optimizers; by default, one
            group of all parameters.

    Example:
        >>> embedding = nn.Embedding(1000, 8, sparse=True)
        >>> optimizer = LazyAdam(embedding, lr=0.01)
        >>> embedding(torch.tensor([3, 5])).sum().backward()
        >>> optimizer.step()
        >>> optimizer.flush()  # before reading embedding.weight directly
    """

    def __init__(
        self,
        model: nn.Module,
        lr: float = 1e-3,
        betas: tuple[float, float] = (0.9, 0.999),
        eps: float = 1e-8,
        groups: list[dict[str, Any]] | None = None,
    ) -> None:
        parameters = list(model.parameters())
        if not betas[1] > 0:
            raise ValueError(f"betas[1] must be in (0, 1), got {betas[1]}")
        fused = all(p.device.type in ("cpu", "cuda") for p in parameters)
        super().__init__(groups or parameters, lr, betas, eps, fused=fused)
        self._tables = [
            _Table(self, index, module)
            for module in model.modules()
            if isinstance(module, nn.Embedding) and module.sparse
            for index, group in enumerate(self.param_groups)
            if any(p is module.weight for p in group["params"])
        ]
        self.register_state_dict_pre_hook(lambda _: self.flush())

    @torch.no_grad()
    def step(self, closure: Callable[[], Any] | None = None) -> Any:
        """Do one step of Adam."""
        loss = None
        if closure is not None:
            with torch.enable_grad():
                loss = closure()
        gradients = [table.weight.grad for table in self._tables]
        for table, gradient in zip(self._tables, gradients, strict=True):
            if gradient is not None:
                table.apply(gradient)
            table.weight.grad = None  # Adam refuses sparse gradients, and skips weights without one
        super().step()
        for table, gradient in zip(self._tables, gradients, strict=True):
            table.weight.grad = gradient
        return loss

    @torch.no_grad()
    def flush(self) -> None:
        """Bring all rows of all tables up to date."""
        for table in self._tables:
            table.flush()

    def load_state_dict(self, state_dict: dict[str, Any]) -> None:
        """Load a state of Adam, or of `LazyAdam`."""
        super().load_state_dict(state_dict)
        for table in self._tables:
            table.resume()


class _Table:
    """The rows of one embedding, each with the step of its last update."""

    def __init__(self, optimizer: LazyAdam, index: int, module: nn.Embedding) -> None:
        self.optimizer, self.index, self.weight = optimizer, index, module.weight
        self.resume()
        module.register_forward_pre_hook(_RefreshRowsHook(self), with_kwargs=True)
        for register in (
            module.register_state_dict_pre_hook,
            module.register_load_state_dict_pre_hook,
        ):
            register(_FlushHook(self))  # type: ignore[no-untyped-call]

    # Group and state are looked up at every use, because loading a state replaces them.

    @property
    def group(self) -> dict[str, Any]:
        return self.optimizer.param_groups[self.index]

    @property
    def state(self) -> dict[str, Tensor]:
        state: dict[str, Tensor] = self.optimizer.state[self.weight]
        return state

    def resume(self) -> None:
        """Adopt the state of the optimizer, in which all rows are up to date."""
        state = self.state
        if not state:
            state["step"] = torch.zeros((), dtype=torch.float32)
            state["exp_avg"] = torch.zeros_like(self.weight)
            state["exp_avg_sq"] = torch.zeros_like(self.weight)
        self.first, self.second = state["exp_avg"], state["exp_avg_sq"]
        steps = int(state["step"])
        self.missed = CatchUpTable(self.group["betas"], self.group["eps"], steps)
        self.done = torch.full_like(self.weight[:, 0], steps, dtype=torch.int64)

    def refresh(self, ids: Tensor) -> None:
        """Bring these rows up to date."""
        self._catch_up(torch.unique(ids))

    def flush(self) -> None:
        """Bring all rows up to date."""
        self._catch_up(torch.arange(len(self.done), device=self.done.device))
        self.missed.forget()

    def _catch_up(self, rows: Tensor) -> None:
        now = self.missed.step
        behind = rows[self.done[rows] < now]
        if not len(behind):
            return
        catch_up = self.missed.since(self.done[behind])
        columns = [*catch_up.weights, *catch_up.nodes, catch_up.first, catch_up.second]
        scalars = torch.cat(columns, 1).to(self.weight)
        for some, of_rows in zip(
            torch.split(behind, _ROWS), torch.split(scalars, _ROWS), strict=True
        ):
            weight_1, weight_2, node_1, node_2, decay_1, decay_2 = torch.split(of_rows, 1, 1)
            m, v = self.first.index_select(0, some), self.second.index_select(0, some)
            root = v.sqrt()
            pull = (weight_1 / (root + node_1)).add_(weight_2 / root.add_(node_2))
            self.weight.index_add_(0, some, pull.mul_(m), alpha=-1)
            self.first.index_copy_(0, some, m.mul_(decay_1))
            self.second.index_copy_(0, some, v.mul_(decay_2))
        self.done[behind] = now

    def apply(self, gradient: Tensor) -> None:
        """Do one step with a sparse gradient; rows without a gradient wait."""
        gradient = gradient.coalesce()
        rows, values = gradient.indices()[0], gradient.values()
        self._catch_up(rows)
        b1, b2 = self.group["betas"]
        lr = float(self.group["lr"])
        self.missed.advance(lr)
        step = self.missed.step
        scale, root_scale = 1 - b1**step, (1 - b2**step) ** 0.5
        for some, g in zip(torch.split(rows, _ROWS), torch.split(values, _ROWS), strict=True):
            m = self.first.index_select(0, some).lerp_(g, 1 - b1)
            v = self.second.index_select(0, some).mul_(b2).addcmul_(g, g, value=1 - b2)
            self.first.index_copy_(0, some, m)
            self.second.index_copy_(0, some, v)
            change = m.div_(v.sqrt_().div_(root_scale).add_(self.group["eps"]))
            self.weight.index_add_(0, some, change, alpha=-lr / scale)
        self.done[rows] = step
        self.state["step"].fill_(step)


class _Hook:
    """A hook on the module of a table.

    A copy of the module has no optimizer, so the copied hook does nothing.
    """

    def __init__(self, table: _Table | None = None) -> None:
        self.table = table

    def __reduce__(self) -> tuple[type[_Hook], tuple[()]]:
        return type(self), ()


class _RefreshRowsHook(_Hook):
    @torch.no_grad()
    def __call__(self, module: nn.Module, args: tuple[Tensor, ...], kwargs: Any) -> None:
        if self.table is not None:
            self.table.refresh(args[0] if args else kwargs["input"])


class _FlushHook(_Hook):
    @torch.no_grad()
    def __call__(self, module: nn.Module, *_: Any) -> None:
        if self.table is not None:
            self.table.flush()
