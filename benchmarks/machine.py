"""Where a run took place, and what took part."""

from __future__ import annotations

import os
import platform
import shutil
import subprocess
from datetime import datetime, timezone
from pathlib import Path
from typing import Any

import torch

import bcrf

from .systems import SYSTEMS, System, brief
from .systems.ours import auto_backend

__all__ = ["cores", "machine", "participants"]


def cores() -> int:
    """Cores that this process may use."""
    if hasattr(os, "sched_getaffinity"):
        return len(os.sched_getaffinity(0))
    return os.cpu_count() or 1


def machine() -> dict[str, Any]:
    return {
        "date": datetime.now(timezone.utc).strftime("%Y-%m-%d %H:%M UTC"),
        "cpu": _cpu(),
        "cores": cores(),
        "vector": torch.backends.cpu.get_cpu_capability(),
        "system": f"{platform.system()} {platform.machine()}",
        "python": platform.python_version(),
        "torch": torch.__version__,
        "compiler": _first_line("c++", "--version"),
        "bcrf": bcrf.__version__,
        "commit": _first_line("git", "describe", "--always", "--dirty"),
        'backend "auto"': brief(auto_backend()),
    }


def participants() -> list[dict[str, str]]:
    """Version and settings of every system."""
    return [
        {"system": s.name, "role": s.role, "version": _version(s), "settings": s.settings}
        for s in SYSTEMS.values()
    ]


def _version(system: System) -> str:
    if system.role == "ours":
        return f"bcrf {bcrf.__version__}"
    return f"{system.package} {system.version}" if system.package else ""


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
    where = Path(__file__).parent
    done = subprocess.run(command, capture_output=True, text=True, cwd=where)
    return done.stdout.splitlines()[0] if done.returncode == 0 and done.stdout else ""
