"""Tag the batches of tables: Ray Data (`map_batches`), Hugging Face datasets (`map`)."""

from __future__ import annotations

import json
import os
from collections.abc import Mapping, Sequence
from pathlib import Path
from typing import Any

import torch

from ...checks import check_count
from ..data import BadRow, parse_row
from ..model_folder.location import absolute_path, model_identity
from ..model_folder.model_files import ModelError
from .options import TaggingOptions
from .tagger import Tagger
from .tolerant_tagging import tag_rows

__all__ = ["TagBatch"]

_COLUMNS = ("words", "text")


class TagBatch:
    """Tags the sentences of a batch: a table of columns in, the same table with tags out.

    A batch is a dict with a column `words` (lists of words) or `text` (strings). The result has
    the columns `words` and `tags`, lists of equal length, and all other columns of the batch. If a
    batch has both columns, `words` is read, as in JSON lines. Columns are numpy arrays (Ray Data)
    or lists (Hugging Face datasets); the result has the same kind, and the batch is not changed.

    The model is loaded when the first batch arrives, once in each process. An object that is
    pickled carries the path of the model and its checksum, not its weights; a model that was
    replaced since is refused.

    Args:
        model: folder of the model, which every machine must find at this path; or the name of a
            bundled model.
        probabilities: whether to add the column `probabilities`.
        threshold: leave out less probable tags, as for `Tagger.tag`.
        decoder, repair: as for `Tagger.tag`; by default those of the model.
        device: "auto" (a GPU if Ray has assigned one to the actor), "cpu" or "cuda".
        threads: number of CPU threads; None: what torch has chosen (Ray: CPUs of the actor).
        error_column: column for the error of a row that cannot be tagged; its `tags` are empty, and
            the other rows have None there. Without a name, such a row raises.

    Raises:
        ModelError: the folder holds no model.
        ValueError: a row cannot be tagged, and there is no `error_column`; or the batch has neither
            of the two columns.

    Example (`tagger` as in `Tagger`):
        >>> tagger.save("model")
        >>> tag = TagBatch("model", device="cpu")
        >>> tag({"id": [7, 8], "words": [["dogs", "bark"], []]})["tags"]
        [['NOUN', 'NOUN'], []]
        >>> tag({"words": [["dogs"], [""]]})
        Traceback (most recent call last):
            ...
        ValueError: batch:2: "words": expected a list of non-empty strings, found ['']
    """

    def __init__(
        self,
        model: str | os.PathLike[str],
        *,
        probabilities: bool = False,
        threshold: float | None = None,
        decoder: str | None = None,
        repair: str | None = None,
        device: str = "auto",
        threads: int | None = None,
        error_column: str | None = None,
    ) -> None:
        self.model = absolute_path(model)
        self.probabilities, self.threshold = probabilities, threshold
        self.decoder, self.repair = decoder, repair
        self.device, self.threads, self.error_column = device, threads, error_column
        if threads is not None:
            check_count("threads", threads, least=1)
        # Checks the options before any data is read; the model's own choices are always valid.
        TaggingOptions(decoder or "viterbi", repair or "rule", threshold=threshold)
        self.identity = model_identity(Path(self.model))
        self._tagger: Tagger | None = None

    def __repr__(self) -> str:
        return f"TagBatch({self.model!r})"

    def __getstate__(self) -> dict[str, Any]:
        return self.__dict__ | {"_tagger": None}

    def __call__(self, batch: Mapping[str, Any]) -> dict[str, Any]:
        """Return the batch with the columns `words` and `tags`."""
        if not isinstance(batch, Mapping):
            raise TypeError(
                f"expected a batch as a dict of columns, got {type(batch).__name__}; use "
                'batch_format="numpy" in Ray Data, and batched=True in datasets'
            )
        tagger = self._load()
        options = TaggingOptions(
            self.decoder or tagger.decoder,
            self.repair or tagger.repair,
            probabilities=self.probabilities,
            threshold=self.threshold,
        )
        name, values = _sentence_column(batch)
        rows = (
            parse_row(json.dumps({name: value}, ensure_ascii=False), "batch", number)
            for number, value in enumerate(values, start=1)
        )
        found: dict[str, list[Any]] = {"words": [], "tags": []}
        if options.needs_probabilities:
            found["probabilities"] = []
        if self.error_column is not None:
            found[self.error_column] = []
        for value, result in zip(values, tag_rows(tagger, rows, options), strict=True):
            error = None
            if isinstance(result, BadRow):
                if self.error_column is None:
                    raise ValueError(str(result.error)) from result.error
                error = result.error.message
                words = value if _is_list_of_text(value) else []
                cells: tuple[Sequence[Any], ...] = (words, (), ())
            else:
                cells = (result.words, result.tags, result.probabilities or ())
            for column, cell in zip(("words", "tags", "probabilities"), cells, strict=True):
                if column in found:
                    found[column].append(list(cell))
            if self.error_column is not None:
                found[self.error_column].append(error)
        return dict(batch) | _as_columns(found, like=batch[name])

    def _load(self) -> Tagger:
        if self._tagger is None:
            if self.threads is not None:
                torch.set_num_threads(self.threads)
            self._tagger = load_identical(self.model, self.identity, self.device)
        return self._tagger


def load_identical(model: str, identity: str, device: str) -> Tagger:
    """Load the model; raise ModelError if it is not the one with that identity."""
    tagger = Tagger.load(model, device)
    if model_identity(Path(model)) != identity:
        raise ModelError(
            f"{model}: has been replaced since the work was planned; start again, and do not train "
            "into this folder meanwhile"
        )
    return tagger


def _sentence_column(batch: Mapping[str, Any]) -> tuple[str, list[Any]]:
    """Return the name and the plain values of the column with the sentences."""
    for name in _COLUMNS:
        if name in batch:
            return name, [_plain(value) for value in batch[name]]
    raise ValueError(
        f"the batch has no column words (lists of words) or text (strings); its columns are "
        f"{', '.join(map(str, batch))}"
    )


def _plain(value: Any) -> Any:
    """Return a value of a column as JSON has it. Arrays of numpy may be read-only: we copy them."""
    if hasattr(value, "tolist"):
        value = value.tolist()
    if isinstance(value, list | tuple):
        return [_plain(item) for item in value]
    return value if value is None or isinstance(value, str | int | float) else str(value)


def _is_list_of_text(value: Any) -> bool:
    return isinstance(value, list) and all(isinstance(item, str) for item in value)


def _as_columns(columns: Mapping[str, list[Any]], like: Any) -> dict[str, Any]:
    """Return the columns as lists, or as arrays of objects if `like` is an array of numpy."""
    if not hasattr(like, "dtype"):
        return dict(columns)
    import numpy

    arrays = {}
    for name, values in columns.items():
        array = numpy.empty(len(values), dtype=object)
        for row, value in enumerate(values):  # lists of equal length must not become a matrix
            array[row] = value
        arrays[name] = array
    return arrays
