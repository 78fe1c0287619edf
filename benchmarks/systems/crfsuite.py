"""Run python-crfsuite: decode with a model whose features are our scores.

CRFsuite takes named attributes, not emissions. We give position i one real-valued attribute for
each tag t, with value unary[i, t] and weight 1 for tag t. The state scores of CRFsuite then equal
our unary scores, and its tagger solves the same problem as `viterbi`. To get a model with these
attributes, we train for one step on one sentence and then overwrite the weights in the file.

We do not measure the trainer of CRFsuite. It computes the gradient with respect to its own weights,
not with respect to emissions.
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

# Byte 28 of the header of a model holds the offset of the table of features. The table is
#   [mark][size][number of records][record][record]...     mark, size and number: 4 bytes each
# and a record is
#   [type][source][target][weight]                          4 + 4 + 4 + 8 bytes
# where type 0 is attribute -> tag and type 1 is tag -> tag.
OFFSET, RECORD = 28, struct.Struct("<IIId")


def _model(path: Path, transitions: Tensor) -> None:
    """Write a model with weight 1 for attribute t at tag t, and our transitions."""
    import pycrfsuite

    tags = [str(t) for t in range(len(transitions))]
    trainer = pycrfsuite.Trainer(verbose=False)
    trainer.set_params({"max_iterations": 1, "feature.possible_transitions": True})
    # CRFsuite numbers attributes and tags in the order of their first occurrence.
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
        tagger.open(str(path))  # reads the whole file into memory
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
        cpu_only=True,
        cannot={"loss": "gradients by its feature weights only, not by emissions"},
    ),
)
