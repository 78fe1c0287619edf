"""Random calls of the compiled kernels: `python -m tests.fuzz_native --seconds 60 [--seed N]`.

Every round draws a problem of random size, layout and scale, makes some of them invalid, and calls
all kernels. Results of valid problems must agree with torch in float64; invalid problems must raise
the error that torch raises. A failing round prints its seed: `--seed N --rounds 1` repeats it. In a
build with sanitizers (`make sanitize`), a read beyond a tensor ends the program.
"""

from __future__ import annotations

import argparse
import contextlib
import math
import random
import sys
import time
import traceback
from collections.abc import Callable
from typing import Any

import torch
from torch import Tensor

import bcrf
from bcrf import Bregman, LinearChain
from bcrf.kernels import native
from bcrf.kernels.folded_chain import fold
from tests.comparing import any_path, check_answers, check_decoders, check_dual, problem, solvers

Arrays = tuple[Tensor, Tensor, Tensor]
"""unary, pair and lengths, as the kernels take them."""


# Problems


def relaid(x: Tensor, rng: random.Random) -> Tensor:
    """Return the same values in another layout, with NaN in the memory between them."""
    dims = list(range(x.dim()))
    how = rng.choice(["as is", "permuted", "cut", "strided"])
    if how == "permuted":
        rng.shuffle(dims)
        back = [dims.index(d) for d in range(x.dim())]
        return x.permute(dims).contiguous().permute(back)
    if how == "as is" or not dims:
        return x
    step = 1 if how == "cut" else 2
    frame = x.new_full([2 + step * size for size in x.shape], math.nan)
    inner = frame[tuple(slice(1, 1 + step * size, step) for size in x.shape)]
    return inner.copy_(x)


