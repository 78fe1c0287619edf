"""A trained tagger with all that it needs: network, task and vocabularies."""

from __future__ import annotations

import os
import time
from collections.abc import Iterable, Iterator, Mapping, Sequence
from contextlib import contextmanager
from itertools import islice
from pathlib import Path
from typing import Any

import torch

from ..chain import LinearChain
from ..checks import check_count
from ..data import DataError, LengthBatches, Sentence, read
from ..nn import TaggerModel, check_decoder, default_decoder
from ..tasks import Example, Task
from . import folder as folders
from .atomic_folder import read_consistently, replace_folder, report_write_errors
from .blocks import BlockedChain
from .decoding import check_repair, label
from .devices import choose_device
from .errors import ModelError
from .inputs import InputReader, Inputs, Vocabularies, pad_masks
from .long_sentences import LongSentence, block_size, network_context
from .model_reader import read_model
from .probabilities import probabilities as probabilities_of
from .results import Evaluation, Tagged
from .sentences import as_sentence

__all__ = ["Tagger"]

# Tokens that are tagged at once, padding included.
_BATCH_TOKENS = 4096

LONGEST_WHOLE = 4096
"""Most tokens of a sentence that is tagged as a whole, as many as a batch has; longer ones are
tagged in blocks (`LongSentence`)."""

# Sentences that `stream` takes in before it gives back the first, and their tokens.
_WINDOW = 1024
_WINDOW_TOKENS = 1 << 17


