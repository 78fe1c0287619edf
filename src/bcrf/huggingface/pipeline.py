"""A pipeline that decodes words, returns true probabilities, and truncates nothing."""

from __future__ import annotations

import re
from collections.abc import Callable, Collection, Iterator, Sequence
from dataclasses import dataclass, replace
from typing import Any

import torch
from transformers import TokenClassificationPipeline

from ..checks import check_count
from ..spans import find_spans
from ..tagger.nn.pretrained import check_fast, split_into_pieces, window_frame
from .mentions import mention_probabilities, tag_probabilities
from .model import CRFForTokenClassification

__all__ = ["CRFTokenClassificationPipeline", "split_words"]

_WORD = re.compile(r"\w+(?:[-'’.]\w+)*|[^\w\s]")
_STRATEGIES = ("none", "simple")

Splitter = Callable[[str], Sequence[tuple[int, int]]]


def split_words(text: str) -> list[tuple[int, int]]:
    """Return the start and the end of each word of a text.

    A word is a run of letters and digits, which may contain hyphens, apostrophes and full stops.
    Every other character that is not white space is a word by itself.

    Example:
        >>> text = "Ada's trip (to Turin)."
        >>> [text[start:end] for start, end in split_words(text)]
        ["Ada's", 'trip', '(', 'to', 'Turin', ')', '.']
    """
    return [match.span() for match in _WORD.finditer(text)]


@dataclass(frozen=True)
class _Document:
    """A text and the offsets of its words."""

    text: str
    offsets: Sequence[tuple[int, int]]


