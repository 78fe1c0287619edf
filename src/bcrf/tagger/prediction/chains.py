"""The chains of annotated sentences, batch by batch."""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from typing import Protocol

import torch

from ...chain import LinearChain
from ..data import LengthBatches
from ..nn import TaggerModel
from ..nn.inputs import InputReader, Inputs
from ..tasks import Example, Task

__all__ = ["BATCH_TOKENS", "ChainSource", "iterate_chains"]

BATCH_TOKENS = 4096
"""Tokens per batch, padding included."""


class ChainSource(Protocol):
    """What turns sentences into chains: a `Tagger`."""

    model: TaggerModel
    task: Task
    reader: InputReader

    def chain(
        self, inputs: Sequence[Inputs], permitted: Sequence[torch.Tensor | None]
    ) -> LinearChain:
        """Return the chain of a batch, without the tags that the texts do not permit."""


@torch.no_grad()
def iterate_chains(
    tagger: ChainSource, examples: Sequence[Example], tokens: int = BATCH_TOKENS
) -> Iterator[tuple[list[int], LinearChain]]:
    """Yield batches of sentences of similar length: their indices, and the chain of their scores.

    Args:
        tagger: the tagger, which gives the scores.
        examples: the sentences; each must fit into memory as a whole.
        tokens: maximum number of tokens in a batch, including padding.
    """
    tagger.model.eval()
    inputs = [tagger.reader(example.tokens) for example in examples]
    for rows in LengthBatches(list(map(len, inputs)), tokens=tokens).in_order():
        permitted = [tagger.task.permitted_tags(examples[row]) for row in rows]
        yield rows, tagger.chain([inputs[row] for row in rows], permitted)
