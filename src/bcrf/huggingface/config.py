"""`CRFTokenClassificationConfig`: an encoder, labels and the settings of an output layer."""

from __future__ import annotations

from collections.abc import Callable, Mapping, Sequence
from typing import Any, Literal

from transformers import AutoConfig, PreTrainedConfig

from ..checks import check_count, check_number
from ..decoding import LAYER_DECODERS, check_layer_decoder
from ..layers import BregmanCRF, ChainLayer, ExactCRF, MeanFieldCRF, TokenSoftmax
from ..structure import Structure
from ..suggestions import did_you_mean

__all__ = ["CRFTokenClassificationConfig", "LayerName"]

LayerName = Literal["crf", "bregman", "mean_field", "softmax"]
_LAYERS: dict[LayerName, type[ChainLayer]] = {
    "crf": ExactCRF,
    "bregman": BregmanCRF,
    "mean_field": MeanFieldCRF,
    "softmax": TokenSoftmax,
}
_MASKS = ("start", "end", "follow")
_ITERATIVE = ("bregman", "mean_field")
# A config.json comes from anywhere; more iterations would only take time.
_MAX_ITERATIONS = 10_000
_REDUCTIONS = ("sum", "mean", "token_mean")


class CRFTokenClassificationConfig(PreTrainedConfig):  # type: ignore[misc]
    """The settings of a `CRFForTokenClassification`, saved in `config.json`.

    Args:
        encoder: the configuration of the encoder, as an object or a dict with `model_type`.
        labels: the label of each tag, in the order of the tag ids, or `id2label` as a dict.
        scheme: the tag scheme of the labels, as in `Structure.from_labels`. Ill-formed sequences
            are then removed from the model, and the labels are read as spans. None: the labels
            are plain tags such as parts of speech.
        layer: "crf" (`ExactCRF`), "bregman" (`BregmanCRF`), "mean_field" (`MeanFieldCRF`) or
            "softmax" (`TokenSoftmax`).
        iterations: of "bregman" and "mean_field"; None: the default of the layer.
        constraints: which tags may start a sentence, end it and follow each other, in addition to
            the scheme: a `Structure`, or a dict with its masks as lists.
        penalty: None: forbidden tags and transitions are removed. A number: the cost of each.
        decoder: one of `bcrf.decoding.LAYER_DECODERS`; None: the default of the layer.
        decoder_temperature: of the decoders "mbr" and "constrained_mbr".
        train_temperature: the layer models the scores divided by this number.
        reduction: of the loss: "sum", "mean" (over sentences) or "token_mean".
        dropout: of the states of the encoder; None: that of the encoder, else 0.1.
        output_marginals: whether outputs have the probability of each tag at each position.

    Example:
        >>> from transformers import BertConfig
        >>> from bcrf.huggingface import CRFTokenClassificationConfig
        >>> config = CRFTokenClassificationConfig(BertConfig(), ["O", "B-PER", "I-PER"], "IOB2")
        >>> config.id2label, config.num_labels
        ({0: 'O', 1: 'B-PER', 2: 'I-PER'}, 3)
    """

    model_type = "bcrf-token-classification"
    has_no_defaults_at_init = True
    sub_configs = {"encoder": AutoConfig}  # noqa: RUF012  # transformers expects a plain dict
    # `Trainer` passes the other fields of an output to `compute_metrics`.
    keys_to_ignore_at_inference = ["logits", "hidden_states", "attentions"]  # noqa: RUF012

    def __init__(
        self,
        encoder: Any = None,
        labels: Sequence[str] | Mapping[int, str] | Mapping[str, str] | None = None,
        scheme: str | None = None,
        layer: LayerName = "crf",
        *,
        iterations: int | None = None,
        constraints: Structure | Mapping[str, Any] | None = None,
        penalty: float | None = None,
        decoder: str | None = None,
        decoder_temperature: float = 1.0,
        train_temperature: float = 1.0,
        reduction: Literal["sum", "mean", "token_mean"] = "mean",
        dropout: float | None = None,
        output_marginals: bool = False,
        **common: object,
    ) -> None:
        """Check the settings; `common` has the settings that all configurations have."""
        id2label = common.pop("id2label", None)
        common.pop("label2id", None)  # it is computed from the labels
        common.pop("num_labels", None)
        if labels is None:
            labels = id2label  # type: ignore[assignment]
        self.encoder = _encoder_config(encoder)
        names = _label_names(labels)
        _check_names(layer, decoder, reduction, iterations)
        if dropout is not None:
            check_number("dropout", dropout)
            if not 0 <= dropout < 1:
                raise ValueError(f"dropout must be in 0..1, without 1, got {dropout}")
        self.scheme = scheme
        self.layer = layer
        self.iterations = iterations
        self.constraints = _mask_lists(constraints)
        self.penalty = penalty
        self.decoder = decoder
        self.decoder_temperature = decoder_temperature
        self.train_temperature = train_temperature
        self.reduction = reduction
        self.dropout = dropout
        self.output_marginals = output_marginals
        super().__init__(
            id2label=dict(enumerate(names)),
            label2id={name: tag for tag, name in enumerate(names)},
            **common,
        )
        self.make_layer()  # raises if the settings do not fit together

    @property
    def labels(self) -> list[str]:
        """The label of each tag, in the order of the tag ids."""
        return [self.id2label[tag] for tag in range(len(self.id2label))]

    @property
    def structure(self) -> Structure | None:
        """Which tag sequences the scheme and the constraints allow; None: all."""
        labels = self.labels
        own = None
        if self.constraints is not None:
            own = Structure(**self.constraints, labels=labels)
        if self.scheme is None:
            return own
        rules = Structure.from_labels(labels, self.scheme)
        if own is None:
            return rules
        both = rules.intersect(own)
        return Structure(both.start, both.end, both.follow, labels)

    @property
    def encoder_dropout(self) -> float:
        """The dropout of the states: `dropout`, else that of the encoder, else 0.1."""
        for value in (
            self.dropout,
            getattr(self.encoder, "classifier_dropout", None),
            getattr(self.encoder, "hidden_dropout_prob", None),
        ):
            if value is not None:
                return float(value)
        return 0.1

    def make_layer(self) -> ChainLayer:
        """Return a new output layer with these settings.

        Example:
            >>> from transformers import BertConfig
            >>> from bcrf.huggingface import CRFTokenClassificationConfig
            >>> CRFTokenClassificationConfig(BertConfig(), ["X", "Y"], layer="crf").make_layer()
            ExactCRF(num_tags=2, solver=ForwardBackward(parallel=False, backend='auto'))
        """
        make: Callable[..., ChainLayer] = _LAYERS[self.layer]
        chosen: dict[str, object] = {}
        if self.iterations is not None:
            chosen["iterations"] = self.iterations
        if self.decoder is not None:
            chosen["decoder"] = self.decoder
        return make(
            len(self.id2label),
            constraints=self.structure,
            penalty=self.penalty,
            temperature=self.decoder_temperature,
            train_temperature=self.train_temperature,
            **chosen,
        )


