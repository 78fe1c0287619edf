"""Layers as nn.Modules: precision, devices, copies, second derivatives, several processes."""

import copy
import io
import itertools
import math
import pickle
from pathlib import Path

import pytest
import torch
from torch import Tensor, nn

import bcrf
from bcrf import ChainLayer
from bcrf.layers.tag_frequencies import log_frequencies
from tests.layer_cases import HOLES, LAYERS, T, bio, close, make, random_emissions, random_tags

B, N = HOLES.shape
each_layer = pytest.mark.parametrize("name", LAYERS)


def legal(tags: Tensor) -> Tensor:
    """Return well-formed IOB2 tags: tag 2 does not occur."""
    return tags % 2


# Precision


@each_layer
@pytest.mark.parametrize("dtype", [torch.float16, torch.bfloat16], ids=str)
@pytest.mark.parametrize("halved", [False, True])
def test_half_precision(name: str, dtype: torch.dtype, halved: bool) -> None:
    """Sums are in float32: on the same rounded scores, the results are those of float64."""
    layer = make(name)
    layer = layer.to(dtype if halved else torch.float32)
    wide = copy.deepcopy(layer).double()
    emissions, tags = 4 * random_emissions(B, N), random_tags(B, N)
    emissions = emissions.to(dtype)
    found = layer.loss(emissions, tags, HOLES, "none")
    assert found.dtype == torch.float32
    expected = wide.loss(emissions.double(), tags, HOLES, "none")
    torch.testing.assert_close(found.double(), expected, rtol=1e-5, atol=1e-5)
    marginals = layer.marginals(emissions, HOLES)
    known = dtype if halved or name == "softmax" else torch.float32
    assert marginals.dtype == known
    torch.testing.assert_close(
        marginals.double(),
        wide.marginals(emissions.double(), HOLES),
        rtol=0,
        atol=2 * torch.finfo(known).eps,
    )
    assert layer.decode(emissions, HOLES) == wide.decode(emissions.double(), HOLES)


@each_layer
@pytest.mark.parametrize("dtype", [torch.float16, torch.bfloat16], ids=str)
def test_autocast(name: str, dtype: torch.dtype) -> None:
    """A linear layer makes emissions in half precision; the layer computes in float32."""
    layer, linear = make(name).float(), nn.Linear(5, T)
    x, tags = torch.randn(B, N, 5), random_tags(B, N)
    with torch.autocast("cpu", dtype):
        emissions = linear(x)
        assert emissions.dtype == dtype
        found = layer.loss(emissions, tags, HOLES)
        found.backward()
        marginals = layer.marginals(emissions, HOLES)
    assert linear.weight.grad is not None
    assert linear.weight.grad.isfinite().all()
    assert found.dtype == torch.float32
    expected = layer.loss(emissions.detach().double(), tags, HOLES)
    torch.testing.assert_close(found.double(), expected.double(), rtol=1e-5, atol=1e-5)
    sums = marginals.float().sum(-1)[HOLES]
    torch.testing.assert_close(sums, torch.ones_like(sums), rtol=0, atol=0.02)


@each_layer
def test_dtypes_of_layer_and_emissions_may_differ(name: str) -> None:
    layer, tags = make(name), random_tags(B, N)
    emissions = random_emissions(B, N, dtype=torch.float32)
    found = layer.loss(emissions, tags, HOLES)
    assert found.dtype == (torch.float32 if name == "softmax" else torch.float64)
    close(found.double(), layer.loss(emissions.double(), tags, HOLES), 1e-5)


# Axes


