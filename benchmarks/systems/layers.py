"""Run our layers `bcrf.CRF` and `bcrf.BregmanCRF`, with and without mask, -100, constraints."""

from __future__ import annotations

from functools import partial
from typing import Literal

import torch
from torch import Tensor

import bcrf

from ..cases import Problem
from .base import DecodeCall, LossCall, System

__all__ = ["LAYERS", "SYSTEMS", "layer_loss"]

LAYERS = {"CRF": "crf", "BregmanCRF": "bregman"}
"""Name of each layer class -> family of its loss."""

Padding = Literal["none", "mask", "ignored"]
"""How sentences shorter than n are marked, if there are any: by a mask, or by tags of -100."""


def _layer(name: str, problem: Problem) -> tuple[bcrf.ChainLayer, Tensor]:
    """Return a layer with our transitions and start and end scores 0, and the emissions."""
    layer: bcrf.ChainLayer = getattr(bcrf, name)(
        problem.sizes[-1], batch_first=True, constraints=problem.structure
    ).to(problem.device)
    emissions, transitions = problem.leaves()
    with torch.no_grad():
        for parameter in layer.parameters():
            parameter.zero_()
        layer.transitions.copy_(transitions)
    return layer, emissions


def layer_loss(problem: Problem, name: str, padding: Padding) -> LossCall:
    """Return the function that computes the loss of a layer and its gradients."""
    layer, emissions = _layer(name, problem)
    mask = problem.mask if padding == "mask" else None
    tags = problem.tags if padding == "none" else problem.masked_tags
    if padding == "ignored":
        tags = tags.masked_fill(~problem.mask, -100)

    def call() -> tuple[Tensor, tuple[Tensor, ...]]:
        value = layer.loss(emissions, tags, mask)
        return value, torch.autograd.grad(value, (emissions, layer.transitions))

    return call


def _decode(problem: Problem, name: str, padding: Padding) -> DecodeCall:
    layer, emissions = _layer(name, problem)
    mask = problem.mask if padding == "mask" else None

    @torch.no_grad()
    def call() -> list[list[int]]:
        return layer.decode(emissions, mask)

    return call


def _system(name: str, padding: Padding) -> System:
    about: dict[Padding, str] = {"none": "", "mask": ", mask", "ignored": ", -100"}
    settings: dict[Padding, str] = {
        "none": "no mask",
        "mask": "with a mask",
        "ignored": "no mask, tags -100 after the end of a sentence",
    }
    return System(
        f"bcrf.{name}{about[padding]}",
        "ours",
        f"layer bcrf.{name}(T, batch_first=True), {settings[padding]}; start and end scores 0",
        loss=partial(layer_loss, name=name, padding=padding),
        decode=None if padding == "ignored" else partial(_decode, name=name, padding=padding),
        pairs=("shared",),
        family=LAYERS[name],
        masked=padding != "none",
    )


SYSTEMS: tuple[System, ...] = (
    *(_system("CRF", padding) for padding in ("none", "mask", "ignored")),
    *(_system("BregmanCRF", padding) for padding in ("none", "mask", "ignored")),
)
