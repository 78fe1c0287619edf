"""Read sentences a window at a time, and report the errors of the model with their place."""

from __future__ import annotations

from collections.abc import Iterator
from contextlib import contextmanager
from itertools import islice

from ..data import DataError
from ..model_folder.model_files import ModelError
from ..tasks import Example

__all__ = ["WINDOW", "model_errors", "take"]

# Numbers of sentences and of tokens that `Tagger.stream` reads before it yields the first result.
WINDOW = 1024
WINDOW_TOKENS = 1 << 17


@contextmanager
def model_errors(example: Example) -> Iterator[None]:
    """Turn errors that the weights or the tokenizer of a model cause into a `ModelError`.

    Args:
        example: the first sentence of the batch.
    """
    try:
        yield
    except DataError:
        raise
    except ValueError as error:
        sentence = example.sentence
        raise ModelError(
            f"{sentence.path}:{sentence.first_line}: the model cannot tag this sentence, or "
            f"another sentence of its batch: {error}; the files of the model may be damaged"
        ) from error


def take(examples: Iterator[Example], window: int) -> list[Example]:
    """Return the next `window` sentences, fewer if they are long; an empty list at the end."""
    taken: list[Example] = []
    tokens = 0
    for example in islice(examples, window):
        taken.append(example)
        tokens += len(example)
        if tokens >= WINDOW_TOKENS:
            break
    return taken