def draw(rng: random.Random, largest: float) -> LinearChain:
    num_tags = rng.choice([rng.randint(1, 9), rng.randint(1, 70), rng.choice([8, 16, 32, 64, 65])])
    n = rng.choice([rng.randint(0, 4), rng.randint(0, 40)])
    chain = problem(
        rng.getrandbits(32),
        [n] * rng.choice([1, rng.randint(0, 6), rng.randint(6, 20)]),
        num_tags,
        rng.choice(["none", "shared", "per_pair"]),
        rng.choice([torch.float32, torch.float64]),
        removed=rng.choice([0.0, 0.3, 0.8]),
        scale=10 ** rng.uniform(-2, math.log10(largest)),
    )
    lengths = chain.lengths
    if rng.random() < 0.7:
        least = rng.choice([0, n - n // 4])
        drawn = [rng.randint(least, n) for _ in range(len(chain))]
        lengths = torch.tensor(drawn, dtype=torch.int64)
    transitions = None if chain.transitions is None else relaid(chain.transitions, rng)
    if transitions is not None and not chain.shared and len(chain) and rng.random() < 0.2:
        transitions = transitions[:1].expand_as(transitions)
        chain = chain._map(lambda w: w.clamp(min=-largest), chain.dtype)
        transitions = transitions.clamp(min=-largest)[:1].expand_as(transitions)
    return LinearChain(relaid(chain.unary, rng), transitions, lengths)


def random_settings(rng: random.Random) -> dict[str, Any]:
    return {
        "iterations": rng.choice([0, 1, 2, 3, 10, 10, 25]),
        "relaxation": rng.choice(["ramp", 1.0, 0.8]),
        "gauge": rng.choice(["half", "right"]),
        "first": rng.choice([1, 2]),
        "marginals": rng.choice(["mean", "outgoing"]),
    }


# Kernels


def calls(arrays: Arrays, tags: Tensor, rng: random.Random) -> dict[str, Callable[[], Any]]:
    """Return calls of all kernels with random settings."""
    tolerance = rng.choice([None, None, 0.0, 1e-3])
    settings = Bregman(**random_settings(rng), tolerance=tolerance)._settings
    wanted = rng.choice([(False, False), (True, False), (False, True), (True, True)])
    every_edge = rng.random() < 0.3
    gold = rng.choice([None, tags])
    tau = rng.choice([0.1, 1.0, 3.0])
    return {
        "crf": lambda: native.crf(*arrays, gold, wanted, every_edge),
        "bregman": lambda: native.bregman(*arrays, settings, gold, wanted, every_edge),
        "bregman_result": lambda: native.bregman_result(*arrays, settings),
        "most_probable": lambda: native.most_probable(*arrays, settings, tau),
        "viterbi": lambda: native.viterbi(*arrays),
        "certified": lambda: native.certified(*arrays, settings.omegas, tau),
        "loss": lambda: native.crf(*arrays, tags, wanted, every_edge),
        "fenchel": lambda: native.bregman(*arrays, settings, tags, wanted, every_edge),
    }


def finite(found: Any) -> bool:
    results = (found,) if isinstance(found, Tensor) else found
    return all(bool(x.isfinite().all()) for x in results if x is not None)


def check_clean(chain: LinearChain, rng: random.Random) -> None:
    tags = any_path(chain, rng.getrandbits(16))
    arrays = (chain.unary, chain.pair_scores, chain.lengths)
    for name, call in calls(arrays, tags, rng).items():
        found = call()
        assert found is not None, f"{name} says that a sentence is invalid"
        assert finite(found), f"{name} is not finite"
    if not chain.shared:
        check_follow(chain, tags, rng)
    check_start_end(chain, rng)
    check_mask_scan(chain, tags, rng)
    choice = rng.random()
    settings = random_settings(rng)
    if choice < 0.4:
        check_answers(chain, slack=8, **settings)
    elif choice < 0.7:
        check_decoders(chain, **settings)
    elif choice < 0.9:
        check_dual(chain, Bregman(**settings, backend="native"))
    else:
        folded = fold(chain)
        start = torch.where(
            folded.interior_live, torch.randn(folded.interior_live.shape, dtype=chain.dtype), 0.0
        )
        assert finite(native.project(folded, start, Bregman().omegas, 1, rng.choice([None, 1e-2])))


def check_follow(chain: LinearChain, tags: Tensor, rng: random.Random) -> None:
    """Forbidding transitions by `follow` equals -inf on every edge, bit for bit."""
    follow = torch.rand(chain.num_tags, chain.num_tags) < rng.choice([0.3, 0.9])
    follow[0, -1] = False  # where none is removed, both may differ by rounding
    unary, pair, lengths = chain.unary, chain.pair_scores, chain.lengths
    removed = pair.masked_fill(~follow, -math.inf)
    settings = Bregman(**random_settings(rng))._settings
    for gold in (None, tags):
        for run, more in ((native.crf, ()), (native.bregman, (settings,))):
            found = run(unary, pair, lengths, *more, gold, (True, True), follow=follow)
            expected = run(unary, removed, lengths, *more, gold, (True, True))
            assert (found is None) == (expected is None)
            for one, other in zip(found or (), expected or (), strict=True):
                assert one is other is None or torch.equal(one, other)


def check_start_end(chain: LinearChain, rng: random.Random) -> None:
    """The kernels add start and end scores, and sum their gradients, as torch operations do."""
    start_end = relaid(torch.randn(2 * chain.num_tags, dtype=chain.dtype), rng)
    found = native.add_start_end(chain.unary, start_end, chain.lengths)
    sums = native.sum_start_end(found.clamp(-9, 9), chain.lengths)
    inside = chain.lengths > 0
    if not chain.max_length:
        assert torch.equal(found, chain.unary)
        assert not bool(sums.any())
        return
    expected = chain._add_start_end(start_end).unary
    torch.testing.assert_close(found[inside], expected[inside])
    first = found[inside, 0].clamp(-9, 9).sum(0)
    last = found[inside, chain.lengths[inside] - 1].clamp(-9, 9).sum(0)
    torch.testing.assert_close(sums, torch.cat([first, last]), atol=1e-3, rtol=1e-3)


def check_mask_scan(chain: LinearChain, tags: Tensor, rng: random.Random) -> None:
    """The scan finds the kept positions of a mask with holes and of tags of -100."""
    mask = relaid(torch.rand(tags.shape) < rng.choice([0.5, 0.99]), rng)
    tags = tags.masked_fill(torch.rand(tags.shape) < 0.1, -100)
    scan = native.scan_mask(mask, tags)
    keep = mask & (tags != -100)
    assert torch.equal(keep if scan.keep is not None else keep.new_ones(keep.shape), keep)
    if scan.keep is not None and scan.lengths is not None:
        assert torch.equal(scan.keep, keep)
        assert torch.equal(scan.lengths, keep.sum(1))
    holes = bool((keep[:, 1:] & ~keep[:, :-1]).any())
    assert scan.compact == (not holes)


# Invalid problems


def spoil(chain: LinearChain, rng: random.Random) -> tuple[str, LinearChain, Tensor] | None:
    """Return a copy with an invalid number that kernels read; None if all sentences are short."""
    unary, pair, lengths = chain.unary.clone(), chain.pair_scores.clone(), chain.lengths.clone()
    tags = any_path(chain)
    long = [b for b, length in enumerate(lengths.tolist()) if length > 1]
    if not long:
        return None
    b = rng.choice(long)
    i = rng.randrange(int(lengths[b]))
    e = rng.randrange(int(lengths[b]) - 1)
    s, t = rng.randrange(chain.num_tags), rng.randrange(chain.num_tags)
    bad = rng.choice([math.nan, math.inf])
    what = rng.choice(["unary", "pair", "tag", "length", "no path"])
    if what == "unary":
        unary[b, i, t] = bad
    elif what == "pair":
        pair[(s, t) if chain.shared else (b, e, s, t)] = bad
    elif what == "tag":
        tags[b, i] = rng.choice([-1, chain.num_tags, 2**62, -(2**62), -100])
    elif what == "length":
        lengths[b] = rng.choice([-1, chain.max_length + 1, 2**40, -(2**62)])
    else:
        unary[b, i] = -math.inf
    given = None if chain.transitions is None and what != "pair" else relaid(pair, rng)
    return what, LinearChain._new(relaid(unary, rng), given, lengths, chain.dtype), tags


def message(call: Callable[[], Any]) -> str:
    try:
        call()
    except ValueError as error:
        return str(error)
    return "no error"


def check_spoiled(chain: LinearChain, rng: random.Random) -> None:
    spoiled = spoil(chain, rng)
    if spoiled is None:
        return
    what, chain, tags = spoiled
    arrays = (chain.unary, chain.pair_scores, chain.lengths)
    for name, call in calls(arrays, tags, rng).items():
        found = call()
        if what != "tag" or name in ("loss", "fenchel"):
            assert found is None, f"{name} has an answer to a bad {what}"
    if what != "length":
        for family, solver in solvers("native").items():
            said = message(lambda solver=solver: bcrf.loss(solver, chain, tags))
            other = solvers("torch")[family]
            assert said == message(lambda other=other: bcrf.loss(other, chain, tags)) != "no error"
    with bcrf.set_checks(False), contextlib.suppress(IndexError, RuntimeError, ValueError):
        bcrf.loss(rng.choice(list(solvers("native").values())), chain, tags)


# Rounds


def play(seed: int, largest: float) -> None:
    rng = random.Random(seed)
    torch.manual_seed(seed)
    torch.set_num_threads(rng.choice([1, 1, 2, 3, 8]))
    native._native.use_instruction_set(rng.choice(native._native.instruction_sets()))
    chain = draw(rng, largest)
    if rng.random() < 0.3:
        check_spoiled(chain, rng)
    else:
        check_clean(chain, rng)


def main() -> int:
    parser = argparse.ArgumentParser(description=__doc__.splitlines()[0])
    parser.add_argument("--seconds", type=float, default=60)
    parser.add_argument("--seed", type=int, default=None, help="of the first round")
    parser.add_argument("--rounds", type=int, default=None, help="at most so many")
    parser.add_argument("--scale", type=float, default=1e5, help="of the largest scores")
    options = parser.parse_args()
    if native.UNAVAILABLE is not None:
        print(native.UNAVAILABLE)
        return 2
    seed = random.SystemRandom().getrandbits(31) if options.seed is None else options.seed
    first, end = seed, time.monotonic() + options.seconds
    while time.monotonic() < end and (options.rounds is None or seed - first < options.rounds):
        try:
            play(seed, options.scale)
        except Exception:
            traceback.print_exc()
            print(f"failed: --seed {seed} --rounds 1 --scale {options.scale:g}")
            return 1
        seed += 1
    print(f"{seed - first} rounds from seed {first}: nothing found")
    return 0


if __name__ == "__main__":
    sys.exit(main())
