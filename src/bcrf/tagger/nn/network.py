"""The whole network: it turns a batch into a chain, and returns its loss, tags and marginals."""

from __future__ import annotations

import threading
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path
from typing import Any

import torch
from torch import Tensor, nn
from torch.nn.modules.module import register_module_module_registration_hook
from torch.overrides import TorchFunctionMode

from ...chain import LinearChain
from ...losses import loss, partial_loss
from ...structure import Structure
from .attention import SelfAttentiveEncoder
from .batch import Batch
from .config import ModelConfig, Sizes
from .context import BiLSTM, GatedConvolutions
from .embeddings import CharacterCNN, WordEmbeddings
from .features import FeatureEmbeddings, FeatureEncoder
from .methods import decoder, default_decoder, probability_solver, training_solver
from .pretrained import EncoderParts, PretrainedEncoder
from .scorer import Scorer

__all__ = ["TaggerModel", "weight_shapes"]


class TaggerModel(nn.Module):
    """An encoder and a scorer, with the objective of their training.

    Args:
        config: the shape of the network, and the objective.
        sizes: sizes of the tag set and the vocabularies.
        structure: the tags that may start and end a sentence and follow each other; None: all.
        encoder_parts: configuration and tokenizer of a pretrained encoder whose weights will be
            loaded later; None: the encoder is loaded with its weights from `config.pretrained`.

    Example:
        >>> from bcrf.tagger.nn import ModelConfig, Sizes, collate
        >>> model = TaggerModel(ModelConfig(width=8, score_width=4), Sizes(tags=3, words=10))
        >>> chain = model(collate([[2, 3, 4], [5]]))
        >>> chain.unary.shape
        torch.Size([2, 3, 3])
        >>> model.decode(chain).shape
        torch.Size([2, 3])
    """

    encoder: FeatureEncoder | WordEmbeddings | SelfAttentiveEncoder | PretrainedEncoder

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
        if config.uses_features:
            self.encoder = _feature_encoder(config, sizes)
        elif config.pretrained is None:
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
            temperature=config.temperature,
            score_forbidden=config.scores_forbidden,
        )

    def forward(self, batch: Batch) -> LinearChain:
        """Return the chain of a batch."""
        chain: LinearChain = self.scorer(self.encoder(batch), batch.lengths, batch.packing)
        return chain

    def save_encoder(self, folder: str | Path) -> None:
        """Write configuration and tokenizer of the pretrained encoder, if there is one."""
        if isinstance(self.encoder, PretrainedEncoder):
            self.encoder.save(folder)

    def loss(self, chain: LinearChain, target: Tensor) -> Tensor:
        """Return the loss of each sentence, [B]: tau l(w / tau; y).

        The scores of the chain are w / tau already.

        Args:
            chain: the chain of the batch.
            target: the gold tags, int64 [B, n]; or the possible tags, bool [B, n, T].
        """
        kind = partial_loss if target.dtype == torch.bool else loss
        losses = kind(self.solver, chain, target)
        tau = self.config.temperature
        return losses if tau == 1 else tau * losses

    @torch.no_grad()
    def decode(self, chain: LinearChain, name: str | None = None) -> Tensor:
        """Return the tags, int64 [B, n], with -100 after the end of a sentence.

        Args:
            chain: the chain of the batch.
            name: name of the decoder (see `decoder`); by default the one that fits the objective.
        """
        return decoder(name or default_decoder(self.config.objective))(chain)

    @torch.no_grad()
    def marginals(self, chain: LinearChain) -> Tensor:
        """Return the probability of each tag at each position, [B, n, T]; 0 in the padding."""
        return probability_solver(self.config.objective)(chain).tag_marginals


def weight_shapes(
    config: ModelConfig,
    sizes: Sizes,
    structure: Structure | None = None,
    encoder_parts: EncoderParts | None = None,
    most_modules: int = 100_000,
) -> dict[str, Tensor]:
    """Return the weights of a `TaggerModel` with these arguments as tensors on the device "meta".

    Raises:
        ValueError: the network has more than `most_modules` modules.
    """
    with torch.device("meta"), _WithoutInitialValues(), _module_limit(most_modules):
        return TaggerModel(config, sizes, structure, encoder_parts).state_dict()


class _WithoutInitialValues(TorchFunctionMode):
    """Leaves out the functions that give weights their initial values, which a shape does not need.

    The random numbers of a tensor on the device "meta" go through Python code of torch that imports
    the compiler (`torch._dynamo`, and triton if it is installed). Without this mode, `bcrf tag`
    takes a second and 140 MB more.
    """

    def __torch_function__(
        self,
        func: Any,
        types: Any,
        args: tuple[Any, ...] = (),
        kwargs: dict[str, Any] | None = None,
    ) -> Any:
        kwargs = kwargs or {}
        is_initializer = getattr(func, "__module__", None) == "torch.nn.init"
        if is_initializer or func in (Tensor.normal_, Tensor.uniform_):
            return kwargs["tensor"] if "tensor" in kwargs else args[0]
        return func(*args, **kwargs)


@contextmanager
def _module_limit(most: int) -> Iterator[None]:
    """Raise ValueError as soon as this thread registers more than `most` modules in the block.

    A configuration of a few bytes can ask for a billion layers. Without this limit, all of them
    would be created before their number is compared with the weights.
    """
    thread, count = threading.get_ident(), 0

    def count_module(*registered: Any) -> None:
        nonlocal count
        if threading.get_ident() != thread:
            return
        count += 1
        if count > most:
            raise ValueError(
                f"the configuration asks for more than {most} modules, too many for its weights"
            )

    handle = register_module_module_registration_hook(count_module)
    try:
        yield
    finally:
        handle.remove()


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


def _feature_encoder(config: ModelConfig, sizes: Sizes) -> FeatureEncoder:
    if not (sizes.feature_rows and sizes.features):
        raise ValueError("feature_rows and features must be at least 1 for a network with features")
    width = config.context_width
    embeddings = FeatureEmbeddings(
        sizes.feature_rows,
        sizes.features,
        config.feature_width,
        width,
        config.feature_dropout,
        sizes.vectors,
        sizes.vector_width,
    )
    arguments = (width, config.context_layers, config.dropout)
    context: BiLSTM | GatedConvolutions
    if config.context == "bilstm":
        context = BiLSTM(*arguments)
    else:
        context = GatedConvolutions(*arguments, config.context_dilation)
    return FeatureEncoder(embeddings, context, width, config.dropout)
