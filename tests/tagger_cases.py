"""Tiny corpora and tiny networks, which train in a second."""

from __future__ import annotations

from collections.abc import Callable
from pathlib import Path
from typing import Any

import torch

from bcrf.tagger import Tagger
from bcrf.tagger.training import Config, Epoch, Event, train

# Tagged words of different lengths; some occur with two tags.
POS = """
the/DET old/ADJ dog/NOUN saw/VERB a/DET cat/NOUN ./PUNCT
a/DET cat/NOUN runs/VERB ./PUNCT
dogs/NOUN run/VERB
the/DET run/NOUN was/AUX long/ADJ and/CCONJ old/ADJ ./PUNCT
we/PRON saw/VERB the/DET saw/NOUN ./PUNCT
run/VERB !/PUNCT
the/DET cat/NOUN and/CCONJ the/DET dog/NOUN run/VERB
old/ADJ dogs/NOUN saw/VERB we/PRON ./PUNCT
no/INTJ
a/DET long/ADJ run/NOUN was/AUX old/ADJ
we/PRON run/VERB and/CCONJ we/PRON saw/VERB
"""

# Words of several scripts, some of them between spaces.
SEGMENTATION = """
我们/PRON 看见/VERB 了/AUX 图书/NOUN 馆/PART 。/PUNCT
他/PRON 有/VERB 3/NUM 本/NOUN 书/NOUN 。/PUNCT
图书/NOUN 馆/PART 有/VERB 我们/PRON
我/PRON 看/VERB 书/NOUN
他们/PRON 看见/VERB 我/PRON 。/PUNCT
Linux/X 有/VERB 图书/NOUN
书/NOUN
"""

NER = """
Ada/B-PER Lovelace/I-PER saw/O Turin/B-LOC ./O
Turin/B-LOC and/O Rome/B-LOC
Ada/B-PER works/O for/O Acme/B-ORG Corp/I-ORG ./O
she/O saw/O Ada/B-PER
Acme/B-ORG is/O in/O New/B-LOC York/I-LOC
Rome/B-LOC Corp/B-ORG is/O old/O ./O
Lovelace/B-PER
no/O names/O here/O
"""

TEXTS = {"pos": POS, "segmentation": SEGMENTATION, "ner": NER}

SMALL = {
    "width": 16,
    "heads": 2,
    "hidden": 16,
    "score_width": 8,
    "dropout": 0.0,
    "layer_dropout": 0.0,
    "unknown_rate": 0.0,
}


def pairs(task: str) -> list[list[tuple[str, str]]]:
    """Return the sentences of a task as words with their tags."""
    return [
        [(word, tag) for word, _, tag in (field.rpartition("/") for field in line.split())]
        for line in TEXTS[task].strip().splitlines()
    ]


def write(folder: Path, task: str, name: str = "train", skip: int = 0) -> Path:
    """Write a file with the sentences of a task: CoNLL-U, or two columns."""
    sentences = pairs(task)[skip:]
    if task == "ner":
        path = folder / f"{name}.conll"
        lines = ["".join(f"{word}\t{tag}\n" for word, tag in words) for words in sentences]
    else:
        path = folder / f"{name}.conllu"
        space = "SpaceAfter=No" if task == "segmentation" else "_"
        lines = [
            "".join(
                f"{i}\t{word}\t_\t{tag}\t_\t_\t_\t_\t_\t{space}\n"
                for i, (word, tag) in enumerate(words, start=1)
            )
            for words in sentences
        ]
    path.write_text("".join(text + "\n" for text in lines), encoding="utf-8")
    return path


def config(folder: Path, task: str = "pos", **changes: dict[str, Any]) -> Config:
    """Return the config of a run on the tiny corpus of a task, with some settings changed."""
    folder.mkdir(exist_ok=True)
    values: dict[str, Any] = {
        "data": {
            "task": task,
            "train": str(write(folder, task)),
            "dev": str(write(folder, task, "dev", skip=3)),
        },
        "model": dict(SMALL),
        "optimizer": {"learning_rate": 0.03},
        # Tests that want calibrated probabilities say so.
        "training": {"epochs": 3, "batch": 4, "device": "cpu", "calibrate": False},
        "decoding": {},
    }
    for part, settings in changes.items():
        values[part] |= settings
    return Config.from_dict({"output": str(folder / "run")} | values)


def run(settings: Config, **options: Any) -> list[Event]:
    return list(train(settings, **options))


def epochs(events: list[Event]) -> list[Epoch]:
    return [event for event in events if isinstance(event, Epoch)]


def trained(folder: Path, task: str = "pos", **changes: dict[str, Any]) -> Tagger:
    settings = config(folder, task, **changes)
    run(settings)
    return Tagger.load(settings.output)


def weights_equal(one: Tagger, other: Tagger) -> bool:
    left, right = one.model.state_dict(), other.model.state_dict()
    return left.keys() == right.keys() and all(torch.equal(left[k], right[k]) for k in left)


Change = Callable[[Path], None]
