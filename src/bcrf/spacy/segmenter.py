"""The tokenizer `bcrf_segmenter`: divides texts into words, for languages without spaces."""

from __future__ import annotations

import os
from collections.abc import Iterable, Iterator, Sequence
from dataclasses import dataclass, field
from typing import Any

from spacy.scorer import Scorer
from spacy.tokens import Doc
from spacy.training import validate_examples
from spacy.util import minibatch
from spacy.vocab import Vocab

from ..tagger import Tagged, Tagger, Tokenizer
from ..tagger.data.lines import BOM
from ..tagger.prediction.options import TaggingOptions
from ..tagger.tasks import Segmentation, Tokenization
from .attributes import define_tag_probability, tag_attribute
from .pipeline_model import PipelineModel

__all__ = ["Segmenter"]


@dataclass
class _Words:
    """The words of a text.

    Args:
        spans: the (start, end) of each word, in order.
        tags: the tag of each word, if the model gives tags.
        probabilities: the probability of each word with its tag, if asked for.
        begins_sentence: whether each word begins a sentence, if the model finds sentences.
    """

    spans: list[tuple[int, int]] = field(default_factory=list)
    tags: list[str] = field(default_factory=list)
    probabilities: list[float] = field(default_factory=list)
    begins_sentence: list[bool] = field(default_factory=list)


class Segmenter:
    """The tokenizer `bcrf_segmenter`, which is set in the config of a pipeline.

    A model of the task segmentation finds the words of each line and their parts of speech: it
    sets `token.pos_` (or `token.tag_`, see `TaggerComponent`) and `token._.tag_probability`, the
    probability of the word with its tag. A tokenizer for raw text, or a tagger whose folder has
    one, finds words and sentences. No character of a text is lost: white space that spaCy cannot
    attach to a word becomes a token.

    Args:
        vocab: the vocabulary of the pipeline.
        model: the folder of a model, or the name of a bundled one; None: load it with `from_disk`
            or `from_bytes`.
        probabilities: whether to set the probabilities.
        decoder: the decoder of a model of the task segmentation (see `Tagger.tag`); None: its own.
        device: "cpu", "cuda", "cuda:N" or "auto".

    Example:
        >>> import spacy
        >>> tokenizer = {"@tokenizers": "bcrf_segmenter", "model": "runs/zh"}
        >>> nlp = spacy.blank("zh", config={"nlp": {"tokenizer": tokenizer}})
        >>> doc = nlp("我昨天买了两个包子。")
        >>> [token.text for token in doc]
        ['我', '昨天', '买', '了', '两', '个', '包子', '。']
        >>> doc[0].pos_
        'PRON'
    """

    def __init__(
        self,
        vocab: Vocab,
        model: str | None = None,
        *,
        probabilities: bool = True,
        decoder: str | None = None,
        device: str = "cpu",
    ) -> None:
        TaggingOptions(decoder or "viterbi", "rule")  # checks the name
        self.vocab = vocab
        self.probabilities, self.decoder = probabilities, decoder
        tasks = (Segmentation.name, Tokenization.name)
        self.model = PipelineModel("bcrf_segmenter", model, tasks, device)
        if probabilities:
            define_tag_probability()

    def __call__(self, text: str) -> Doc:
        """Return the document of a text."""
        return next(self.pipe([text]))

    def pipe(self, texts: Iterable[str], batch_size: int = 1000) -> Iterator[Doc]:
        """Yield the documents of texts. Short texts are tagged together, which takes less time.

        Example (`nlp` as in `Segmenter`):
            >>> import spacy
            >>> tokenizer = {"@tokenizers": "bcrf_segmenter", "model": "runs/zh"}
            >>> nlp = spacy.blank("zh", config={"nlp": {"tokenizer": tokenizer}})
            >>> docs = nlp.tokenizer.pipe(["我买了两个包子。", "今天早上"])
            >>> [doc[0].text for doc in nlp.pipe(docs)]
            ['我', '今天']
        """
        for batch in minibatch(texts, batch_size):
            tagger = self.model.tagger
            if isinstance(tagger.task, Segmentation):
                found = self._segment(tagger, batch)
            else:
                found = (self._tokenize(tagger, text) for text in batch)
            for text, words in zip(batch, found, strict=True):
                yield self._document(text, words, tagger)

    def _segment(self, tagger: Tagger, texts: Sequence[str]) -> Iterator[_Words]:
        """Yield the words of each text; its lines are segmented one by one."""
        lines = [text.splitlines(keepends=True) for text in texts]
        results = tagger.stream(
            (line for group in lines for line in group),
            probabilities=self.probabilities,
            decoder=self.decoder,
        )
        for group in lines:
            words, start = _Words(), 0
            for line in group:
                tagged = next(results)
                words.spans += [(start + a, start + b) for a, b in _places(tagged)]
                words.tags += tagged.tags
                words.probabilities += tagged.probabilities or ()
                start += len(line)
            yield words

    @staticmethod
    def _tokenize(tagger: Tagger, text: str) -> _Words:
        tokenizer = tagger.tokenizer or Tokenizer(tagger)
        words = _Words()
        skipped = len(BOM) if text.startswith(BOM) else 0  # offsets do not count it
        for tagged in tokenizer.stream([text]):
            assert isinstance(tagged.task, Tokenization)
            start = skipped + (tagged.sentence.offset or 0)
            starts, ends, _ = tagged.task.spans(tagged.labels)
            words.spans += [(start + a, start + b) for a, b in zip(starts, ends, strict=True)]
            words.begins_sentence += [place == 0 for place in range(len(starts))]
        return words

    def _document(self, text: str, words: _Words, tagger: Tagger) -> Doc:
        forms, spaces, numbers = _tokens(text, words.spans)
        values: dict[str, Any] = {}
        if words.begins_sentence:
            values["sent_starts"] = [n is not None and words.begins_sentence[n] for n in numbers]
        if words.tags:
            attribute = "pos" if tag_attribute(_tags(tagger)) == "pos" else "tags"
            space = "SPACE" if attribute == "pos" else "_SP"
            values[attribute] = [space if n is None else words.tags[n] for n in numbers]
        doc = Doc(self.vocab, words=forms, spaces=spaces, **values)
        if words.probabilities:
            for token, n in zip(doc, numbers, strict=True):
                if n is not None:
                    token._.tag_probability = words.probabilities[n]
        return doc

    def score(self, examples: Iterable[Any]) -> dict[str, Any]:
        """Return the scores of tokens as `nlp.evaluate` does: "token_f" and others.

        Example:
            >>> import spacy
            >>> from spacy.training import Example
            >>> tokenizer = {"@tokenizers": "bcrf_segmenter", "model": "runs/zh"}
            >>> nlp = spacy.blank("zh", config={"nlp": {"tokenizer": tokenizer}})
            >>> gold = {"words": ["今天", "早上"], "spaces": [False, False]}
            >>> nlp.evaluate([Example.from_dict(nlp.make_doc("今天早上"), gold)])["token_f"]
            1.0
        """
        examples = list(examples)
        validate_examples(examples, "bcrf_segmenter.score")
        scores: dict[str, Any] = Scorer.score_tokenization(examples)
        return scores

    # Saving and loading

    def initialize(self, get_examples: Any = None, *, nlp: Any = None) -> None:
        """Load the model now, if it is not loaded yet; the examples are not used."""
        self.model.tagger  # noqa: B018

    def to_disk(self, path: str | os.PathLike[str], *, exclude: Iterable[str] = ()) -> None:
        """Save the model in a folder, atomically. The settings are in the pipeline's config."""
        self.model.to_disk(path)

    def from_disk(self, path: str | os.PathLike[str], *, exclude: Iterable[str] = ()) -> Segmenter:
        """Load the model in a folder, and return the tokenizer."""
        self.model.from_disk(path)
        return self

    def to_bytes(self, *, exclude: Iterable[str] = ()) -> bytes:
        """Return the files of the model."""
        return self.model.to_bytes()

    def from_bytes(self, bytes_data: bytes, *, exclude: Iterable[str] = ()) -> Segmenter:
        """Load the model that `to_bytes` returned, and return the tokenizer."""
        self.model.from_bytes(bytes_data)
        return self


