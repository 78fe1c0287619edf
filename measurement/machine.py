"""Describe the origin of a logged row: commit, command, software and machine.

The description leaves out the name of the machine and absolute paths.
"""

from __future__ import annotations

import os
import platform
import shlex
import shutil
import subprocess
import sys
from collections.abc import Sequence
from datetime import datetime, timezone
from functools import cache
from pathlib import Path
from typing import Any

import torch

import bcrf

__all__ = [
    "available_cores",
    "command_line",
    "compiler",
    "hardware",
    "load",
    "provenance",
    "software",
    "source_commit",
]

ROOT = Path(__file__).resolve().parents[1]


def provenance(module: str, arguments: Sequence[str] | None = None) -> dict[str, str]:
    """Return the date, the commit and the command of a run, for a log.

    Args:
        module: the module that runs, such as "benchmarks".
        arguments: command-line arguments; by default, those of this process.
    """
    return {
        "date": datetime.now(timezone.utc).strftime("%Y-%m-%d %H:%M UTC"),
        "commit": source_commit(),
        "command": command_line(module, arguments),
    }


def software() -> dict[str, str]:
    """Return the versions of bcrf, torch and Python."""
    return {
        "bcrf": bcrf.__version__,
        "torch": torch.__version__,
        "python": platform.python_version(),
    }


def hardware(device: torch.device | None = None) -> dict[str, Any]:
    """Return the device, the processor, and how torch and bcrf use it.

    Args:
        device: the device that runs the work; by default, the CPU.
    """
    is_cuda = device is not None and device.type == "cuda"
    return {
        "device": torch.cuda.get_device_name(device) if is_cuda else "cpu",
        "cpu": _cpu(),
        "cores": available_cores(),
        "threads": torch.get_num_threads(),
        "vector": torch.backends.cpu.get_cpu_capability(),
        "system": f"{platform.system()} {platform.machine()}",
        "native": "yes" if bcrf.backends()["native"] is None else "no",
    }


def load() -> float | None:
    """Return the load average of the last minute; None if the system does not report it."""
    return round(os.getloadavg()[0], 2) if hasattr(os, "getloadavg") else None


def available_cores() -> int:
    """Return the number of cores that this process may use."""
    if hasattr(os, "sched_getaffinity"):
        return len(os.sched_getaffinity(0))
    return os.cpu_count() or 1


def compiler() -> str:
    """Return the name and version of the C++ compiler; "" if there is none."""
    return _first_line("c++", "--version")


@cache  # a later commit does not change the code that runs
def source_commit() -> str:
    """Return the commit of the source tree; "" if there is none.

    The text ends in "-dirty" if any file other than the logs differs from the commit.
    """
    if not (ROOT / ".git").exists():
        return ""
    commit = _first_line("git", "describe", "--always")
    compare = ["git", "diff", "--quiet", "HEAD", "--", ".", ":(exclude)*.jsonl"]
    if not commit:
        return ""
    return commit + ("-dirty" if subprocess.run(compare, cwd=ROOT).returncode else "")


def command_line(module: str, arguments: Sequence[str] | None = None) -> str:
    """Return the command that runs a module, with absolute paths cut to their last part.

    Example:
        >>> command_line("reproduction", ["pos", "--data", "/home/ada/treebanks"])
        'python -m reproduction pos --data .../treebanks'
    """
    values = sys.argv[1:] if arguments is None else arguments
    return shlex.join(["python", "-m", module, *map(_without_folders, values)])


def _without_folders(argument: str) -> str:
    name, separator, value = argument.rpartition("=")
    if not os.path.isabs(value):
        return argument
    return f"{name}{separator}.../{Path(value).name}"


def _cpu() -> str:
    info = Path("/proc/cpuinfo")
    if info.exists():
        for line in info.read_text().splitlines():
            if line.startswith("model name"):
                return line.partition(":")[2].strip()
    return platform.processor() or "unknown"


def _first_line(*command: str) -> str:
    if shutil.which(command[0]) is None:
        return ""
    done = subprocess.run(command, capture_output=True, text=True, cwd=ROOT)
    return done.stdout.splitlines()[0] if done.returncode == 0 and done.stdout else ""
