"""Connect to a Ray cluster, or start Ray on this machine."""

from __future__ import annotations

import os
import signal
import threading
from collections.abc import Iterator
from contextlib import contextmanager

__all__ = ["connect"]

# Read when ray is imported. The first one switches usage reports off. Without the second one, Ray
# would listen at the address of this machine in its network instead of the loopback address; it
# says that there is no other machine, on every system.
_LOCAL_ENVIRONMENT = {
    "RAY_USAGE_STATS_ENABLED": "0",
    "RAY_ENABLE_WINDOWS_OR_OSX_CLUSTER": "0",
}

# Bytes of the object store of a Ray that we start. Shards do not pass through it; Ray's default is
# 30 % of the memory.
_OBJECT_STORE = 100 << 20


@contextmanager
def connect(address: str | None = None, cpus: int | None = None) -> Iterator[None]:
    """Use a Ray cluster within the block, and leave it at the end.

    If the program has connected to a cluster already, that one is used, and stays connected.

    Args:
        address: "HOST:PORT", or "auto": a cluster that `ray start` has started on this machine.
            None: start Ray on this machine for the time of the block, without dashboard and
            usage reports. It listens at the loopback address only, unless the program has imported
            ray before it calls this function.
        cpus: number of CPUs of a Ray that is started; None: those of this machine.

    Raises:
        ConnectionError: there is no cluster at the address.
    """
    if address is None:
        os.environ.update({k: v for k, v in _LOCAL_ENVIRONMENT.items() if k not in os.environ})
    import ray

    if ray.is_initialized():
        yield
        return
    in_main_thread = threading.current_thread() is threading.main_thread()
    handler = signal.getsignal(signal.SIGTERM)
    if address is None:
        ray.init(
            address="local",
            num_cpus=cpus,
            include_dashboard=False,
            object_store_memory=_OBJECT_STORE,
            logging_level="error",
            log_to_driver=False,
        )
    else:
        try:
            ray.init(address=address, logging_level="error", log_to_driver=False)
        except (ConnectionError, RuntimeError, ValueError) as error:
            raise ConnectionError(
                f"cannot connect to a Ray cluster at {address}: {error}; start one with "
                "`ray start --head`, or leave out the address to use this machine only"
            ) from error
    try:
        if in_main_thread and handler is not None:  # Ray has installed a handler of its own
            signal.signal(signal.SIGTERM, handler)
        yield
    finally:
        ray.shutdown()
