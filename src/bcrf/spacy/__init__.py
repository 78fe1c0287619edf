"""Components for spaCy pipelines: `bcrf_tagger`, `bcrf_ner`, and the tokenizer `bcrf_segmenter`.

spaCy finds them by the entry points of this package, so `nlp.add_pipe("bcrf_tagger")` needs no
import. It imports this module whenever it creates a pipeline, so the classes, and with them the
tagger, are imported only when they are used.
"""

import importlib
import typing
from collections.abc import Callable

try:
    from spacy import Language
except ModuleNotFoundError as error:
    if error.name != "spacy":
        raise
    raise ImportError("bcrf.spacy needs the package spacy: pip install '.[spacy]'") from error

if typing.TYPE_CHECKING:
    from .components import NerComponent, TaggerComponent
    from .segmenter import Segmenter

__all__ = [
    "NerComponent",
    "Segmenter",
    "TaggerComponent",
    "make_ner",
    "make_segmenter",
    "make_tagger",
    "refuse_segmenter",
]

_MODULES = {
    "NerComponent": "components",
    "Segmenter": "segmenter",
    "TaggerComponent": "components",
}
"""The module that defines each class."""


def __dir__() -> list[str]:
    return sorted(__all__)


# Hidden from type checkers, which would accept any attribute because of this function.
if not typing.TYPE_CHECKING:

    def __getattr__(name: str) -> typing.Any:
        """Import a class on first use and return it."""
        if name not in _MODULES:
            raise AttributeError(f"module {__name__!r} has no attribute {name!r}")
        module = importlib.import_module(f".{_MODULES[name]}", __name__)
        globals()[name] = getattr(module, name)
        return globals()[name]


# spaCy reads the settings and their types from these signatures when they are called, so this
# module has no `from __future__ import annotations`.


def make_tagger(
    nlp: Language,
    name: str,
    model: str | None,
    probabilities: bool,
    threshold: float | None,
    decoder: str | None,
    device: str,
) -> "TaggerComponent":
    """Return the component `bcrf_tagger`; spaCy calls this function."""
    from .components import TaggerComponent

    return TaggerComponent(
        model,
        name,
        probabilities=probabilities,
        threshold=threshold,
        decoder=decoder,
        device=device,
    )


def make_ner(
    nlp: Language,
    name: str,
    model: str | None,
    probabilities: bool,
    threshold: float | None,
    decoder: str | None,
    device: str,
) -> "NerComponent":
    """Return the component `bcrf_ner`; spaCy calls this function."""
    from .components import NerComponent

    return NerComponent(
        model,
        name,
        probabilities=probabilities,
        threshold=threshold,
        decoder=decoder,
        device=device,
    )


def make_segmenter(
    model: str | None = None,
    probabilities: bool = True,
    decoder: str | None = None,
    device: str = "cpu",
) -> Callable[[Language], "Segmenter"]:
    """Return a function that makes the tokenizer `bcrf_segmenter` of a pipeline."""

    def make(nlp: Language) -> "Segmenter":
        from .segmenter import Segmenter

        return Segmenter(
            nlp.vocab, model, probabilities=probabilities, decoder=decoder, device=device
        )

    return make


def refuse_segmenter(nlp: Language, name: str, model: str | None) -> typing.Any:
    """Explain how to use `bcrf_segmenter`: it creates documents, so it is no component."""
    raise ValueError(
        "bcrf_segmenter is a tokenizer, which creates documents, and not a component; set it in "
        f"the config: spacy.blank({nlp.lang!r}, config={{'nlp': {{'tokenizer': "
        f"{{'@tokenizers': 'bcrf_segmenter', 'model': {model or 'FOLDER'!r}}}}}}})"
    )


_SETTINGS = {
    "model": None,
    "probabilities": True,
    "threshold": None,
    "decoder": None,
    "device": "cpu",
}

Language.factory(
    "bcrf_tagger",
    default_config=_SETTINGS,
    assigns=["token.pos", "token._.tag_probability"],
    default_score_weights={"pos_acc": 1.0},
    func=make_tagger,
)
Language.factory(
    "bcrf_ner",
    default_config=_SETTINGS,
    assigns=["doc.ents", "token.ent_iob", "token.ent_type", "span._.probability"],
    default_score_weights={"ents_f": 1.0, "ents_p": 0.0, "ents_r": 0.0},
    func=make_ner,
)
Language.factory("bcrf_segmenter", default_config={"model": None}, func=refuse_segmenter)
