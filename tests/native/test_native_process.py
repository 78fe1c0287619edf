"""The compiled kernels in a process: memory, threads, forks."""

from __future__ import annotations

import os
import subprocess
import sys
import textwrap
from concurrent.futures import ThreadPoolExecutor

import pytest
import torch

import bcrf
from tests.comparing import any_path, needs_native, problem, solvers
from tests.subjects import scores_of, slopes, with_scores

pytestmark = needs_native


def run(program: str, threads: int = 1) -> str:
    """Run a program in a new process, and return its output."""
    environment = {**os.environ, "OMP_NUM_THREADS": str(threads)}
    done = subprocess.run(
        [sys.executable, "-c", textwrap.dedent(program)],
        env=environment,
        capture_output=True,
        text=True,
        timeout=120,
    )
    assert done.returncode == 0, done.stderr
    return done.stdout


@pytest.mark.skipif(not sys.platform.startswith("linux"), reason="reads /proc")
@pytest.mark.parametrize("solver", ["ForwardBackward()", "Bregman()"])
def test_shared_transitions_stay_shared(solver: str) -> None:
    """A copy of the transitions for each edge would take 8 * 4095 * 64 * 64 * 4 bytes > 500 MB."""
    peak = run(f"""
        import torch, bcrf

        def peak():
            with open("/proc/self/status") as status:
                return next(int(x.split()[1]) for x in status if x.startswith("VmHWM"))

        def loss(unary, transitions, tags):
            bcrf.loss(bcrf.{solver}, bcrf.LinearChain(unary, transitions), tags).sum().backward()
            return transitions.grad

        transitions = torch.zeros(64, 64, requires_grad=True)
        unary = torch.zeros(8, 4096, 64, requires_grad=True)
        tags = torch.zeros(8, 4096, dtype=torch.int64)
        loss(unary[:, :8], transitions, tags[:, :8])
        unary.grad.zero_()
        before = peak()
        loss(unary, transitions, tags)
        print((peak() - before) // 1024)
    """)
    assert int(peak) < 100


FORK = """
    import multiprocessing, torch, bcrf

    torch.set_num_threads({threads})
    generator = torch.Generator().manual_seed(0)
    unary = torch.randn(8, 100, 20, generator=generator)
    chain = bcrf.LinearChain(unary, torch.randn(20, 20, generator=generator))

    def answers():
        values = [solver(chain).value for solver in (bcrf.ForwardBackward(), bcrf.Bregman())]
        return torch.stack([*values, bcrf.viterbi(chain)[0]]).tolist()

    def child(pipe):
        torch.set_num_threads(1)
        pipe.send(answers())

    expected = answers()
    context = multiprocessing.get_context("fork")
    for _ in range(2):
        here, there = context.Pipe()
        process = context.Process(target=child, args=(there,))
        process.start()
        assert here.poll(60), "no answer from the child"
        assert here.recv() == expected
        process.join()
        assert process.exitcode == 0
        assert answers() == expected  # and the parent goes on
    print("fine")
"""


@pytest.mark.skipif(not hasattr(os, "fork"), reason="no fork here")
@pytest.mark.filterwarnings("ignore::DeprecationWarning")
def test_children_of_a_process_with_threads() -> None:
    """A forked child works with one thread, as the workers of torch's data loaders do."""
    assert run(FORK.format(threads=2), threads=2) == "fine\n"


def test_calls_from_several_threads() -> None:
    """Kernels release the GIL and share no state, so that threads can call them in parallel."""
    chains = [problem(seed, [40, 33, 17, 5], 9, "shared", scale=1 + 30 * seed) for seed in range(4)]

    def work(k: int) -> list[torch.Tensor]:
        chain = chains[k % len(chains)]
        gold, scores = any_path(chain), scores_of(chain)
        found = [bcrf.viterbi(chain)[1], bcrf.certified_decode(chain).tags]
        for solver in solvers("native").values():
            output = bcrf.loss(solver, with_scores(chain, scores), gold)
            found += [output.detach(), solver(chain).tag_marginals, *slopes(output, scores)]
        return found

    expected = [work(k) for k in range(len(chains))]
    with ThreadPoolExecutor(8) as pool:
        for k, found in enumerate(pool.map(work, range(64))):
            assert all(map(torch.equal, found, expected[k % len(chains)]))
