"""`Trainer`, unmodified: metrics, learning rates, half precision, resume, two processes."""

from __future__ import annotations

import os
import subprocess
import sys
from pathlib import Path
from typing import Any

import numpy as np
import pytest
import torch
from seqeval.metrics import f1_score, precision_score, recall_score
from transformers import EvalPrediction, Trainer, TrainingArguments

import bcrf
from bcrf.huggingface import (
    CRFDataCollator,
    CRFForTokenClassification,
    compute_metrics_for,
    encode_words,
    parameter_groups,
)

from .cases import LABELS, LAYERS, SENTENCES, batch, make_model, make_tokenizer

pytest.importorskip("accelerate")
ROOT = Path(__file__).resolve().parents[2]


def rows() -> list[dict[str, list[int]]]:
    tokenizer = make_tokenizer()
    label2id = {label: tag for tag, label in enumerate(LABELS)}
    return [
        encode_words(tokenizer, text.split(), tags.split(), label2id=label2id)
        for text, tags in SENTENCES
    ]


def make_trainer(
    model: CRFForTokenClassification, folder: Path, groups: bool = True, **settings: Any
) -> Trainer:
    arguments: dict[str, Any] = {
        "num_train_epochs": 20,
        "per_device_train_batch_size": 2,
        "learning_rate": 5e-3,
        "use_cpu": True,
        "report_to": [],
        "save_strategy": "no",
        "logging_strategy": "no",
        "disable_tqdm": True,
        "seed": 3,
    }
    optimizer = torch.optim.AdamW(parameter_groups(model, 5e-3, transition_factor=10))
    return Trainer(
        model=model,
        args=TrainingArguments(str(folder), **arguments | settings),
        train_dataset=rows(),
        eval_dataset=rows(),
        data_collator=CRFDataCollator(make_tokenizer()),
        compute_metrics=compute_metrics_for(model.config),
        optimizers=(optimizer, None) if groups else (None, None),
    )


# ---------------------------------------------------------------------------------------- metrics


@pytest.mark.parametrize("seed", range(20))
def test_scores_are_those_of_seqeval(seed):
    random = np.random.default_rng(seed)
    config = make_model().config
    gold = random.integers(-1, 5, (6, 9))
    gold[gold < 0] = -100
    tags = np.where(random.random(gold.shape) < 0.5, gold, random.integers(0, 5, gold.shape))
    tags[gold == -100] = -100
    found = compute_metrics_for(config)(EvalPrediction(tags, gold))
    one, two = (
        [[LABELS[tag] for tag in row[keep != -100]] for row, keep in zip(some, gold, strict=True)]
        for some in (gold, tags)
    )
    assert found["f1"] == pytest.approx(f1_score(one, two))
    assert found["precision"] == pytest.approx(precision_score(one, two))
    assert found["recall"] == pytest.approx(recall_score(one, two))
    assert found["accuracy"] == pytest.approx((tags == gold)[gold != -100].mean())
    assert {"f1/PER", "f1/LOC", "mentions"} <= found.keys()


def test_scores_without_a_scheme_or_labels():
    config = make_model(scheme=None).config
    gold = np.array([[0, 1, -100]])
    assert compute_metrics_for(config)(EvalPrediction(gold, gold)) == {"accuracy": 1.0}
    none = np.full((2, 3), -100)
    assert compute_metrics_for(make_model().config)(EvalPrediction(none, none))["f1"] == 0.0
    marginals = np.zeros((1, 3, 5), dtype=np.float32)
    both = EvalPrediction((gold, marginals), gold)
    assert compute_metrics_for(config)(both) == {"accuracy": 1.0}


def test_wrong_predictions_are_errors():
    compute = compute_metrics_for(make_model().config)
    gold = np.array([[0, 1, -100]])
    with pytest.raises(TypeError, match=r"expected the decoded tags .* got float64 \[1, 3, 5\]"):
        compute(EvalPrediction(np.zeros((1, 3, 5)), gold))
    with pytest.raises(ValueError, match="sentence 0: a position has a label but no predicted tag"):
        compute(EvalPrediction(np.array([[0, -100, -100]]), gold))
    with pytest.raises(ValueError, match=r"predictions are \[1, 2\], but the labels are \[1, 3\]"):
        compute(EvalPrediction(gold[:, :2], gold))


# --------------------------------------------------------------------------------- learning rates


