"""On a GPU, the host waits for a training step only where losses are logged.

No GPU is needed. The training runs on meta tensors, which have shapes but no values. Any operation
that makes the host wait for them is an error.
"""

from __future__ import annotations

import contextlib
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import pytest
import torch
from torch.utils._pytree import tree_leaves

from bcrf.tagger import Tagger
from bcrf.tagger.nn import LazyAdam, PretrainedEncoder, batch, collate
from bcrf.tagger.prediction import tagger
from bcrf.tagger.training import Config, Event, Step, loop
from bcrf.tagger.training.optimization import Optimization
from bcrf.tagger.training.workers import Workers
from measurement.launches import LaunchCounter, SynchronisationError
from tests.tagger_cases import config, epochs, run, weights_equal

META = torch.device("meta")
NETWORK = {"characters": "cnn", "layers": 1, "dropout": 0.1, "unknown_rate": 0.1}


class DeviceWaits(LaunchCounter):
    """Refuse to wait for tensors that are not on the CPU, and blocking copies to a device."""

    def __init__(self) -> None:
        super().__init__(refuse_waiting=True)

    def __torch_dispatch__(self, func: Any, types: Any, args: Any = (), kwargs: Any = None) -> Any:
        kwargs = kwargs or {}
        tensors = [x for x in tree_leaves((args, kwargs)) if isinstance(x, torch.Tensor)]
        devices = {tensor.device.type for tensor in tensors}
        target = torch.device(kwargs.get("device") or "cpu").type
        if "cpu" in devices and {target, *devices} != {"cpu"} and _copies(func):
            blocking = not (kwargs.get("non_blocking") or (len(args) > 2 and args[2]))
            if blocking and any(tensor.is_cpu and tensor.numel() for tensor in tensors):
                raise SynchronisationError("a copy to the device blocks")
        if devices == {"cpu"}:
            return func(*args, **kwargs)
        return super().__torch_dispatch__(func, types, args, kwargs)


def _copies(func: Any) -> bool:
    return func.overloadpacket.__name__ in ("_to_copy", "copy_")


@pytest.fixture
def reads(monkeypatch: pytest.MonkeyPatch) -> list[int]:
    """Replace what meta tensors cannot do; return the sizes of the tensors that the host reads."""
    found: list[int] = []

    def sum_tensor(_: Workers, numbers: torch.Tensor) -> list[float]:
        assert numbers.device == META
        found.append(len(numbers))
        return [0.0] * len(numbers)

    def copy_to_device(tensor: torch.Tensor, device: torch.device) -> torch.Tensor:
        return tensor.to(device, non_blocking=True)  # without pinned memory, which CUDA provides

    monkeypatch.setattr(Workers, "sum_tensor", sum_tensor)
    for module in (batch, tagger, loop):
        monkeypatch.setattr(module, "copy_to_device", copy_to_device)
    # There is no autocast for meta tensors; these runs do not use it.
    monkeypatch.setattr(torch, "autocast", lambda *_, **__: contextlib.nullcontext())
    return found


def use_fused_adam(optimization: Optimization) -> None:
    """Make Adam use the kernel that it uses on CUDA; torch does not allow it for meta tensors."""
    adam = optimization.adam
    for group in adam.param_groups:
        group["fused"] = True
        for parameter in group["params"]:
            moments = {key: torch.zeros_like(parameter) for key in ("exp_avg", "exp_avg_sq")}
            adam.state[parameter] = {"step": torch.zeros((), device=META), **moments}


OBJECTIVES = ("crf", "bregman-10", "mean_field", "unstructured")
CASES: list[tuple[str, str, str, dict[str, Any]]] = [
    *(("pos", objective, "shared", {"optimizer": {"clip": 1.0}}) for objective in OBJECTIVES),
    ("pos", "crf", "pairs", {"optimizer": {"lazy": False}}),
    *(("segmentation", objective, "pairs", {}) for objective in OBJECTIVES),
    *(("segmentation", objective, "shared", {}) for objective in OBJECTIVES[:3]),
    *(("ner", objective, "pairs", {}) for objective in OBJECTIVES),
    *(("ner", objective, "pairs", {"data": {"partial": True}}) for objective in OBJECTIVES[:2]),
]