@each_layer
def test_axes_can_be_swapped(name: str) -> None:
    """With batch_first=False the numbers are the same, and [n, B] replaces [B, n]."""
    layer, turned = make(name), make(name, batch_first=False)
    emissions, tags = random_emissions(B, N), random_tags(B, N)
    pairs = 0.5 * random_emissions(B, (N - 1) * T, T, 7).view(B, N - 1, T, T)
    allowed = random_emissions(B, N, T, 5) < 0.5
    allowed[..., 0] = True
    e, y, m, w, a = (x.transpose(0, 1) for x in (emissions, tags, HOLES, pairs, allowed))
    close(turned.loss(e, y, m, "none"), layer.loss(emissions, tags, HOLES, "none"))
    close(
        turned.loss(e, mask=m, allowed=a, reduction="none"),
        layer.loss(emissions, mask=HOLES, allowed=allowed, reduction="none"),
    )
    close(turned.loss(e, y, transitions=w), layer.loss(emissions, tags, transitions=pairs))
    close(turned.marginals(e, m), layer.marginals(emissions, HOLES).transpose(0, 1))
    assert turned.decode(e, m) == layer.decode(emissions, HOLES)
    assert torch.equal(turned.decode_tensor(e, m), layer.decode_tensor(emissions, HOLES).mT)
    for one, two in zip(turned.top_tags(e, 2, m), layer.top_tags(emissions, 2, HOLES), strict=True):
        close(one, two.transpose(0, 1))
    assert torch.equal(turned.k_best(e, 3, m)[1], layer.k_best(emissions, 3, HOLES)[1])
    samples = [
        layer.sample(*arguments, generator=torch.Generator().manual_seed(0))
        for layer, arguments in ((turned, (e, 4, m)), (layer, (emissions, 4, HOLES)))
    ]
    assert torch.equal(samples[0], samples[1].mT)


# Devices: meta stands for devices whose values are not read


@each_layer
@pytest.mark.parametrize("ruled", [False, True])
def test_nothing_waits_for_a_value(name: str, ruled: bool) -> None:
    options = {"iterations": 3} if name in ("bregman", "mean field") else {}
    layer = LAYERS[name](T, constraints=bio()[1] if ruled else None, **options)
    here = {"marginals": layer.marginals(torch.zeros(B, N, T), HOLES, converge=False)}
    layer = layer.to("meta")
    emissions = torch.zeros(B, N, T, device="meta", requires_grad=True)
    tags = torch.zeros(B, N, dtype=torch.int64, device="meta")
    pairs = torch.zeros(B, N - 1, T, T, device="meta")
    for mask in (None, HOLES.to("meta"), HOLES.float().to("meta")):
        losses = layer.loss(emissions, tags, mask, "none")
        assert losses.shape == (B,)
        losses.sum().backward()
        sets = torch.ones(B, N, T, dtype=torch.bool, device="meta")
        layer.loss(emissions, mask=mask, allowed=sets, reduction="token_mean")
        layer.loss(emissions, tags, mask, transitions=pairs)
        assert layer.decode_tensor(emissions, mask).shape == (B, N)
        found = layer.marginals(emissions, mask, converge=False)
        assert found.shape == here["marginals"].shape
    assert emissions.grad is not None


def test_a_mask_on_another_device_comes_along() -> None:
    layer = bcrf.BregmanCRF(T).to("meta")
    emissions = torch.zeros(B, N, T, device="meta")
    assert layer.loss(emissions, random_tags(B, N), HOLES).device.type == "meta"


@each_layer
def test_constraints_follow_the_layer(name: str) -> None:
    """Constraints move with the layer, also if it is created on the device meta.

    Buffers would lose their values there.
    """
    emissions, tags = random_emissions(B, N), legal(random_tags(B, N))
    with torch.device("meta"):
        layer = LAYERS[name](T, constraints=bio()[1])
    structure = layer.constraints
    assert structure is not None
    assert structure.follow.device.type == "cpu"
    assert layer.loss(emissions.to("meta"), tags).device.type == "meta"
    layer = layer.to_empty(device="cpu").double()
    layer.load_state_dict(make(name).state_dict())
    known = make(name, constraints=bio()[1])
    close(layer.loss(emissions, tags, HOLES), known.loss(emissions, tags, HOLES))
    assert layer.decode(emissions, HOLES) == known.decode(emissions, HOLES)
    assert not list(layer.buffers())


# Copies


def assert_same_layer(one: ChainLayer, two: ChainLayer) -> None:
    emissions, tags = random_emissions(B, N), legal(random_tags(B, N))
    assert repr(one) == repr(two)
    assert one.decode(emissions, HOLES) == two.decode(emissions, HOLES)
    close(one.loss(emissions, tags, HOLES), two.loss(emissions, tags, HOLES))
    for x, y in zip(one.parameters(), two.parameters(), strict=True):
        assert torch.equal(x, y)
        assert x.data_ptr() != y.data_ptr()


@each_layer
def test_copies(name: str) -> None:
    layer = make(name, constraints=bio()[1], decoder=bcrf.Bregman(10), temperature=0.1)
    assert_same_layer(copy.deepcopy(layer), layer)
    assert_same_layer(pickle.loads(pickle.dumps(layer)), layer)
    buffer = io.BytesIO()
    torch.save(layer.state_dict(), buffer)
    buffer.seek(0)
    other = make(name, seed=3, constraints=bio()[1], decoder=bcrf.Bregman(10), temperature=0.1)
    other.load_state_dict(torch.load(buffer))
    assert_same_layer(other, layer)


