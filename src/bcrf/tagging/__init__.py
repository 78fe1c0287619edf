"""Taggers for use: sentences in, labels and probabilities out; models as folders."""

from .decoding import REPAIRS
from .devices import choose_device
from .errors import ModelError
from .inputs import InputReader, Inputs, Vocabularies
from .results import Evaluation, Tagged
from .tagger import Tagger

__all__ = [
    "REPAIRS",
    "Evaluation",
    "InputReader",
    "Inputs",
    "ModelError",
    "Tagged",
    "Tagger",
    "Vocabularies",
    "choose_device",
]
