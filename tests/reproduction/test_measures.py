"""Times, and the analysis of projections on trained scores."""

from __future__ import annotations

from pathlib import Path

import pytest
import torch

from bcrf import Bregman, LinearChain, Structure, certified_decode, viterbi
from bcrf.tagger import Inputs
from bcrf.tagger.training.training_data import TrainingItem
from reproduction import Selection
from reproduction.analysis import SETTINGS, TEMPERATURES, analyse, certified
from reproduction.timing_jobs import spread_batches
from tests import oracles
from tests.reproduction_cases import SAMPLES, experiment_set, messages, run
from tests.reproduction_rows import page

CPU = torch.device("cpu")

# ------------------------------------------------------------------------------------------ times


def test_batches_are_spread_over_all_lengths():
    items = [TrainingItem(Inputs([1] * n, None, None), [], None) for n in range(100, 0, -1)]
    found = spread_batches(items, 10, 2)
    assert [[len(item.inputs) for item in batch] for batch in found] == [
        list(range(21, 31)),
        list(range(71, 81)),
    ]
    assert len(spread_batches(items, 10, 99)) == 10


def seconds(row: dict, measure: str) -> dict[str, list[str]]:
    return {
        backend: list(methods)
        for backend, methods in row[measure].items()
        if backend not in ("tokens", "launches")
    }


def test_training_and_decoding_are_timed(tmp_path):
    which = experiment_set(tmp_path, timing={"rounds": 2})
    events = run(tmp_path, which, "timing", Selection(("english",), ("0",)))
    assert messages(events) == [
        (kind, f"timing {source} english 0")
        for source in ("pos", "partial")
        for kind in ("begun", "done")
    ]
    pos, partial = which.log("timing").rows()
    objectives = ["crf", "mean_field-10", "bregman-10"]
    decoders = ["viterbi", "mean_field-10", "bregman-10"]
    assert seconds(pos, "training") == {"torch": objectives, "auto": objectives}
    assert seconds(pos, "decoding") == {"torch": decoders, "auto": decoders}
    assert seconds(partial, "training") == {"torch": objectives, "auto": objectives}
    assert "decoding" not in partial
    for row in (pos, partial):
        assert row["weights"] == "fresh"
        assert (row["batch"], row["batches"], row["device"]) == (8, 2, "cpu")
        assert row["threads"] == torch.get_num_threads()
        assert row["machine"]["cpu"]
        timed = row["training"]["torch"]["crf"]
        assert timed["rounds"] == 2
        assert 0 < timed["low"] <= timed["median"] <= timed["high"]
    assert str(SAMPLES) not in which.log("timing").path.read_text()
    again = messages(run(tmp_path, which, "timing", Selection(("english",), ("0",))))
    assert again == [("done", f"timing {source} english 0") for source in ("pos", "partial")]
    assert len(which.log("timing").rows()) == 2


def test_launches_are_counted_for_the_network_and_for_each_method(tmp_path):
    which = experiment_set(tmp_path, timing={"rounds": 1})
    run(tmp_path, which, "timing", Selection(("english",), ("0",)))
    pos, partial = which.log("timing").rows()
    training, decoding = pos["training"]["launches"], pos["decoding"]["launches"]
    assert list(training) == ["network", "crf", "mean_field-10", "bregman-10"]
    assert list(decoding) == ["network", "viterbi", "mean_field-10", "bregman-10"]
    assert all(count > 10 for count in (*training.values(), *decoding.values()))
    assert decoding["network"] < training["network"]  # which has a backward pass
    # A loss of partial labels solves two problems.
    assert partial["training"]["launches"]["crf"] > 1.5 * training["crf"]
    text = page(tmp_path, [pos], "{{ timing timing }}\n")
    assert f"| POS: English, no layers | {' | '.join(map(str, training.values()))} |" in text


def test_a_trained_model_is_timed_if_there_is_one(tmp_path):
    chosen = Selection(("english",), seeds=(1,), objectives=("crf",))
    which = experiment_set(tmp_path, timing={"rounds": 1, "training": ["pos"]})
    run(tmp_path, which, "pos", chosen)
    run(tmp_path, which, "timing", Selection(("english",)))
    (row,) = which.log("timing").rows()
    assert row["weights"] == "trained"
    assert row["config"]["training"]["seed"] == 1


def test_chains_of_all_sizes_are_timed(tmp_path):
    which = experiment_set(tmp_path, timing={"rounds": 1, "training": [], "decoding": []})
    run(tmp_path, which, "timing")
    rows = which.log("timing").rows()
    assert [(row["length"], row["tags"]) for row in rows] == [(4, 3), (6, 3), (4, 2)]
    for row in rows:
        assert set(seconds(row, "training")) == set(seconds(row, "decoding")) == {"torch", "auto"}
        assert row["source"] == "chains"


# --------------------------------------------------------------------------------------- analysis

LABELS = [f"{prefix}-{kind}" for kind in "XY" for prefix in "BIES"]


def chain(scale: float = 1.0, batch: int = 30, n: int = 6) -> LinearChain:
    generator = torch.Generator().manual_seed(3)
    unary = torch.randn(batch, n, 8, generator=generator, dtype=torch.float64)
    pairs = torch.randn(batch, n - 1, 8, 8, generator=generator, dtype=torch.float64)
    lengths = torch.randint(1, n + 1, (batch,), generator=generator)
    whole = LinearChain(scale * unary, scale * pairs, lengths)
    return whole.constrain(Structure.from_labels(LABELS, "BIES"))


