"""Layers: structured output layers for any network that scores tags."""

from .families import BregmanCRF, ExactCRF, MeanFieldCRF, TokenSoftmax
from .layer import ChainLayer
from .masks import compact
from .pytorch_crf import CRF

__all__ = [
    "CRF",
    "BregmanCRF",
    "ChainLayer",
    "ExactCRF",
    "MeanFieldCRF",
    "TokenSoftmax",
    "compact",
]
