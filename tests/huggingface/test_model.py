"""`CRFForTokenClassification` and its configuration."""

from __future__ import annotations

import json
import os
import shutil
import subprocess
import sys
from pathlib import Path

import pytest
import torch
from transformers import AutoConfig, AutoModelForTokenClassification, T5Config

import bcrf
from bcrf.huggingface import CRFForTokenClassification, CRFTokenClassificationConfig

from .cases import ENCODERS, LABELS, LAYERS, batch, make_encoder, make_model

ROOT = Path(__file__).resolve().parents[2]


@pytest.fixture(scope="module")
def bert_folder(tmp_path_factory) -> str:
    folder = tmp_path_factory.mktemp("encoder")
    make_encoder().save_pretrained(folder)
    return str(folder)


def config(**settings: object) -> CRFTokenClassificationConfig:
    return CRFTokenClassificationConfig(ENCODERS["bert"], **({"labels": LABELS} | settings))


# ------------------------------------------------------------------------------------ the model


@pytest.mark.parametrize("encoder", ENCODERS)
def test_from_encoder_keeps_the_encoder_and_draws_a_head(encoder, tmp_path):
    source = make_encoder(encoder)
    source.save_pretrained(tmp_path)
    model = CRFForTokenClassification.from_encoder(str(tmp_path), LABELS, "IOB2")
    assert not model.training
    own = model.encoder.state_dict()
    for name, value in source.state_dict().items():
        if not name.startswith("pooler"):
            assert torch.equal(own.pop(name), value)
    assert not own
    for parameter in model.crf.parameters():
        assert 0.001 < float(parameter.detach().abs().max()) <= 0.1
    assert str(tmp_path) not in json.dumps(model.config.to_dict())  # no path of this machine


@pytest.mark.parametrize("layer", LAYERS)
@pytest.mark.parametrize("encoder", ENCODERS)
def test_a_saved_model_is_the_same(encoder, layer, tmp_path):
    model = make_model(encoder, layer=layer)
    model.save_pretrained(tmp_path)
    assert not list(tmp_path.glob("*.bin"))
    for kind in (CRFForTokenClassification, AutoModelForTokenClassification):
        found = kind.from_pretrained(tmp_path)
        assert type(found) is CRFForTokenClassification
        assert found.config.labels == LABELS
        assert repr(found.crf) == repr(model.crf)
        for name, value in model.state_dict().items():
            assert torch.equal(found.state_dict()[name], value)
        one, two = found(**batch()), model(**batch())
        assert torch.equal(one.loss, two.loss)
        assert torch.equal(one.tags, two.tags)


@pytest.mark.parametrize("layer", LAYERS)
def test_the_output_is_that_of_the_layer(layer):
    model, inputs = make_model(layer=layer, output_marginals=True), batch()
    out = model(**inputs)
    logits, labels = out.logits, inputs["labels"]
    torch.testing.assert_close(
        logits, model.emissions(inputs["input_ids"], inputs["attention_mask"])
    )
    rules = bcrf.Structure.from_labels(LABELS, "IOB2")
    kind = {
        "crf": bcrf.ExactCRF,
        "bregman": bcrf.BregmanCRF,
        "mean_field": bcrf.MeanFieldCRF,
        "softmax": bcrf.TokenSoftmax,
    }[layer]
    head = kind(5, constraints=rules)
    head.load_state_dict(model.crf.state_dict())
    kept = labels != -100
    torch.testing.assert_close(out.loss, head.loss(logits, labels, reduction="mean"))
    assert torch.equal(out.tags, head.decode_tensor(logits, kept))
    torch.testing.assert_close(out.marginals, head.marginals(logits, kept))


def test_which_positions_are_decoded():
    model, inputs = make_model(), batch()
    labels = inputs.pop("labels")
    words = torch.tensor([[0, 1, 0, 1, 1, 0, 0], [0, 1, 1, 0, 0, 0, 0]])
    assert torch.equal(model(**inputs, word_mask=words).tags != -100, words == 1)
    assert torch.equal(model(**inputs, labels=labels).tags != -100, labels != -100)
    assert torch.equal(model(**inputs).tags != -100, inputs["attention_mask"] == 1)
    both = model(**inputs, labels=labels, word_mask=words)
    assert torch.equal(both.tags != -100, words == 1)
    common = torch.where(words == 1, labels, -100)
    torch.testing.assert_close(both.loss, model(**inputs, labels=common).loss)


def test_training_needs_no_tags_and_tuples_are_possible():
    model, inputs = make_model().train(), batch()
    assert model(**inputs).tags is None
    loss, logits = model(**inputs, return_dict=False)
    assert loss.dim() == 0
    assert logits.shape == (2, 7, 5)
    out = model.eval()(**inputs, output_hidden_states=True)
    assert len(out.hidden_states) == 3
    assert out.marginals is None


def test_segments_are_ignored_by_encoders_that_have_none():
    segments = torch.zeros(2, 7, dtype=torch.int64)
    for encoder in ("bert", "modernbert"):
        model = make_model(encoder)
        found = model(**batch(), token_type_ids=segments).logits
        torch.testing.assert_close(found, model(**batch()).logits)
    other = make_model("bert")(**batch(), token_type_ids=segments + 1).logits
    assert not torch.allclose(other, make_model("bert")(**batch()).logits)


