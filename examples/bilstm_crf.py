"""Train a BiLSTM-CRF on four sentences: `python examples/bilstm_crf.py`.

Replace ExactCRF by any other layer of bcrf: nothing else changes.
"""

import torch
from torch import Tensor, nn
from torch.nn.utils.rnn import pad_sequence

import bcrf

LABELS = ["O", "B-PER", "I-PER", "B-LOC", "I-LOC"]
TRAIN = [
    ("Ada Lovelace visited Turin", "B-PER I-PER O B-LOC"),
    ("Alan Turing lived in Manchester", "B-PER I-PER O O B-LOC"),
    ("New York is far from Turin", "B-LOC I-LOC O O O B-LOC"),
    ("Grace Hopper worked in New York", "B-PER I-PER O O B-LOC I-LOC"),
]
WORDS = {word: i for i, word in enumerate({w: 0 for text, _ in TRAIN for w in text.split()}, 1)}


class BiLstmCrf(nn.Module):
    def __init__(self) -> None:
        super().__init__()
        self.embedding = nn.Embedding(len(WORDS) + 1, 32, padding_idx=0)
        self.lstm = nn.LSTM(32, 32, bidirectional=True, batch_first=True)
        self.scores = nn.Linear(64, len(LABELS))
        rules = bcrf.Structure.from_labels(LABELS, "IOB2")
        self.crf = bcrf.ExactCRF(len(LABELS), constraints=rules)

    def forward(self, words: Tensor) -> Tensor:
        return self.scores(self.lstm(self.embedding(words))[0])


torch.manual_seed(0)
words = [torch.tensor([WORDS[word] for word in text.split()]) for text, _ in TRAIN]
gold = [torch.tensor([LABELS.index(tag) for tag in tags.split()]) for _, tags in TRAIN]
x, y = pad_sequence(words, batch_first=True), pad_sequence(gold, batch_first=True)
model = BiLstmCrf()
model.crf.init_from_counts(gold)
optimizer = torch.optim.Adam(model.parameters(), 0.01)
for step in range(31):
    loss = model.crf.loss(model(x), y, mask=x > 0, reduction="mean")
    optimizer.zero_grad()
    loss.backward()
    optimizer.step()
    if step % 10 == 0:
        print(f"step {step:2}  loss {loss.item():.3f}")
for (text, _), tags in zip(TRAIN, model.crf.decode(model(x), mask=x > 0), strict=True):
    print("  ".join(f"{word}/{LABELS[tag]}" for word, tag in zip(text.split(), tags, strict=True)))