@pytest.mark.parametrize(("task", "objective", "transitions", "changes"), CASES)
def test_an_epoch_waits_once_per_logged_step(
    task: str,
    objective: str,
    transitions: str,
    changes: dict[str, Any],
    tmp_path: Path,
    reads: list[int],
) -> None:
    model = NETWORK | {"objective": objective, "transitions": transitions}
    training = {"batch": 3, "log_every": 2}
    settings = config(tmp_path / "run", task, model=model, training=training, **changes)
    subject = loop._Run(settings, Workers(0, 1, META))
    use_fused_adam(subject.optimization)
    list(subject._train_epoch(1))  # places the constraints on the device
    reads.clear()
    with DeviceWaits() as counter:
        steps = list(subject._train_epoch(2))
    assert len(steps) == subject.steps > 2
    assert counter.launches > 100 * len(steps)
    full, rest = divmod(subject.steps, 2)
    # The losses of the steps, and whether the gradients are finite.
    assert reads == [3] * full + [2] * rest


def test_the_counter_notices_waiting() -> None:
    x = torch.ones(3)
    with DeviceWaits():
        assert x.to(META, non_blocking=True).device == META
        assert x.nonzero().shape == (3, 1)  # nobody waits for a tensor on the CPU
    for call in (
        lambda: x.to(META),
        lambda: torch.empty(3, device=META).copy_(x),
        lambda: torch.empty(3, device=META).nonzero(),
        lambda: torch.empty(3, device=META).sum().item(),
    ):
        with DeviceWaits(), pytest.raises(SynchronisationError):
            call()


def test_copies_to_a_gpu_come_from_pinned_memory() -> None:
    class OnHost:
        """Records how it is copied."""

        is_cpu = True
        calls: list[Any] = []  # noqa: RUF012

        def pin_memory(self) -> OnHost:
            self.calls.append("pinned")
            return self

        def to(self, device: torch.device, non_blocking: bool = False) -> OnHost:
            self.calls.append((device.type, non_blocking))
            return self

    subject: Any = OnHost()
    batch.copy_to_device(subject, torch.device("cuda"))
    batch.copy_to_device(subject, torch.device("cpu"))
    assert OnHost.calls == ["pinned", ("cuda", True), ("cpu", False)]


def test_tables_have_dense_gradients_off_the_cpu(tmp_path: Path) -> None:
    """The number of rows of a sparse gradient is a value that the host would wait for."""
    settings = config(tmp_path / "run")
    assert settings.optimizer.lazy
    table = loop._Run(settings, Workers(0, 1, META)).tagger.model.encoder.table
    assert not table.sparse
    assert loop._Run(settings, Workers(0, 1, torch.device("cpu"))).tagger.model.encoder.table.sparse


# ------------------------------------------------------------------ reading late, with real values


@pytest.fixture
def late(monkeypatch: pytest.MonkeyPatch) -> Iterator[None]:
    """Let runs on the CPU read losses as runs on a GPU do."""
    init = loop._Run.__init__

    def reading_late(self: loop._Run, settings: Config, workers: Workers) -> None:
        init(self, settings, workers)
        self.reads_every_step = False

    with monkeypatch.context() as patch:
        patch.setattr(loop._Run, "__init__", reading_late)
        yield


