"""Attributes of tokens and spans that the components set."""

from __future__ import annotations

from collections.abc import Iterable
from typing import Any

from spacy.tokens import Span, Token

from ..tagger.tasks.pos import UPOS

__all__ = [
    "ENTITY_PROBABILITY",
    "TAG_PROBABILITY",
    "define_entity_probability",
    "define_tag_probability",
    "tag_attribute",
]

TAG_PROBABILITY, ENTITY_PROBABILITY = "tag_probability", "probability"
"""Names of the custom attributes `token._.tag_probability` and `ent._.probability`."""


def define_tag_probability() -> None:
    """Define `token._.tag_probability`, None by default."""
    _define(Token, TAG_PROBABILITY)


def define_entity_probability() -> None:
    """Define `span._.probability`, None by default."""
    _define(Span, ENTITY_PROBABILITY)


def tag_attribute(labels: Iterable[str]) -> str:
    """Return the attribute of tokens for these parts of speech.

    spaCy accepts only universal tags in `token.pos_`; `token.tag_` takes any tag.
    """
    return "pos" if UPOS.issuperset(labels) else "tag"


def _define(owner: Any, name: str) -> None:
    if not owner.has_extension(name):
        owner.set_extension(name, default=None)
        return
    _, method, getter, _ = owner.get_extension(name)
    if method is not None or getter is not None:
        kind = owner.__name__
        raise ValueError(
            f"{kind}._.{name} is already defined as a function, so probabilities cannot be stored "
            f"there; remove it with {kind}.remove_extension({name!r}), or set the component's "
            "probabilities = false"
        )
