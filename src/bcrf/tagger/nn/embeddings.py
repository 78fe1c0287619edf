"""The encoder without layers: word embeddings, and word vectors computed from characters."""

from __future__ import annotations

import torch
from torch import Tensor, nn
from torch.nn import functional as F

from .batch import PADDING, UNKNOWN, Batch, Spellings
from .dropout import Dropout

__all__ = ["CharacterCNN", "WordEmbeddings"]

# Standard deviation of the initial embeddings.
_STD = 0.1


class WordEmbeddings(nn.Module):
    """Word embeddings, plus the vectors of a `CharacterCNN` if there is one; with dropout.

    The gradient of the embedding table is sparse, and `LazyAdam` updates only the rows in it.

    Args:
        words: number of word ids.
        width: width of the embeddings.
        characters: the network whose vectors are added to the embeddings.
        dropout: dropout of the sum.
        unknown_rate: share of the words that become `UNKNOWN` in training; their characters stay.
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
        """Return the states of all words, [B, n, width]."""
        if batch.words is None:
            raise ValueError(
                "this network reads words, but the batch has none; pass words to collate"
            )
        words = batch.words
        if self.training and self.unknown_rate:
            lost = torch.rand(words.shape, device=words.device) < self.unknown_rate
            words = torch.where(lost & (words != PADDING), UNKNOWN, words)
        states: Tensor = self.table(words)
        if self.characters is not None:
            if batch.spellings is None:
                raise ValueError(
                    "this network reads characters, but the batch has none; pass characters to "
                    "collate"
                )
            states = states + self.characters(batch.spellings)
        dropped: Tensor = self.dropout(states)
        return dropped


class CharacterCNN(nn.Module):
    """Word vectors from characters: convolve character embeddings, take the maximum over a word.

    Args:
        characters: number of character ids.
        width: width of the character embeddings.
        kernel: kernel size of the convolution in characters, odd.
        output: width of the word vectors.
    """

    def __init__(self, characters: int, width: int, kernel: int, output: int) -> None:
        super().__init__()
        self.embedding = nn.Embedding(characters, width, padding_idx=PADDING)
        self.convolution = nn.Conv1d(width, output, kernel)
        self.margin = kernel // 2

    def forward(self, spellings: Spellings) -> Tensor:
        """Return the word vectors [B, n, output].

        Each distinct word is computed once. The distinct words are concatenated, with padding
        between them. The embedding of padding is zero, so no word sees the characters of another.
        """
        # This does not make the host wait for a GPU, because the size of the result is given, and
        # because `sizes` are not checked.
        sizes, count = spellings.sizes, len(spellings.characters)
        word = torch.repeat_interleave(sizes, output_size=count)
        places = torch.arange(len(word), device=word.device) + self.margin * (word + 1)
        total = len(word) + self.margin * (len(sizes) + 1)
        text = torch.full((total,), PADDING, device=word.device)
        text[places] = spellings.characters
        states = self.convolution(self.embedding(text).T).T  # [total - 2 margin, output]
        letters = F.embedding(places - self.margin, states)
        words = torch.segment_reduce(letters, "max", lengths=sizes, unsafe=not sizes.is_cpu)
        return F.embedding(spellings.index, words)
