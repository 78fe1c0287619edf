"""stanza: its tagger and its entity recogniser, trained from scratch.

Without pretrained word vectors and character models, the tagger learns embeddings of words and a
character model itself; the entity recogniser learns only its character model. The files have no
other annotation than the tags, so stanza learns nothing else. `TaggerJob.settings` has arguments of
stanza's commands for each task.
"""

from __future__ import annotations

import json
import logging
import re
from collections.abc import Sequence
from importlib import import_module
from pathlib import Path
from typing import Any

import stanza
import torch

from ..job import Report, Tag, TaggerJob

__all__ = ["load", "model_path", "prepare", "train"]

_MODULE = {"pos": "stanza.models.tagger", "ner": "stanza.models.ner_tagger"}
_SUFFIX = {"pos": "conllu", "ner": "json"}
_SCORE = re.compile(r"step (\d+): .*dev_score = ([\d.]+)")
_IOB2 = {"S": "B", "E": "I"}


class _ScoreHandler(logging.Handler):
    """Reports the scores on dev that stanza writes to its log."""

    def __init__(self, report: Report) -> None:
        super().__init__()
        self._report = report

    def emit(self, record: logging.LogRecord) -> None:
        found = _SCORE.match(record.getMessage())
        if found is not None:
            self._report(float(found[2]), int(found[1]))


def model_path(job: TaggerJob) -> Path:
    """Return the file of the best model."""
    return job.folder / "best.pt"


def prepare(job: TaggerJob) -> None:
    """Write the training and the dev file in the formats that stanza reads."""
    write = {"pos": _conllu, "ner": _json}[job.task]
    for part in ("train", "dev"):
        _file(job, part).write_text(write(job.sentences(part)), encoding="utf-8")
    # A pipeline looks for this list of downloaded models, even if it is given its model.
    (job.folder / "resources.json").write_text("{}", encoding="utf-8")


def train(job: TaggerJob, report: Report) -> None:
    """Train as `python -m stanza.models.tagger` does; report the scores on dev."""
    torch.set_num_threads(job.threads)
    logging.getLogger("stanza").addHandler(_ScoreHandler(report))
    values = {
        "lang": job.language,
        "shorthand": f"{job.language}_own",
        "train_file": _file(job, "train"),
        "eval_file": _file(job, "dev"),
        "save_dir": job.folder,
        "save_name": model_path(job).name,
        "seed": job.seed,
        **job.settings.get(job.task, {}),
    }
    if job.task == "ner":
        del values["lang"]
    arguments = [text for name, value in values.items() for text in (f"--{name}", str(value))]
    import_module(_MODULE[job.task]).main([*arguments, "--no_pretrain", "--cpu"])


def load(job: TaggerJob) -> Tag:
    """Return a function that tags sentences with a pipeline of stanza."""
    torch.set_num_threads(job.threads)
    pipeline = stanza.Pipeline(
        lang=job.language,
        dir=str(job.folder),
        processors=f"tokenize,{job.task}",
        tokenize_pretokenized=True,
        download_method=None,
        allow_unknown_language=True,
        use_gpu=False,
        verbose=False,
        **{f"{job.task}_model_path": str(model_path(job))},
    )

    def tag(sentences: Sequence[Sequence[str]]) -> list[list[str]]:
        document = pipeline([list(words) for words in sentences])
        return [_tags(sentence, job.task) for sentence in document.sentences]

    return tag


def _file(job: TaggerJob, part: str) -> Path:
    return job.folder / f"stanza-{part}.{_SUFFIX[job.task]}"


def _tags(sentence: Any, task: str) -> list[str]:
    if task == "pos":
        return [word.upos for word in sentence.words]
    labels = (token.ner for token in sentence.tokens)
    return [_IOB2.get(label[0], label[0]) + label[1:] for label in labels]


_Pairs = list[tuple[list[str], list[str]]]


def _conllu(sentences: _Pairs) -> str:
    """Return CoNLL-U with words, tags, and a tree, which stanza's scorer needs: all on word 1."""
    lines = []
    for words, tags in sentences:
        for number, (word, tag) in enumerate(zip(words, tags, strict=True), start=1):
            head, relation = ("0", "root") if number == 1 else ("1", "dep")
            columns = [str(number), word, "_", tag, "_", "_", head, relation, "_", "_"]
            lines.append("\t".join(columns))
        lines.append("")
    return "".join(f"{line}\n" for line in lines)


def _json(sentences: _Pairs) -> str:
    return json.dumps(
        [
            [{"text": word, "ner": tag} for word, tag in zip(words, tags, strict=True)]
            for words, tags in sentences
        ]
    )
