"""Legal label sequences and spans for the logits of any token classifier.

The classifier was trained without a CRF. Its logits define a chain: log-softmax per position,
optional biases on transitions, and no illegal transition. `decode_logits` finds its best label
sequence, and the probability of each span.
"""

from .decode import DecodedLogits, LabeledSpan, decode_logits
from .transition_bias import TransitionBias
from .tuning import TunedBias, tune_transition_bias

__all__ = [
    "DecodedLogits",
    "LabeledSpan",
    "TransitionBias",
    "TunedBias",
    "decode_logits",
    "tune_transition_bias",
]
