"""Read the network, task and vocabularies of a model from its folder.

The folder is not trusted. Before anything is built, the sizes in `model.json` and in the
configuration of the encoder must agree with the header of the weights, and every file must have the
checksum in `model.json`.
"""

from __future__ import annotations

import tempfile
from collections.abc import Mapping
from dataclasses import dataclass
from pathlib import Path, PurePosixPath
from typing import Any

import torch
from torch import Tensor

from .. import tasks
from ..nn import EncoderParts, ModelConfig, TaggerModel, weight_shapes
from ..nn.inputs import Vocabularies
from ..tasks import Task
from . import description as folders
from .description import Description
from .limits import MAX_ENCODER_NUMBER, check_labels, check_methods, check_network
from .model_files import ModelError, parse_json
from .tensors import TensorInfo
from .weight_storage import stored_infos

__all__ = ["ModelParts", "read_model"]


@dataclass(frozen=True)
class ModelParts:
    """The parts of a tagger.

    Args:
        model: the network with its weights, on the CPU.
        task: the task, with its labels.
        vocabularies: the vocabularies of the network.
        values: the content of `model.json`, with decoder, repair and info.
        has_tokenizer: whether the folder also holds a tokenizer.
    """

    model: TaggerModel
    task: Task
    vocabularies: Vocabularies
    values: Mapping[str, Any]
    has_tokenizer: bool


def read_model(folder: Path) -> ModelParts:
    """Read and verify a model.

    Raises:
        ModelError: a file is missing, damaged, of another format version, not listed in
            `model.json`, or asks for more than `limits` permits.
    """
    description = folders.read_description(folder)
    folders.refuse_python(folder)
    try:
        return _build(folder, description, _read_encoder(folder, description))
    except ModelError:
        raise
    except (KeyError, OSError, TypeError, ValueError, RuntimeError) as error:
        # The checksums agree, so another version of the library must have written the files.
        reason = " ".join(str(error).split())
        raise ModelError(f"{folder}: does not fit this version of bcrf: {reason}") from error


def _build(
    folder: Path, description: Description, encoder_parts: EncoderParts | None
) -> ModelParts:
    values = description.values
    config = ModelConfig.from_dict(values["model"])
    check_network(config)
    check_methods(decoder=values["decoder"])
    check_labels(values["task"].get("labels"))
    if config.pretrained is not None and encoder_parts is None:
        raise ModelError(
            f"{folder}: the model has a pretrained encoder, but model.json lists no files in "
            f"{folders.ENCODER}/"
        )
    if config.pretrained is None and encoder_parts is not None:
        raise ModelError(
            f"{folder}: the model has no pretrained encoder, but model.json lists files in "
            f"{folders.ENCODER}/"
        )
    task = tasks.from_dict(values["task"])
    vocabularies = Vocabularies.from_dict(values["vocabularies"])
    network = (config, vocabularies.sizes(len(task.labels)), task.structure, encoder_parts)
    found = folders.weight_infos(folder)
    # There are a few modules without weights, such as dropout, for each tensor of weights.
    expected = weight_shapes(*network, most_modules=1000 + 10 * len(found))
    _check_weights(folder / folders.WEIGHTS, found, stored_infos(expected, description.storage))
    folders.verify(folder, description)
    with torch.random.fork_rng(devices=[]):  # the initial random weights are not used
        model = TaggerModel(*network)
    weights = folders.read_weights(folder)
    _check_finite(folder / folders.WEIGHTS, weights)
    model.load_state_dict(weights)
    return ModelParts(model, task, vocabularies, values, description.has_tokenizer)


def _read_encoder(folder: Path, description: Description) -> EncoderParts | None:
    """Return the parts of the pretrained encoder; None if the model has none.

    transformers reads all files that it finds in a folder. So we verify the files that `model.json`
    names, copy them to a temporary folder, and let transformers read that folder.
    """
    if not description.encoder_files:
        return None
    origin = folder / folders.ENCODER
    with tempfile.TemporaryDirectory() as copies:
        for name in description.encoder_files:
            content = folders.read_encoder_file(folder, name, description.files[name])
            file = PurePosixPath(name).name
            if file.endswith(".json"):
                document = parse_json(origin / file, content)
                if file == "config.json":
                    _check_numbers(origin / file, document)
            (Path(copies) / file).write_bytes(content)
        try:
            parts = EncoderParts.read(copies)
        except (OSError, ValueError) as error:
            raise ModelError(f"{origin}: {str(error).replace(copies, str(origin))}") from error
    parts.config.name_or_path = str(origin)  # for messages; the temporary folder is gone
    return parts


def _check_numbers(path: Path, value: Any, key: str = "") -> None:
    """Raise if an integer in the configuration of an encoder is too large."""
    if isinstance(value, dict):
        for name, item in value.items():
            _check_numbers(path, item, name)
    elif isinstance(value, list):
        for item in value:
            _check_numbers(path, item, key)
    elif isinstance(value, int) and abs(value) > MAX_ENCODER_NUMBER:
        raise ModelError(
            f"{path}: {key!r:.60} is {value!r:.30}; expected a number of at most "
            f"{MAX_ENCODER_NUMBER:,}"
        )


def _check_weights(
    path: Path, found: Mapping[str, TensorInfo], expected: Mapping[str, TensorInfo]
) -> None:
    """Raise unless the file of the weights has exactly the tensors of the network."""
    for name in (*expected, *found):
        if name not in found:
            raise ModelError(f"{path}: lacks the weights {name!r} of the network in model.json")
        if name not in expected:
            raise ModelError(f"{path}: the network in model.json has no weights {name!r:.60}")
        if found[name] != expected[name]:
            raise ModelError(
                f"{path}: {name!r} is {_shown(found[name])}; expected {_shown(expected[name])}, as "
                "the network in model.json has it"
            )


def _shown(info: TensorInfo) -> str:
    return f"{info.dtype} {list(info.shape)}"


def _check_finite(path: Path, weights: Mapping[str, Tensor]) -> None:
    for name, tensor in weights.items():
        if not tensor.isfinite().all():
            raise ModelError(
                f"{path}: {name!r} has entries that are NaN or infinite; train the model again"
            )