class CRFTokenClassificationPipeline(TokenClassificationPipeline):  # type: ignore[misc]
    """Finds entities in texts with a `CRFForTokenClassification`.

    The encoder reads a long text in overlapping windows. The scores of a word come from the window
    in which it is farthest from an edge, and the CRF then decodes the whole text at once. So no
    text is truncated, and every word is decided once.

    A call takes a text, a list of texts, or with `is_split_into_words=True` lists of words. It
    returns the entities of each text as dicts: `entity_group` (the type), `score` (the probability
    that exactly this entity is in the text), `word`, `start` and `end` (offsets of characters). If
    the labels have no tag scheme, or with `aggregation_strategy="none"`, there is a dict for each
    word: `entity` (the label), `score` (its marginal probability), `index`, `word`, `start`, `end`.

    Arguments of the constructor and of calls, besides those of every pipeline:

    - stride: the number of pieces that adjacent windows share; by default about a half.
    - window: the largest number of pieces of a window; by default the limit of the encoder.
    - split_words: a function that returns the start and the end of each word of a text. Use the
      division into words that the model was trained on. By default `split_words` of this module.
    - is_split_into_words: whether the inputs are lists of words. The text is then the words,
      joined by `delimiter`, a space by default.
    - aggregation_strategy: "simple" (entities) or "none" (words).
    - ignore_labels: labels and types that are left out; by default O.

    Example:
        >>> from tokenizers import Tokenizer, models, pre_tokenizers
        >>> from transformers import BertConfig, PreTrainedTokenizerFast
        >>> from bcrf.huggingface import CRFForTokenClassification, CRFTokenClassificationConfig
        >>> from bcrf.huggingface import CRFTokenClassificationPipeline
        >>> wordpiece = Tokenizer(models.WordPiece({"[UNK]": 0, "Ada": 1}, unk_token="[UNK]"))
        >>> wordpiece.pre_tokenizer = pre_tokenizers.WhitespaceSplit()
        >>> tokenizer = PreTrainedTokenizerFast(tokenizer_object=wordpiece, unk_token="[UNK]")
        >>> sizes = {"hidden_size": 8, "num_hidden_layers": 1, "num_attention_heads": 2}
        >>> config = CRFTokenClassificationConfig(BertConfig(vocab_size=2, **sizes), ["X", "Y"])
        >>> model = CRFForTokenClassification(config)
        >>> find = CRFTokenClassificationPipeline(model=model, tokenizer=tokenizer)
        >>> [(word["word"], word["start"]) for word in find("Ada sings.")]
        [('Ada', 0), ('sings', 4), ('.', 9)]
    """

    def __init__(self, **settings: object) -> None:
        """Create a pipeline; `settings` are those of `transformers.Pipeline` and of this class."""
        super().__init__(**settings)
        check_fast(self.tokenizer)
        self._frame = window_frame(self.model.encoder, self.tokenizer, None)

    def check_model_type(self, supported_models: object) -> None:
        """Raise unless the model is a `CRFForTokenClassification`."""
        if not isinstance(self.model, CRFForTokenClassification):
            raise TypeError(
                f"model: expected a CRFForTokenClassification, got {type(self.model).__name__}; "
                "transformers.TokenClassificationPipeline takes other models"
            )

    def _sanitize_parameters(
        self,
        stride: int | None = None,
        window: int | None = None,
        split_words: Splitter | None = None,
        is_split_into_words: bool | None = None,
        delimiter: str | None = None,
        aggregation_strategy: Any = None,
        ignore_labels: Collection[str] | None = None,
        offset_mapping: object = None,
    ) -> tuple[dict[str, Any], dict[str, Any], dict[str, Any]]:
        """Return the arguments of `preprocess`, `_forward` and `postprocess`."""
        if offset_mapping is not None:
            raise ValueError("offset_mapping: not supported; pass split_words or lists of words")
        for name, count in (("stride", stride), ("window", window)):
            if count is not None:
                check_count(name, count)
        strategy = getattr(aggregation_strategy, "value", aggregation_strategy)
        if strategy is not None and strategy not in _STRATEGIES:
            raise ValueError(
                f"aggregation_strategy must be one of {', '.join(_STRATEGIES)}, got {strategy!r}: "
                "words are decoded as a whole, so there are no pieces to aggregate"
            )
        if isinstance(ignore_labels, str):
            raise TypeError(f"ignore_labels: expected a list of labels, got {ignore_labels!r}")
        before = {
            "stride": stride,
            "window": window,
            "split_words": split_words,
            "is_split_into_words": is_split_into_words,
            "delimiter": delimiter,
        }
        after = {"aggregation_strategy": strategy, "ignore_labels": ignore_labels}
        return _given(before), {}, _given(after)

    def preprocess(
        self,
        sentence: str | Sequence[str],
        stride: int | None = None,
        window: int | None = None,
        split_words: Splitter = split_words,
        is_split_into_words: bool = False,
        delimiter: str = " ",
    ) -> Iterator[dict[str, Any]]:
        """Yield the windows of a text; `word_mask` is 1 at the words that a window decides."""
        document = (
            _joined(sentence, delimiter) if is_split_into_words else _divided(sentence, split_words)
        )
        frame = self._frame
        if window is not None:
            if window > frame.size:
                raise ValueError(
                    f"window must be at most {frame.size} for this encoder, got {window}"
                )
            frame = replace(frame, size=window)
        words = [document.text[start:end] for start, end in document.offsets]
        windows = frame.windows([split_into_pieces(self.tokenizer, words)], stride)
        rows, width = windows.pieces.shape
        chosen = torch.zeros(rows * width, dtype=torch.int64)
        chosen[windows.index.flatten()] = 1
        chosen = chosen.view(rows, width)
        for number in range(rows):
            size = int(windows.mask[number].sum())
            yield {
                "input_ids": windows.pieces[number : number + 1, :size],
                "attention_mask": windows.mask[number : number + 1, :size].long(),
                "word_mask": chosen[number : number + 1, :size],
                "document": document if number == 0 else None,
                "is_last": number == rows - 1,
            }
        if not rows:  # a text without words: the encoder reads one masked piece
            piece = torch.full((1, 1), frame.padding)
            yield {
                "input_ids": piece,
                "attention_mask": torch.ones_like(piece),
                "word_mask": torch.zeros_like(piece),
                "document": document,
                "is_last": True,
            }

    def _forward(self, model_inputs: dict[str, Any]) -> dict[str, Any]:
        """Return the scores of the pieces of some windows."""
        scores = self.model.emissions(model_inputs["input_ids"], model_inputs["attention_mask"])
        return {
            "logits": scores.float(),
            "word_mask": model_inputs["word_mask"],
            "document": model_inputs["document"],
            "is_last": model_inputs["is_last"],
        }

    @torch.inference_mode()
    def postprocess(
        self,
        all_outputs: Sequence[dict[str, Any]],
        aggregation_strategy: str | None = None,
        ignore_labels: Collection[str] = ("O",),
    ) -> list[dict[str, Any]]:
        """Return the entities, or the words with their labels, of a text."""
        model, config = self.model, self.model.config
        document: _Document = all_outputs[0]["document"]
        scores = torch.cat([out["logits"][0][out["word_mask"][0] == 1] for out in all_outputs])
        scores = scores.to(model.device)
        if not len(scores):
            return []
        tags = model.crf.decode_tensor(scores.unsqueeze(0))[0]
        names = [config.id2label[tag] for tag in tags.tolist()]
        if config.scheme is None and aggregation_strategy == "simple":
            raise ValueError(
                'aggregation_strategy "simple" needs labels with a tag scheme; this model has none'
            )
        if config.scheme is None or aggregation_strategy == "none":
            probabilities = tag_probabilities(model.crf, scores, tags)
            return [
                {"entity": name, "score": score, "index": index}
                | _place(document, index, index + 1)
                for index, (name, score) in enumerate(zip(names, probabilities, strict=True))
                if name not in ignore_labels
            ]
        mentions = [span for span in find_spans(names) if span.type not in ignore_labels]
        probabilities = mention_probabilities(model.crf, scores, config.labels, mentions)
        return [
            {"entity_group": span.type, "score": score} | _place(document, span.start, span.end)
            for span, score in zip(mentions, probabilities, strict=True)
        ]


def _given(settings: dict[str, Any]) -> dict[str, Any]:
    return {name: value for name, value in settings.items() if value is not None}


def _joined(words: Any, delimiter: str) -> _Document:
    """Return a document of the words, with `delimiter` between them."""
    if isinstance(words, str) or not all(isinstance(word, str) for word in words):
        raise TypeError("expected a list of words, because is_split_into_words is True")
    offsets, end = [], 0
    for word in words:
        offsets.append((end, end + len(word)))
        end += len(word) + len(delimiter)
    return _Document(delimiter.join(words), offsets)


def _divided(text: Any, split: Splitter) -> _Document:
    """Return a document of the text; raise if the offsets of its words are wrong."""
    if not isinstance(text, str):
        raise TypeError(
            f"expected a text, got {type(text).__name__}; for lists of words pass "
            "is_split_into_words=True"
        )
    offsets = [(int(start), int(end)) for start, end in split(text)]
    last = 0
    for number, (start, end) in enumerate(offsets):
        if not last <= start < end <= len(text):
            raise ValueError(
                f"split_words: word {number} is {(start, end)}; expected words in order, not empty "
                f"and without overlap, in a text of {len(text)} characters"
            )
        last = end
    return _Document(text, offsets)


def _place(document: _Document, first: int, last: int) -> dict[str, Any]:
    """Return the text and the offsets of words first, ..., last - 1."""
    start, end = document.offsets[first][0], document.offsets[last - 1][1]
    return {"word": document.text[start:end], "start": start, "end": end}
