"""Words from their letters: one convolution, and the maximum over the word."""

from __future__ import annotations

import torch
from torch import Tensor, nn
from torch.nn import functional as F

from .batch import PADDING, Spellings

__all__ = ["CharacterCNN"]


class CharacterCNN(nn.Module):
    """A vector per word: max over its letters of a 1-D convolution of their embeddings.

    Args:
        characters: number of character ids.
        width: of the character embeddings.
        kernel: odd; how many letters the convolution sees at once.
        output: width of the vectors.
    """

    def __init__(self, characters: int, width: int, kernel: int, output: int) -> None:
        super().__init__()
        self.embedding = nn.Embedding(characters, width, padding_idx=PADDING)
        self.convolution = nn.Conv1d(width, output, kernel)
        self.margin = kernel // 2

    def forward(self, spellings: Spellings) -> Tensor:
        """[B, n, output].

        Each distinct word is computed once. All are convolved as one long text, with margins of
        padding, whose embedding is zero, around every word: none sees the letters of another.
        """
        sizes = spellings.sizes
        word = torch.repeat_interleave(sizes)
        places = torch.arange(len(word), device=word.device) + self.margin * (word + 1)
        total = len(word) + self.margin * (len(sizes) + 1)
        text = torch.full((total,), PADDING, device=word.device)
        text[places] = spellings.characters
        states = self.convolution(self.embedding(text).T).T  # [total - 2 margin, output]
        letters = F.embedding(places - self.margin, states)
        words = torch.segment_reduce(letters, "max", lengths=sizes)
        return F.embedding(spellings.index, words)
