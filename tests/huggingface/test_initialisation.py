"""Layers inside a `PreTrainedModel`: initialised if the checkpoint lacks them, else loaded."""

from __future__ import annotations

import copy
import logging
import warnings

import pytest
import torch
from torch import nn
from transformers import BertConfig, BertModel, BertPreTrainedModel

import bcrf

from .cases import ENCODERS

LAYERS = [bcrf.CRF, bcrf.ExactCRF, bcrf.BregmanCRF, bcrf.MeanFieldCRF, bcrf.TokenSoftmax]
TRANSITIONS = ("start_transitions", "end_transitions", "transitions")


@pytest.fixture(autouse=True)
def quiet(caplog):
    caplog.set_level(logging.ERROR, "transformers")


def model_class(layer: type[bcrf.ChainLayer]) -> type[BertPreTrainedModel]:
    class BertWithLayer(BertPreTrainedModel):
        """A model of somebody else, who has not read our documentation."""

        def __init__(self, config: BertConfig) -> None:
            super().__init__(config)
            self.bert = BertModel(config, add_pooling_layer=False)
            self.classifier = nn.Linear(config.hidden_size, 3)
            self.head = layer(3)
            self.post_init()

    return BertWithLayer


@pytest.fixture
def encoder_folder(tmp_path):
    BertModel(ENCODERS["bert"]).save_pretrained(tmp_path / "encoder")
    return tmp_path / "encoder"


@pytest.fixture
def dirty_memory(monkeypatch):
    """Fill the memory that torch hands out without values, as a long-running program does."""
    empty_like = torch.empty_like

    def filled(*arguments, **keywords):
        found = empty_like(*arguments, **keywords)
        if found.is_cpu and found.is_floating_point():
            found.data.fill_(1e4)  # the version of the tensor stays 0
        return found

    monkeypatch.setattr(torch, "empty_like", filled)


@pytest.mark.parametrize("layer", LAYERS)
def test_a_checkpoint_without_the_layer_initialises_it(layer, encoder_folder, dirty_memory):
    model = model_class(layer).from_pretrained(encoder_folder)
    scores = list(model.head.parameters())
    assert len(scores) == (0 if layer is bcrf.TokenSoftmax else 3)
    for parameter in scores:
        assert 0.001 < float(parameter.detach().abs().max()) <= 0.1
        assert parameter.requires_grad


@pytest.mark.parametrize("dtype", [torch.float16, torch.bfloat16, torch.float64])
def test_every_dtype_is_initialised(dtype, encoder_folder, dirty_memory):
    head = model_class(bcrf.ExactCRF).from_pretrained(encoder_folder, dtype=dtype).head
    assert head.transitions.dtype == dtype
    assert 0.001 < float(head.transitions.detach().abs().max()) <= 0.1001


@pytest.mark.parametrize("layer", LAYERS)
def test_a_checkpoint_with_the_layer_is_loaded(layer, tmp_path, dirty_memory):
    kind = model_class(layer)
    model = kind(ENCODERS["bert"])
    for parameter in model.head.parameters():
        nn.init.normal_(parameter)
    model.save_pretrained(tmp_path)
    found = kind.from_pretrained(tmp_path)
    for name, value in model.head.state_dict().items():
        assert torch.equal(found.head.state_dict()[name], value)


def test_only_missing_parameters_are_drawn(tmp_path, dirty_memory):
    """The checkpoint has the transitions, but the layer has start and end scores, too."""

    class SharedOnly(bcrf.ExactCRF):
        def __init__(self, num_tags: int) -> None:
            super().__init__(num_tags, start_end=False)

    model = model_class(SharedOnly)(ENCODERS["bert"])
    nn.init.constant_(model.head.transitions, 5.0)
    model.save_pretrained(tmp_path)
    head = model_class(bcrf.ExactCRF).from_pretrained(tmp_path).head
    assert bool((head.transitions == 5.0).all())
    for parameter in (head.start_transitions, head.end_transitions):
        assert 0.001 < float(parameter.detach().abs().max()) <= 0.1


def test_post_init_keeps_what_the_constructor_has_set():
    class BertWithCounts(BertPreTrainedModel):
        def __init__(self, config: BertConfig) -> None:
            super().__init__(config)
            self.head = bcrf.ExactCRF(3)
            self.head.init_from_counts([[0, 1, 2], [1, 1]])
            self.counts = copy.deepcopy(self.head.state_dict())
            self.post_init()

    model = BertWithCounts(ENCODERS["bert"])
    for name, value in model.counts.items():
        assert torch.equal(model.head.state_dict()[name], value)


def test_own_init_weights_still_work(encoder_folder, dirty_memory):
    class BertWithHook(model_class(bcrf.ExactCRF)):  # type: ignore[misc]
        def _init_weights(self, module: nn.Module) -> None:
            super()._init_weights(module)
            if isinstance(module, bcrf.ChainLayer):
                nn.init.constant_(module.transitions, 0.07)

    head = BertWithHook.from_pretrained(encoder_folder).head
    assert bool((head.transitions == 0.07).all())
    assert 0.001 < float(head.start_transitions.detach().abs().max()) <= 0.1


# ------------------------------------------------------------------------------ absurd parameters

EMISSIONS = torch.zeros(1, 2, 3)


@pytest.mark.parametrize("name", TRANSITIONS)
@pytest.mark.parametrize("value", [1e27, -1e7])
def test_absurd_parameters_warn_once(name, value):
    layer = bcrf.ExactCRF(3)
    with torch.no_grad():
        getattr(layer, name).view(-1)[1] = value
    with pytest.warns(RuntimeWarning, match=rf"ExactCRF\.{name} holds the value .*reset_param"):
        layer.decode(EMISSIONS)
    with warnings.catch_warnings():
        warnings.simplefilter("error")
        layer.decode(EMISSIONS)


@pytest.mark.parametrize("value", [1e5, -1e6, -float("inf")])
def test_large_and_removed_scores_do_not_warn(value):
    layer = bcrf.BregmanCRF(3)
    with torch.no_grad():
        layer.transitions[0, 1] = value
    with warnings.catch_warnings():
        warnings.simplefilter("error")
        layer.decode(EMISSIONS)
        layer.marginals(EMISSIONS)


def test_layers_without_parameters_do_not_warn():
    with warnings.catch_warnings():
        warnings.simplefilter("error")
        bcrf.TokenSoftmax(3).decode(EMISSIONS)


def test_graphs_and_other_devices_do_not_look():
    layer = bcrf.BregmanCRF(3)
    with torch.no_grad():
        layer.transitions.fill_(1e9)
    tags = torch.zeros(2, 4, dtype=torch.int64)
    with warnings.catch_warnings():
        warnings.simplefilter("error", RuntimeWarning)
        torch.compile(layer.loss, backend="eager", fullgraph=True)(torch.zeros(2, 4, 3), tags)
        copy.deepcopy(layer).to("meta").loss(torch.zeros(2, 4, 3, device="meta"), tags.to("meta"))
    assert not layer._parameters_checked
