"""The optimiser of a run, and its learning rates."""

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
    """The learning rate at a step (from 0) of `total`, as a share of the highest.

    It rises linearly over the first `warmup * total` steps, then falls linearly towards zero, or
    stays.
    """
    rising = math.ceil(warmup * total)
    if step < rising:
        return (step + 1) / rising
    return (total - step) / (total - rising) if schedule == "linear" else 1.0


class Optimization:
    """Adam with a schedule, which is a function of the step, and clipping.

    Args:
        model: on its device.
        config: the rates.
        total: steps of the whole run.
    """

    def __init__(self, model: TaggerModel, config: OptimizerConfig, total: int) -> None:
        self.model, self.config, self.total = model, config, total
        high = config.learning_rate
        self._highest = [high, config.scorer_learning_rate or high]
        groups = [
            {"params": list(part.parameters()), "lr": rate}
            for part, rate in zip((model.encoder, model.scorer), self._highest, strict=True)
        ]
        if not config.lazy:
            for module in model.modules():
                if isinstance(module, nn.Embedding):
                    module.sparse = False  # then all rows move in every step
        self.adam = LazyAdam(model, high, groups=groups)
        # Of all gradients so far. It stays on the device, so that no step has to wait for it.
        device = next(model.parameters()).device
        self._finite = torch.ones((), dtype=torch.bool, device=device)

    def zero_gradients(self) -> None:
        self.adam.zero_grad(set_to_none=True)

    def step(self, number: int) -> float:
        """Move the weights by their gradients, in step `number` (from 0); the learning rate."""
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
        self.adam.flush()

    def gradients_are_finite(self) -> bool:
        """Whether the gradients of all steps were finite. Waits for the device."""
        return bool(self._finite)

    def weights_are_finite(self) -> bool:
        """Whether all weights are finite, once they are up to date (`flush`)."""
        return all(bool(parameter.isfinite().all()) for parameter in self.model.parameters())

    # The state by the names of parameters. Settings are not part of it: they follow from the config

    def state(self) -> dict[str, Tensor]:
        """Adam's moments and step counts: the tensors themselves, not copies."""
        names = self._names()
        return {
            f"{names[index]}.{key}": value
            for index, values in self.adam.state_dict()["state"].items()
            for key, value in values.items()
        }

    def load_state(self, tensors: Mapping[str, Tensor], steps: int) -> None:
        """Go on from what `state` gave after this number of steps.

        Raises:
            ValueError: these are not the tensors of such a state; the message begins with a name.
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
            if any(key in tensors for key in of_parameter):  # else it never had a gradient
                expected |= of_parameter
        for name in tensors:
            if name not in expected:
                raise ValueError(f"{name}: is no part of the optimiser of this network")
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
        """Of the parameters, in the optimiser's order."""
        names = {id(parameter): name for name, parameter in self.model.named_parameters()}
        return [names[id(p)] for group in self.adam.param_groups for p in group["params"]]


def _is_count(value: float, most: int) -> bool:
    return 0 <= value <= most and value == int(value)


def _state_of(parameter: Tensor) -> dict[str, tuple[torch.Size, torch.dtype]]:
    """Shape and type of each tensor that Adam keeps for a parameter."""
    moments = (parameter.shape, parameter.dtype)
    step = (torch.Size(), torch.float32)
    return {"step": step, "exp_avg": moments, "exp_avg_sq": moments}
