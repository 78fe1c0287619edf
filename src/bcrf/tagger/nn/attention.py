"""A self-attentive encoder that is trained from scratch."""

from __future__ import annotations

import math

import torch
from torch import Tensor, nn
from torch.nn import functional as F

from .batch import Batch
from .dropout import Dropout
from .embeddings import WordEmbeddings

__all__ = ["SelfAttention", "SelfAttentiveEncoder", "sinusoids"]

# Longest wavelength of the position vectors, in words; it exceeds the length of sentences.
_LONGEST = 10_000.0


class SelfAttentiveEncoder(nn.Module):
    """Layers of self-attention over word embeddings and positions; sentences of any length.

    Args:
        embeddings: the word embeddings.
        layers, heads, hidden: number of layers, attention heads and hidden width of each layer.
        dropout: dropout within the layers.
        output_dropout: dropout of the states.
    """

    def __init__(
        self,
        embeddings: WordEmbeddings,
        layers: int,
        heads: int,
        hidden: int,
        dropout: float = 0.0,
        output_dropout: float = 0.0,
    ) -> None:
        super().__init__()
        self.width = embeddings.width
        self.embeddings = embeddings
        # Position vectors start at the scale of word embeddings; their scale is learned.
        self.position_scale = nn.Parameter(torch.tensor(0.1))
        self.layers = nn.ModuleList(
            SelfAttention(self.width, heads, hidden, dropout) for _ in range(layers)
        )
        self.norm = nn.LayerNorm(self.width)
        self.dropout = Dropout(output_dropout)

    def forward(self, batch: Batch) -> Tensor:
        """Return the states of all words, [B, n, width]."""
        states = self.embeddings(batch)
        n = states.shape[1]
        states = states + self.position_scale * sinusoids(n, self.width, states.device).to(states)
        position = torch.arange(n, device=states.device)
        # An empty sentence attends to its padding, because a softmax over nothing is NaN.
        mask = position < batch.lengths.clamp_min(1).unsqueeze(1)
        for layer in self.layers:
            states = layer(states, mask)
        out: Tensor = self.dropout(self.norm(states))
        return out


class SelfAttention(nn.Module):
    """One layer: x + attention(norm(x)), then x + network(norm(x)).

    The normalization comes first (pre-norm), so that training needs no special warm-up.
    """

    def __init__(self, width: int, heads: int, hidden: int, dropout: float) -> None:
        super().__init__()
        self.heads = heads
        self.drop = Dropout(dropout)
        self.attention_norm = nn.LayerNorm(width)
        self.queries_keys_values = nn.Linear(width, 3 * width)
        self.mix = nn.Linear(width, width)
        self.network_norm = nn.LayerNorm(width)
        self.up = nn.Linear(width, hidden)
        self.down = nn.Linear(hidden, width)
        for linear in (self.queries_keys_values, self.mix, self.up, self.down):
            nn.init.xavier_uniform_(linear.weight)
            nn.init.zeros_(linear.bias)

    def forward(self, states: Tensor, mask: Tensor) -> Tensor:
        """Return states [B, n, width]; `mask` (bool [B, n]) marks the words to attend to."""
        states = states + self.drop(self.mix(self._attend(self.attention_norm(states), mask)))
        hidden = self.drop(F.relu(self.up(self.network_norm(states))))
        out: Tensor = states + self.drop(self.down(hidden))
        return out

    def _attend(self, states: Tensor, mask: Tensor) -> Tensor:
        batch, n, width = states.shape
        split = self.queries_keys_values(states).view(batch, n, 3, self.heads, width // self.heads)
        queries, keys, values = split.permute(2, 0, 3, 1, 4)
        rate = self.drop.rate if self.training else 0.0
        mixed = F.scaled_dot_product_attention(
            queries, keys, values, mask[:, None, None, :], dropout_p=rate
        )
        return mixed.transpose(1, 2).reshape(batch, n, width)


def sinusoids(n: int, width: int, device: torch.device | None = None) -> Tensor:
    """Return position vectors [n, width]: sines and cosines with geometrically spaced wavelengths.

    The width is even. We compute them on the device, because a copy would wait for it.
    """
    rate = torch.exp(torch.arange(0, width, 2, device=device) * (-math.log(_LONGEST) / width))
    angle = torch.arange(n, device=device).unsqueeze(1) * rate
    return torch.stack([angle.sin(), angle.cos()], -1).flatten(1)