class Tagger:
    """Tags sentences.

    tagger = Tagger.load("model")
    for tagged in tagger.tag([["Hello", "world"]], probabilities=True):
        print(tagged.words, tagged.tags, tagged.probabilities)

    Args:
        model: the network.
        task: what is labelled.
        vocabularies: what the network was built for.
        decoder: by which labels are chosen unless another one is asked for; None: the one that
            goes with the training objective.
        repair: what is done about ill-formed labels, see `REPAIRS`.
        info: plain values about where the model comes from, which are kept with it.
    """

    def __init__(
        self,
        model: TaggerModel,
        task: Task,
        vocabularies: Vocabularies,
        decoder: str | None = None,
        repair: str = "rule",
        info: Mapping[str, Any] | None = None,
    ) -> None:
        self.model, self.task, self.vocabularies = model, task, vocabularies
        self.decoder = default_decoder(model.config.objective) if decoder is None else decoder
        self.repair = repair
        self.info = dict(info or {})
        self.reader = InputReader(model, vocabularies)
        self._methods()  # their names are checked

    @property
    def labels(self) -> tuple[str, ...]:
        return self.task.labels

    @property
    def device(self) -> torch.device:
        return next(self.model.parameters()).device

    # Tagging

    def tag(
        self,
        sentences: Iterable[Sequence[str] | Sentence],
        probabilities: bool = False,
        decoder: str | None = None,
        repair: str | None = None,
    ) -> list[Tagged]:
        """Tag sentences: lists of words, or texts, if the task is to find the words.

        Args:
            sentences: also `Sentence`s, as `bcrf.data.read` gives them.
            probabilities: whether to compute how probable each tag is (see `Tagged`).
            decoder: "viterbi", "certified", "bregman-10", ... (see `bcrf.nn.decoder`); None: the
                tagger's own.
            repair: "rule", "mbr" or "none" (see `REPAIRS`); None: the tagger's own.
        """
        return list(self.stream(sentences, probabilities, decoder, repair))

    def stream(
        self,
        sentences: Iterable[Sequence[str] | Sentence],
        probabilities: bool = False,
        decoder: str | None = None,
        repair: str | None = None,
        window: int = _WINDOW,
    ) -> Iterator[Tagged]:
        """Like `tag`, for any number of sentences: one by one, in their order.

        `window` sentences are taken in at a time, so that those of similar length make up batches.
        """
        if isinstance(sentences, str):
            raise TypeError("sentences must be a list of sentences, got one string")
        check_count("window", window, least=1)
        methods = self._methods(decoder, repair)
        examples = (
            self.task.example(as_sentence(sentence, number, self.task))
            for number, sentence in enumerate(sentences)
        )
        return self._stream(examples, *methods, probabilities, window)

    def evaluate(
        self,
        sentences: str | os.PathLike[str] | Iterable[Sentence],
        decoder: str | None = None,
        repair: str | None = None,
        format: str = "auto",
    ) -> Evaluation:
        """Tag sentences whose labels are known, and compare.

        Args:
            sentences: a file, or what was read from one.
            decoder, repair: as for `tag`.
            format: of the file, as for `bcrf.data.read`.
        """
        methods = self._methods(decoder, repair)
        if isinstance(sentences, str | os.PathLike):
            sentences = read(sentences, format)
        return self.evaluate_examples(self.task.annotated(list(sentences)), *methods)

    def evaluate_examples(
        self, examples: Sequence[Example], decoder: str | None = None, repair: str | None = None
    ) -> Evaluation:
        """`evaluate` for sentences that have become examples of the task already."""
        decoder, repair = self._methods(decoder, repair)
        metric = self.task.metric(known_words=self.vocabularies.words)
        tokens = repaired = 0
        start = time.perf_counter()
        for tagged in self._stream(examples, decoder, repair):
            metric.add(tagged.example, tagged.labels)
            tokens += len(tagged.example)
            repaired += tagged.repaired
        seconds = time.perf_counter() - start
        return Evaluation(
            metric.result(),
            metric.main,
            decoder,
            repair,
            len(examples),
            tokens,
            repaired,
            seconds,
        )

    def chain(self, inputs: Sequence[Inputs], limits: Sequence[torch.Tensor | None]) -> LinearChain:
        """What the network makes of these sentences, within the limits of the input."""
        chain: LinearChain = self.model(self.reader.batch(inputs).to(self.device))
        mask = pad_masks(limits, chain.max_length, chain.num_tags)
        return chain if mask is None else chain.restrict(mask)

    def _methods(self, decoder: str | None = None, repair: str | None = None) -> tuple[str, str]:
        """The names of decoder and repair, checked."""
        decoder = self.decoder if decoder is None else decoder
        repair = self.repair if repair is None else repair
        check_decoder(decoder)
        check_repair(repair)
        return decoder, repair

    def _stream(
        self,
        examples: Iterable[Example],
        decoder: str,
        repair: str,
        probabilities: bool = False,
        window: int = _WINDOW,
    ) -> Iterator[Tagged]:
        self.model.eval()
        rest = iter(examples)
        while taken := _take(rest, window):
            found: dict[int, Tagged] = {}
            short = [row for row, example in enumerate(taken) if len(example) <= LONGEST_WHOLE]
            with _model_errors(taken[0]):
                inputs = [self.reader(taken[row].tokens) for row in short]
            for rows in LengthBatches(list(map(len, inputs)), tokens=_BATCH_TOKENS).in_order():
                with _model_errors(taken[short[rows[0]]]):
                    results = self._tag_batch(
                        [taken[short[row]] for row in rows],
                        [inputs[row] for row in rows],
                        decoder,
                        repair,
                        probabilities,
                    )
                found.update(zip((short[row] for row in rows), results, strict=True))
            # No sentence is held once it has been given back: long ones must not add up.
            taken.reverse()
            for row in range(len(taken)):
                if row in found:
                    taken.pop()
                    yield found.pop(row)
                else:
                    yield self._tag_long(taken.pop(), decoder, repair, probabilities)

    @torch.no_grad()
    def _tag_batch(
        self,
        examples: list[Example],
        inputs: list[Inputs],
        decoder: str,
        repair: str,
        with_probabilities: bool,
    ) -> list[Tagged]:
        chain = self.chain(inputs, [self.task.limits(example) for example in examples])
        labelled = label(self.model, self.task, chain, examples, decoder, repair)
        chances: list[tuple[float, ...] | None] = [None] * len(examples)
        if with_probabilities:
            sequences = [labels for labels, _ in labelled]
            chances = [*probabilities_of(self.model, self.task, chain, examples, sequences)]
        return [
            Tagged(self.task, example, labels, repaired, chance)
            for example, (labels, repaired), chance in zip(examples, labelled, chances, strict=True)
        ]

    def _tag_long(
        self, example: Example, decoder: str, repair: str, with_probabilities: bool
    ) -> Tagged:
        def score(part: Example) -> LinearChain:
            return self.chain([self.reader(part.tokens)], [self.task.limits(part)])

        size, context = block_size(len(self.labels)), network_context(self.model)
        sentence = LongSentence(self.model, self.task, BlockedChain(score, example, size, context))
        with _model_errors(example):
            labels, repaired = sentence.label(decoder, repair)
            chances = sentence.probabilities(labels) if with_probabilities else None
        return Tagged(self.task, example, labels, repaired, chances)

    # Files

    def save(self, path: str | os.PathLike[str]) -> None:
        """Write the model to a folder, which appears whole or not at all; a model that was there
        is replaced. Processes and threads that save to one folder do so one after the other."""
        remedy = "whatever was there before is unchanged"
        with (
            report_write_errors(path, "cannot save the model", remedy),
            replace_folder(path) as folder,
        ):
            folders.check_replaceable(Path(path))
            self.write(folder)

    def write(self, folder: Path) -> None:
        """Write the files of the model into a folder that is there."""
        folders.write_weights(folder, self.model.state_dict())
        self.model.save_encoder(folder / folders.ENCODER)
        folders.write_description(
            folder,
            {
                "task": self.task.to_dict(),
                "model": self.model.config.to_dict(),
                "vocabularies": self.vocabularies.to_dict(),
                "decoder": self.decoder,
                "repair": self.repair,
                "info": self.info,
            },
        )

    @classmethod
    def load(cls, path: str | os.PathLike[str], device: str = "auto") -> Tagger:
        """The model in a folder; of the folder of a training run, the best one.

        The folder may come from anywhere: no code of it is run, and what it asks for is limited
        (see SECURITY.md).

        Raises:
            ModelError: a file is missing, damaged, not what it should be, or of another format
                version.
        """
        place = choose_device(device)
        return read_consistently(
            lambda: folders.locate(Path(path)), lambda folder: cls._read(folder, place)
        )

    @classmethod
    def _read(cls, folder: Path, place: torch.device) -> Tagger:
        """The model in a folder that nobody replaces meanwhile."""
        parts = read_model(folder)
        values = parts.values
        try:
            tagger = cls(
                parts.model,
                parts.task,
                parts.vocabularies,
                values["decoder"],
                values["repair"],
                values["info"],
            )
        except ValueError as error:
            raise ModelError(f"{folder}: does not fit this version of bcrf: {error}") from error
        tagger.model.to(place)
        return tagger


@contextmanager
def _model_errors(example: Example) -> Iterator[None]:
    """Turn errors that the model's numbers or tokenizer cause into a `ModelError`.

    Args:
        example: the first of those that are being tagged.
    """
    try:
        yield
    except DataError:
        raise
    except ValueError as error:
        sentence = example.sentence
        raise ModelError(
            f"{sentence.path}:{sentence.first_line}: the model cannot tag this sentence, or one "
            f"that is tagged together with it: {error}; its files may be damaged"
        ) from error


def _take(examples: Iterator[Example], window: int) -> list[Example]:
    """The next sentences, `window` of them unless they are long; none at the end."""
    taken: list[Example] = []
    tokens = 0
    for example in islice(examples, window):
        taken.append(example)
        tokens += len(example)
        if tokens >= _WINDOW_TOKENS:
            break
    return taken