def test_representation() -> None:
    assert repr(bcrf.CRF(5, batch_first=True)) == "CRF(num_tags=5, batch_first=True)"
    assert repr(bcrf.ExactCRF(5)).startswith("ExactCRF(num_tags=5, solver=ForwardBackward(")
    layer = bcrf.BregmanCRF(3, 7, constraints=bio()[1], penalty=2.0, start_end=False)
    for words in ("iterations=7", "follow=8/9 allowed", "penalty=2.0", "start_end=False"):
        assert words in repr(layer)
    assert "temperature" not in repr(layer)


@pytest.mark.parametrize(
    ("num_tags", "error"), [(0, ValueError), (-2, ValueError), (2.0, TypeError), (True, TypeError)]
)
def test_numbers_of_tags_that_make_no_sense(num_tags: object, error: type[Exception]) -> None:
    with pytest.raises(error, match="num_tags must be"):
        bcrf.BregmanCRF(num_tags)  # type: ignore[arg-type]


# Derivatives


@each_layer
@pytest.mark.parametrize("partial", [False, True])
def test_first_and_second_derivatives(name: str, partial: bool) -> None:
    """Bregman runs 60 iterations, because its derivatives are exact at convergence."""
    layer = bcrf.BregmanCRF(T, 60).double() if name == "bregman" else make(name)
    keep = torch.tensor([[0, 1, 1, 0, 1], [1, 0, 0, 1, 0]])
    emissions = random_emissions(2, 5).requires_grad_()
    parameters = tuple(p.detach().clone().requires_grad_() for p in layer.parameters())
    names = [name for name, _ in layer.named_parameters()]
    tags, allowed = random_tags(2, 5), random_emissions(2, 5, T, 4) < 0.3
    allowed[..., 1] = True
    labels = {"allowed": allowed} if partial else {"tags": tags}

    def loss(emissions: Tensor, *parameters: Tensor) -> Tensor:
        given = dict(zip(names, parameters, strict=True))
        options = {"mask": keep, "reduction": "none"} | labels
        found: Tensor = torch.func.functional_call(layer, given, (emissions,), options)
        return found

    inputs = (emissions, *parameters)
    assert torch.autograd.gradcheck(loss, inputs)
    assert torch.autograd.gradgradcheck(loss, inputs, atol=1e-4)


# Counts


def test_frequencies_by_counting() -> None:
    sequences = [[0, 1, 1], [2], [], [1, -100, 0], [-100]]
    found = log_frequencies(sequences, 3, smoothing=0.5)
    start, follow, end = [0.5] * 3, [[0.5] * 3 for _ in range(3)], [0.5] * 3
    for sequence in sequences:
        tags = [t for t in sequence if t != -100]
        if tags:
            start[tags[0]] += 1
            end[tags[-1]] += 1
        for s, t in itertools.pairwise(tags):
            follow[s][t] += 1
    for t in range(3):
        assert float(found.start[t]) == pytest.approx(math.log(start[t] / sum(start)))
        total = sum(follow[t]) + end[t]
        assert float(found.end[t]) == pytest.approx(math.log(end[t] / total))
        for u in range(3):
            assert float(found.follow[t, u]) == pytest.approx(math.log(follow[t][u] / total))
    padded = torch.full((5, 3), -100)
    for row, sequence in zip(padded, sequences, strict=True):
        row[: len(sequence)] = torch.tensor(sequence)
    for one, two in zip(log_frequencies(padded, 3, 0.5), found, strict=True):
        close(one, two)


def markov_tags(count: int, seed: int) -> Tensor:
    """Return the tags of sentences of ten positions, drawn from one Markov chain."""
    generator = torch.Generator().manual_seed(seed)
    model = bcrf.LinearChain(
        torch.zeros(1, 10, T), torch.tensor([[2.0, 0, -1], [-2, 1, 1], [1, -1, 0]])
    )
    return bcrf.sample(model, count, generator)[:, 0]


@pytest.mark.parametrize("name", ["exact", "bregman", "mean field"])
def test_counted_transitions_lower_the_loss(name: str) -> None:
    """With emissions of 0, counted transitions predict tags from their neighbours."""
    layer, seen, unseen = LAYERS[name](T), markov_tags(200, 0), markov_tags(200, 1)
    emissions = torch.zeros(200, 10, T)
    before = layer.loss(emissions, unseen, reduction="token_mean")
    layer.init_from_counts(seen)
    after = layer.loss(emissions, unseen, reduction="token_mean")
    assert after < 0.85 * before
    assert all(parameter.requires_grad for parameter in layer.parameters())


