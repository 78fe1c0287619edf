"""Changes to the folder of a model that an attacker could make, with correct digests."""

from __future__ import annotations

import hashlib
import json
from collections.abc import Callable
from pathlib import Path
from typing import Any

__all__ = ["change_description", "change_encoder_config", "reseal"]


def reseal(folder: Path, listed: set[str] | None = None) -> None:
    """Update the digests of all files, so that changes are not noticed.

    Args:
        listed: the files that `model.json` is to name; None: all that are there.
    """

    def update(values: dict[str, Any]) -> None:
        files = {p.relative_to(folder).as_posix(): p for p in folder.rglob("*") if p.is_file()}
        files.pop("model.json")
        values["files"] = {
            name: hashlib.sha256(path.read_bytes()).hexdigest()
            for name, path in files.items()
            if listed is None or name in listed
        }

    change_description(folder, update)


def change_description(folder: Path, change: Callable[[dict[str, Any]], object]) -> None:
    """Change the values of `model.json`, and write its own digest again."""
    path = folder / "model.json"
    values = json.loads(path.read_text(encoding="utf-8"))
    values.pop("sha256", None)
    change(values)
    text = json.dumps(values, sort_keys=True, separators=(",", ":"))
    values["sha256"] = hashlib.sha256(text.encode()).hexdigest()
    path.write_text(json.dumps(values), encoding="utf-8")


def change_encoder_config(folder: Path, **changes: Any) -> None:
    """Change values of the pretrained encoder's `config.json`, and all digests."""
    path = folder / "encoder" / "config.json"
    path.write_text(json.dumps(json.loads(path.read_text(encoding="utf-8")) | changes))
    reseal(folder)
