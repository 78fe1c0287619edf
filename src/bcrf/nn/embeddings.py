"""The encoder without layers: an embedding per word."""

from __future__ import annotations

import torch
from torch import Tensor, nn

from .batch import PADDING, UNKNOWN, Batch
from .characters import CharacterCNN
from .dropout import Dropout

__all__ = ["WordEmbeddings"]

_STD = 0.1


class WordEmbeddings(nn.Module):
    """Word embeddings, plus what a `CharacterCNN` makes of the letters if there is one; dropout.

    The gradient of the table is sparse: `LazyAdam` updates the rows that a batch uses.

    Args:
        words: number of word ids.
        width: of the embeddings.
        characters: its output is added.
        dropout: of the sum.
        unknown_rate: share of the words that become `UNKNOWN` in training; their letters stay.
    """

    def __init__(
        self,
        words: int,
        width: int,
        characters: CharacterCNN | None = None,
        dropout: float = 0.0,
        unknown_rate: float = 0.0,
    ) -> None:
        super().__init__()
        self.width = width
        self.table = nn.Embedding(words, width, padding_idx=PADDING, sparse=True)
        nn.init.normal_(self.table.weight, std=_STD)
        with torch.no_grad():
            self.table.weight[PADDING] = 0
        self.characters = characters
        self.dropout = Dropout(dropout)
        self.unknown_rate = unknown_rate

    def forward(self, batch: Batch) -> Tensor:
        """[B, n, width]."""
        if batch.words is None:
            raise ValueError("this network reads words, and the batch has none")
        words = batch.words
        if self.training and self.unknown_rate:
            lost = torch.rand(words.shape, device=words.device) < self.unknown_rate
            words = torch.where(lost & (words != PADDING), UNKNOWN, words)
        states: Tensor = self.table(words)
        if self.characters is not None:
            if batch.spellings is None:
                raise ValueError("this network reads characters, and the batch has none")
            states = states + self.characters(batch.spellings)
        dropped: Tensor = self.dropout(states)
        return dropped