@pytest.mark.parametrize("encoder", ENCODERS)
def test_every_parameter_gets_a_gradient(encoder):
    """Otherwise DistributedDataParallel would stop: the pooler of BERT, for instance, is unused."""
    model = make_model(encoder).train()
    model(**batch()).loss.backward()
    without = {name for name, p in model.named_parameters() if p.grad is None}
    assert without == set()


@pytest.mark.parametrize("encoder", ENCODERS)
def test_gradient_checkpointing_changes_nothing(encoder):
    gradients = []
    for checkpointing in (False, True):
        model = make_model(encoder, dropout=0.0)
        model.train()
        for module in model.modules():
            if isinstance(module, torch.nn.Dropout):
                module.p = 0.0
        if checkpointing:
            model.gradient_checkpointing_enable()
        torch.manual_seed(0)
        model(**batch()).loss.backward()
        gradients.append({name: p.grad for name, p in model.named_parameters()})
    assert model.is_gradient_checkpointing
    for name, gradient in gradients[0].items():
        torch.testing.assert_close(gradients[1][name], gradient, rtol=1e-4, atol=1e-5)


@pytest.mark.parametrize("dtype", [torch.float16, torch.bfloat16])
@pytest.mark.parametrize("layer", LAYERS)
def test_half_precision(layer, dtype, tmp_path):
    model = make_model(layer=layer)
    exact = model(**batch()).loss
    with torch.autocast("cpu", dtype):
        out = model.train()(**batch())
    assert out.loss.dtype == torch.float32
    torch.testing.assert_close(out.loss, exact, rtol=0.3, atol=0.3)  # there is dropout, too
    out.loss.backward()
    model.save_pretrained(tmp_path)
    half = CRFForTokenClassification.from_pretrained(tmp_path, dtype=dtype)
    assert {p.dtype for p in half.parameters()} == {dtype}
    found = half(**batch(), output_marginals=True)
    torch.testing.assert_close(found.loss, exact, rtol=0.05, atol=0.05)
    assert found.loss.dtype == torch.float32


FRESH = """
import sys, torch
from bcrf.huggingface import CRFForTokenClassification
from transformers import AutoModelForTokenClassification
inputs = torch.load(sys.argv[2])
for kind in (CRFForTokenClassification, AutoModelForTokenClassification):
    out = kind.from_pretrained(sys.argv[1])(**inputs)
    print(repr(out.loss.item()), out.tags.tolist())
"""


@pytest.mark.slow
def test_a_fresh_offline_process_loads_the_model(tmp_path):
    model = make_model("roberta", layer="bregman", iterations=7, train_temperature=0.5)
    model.save_pretrained(tmp_path / "model")
    torch.save(batch(), tmp_path / "batch.pt")
    out = model(**batch())
    done = subprocess.run(
        [sys.executable, "-c", FRESH, str(tmp_path / "model"), str(tmp_path / "batch.pt")],
        capture_output=True,
        text=True,
        env=os.environ | {"HF_HUB_OFFLINE": "1", "OMP_NUM_THREADS": "1"},
    )
    assert done.returncode == 0, done.stderr
    lines = done.stdout.splitlines()
    assert lines[0] == lines[1]
    loss, _, tags = lines[0].partition(" ")
    assert float(loss) == pytest.approx(out.loss.item(), rel=1e-5)
    assert tags == str(out.tags.tolist())


# ------------------------------------------------------------------------------------ checkpoints


def test_a_plain_encoder_checkpoint_gives_an_initialised_head(bert_folder):
    model = CRFForTokenClassification.from_pretrained(bert_folder, config=config(scheme="IOB2"))
    source = make_encoder().state_dict()
    for name, value in model.encoder.state_dict().items():
        assert torch.equal(source[name], value)
    for parameter in (*model.crf.parameters(), model.classifier.weight):
        assert 0.001 < float(parameter.detach().abs().max()) <= 0.1


def test_a_plain_encoder_checkpoint_without_labels_is_an_error(bert_folder):
    with pytest.raises(ValueError, match="load it with CRFForTokenClassification"):
        CRFForTokenClassification.from_pretrained(bert_folder)


def test_only_safetensors_are_read(tmp_path):
    model = make_model()
    model.save_pretrained(tmp_path)
    (tmp_path / "model.safetensors").unlink()
    torch.save(model.state_dict(), tmp_path / "pytorch_model.bin")
    with pytest.raises(OSError, match="safetensors"):
        CRFForTokenClassification.from_pretrained(tmp_path)
    with pytest.raises(ValueError, match="use_safetensors: bcrf reads weights from safetensors"):
        CRFForTokenClassification.from_pretrained(tmp_path, use_safetensors=False)
    source = tmp_path / "source"
    source.mkdir()
    ENCODERS["bert"].save_pretrained(source)
    torch.save(make_encoder().state_dict(), source / "pytorch_model.bin")
    with pytest.raises(OSError, match="cannot load"):
        CRFForTokenClassification.from_encoder(str(source), LABELS)


