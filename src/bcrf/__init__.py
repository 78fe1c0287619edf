"""Structured inference for sequence labeling: Bregman CRF, linear-chain CRF, mean field.

chain = bcrf.LinearChain(unary, transitions, lengths)      # the problem
solution = bcrf.Bregman(iterations=10)(chain)              # a solver returns a solution
bcrf.loss(bcrf.Bregman(10), chain, tags).mean().backward()
"""

# The modules of this package are imported when they are first used: importing torch takes seconds,
# and `bcrf --help` does not need it.
import importlib
import typing

if typing.TYPE_CHECKING:
    from .chain import LinearChain
    from .checks import set_checks
    from .decoding import decode, map_decode
    from .inference import (
        Bregman,
        CertifiedTags,
        ForwardBackward,
        MeanField,
        Solution,
        Solver,
        Unstructured,
        certified_decode,
        entropy,
        k_best,
        kl,
        sample,
    )
    from .inference.viterbi import viterbi  # mypy takes `bcrf.inference.viterbi` for the module
    from .kernels import backends
    from .layers import CRF, BregmanCRF, ChainLayer, ExactCRF, MeanFieldCRF, TokenSoftmax
    from .logit_decoding import (
        DecodedLogits,
        LabeledSpan,
        TransitionBias,
        TunedBias,
        decode_logits,
        tune_transition_bias,
    )
    from .losses import loss, partial_loss
    from .structure import Structure
    from .tagger import Tagger

__version__ = "0.1.0"

__all__ = [
    "CRF",
    "Bregman",
    "BregmanCRF",
    "CertifiedTags",
    "ChainLayer",
    "DecodedLogits",
    "ExactCRF",
    "ForwardBackward",
    "LabeledSpan",
    "LinearChain",
    "MeanField",
    "MeanFieldCRF",
    "Solution",
    "Solver",
    "Structure",
    "Tagger",
    "TokenSoftmax",
    "TransitionBias",
    "TunedBias",
    "Unstructured",
    "__version__",
    "backends",
    "certified_decode",
    "decode",
    "decode_logits",
    "entropy",
    "k_best",
    "kl",
    "loss",
    "map_decode",
    "partial_loss",
    "sample",
    "set_checks",
    "tune_transition_bias",
    "viterbi",
]

_CORE = (
    "chain",
    "checks",
    "compat",
    "decoding",
    "inference",
    "kernels",
    "layers",
    "logit_decoding",
    "losses",
    "numerics",
    "structure",
)
"""The modules that `import bcrf` makes available as attributes. They define the public names,
except `Tagger`, which needs more packages than torch."""


def __dir__() -> list[str]:
    return sorted(__all__)


# Type checkers read the imports above; with this function they would accept any attribute.
if not typing.TYPE_CHECKING:

    def __getattr__(name: str) -> typing.Any:
        """Import the module that defines `name`, and return the attribute.

        The first public name other than `Tagger` imports the whole core.
        """
        if name in _CORE:
            return importlib.import_module(f".{name}", __name__)
        if name == "Tagger":
            globals()[name] = importlib.import_module(".tagger", __name__).Tagger
        elif name in __all__:
            _import_core()
        if name not in globals():
            raise AttributeError(f"module {__name__!r} has no attribute {name!r}")
        return globals()[name]


def _import_core() -> None:
    """Import the modules of the core, and copy their public names into this package."""
    for module_name in _CORE:
        module = importlib.import_module(f".{module_name}", __name__)
        names = set(getattr(module, "__all__", ())) & set(__all__)
        globals().update({name: getattr(module, name) for name in names})
