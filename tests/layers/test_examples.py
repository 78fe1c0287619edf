"""The programs in examples/ run, and fit their training data."""

import os
import subprocess
import sys
from pathlib import Path

import pytest

EXAMPLES = Path(__file__).resolve().parents[2] / "examples"


def run(*command: str) -> str:
    environment = os.environ | {"HF_HUB_OFFLINE": "1", "OMP_NUM_THREADS": "1"}
    done = subprocess.run(
        [sys.executable, *command], capture_output=True, text=True, env=environment, cwd=EXAMPLES
    )
    assert done.returncode == 0, done.stderr
    return done.stdout


def losses(printed: str) -> list[float]:
    lines = [line.split() for line in printed.splitlines() if line.startswith("step")]
    return [float(words[-1]) for words in lines]


def test_bilstm_crf() -> None:
    printed = run("bilstm_crf.py")
    first, *_, last = losses(printed)
    assert last < 0.1 * first
    assert "Ada/B-PER  Lovelace/I-PER  visited/O  Turin/B-LOC" in printed
    source = (EXAMPLES / "bilstm_crf.py").read_text()
    assert len([line for line in source.splitlines() if line.strip()]) <= 45


@pytest.mark.slow
def test_huggingface_head() -> None:
    pytest.importorskip("transformers")
    printed = run("huggingface_head.py")
    first, *_, last = losses(printed)
    assert last < 0.1 * first
    assert "Turing/B-PER" in printed
    assert "New/B-LOC" in printed


CHECKPOINTS = """
import tempfile
import torch
from transformers import BertConfig, BertModel
from huggingface_head import LABELS, BertForBregmanTagging, encode, make_tokenizer

tokenizer = make_tokenizer()
labels = dict(enumerate(LABELS))
sizes = dict(hidden_size=8, num_hidden_layers=1, num_attention_heads=2, intermediate_size=8)
config = BertConfig(vocab_size=len(tokenizer), id2label=labels, **sizes)
batch, gold = encode(tokenizer)
model = BertForBregmanTagging(config).eval()
with tempfile.TemporaryDirectory() as folder:
    model.save_pretrained(folder)
    again = BertForBregmanTagging.from_pretrained(folder).eval()
    torch.testing.assert_close(again(**batch, labels=gold).loss, model(**batch, labels=gold).loss)
    assert torch.equal(again.head.constraints.follow, model.head.constraints.follow)
with tempfile.TemporaryDirectory() as folder:
    BertModel(config).save_pretrained(folder)
    fresh = BertForBregmanTagging.from_pretrained(folder, config=config).eval()
    for scores in fresh.head.parameters():
        assert 0.001 < scores.abs().max() <= 0.1, scores
    assert fresh(**batch, labels=gold).loss.isfinite()
"""


@pytest.mark.slow
def test_huggingface_checkpoints() -> None:
    """A checkpoint restores the head if it contains one; otherwise the head is initialised."""
    pytest.importorskip("transformers")
    run("-c", CHECKPOINTS)
