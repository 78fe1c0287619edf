"""The whole network: from a batch of sentences to a chain, its loss, tags and probabilities."""

from __future__ import annotations

from pathlib import Path

import torch
from torch import Tensor, nn

from ..chain import LinearChain
from ..losses import loss, partial_loss
from ..structure import Structure
from .attention import SelfAttentiveEncoder
from .batch import Batch
from .characters import CharacterCNN
from .config import ModelConfig, Sizes
from .embeddings import WordEmbeddings
from .methods import decoder, default_decoder, probability_solver, training_solver
from .module_limit import module_limit
from .pretrained import EncoderParts, PretrainedEncoder
from .scorer import Scorer

__all__ = ["TaggerModel", "weight_shapes"]


class TaggerModel(nn.Module):
    """An encoder and a scorer; which family of inference it is trained with belongs to it.

    Args:
        config: what it looks like, and the objective.
        sizes: of the tag set and the vocabularies.
        structure: which tags may start, end and follow each other; None: all.
        encoder_parts: of a pretrained encoder that `save_encoder` has written, whose weights will
            be loaded later; None: it is loaded, with its weights, from where the config says.
    """

    encoder: WordEmbeddings | SelfAttentiveEncoder | PretrainedEncoder

    def __init__(
        self,
        config: ModelConfig,
        sizes: Sizes,
        structure: Structure | None = None,
        encoder_parts: EncoderParts | None = None,
    ) -> None:
        super().__init__()
        self.config, self.sizes = config, sizes
        self.solver = training_solver(config.objective)
        if config.pretrained is None:
            self.encoder = _scratch_encoder(config, sizes)
        elif encoder_parts is None:
            self.encoder = PretrainedEncoder.load(config.pretrained, config.dropout, config.window)
        else:
            self.encoder = PretrainedEncoder.rebuild(encoder_parts, config.dropout, config.window)
        plain = config.objective == "unstructured"
        self.scorer = Scorer(
            self.encoder.width,
            sizes.tags,
            config.score_width,
            "none" if plain else config.transitions,
            structure,
            ends=not plain,
        )

    def forward(self, batch: Batch) -> LinearChain:
        """The chain of these sentences."""
        chain: LinearChain = self.scorer(self.encoder(batch), batch.lengths)
        return chain

    def save_encoder(self, folder: str | Path) -> None:
        """Write what, besides config and weights, the model is rebuilt from: the files of a
        pretrained encoder. Other models need none."""
        if isinstance(self.encoder, PretrainedEncoder):
            self.encoder.save(folder)

    def loss(self, chain: LinearChain, target: Tensor) -> Tensor:
        """The objective, [B]: of gold tags [B, n] (integers), or of the allowed ones [B, n, T]
        (bool). Reduction is left to the caller."""
        kind = partial_loss if target.dtype == torch.bool else loss
        return kind(self.solver, chain, target)

    @torch.no_grad()
    def decode(self, chain: LinearChain, name: str | None = None) -> Tensor:
        """Tags [B, n], -100 beyond the length, by the decoder of this name (see `decoder`); None:
        the objective's own."""
        return decoder(name or default_decoder(self.config.objective))(chain)

    @torch.no_grad()
    def marginals(self, chain: LinearChain) -> Tensor:
        """[B, n, T]: the probability of each tag at each position, 0 beyond the length."""
        return probability_solver(self.config.objective)(chain).tag_marginals


def weight_shapes(
    config: ModelConfig,
    sizes: Sizes,
    structure: Structure | None = None,
    encoder_parts: EncoderParts | None = None,
    most_modules: int = 100_000,
) -> dict[str, Tensor]:
    """The weights that such a `TaggerModel` has, as tensors without memory (device "meta").

    Raises:
        ValueError: the network would consist of more than `most_modules` modules.
    """
    with torch.device("meta"), module_limit(most_modules):
        return TaggerModel(config, sizes, structure, encoder_parts).state_dict()


def _scratch_encoder(config: ModelConfig, sizes: Sizes) -> WordEmbeddings | SelfAttentiveEncoder:
    if sizes.words < 2:
        raise ValueError(f"words must be at least 2 (padding and unknown), got {sizes.words}")
    characters = None
    if config.uses_characters:
        if sizes.characters < 2:
            raise ValueError(
                f"characters must be at least 2 (padding and unknown), got {sizes.characters}"
            )
        characters = CharacterCNN(
            sizes.characters, config.character_width, config.character_kernel, config.width
        )
    embeddings = WordEmbeddings(
        sizes.words, config.width, characters, config.dropout, config.unknown_rate
    )
    if not config.layers:
        return embeddings
    return SelfAttentiveEncoder(
        embeddings, config.layers, config.heads, config.hidden, config.layer_dropout, config.dropout
    )
