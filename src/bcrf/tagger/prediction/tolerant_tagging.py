"""Tag rows such that a row that cannot be tagged does not stop the others."""

from __future__ import annotations

from collections import deque
from collections.abc import Iterable, Iterator

from ..data import BadRow, DataError, Sentence
from ..data.lines import content
from ..model_folder.model_files import ModelError
from .options import TaggingOptions
from .results import Tagged
from .tagger import Tagger
from .windows import WINDOW

__all__ = ["tag_rows"]


def tag_rows(
    tagger: Tagger,
    rows: Iterable[Sentence | BadRow],
    options: TaggingOptions,
    window: int = WINDOW,
) -> Iterator[Tagged | BadRow]:
    """Tag sentences; yield one result for each row, in order.

    A row that is bad already is passed on. If a sentence cannot be tagged, the rows of its window
    are tagged again one sentence at a time, and only this sentence becomes a `BadRow`.

    Args:
        tagger: the tagger.
        rows: sentences that were read as JSON lines, and bad rows between them.
        options: the choices of the call.
        window: number of sentences that are read at a time, see `Tagger.stream`.
    """
    rest = iter(rows)
    pending: deque[Sentence | BadRow] = deque()  # rows that are read, but have no result yet

    def good_sentences() -> Iterator[Sentence]:
        for row in rest:
            pending.append(row)
            if isinstance(row, Sentence):
                yield row

    while True:
        try:
            for tagged in _stream(tagger, good_sentences(), options, window):
                while isinstance(first := pending.popleft(), BadRow):
                    yield first
                del first
                yield tagged
                del tagged  # so that a long sentence is freed before the next one is read
        except (DataError, ModelError) as error:
            if isinstance(error, DataError) and error.line is None:
                raise  # the file cannot be read
            yield from _tag_singly(tagger, pending, options)
        else:
            break
    for row in pending:
        assert isinstance(row, BadRow)
        yield row


def _stream(
    tagger: Tagger, sentences: Iterable[Sentence], options: TaggingOptions, window: int
) -> Iterator[Tagged]:
    return tagger.stream(
        sentences,
        options.probabilities,
        options.decoder,
        options.repair,
        window,
        options.threshold,
    )


def _tag_singly(
    tagger: Tagger, pending: deque[Sentence | BadRow], options: TaggingOptions
) -> Iterator[Tagged | BadRow]:
    """Yield the results of the pending rows, each tagged by itself; empty `pending`."""
    while pending:
        row = pending.popleft()
        if isinstance(row, BadRow):
            yield row
            continue
        try:
            (tagged,) = _stream(tagger, [row], options, 1)
        except (DataError, ModelError) as error:
            found = error
            if not isinstance(found, DataError):
                reason = f"the model cannot tag this row: {error.__cause__ or error}"
                found = DataError(row.path, row.first_line, reason)
            yield BadRow(found, content("".join(row.block.lines)))
        else:
            yield tagged
