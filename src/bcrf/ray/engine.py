"""Tag shards with the actors of a Ray cluster: a shard is the unit of work.

An actor reads a shard and writes its results by itself; no row passes through Ray. If an actor
dies, another one starts its shard again. Results appear atomically, so a shard that was tagged
twice has the same results as one that was tagged once.
"""

from __future__ import annotations

import os
from collections import Counter, deque
from collections.abc import Iterator, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import TYPE_CHECKING, Any

from ..checks import check_count

if TYPE_CHECKING:
    from ..tagger import Tagger
    from ..tagger.shards import Shard, ShardOptions, ShardRecord

__all__ = ["ClusterError", "ShardFailure", "tag_shards"]

_ATTEMPTS = 3
"""How many actors may die with one shard, or before any of them has loaded the model."""


class ClusterError(RuntimeError):
    """The cluster cannot do the work."""


@dataclass(frozen=True)
class ShardFailure:
    """A shard without results.

    Args:
        shard: the files.
        reason: what went wrong.
    """

    shard: Shard
    reason: str


def tag_shards(
    model: str | os.PathLike[str],
    shards: Sequence[Shard],
    options: ShardOptions,
    workers: int | None = None,
    threads: int = 1,
    device: str = "auto",
) -> Iterator[tuple[Shard, ShardRecord] | ShardFailure]:
    """Tag shards on the Ray cluster to which the program is connected (see `connect`).

    Yields the record of each shard when it is finished, in any order, or why it has none. All
    machines must see the model, the shards and the results at the same absolute paths.

    Args:
        model: folder of the model, or the name of a bundled model.
        shards: what to tag, see `bcrf.tagger.shards.plan_shards`.
        options: how to tag.
        workers: number of actors; None: one for each `threads` CPUs of the cluster, or one for each
            GPU. Each actor loads the model.
        threads: number of CPUs and of threads of each actor.
        device: "auto" (GPUs if the cluster has any), "cpu" or "cuda".

    Raises:
        ModelError: the model cannot be loaded.
        ClusterError: the cluster lacks the CPUs or the GPUs; or actors die before they have loaded
            the model.
    """
    import ray

    from ..tagger.model_folder.location import absolute_path, model_identity

    check_count("threads", threads, least=1)
    if workers is not None:
        check_count("workers", workers, least=1)
    path = absolute_path(model)
    identity = model_identity(Path(path))
    nodes = [node["Resources"] for node in ray.nodes() if node["Alive"]]
    count, gpus = plan_actors(nodes, threads, device)
    actor_class = ray.remote(ShardWorker).options(num_cpus=threads, num_gpus=gpus)

    def start() -> Any:
        return actor_class.remote(path, identity, options, threads, "cuda" if gpus else "cpu")

    yield from _run(ray, start, shards, min(workers or count, len(shards)))


def plan_actors(nodes: Sequence[dict[str, float]], threads: int, device: str) -> tuple[int, int]:
    """Return how many actors the machines can run, and the number of GPUs of each (0 or 1).

    Args:
        nodes: the resources of each machine, as Ray names them.
        threads: CPUs of each actor.
        device: "auto", "cpu" or "cuda".
    """
    if device not in ("auto", "cpu", "cuda"):
        raise ValueError(f"device must be auto, cpu or cuda, because Ray chooses; got {device!r}")
    by_cpu = [int(node.get("CPU", 0)) // threads for node in nodes]
    by_gpu = [min(int(node.get("GPU", 0)), n) for node, n in zip(nodes, by_cpu, strict=True)]
    if device == "cuda" and not any(by_gpu):
        raise ClusterError(
            f"no machine of the Ray cluster has a GPU and {threads} CPUs; use --device cpu"
        )
    if device != "cpu" and any(by_gpu):
        return sum(by_gpu), 1
    if not any(by_cpu):
        raise ClusterError(f"no machine of the Ray cluster has {threads} CPUs; lower --threads")
    return sum(by_cpu), 0


class ShardWorker:
    """An actor: a process with a loaded model, which tags one shard at a time."""

    def __init__(
        self, model: str, identity: str, options: ShardOptions, threads: int, device: str
    ) -> None:
        self.model, self.identity, self.options = model, identity, options
        self.threads, self.device = threads, device
        self._tagger: Tagger | None = None

    def load(self) -> Exception | None:
        """Load the model; return the error that the user has to correct, if there is one."""
        import torch

        from ..tagger import ModelError
        from ..tagger.prediction.tag_batch import load_identical

        torch.set_num_threads(self.threads)
        try:
            self._tagger = load_identical(self.model, self.identity, self.device)
        except (ModelError, OSError, ImportError) as error:
            # An error that chains others may not survive the way to the driver.
            return ModelError(f"a worker cannot load the model: {error}")
        return None

    def tag(self, shard: Shard) -> ShardRecord | ShardFailure:
        """Tag a shard; a shard that cannot be read or written is a failure."""
        from ..tagger.data import DataError
        from ..tagger.shards import tag_shard

        assert self._tagger is not None
        try:
            return tag_shard(self._tagger, shard, self.options, self.identity)
        except (DataError, OSError, MemoryError) as error:
            return ShardFailure(shard, _reason(error))


def _reason(error: Exception) -> str:
    if isinstance(error, OSError) and error.filename and error.strerror:
        return f"{error.filename}: {error.strerror}"
    return str(error) or type(error).__name__


def _run(
    ray: Any, start: Any, shards: Sequence[Shard], count: int
) -> Iterator[tuple[Shard, ShardRecord] | ShardFailure]:
    """Keep `count` actors busy until every shard has a result."""
    waiting = deque(shards)
    deaths: Counter[Shard | None] = Counter()  # None: while the model was loaded
    # The call that each actor is executing, with its shard; None: it is loading the model.
    running: dict[Any, tuple[Any, Shard | None]] = {}

    def start_actor() -> None:
        actor = start()
        running[actor.load.remote()] = (actor, None)

    for _ in range(count):
        start_actor()
    while waiting or any(shard is not None for _, shard in running.values()):
        (call,), _ = ray.wait(list(running), num_returns=1)
        actor, shard = running.pop(call)
        try:
            result = ray.get(call)
        except ray.exceptions.RayActorError as error:
            ray.kill(actor)  # it may only be out of reach
            deaths[shard] += 1
            if deaths[shard] < _ATTEMPTS:
                if shard is not None:
                    waiting.appendleft(shard)
            elif shard is None:
                if running:
                    continue  # the other actors do the work
                raise ClusterError(
                    f"{_ATTEMPTS} workers died while they loaded the model; is there enough "
                    f"memory? Lower --workers. Ray says: {error}"
                ) from error
            else:
                yield ShardFailure(
                    shard,
                    f"{shard.source}: {_ATTEMPTS} workers died while they tagged this shard; is "
                    f"there enough memory? Lower --workers. Ray says: {_first_line(error)}",
                )
            if waiting:
                start_actor()
            continue
        except ray.exceptions.RayTaskError as error:  # a bug: the report needs the traceback
            if shard is None:
                raise
            result = ShardFailure(shard, f"{shard.source}: unexpected error: {error}")
        if shard is None:
            if result is not None:
                raise result
            deaths[None] = 0
        else:
            yield result if isinstance(result, ShardFailure) else (shard, result)
        if waiting:
            shard = waiting.popleft()
            running[actor.tag.remote(shard)] = (actor, shard)
        else:
            ray.kill(actor)  # frees its memory and its CPUs for the others


def _first_line(error: Exception) -> str:
    return str(error).partition("\n")[0]
