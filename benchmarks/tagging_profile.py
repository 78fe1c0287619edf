"""Divide the time of `Tagger.tag` into its stages: features, network, decoding, and the rest.

python -m benchmarks.tagging_profile MODEL FILE
"""

from __future__ import annotations

import argparse
import time
from collections.abc import Callable, Iterator, Sequence
from contextlib import contextmanager
from typing import Any

import torch

from bcrf.tagger import Tagged, Tagger
from bcrf.tagger.data import LengthBatches, read
from bcrf.tagger.nn.inputs import pad_masks
from bcrf.tagger.prediction.chains import batch_tokens
from bcrf.tagger.prediction.decoding import label
from bcrf.tagger.prediction.sentences import as_sentence
from bcrf.tagger.tasks import Segmentation

__all__ = ["STAGES", "profile"]

STAGES = ("sentences", "features", "network", "decoding", "results")
"""Sentences become examples; tokens become ids and batches; the network scores them; the decoder
finds the labels; the results are built."""


@torch.no_grad()
def profile(
    tagger: Tagger,
    sentences: Sequence[Any],
    repeats: int = 3,
    clock: Callable[[], float] = time.perf_counter,
) -> tuple[dict[str, float], int]:
    """Return the seconds of each stage, and the number of tokens.

    The seconds are those of the fastest of `repeats` passes, after one that fills the caches. The
    stages are those of `Tagger.tag` with the default decoder, for sentences that fit in a batch.

    Args:
        tagger: the tagger, on the CPU.
        sentences: what `Tagger.tag` takes.
        repeats: number of passes.
        clock: `time.process_time` leaves out the time that other programs take, but adds up the
            time of all threads.
    """
    tagger.model.eval()
    passes = [_one_pass(tagger, sentences, clock) for _ in range(repeats + 1)]
    return min(passes[1:], key=lambda found: sum(found[0].values()))


def _one_pass(
    tagger: Tagger, sentences: Sequence[Any], clock: Callable[[], float]
) -> tuple[dict[str, float], int]:
    seconds = dict.fromkeys(STAGES, 0.0)

    @contextmanager
    def timed(stage: str) -> Iterator[None]:
        start = clock()
        yield
        seconds[stage] += clock() - start

    task, model = tagger.task, tagger.model
    with timed("sentences"):
        examples = [task.example(as_sentence(s, i, task)) for i, s in enumerate(sentences)]
    with timed("features"):
        inputs = [tagger.reader(example.tokens) for example in examples]
        batches = LengthBatches(
            list(map(len, inputs)), tokens=batch_tokens(tagger.device)
        ).in_order()
    for rows in batches:
        some = [examples[row] for row in rows]
        with timed("features"):
            batch = tagger.reader.batch([inputs[row] for row in rows])
            permitted = [task.permitted_tags(example) for example in some]
        with timed("network"):
            chain = model(batch)
            mask = pad_masks(permitted, chain.max_length, chain.num_tags)
            chain = chain if mask is None else chain.restrict(mask)
        with timed("decoding"):
            labelled = label(model, task, chain, some, tagger.decoder, tagger.repair)
        with timed("results"):
            for example, (labels, repaired) in zip(some, labelled, strict=True):
                Tagged(task, example, labels, repaired)
    return seconds, sum(map(len, examples))


def main() -> None:
    """Print the profile of a model on the words of a file, in CPU time on one thread."""
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("model")
    parser.add_argument("file")
    options = parser.parse_args()
    torch.set_num_threads(1)
    tagger = Tagger.load(options.model, "cpu")
    sentences: list[Any] = list(read(options.file))
    if not isinstance(tagger.task, Segmentation):
        sentences = [list(sentence.words) for sentence in sentences if sentence.words]
    seconds, tokens = profile(tagger, sentences, clock=time.process_time)
    total = sum(seconds.values())
    for stage, value in seconds.items():
        print(f"{stage:10} {1e6 * value / tokens:7.2f} us/token {value / total:6.1%}")
    print(f"{'all':10} {1e6 * total / tokens:7.2f} us/token {tokens / total:,.0f} tokens/s")


if __name__ == "__main__":
    main()
