"""Define the corpora of the comparison, and read and score them."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass
from pathlib import Path

from bcrf.tagger import tasks
from bcrf.tagger.data import read
from bcrf.tagger.files import sha256
from bcrf.tagger.tasks import CharacterExample, Example, Task
from reproduction.data_folder import DataFolder
from reproduction.experiment import CorpusSpec

from .job import PARTS

__all__ = ["CORPORA", "TaggerCorpus", "TaggerData", "read_corpus"]


@dataclass(frozen=True)
class TaggerCorpus:
    """A corpus, and the task that taggers learn from it.

    Args:
        title: the corpus and the task, for tables.
        score: name of the score.
        task: "pos", "ner" or "segmentation".
        language: code of the language.
        files: names of the training, dev and test file; a name may be the end of a path.
    """

    title: str
    score: str
    task: str
    language: str
    files: tuple[str, str, str]


CORPORA = {
    "en_ewt": TaggerCorpus(
        "English-EWT, parts of speech (UPOS)",
        "accuracy",
        "pos",
        "en",
        ("en_ewt-ud-train.conllu", "en_ewt-ud-dev.conllu", "en_ewt-ud-test.conllu"),
    ),
    "wnut17": TaggerCorpus(
        "WNUT-17, named entities",
        "F1",
        "ner",
        "en",
        ("wnut17/train.conll", "wnut17/dev.conll", "wnut17/test.conll"),
    ),
    "ja_gsd": TaggerCorpus(
        "Japanese-GSD, words and parts of speech of characters",
        "F1",
        "segmentation",
        "ja",
        ("ja_gsd-ud-train.conllu", "ja_gsd-ud-dev.conllu", "ja_gsd-ud-test.conllu"),
    ),
    "zh_gsd": TaggerCorpus(
        "Chinese-GSD, words and parts of speech of characters",
        "F1",
        "segmentation",
        "zh",
        ("zh_gsd-ud-train.conllu", "zh_gsd-ud-dev.conllu", "zh_gsd-ud-test.conllu"),
    ),
}
"""All corpora by name."""


@dataclass(frozen=True)
class TaggerData:
    """The files of a corpus and their sentences.

    Args:
        files: split -> path.
        examples: split -> sentences with gold labels.
        task: the task, with the labels of the training sentences.
        description: names and checksums of the files, for the log.
    """

    files: dict[str, str]
    examples: dict[str, list[Example]]
    task: Task
    description: dict[str, object]

    def sentences(self) -> dict[str, list[tuple[list[str], list[str]]]]:
        """Return the words and the gold tags of each sentence that has words, by split.

        The words of a text that is to be segmented are its characters, white space included.
        """
        return {
            part: [(_given(example), list(example.gold())) for example in examples]
            for part, examples in self.examples.items()
        }

    @property
    def test_tokens(self) -> int:
        return sum(map(len, self.examples["test"]))

    def test_scores(self, tags: Sequence[Sequence[str]]) -> dict[str, float]:
        """Return the scores of the predicted tags of the test sentences.

        Raises:
            ValueError: the number of sentences, or of the tags of a sentence, is wrong.
        """
        metric = self.task.metric()
        for example, predicted in zip(self.examples["test"], tags, strict=True):
            metric.add(example, predicted)
        result = metric.result()
        return {"score": result[metric.main], **result}


def _given(example: Example) -> list[str]:
    """Return what a tagger is given."""
    return list(example.text if isinstance(example, CharacterExample) else example.tokens)


def read_corpus(name: str, folder: Path) -> TaggerData:
    """Read a corpus whose files are anywhere below a folder.

    Raises:
        FileNotFoundError: a file is missing.
        bcrf.tagger.data.DataError: a file is malformed; the message names the file and the line.
    """
    corpus = CORPORA[name]
    spec = CorpusSpec(name, {part: (file,) for part, file in zip(PARTS, corpus.files, strict=True)})
    located = DataFolder(folder).locate(spec)
    if located.missing is not None:
        raise FileNotFoundError(f"{name}: {located.missing}")
    files = {part: str(path) for part, path in located.paths.items()}
    read_files = {part: list(read(path)) for part, path in files.items()}
    task = tasks.fit(corpus.task, read_files["train"])
    return TaggerData(
        files,
        {
            part: [example for example in task.annotated(sentences) if len(example)]
            for part, sentences in read_files.items()
        },
        task,
        {part: {"name": path.name, "sha256": sha256(path)} for part, path in located.paths.items()},
    )
