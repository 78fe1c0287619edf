"""Components that annotate documents: `bcrf_tagger` and `bcrf_ner`."""

from __future__ import annotations

import os
from abc import ABC, abstractmethod
from collections.abc import Callable, Iterable, Iterator, Sequence
from typing import Any

from spacy.scorer import Scorer, get_ner_prf
from spacy.tokens import Doc, Span, Token
from spacy.training import validate_examples
from spacy.util import minibatch, raise_error

from ..tag_schemes import parse_label
from ..tagger import Tagged
from ..tagger.prediction.options import TaggingOptions
from ..tagger.tasks import NO_TAG
from .attributes import define_entity_probability, define_tag_probability, tag_attribute
from .pipeline_model import PipelineModel

__all__ = ["NerComponent", "TaggerComponent"]

# The tags that spaCy itself gives to tokens of white space.
_SPACE_TAGS = {"pos": "SPACE", "tag": "_SP"}


class _Component(ABC):
    """A component that tags the sentences of documents with a model.

    If the document has sentence boundaries, its sentences are tagged one by one; otherwise the
    document is one sentence. Tokens of white space are left out, since models are not trained
    with them.
    """

    task: str

    def __init__(
        self,
        model: str | None,
        name: str,
        probabilities: bool,
        threshold: float | None,
        decoder: str | None,
        device: str,
    ) -> None:
        TaggingOptions(decoder or "viterbi", "rule", threshold=threshold)  # checks the values
        self.name = name
        self.probabilities, self.threshold, self.decoder = probabilities, threshold, decoder
        self.model = PipelineModel(name, model, (self.task,), device)
        self._error_handler: Callable[..., None] = raise_error

    @property
    @abstractmethod
    def labels(self) -> tuple[str, ...]:
        """The labels that the component assigns."""

    @abstractmethod
    def _assign(self, doc: Doc, found: list[tuple[list[Token], Tagged]]) -> None:
        """Write the results of the sentences of a document into the document."""

    # Annotating

    def __call__(self, doc: Doc) -> Doc:
        """Annotate one document, and return it."""
        self._annotate([doc])
        return doc

    def pipe(self, stream: Iterable[Doc], *, batch_size: int = 1000) -> Iterator[Doc]:
        """Annotate documents batch by batch, and yield them.

        Example:
            >>> import spacy
            >>> nlp = spacy.blank("en")
            >>> tagger = nlp.add_pipe("bcrf_tagger", config={"model": "runs/pos"})
            >>> docs = [nlp.make_doc("A dog barks."), nlp.make_doc("She sings.")]
            >>> [doc[-1].pos_ for doc in tagger.pipe(docs)]
            ['PUNCT', 'PUNCT']
        """
        for docs in minibatch(stream, batch_size):
            try:
                self._annotate(docs)
            except Exception as error:  # handled as the user of the pipeline wants it
                self._error_handler(self.name, self, docs, error)
            else:
                yield from docs

    def _annotate(self, docs: Sequence[Doc]) -> None:
        sentences = [list(_sentences(doc)) for doc in docs]
        results = self.model.tagger.stream(
            ([token.text for token in tokens] for group in sentences for tokens in group),
            probabilities=self.probabilities,
            decoder=self.decoder,
            threshold=self._threshold,
        )
        for doc, group in zip(docs, sentences, strict=True):
            self._assign(doc, [(tokens, next(results)) for tokens in group])

    @property
    def _threshold(self) -> float | None:
        return self.threshold

    def get_error_handler(self) -> Callable[..., None]:
        """Return the function that is called if a batch of documents fails."""
        return self._error_handler

    def set_error_handler(self, error_handler: Callable[..., None]) -> None:
        """Set this function; see `nlp.set_error_handler`."""
        self._error_handler = error_handler

    # Saving and loading

    def initialize(
        self, get_examples: Callable[[], Iterable[Any]] | None = None, *, nlp: Any = None
    ) -> None:
        """Load the model now, if it is not loaded yet; the examples are not used."""
        self.model.tagger  # noqa: B018

    def to_disk(self, path: str | os.PathLike[str], *, exclude: Iterable[str] = ()) -> None:
        """Save the model in a folder, atomically. The settings are in the pipeline's config."""
        self.model.to_disk(path)

    def from_disk(self, path: str | os.PathLike[str], *, exclude: Iterable[str] = ()) -> Any:
        """Load the model in a folder, and return the component."""
        self.model.from_disk(path)
        return self

    def to_bytes(self, *, exclude: Iterable[str] = ()) -> bytes:
        """Return the files of the model."""
        return self.model.to_bytes()

    def from_bytes(self, bytes_data: bytes, *, exclude: Iterable[str] = ()) -> Any:
        """Load the model that `to_bytes` returned, and return the component."""
        self.model.from_bytes(bytes_data)
        return self


