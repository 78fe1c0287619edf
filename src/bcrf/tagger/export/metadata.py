"""The description in an ONNX file: what a program must know to compute features and name tags."""

from __future__ import annotations

import json
import sys
from importlib import metadata
from typing import Any

from ..data.features import FeatureVocabulary, character_class
from ..model_folder.limits import MAX_DESCRIPTION_BYTES
from ..prediction.tagger import Tagger
from .tagger_graph import ExportError

__all__ = ["METADATA_KEY", "describe"]

METADATA_KEY = "bcrf"
"""The key of the description in the metadata of the file."""

_FORMAT_VERSION = 1


def describe(tagger: Tagger, decoder: str, is_quantized: bool) -> str:
    """Return the description as JSON: plain values, at most `MAX_DESCRIPTION_BYTES` long.

    Raises:
        ExportError: the description would be longer.
    """
    vocabularies = tagger.vocabularies
    features, vectors = vocabularies.features, vocabularies.vectors
    assert features is not None
    task = tagger.task.to_dict()
    values: dict[str, Any] = {
        "format": _FORMAT_VERSION,
        "bcrf": metadata.version("bcrf"),
        "labels": task.pop("labels"),
        "task": task,
        "decoder": decoder,
        "quantized": is_quantized,
        "features": features.to_dict(),
        "vectors": None if vectors is None else list(vectors.words),
        "character_classes": _class_ranges(features) if features.kind == "character" else None,
    }
    text = json.dumps(values, ensure_ascii=False, separators=(",", ":"))
    size = len(text.encode())
    if size > MAX_DESCRIPTION_BYTES:
        raise ExportError(
            f"the labels and vocabularies take {size:,} bytes; at most {MAX_DESCRIPTION_BYTES:,} "
            "fit into the file. Train with a larger data.min_count, or fewer model.vector_words"
        )
    return text


def _class_ranges(features: FeatureVocabulary) -> list[list[Any]]:
    """Return [first, last, class] for the code points of each class that the network knows.

    Other programs need no table of Unicode names then: a code point in no range is unknown.
    """
    known = set(features.values["class"])
    ranges: list[list[Any]] = []
    for code in range(sys.maxunicode + 1):
        name = character_class(chr(code))
        if name not in known:
            continue
        if ranges and ranges[-1][1] == code - 1 and ranges[-1][2] == name:
            ranges[-1][1] = code
        else:
            ranges.append([code, code, name])
    return ranges
