"""spaCy: a pipeline that is trained from scratch, with the settings of `spacy init config`.

The part-of-speech tags are those of the morphologizer, trained without morphological features. The
sentences keep the words of the files (`gold_preproc`), in training, on dev and when tagging.
"""

from __future__ import annotations

from collections.abc import Callable, Sequence
from pathlib import Path
from typing import Any

import spacy
from spacy.cli.init_config import init_config
from spacy.tokens import Doc, DocBin
from spacy.training.initialize import init_nlp
from spacy.training.loop import train as train_pipeline
from spacy.vocab import Vocab

from ..job import Report, Tag, TaggerJob

__all__ = ["load", "model_path", "prepare", "train"]

_COMPONENT = {"pos": "morphologizer", "ner": "ner"}
_LOGGER = "bcrf.ReportScores"


def model_path(job: TaggerJob) -> Path:
    """Return the folder of the best model."""
    return job.folder / "model-best"


def prepare(job: TaggerJob) -> None:
    """Write the training and the dev file in spaCy's format."""
    vocab = Vocab()
    for part in ("train", "dev"):
        docs = [_annotated(vocab, job.task, *pair) for pair in job.sentences(part)]
        DocBin(docs=docs).to_disk(job.folder / f"{part}.spacy")


def train(job: TaggerJob, report: Report) -> None:
    """Train as `spacy train` does; report the score of each evaluation on dev."""
    config: Any = init_config(
        lang=job.language, pipeline=[_COMPONENT[job.task]], optimize="efficiency", gpu=False
    )
    for part in ("train", "dev"):
        config["paths"][part] = str(job.folder / f"{part}.spacy")
        config["corpora"][part]["gold_preproc"] = True
    config["system"]["seed"] = job.seed
    if job.task == "pos":
        config["training"]["score_weights"] = {"pos_acc": 1.0, "morph_acc": None}
    config["training"]["logger"] = {"@loggers": _LOGGER}
    spacy.registry.loggers.register(_LOGGER, func=_reporting(report))
    train_pipeline(init_nlp(config), job.folder)


def load(job: TaggerJob) -> Tag:
    """Return a function that tags sentences with `nlp.pipe`."""
    nlp = spacy.load(model_path(job))

    def tag(sentences: Sequence[Sequence[str]]) -> list[list[str]]:
        docs = nlp.pipe(Doc(nlp.vocab, words=list(words)) for words in sentences)
        return [[_tag(token, job.task) for token in doc] for doc in docs]

    return tag


def _annotated(vocab: Vocab, task: str, words: Sequence[str], tags: Sequence[str]) -> Doc:
    starts = [position == 0 for position in range(len(words))]
    if task == "ner":
        return Doc(vocab, words=list(words), sent_starts=starts, ents=list(tags))
    return Doc(
        vocab, words=list(words), sent_starts=starts, pos=list(tags), morphs=[""] * len(words)
    )


def _tag(token: Any, task: str) -> str:
    if task == "pos":
        return str(token.pos_)
    return f"{token.ent_iob_}-{token.ent_type_}" if token.ent_type_ else "O"


def _reporting(report: Report) -> Callable[[], Any]:
    """Return a logger for spaCy's training that reports each score on dev."""

    def log(row: dict[str, Any] | None) -> None:
        if row is not None:
            report(row["score"], row["step"])

    def make_logger() -> Callable[..., Any]:
        return lambda nlp, *streams: (log, lambda: None)

    return make_logger