class TaggerComponent(_Component):
    """The component `bcrf_tagger`: sets the part of speech of each token.

    It sets `token.pos_`; if the model has tags that are not universal, `token.tag_`.
    `token._.tag_probability` is the probability of the tag. Tokens of white space get the tag of
    spaCy, SPACE, without a probability.

    Args:
        model: the folder of a model of the task pos, or the name of a bundled one; None: load it
            with `from_disk` or `from_bytes`.
        name: the name of the component in the pipeline.
        probabilities: whether to set the probabilities.
        threshold: do not set tags that are less probable.
        decoder: the decoder (see `Tagger.tag`); None: that of the model.
        device: "cpu", "cuda", "cuda:N" or "auto".

    Example:
        >>> import spacy
        >>> nlp = spacy.blank("en")
        >>> tagger = nlp.add_pipe("bcrf_tagger", config={"model": "runs/pos"})
        >>> doc = nlp("The dog is old.")
        >>> [token.pos_ for token in doc]
        ['DET', 'NOUN', 'AUX', 'ADJ', 'PUNCT']
        >>> doc[0]._.tag_probability > 0.9
        True
    """

    task = "pos"

    def __init__(
        self,
        model: str | None = None,
        name: str = "bcrf_tagger",
        *,
        probabilities: bool = True,
        threshold: float | None = None,
        decoder: str | None = None,
        device: str = "cpu",
    ) -> None:
        super().__init__(model, name, probabilities, threshold, decoder, device)
        if probabilities:
            define_tag_probability()

    @property
    def labels(self) -> tuple[str, ...]:
        """The tags of the model; none if it is not loaded yet."""
        return self.model.tagger.labels if self.model.is_loaded else ()

    def score(self, examples: Iterable[Any]) -> dict[str, Any]:
        """Return the accuracy as `nlp.evaluate` does: "pos_acc" or "tag_acc".

        Example:
            >>> import spacy
            >>> from spacy.training import Example
            >>> nlp = spacy.blank("en")
            >>> tagger = nlp.add_pipe("bcrf_tagger", config={"model": "runs/pos"})
            >>> gold = {"words": ["The", "dog"], "pos": ["DET", "NOUN"]}
            >>> nlp.evaluate([Example.from_dict(nlp.make_doc("The dog"), gold)])["pos_acc"]
            1.0
        """
        examples = list(examples)
        validate_examples(examples, f"{self.name}.score")
        attribute = tag_attribute(self.model.tagger.labels)
        scores: dict[str, Any] = Scorer.score_token_attr(examples, attribute)
        return scores

    def _assign(self, doc: Doc, found: list[tuple[list[Token], Tagged]]) -> None:
        attribute = tag_attribute(self.model.tagger.labels)
        for token in doc:
            if token.is_space:
                setattr(token, f"{attribute}_", _SPACE_TAGS[attribute])
        for tokens, tagged in found:
            for token, tag in zip(tokens, tagged.tags, strict=True):
                if tag != NO_TAG:
                    setattr(token, f"{attribute}_", tag)
            if self.probabilities and tagged.probabilities is not None:
                for token, probability in zip(tokens, tagged.probabilities, strict=True):
                    token._.tag_probability = probability


