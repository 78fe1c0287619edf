"""A small tokenizer, which trains in a few seconds, and texts for it."""

from __future__ import annotations

from pathlib import Path
from typing import Any

from bcrf.tagger import Tagger, Tokenizer
from bcrf.tagger.training import Config, train

SENTENCES = [
    "Ada visited Turin again+ .",
    "She did+ n't stay+ .",
    "It was 3.5 miles+ , was+ n't it+ ?",
    "Why not+ ?",
    "He said+ : yes+ !",
    "Rome is old+ .",
    "They do+ n't go there+ .",
]
"""Words of sentences; no space follows a word with a plus sign."""

TEXT = "Ada visited Turin again. She didn't stay."
WORDS = [("Ada", "visited", "Turin", "again", "."), ("She", "did", "n't", "stay", ".")]

NETWORK = {
    "feature_width": 8,
    "context_width": 16,
    "context_layers": 2,
    "score_width": 8,
    "dropout": 0.0,
    "feature_dropout": 0.0,
}


def treebank() -> str:
    """Return CoNLL-U of many sentences, in paragraphs of three."""
    blocks = []
    for number in range(1200):
        words = SENTENCES[(number * 3 + number // 7) % len(SENTENCES)].split()
        rows = [
            f"{i}\t{word.removesuffix('+')}\t_\tX\t_\t_\t_\t_\t_\t"
            f"{'SpaceAfter=No' if word.endswith('+') else '_'}\n"
            for i, word in enumerate(words, 1)
        ]
        start = "# newpar\n" if number % 3 == 0 else ""
        text = "".join(f"{word} " for word in words).replace("+ ", "").strip()
        blocks.append(f"{start}# text = {text}\n" + "".join(rows) + "\n")
    return "".join(blocks)


def train_tokenizer(folder: Path, **parts: dict[str, Any]) -> Path:
    """Train a small tokenizer; return the folder of the model."""
    file = folder / "tokens.conllu"
    file.write_text(treebank(), encoding="utf-8")
    values: dict[str, Any] = {
        "output": str(folder / "tokenizer-run"),
        "data": {"task": "tokenization", "train": str(file), "min_count": 1},
        "model": NETWORK,
        "optimizer": {"learning_rate": 0.03},
        "training": {"epochs": 3, "batch": 800, "device": "cpu"},
    }
    for name, part in parts.items():
        values[name] = values.get(name, {}) | part
    for _ in train(Config.from_dict(values)):
        pass
    return folder / "tokenizer-run" / "best"


def load_tokenizer(folder: Path, **parts: dict[str, Any]) -> Tokenizer:
    return Tokenizer(Tagger.load(train_tokenizer(folder, **parts), "cpu"))
