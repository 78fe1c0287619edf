"""The models that come with the package, in the folder `bcrf/models`.

They are ordinary model folders. `make models` trains them. `info["bundled"]` in their `model.json`
says what they do, from which data they were trained, under which licence, and how they score.
"""

from __future__ import annotations

from dataclasses import dataclass
from pathlib import Path

from .description import DESCRIPTION, read_description

__all__ = ["BUNDLED_FOLDER", "DEFAULT_MODEL", "BundledModel", "bundled_folder", "bundled_models"]

BUNDLED_FOLDER = Path(__file__).parents[2] / "models"
"""The folder of the bundled models."""

DEFAULT_MODEL = "en"
"""The bundled model that `bcrf tag` uses if no model is named."""


@dataclass(frozen=True)
class BundledModel:
    """A model that comes with the package.

    Args:
        name: the name that `Tagger.load` takes.
        folder: its folder.
        does: what the model does.
        data: the treebank that it was trained on.
        licence: the licence of the weights, which is that of the treebank.
        scores: name of a score -> its value on the test file, from 0 to 1.

    Example:
        >>> from bcrf.tagger import bundled_models
        >>> [model.name for model in bundled_models()]
        ['en', 'ja']
    """

    name: str
    folder: Path
    does: str
    data: str
    licence: str
    scores: dict[str, float]

    @property
    def size(self) -> int:
        """The number of bytes of its files."""
        return sum(path.stat().st_size for path in self.folder.rglob("*") if path.is_file())


def bundled_models() -> list[BundledModel]:
    """Return the models that come with the package, in the order of their names.

    Example:
        >>> from bcrf.tagger import bundled_models
        >>> {model.name: model.licence for model in bundled_models()}
        {'en': 'CC BY-SA 4.0', 'ja': 'CC BY-SA 4.0'}
    """
    models = []
    for name in _names():
        folder = BUNDLED_FOLDER / name
        about = read_description(folder).values["info"]["bundled"]
        models.append(BundledModel(name, folder, **about))
    return models


def bundled_folder(name: str) -> Path | None:
    """Return the folder of the bundled model with this name; None if there is none.

    Example:
        >>> from bcrf.tagger.model_folder.bundled import bundled_folder
        >>> bundled_folder("en").name, bundled_folder("../models/en")
        ('en', None)
    """
    return BUNDLED_FOLDER / name if name in _names() else None


def _names() -> list[str]:
    return sorted(path.parent.name for path in BUNDLED_FOLDER.glob(f"*/{DESCRIPTION}"))
