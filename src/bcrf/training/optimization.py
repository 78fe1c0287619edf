"""The optimiser of a run, and its learning rates."""

from __future__ import annotations

import math
from typing import Any

from torch import Tensor, nn

from ..nn import LazyAdam, TaggerModel, clip_gradients
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

    def zero_gradients(self) -> None:
        self.adam.zero_grad(set_to_none=True)

    def step(self, number: int) -> float:
        """Move the weights by their gradients, in step `number` (from 0); the learning rate."""
        config = self.config
        if config.clip is not None:
            clip_gradients(self.model.parameters(), config.clip)
        factor = rate_factor(number, self.total, config.warmup, config.schedule)
        for group, highest in zip(self.adam.param_groups, self._highest, strict=True):
            group["lr"] = factor * highest
        self.adam.step()
        return factor * self._highest[0]

    def flush(self) -> None:
        self.adam.flush()

    # The state by the names of parameters. Settings are not part of it: they follow from the config

    def state(self) -> dict[str, Tensor]:
        """Adam's moments and step counts: the tensors themselves, not copies."""
        names = self._names()
        return {
            f"{names[index]}.{key}": value
            for index, values in self.adam.state_dict()["state"].items()
            for key, value in values.items()
        }

    def load_state(self, tensors: dict[str, Tensor]) -> None:
        """Go on from what `state` gave."""
        index = {name: number for number, name in enumerate(self._names())}
        state: dict[int, dict[str, Tensor]] = {}
        for name, tensor in tensors.items():
            parameter, _, key = name.rpartition(".")
            state.setdefault(index[parameter], {})[key] = tensor
        groups: Any = self.adam.state_dict()["param_groups"]
        self.adam.load_state_dict({"state": state, "param_groups": groups})

    def _names(self) -> list[str]:
        """Of the parameters, in the optimiser's order."""
        names = {id(parameter): name for name, parameter in self.model.named_parameters()}
        return [names[id(p)] for group in self.adam.param_groups for p in group["params"]]
