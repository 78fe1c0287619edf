"""`CRFForTokenClassification`: any encoder of `transformers` with any output layer of bcrf."""

from __future__ import annotations

import inspect
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import TYPE_CHECKING, Any, Literal

from torch import Tensor, nn
from transformers import AutoModel, PreTrainedModel
from transformers.utils import ModelOutput

from ..chain import PAD
from ..structure import Structure
from ..tagger.nn.pretrained import load_module, remove_pooler
from .config import CRFTokenClassificationConfig, LayerName

if TYPE_CHECKING:
    from typing_extensions import Self

__all__ = ["CRFForTokenClassification", "CRFTokenClassifierOutput"]


@dataclass
class CRFTokenClassifierOutput(ModelOutput):  # type: ignore[misc]
    """The output of a `CRFForTokenClassification`.

    `Trainer` passes `tags` to `compute_metrics`, or the pair (`tags`, `marginals`) if there are
    marginals.

    Args:
        loss: the loss of the labels; None without labels.
        tags: int64 [B, n], the decoded tags, -100 at positions that are no first piece of a word;
            None while the model trains.
        marginals: [B, n, T], the probability of each tag, if they were asked for.
        logits: [B, n, T], the emissions: scores of tags without the transitions.
        hidden_states, attentions: of the encoder, if they were asked for.

    Example:
        >>> import torch
        >>> from bcrf.huggingface import CRFTokenClassifierOutput
        >>> CRFTokenClassifierOutput(tags=torch.tensor([[-100, 2]])).to_tuple()
        (tensor([[-100,    2]]),)
    """

    loss: Tensor | None = None
    tags: Tensor | None = None
    marginals: Tensor | None = None
    logits: Tensor | None = None
    hidden_states: tuple[Tensor, ...] | None = None
    attentions: tuple[Tensor, ...] | None = None


