"""python-crfsuite: tags with a model whose features are our scores.

CRFsuite knows features of strings, not emissions. Its tagger does the work of `viterbi` all the
same when position i has T real-valued attributes, attribute t with value unary[i, t] and weight 1
for tag t: then its state scores are our unary scores. A model with such features comes from one
step of training on one sentence; its weights are overwritten in the file.

Its trainer has no counterpart here: it gives gradients by its own weights, not by emissions.
"""

from __future__ import annotations

import struct
import tempfile
from pathlib import Path
from typing import Any

from torch import Tensor

from ..cases import Problem
from .base import DecodeCall, System

__all__ = ["SYSTEMS"]

# The header of a model holds, from byte 28, the offset of the table of features: a mark, the size
# and the number of records (4 bytes each), then records of type (0: attribute -> tag, 1: tag ->
# tag), source and target, 4 bytes each, and the weight, 8 bytes.
OFFSET, RECORD = 28, struct.Struct("<IIId")


def _model(path: Path, transitions: Tensor) -> None:
    """Write a model with weight 1 for attribute t at tag t, and our transitions."""
    import pycrfsuite

    tags = [str(t) for t in range(len(transitions))]
    trainer = pycrfsuite.Trainer(verbose=False)
    trainer.set_params({"max_iterations": 1, "feature.possible_transitions": True})
    # Attributes and tags are numbered as they come.
    trainer.append([{tag: 1.0} for tag in tags], tags)
    trainer.train(str(path))
    content = bytearray(path.read_bytes())
    (start,) = struct.unpack_from("<I", content, OFFSET)
    mark, _, count = struct.unpack_from("<4sII", content, start)
    if mark != b"FEAT" or count != len(tags) + len(tags) ** 2:
        raise RuntimeError(f"unexpected model file: {mark!r}, {count} features")
    weights = transitions.tolist()
    for i in range(count):
        place = start + 12 + i * RECORD.size
        kind, source, target, _ = RECORD.unpack_from(content, place)
        weight = weights[source][target] if kind else 1.0
        RECORD.pack_into(content, place, kind, source, target, weight)
    path.write_bytes(content)


def _decode(problem: Problem) -> DecodeCall:
    import pycrfsuite

    unary, transitions = problem.penalised()
    tagger = pycrfsuite.Tagger()
    with tempfile.TemporaryDirectory() as folder:
        path = Path(folder) / "model"
        _model(path, transitions)
        tagger.open(str(path))  # read into memory
    sentences: list[Any] = [
        pycrfsuite.ItemSequence([{str(t): x for t, x in enumerate(word)} for word in sentence])
        for sentence in unary.tolist()
    ]

    def call() -> list[list[int]]:
        return [[int(tag) for tag in tagger.tag(sentence)] for sentence in sentences]

    return call


SYSTEMS = (
    System(
        "python-crfsuite",
        "peer",
        "Tagger.tag, one thread, float64; scores as T real-valued attributes per word, converted "
        "outside of the clock; -1e4 for constraints",
        decode=_decode,
        pairs=("shared",),
        package="python-crfsuite",
        cannot={"loss": "gradients by its feature weights only, not by emissions"},
    ),
)