class NerComponent(_Component):
    """The component `bcrf_ner`: adds named entities to `doc.ents`.

    `ent._.probability` is the probability of an entity: of its words, its type and its end.
    Entities that the document has already stay; predicted ones that overlap them are left out.

    Args:
        model: the folder of a model of the task ner, or the name of a bundled one; None: load it
            with `from_disk` or `from_bytes`.
        name: the name of the component in the pipeline.
        probabilities: whether to set the probabilities.
        threshold: leave out entities that are less probable.
        decoder: the decoder (see `Tagger.tag`); None: that of the model.
        device: "cpu", "cuda", "cuda:N" or "auto".

    Example:
        >>> import spacy
        >>> nlp = spacy.blank("en")
        >>> ner = nlp.add_pipe("bcrf_ner", config={"model": "runs/ner"})
        >>> doc = nlp("The ferry from Piraeus to Naxos was delayed.")
        >>> [(ent.text, ent.label_) for ent in doc.ents]
        [('Piraeus', 'LOC'), ('Naxos', 'LOC')]
        >>> doc.ents[0]._.probability > 0.5
        True
    """

    task = "ner"

    def __init__(
        self,
        model: str | None = None,
        name: str = "bcrf_ner",
        *,
        probabilities: bool = True,
        threshold: float | None = None,
        decoder: str | None = None,
        device: str = "cpu",
    ) -> None:
        super().__init__(model, name, probabilities, threshold, decoder, device)
        if probabilities:
            define_entity_probability()

    @property
    def labels(self) -> tuple[str, ...]:
        """The types of entities of the model; none if it is not loaded yet."""
        if not self.model.is_loaded:
            return ()
        labels = [label for label in self.model.tagger.labels if label != "O"]
        return tuple(dict.fromkeys(_entity_type(parse_label(label).type) for label in labels))

    @property
    def _threshold(self) -> float | None:
        # With a threshold, a tagger computes the probabilities of mentions, not only of words.
        return 0.0 if self.threshold is None and self.probabilities else self.threshold

    def score(self, examples: Iterable[Any]) -> dict[str, Any]:
        """Return precision, recall and F1 as `nlp.evaluate` does: "ents_p", "ents_r", "ents_f".

        Example:
            >>> import spacy
            >>> from spacy.training import Example
            >>> nlp = spacy.blank("en")
            >>> ner = nlp.add_pipe("bcrf_ner", config={"model": "runs/ner"})
            >>> gold = {"words": ["to", "Naxos"], "entities": ["O", "U-LOC"]}
            >>> nlp.evaluate([Example.from_dict(nlp.make_doc("to Naxos"), gold)])["ents_f"]
            1.0
        """
        examples = list(examples)
        validate_examples(examples, f"{self.name}.score")
        scores: dict[str, Any] = get_ner_prf(examples)
        return scores

    def _assign(self, doc: Doc, found: list[tuple[list[Token], Tagged]]) -> None:
        entities = list(doc.ents)
        taken = {token.i for entity in entities for token in entity}
        for tokens, tagged in found:
            for item in tagged.task.items(tagged.example, tagged.labels):
                first, last = tokens[item.start].i, tokens[item.end - 1].i
                if not taken.isdisjoint(range(first, last + 1)):
                    continue
                entity = Span(doc, first, last + 1, label=_entity_type(item.type))
                entities.append(entity)
                if self.probabilities and tagged.probabilities is not None:
                    entity._.probability = tagged.probabilities[item.start]
        doc.set_ents(entities)


def _entity_type(label: str) -> str:
    """Return the label of an entity; spaCy needs one, also for models without types."""
    return label or "ENTITY"


def _sentences(doc: Doc) -> Iterator[list[Token]]:
    """Yield the tokens of each sentence, without white space; no empty sentence."""
    for sentence in doc.sents if doc.has_annotation("SENT_START") else [doc]:
        tokens = [token for token in sentence if not token.is_space]
        if tokens:
            yield tokens