def _mask_lists(constraints: Structure | Mapping[str, Any] | None) -> dict[str, Any] | None:
    """Return constraints in the form in which `config.json` holds them."""
    if constraints is None:
        return None
    if isinstance(constraints, Structure):
        return {name: getattr(constraints, name).tolist() for name in _MASKS}
    unknown = sorted(set(constraints) - set(_MASKS))
    if unknown:
        raise ValueError(f"constraints: expected the keys {', '.join(_MASKS)}, got {unknown}")
    return dict(constraints)


def _encoder_config(encoder: Any) -> PreTrainedConfig:
    """Return the configuration of the encoder; raise if it is missing or no encoder."""
    if encoder is None:
        raise ValueError(
            "encoder: expected the configuration of an encoder, got none; if the checkpoint is a "
            "plain encoder, load it with CRFForTokenClassification.from_encoder(name, labels=...)"
        )
    if isinstance(encoder, Mapping):
        settings = dict(encoder)
        kind = settings.pop("model_type", None)
        if not isinstance(kind, str):
            raise ValueError(f"encoder: expected a dict with the key model_type, got {kind!r}")
        encoder = AutoConfig.for_model(kind, **settings)
    if not isinstance(encoder, PreTrainedConfig):
        raise TypeError(
            "encoder: expected a configuration of transformers or a dict, got "
            f"{type(encoder).__name__}"
        )
    if getattr(encoder, "is_encoder_decoder", False):
        raise ValueError(
            f"encoder: got the encoder-decoder model {encoder.model_type}; choose an encoder such "
            "as BERT"
        )
    if not isinstance(getattr(encoder, "hidden_size", None), int):
        raise ValueError(
            f"encoder: {encoder.model_type} has no hidden_size; choose a text encoder such as BERT"
        )
    return encoder


def _label_names(labels: Any) -> list[str]:
    """Return the labels in the order of the tag ids; raise if two are equal."""
    if labels is None:
        raise ValueError("labels: expected the list of labels, got None")
    size = len(labels) if isinstance(labels, Mapping | Sequence) else 1
    names = Structure(start=[True] * max(size, 1), labels=labels).labels
    assert names is not None
    if len(set(names)) < len(names):
        repeated = next(name for name in names if names.count(name) > 1)
        raise ValueError(f"labels: {repeated!r} appears twice; expected distinct labels")
    return list(names)


def _check_names(layer: str, decoder: str | None, reduction: str, iterations: int | None) -> None:
    if layer not in _LAYERS:
        raise ValueError(
            f"layer must be one of {', '.join(_LAYERS)}, got {layer!r}"
            f"{did_you_mean(str(layer), _LAYERS)}"
        )
    if iterations is not None:
        if layer not in _ITERATIVE:
            raise ValueError(
                f"iterations: the layer {layer!r} has none; leave it out, or choose one of "
                f"{', '.join(_ITERATIVE)}"
            )
        check_count("iterations", iterations, least=1)
        if iterations > _MAX_ITERATIONS:
            raise ValueError(f"iterations must be at most {_MAX_ITERATIONS}, got {iterations}")
    if reduction not in _REDUCTIONS:
        raise ValueError(f"reduction must be one of {', '.join(_REDUCTIONS)}, got {reduction!r}")
    if decoder is not None:
        if decoder not in LAYER_DECODERS:
            raise ValueError(
                f"decoder must be one of {', '.join(LAYER_DECODERS)}, got {decoder!r}"
                f"{did_you_mean(str(decoder), LAYER_DECODERS)}"
            )
        check_layer_decoder(decoder, 1.0)