def test_reading_late_changes_no_number(tmp_path: Path, request: pytest.FixtureRequest) -> None:
    options: Any = {"training": {"batch": 2, "log_every": 2}}
    early = config(tmp_path / "early", **options)
    expected = run(early)
    request.getfixturevalue("late")
    settings = config(tmp_path / "late", **options)
    found = run(settings)

    def numbers(events: list[Event]) -> list[Any]:
        steps = [e for e in events if isinstance(e, Step)]
        return [*steps, *((e.epoch, e.loss, e.score) for e in epochs(events))]

    assert numbers(found) == numbers(expected)
    assert all(epoch.seconds > 0 for epoch in epochs(found))
    pairs = [Tagger.load(Path(s.output, "last"), device="cpu") for s in (early, settings)]
    assert weights_equal(*pairs)


@pytest.mark.usefixtures("late")
def test_steps_come_in_groups(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    done: list[int] = []
    step = Optimization.step
    monkeypatch.setattr(
        Optimization, "step", lambda self, number: (done.append(number), step(self, number))[1]
    )
    settings = config(tmp_path / "run", training={"batch": 2, "log_every": 4, "epochs": 1})
    events = loop.train(settings)
    seen = [(event.step, len(done)) for event in events if isinstance(event, Step)]
    total = len(seen)
    assert total > 4
    assert total % 4
    assert seen == [(i, min(-(-i // 4) * 4, total)) for i in range(1, total + 1)]


@pytest.mark.usefixtures("late")
@pytest.mark.parametrize(
    ("what", "log_every", "expected"),
    [
        ("loss", 1, r"step 3: training diverges \(the loss is inf\)"),
        ("loss", 2, r"step 3: training diverges \(the loss is inf\)"),
        ("loss", 100, r"step 3: training diverges \(the loss is inf\)"),
        ("gradient", 1, r"step 3: training diverges \(a gradient is not finite\)"),
        ("gradient", 2, r"steps 3 to 4: training diverges \(a gradient is not finite\)"),
        ("gradient", 100, r"steps 1 to 6: training diverges \(a gradient is not finite\)"),
        ("weight", 100, r"step 6: training diverges \(a weight is not finite\)"),
    ],
)
def test_what_is_not_finite_is_never_saved(
    what: str, log_every: int, expected: str, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """It occurs in epoch 2; the run stops at the next reading, and epoch 1 is intact."""
    compute = loop._Run._compute_gradients
    calls = 0

    def spoilt(self: loop._Run, share: list[int], count: int) -> torch.Tensor:
        nonlocal calls
        calls += 1
        loss = compute(self, share, count)
        parameter = next(self.tagger.model.scorer.parameters())
        if calls == self.steps + 3 and what == "loss":
            return loss * torch.inf
        if calls == self.steps + 3 and what == "gradient":
            assert parameter.grad is not None
            parameter.grad.fill_(torch.nan)
        if calls == 2 * self.steps and what == "weight":
            parameter.data.fill_(torch.nan)
        return loss

    monkeypatch.setattr(loop._Run, "_compute_gradients", spoilt)
    if what == "gradient":
        # The weights stay as they are. Otherwise the next step, on the CPU, would find bad scores.
        monkeypatch.setattr(LazyAdam, "step", lambda self: None)
    settings = config(tmp_path / "run", training={"batch": 2, "log_every": log_every})
    with pytest.raises(FloatingPointError, match=f"epoch 2, {expected}"):
        run(settings)
    for name in ("last", "best"):
        saved = Tagger.load(Path(settings.output, name), device="cpu")
        assert saved.info["epoch"] == 1
        assert all(weight.isfinite().all() for weight in saved.model.state_dict().values())


# ------------------------------------------------------------------------------ what still waits


def test_a_pretrained_encoder_waits_once_per_call() -> None:
    """transformers asks whether the mask has padding; nothing else waits."""
    pytest.importorskip("transformers")
    from tests.tagger.test_nn_pretrained import encoder

    subject: PretrainedEncoder = encoder().train()
    subject.module.get_input_embeddings().sparse = False  # as off the CPU
    pieces = [subject.pieces(words) for words in (["the", "cat"], ["a"])]
    inputs = collate(windows=subject.windows(pieces))
    with LaunchCounter() as counter:
        subject(inputs).sum().backward()
    assert counter.synchronisations == 1