class CRFForTokenClassification(PreTrainedModel):  # type: ignore[misc]
    """An encoder, a linear map from its states to scores of tags, and an output layer.

    `save_pretrained`, `from_pretrained`, `Trainer` and the `Auto` classes work as for any other
    model of `transformers`. Weights are read from safetensors files only.

    Args:
        config: the encoder, the labels and the settings of the layer.

    Attributes:
        encoder: the model that `AutoModel` returns for `config.encoder`, without its pooler.
        classifier: the linear map.
        crf: the output layer, a `bcrf.ChainLayer`.

    Example:
        >>> import torch
        >>> from transformers import BertConfig
        >>> from bcrf.huggingface import CRFForTokenClassification, CRFTokenClassificationConfig
        >>> bert = BertConfig(
        ...     vocab_size=9, hidden_size=8, num_hidden_layers=1, num_attention_heads=2
        ... )
        >>> config = CRFTokenClassificationConfig(bert, ["O", "B-PER", "I-PER"], "IOB2")
        >>> model = CRFForTokenClassification(config).eval()
        >>> out = model(torch.tensor([[2, 5, 6, 3]]), labels=torch.tensor([[-100, 1, 2, -100]]))
        >>> bool(out.loss > 0), out.tags.shape
        (True, torch.Size([1, 4]))
    """

    config_class = CRFTokenClassificationConfig
    config: CRFTokenClassificationConfig
    base_model_prefix = "encoder"
    main_input_name = "input_ids"
    supports_gradient_checkpointing = True
    # The loss is a mean over the batch, so `Trainer` divides it by the accumulation steps.
    accepts_loss_kwargs = False
    # Whether the encoder supports them is checked when `AutoModel` builds it.
    _supports_sdpa = True
    _supports_flash_attn = True
    _supports_flex_attn = True
    _supports_attention_backend = True

    def __init__(self, config: CRFTokenClassificationConfig) -> None:
        super().__init__(config)
        self.encoder = AutoModel.from_config(config.encoder, trust_remote_code=False)
        remove_pooler(self.encoder)
        self.dropout = nn.Dropout(config.encoder_dropout)
        self.classifier = nn.Linear(config.encoder.hidden_size, config.num_labels)
        self.crf = config.make_layer()
        self._takes_segments = (
            "token_type_ids" in inspect.signature(self.encoder.forward).parameters
        )
        self.post_init()

    @classmethod
    def from_encoder(
        cls,
        name: str,
        labels: Sequence[str] | Mapping[int, str] | Mapping[str, str],
        scheme: str | None = None,
        layer: LayerName = "crf",
        *,
        iterations: int | None = None,
        constraints: Structure | None = None,
        penalty: float | None = None,
        decoder: str | None = None,
        decoder_temperature: float = 1.0,
        train_temperature: float = 1.0,
        reduction: Literal["sum", "mean", "token_mean"] = "mean",
        dropout: float | None = None,
    ) -> Self:
        """Return a model with a pretrained encoder and a new, initialised head.

        Args:
            name: a folder with an encoder, or its name on the Hugging Face hub. Code that comes
                with it is never run, and weights are read from safetensors only.
            labels: the label of each tag, or `id2label`.
            scheme, layer, iterations, constraints, penalty, decoder: see
                `CRFTokenClassificationConfig`.
            decoder_temperature, train_temperature, reduction, dropout: see
                `CRFTokenClassificationConfig`.

        Example:
            >>> from transformers import BertConfig, BertModel
            >>> from bcrf.huggingface import CRFForTokenClassification
            >>> sizes = {"hidden_size": 8, "num_hidden_layers": 1, "num_attention_heads": 2}
            >>> BertModel(BertConfig(vocab_size=9, **sizes)).save_pretrained("my-encoder")
            >>> model = CRFForTokenClassification.from_encoder(
            ...     "my-encoder", labels=["O", "B-PER", "I-PER"], scheme="IOB2", layer="bregman"
            ... )
            >>> model.crf.num_tags
            3
        """
        encoder = load_module(str(name))
        if Path(name).is_dir():
            encoder.config.name_or_path = ""  # a saved model must not name folders of this machine
        config = cls.config_class(
            encoder.config,
            labels,
            scheme,
            layer,
            iterations=iterations,
            constraints=constraints,
            penalty=penalty,
            decoder=decoder,
            decoder_temperature=decoder_temperature,
            train_temperature=train_temperature,
            reduction=reduction,
            dropout=dropout,
        )
        model = cls(config)
        remove_pooler(encoder)
        model.encoder = encoder
        model.config.encoder = encoder.config
        model.eval()  # as after from_pretrained
        return model

    @classmethod
    def from_pretrained(cls, name: Any, *arguments: object, **options: object) -> Self:
        """Load a saved model; the arguments are those of `PreTrainedModel.from_pretrained`.

        Weights are read from safetensors files only.

        Example:
            >>> from transformers import BertConfig
            >>> from bcrf.huggingface import CRFForTokenClassification, CRFTokenClassificationConfig
            >>> sizes = {"hidden_size": 8, "num_hidden_layers": 1, "num_attention_heads": 2}
            >>> config = CRFTokenClassificationConfig(BertConfig(vocab_size=9, **sizes), ["X", "Y"])
            >>> CRFForTokenClassification(config).save_pretrained("my-model")
            >>> CRFForTokenClassification.from_pretrained("my-model").config.labels
            ['X', 'Y']
        """
        if options.setdefault("use_safetensors", True) is not True:
            raise ValueError(
                "use_safetensors: bcrf reads weights from safetensors files only, because a pickle "
                "can run code; convert the checkpoint with save_pretrained"
            )
        options["trust_remote_code"] = False
        model: Self = super().from_pretrained(name, *arguments, **options)
        return model

    def get_input_embeddings(self) -> nn.Module:
        """Return the embeddings of the pieces."""
        table: nn.Module = self.encoder.get_input_embeddings()
        return table

    def set_input_embeddings(self, value: nn.Module) -> None:
        """Replace the embeddings of the pieces."""
        self.encoder.set_input_embeddings(value)

    def emissions(self, input_ids: Tensor, attention_mask: Tensor | None = None) -> Tensor:
        """Return the scores of tags [B, n, T], which the layer `crf` takes.

        Example:
            >>> import torch
            >>> from transformers import BertConfig
            >>> from bcrf.huggingface import CRFForTokenClassification, CRFTokenClassificationConfig
            >>> sizes = {"hidden_size": 8, "num_hidden_layers": 1, "num_attention_heads": 2}
            >>> config = CRFTokenClassificationConfig(BertConfig(vocab_size=9, **sizes), ["X", "Y"])
            >>> CRFForTokenClassification(config).emissions(torch.tensor([[1, 2, 3]])).shape
            torch.Size([1, 3, 2])
        """
        encoded = self.encoder(input_ids=input_ids, attention_mask=attention_mask, return_dict=True)
        scores: Tensor = self.classifier(self.dropout(encoded.last_hidden_state))
        return scores

    def forward(
        self,
        input_ids: Tensor | None = None,
        attention_mask: Tensor | None = None,
        token_type_ids: Tensor | None = None,
        position_ids: Tensor | None = None,
        inputs_embeds: Tensor | None = None,
        labels: Tensor | None = None,
        word_mask: Tensor | None = None,
        output_marginals: bool | None = None,
        output_hidden_states: bool | None = None,
        output_attentions: bool | None = None,
        return_dict: bool | None = None,
    ) -> CRFTokenClassifierOutput | tuple[Any, ...]:
        """Return the loss of `labels`, and the decoded tags unless the model is training.

        Args:
            input_ids, attention_mask, position_ids, inputs_embeds: as for the encoder.
            token_type_ids: as for the encoder; ignored if it has no segments.
            labels: int64 [B, n], -100 at the pieces that have no label.
            word_mask: [B, n], 1 at the first piece of each word. The CRF decodes these positions.
                Without it, it decodes the positions that have a label, or without labels the
                positions that `attention_mask` keeps.
            output_marginals: whether to compute marginals; None: as in the configuration.
            output_hidden_states, output_attentions, return_dict: as for the encoder.
        """
        extra: dict[str, Any] = {
            "position_ids": position_ids,
            "inputs_embeds": inputs_embeds,
            "output_hidden_states": output_hidden_states,
            "output_attentions": output_attentions,
        }
        if self._takes_segments:
            extra["token_type_ids"] = token_type_ids
        given = {key: value for key, value in extra.items() if value is not None}
        encoded = self.encoder(
            input_ids=input_ids, attention_mask=attention_mask, return_dict=True, **given
        )
        logits = self.classifier(self.dropout(encoded.last_hidden_state))
        loss = tags = marginals = None
        if labels is not None:
            loss = self.crf.loss(logits, labels, word_mask, self.config.reduction)
        if not self.training:
            kept = _decoded_positions(word_mask, labels, attention_mask)
            tags = self.crf.decode_tensor(logits.detach(), kept)
            wanted = self.config.output_marginals if output_marginals is None else output_marginals
            if wanted:
                marginals = self.crf.marginals(logits.detach(), kept)
        output = CRFTokenClassifierOutput(
            loss=loss,
            tags=tags,
            marginals=marginals,
            logits=logits,
            hidden_states=encoded.get("hidden_states"),
            attentions=encoded.get("attentions"),
        )
        as_dict = self.config.return_dict if return_dict is None else return_dict
        return output if as_dict else output.to_tuple()


def _decoded_positions(
    word_mask: Tensor | None, labels: Tensor | None, attention_mask: Tensor | None
) -> Tensor | None:
    """Return which positions [B, n] are decoded; None: all."""
    if word_mask is not None:
        return word_mask
    if labels is not None:
        return labels != PAD
    return attention_mask
