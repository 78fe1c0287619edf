"""Several processes that train one network, each on its share of every batch.

The collectives of torch.distributed are used directly rather than through its
`DistributedDataParallel`: that one waits for a gradient of every parameter, which a process whose
share is empty has not, and averages over processes where sentences are to be averaged over.
"""

from __future__ import annotations

import importlib
import os
from collections.abc import Iterator
from contextlib import contextmanager
from dataclasses import dataclass

import torch
import torch.distributed as dist
from torch import Tensor, nn

__all__ = ["Workers", "join"]


@dataclass(frozen=True)
class Workers:
    """All processes of a run, seen from one of them.

    Args:
        rank: its number.
        world: how many there are.
        device: where it works.
    """

    rank: int
    world: int
    device: torch.device

    @property
    def is_main(self) -> bool:
        """Whether this is the process that evaluates, writes and reports."""
        return self.rank == 0

    def sum(self, *numbers: float) -> list[float]:
        """The sums of these numbers over all processes."""
        if self.world == 1:
            return list(numbers)
        total = torch.tensor(numbers, dtype=torch.float64, device=self.device)
        dist.all_reduce(total)
        return total.tolist()

    def from_main(self, number: float) -> float:
        """The number that the main process has."""
        if self.world == 1:
            return number
        value = torch.tensor(number, dtype=torch.float64, device=self.device)
        dist.broadcast(value, 0)
        return value.item()

    def wait(self) -> None:
        """Until all processes are here."""
        if self.world > 1:
            dist.barrier()

    def check_same(self, what: str, text: str) -> None:
        """Raise unless all processes have the same text."""
        if self.world == 1:
            return
        texts: list[str | None] = [None] * self.world
        dist.all_gather_object(texts, text)
        for rank, other in enumerate(texts):
            if other != texts[0]:
                raise ValueError(f"process {rank} has not the same {what} as process 0")

    def sum_gradients(self, model: nn.Module) -> None:
        """Replace all gradients by their sums over the processes; one that is missing counts 0."""
        if self.world == 1:
            return
        tables = {
            id(module.weight)
            for module in model.modules()
            if isinstance(module, nn.Embedding) and module.sparse
        }
        parameters = [p for p in model.parameters() if p.requires_grad]
        dense = [p for p in parameters if id(p) not in tables]
        for parameter in dense:
            if parameter.grad is None:
                parameter.grad = torch.zeros_like(parameter)
        gradients = [p.grad for p in dense if p.grad is not None]
        flat = torch.cat([gradient.flatten() for gradient in gradients])  # one message, not many
        dist.all_reduce(flat)
        parts = torch.split(flat, [gradient.numel() for gradient in gradients])
        for gradient, part in zip(gradients, parts, strict=True):
            gradient.copy_(part.view_as(gradient))
        for parameter in parameters:
            if id(parameter) in tables:
                parameter.grad = self._sum_rows(parameter)

    def _sum_rows(self, table: Tensor) -> Tensor:
        """The sum of sparse gradients, from the rows that each process has."""
        if table.grad is None:
            rows = torch.zeros(0, dtype=torch.int64, device=table.device)
            values = table.new_zeros(0, table.shape[1])
        else:
            gradient = table.grad.coalesce()
            rows, values = gradient.indices()[0], gradient.values()
        rows, values = self._concatenated(rows), self._concatenated(values)
        total = torch.sparse_coo_tensor(
            rows.unsqueeze(0), values, table.shape, check_invariants=False
        )
        return total.coalesce()

    def _concatenated(self, rows: Tensor) -> Tensor:
        """The rows of all processes, which may have different numbers of them."""
        count = torch.tensor([len(rows)], device=rows.device)
        counts = [torch.empty_like(count) for _ in range(self.world)]
        dist.all_gather(counts, count)
        sizes = [int(one) for one in counts]
        padded = rows.new_zeros(max(sizes), *rows.shape[1:])
        padded[: len(rows)] = rows
        parts = [torch.empty_like(padded) for _ in range(self.world)]
        dist.all_gather(parts, padded)
        return torch.cat([part[:size] for part, size in zip(parts, sizes, strict=True)])


@contextmanager
def join(device: torch.device) -> Iterator[Workers]:
    """The processes that `torchrun` has started, or this one alone.

    With CUDA, each process of a machine takes the GPU of its local number.
    """
    world = int(os.environ.get("WORLD_SIZE", "1"))
    started = dist.is_available() and dist.is_initialized()
    if world == 1 and not started:
        yield Workers(0, 1, device)
        return
    gpu = device.type == "cuda"
    if gpu and device.index is None:
        device = torch.device("cuda", int(os.environ.get("LOCAL_RANK", "0")))
        torch.cuda.set_device(device)  # on which torch.distributed relies
    if not started:
        # The functions of this module have a group as a default: the one there is at import. Were
        # it imported later, as torch does on its own, that group and its threads would live on to
        # the end of the program, where a thread that still wants the interpreter aborts it.
        importlib.import_module("torch.distributed.nn")
        dist.init_process_group("nccl" if gpu else "gloo")
    try:
        yield Workers(dist.get_rank(), dist.get_world_size(), device)
    finally:
        if not started:
            dist.destroy_process_group()
