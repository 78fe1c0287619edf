"""Taggers: from sentences to labels and probabilities; models are saved as folders."""

# Public names are imported on first use, so `bcrf.tagger.files` and the command line load no torch.
import importlib
import typing

if typing.TYPE_CHECKING:
    from .model_folder.bundled import BundledModel, bundled_models
    from .model_folder.model_files import ModelError
    from .nn.inputs import InputReader, Inputs, Vocabularies
    from .prediction.calibration import Calibration, Reliability, calibrate
    from .prediction.decoding import REPAIRS
    from .prediction.devices import choose_device
    from .prediction.results import Evaluation, Tagged
    from .prediction.tag_batch import TagBatch
    from .prediction.tagger import Tagger
    from .prediction.tokenizer import Tokenizer

__all__ = [
    "REPAIRS",
    "BundledModel",
    "Calibration",
    "Evaluation",
    "InputReader",
    "Inputs",
    "ModelError",
    "Reliability",
    "TagBatch",
    "Tagged",
    "Tagger",
    "Tokenizer",
    "Vocabularies",
    "bundled_models",
    "calibrate",
    "choose_device",
]

_MODULES = {
    "REPAIRS": "prediction.decoding",
    "BundledModel": "model_folder.bundled",
    "Calibration": "prediction.calibration",
    "Evaluation": "prediction.results",
    "InputReader": "nn.inputs",
    "Inputs": "nn.inputs",
    "ModelError": "model_folder.model_files",
    "Reliability": "prediction.calibration",
    "TagBatch": "prediction.tag_batch",
    "Tagged": "prediction.results",
    "Tagger": "prediction.tagger",
    "Tokenizer": "prediction.tokenizer",
    "Vocabularies": "nn.inputs",
    "bundled_models": "model_folder.bundled",
    "calibrate": "prediction.calibration",
    "choose_device": "prediction.devices",
}
"""The module that defines each public name."""


def __dir__() -> list[str]:
    return sorted(__all__)


# Hidden from type checkers, which would accept any attribute because of this function.
if not typing.TYPE_CHECKING:

    def __getattr__(name: str) -> typing.Any:
        """Import a public name on first use and return it."""
        if name not in _MODULES:
            raise AttributeError(f"module {__name__!r} has no attribute {name!r}")
        module = importlib.import_module(f".{_MODULES[name]}", __name__)
        globals()[name] = getattr(module, name)
        return globals()[name]
