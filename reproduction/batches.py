"""Turn sentences into chains of scores, batch by batch."""

from __future__ import annotations

from collections.abc import Iterator, Sequence

from bcrf.chain import LinearChain
from bcrf.tagger import Tagger
from bcrf.tagger.data import LengthBatches
from bcrf.tagger.tasks import Example

__all__ = ["chains"]

_BATCH_TOKENS = 4096


def chains(
    tagger: Tagger, examples: Sequence[Example], tokens: int | None = None
) -> Iterator[tuple[list[Example], LinearChain]]:
    """Yield batches of sentences of similar length, with the chains of their scores.

    Args:
        tokens: maximum number of tokens in a batch, including padding; None: 4096.
    """
    tagger.model.eval()
    inputs = [tagger.reader(example.tokens) for example in examples]
    for rows in LengthBatches(list(map(len, inputs)), tokens=tokens or _BATCH_TOKENS).in_order():
        batch = [examples[row] for row in rows]
        permitted = [tagger.task.permitted_tags(example) for example in batch]
        yield batch, tagger.chain([inputs[row] for row in rows], permitted)