def test_every_parameter_is_in_one_group():
    model = make_model()
    groups = parameter_groups(model, 2e-5, transition_factor=50, weight_decay=0.1)
    ids = [id(p) for group in groups for p in group["params"]]
    assert sorted(ids) == sorted(id(p) for p in model.parameters())
    matrices, vectors, transitions = groups
    assert {id(p) for p in transitions["params"]} == {id(p) for p in model.crf.parameters()}
    assert (transitions["lr"], transitions["weight_decay"]) == (pytest.approx(1e-3), 0.0)
    assert (matrices["lr"], matrices["weight_decay"]) == (2e-5, 0.1)
    assert (vectors["lr"], vectors["weight_decay"]) == (2e-5, 0.0)
    assert all(p.dim() > 1 for p in matrices["params"])


def test_frozen_parameters_and_other_models():
    model = torch.nn.ModuleDict({"a": torch.nn.Linear(3, 5), "b": bcrf.BregmanCRF(5)})
    model["a"].requires_grad_(False)
    (group,) = parameter_groups(model, 1e-3)
    assert group["lr"] == pytest.approx(0.1)
    assert len(group["params"]) == 3
    soft = make_model(layer="softmax")  # no transitions
    assert [group["lr"] for group in parameter_groups(soft, 1e-3)] == [1e-3, 1e-3]


@pytest.mark.parametrize(
    ("keywords", "message"),
    [
        ({"learning_rate": -1.0}, "learning_rate must be positive"),
        ({"learning_rate": 1.0, "transition_factor": 0}, "transition_factor must be positive"),
        ({"learning_rate": 1.0, "weight_decay": -0.1}, "weight_decay must be positive"),
    ],
)
def test_wrong_rates_are_errors(keywords, message):
    with pytest.raises(ValueError, match=message):
        parameter_groups(make_model(), **keywords)
    with pytest.raises(ValueError, match="no layer of bcrf"):
        parameter_groups(torch.nn.Linear(2, 2), 1e-3)


# ---------------------------------------------------------------------------------------- Trainer


@pytest.mark.parametrize("layer", LAYERS)
def test_a_trainer_fits_the_sentences(layer, tmp_path):
    trainer = make_trainer(make_model(layer=layer), tmp_path)
    before = trainer.evaluate()
    trainer.train()
    after = trainer.evaluate()
    assert before["eval_f1"] < 0.7
    assert after["eval_f1"] == 1.0
    assert after["eval_loss"] < 0.2 * before["eval_loss"]


def test_predictions_are_decoded_tags_and_marginals_on_request(tmp_path):
    model = make_model()
    found = make_trainer(model, tmp_path, per_device_eval_batch_size=3).predict(rows())
    width = max(len(row["labels"]) for row in rows())
    assert found.predictions.shape == (4, width)
    assert found.predictions.dtype == np.int64
    whole = model(**CRFDataCollator(make_tokenizer())(rows()))
    assert np.array_equal(found.predictions, whole.tags.numpy())
    assert np.array_equal(found.predictions == -100, found.label_ids == -100)
    assert found.metrics["test_loss"] == pytest.approx(whole.loss.item(), rel=1e-5)
    model.config.output_marginals = True
    tags, marginals = make_trainer(model, tmp_path).predict(rows()).predictions
    assert np.array_equal(tags, found.predictions)
    assert marginals.shape == (4, width, 5)
    assert np.allclose(marginals[tags != -100].sum(-1), 1, atol=1e-5)
    unlabelled = [{k: v for k, v in row.items() if k != "labels"} for row in rows()]
    assert np.array_equal(make_trainer(model, tmp_path).predict(unlabelled).predictions[0], tags)


@pytest.mark.parametrize(
    "settings",
    [
        {"bf16": True},
        {"gradient_checkpointing": True},
        {"gradient_accumulation_steps": 2},
        {"label_smoothing_factor": 0.0, "max_grad_norm": 0.5, "weight_decay": 0.1},
        {"load_best_model_at_end": True, "save_strategy": "epoch", "eval_strategy": "epoch"},
    ],
    ids=lambda settings: next(iter(settings)),
)
def test_trainer_settings(settings, tmp_path):
    trainer = make_trainer(make_model(), tmp_path, groups=False, learning_rate=2e-2, **settings)
    trainer.train()
    assert trainer.evaluate()["eval_f1"] == 1.0


