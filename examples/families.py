"""Solve one small chain with the four families: `python examples/families.py`.

The chain labels five words with named entities in IOB2: I-X may follow only B-X and I-X. Taken one
by one, the words "Lovelace" and "Turin" score highest with I-LOC. The best sequence that obeys the
rules gives them other labels.
"""

import statistics
import time

import torch

import bcrf

WORDS = ["Ada", "Lovelace", "visited", "Turin", "again"]
LABELS = ["O", "B-PER", "I-PER", "B-LOC", "I-LOC"]
SOLVERS = {
    "CRF": bcrf.ForwardBackward(),
    "Bregman": bcrf.Bregman(iterations=10),
    "mean field": bcrf.MeanField(iterations=10),
    "unstructured": bcrf.Unstructured(),
}


def example_chain() -> bcrf.LinearChain:
    unary = torch.tensor(
        [
            [0.6, 2.0, 1.8, 1.0, 0.2],
            [0.4, 0.6, 2.0, 0.2, 2.2],
            [3.0, 0.1, 0.2, 0.0, 0.1],
            [0.5, 0.7, 0.2, 2.2, 2.4],
            [2.5, 0.2, 0.3, 0.1, 0.2],
        ]
    )
    transitions = torch.zeros(5, 5)
    transitions[1, 2] = transitions[3, 4] = 0.5
    structure = bcrf.Structure.from_labels(LABELS, "IOB2")
    return bcrf.LinearChain(unary.unsqueeze(0), transitions).constrain(structure)


def milliseconds(solver: bcrf.Solver, chain: bcrf.LinearChain, repeats: int = 30) -> float:
    """Return the median time of computing the value and the tag marginals."""
    times = []
    for _ in range(repeats):
        start = time.perf_counter()
        solution = solver(chain)
        _ = solution.value, solution.tag_marginals
        times.append(time.perf_counter() - start)
    return 1000 * statistics.median(times)


def show(tags: torch.Tensor) -> str:
    return "  ".join(f"{LABELS[tag]:8}" for tag in tags[0].tolist())


def main() -> None:
    chain = example_chain()
    print("most probable tag of each position, with its marginal\n")
    print(f"{'':14}{'  '.join(f'{word:13}' for word in WORDS)}")
    for name, solver in SOLVERS.items():
        p, tags = solver(chain).tag_marginals[0].max(-1)
        cells = [f"{LABELS[t]:6} {100 * q:4.0f} % " for t, q in zip(tags, p, strict=True)]
        print(f"{name:14}{'  '.join(cells)}")

    print("\nvalue, loss of the best sequence, and time to compute value and marginals\n")
    score, best = bcrf.viterbi(chain)
    for name, solver in SOLVERS.items():
        value = float(solver(chain).value)
        loss = float(bcrf.loss(solver, chain, best))
        took = milliseconds(solver, chain)
        print(f"{name:14}value {value:7.4f}   loss {loss:7.4f}   {took:6.2f} ms")

    print("\ndecoded tags: the most probable tag of each position (Bregman: at temperature 0.1)\n")
    for name, solver in SOLVERS.items():
        temperature = 0.1 if isinstance(solver, bcrf.Bregman) else 1.0
        print(f"{name:14}{show(bcrf.decode(solver, chain, temperature))}")
    print(f"{'Viterbi':14}{show(best)}  score {float(score):.2f}")
    certified = bcrf.certified_decode(chain)
    verdict = "proved to be best" if certified.certified[0] else "found by Viterbi"
    print(f"{'certified':14}{show(certified.tags)}  score {float(certified.score):.2f}, {verdict}")


if __name__ == "__main__":
    main()
