"""Put a Bregman CRF into your own Hugging Face model: `python examples/huggingface_head.py`.

If you need no class of your own, `bcrf.huggingface.CRFForTokenClassification` is such a model.

The encoder is a tiny BERT with random weights and its own vocabulary, so nothing is downloaded. For
a real model, change only `tokenizer` and `config`; `from_pretrained` works as usual, and the head
initialises itself if the checkpoint has none.

The tokenizer cuts words into pieces. The first piece of a word has the label of the word, and all
other pieces have the label -100. The head removes these pieces, so adjacent positions are words.
"""

import torch
from tokenizers import Tokenizer, models, pre_tokenizers, processors
from torch import Tensor, nn
from transformers import BertConfig, BertModel, BertPreTrainedModel, PreTrainedTokenizerFast
from transformers.modeling_outputs import TokenClassifierOutput

import bcrf
from bcrf.huggingface import CRFDataCollator, encode_words

LABELS = ["O", "B-PER", "I-PER", "B-LOC", "I-LOC"]
SENTENCES = [
    ("Ada Lovelace visited Turin", "B-PER I-PER O B-LOC"),
    ("Turing lived in Manchester", "B-PER O O B-LOC"),
    ("Manchester is far from New York", "B-LOC O O O B-LOC I-LOC"),
]
SPECIAL = ["[PAD]", "[UNK]", "[CLS]", "[SEP]"]
PIECES = "Ada Love ##lace visit ##ed Tur ##in ##ing live ##d in Man ##chester is far from New York"


def make_tokenizer() -> PreTrainedTokenizerFast:
    vocabulary = {piece: i for i, piece in enumerate([*SPECIAL, *PIECES.split()])}
    tokenizer = Tokenizer(models.WordPiece(vocabulary, unk_token="[UNK]"))
    tokenizer.pre_tokenizer = pre_tokenizers.WhitespaceSplit()
    ends = [(name, vocabulary[name]) for name in ("[CLS]", "[SEP]")]
    tokenizer.post_processor = processors.TemplateProcessing("[CLS] $A [SEP]", None, ends)
    return PreTrainedTokenizerFast(
        tokenizer_object=tokenizer, pad_token="[PAD]", unk_token="[UNK]", cls_token="[CLS]"
    )


class BertForBregmanTagging(BertPreTrainedModel):
    def __init__(self, config: BertConfig) -> None:
        super().__init__(config)
        self.bert = BertModel(config, add_pooling_layer=False)
        self.dropout = nn.Dropout(config.hidden_dropout_prob)
        self.classifier = nn.Linear(config.hidden_size, config.num_labels)
        rules = bcrf.Structure.from_labels(config.id2label, "IOB2")
        self.head = bcrf.BregmanCRF(config.num_labels, iterations=10, constraints=rules)
        self.post_init()

    def forward(
        self, input_ids: Tensor, attention_mask: Tensor, labels: Tensor | None = None
    ) -> TokenClassifierOutput:
        states = self.bert(input_ids, attention_mask=attention_mask).last_hidden_state
        logits = self.classifier(self.dropout(states))
        loss = None
        if labels is not None:
            loss = self.head.loss(logits, labels, attention_mask, reduction="mean")
        return TokenClassifierOutput(loss=loss, logits=logits)


def encode(tokenizer: PreTrainedTokenizerFast) -> tuple[dict[str, Tensor], Tensor]:
    """Return the batch, and labels [B, n] that are -100 except at the first piece of a word."""
    label2id = {label: tag for tag, label in enumerate(LABELS)}
    rows = [
        encode_words(tokenizer, text.split(), tags.split(), label2id=label2id)
        for text, tags in SENTENCES
    ]
    batch = CRFDataCollator(tokenizer)(rows)
    return {name: batch[name] for name in ("input_ids", "attention_mask")}, batch["labels"]


def main() -> None:
    torch.manual_seed(0)
    tokenizer = make_tokenizer()
    config = BertConfig(
        vocab_size=len(tokenizer),
        hidden_size=32,
        num_hidden_layers=1,
        num_attention_heads=2,
        intermediate_size=64,
        id2label=dict(enumerate(LABELS)),
    )
    model = BertForBregmanTagging(config)
    batch, labels = encode(tokenizer)
    optimizer = torch.optim.AdamW(model.parameters(), 0.01)
    for step in range(31):
        loss = model(**batch, labels=labels).loss
        optimizer.zero_grad()
        loss.backward()
        optimizer.step()
        if step % 10 == 0:
            print(f"step {step:2}  loss {loss.item():.3f}")

    model.eval()
    first_pieces = labels != -100
    with torch.no_grad():
        logits = model(**batch).logits
        decoded = model.head.decode(logits, first_pieces)
        confidence = model.head.marginals(logits, first_pieces).amax(-1)
    for (text, _), tags, row, keep in zip(
        SENTENCES, decoded, confidence, first_pieces, strict=True
    ):
        shown = zip(text.split(), tags, row[keep].tolist(), strict=True)
        print("  ".join(f"{word}/{LABELS[tag]} {100 * p:.0f} %" for word, tag, p in shown))


if __name__ == "__main__":
    main()
