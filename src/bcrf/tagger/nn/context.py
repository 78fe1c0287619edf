"""Context encoders: states of words that depend on the words around them."""

from __future__ import annotations

import torch
from torch import Tensor, nn
from torch.nn import functional as F
from torch.nn.utils.rnn import pack_padded_sequence, pad_packed_sequence

from .dropout import Dropout

__all__ = ["BiLSTM", "GatedConvolutions"]


class GatedConvolutions(nn.Module):
    """Residual convolutions over a word and two words beside it, with a gate for each entry.

    With x_i [width] the state of word i, zeros before and after the sentence, and the distance
    d = dilation^l in layer l = 0, 1, ...:

        a_i, g_i = W [x_{i-d}; x_i; x_{i+d}] + b
        y_i = norm(x_i + a_i * sigmoid(g_i))

    Args:
        width: width of the states.
        layers: number of convolutions.
        dropout: dropout of the outputs of the convolutions.
        dilation: the factor by which the distance grows from layer to layer. With 1, a state
            depends on `layers` words on either side.

    Example:
        >>> import torch
        >>> from bcrf.tagger.nn import GatedConvolutions
        >>> GatedConvolutions(width=8, layers=2)(torch.zeros(2, 5, 8), torch.tensor([5, 3])).shape
        torch.Size([2, 5, 8])
    """

    def __init__(self, width: int, layers: int, dropout: float = 0.0, dilation: int = 1) -> None:
        super().__init__()
        self.distances = [dilation**layer for layer in range(layers)]
        self.reach = sum(self.distances)
        self.project = nn.ModuleList(nn.Linear(3 * width, 2 * width) for _ in range(layers))
        self.norm = nn.ModuleList(nn.LayerNorm(width) for _ in range(layers))
        self.dropout = Dropout(dropout)

    def forward(self, states: Tensor, lengths: Tensor) -> Tensor:
        """Return the states [B, n, width] with context; those after a sentence are zero."""
        n = states.shape[1]
        if not n:  # padding by -1 is an error
            return states
        inside = (torch.arange(n, device=states.device) < lengths.unsqueeze(1)).unsqueeze(-1)
        inside = inside.to(states.dtype)
        states = states * inside
        for project, norm, far in zip(self.project, self.norm, self.distances, strict=True):
            d = min(far, n)  # a shift by n or more leaves only zeros
            left, right = F.pad(states, (0, 0, d, -d)), F.pad(states, (0, 0, -d, d))
            update = F.glu(project(torch.cat([left, states, right], -1)))
            states = norm(states + self.dropout(update)) * inside
        return states


class BiLSTM(nn.Module):
    """LSTMs that read the sentence in both directions; a state depends on all words.

    Args:
        width: width of the states, an even number; each direction has half of it.
        layers: number of layers.
        dropout: dropout of the states that a layer passes to the next one, and of the result.

    Example:
        >>> import torch
        >>> from bcrf.tagger.nn import BiLSTM
        >>> BiLSTM(width=8, layers=1)(torch.zeros(2, 5, 8), torch.tensor([5, 3])).shape
        torch.Size([2, 5, 8])
    """

    reach = None

    def __init__(self, width: int, layers: int, dropout: float = 0.0) -> None:
        super().__init__()
        between = dropout if layers > 1 else 0.0
        half = width // 2
        self.lstm = nn.LSTM(width, half, layers, True, True, between, bidirectional=True)
        self.dropout = Dropout(dropout)

    def forward(self, states: Tensor, lengths: Tensor) -> Tensor:
        """Return the states [B, n, width] with context; those after a sentence are zero."""
        if not states.numel():
            return states
        # A packed sequence has at least one word; what is computed for an empty sentence is unused.
        sizes = lengths.cpu().clamp(min=1)
        packed = pack_padded_sequence(states, sizes, batch_first=True, enforce_sorted=False)
        found, _ = pad_packed_sequence(
            self.lstm(packed)[0], batch_first=True, total_length=states.shape[1]
        )
        dropped: Tensor = self.dropout(found)
        return dropped