def test_counted_transitions_are_the_markov_chain() -> None:
    """Without emissions, log p(y) equals that of the Markov chain up to a constant per length."""
    layer, tags = bcrf.ExactCRF(T).double(), markov_tags(50, 0)
    layer.init_from_counts(tags.tolist(), smoothing=0.1)
    found = layer.sequence_probability(torch.zeros(50, 10, T).double(), tags, log=True)
    start, follow, end = log_frequencies(tags, T, 0.1)
    scores = start[tags[:, 0]] + follow[tags[:, :-1], tags[:, 1:]].sum(1) + end[tags[:, -1]]
    close(found - found[0], scores - scores[0])


def test_counts_that_make_no_sense() -> None:
    layer = bcrf.ExactCRF(T)
    for sequences, error, words in (
        ([[0, 1], [0, 3]], ValueError, r"tag_sequences\[1\]\[1\]: tag 3 is not in 0\.\.2"),
        ([[0, 1.5]], TypeError, r"tag_sequences\[0\]\[1\] must be an int, got 1\.5"),
        ([0, 1], TypeError, r"tag_sequences\[0\] must be a sequence of tags, got 0"),
        (["OB"], TypeError, r"tag_sequences\[0\] must be a sequence of tags, got 'OB'"),
    ):
        with pytest.raises(error, match=words):
            layer.init_from_counts(sequences)  # type: ignore[arg-type]
    with pytest.raises(ValueError, match="smoothing must be positive"):
        layer.init_from_counts([[0]], smoothing=0)
    with pytest.raises(ValueError, match="no transitions to initialise"):
        bcrf.TokenSoftmax(T).init_from_counts([[0]])
    bare = bcrf.ExactCRF(T, start_end=False)
    bare.init_from_counts([[0, 1]])
    close(bare.transitions.double(), log_frequencies([[0, 1]], T).follow, 1e-6)


# Several processes


def train(rank: int, world: int, folder: str, name: str, batch: int) -> None:
    """Run a few steps in one of `world` processes, on its share of the sentences."""
    torch.set_num_threads(1)
    torch.distributed.init_process_group(
        "gloo", init_method=f"file://{folder}/meet", rank=rank, world_size=world
    )
    model = DistributedModel(name)
    parallel = nn.parallel.DistributedDataParallel(model)
    steps(parallel, rank * batch, (rank + 1) * batch)
    torch.save(model.state_dict(), f"{folder}/{rank}.pt")
    torch.distributed.destroy_process_group()


class DistributedModel(nn.Module):
    def __init__(self, name: str) -> None:
        super().__init__()
        torch.manual_seed(0)
        self.linear = nn.Linear(4, T)
        self.head = LAYERS[name](T)

    def forward(self, x: Tensor, tags: Tensor, mask: Tensor) -> Tensor:
        return -self.head(self.linear(x), tags, mask, "mean")  # type: ignore[no-any-return]


def steps(model: nn.Module, first: int, last: int) -> None:
    generator = torch.Generator().manual_seed(1)
    optimizer = torch.optim.SGD(model.parameters(), 0.1)
    for _ in range(3):
        x = torch.randn(len(HOLES), N, 4, generator=generator)
        tags = torch.randint(T, (len(HOLES), N), generator=generator)
        optimizer.zero_grad()
        model(x[first:last], tags[first:last], HOLES[first:last]).backward()
        optimizer.step()


@pytest.mark.slow
@each_layer
def test_two_processes(name: str, tmp_path: Path) -> None:
    """Both processes get the same parameters as one process with all sentences."""
    batch = 4
    torch.multiprocessing.spawn(train, (2, str(tmp_path), name, batch), nprocs=2)
    states = [torch.load(tmp_path / f"{rank}.pt") for rank in range(2)]
    alone = DistributedModel(name)
    before = {key: value.clone() for key, value in alone.state_dict().items()}
    steps(alone, 0, 2 * batch)
    for key, value in alone.state_dict().items():
        assert torch.equal(states[0][key], states[1][key])
        torch.testing.assert_close(states[0][key], value, rtol=1e-5, atol=1e-6)
        assert not torch.equal(value, before[key])
