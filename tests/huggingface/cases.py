"""Tiny encoders and tokenizers with random weights; nothing is downloaded."""

from __future__ import annotations

from typing import Any

import torch
from tokenizers import Tokenizer, models, pre_tokenizers, processors
from transformers import (
    AutoModel,
    BertConfig,
    DebertaV2Config,
    ModernBertConfig,
    PreTrainedTokenizerFast,
    RobertaConfig,
)

from bcrf.huggingface import CRFForTokenClassification, CRFTokenClassificationConfig

LABELS = ["O", "B-PER", "I-PER", "B-LOC", "I-LOC"]
LAYERS = ["crf", "bregman", "mean_field", "softmax"]
SPECIAL = ["[PAD]", "[UNK]", "[CLS]", "[SEP]"]
PIECES = "Ada Love ##lace visit ##ed Tur ##in ##ing live ##d in Man ##chester is far from New York"
SENTENCES = [
    ("Ada Lovelace visited Turin", "B-PER I-PER O B-LOC"),
    ("Turing lived in Manchester", "B-PER O O B-LOC"),
    ("Manchester is far from New York", "B-LOC O O O B-LOC I-LOC"),
    ("Ada lived in New York", "B-PER O O B-LOC I-LOC"),
]

_SIZES: dict[str, Any] = {
    "vocab_size": len(SPECIAL) + len(PIECES.split()),
    "hidden_size": 16,
    "num_hidden_layers": 2,
    "num_attention_heads": 2,
    "intermediate_size": 16,
    "pad_token_id": 0,
    "max_position_embeddings": 40,
}
ENCODERS: dict[str, Any] = {
    "bert": BertConfig(**_SIZES),
    "roberta": RobertaConfig(**_SIZES),
    "modernbert": ModernBertConfig(
        **_SIZES, cls_token_id=2, sep_token_id=3, bos_token_id=2, eos_token_id=3
    ),
    "deberta": DebertaV2Config(
        **_SIZES, relative_attention=True, pos_att_type=["c2p", "p2c"], position_buckets=8
    ),
}


def make_tokenizer(limit: int = 40) -> PreTrainedTokenizerFast:
    vocabulary = {piece: i for i, piece in enumerate([*SPECIAL, *PIECES.split()])}
    tokenizer = Tokenizer(models.WordPiece(vocabulary, unk_token="[UNK]"))
    tokenizer.pre_tokenizer = pre_tokenizers.WhitespaceSplit()
    ends = [(name, vocabulary[name]) for name in ("[CLS]", "[SEP]")]
    tokenizer.post_processor = processors.TemplateProcessing("[CLS] $A [SEP]", None, ends)
    return PreTrainedTokenizerFast(
        tokenizer_object=tokenizer,
        pad_token="[PAD]",
        unk_token="[UNK]",
        cls_token="[CLS]",
        sep_token="[SEP]",
        model_max_length=limit,
    )


def make_encoder(name: str = "bert") -> Any:
    torch.manual_seed(0)
    return AutoModel.from_config(ENCODERS[name])


def make_model(encoder: str = "bert", **settings: Any) -> CRFForTokenClassification:
    """Return a model with random weights; large enough scores, so that its tags differ."""
    torch.manual_seed(1)
    settings = {"labels": LABELS, "scheme": "IOB2"} | settings
    model = CRFForTokenClassification(CRFTokenClassificationConfig(ENCODERS[encoder], **settings))
    torch.nn.init.normal_(model.classifier.weight, std=1.0)
    return model.eval()


def batch() -> dict[str, torch.Tensor]:
    """Return two sentences of 7 and 5 pieces; some pieces have no label."""
    generator = torch.Generator().manual_seed(2)
    pieces = torch.randint(4, _SIZES["vocab_size"], (2, 7), generator=generator)
    mask = torch.tensor([[1] * 7, [1] * 5 + [0] * 2])
    labels = torch.tensor([[-100, 1, 2, -100, 0, 3, -100], [-100, 0, 1, 0, -100, -100, -100]])
    return {"input_ids": pieces * mask, "attention_mask": mask, "labels": labels}