def test_certificates_agree_with_the_certified_decoder():
    problem = chain(batch=60)
    seen = set()
    for k in (1, 3, 10, 30):
        edges = Bregman(k)(problem / 0.1).edge_marginals
        found = certified(edges, problem.lengths)
        expected = certified_decode(problem, k, 0.1, backend="torch").certified
        torch.testing.assert_close(found, expected)
        seen.add(int(found.sum()))
    assert len(seen) > 2


def test_certified_sequences_are_best_paths():
    problem = chain(batch=40, n=4)
    edges = Bregman.paper(2)(problem / 0.1).edge_marginals
    found = certified(edges, problem.lengths)
    assert 0 < int(found.sum()) < 40
    sentences = oracles.sentences(problem.unary, problem.pair_scores, problem.lengths)
    for row in found.nonzero().flatten().tolist():
        length = int(problem.lengths[row])
        if length > 1:
            arcs = edges[row, : length - 1].flatten(1).argmax(-1).tolist()
            path = [arc // 8 for arc in arcs] + [arcs[-1] % 8]
            _, best = oracles.best_paths(*sentences[row], 1)
            assert path == best[0].tolist()


def converged(one: LinearChain) -> torch.Tensor:
    (sentence,) = oracles.sentences(one.unary, one.pair_scores, one.lengths)
    return torch.from_numpy(oracles.dual(*sentence).tag_marginals)


def test_errors_equal_their_definition():
    """Compare each sentence with the minimum of the dual, found by Newton's method."""
    problem = chain(batch=6)
    found = {
        (e["setting"], e["temperature"], e["iterations"]): e for e in analyse([problem], [2, 9])
    }
    assert len(found) == len(SETTINGS) * len(TEMPERATURES) * 2
    limits = {tau: [converged(problem[[row]] / tau) for row in range(6)] for tau in TEMPERATURES}
    best = viterbi(problem)[1]
    for (setting, tau, k), entry in found.items():
        largest, distances, right, same, proved = [], [], [], [], []
        for row in range(6):
            one = problem[[row]] / tau
            length = int(problem.lengths[row])
            limit = limits[tau][row]
            solution = SETTINGS[setting](k)(one)
            mine = solution.tag_marginals[0, :length]
            far = [(a - b).abs().sum().item() / 2 for a, b in zip(mine, limit, strict=True)]
            largest.append(max(far))
            distances += far
            tags = mine.argmax(-1) == best[row, :length]
            right += tags.tolist()
            same.append(all(tags.tolist()))
            proved.append(bool(certified(solution.edge_marginals, one.lengths)))
        assert entry["unsettled"] == 0
        assert entry["error"] == pytest.approx(sum(distances) / len(distances), abs=1e-5)
        assert entry["largest_error"] == pytest.approx(sum(largest) / 6, abs=1e-5)
        if tau == 1.0:
            assert "agreement" not in entry
        else:
            assert entry["agreement"] == pytest.approx(sum(right) / len(right), abs=1e-5)
            assert entry["same"] == pytest.approx(sum(same) / 6, abs=1e-5)
            assert entry["certified"] == pytest.approx(sum(proved) / 6, abs=1e-5)


def test_errors_vanish_and_do_not_depend_on_batches():
    problem = chain()
    whole = analyse([problem], [1, 3000])
    parts = analyse([problem[:11], problem[11:]], [1, 3000])
    for one, other in zip(whole, parts, strict=True):
        assert one == pytest.approx(other, abs=1e-6)
        if one["iterations"] == 3000:
            assert one["largest_error"] < 1e-5
        else:
            assert one["error"] > 1e-4


def test_sentences_that_do_not_converge_are_not_compared(monkeypatch):
    monkeypatch.setattr("reproduction.analysis._CONVERGED", Bregman(3, relaxation=1.0))
    found = analyse([chain()], [3])
    hard = [e["unsettled"] for e in found if e["temperature"] == 0.1]
    assert all(0 < count < 30 for count in hard)


def test_models_are_analysed_once_they_are_trained(tmp_path):
    which = experiment_set(tmp_path, analysis={"sources": ["pos"], "iterations": [1, 5]})
    ((kind, text),) = messages(run(tmp_path, which, "analysis", Selection(("english",))))
    folder = Path("runs", "pos", "english-0", "crf-0")
    assert kind == "skipped"
    assert text.endswith(f"there is no trained model in {tmp_path / folder}; train it first")

    run(tmp_path, which, "pos", Selection(("english",), seeds=(0,), objectives=("crf",)))
    run(tmp_path, which, "analysis", Selection(("english",)))
    (row,) = which.log("analysis").rows()
    assert (row["source"], row["objective"], row["seed"]) == ("pos", "crf", 0)
    assert row["sentences"] == 7
    assert len(row["results"]) == len(SETTINGS) * len(TEMPERATURES) * 2
    again = messages(run(tmp_path, which, "analysis", Selection(("english",))))
    assert [kind for kind, _ in again] == ["done"]
    assert which.log("analysis").rows() == [row]
