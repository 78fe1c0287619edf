"""Tag sentences batch by batch; long ones in blocks."""

from __future__ import annotations

from collections.abc import Iterable, Iterator
from typing import TYPE_CHECKING

import torch

from ...chain import LinearChain
from ..data import LengthBatches
from ..nn.inputs import Inputs
from ..tasks import Example
from .blocks import BlockedChain
from .calibration import scaled
from .chains import batch_tokens
from .decoding import Labelled, label
from .long_sentences import LongSentence, block_size, network_context
from .options import TaggingOptions
from .probabilities import item_probabilities, probabilities
from .results import Tagged
from .windows import WINDOW, model_errors, take

if TYPE_CHECKING:
    from .tagger import Tagger

__all__ = ["LONGEST_WHOLE", "tag_all"]

LONGEST_WHOLE = 4096
"""Most tokens of a sentence that is tagged as a whole. Longer sentences are tagged in blocks
(`LongSentence`)."""


def tag_all(
    tagger: Tagger, examples: Iterable[Example], options: TaggingOptions, window: int = WINDOW
) -> Iterator[Tagged]:
    """Yield the tagged sentences in order; read a window of sentences at a time."""
    tagger.model.eval()
    rest, tokens = iter(examples), batch_tokens(tagger.device)
    while taken := take(rest, window):
        found: dict[int, Tagged] = {}
        short = [row for row, example in enumerate(taken) if len(example) <= LONGEST_WHOLE]
        with model_errors(taken[0]):
            inputs = [tagger.reader(taken[row].tokens) for row in short]
        for rows in LengthBatches(list(map(len, inputs)), tokens=tokens).in_order():
            with model_errors(taken[short[rows[0]]]):
                results = _tag_batch(
                    tagger,
                    [taken[short[row]] for row in rows],
                    [inputs[row] for row in rows],
                    options,
                )
            found.update(zip((short[row] for row in rows), results, strict=True))
        # Release a sentence once its result is yielded, so that long ones do not add up.
        taken.reverse()
        for row in range(len(taken)):
            if row in found:
                taken.pop()
                yield found.pop(row)
            else:
                yield _tag_long(tagger, taken.pop(), options)


@torch.no_grad()
def _tag_batch(
    tagger: Tagger, examples: list[Example], inputs: list[Inputs], options: TaggingOptions
) -> list[Tagged]:
    chain = tagger.chain(inputs, [tagger.task.permitted_tags(example) for example in examples])
    labelled = label(tagger.model, tagger.task, chain, examples, options.decoder, options.repair)
    nothing: list[tuple[float, ...] | None] = [None] * len(examples)
    words = items = nothing
    if options.needs_probabilities:
        sequences = [labels for labels, _ in labelled]
        law = scaled(chain, tagger.probability_temperature)
        arguments = (tagger.model, tagger.task, law, examples, sequences)
        words = items = [*probabilities(*arguments)]
        if tagger.task.has_mentions:
            items = [*item_probabilities(*arguments)]
    rows = zip(examples, labelled, words, items, strict=True)
    return [_tagged(tagger, options, *row) for row in rows]


def _tag_long(tagger: Tagger, example: Example, options: TaggingOptions) -> Tagged:
    def score(part: Example) -> LinearChain:
        return tagger.chain([tagger.reader(part.tokens)], [tagger.task.permitted_tags(part)])

    size, context = block_size(len(tagger.labels)), network_context(tagger.model)
    chain = BlockedChain(score, example, size, context)
    sentence = LongSentence(tagger.model, tagger.task, chain, tagger.probability_temperature)
    words = items = None
    with model_errors(example):
        labelled = sentence.label(options.decoder, options.repair)
        if options.needs_probabilities:
            words = items = sentence.probabilities(labelled.labels)
            if tagger.task.has_mentions:
                items = sentence.item_probabilities(labelled.labels)
    return _tagged(tagger, options, example, labelled, words, items)


def _tagged(
    tagger: Tagger,
    options: TaggingOptions,
    example: Example,
    labelled: Labelled,
    words: tuple[float, ...] | None,
    items: tuple[float, ...] | None,
) -> Tagged:
    tagged = Tagged(tagger.task, example, *labelled, words, items)
    return tagged if options.threshold is None else tagged.above(options.threshold)
