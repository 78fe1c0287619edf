"""The network of a tagger: encoders, the scorer, the whole model, and its optimizer."""

from .attention import SelfAttentiveEncoder
from .batch import PADDING, UNKNOWN, Batch, FeatureIds, Spellings, collate
from .clipping import clip_gradients, largest_gradient
from .config import ModelConfig, Sizes
from .context import BiLSTM, GatedConvolutions
from .embeddings import CharacterCNN, WordEmbeddings
from .features import FeatureEmbeddings, FeatureEncoder
from .lazy_adam import LazyAdam
from .methods import (
    check_decoder,
    check_objective,
    decoder,
    decoder_reach,
    default_decoder,
    named_iterations,
    parse_decoder,
    probability_reach,
    probability_solver,
    training_solver,
)
from .network import TaggerModel, weight_shapes
from .pieces import Frame, Pieces, Windows
from .pretrained import EncoderParts, PretrainedEncoder
from .scorer import Scorer

__all__ = [
    "PADDING",
    "UNKNOWN",
    "Batch",
    "BiLSTM",
    "CharacterCNN",
    "EncoderParts",
    "FeatureEmbeddings",
    "FeatureEncoder",
    "FeatureIds",
    "Frame",
    "GatedConvolutions",
    "LazyAdam",
    "ModelConfig",
    "Pieces",
    "PretrainedEncoder",
    "Scorer",
    "SelfAttentiveEncoder",
    "Sizes",
    "Spellings",
    "TaggerModel",
    "Windows",
    "WordEmbeddings",
    "check_decoder",
    "check_objective",
    "clip_gradients",
    "collate",
    "decoder",
    "decoder_reach",
    "default_decoder",
    "largest_gradient",
    "named_iterations",
    "parse_decoder",
    "probability_reach",
    "probability_solver",
    "training_solver",
    "weight_shapes",
]
