"""Count the kernels that a batch launches on a GPU: those of the network, and of each method.

Nothing runs on a GPU. The network runs on the device of the tagger. The methods run on meta
tensors, which take the path of devices other than the CPU.
"""

from __future__ import annotations

from collections.abc import Sequence

import torch

from bcrf.chain import LinearChain
from bcrf.losses import loss, partial_loss
from bcrf.tagger import Tagger
from bcrf.tagger.training.training_data import TrainingItem, stack_targets
from measurement.launches import LaunchCounter

from .methods import decoder, loss_solver

__all__ = ["NETWORK", "decoding_launches", "training_launches"]

NETWORK = "network"
"""The name under which the launches of the network are counted."""

_META = torch.device("meta")

# The backend of devices other than the CPU that have no Triton kernels.
_BACKEND = "few_launches"


def training_launches(
    tagger: Tagger, items: Sequence[TrainingItem], objectives: Sequence[str]
) -> dict[str, int]:
    """Return the launches of the network and of each loss, forward and backward, without optimiser.

    Args:
        items: one batch of training sentences.
        objectives: names of training objectives.
    """
    tagger.model.train()
    with LaunchCounter() as counter:
        chain = _chain(tagger, items)
        assert chain.raw_transitions is not None
        scores = [s for s in (chain.unary, chain.raw_transitions) if s.requires_grad]
        torch.autograd.backward(scores, [s.detach() for s in scores])
    tagger.model.zero_grad(set_to_none=True)
    found = {NETWORK: counter.launches}
    target = stack_targets(list(items), chain.max_length).to(_META)
    function = partial_loss if target.dtype == torch.bool else loss
    for objective in objectives:
        solver, meta = loss_solver(objective, _BACKEND), _on_meta(chain, requires_grad=True)
        for _ in range(2):  # the first call stores copies of the rules on the device
            with LaunchCounter() as counter:
                function(solver, meta, target).mean().backward()  # type: ignore[no-untyped-call]
        found[objective] = counter.launches
    return found


@torch.no_grad()
def decoding_launches(
    tagger: Tagger, items: Sequence[TrainingItem], decoders: Sequence[str]
) -> dict[str, int]:
    """Return the launches of the network and of each decoder.

    Args:
        items: one batch of sentences.
        decoders: names of decoders.
    """
    tagger.model.eval()
    with LaunchCounter() as counter:
        chain = _chain(tagger, items)
    found = {NETWORK: counter.launches}
    meta = _on_meta(chain)
    for name in decoders:
        decode = decoder(name, _BACKEND)
        for _ in range(2):
            with LaunchCounter() as counter:
                decode(meta)
        found[name] = counter.launches
    return found


def _chain(tagger: Tagger, items: Sequence[TrainingItem]) -> LinearChain:
    return tagger.chain([item.inputs for item in items], [item.permitted for item in items])


def _on_meta(chain: LinearChain, requires_grad: bool = False) -> LinearChain:
    """Return the chain on meta tensors; its scores are leaves of the graph of autograd."""
    meta = chain.detach().to(_META)
    for scores in (meta.unary, meta.raw_transitions):
        if requires_grad and scores is not None:
            scores.requires_grad_()
    return meta