def test_code_in_a_folder_is_never_run(bert_folder, tmp_path):
    source = tmp_path / "source"
    shutil.copytree(bert_folder, source)
    (source / "evil.py").write_text("raise SystemExit('run')\n")
    with pytest.raises(ValueError, match="Python code, which bcrf never runs"):
        CRFForTokenClassification.from_encoder(str(source), LABELS)
    folder = tmp_path / "model"
    make_model().save_pretrained(folder)
    (folder / "evil.py").write_text("raise SystemExit('run')\n")
    settings = json.loads((folder / "config.json").read_text())
    settings["auto_map"] = settings["encoder"]["auto_map"] = {
        "AutoConfig": "evil.Config",
        "AutoModel": "evil.Model",
        "AutoModelForTokenClassification": "evil.Model",
    }
    (folder / "config.json").write_text(json.dumps(settings))
    model = CRFForTokenClassification.from_pretrained(folder, trust_remote_code=True)
    assert torch.equal(model(**batch()).tags, make_model()(**batch()).tags)


def test_a_missing_encoder_is_an_error(tmp_path):
    with pytest.raises(OSError, match="expected a folder with a Hugging Face encoder"):
        CRFForTokenClassification.from_encoder(str(tmp_path / "nowhere"), LABELS)


# ------------------------------------------------------------------------------ the configuration


def test_settings_reach_the_layer_and_survive_a_round_trip(tmp_path):
    rules = bcrf.Structure(start=[True, True, False, True, False])
    settings = config(
        scheme="IOB2",
        layer="mean_field",
        iterations=4,
        constraints=rules,
        penalty=3.0,
        decoder="mbr",
        decoder_temperature=0.5,
        train_temperature=0.3,
        reduction="token_mean",
        dropout=0.2,
    )
    settings.save_pretrained(tmp_path)
    for found in (settings, AutoConfig.from_pretrained(tmp_path)):
        layer = found.make_layer()
        assert isinstance(layer, bcrf.MeanFieldCRF)
        assert layer.solver == bcrf.MeanField(4)
        assert (layer.penalty, layer.decoder, layer.temperature) == (3.0, "mbr", 0.5)
        assert layer.train_temperature == 0.3
        assert layer.constraints.start.tolist() == [True, True, False, True, False]
        assert not layer.constraints.follow[0, 2]
        assert layer.constraints.labels == tuple(LABELS)
        assert found.encoder_dropout == 0.2
        assert found.reduction == "token_mean"
        assert found.encoder.model_type == "bert"


@pytest.mark.parametrize("id_type", [int, str])
def test_labels_may_be_id2label(id_type):
    found = config(labels={id_type(tag): LABELS[tag] for tag in reversed(range(5))})
    assert found.labels == LABELS
    assert found.label2id == {label: tag for tag, label in enumerate(LABELS)}
    assert found.structure is None


def test_illegal_gold_is_reported_by_its_label():
    model, inputs = make_model(), batch()
    inputs["labels"][0, 1] = 0  # O, and then I-PER
    with pytest.raises(ValueError, match=r"gold tag 2 \(I-PER\) may not follow .*penalty="):
        model(**inputs)
    assert make_model(penalty=2.0)(**inputs).loss.isfinite()


@pytest.mark.parametrize(
    ("settings", "message"),
    [
        ({"labels": None}, "labels: expected the list of labels"),
        ({"labels": []}, "at least one label"),
        ({"labels": ["O", "O"]}, "'O' appears twice"),
        ({"labels": {0: "O", 2: "B-PER"}}, "1 is missing"),
        ({"scheme": "IOB3"}, "scheme: expected one of"),
        ({"layer": "bregmann"}, "did you mean bregman"),
        ({"decoder": "vitterbi"}, "did you mean viterbi"),
        ({"iterations": 3}, "the layer 'crf' has none"),
        ({"layer": "bregman", "iterations": 10**6}, "at most"),
        ({"layer": "bregman", "iterations": 0}, "iterations"),
        ({"reduction": "average"}, "reduction must be one of"),
        ({"train_temperature": 0.0}, "temperature must be positive"),
        ({"decoder_temperature": 0.5}, "changes nothing for decoder"),
        ({"penalty": -1.0}, "penalty must be finite"),
        ({"dropout": 1.5}, "dropout must be in"),
        ({"constraints": {"begin": [True] * 5}}, "expected the keys start, end, follow"),
        ({"constraints": bcrf.Structure(start=[True] * 4)}, "one label for each of 4 tags"),
    ],
)
def test_wrong_settings_are_errors(settings, message):
    with pytest.raises(ValueError, match=message):
        config(**settings)


def test_only_encoders_are_accepted():
    with pytest.raises(ValueError, match="encoder-decoder model t5"):
        CRFTokenClassificationConfig(T5Config(), LABELS)
    with pytest.raises(ValueError, match="model_type"):
        CRFTokenClassificationConfig({"hidden_size": 3}, LABELS)
    with pytest.raises(TypeError, match="expected a configuration of transformers"):
        CRFTokenClassificationConfig("bert", LABELS)