def _places(tagged: Tagged) -> list[tuple[int, int]]:
    """Return the (start, end) of each word of a segmented text."""
    assert isinstance(tagged.task, Segmentation)
    words = tagged.task.words(tagged.example, tagged.labels)
    return [tagged.task.place(tagged.example, word) for word in words]


def _tags(tagger: Tagger) -> set[str]:
    """Return the parts of speech in the labels of a segmentation model."""
    return {label.partition("-")[2] for label in tagger.labels} - {""}


def _tokens(
    text: str, spans: Sequence[tuple[int, int]]
) -> tuple[list[str], list[bool], list[int | None]]:
    """Return spaCy's tokens of a text: their forms, whether a space follows, and their words.

    spaCy attaches one space to a token. All other text between words is a token of its own, whose
    entry in the third list is None.

    Example:
        >>> _tokens("a  b", [(0, 1), (3, 4)])
        (['a', ' ', 'b'], [True, False, False], [0, None, 1])
    """
    forms: list[str] = []
    spaces: list[bool] = []
    numbers: list[int | None] = []
    end = 0
    for number, (start, stop) in enumerate([*spans, (len(text), len(text))]):
        gap = text[end:start]
        if forms and gap.startswith(" "):
            spaces[-1], gap = True, gap[1:]
        for form, index in ((gap, None), (text[start:stop], number)):
            if form:
                forms.append(form)
                spaces.append(False)
                numbers.append(index)
        end = stop
    return forms, spaces, numbers
