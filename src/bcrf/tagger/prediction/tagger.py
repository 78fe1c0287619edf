"""The tagger: a trained network with its task and vocabularies."""

from __future__ import annotations

import os
import time
from collections.abc import Iterable, Iterator, Mapping, Sequence
from pathlib import Path
from typing import Any

import torch

from ...chain import LinearChain
from ...checks import check_count
from ..data import Sentence, read
from ..files import read_consistently, replace_folder, report_write_errors
from ..model_folder import description as folders
from ..model_folder.location import locate
from ..model_folder.model_files import ModelError
from ..model_folder.model_reader import read_model
from ..model_folder.weight_storage import WeightStorage
from ..nn import TaggerModel, default_decoder
from ..nn.batch import copy_to_device
from ..nn.inputs import InputReader, Inputs, Vocabularies, pad_masks
from ..tasks import Example, Task
from .devices import choose_device
from .options import TaggingOptions
from .results import Evaluation, Tagged
from .sentences import as_sentence
from .tagging import tag_all
from .tokenizer import Tokenizer
from .windows import WINDOW

__all__ = ["Tagger"]

# How many labels the repr of a tagger names.
_SHOWN_LABELS = 8


class Tagger:
    """A trained tagger, which predicts the tags of sentences.

    Taggers are usually loaded with `Tagger.load` from a folder that `bcrf train` has written.

    Args:
        model: the network.
        task: the task, with its labels.
        vocabularies: the vocabularies that the network was built for.
        decoder: the default decoder; None: the decoder that fits the training objective.
        repair: how ill-formed labels are repaired by default, see `REPAIRS`.
        info: plain values about the origin of the model, which are saved with it.
        tokenizer: divides raw text into sentences and words; it is saved with the tagger.
        probability_temperature: the scores are divided by it before probabilities are computed (see
            `calibrate`); tags do not depend on it.

    Example:
        >>> import tempfile
        >>> from pathlib import Path
        >>> from bcrf.tagger.training import Config, train
        >>> folder = tempfile.TemporaryDirectory()
        >>> file = Path(folder.name, "train.conllu")
        >>> _ = file.write_text("1\\tdogs\\t_\\tNOUN" + "\\t_" * 6 + "\\n\\n")
        >>> events = train(Config.from_dict({
        ...     "output": str(Path(folder.name, "run")),
        ...     "data": {"train": str(file)},
        ...     "model": {"width": 8, "score_width": 8},
        ...     "training": {"epochs": 1, "device": "cpu"},
        ... }))
        >>> finished = list(events)[-1]
        >>> tagger = Tagger.load(finished.model, device="cpu")
        >>> tagger  # doctest: +ELLIPSIS
        Tagger(task=pos, labels=[NOUN], network=0 layers of width 8, objective=crf, ...)
        >>> (tagged,) = tagger.tag([["dogs", "bark"]], probabilities=True)
        >>> tagged.words, tagged.tags
        (('dogs', 'bark'), ('NOUN', 'NOUN'))
        >>> tagger.evaluate(file).score
        1.0
        >>> folder.cleanup()
    """

    def __init__(
        self,
        model: TaggerModel,
        task: Task,
        vocabularies: Vocabularies,
        decoder: str | None = None,
        repair: str = "rule",
        info: Mapping[str, Any] | None = None,
        tokenizer: Tokenizer | None = None,
        probability_temperature: float = 1.0,
    ) -> None:
        self.model, self.task, self.vocabularies = model, task, vocabularies
        self.decoder = default_decoder(model.config.objective) if decoder is None else decoder
        self.repair = repair
        self.info = dict(info or {})
        self.tokenizer = tokenizer
        self.probability_temperature = probability_temperature
        self.reader = InputReader(model, vocabularies)
        self._options()  # checks the names

    def __repr__(self) -> str:
        config = self.model.config
        labels = ", ".join(self.labels[:_SHOWN_LABELS])
        if len(self.labels) > _SHOWN_LABELS:
            labels += f", ... ({len(self.labels)} in all)"
        parameters = sum(p.numel() for p in self.model.parameters())
        return (
            f"Tagger(task={self.task.name}, labels=[{labels}], network={config.summary}, "
            f"objective={config.objective}, decoder={self.decoder}, parameters={parameters:,}, "
            f"device={self.device})"
        )

    @property
    def labels(self) -> tuple[str, ...]:
        """The labels that the tagger gives to tokens."""
        return self.task.labels

    @property
    def device(self) -> torch.device:
        """The device of the network."""
        return next(self.model.parameters()).device

    # Tagging

    def tag(
        self,
        sentences: Iterable[Sequence[str] | Sentence],
        probabilities: bool = False,
        decoder: str | None = None,
        repair: str | None = None,
        threshold: float | None = None,
    ) -> list[Tagged]:
        """Return the sentences with their predicted tags.

        Args:
            sentences: lists of words; for segmentation, texts; or `Sentence`s, as
                `bcrf.tagger.data.read` yields them.
            probabilities: whether to compute the probability of each tag (see `Tagged`).
            decoder: "viterbi", "certified", "bregman-10", ... (see `bcrf.tagger.nn`); by default
                that of the tagger.
            repair: "rule", "mbr" or "none" (see `REPAIRS`); by default that of the tagger.
            threshold: leave out tags with a lower probability: a word then has the tag `_`, and a
                mention becomes O. Probabilities are computed, too; the words of a mention have the
                probability of the mention. None: give all tags.

        Example (`tagger` as above):
            >>> [tagged.tags for tagged in tagger.tag([["dogs", "bark"], ["dogs"]])]
            [('NOUN', 'NOUN'), ('NOUN',)]
        """
        return list(self.stream(sentences, probabilities, decoder, repair, threshold=threshold))

    def tag_text(
        self,
        text: str,
        probabilities: bool = False,
        decoder: str | None = None,
        repair: str | None = None,
        threshold: float | None = None,
    ) -> list[Tagged]:
        """Divide a text into sentences and words with the tokenizer, and return them with tags.

        Args:
            text: raw text. `tagged.sentence` has the text of each sentence and its offset; the
                places of `tagged.entities` are those in the text of the sentence.
            probabilities, decoder, repair, threshold: as for `tag`.

        Raises:
            ValueError: the tagger has no tokenizer.

        Example (`tagger` as above, `tokenizer` as in `Tokenizer`):
            >>> tagger.tokenizer = tokenizer
            >>> [tagged.words for tagged in tagger.tag_text("Rome is old. Why not?")]
            [('Rome', 'is', 'old', '.'), ('Why', 'not', '?')]
        """
        if self.tokenizer is None:
            raise ValueError(
                "the tagger has no tokenizer; pass lists of words to tag, or set "
                "tagger.tokenizer = Tokenizer.load(FOLDER)"
            )
        return self.tag(self.tokenizer.split(text), probabilities, decoder, repair, threshold)

    def stream(
        self,
        sentences: Iterable[Sequence[str] | Sentence],
        probabilities: bool = False,
        decoder: str | None = None,
        repair: str | None = None,
        window: int = WINDOW,
        threshold: float | None = None,
    ) -> Iterator[Tagged]:
        """Tag any number of sentences; yield the results one by one, in the order of the sentences.

        Args:
            sentences, probabilities, decoder, repair, threshold: as for `tag`.
            window: number of sentences that are read at a time and grouped into batches of similar
                length.

        Example (`tagger` as above):
            >>> results = tagger.stream(["dogs"] for _ in range(3))  # nothing has been read yet
            >>> next(results).tags
            ('NOUN',)
        """
        if isinstance(sentences, str):
            raise TypeError(
                "sentences must be a list of sentences, got one string; for one sentence, pass a "
                "list of one"
            )
        check_count("window", window, least=1)
        options = self._options(decoder, repair, probabilities=probabilities, threshold=threshold)
        examples = (
            self.task.example(as_sentence(sentence, number, self.task))
            for number, sentence in enumerate(sentences)
        )
        return tag_all(self, examples, options, window)

    def tag_examples(
        self,
        examples: Iterable[Example],
        decoder: str | None = None,
        repair: str | None = None,
        *,
        probabilities: bool = False,
    ) -> Iterator[Tagged]:
        """Tag examples of the task; yield the results in order.

        Args:
            decoder, repair: as for `tag`.
            probabilities: whether to compute the probabilities of words and of items, see `Tagged`.

        Example (`tagger` and `file` as above):
            >>> examples = tagger.task.annotated(list(read(file)))
            >>> [tagged.labels for tagged in tagger.tag_examples(examples)]
            [('NOUN',)]
        """
        options = self._options(decoder, repair, probabilities=probabilities)
        return tag_all(self, examples, options)

    def evaluate(
        self,
        sentences: str | os.PathLike[str] | Iterable[Sentence],
        decoder: str | None = None,
        repair: str | None = None,
        format: str = "auto",
    ) -> Evaluation:
        """Tag annotated sentences and return the scores of the predicted labels.

        Args:
            sentences: a file, or sentences that were read from one.
            decoder, repair: as for `tag`.
            format: format of the file, as for `bcrf.tagger.data.read`.

        Example (`tagger` and `file` as above):
            >>> tagger.evaluate(file, decoder="viterbi").scores["accuracy"]
            1.0
        """
        self._options(decoder, repair)  # checks the names before the file is read
        if isinstance(sentences, str | os.PathLike):
            sentences = read(sentences, format)
        return self.evaluate_examples(self.task.annotated(list(sentences)), decoder, repair)

    def evaluate_examples(
        self, examples: Sequence[Example], decoder: str | None = None, repair: str | None = None
    ) -> Evaluation:
        """Return the evaluation on examples of the task, see `evaluate`."""
        options = self._options(decoder, repair)
        metric = self.task.metric(known_words=self.vocabularies.words)
        tokens = repaired = 0
        start = time.perf_counter()
        for tagged in tag_all(self, examples, options):
            metric.add(tagged.example, tagged.labels)
            tokens += len(tagged.example)
            repaired += tagged.repaired
        seconds = time.perf_counter() - start
        return Evaluation(
            metric.result(),
            metric.main,
            options.decoder,
            options.repair,
            len(examples),
            tokens,
            repaired,
            seconds,
        )

    def chain(
        self, inputs: Sequence[Inputs], permitted: Sequence[torch.Tensor | None]
    ) -> LinearChain:
        """Return the chain of a batch, without the tags that the texts do not permit.

        Args:
            inputs: the inputs of each sentence.
            permitted: the tags that each text permits, bool [n, T] (see `Task.permitted_tags`);
                None: all.
        """
        device = self.device
        chain: LinearChain = self.model(self.reader.batch(inputs).to_device(device))
        mask = pad_masks(permitted, chain.max_length, chain.num_tags)
        return chain if mask is None else chain.restrict(copy_to_device(mask, device))

    def _options(
        self, decoder: str | None = None, repair: str | None = None, **rest: Any
    ) -> TaggingOptions:
        """Return the checked options of a call; decoder and repair default to the tagger's."""
        decoder = self.decoder if decoder is None else decoder
        return TaggingOptions(decoder, self.repair if repair is None else repair, **rest)

    # Files

    def save(self, path: str | os.PathLike[str], storage: WeightStorage = "float32") -> None:
        """Save the model in a folder; a model in that folder is replaced.

        Readers find the old model or the new one, never a mixture. If several processes or threads
        save to one folder, they wait for each other.

        Args:
            path: the folder.
            storage: how large weights are stored: "float32" as they are; "float16" in half the
                bytes; "int8" in a quarter, with a scale for each row. The loaded model computes
                with float32. Compare the scores before you use a compressed model.

        Raises:
            OSError: the folder cannot be written, or holds something other than a model.

        Example (`tagger` as above):
            >>> tagger.save("model")
            >>> Tagger.load("model").labels
            ('NOUN',)
        """
        remedy = "the files that were there before are unchanged"
        with (
            report_write_errors(path, "cannot save the model", remedy),
            replace_folder(path) as folder,
        ):
            folders.check_replaceable(Path(path))
            self.write(folder, storage)

    def write(self, folder: Path, storage: WeightStorage = "float32") -> None:
        """Write the files of the model into an existing folder, neither locked nor atomically."""
        folders.write_weights(folder, self.model.state_dict(), storage)
        self.model.save_encoder(folder / folders.ENCODER)
        if self.tokenizer is not None:
            place = folder / folders.TOKENIZER
            place.mkdir()
            self.tokenizer.tagger.write(place, storage)
        folders.write_description(
            folder,
            {
                "task": self.task.to_dict(),
                "model": self.model.config.to_dict(),
                "vocabularies": self.vocabularies.to_dict(),
                "decoder": self.decoder,
                "repair": self.repair,
                "info": self.info,
                "probability_temperature": self.probability_temperature,
                "storage": storage,
            },
        )

    @classmethod
    def load(cls, path: str | os.PathLike[str], device: str = "auto") -> Tagger:
        """Load the model in a folder, the best model of a training run, or a bundled model.

        The folder need not be trusted: no code in it is run, and sizes are limited (see
        SECURITY.md).

        Args:
            path: the folder; or the name of a bundled model (`bcrf models`), such as "en", if
                nothing has this path.
            device: "auto" (a GPU if there is one), "cpu", "cuda" or "cuda:N".

        Raises:
            ModelError: a file is missing, damaged, of the wrong kind, or of another format version.

        Example (`tagger` as above):
            >>> tagger.save("model")
            >>> Tagger.load("model", device="cpu").device
            device(type='cpu')
            >>> english = Tagger.load("en")
            >>> [tagged.tags for tagged in english.tag_text("Ada didn't stay.")]
            [('PROPN', 'AUX', 'PART', 'VERB', 'PUNCT')]
        """
        place = choose_device(device)
        return read_consistently(
            lambda: locate(Path(path)), lambda folder: cls._read(folder, place)
        )

    @classmethod
    def _read(cls, folder: Path, place: torch.device, is_tokenizer: bool = False) -> Tagger:
        """Load the model in a folder; `load` does it again if the folder was replaced meanwhile."""
        parts = read_model(folder)
        values = parts.values
        if is_tokenizer and parts.has_tokenizer:
            raise ModelError(f"{folder}: a tokenizer cannot have a tokenizer")
        inner = None
        if parts.has_tokenizer:
            inner = cls._read(folder / folders.TOKENIZER, place, is_tokenizer=True)
        try:
            tagger = cls(
                parts.model,
                parts.task,
                parts.vocabularies,
                values["decoder"],
                values["repair"],
                values["info"],
                None if inner is None else Tokenizer(inner),
                values.get("probability_temperature", 1.0),
            )
        except ValueError as error:
            raise ModelError(f"{folder}: does not fit this version of bcrf: {error}") from error
        tagger.model.to(place)
        return tagger