def test_accumulated_gradients_are_those_of_the_whole_batch(tmp_path):
    weights = []
    for size, steps in ((4, 1), (1, 4)):
        model = make_model(dropout=0.0)
        for module in model.modules():
            if isinstance(module, torch.nn.Dropout):
                module.p = 0.0
        make_trainer(
            model,
            tmp_path,
            num_train_epochs=1,
            max_grad_norm=0.0,
            per_device_train_batch_size=size,
            gradient_accumulation_steps=steps,
        ).train()
        weights.append(model.crf.transitions.detach().clone())
    torch.testing.assert_close(*weights, rtol=1e-3, atol=1e-4)


@pytest.mark.slow
def test_a_resumed_run_equals_an_uninterrupted_one(tmp_path):
    def trainer(folder: str, **settings: Any) -> Trainer:
        return make_trainer(
            make_model(), tmp_path / folder, save_strategy="epoch", num_train_epochs=4, **settings
        )

    whole = trainer("whole")
    whole.train()
    assert (tmp_path / "whole" / "checkpoint-4" / "model.safetensors").exists()
    resumed = trainer("halved")
    resumed.train(resume_from_checkpoint=str(tmp_path / "whole" / "checkpoint-4"))
    assert resumed.state.global_step == whole.state.global_step == 8
    for name, value in whole.model.state_dict().items():
        assert torch.equal(resumed.model.state_dict()[name], value), name


@pytest.mark.slow
@pytest.mark.parametrize("layer", ["crf", "bregman"])
def test_a_compiled_model_gives_the_same(layer):
    model = make_model(layer=layer)
    inputs = batch()
    torch._dynamo.reset()
    compiled = torch.compile(model)
    one, two = model(**inputs), compiled(**inputs)
    torch.testing.assert_close(two.loss, one.loss, rtol=1e-4, atol=1e-4)
    assert torch.equal(one.tags, two.tags)
    for module in model.modules():
        if isinstance(module, torch.nn.Dropout):
            module.p = 0.0
    model.train()
    gradients = []
    for forward in (model, compiled):
        model.zero_grad()
        forward(**inputs).loss.backward()
        gradients.append({name: p.grad.clone() for name, p in model.named_parameters()})
    for name, gradient in gradients[0].items():
        torch.testing.assert_close(gradients[1][name], gradient, rtol=1e-3, atol=1e-4)


@pytest.mark.slow
def test_a_trainer_compiles(tmp_path):
    torch._dynamo.reset()
    trainer = make_trainer(make_model(), tmp_path, torch_compile=True, num_train_epochs=10)
    trainer.train()
    assert trainer.evaluate()["eval_f1"] == 1.0


TWO_PROCESSES = """
import sys
from pathlib import Path
import torch
from tests.huggingface.cases import make_model
from tests.huggingface.test_training import make_trainer
folder = Path(sys.argv[1])
model = make_model(dropout=0.0)
for module in model.modules():
    if isinstance(module, torch.nn.Dropout):
        module.p = 0.0
trainer = make_trainer(
    model, folder, num_train_epochs=15, per_device_train_batch_size=2, ddp_backend="gloo",
    ddp_find_unused_parameters=False, train_sampling_strategy="sequential", max_grad_norm=0.0,
)
trainer.train()
found = trainer.evaluate()
if trainer.args.process_index == 0:
    torch.save(model.state_dict(), folder / "state.pt")
    print("processes", trainer.args.world_size, "f1", found["eval_f1"])
"""


@pytest.mark.slow
def test_two_processes(tmp_path):
    """Two processes with two sentences each learn what one process learns with four."""
    program = tmp_path / "program.py"
    program.write_text(TWO_PROCESSES)
    done = subprocess.run(
        [
            *(sys.executable, "-m", "torch.distributed.run", "--standalone"),
            *("--nproc_per_node=2", str(program), str(tmp_path)),
        ],
        capture_output=True,
        text=True,
        cwd=ROOT,
        env=os.environ | {"OMP_NUM_THREADS": "1", "PYTHONPATH": str(ROOT)},
        timeout=500,
    )
    assert done.returncode == 0, done.stderr[-3000:]
    assert "processes 2 f1 1.0" in done.stdout
    model = make_model(dropout=0.0)
    for module in model.modules():
        if isinstance(module, torch.nn.Dropout):
            module.p = 0.0
    make_trainer(
        model, tmp_path, num_train_epochs=15, per_device_train_batch_size=4, max_grad_norm=0.0
    ).train()
    state = torch.load(tmp_path / "state.pt")
    torch.testing.assert_close(
        state["crf.transitions"], model.crf.transitions.detach(), rtol=0.05, atol=0.02
    )
