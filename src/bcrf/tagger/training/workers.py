"""Data-parallel training: several processes train one network, each on a share of every batch.

We call the collectives of torch.distributed directly. `DistributedDataParallel` does not fit for
two reasons. It waits for a gradient of every parameter, but a process with an empty share has no
gradients. It averages over processes, but our loss is the mean over sentences.
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
    """All processes of a run, as seen by one of them.

    Args:
        rank: number of this process.
        world: number of all processes.
        device: device of this process.
    """

    rank: int
    world: int
    device: torch.device

    @property
    def is_main(self) -> bool:
        """Whether this process evaluates, writes files and yields events."""
        return self.rank == 0

    def sum(self, *numbers: float) -> list[float]:
        """Return the sum of each number over all processes."""
        if self.world == 1:
            return list(numbers)
        return self.sum_tensor(torch.tensor(numbers, dtype=torch.float64, device=self.device))

    def sum_tensor(self, numbers: Tensor) -> list[float]:
        """Return the sum of each number over all processes; this waits for the device, once.

        Args:
            numbers: float64 [N], on the device of this process; it is overwritten.
        """
        if self.world > 1:
            dist.all_reduce(numbers)
        return numbers.tolist()

    def from_main(self, number: float) -> float:
        """Return, in all processes, the number that the main process passes."""
        if self.world == 1:
            return number
        value = torch.tensor(number, dtype=torch.float64, device=self.device)
        dist.broadcast(value, 0)
        return value.item()

    def wait(self) -> None:
        """Wait until all processes have called this method."""
        if self.world > 1:
            dist.barrier()

    def check_same(self, what: str, text: str) -> None:
        """Raise unless all processes pass the same text; `what` names it."""
        if self.world == 1:
            return
        texts: list[str | None] = [None] * self.world
        dist.all_gather_object(texts, text)
        for rank, other in enumerate(texts):
            if other != texts[0]:
                raise ValueError(
                    f"{what} of process {rank} differs from that of process 0; start all processes "
                    "with the same files"
                )

    def sum_gradients(self, model: nn.Module) -> None:
        """Replace each gradient by its sum over all processes; a missing gradient counts as 0."""
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
        flat = torch.cat(
            [gradient.flatten() for gradient in gradients]
        )  # one message instead of one per parameter
        dist.all_reduce(flat)
        parts = torch.split(flat, [gradient.numel() for gradient in gradients])
        for gradient, part in zip(gradients, parts, strict=True):
            gradient.copy_(part.view_as(gradient))
        for parameter in parameters:
            if id(parameter) in tables:
                parameter.grad = self._sum_rows(parameter)

    def _sum_rows(self, table: Tensor) -> Tensor:
        """Return the sum over all processes of a sparse gradient."""
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
        """Return the rows of all processes; their numbers may differ."""
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
    """Join the processes that `torchrun` has started; without it, this process is the only one.

    With CUDA, each process of a machine uses the GPU with its local rank.
    """
    world = int(os.environ.get("WORLD_SIZE", "1"))
    started = dist.is_available() and dist.is_initialized()
    if world == 1 and not started:
        yield Workers(0, 1, device)
        return
    gpu = device.type == "cuda"
    if gpu and device.index is None:
        device = torch.device("cuda", int(os.environ.get("LOCAL_RANK", "0")))
        torch.cuda.set_device(device)  # torch.distributed relies on it
    if not started:
        # Functions of torch.distributed.nn have the process group as the default of an argument,
        # and this default is set when the module is imported. If torch imported the module later,
        # the default would keep our group and its threads alive until the interpreter exits. A
        # thread that needs the interpreter at that time aborts the program. So we import the module
        # before there is a group.
        importlib.import_module("torch.distributed.nn")
        dist.init_process_group("nccl" if gpu else "gloo")
    try:
        yield Workers(dist.get_rank(), dist.get_world_size(), device)
    finally:
        if not started:
            dist.destroy_process_group()
