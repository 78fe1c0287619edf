"""The model of a component: loaded from a folder or from bytes, and saved with the pipeline."""

from __future__ import annotations

import os
import sys
import tempfile
from collections.abc import Sequence
from pathlib import Path, PurePosixPath
from typing import Any

import spacy
import srsly
import torch

from ..tagger import ModelError, Tagger, choose_device
from ..tagger.model_folder.model_files import is_inside

__all__ = ["PipelineModel"]

_COMPONENTS = {
    "pos": "bcrf_tagger",
    "ner": "bcrf_ner",
    "segmentation": "bcrf_segmenter",
    "tokenization": "bcrf_segmenter",
}
"""The component that uses the models of a task."""


class PipelineModel:
    """The model of one component of a spaCy pipeline.

    The model in the config is loaded at once, so that a wrong one is an error of `nlp.add_pipe`.
    While spaCy builds a saved pipeline, it is not: the pipeline has its own copy, and the
    original folder may be gone. If no copy is loaded afterwards, it is loaded when first needed.

    Args:
        component: the name of the component, for messages.
        source: the folder of a model, or the name of a bundled one; None: it is loaded later.
        tasks: the tasks that the component can use.
        device: "cpu", "cuda", "cuda:N" or "auto", as for `Tagger.load`.
    """

    def __init__(
        self, component: str, source: str | None, tasks: tuple[str, ...], device: str
    ) -> None:
        self.component, self.tasks, self.device = component, tasks, device
        self._source = source
        self._tagger: Tagger | None = None
        self._process = os.getpid()
        choose_device(device)  # checks the name
        if source is not None and not _is_built_from_config():
            self.load()

    @property
    def is_loaded(self) -> bool:
        """Whether there is a model in memory."""
        return self._tagger is not None

    @property
    def tagger(self) -> Tagger:
        """The tagger; it is loaded if that has not happened yet."""
        if self._process != os.getpid():
            # This process was forked (`nlp.pipe(n_process=2)`). The threads of OpenMP do not
            # survive a fork, and waiting for them would take forever. With one thread, torch asks
            # for no others.
            torch.set_num_threads(1)
            self._process = os.getpid()
        if self._tagger is None:
            self.load()
        assert self._tagger is not None
        return self._tagger

    def load(self) -> None:
        """Load the model that the config names."""
        if self._source is None:
            raise ModelError(
                f"{self.component} has no model; set `model` in its config to the folder of a "
                "model, or load the model with from_disk"
            )
        self._tagger = self._read(self._source)

    def to_disk(self, path: str | os.PathLike[str]) -> None:
        """Save the model in a folder, atomically; a model in that folder is replaced."""
        self.tagger.save(path)

    def from_disk(self, path: str | os.PathLike[str]) -> None:
        """Load the model in a folder; if that fails, the model in memory stays."""
        self._tagger = self._read(os.path.abspath(path))  # never the name of a bundled model

    def to_bytes(self) -> bytes:
        """Return the files of the model as MessagePack: path in the folder -> content."""
        with tempfile.TemporaryDirectory() as place:
            folder = Path(place)
            self.tagger.write(folder)
            paths = sorted(path for path in folder.rglob("*") if path.is_file())
            files = {path.relative_to(folder).as_posix(): path.read_bytes() for path in paths}
        content: bytes = srsly.msgpack_dumps(files)
        return content

    def from_bytes(self, content: bytes) -> None:
        """Load the model in the bytes that `to_bytes` returned; they need not be trusted."""
        files = self._unpack(content)
        with tempfile.TemporaryDirectory() as place:
            for name, data in files.items():
                path = Path(place, name)
                path.parent.mkdir(parents=True, exist_ok=True)
                path.write_bytes(data)
            try:
                self._tagger = self._read(place)
            except ModelError as error:
                raise ModelError(str(error).replace(place, "the bytes")) from error

    def __getstate__(self) -> dict[str, Any]:
        """Return what another process needs, without pickling the model."""
        content = self.to_bytes() if self.is_loaded else None
        return {**self.__dict__, "_tagger": None, "_content": content}

    def __setstate__(self, state: dict[str, Any]) -> None:
        content = state.pop("_content")
        self.__dict__.update(state)
        if content is not None:
            self.from_bytes(content)

    def _read(self, place: str) -> Tagger:
        try:
            tagger = Tagger.load(place, self.device)
        except ModelError as error:
            raise ModelError(f"{error} (component {self.component})") from error
        task = tagger.task.name
        if task not in self.tasks and not ("tokenization" in self.tasks and tagger.tokenizer):
            raise ModelError(
                f"{place}: holds a model of the task {task}; {self.component} needs one of "
                f"{' or '.join(self.tasks)}. Use this model in {_COMPONENTS[task]}"
            )
        return tagger

    def _unpack(self, content: bytes) -> dict[str, bytes]:
        try:
            files = srsly.msgpack_loads(content)
        except Exception as error:  # the errors of MessagePack have no common class
            raise ModelError(
                f"the bytes of {self.component} are damaged: they are not MessagePack ({error})"
            ) from error
        if not isinstance(files, dict):
            raise ModelError(
                f"the bytes of {self.component} are damaged: expected a table of files, got "
                f"{type(files).__name__}"
            )
        folders = {parent.as_posix() for name in files for parent in _parents(name)}
        for name, data in files.items():
            if name in folders:
                raise ModelError(
                    f"the bytes of {self.component} are damaged: {name!r:.60} is a file and a "
                    "folder"
                )
            if not (isinstance(name, str) and is_inside(name) and isinstance(data, bytes)):
                raise ModelError(
                    f"the bytes of {self.component} are damaged: {name!r:.60} is not the name of "
                    "a file of a model, with its content"
                )
        return files


def _parents(name: object) -> Sequence[PurePosixPath]:
    return PurePosixPath(name).parents if isinstance(name, str) else ()


def _is_built_from_config() -> bool:
    """Whether spaCy is building a pipeline from a config, other than for `spacy.blank`.

    Then `from_disk` or `from_bytes` usually follows. spaCy does not pass this information to a
    factory, so we look for its functions among the callers.
    """
    callers = set()
    frame = sys._getframe()
    while frame is not None:
        callers.add(frame.f_code)
        frame = frame.f_back  # type: ignore[assignment]
    builds = spacy.Language.from_config.__func__.__code__
    return builds in callers and spacy.blank.__code__ not in callers
