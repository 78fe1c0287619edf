"""Turn sentences into chains of scores, batch by batch."""

from __future__ import annotations

from collections.abc import Iterator, Sequence

from bcrf.chain import LinearChain
from bcrf.tagger import Tagger
from bcrf.tagger.prediction.chains import iterate_chains
from bcrf.tagger.tasks import Example

__all__ = ["chains"]


def chains(
    tagger: Tagger, examples: Sequence[Example], tokens: int | None = None
) -> Iterator[tuple[list[Example], LinearChain]]:
    """Yield batches of sentences of similar length, with the chains of their scores.

    Args:
        tokens: maximum number of tokens in a batch, including padding; None: as in tagging.
    """
    for rows, chain in iterate_chains(tagger, examples, tokens):
        yield [examples[row] for row in rows], chain
