"""The optimizer of a run, its learning rates and the clipping of gradients."""

from __future__ import annotations

import math
from collections.abc import Mapping
from typing import Any

import torch
from torch import Tensor, nn

from ..nn import LazyAdam, TaggerModel, clip_gradients, largest_gradient
from .config import OptimizerConfig

__all__ = ["Optimization", "rate_factor"]


def rate_factor(step: int, total: int, warmup: float, schedule: str) -> float:
    """Return the learning rate of a step, as a share of the highest rate.

    It rises linearly in the first `warmup * total` steps. Then it falls linearly towards zero
    (schedule "linear") or stays constant (schedule "constant").

    Args:
        step: number of the step, from 0.
        total: number of steps of the run.
        warmup: share of the steps in which the rate rises.
        schedule: "linear" or "constant".

    Example:
        >>> [rate_factor(step, 4, 0.5, "linear") for step in range(4)]
        [0.5, 1.0, 1.0, 0.5]
    """
    rising = math.ceil(warmup * total)
    if step < rising:
        return (step + 1) / rising
    return (total - step) / (total - rising) if schedule == "linear" else 1.0


class Optimization:
    """Adam with a schedule of learning rates and with clipping.

    Args:
        model: the network, on its device.
        config: learning rates, schedule, clipping.
        total: number of steps of the whole run.
    """

    def __init__(self, model: TaggerModel, config: OptimizerConfig, total: int) -> None:
        self.model, self.config, self.total = model, config, total
        high = config.learning_rate
        self._highest = [high, config.scorer_learning_rate or high]
        groups = [
            {"params": list(part.parameters()), "lr": rate}
            for part, rate in zip((model.encoder, model.scorer), self._highest, strict=True)
        ]
        device = next(model.parameters()).device
        # Off the CPU every step updates all rows of the tables, which takes one fused kernel. To
        # update only some rows, the host would have to wait for the number of rows.
        if not config.lazy or device.type != "cpu":
            for module in model.modules():
                if isinstance(module, nn.Embedding):
                    module.sparse = False
        self.adam = LazyAdam(model, high, (0.9, config.beta2), groups=groups)
        self._finite = torch.ones((), dtype=torch.bool, device=device)

    def zero_gradients(self) -> None:
        """Remove all gradients."""
        self.adam.zero_grad(set_to_none=True)

    def step(self, number: int) -> float:
        """Update the weights in step `number` (from 0); return the learning rate."""
        config = self.config
        self._finite &= largest_gradient(self.model.parameters()).isfinite()
        if config.clip is not None:
            clip_gradients(self.model.parameters(), config.clip)
        factor = rate_factor(number, self.total, config.warmup, config.schedule)
        for group, highest in zip(self.adam.param_groups, self._highest, strict=True):
            group["lr"] = factor * highest
        self.adam.step()
        return factor * self._highest[0]

    def flush(self) -> None:
        """Bring all weights up to date, see `LazyAdam.flush`."""
        self.adam.flush()

    def gradients_are_finite(self) -> Tensor:
        """Return whether the gradients of all steps were finite: a bool scalar on the device."""
        return self._finite

    def weights_are_finite(self) -> bool:
        """Return whether all weights are finite; call `flush` first.

        This waits for the device, once.
        """
        finite = [parameter.isfinite().all() for parameter in self.model.parameters()]
        return bool(torch.stack(finite).all())

    # The keys of the state are names of parameters. It has no settings; they are in the config.

    def state(self) -> dict[str, Tensor]:
        """Return the moments and step counts of Adam: the tensors themselves, not copies."""
        names = self._names()
        return {
            f"{names[index]}.{key}": value
            for index, values in self.adam.state_dict()["state"].items()
            for key, value in values.items()
        }

    def load_state(self, tensors: Mapping[str, Tensor], steps: int) -> None:
        """Load the tensors that `state` returned after `steps` steps.

        Raises:
            ValueError: the tensors do not fit this network; the message begins with the name of
                the first wrong one.
        """
        self._check_state(tensors, steps)
        index = {name: number for number, name in enumerate(self._names())}
        state: dict[int, dict[str, Tensor]] = {}
        for name, tensor in tensors.items():
            parameter, _, key = name.rpartition(".")
            state.setdefault(index[parameter], {})[key] = tensor
        groups: Any = self.adam.state_dict()["param_groups"]
        self.adam.load_state_dict({"state": state, "param_groups": groups})

    def _check_state(self, tensors: Mapping[str, Tensor], steps: int) -> None:
        expected: dict[str, tuple[torch.Size, torch.dtype]] = {}
        for name, parameter in self.model.named_parameters():
            of_parameter = {f"{name}.{key}": form for key, form in _state_of(parameter).items()}
            if any(key in tensors for key in of_parameter):  # otherwise it never had a gradient
                expected |= of_parameter
        for name in tensors:
            if name not in expected:
                raise ValueError(f"{name}: does not belong to the optimizer of this network")
        for name, (shape, dtype) in expected.items():
            if name not in tensors:
                raise ValueError(f"{name}: is missing")
            tensor = tensors[name]
            if tensor.shape != shape or tensor.dtype != dtype:
                raise ValueError(
                    f"{name}: expected {dtype} of the shape {list(shape)}, found {tensor.dtype} of "
                    f"the shape {list(tensor.shape)}"
                )
            if name.endswith(".step") and not _is_count(tensor.item(), steps):
                raise ValueError(
                    f"{name}: expected a number of steps up to {steps}, found {tensor.item()}"
                )

    def _names(self) -> list[str]:
        """Return the names of the parameters, in the order of the optimizer."""
        names = {id(parameter): name for name, parameter in self.model.named_parameters()}
        return [names[id(p)] for group in self.adam.param_groups for p in group["params"]]


def _is_count(value: float, most: int) -> bool:
    return 0 <= value <= most and value == int(value)


def _state_of(parameter: Tensor) -> dict[str, tuple[torch.Size, torch.dtype]]:
    """Return shape and type of each tensor that Adam keeps for a parameter."""
    moments = (parameter.shape, parameter.dtype)
    step = (torch.Size(), torch.float32)
    return {"step": step, "exp_avg": moments, "exp_avg_sq": moments}
