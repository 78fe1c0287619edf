"""Layers: a structured output for anybody's network."""

from .base import ChainLayer
from .compatible import CRF
from .families import BregmanCRF, ExactCRF, MeanFieldCRF, TokenSoftmax
from .masks import compact

__all__ = [
    "CRF",
    "BregmanCRF",
    "ChainLayer",
    "ExactCRF",
    "MeanFieldCRF",
    "TokenSoftmax",
    "compact",
]
