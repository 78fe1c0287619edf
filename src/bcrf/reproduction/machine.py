"""Where and with what a result was obtained."""

from __future__ import annotations

import os
import platform
import shutil
import subprocess
from datetime import datetime, timezone
from importlib import metadata
from pathlib import Path
from typing import Any

import torch

from ..kernels import backends
from ..tagging import choose_device

__all__ = ["circumstances", "place"]


def circumstances(device: torch.device) -> dict[str, Any]:
    """Plain values for the log: versions, the machine (but not its name), and how many processes
    it was busy with in the last minute."""
    return {
        "date": datetime.now(timezone.utc).strftime("%Y-%m-%d %H:%M UTC"),
        "bcrf": metadata.version("bcrf"),
        "commit": _commit(),
        "torch": torch.__version__,
        "python": platform.python_version(),
        "load": round(os.getloadavg()[0], 2) if hasattr(os, "getloadavg") else None,
        "machine": {
            "device": torch.cuda.get_device_name(device) if device.type == "cuda" else "cpu",
            "cpu": _cpu(),
            "cores": _cores(),
            "threads": torch.get_num_threads(),
            "vector": torch.backends.cpu.get_cpu_capability(),
            "system": f"{platform.system()} {platform.machine()}",
            "native": "yes" if backends()["native"] is None else "no",
        },
    }


def place(device: str) -> dict[str, Any]:
    """What times depend on before all: those of different devices or threads do not mix."""
    kind = choose_device(device)
    if kind.type == "cuda":
        return {"device": torch.cuda.get_device_name(kind)}
    return {"device": "cpu", "threads": torch.get_num_threads()}


def _cores() -> int:
    """Cores that this process may use."""
    if hasattr(os, "sched_getaffinity"):
        return len(os.sched_getaffinity(0))
    return os.cpu_count() or 1


def _cpu() -> str:
    info = Path("/proc/cpuinfo")
    if info.exists():
        for line in info.read_text().splitlines():
            if line.startswith("model name"):
                return line.partition(":")[2].strip()
    return platform.processor() or "unknown"


def _commit() -> str:
    """Of the source that runs; "" if it is not in a repository of its own."""
    here = Path(__file__).resolve()
    root = here.parents[3]
    if not (root / ".git").exists() or shutil.which("git") is None:
        return ""
    command = ["git", "describe", "--always", "--dirty"]
    done = subprocess.run(command, capture_output=True, text=True, cwd=root)
    return done.stdout.strip() if done.returncode == 0 else ""
