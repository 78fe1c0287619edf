"""flair: a `SequenceTagger` on embeddings of words and characters that are trained from scratch."""

from __future__ import annotations

from collections.abc import Sequence
from pathlib import Path
from typing import Any

import flair
import torch
from flair.data import Corpus, Dictionary, Sentence
from flair.datasets import FlairDatapointDataset
from flair.embeddings import CharacterEmbeddings, OneHotEmbeddings, StackedEmbeddings
from flair.models import SequenceTagger
from flair.trainers import ModelTrainer
from flair.trainers.plugins import TrainerPlugin

from ..job import Report, Tag, TaggerJob

__all__ = ["load", "model_path", "prepare", "train"]


class _ScorePlugin(TrainerPlugin):  # type: ignore[misc]
    """Reports the score on dev after each epoch."""

    def __init__(self, report: Report) -> None:
        super().__init__()
        self._report = report

    @TrainerPlugin.hook
    def after_evaluation(self, epoch: int, validation_scores: Sequence[float], **_: Any) -> None:
        self._report(float(validation_scores[0]), epoch)


def model_path(job: TaggerJob) -> Path:
    """Return the file of the best model."""
    return job.folder / "best-model.pt"


def prepare(job: TaggerJob) -> None:
    """Do nothing: the sentences are given to flair as objects."""


def train(job: TaggerJob, report: Report) -> None:
    """Train with the default settings of `ModelTrainer.train`; report the scores on dev."""
    _set_up(job)
    train_set, dev_set = (
        FlairDatapointDataset([_sentence(job, *pair) for pair in job.sentences(part)])
        for part in ("train", "dev")
    )
    corpus = Corpus(train=train_set, dev=dev_set, sample_missing_splits=False)
    characters = Dictionary()
    for words, _ in job.sentences("train"):
        for character in sorted({character for word in words for character in word}):
            characters.add_item(character)
    tagger = SequenceTagger(
        StackedEmbeddings([OneHotEmbeddings.from_corpus(corpus), CharacterEmbeddings(characters)]),
        tag_dictionary=corpus.make_label_dictionary(job.task, add_unk=False),
        tag_type=job.task,
    )
    ModelTrainer(tagger, corpus).train(
        job.folder, save_final_model=False, plugins=[_ScorePlugin(report)]
    )


def load(job: TaggerJob) -> Tag:
    """Return a function that tags sentences with `SequenceTagger.predict`."""
    _set_up(job)
    tagger = SequenceTagger.load(model_path(job))

    def tag(sentences: Sequence[Sequence[str]]) -> list[list[str]]:
        given = [Sentence(list(words)) for words in sentences]
        tagger.predict(given)
        return [_tags(sentence, job.task) for sentence in given]

    return tag


def _set_up(job: TaggerJob) -> None:
    torch.set_num_threads(job.threads)
    flair.device = torch.device("cpu")
    flair.set_seed(job.seed)


def _sentence(job: TaggerJob, words: Sequence[str], tags: Sequence[str]) -> Sentence:
    """Return an annotated sentence; flair keeps mentions as labels of spans."""
    sentence = Sentence(list(words))
    if job.task == "pos":
        for token, tag in zip(sentence.tokens, tags, strict=True):
            token.add_label(job.task, tag)
        return sentence
    start = None
    for position, tag in enumerate([*tags, "O"]):
        if start is not None and not tag.startswith("I-"):
            sentence[start:position].add_label(job.task, tags[start][2:])
            start = None
        if tag.startswith("B-"):
            start = position
    return sentence


def _tags(sentence: Sentence, task: str) -> list[str]:
    if task == "pos":
        return [token.get_label(task).value for token in sentence.tokens]
    tags = ["O"] * len(sentence)
    for span in sentence.get_spans(task):
        start, stop = span.tokens[0].idx - 1, span.tokens[-1].idx
        name = span.get_label(task).value
        tags[start:stop] = [f"B-{name}", *([f"I-{name}"] * (stop - start - 1))]
    return tags
