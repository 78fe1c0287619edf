"""From words and their labels to the inputs of a model, and to padded batches."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from typing import Any

import torch
from torch import Tensor

from ..chain import PAD
from ..suggestions import did_you_mean
from ..tagger.nn.pieces import Pieces
from ..tagger.nn.pretrained import check_fast, special_pieces, split_into_pieces

__all__ = ["CRFDataCollator", "encode_words"]

# A tokenizer without a limit states 10^30.
_NO_LIMIT = 1e6


def encode_words(
    tokenizer: Any,
    words: Sequence[str],
    labels: Sequence[int | str] | None = None,
    *,
    label2id: Mapping[str, int] | None = None,
    max_length: int | None = None,
    truncation: bool = False,
) -> dict[str, list[int]]:
    """Return the inputs of a `CRFForTokenClassification` for one sentence.

    The first piece of a word has the label of the word and 1 in `word_mask`. All other pieces have
    the label -100 and 0. A word without pieces becomes the unknown piece, so that no word is lost.

    Args:
        tokenizer: a fast tokenizer.
        words: the words of the sentence.
        labels: the label of each word, as ids or as names; -100 for a word without a label.
        label2id: the id of each name, such as `model.config.label2id`.
        max_length: the largest number of pieces; None: the limit of the tokenizer.
        truncation: whether to leave out the last words of a longer sentence. Otherwise a longer
            sentence is an error.
    Returns:
        `input_ids`, `attention_mask`, `word_mask`, and `labels` if there are labels.

    Example:
        >>> from tokenizers import Tokenizer, models
        >>> from transformers import PreTrainedTokenizerFast
        >>> from bcrf.huggingface import encode_words
        >>> pieces = {"[UNK]": 0, "Ada": 1, "sing": 2, "##s": 3}
        >>> wordpiece = Tokenizer(models.WordPiece(pieces, unk_token="[UNK]"))
        >>> tokenizer = PreTrainedTokenizerFast(tokenizer_object=wordpiece, unk_token="[UNK]")
        >>> inputs = encode_words(tokenizer, ["Ada", "sings"], [1, 0])
        >>> inputs["input_ids"], inputs["labels"], inputs["word_mask"]
        ([1, 2, 3], [1, 0, -100], [1, 1, 0])
    """
    check_fast(tokenizer)
    if isinstance(words, str):
        raise TypeError("words: expected a list of words, got a str; divide the text into words")
    ids = None if labels is None else _label_ids(labels, len(words), label2id)
    before, after = special_pieces(tokenizer)
    pieces = split_into_pieces(tokenizer, words)
    limit = tokenizer.model_max_length if max_length is None else max_length
    room = len(pieces.ids) if limit >= _NO_LIMIT else limit - len(before) - len(after)
    if len(pieces.ids) > room:
        if not truncation:
            raise ValueError(
                f"the sentence has {len(words)} words and "
                f"{len(pieces.ids) + len(before) + len(after)} pieces, more than max_length = "
                f"{limit}; divide it, or leave out its last words with truncation=True"
            )
        pieces = _shortened(pieces, room)
    size = len(before) + len(pieces.ids) + len(after)
    inputs = {
        "input_ids": [*before, *pieces.ids, *after],
        "attention_mask": [1] * size,
        "word_mask": [0] * size,
    }
    if ids is not None:
        inputs["labels"] = [PAD] * size
    for word, piece in enumerate(pieces.first):
        inputs["word_mask"][len(before) + piece] = 1
        if ids is not None:
            inputs["labels"][len(before) + piece] = ids[word]
    return inputs


def _shortened(pieces: Pieces, room: int) -> Pieces:
    """Return the first words whose pieces fit into `room` pieces."""
    ends = (*pieces.first[1:], len(pieces.ids))
    kept = sum(end <= room for end in ends)
    return Pieces(pieces.ids[: ends[kept - 1] if kept else 0], pieces.first[:kept])


def _label_ids(
    labels: Sequence[int | str], words: int, label2id: Mapping[str, int] | None
) -> list[int]:
    """Return the labels as ids; raise if their number or a name is wrong."""
    if len(labels) != words:
        raise ValueError(f"labels: expected one for each of {words} words, got {len(labels)}")
    ids = []
    for word, label in enumerate(labels):
        if not isinstance(label, str):
            ids.append(int(label))
            continue
        if label2id is None:
            raise ValueError(
                f"labels[{word}]: got the name {label!r}; pass label2id=model.config.label2id"
            )
        if label not in label2id:
            raise ValueError(
                f"labels[{word}]: {label!r} is not a label of the model; expected one of "
                f"{', '.join(label2id)}{did_you_mean(label, label2id)}"
            )
        ids.append(label2id[label])
    return ids


@dataclass
class CRFDataCollator:
    """Pads the inputs of sentences to a batch: pieces, labels (-100) and word masks (0).

    It also takes inputs without `word_mask` or `attention_mask`, and those of the usual recipe
    `tokenizer(words, is_split_into_words=True)` with labels.

    Args:
        tokenizer: its padding piece and its padding side are used.
        pad_to_multiple_of: the length of a batch becomes a multiple of this number.

    Example:
        >>> from tokenizers import Tokenizer, models
        >>> from transformers import PreTrainedTokenizerFast
        >>> from bcrf.huggingface import CRFDataCollator
        >>> wordpiece = Tokenizer(models.WordPiece({"[PAD]": 0}, unk_token="[PAD]"))
        >>> tokenizer = PreTrainedTokenizerFast(tokenizer_object=wordpiece, pad_token="[PAD]")
        >>> rows = [{"input_ids": [5, 6], "labels": [1, 0]}, {"input_ids": [7], "labels": [2]}]
        >>> CRFDataCollator(tokenizer)(rows)["labels"]
        tensor([[   1,    0],
                [   2, -100]])
    """

    tokenizer: Any
    pad_to_multiple_of: int | None = None

    def __call__(self, features: Sequence[Mapping[str, Any]]) -> dict[str, Tensor]:
        """Return the batch, int64 tensors [B, n]."""
        names = list(features[0])
        padding = self.tokenizer.pad_token_id
        fills = {"input_ids": 0 if padding is None else padding, "labels": PAD}
        rows: dict[str, list[list[int]]] = {name: [] for name in names}
        for number, feature in enumerate(features):
            if set(feature) != set(names):
                raise ValueError(
                    f"features[{number}] has the keys {sorted(feature)}, but features[0] has "
                    f"{sorted(names)}"
                )
            size = len(feature["input_ids"])
            for name in names:
                row = [int(x) for x in feature[name]]
                if len(row) != size:
                    raise ValueError(
                        f"features[{number}]: {name} has {len(row)} entries, input_ids has {size}"
                    )
                rows[name].append(row)
        if "attention_mask" not in rows:
            rows["attention_mask"] = [[1] * len(row) for row in rows["input_ids"]]
        width = max(len(row) for row in rows["input_ids"])
        if self.pad_to_multiple_of:
            width += -width % self.pad_to_multiple_of
        left = self.tokenizer.padding_side == "left"
        return {
            name: torch.tensor([_filled(row, width, fills.get(name, 0), left) for row in some])
            for name, some in rows.items()
        }


def _filled(row: list[int], width: int, fill: int, left: bool) -> list[int]:
    padding = [fill] * (width - len(row))
    return padding + row if left else row + padding
