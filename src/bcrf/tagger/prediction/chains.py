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

__all__ = ["ChainSource", "batch_tokens", "iterate_chains"]

# Small batches have sentences of more equal length. With 4096 tokens, a third of what is computed
# for the test file of English-EWT is padding; with 1024, tagging takes 0.75 of the time (one core).
_CPU_TOKENS, _GPU_TOKENS = 1024, 4096


def batch_tokens(device: torch.device) -> int:
    """Return the number of tokens of a batch that is tagged on a device, padding included."""
    return _CPU_TOKENS if device.type == "cpu" else _GPU_TOKENS


class ChainSource(Protocol):
    """What turns sentences into chains: a `Tagger`."""

    model: TaggerModel
    task: Task
    reader: InputReader

    @property
    def device(self) -> torch.device:
        """The device of the network."""

    def chain(
        self, inputs: Sequence[Inputs], permitted: Sequence[torch.Tensor | None]
    ) -> LinearChain:
        """Return the chain of a batch, without the tags that the texts do not permit."""


@torch.no_grad()
def iterate_chains(
    tagger: ChainSource, examples: Sequence[Example], tokens: int | None = None
) -> Iterator[tuple[list[int], LinearChain]]:
    """Yield batches of sentences of similar length: their indices, and the chain of their scores.

    Args:
        tagger: the tagger, which gives the scores.
        examples: the sentences; each must fit into memory as a whole.
        tokens: maximum number of tokens in a batch, including padding; None: see `batch_tokens`.
    """
    tagger.model.eval()
    inputs = [tagger.reader(example.tokens) for example in examples]
    if tokens is None:
        tokens = batch_tokens(tagger.device)
    for rows in LengthBatches(list(map(len, inputs)), tokens=tokens).in_order():
        permitted = [tagger.task.permitted_tags(examples[row]) for row in rows]
        yield rows, tagger.chain([inputs[row] for row in rows], permitted)
