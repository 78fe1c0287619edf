"""Find personal data with a token classifier that has no CRF: `python examples/decode_logits.py`.

The classifier is replaced by made-up logits, so nothing is downloaded. With a model of
transformers, take `id2label` from `model.config.id2label`, and the tokens, offsets and logits from
the tokenizer (`return_offsets_mapping=True`) and from `model(**batch).logits`.

The most probable label of each token is often illegal: I-NAME without B-NAME, or a span that never
ends. `decode_logits` returns the best legal labels, and a probability for each span.
"""

import re

import torch
from torch import Tensor

import bcrf

TYPES = ("NAME", "EMAIL", "PHONE")
ID2LABEL = dict(enumerate(["O", *(f"{x}-{kind}" for kind in TYPES for x in "BIES")]))
LABEL2ID = {label: index for index, label in ID2LABEL.items()}

TEXT = "Ask Ada Mary Lovelace , ada @ example . org , or call 555 01 99 ."
GOLD = (
    "O B-NAME I-NAME E-NAME O B-EMAIL I-EMAIL I-EMAIL I-EMAIL E-EMAIL O O O "
    "B-PHONE I-PHONE E-PHONE O"
)


def make_logits(labels: list[str], mistakes: dict[int, str]) -> Tensor:
    """Return logits [n, T] that favour `labels`, and favour the labels of `mistakes` even more."""
    torch.manual_seed(0)
    logits = 0.5 * torch.randn(len(labels), len(ID2LABEL))
    for position, label in enumerate(labels):
        logits[position, LABEL2ID[label]] += 5.0
    for position, label in mistakes.items():
        logits[position, LABEL2ID[label]] += 6.0
    return logits


def show(found: bcrf.DecodedLogits, offsets: list[tuple[int, int]]) -> None:
    for span in found.spans[0]:
        first, last = offsets[span.start][0], offsets[span.end - 1][1]
        print(f"  {span.label:6} {TEXT[first:last]!r:24} {100 * span.probability:.0f} %")


def main() -> None:
    offsets = [match.span() for match in re.finditer(r"\S+", TEXT)]
    logits = make_logits(GOLD.split(), {1: "I-NAME", 9: "I-EMAIL", 15: "O"})
    best = [ID2LABEL[tag] for tag in logits.argmax(-1).tolist()]
    print("argmax per token: ", " ".join(best))

    found = bcrf.decode_logits(logits, ID2LABEL)
    print("legal labels:     ", " ".join(found.labels[0]))
    show(found, offsets)

    # An operating point: rather miss a span than mark a wrong one.
    careful = bcrf.TransitionBias(enter_span=-6.0)
    print("with enter_span = -6:")
    show(bcrf.decode_logits(logits, ID2LABEL, transition_bias=careful), offsets)

    # Usually development data chooses the biases. Here the classifier prefers O too much.
    cautious = logits.clone()
    cautious[:, LABEL2ID["O"]] += 5.5
    before = bcrf.decode_logits(cautious, ID2LABEL)
    tuned = bcrf.tune_transition_bias(cautious, GOLD.split(), ID2LABEL)
    print(f"a cautious classifier finds {len(before.spans[0])} spans; with {tuned.bias}:")
    show(bcrf.decode_logits(cautious, ID2LABEL, transition_bias=tuned.bias), offsets)


if __name__ == "__main__":
    main()
