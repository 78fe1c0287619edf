"""A limit on how many modules a network may be built of."""

from __future__ import annotations

import threading
from collections.abc import Iterator
from contextlib import contextmanager
from typing import Any

from torch.nn.modules.module import register_module_module_registration_hook

__all__ = ["module_limit"]


@contextmanager
def module_limit(most: int) -> Iterator[None]:
    """Raise ValueError as soon as this thread registers more than `most` modules in the block.

    A configuration of a few bytes can ask for a thousand million layers. They would be created one
    by one before anybody could see how many there are.
    """
    thread, count = threading.get_ident(), 0

    def count_module(*registered: Any) -> None:
        nonlocal count
        if threading.get_ident() != thread:
            return
        count += 1
        if count > most:
            raise ValueError(f"the network has more than {most} parts, which its weights lack")

    handle = register_module_module_registration_hook(count_module)
    try:
        yield
    finally:
        handle.remove()
