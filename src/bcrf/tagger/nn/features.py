"""The encoder of the default network: embeddings of features of words, then a light context."""

from __future__ import annotations

import torch
from torch import Tensor, nn
from torch.nn import functional as F

from .batch import Batch, FeatureIds
from .context import BiLSTM, GatedConvolutions
from .dropout import Dropout

__all__ = ["FeatureEmbeddings", "FeatureEncoder"]

# Standard deviation of the initial embeddings.
_STD = 0.1


class FeatureEmbeddings(nn.Module):
    """Word vectors from features: embed each feature, concatenate, and mix.

    With e_1, ..., e_F [feature_width] the embeddings of the features of a word, and v its
    pretrained vector, if there are any:

        x = norm(relu(W [e_1; ...; e_F; v] + b))

    In training, whole features are dropped. Otherwise the vector depends on the word alone, so each
    distinct word of a batch is computed once.

    Args:
        rows: number of rows of the table of embeddings, see `FeatureVocabulary`.
        features: number of features of a word, F.
        feature_width: width of the embedding of a feature.
        width: width of the word vectors.
        dropout: share of the features that are dropped in training.
        vectors: number of pretrained vectors; 0: there are none. The first one is zero, for words
            that have none. They are not trained.
        vector_width: width of the pretrained vectors.
    """

    vectors: Tensor

    def __init__(
        self,
        rows: int,
        features: int,
        feature_width: int,
        width: int,
        dropout: float = 0.0,
        vectors: int = 0,
        vector_width: int = 0,
    ) -> None:
        super().__init__()
        self.features, self.feature_width = features, feature_width
        self.table = nn.Embedding(rows, feature_width, sparse=True)
        nn.init.normal_(self.table.weight, std=_STD)
        self.has_vectors = vectors > 0
        if self.has_vectors:
            self.register_buffer("vectors", torch.zeros(vectors, vector_width))
        self.mix = nn.Linear(features * feature_width + vector_width * self.has_vectors, width)
        self.norm = nn.LayerNorm(width)
        self.dropout = dropout

    def load_vectors(self, vectors: Tensor) -> None:
        """Set the pretrained vectors after the first one, [vectors - 1, vector_width]."""
        self.vectors[1:] = vectors.to(self.vectors)

    def forward(self, features: FeatureIds) -> Tensor:
        """Return the word vectors [B, n, width]; those of the padding are arbitrary."""
        ids, index = features.ids, features.index
        found = self.table(ids[:, : self.features]).flatten(1)
        if self.has_vectors:
            found = torch.cat([found, F.embedding(ids[:, self.features], self.vectors)], 1)
        if not (self.training and self.dropout):
            return F.embedding(index, self._mixed(found))
        return self._mixed(F.embedding(index, found) * self._kept(index))

    def _mixed(self, found: Tensor) -> Tensor:
        mixed: Tensor = self.norm(F.relu(self.mix(found)))
        return mixed

    def _kept(self, index: Tensor) -> Tensor:
        """Return 0 for the entries of dropped features and 1 / (1 - dropout) for all others."""
        count = self.features + self.has_vectors
        kept = torch.rand(*index.shape, count, device=index.device) >= self.dropout
        scale = kept.to(self.mix.weight.dtype) / (1 - self.dropout)
        spread = scale[..., : self.features].repeat_interleave(self.feature_width, -1)
        if self.has_vectors:
            width = self.vectors.shape[1]
            spread = torch.cat([spread, scale[..., self.features :].repeat(1, 1, width)], -1)
        return spread


class FeatureEncoder(nn.Module):
    """Word vectors from features, then a context encoder.

    Args:
        embeddings: computes the word vectors.
        context: mixes them with those of the words around them.
        width: width of the states.
        dropout: dropout of the word vectors.
    """

    def __init__(
        self,
        embeddings: FeatureEmbeddings,
        context: GatedConvolutions | BiLSTM,
        width: int,
        dropout: float = 0.0,
    ) -> None:
        super().__init__()
        self.embeddings, self.context, self.width = embeddings, context, width
        self.dropout = Dropout(dropout)

    @property
    def reach(self) -> int | None:
        """The number of words on either side on which a state depends; None: all words."""
        return self.context.reach

    def forward(self, batch: Batch) -> Tensor:
        """Return the states of all words, [B, n, width]."""
        if batch.features is None:
            raise ValueError(
                "this network reads features, but the batch has none; pass features to collate"
            )
        index = batch.features.index
        if not index.numel():
            weight = self.embeddings.mix.weight
            return weight.new_zeros(*index.shape, self.width)
        vectors = self.dropout(self.embeddings(batch.features))
        states: Tensor = self.context(vectors, batch.lengths)
        return states
