"""Find the folder of a model: a path, the best model of a training run, or a bundled model."""

from __future__ import annotations

import os
from pathlib import Path

from ..files import current_path
from .bundled import bundled_folder, bundled_models
from .description import DESCRIPTION, read_description
from .model_files import ModelError

__all__ = ["absolute_path", "locate", "model_identity"]


def locate(path: Path) -> Path:
    """Return the folder of a model.

    It is `path`; or `path/best` if that is a training run; or, if nothing has this path, the
    bundled model of this name.
    """
    for folder in (current_path(path), current_path(path / "best")):
        if (folder / DESCRIPTION).is_file():
            return folder
    if not path.exists():
        bundled = bundled_folder(str(path))
        if bundled is not None:
            return bundled
        names = ", ".join(model.name for model in bundled_models())
        raise ModelError(
            f"{path}: there is no such folder; expected the folder of a model, with {DESCRIPTION}, "
            f"or the name of a bundled model: {names}"
        )
    if not path.is_dir():
        raise ModelError(f"{path}: expected the folder of a model, found a file")
    raise ModelError(f"{path}: holds no model; expected {DESCRIPTION} in it, or best/{DESCRIPTION}")


def absolute_path(model: str | os.PathLike[str]) -> str:
    """Return a path that leads other processes to the same model, whatever their current folder."""
    bundled = None if os.path.exists(model) else bundled_folder(os.fspath(model))
    return os.path.abspath(bundled or model)


def model_identity(path: Path) -> str:
    """Return a checksum of the model at `path` (see `locate`); only `model.json` is read."""
    return read_description(locate(path)).identity
