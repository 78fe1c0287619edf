"""Taggers with a tiny pretrained encoder: trained, saved, and loaded offline."""

import shutil
from pathlib import Path

import pytest
import torch

from bcrf.tagger import ModelError, Tagger
from bcrf.tagger.training import Config, Epoch, train
from tests.tagger_cases import config, epochs, run, weights_equal, write

pytest.importorskip("transformers")

SENTENCES = (
    "the/DET cat/NOUN a/VERB b/NOUN\na/DET cat/NOUN\ncab/NOUN bac/VERB the/DET abc/NOUN\n" * 2
)


@pytest.fixture(scope="module")
def trained(tmp_path_factory) -> tuple[Path, Tagger]:
    from tests.tagger.test_nn_pretrained import bert, tokenizer

    folder = tmp_path_factory.mktemp("pretrained")
    source = folder / "source"
    bert().save_pretrained(source)
    tokenizer().save_pretrained(source)
    settings = config(
        folder,
        model={"pretrained": str(source), "objective": "bregman"},
        training={"epochs": 8},
        optimizer={"learning_rate": 1e-2, "scorer_learning_rate": 1e-2},
    )
    path = Path(settings.data.train)
    lines = []
    for line in SENTENCES.splitlines():
        for number, field in enumerate(line.split(), start=1):
            word, tag = field.split("/")
            lines.append(f"{number}\t{word}\t_\t{tag}" + "\t_" * 6)
        lines.append("")
    path.write_text("\n".join(lines) + "\n")
    shutil.copy(path, settings.data.dev)
    # We stop after epoch 7, with 7 of 8 epochs' learning rates: epoch 8 has the same score on dev,
    # but has learned the positions of the few words, which differ between blocks.
    events = []
    for event in train(settings):
        events.append(event)
        if isinstance(event, Epoch) and event.epoch == 7:
            break
    assert events[0].words == 0
    assert epochs(events)[-1].loss < 0.8 * epochs(events)[0].loss
    shutil.rmtree(source)  # a model needs only its own folder
    return Path(settings.output), Tagger.load(settings.output)


def test_the_encoder_is_saved_with_the_model(trained, tmp_path):
    output, tagger = trained
    assert {p.name for p in (output / "best" / "encoder").iterdir()} >= {
        "config.json",
        "tokenizer.json",
    }
    tagger.save(tmp_path / "model")
    again = Tagger.load(tmp_path / "model")
    assert weights_equal(again, tagger)
    sentences = [["the", "cat"], [], ["abc"] * 40, ["unheard"]]  # longer than a window
    found = again.tag(sentences, probabilities=True)
    assert [t.tags for t in found] == [t.tags for t in tagger.tag(sentences)]
    assert len(found[2].tags) == 40


def test_a_run_is_resumed_bit_by_bit(trained, tmp_path):
    """The encoder has dropout; its weights come from the saved state."""
    from tests.tagger.test_nn_pretrained import bert, tokenizer

    bert().save_pretrained(tmp_path / "source")
    tokenizer().save_pretrained(tmp_path / "source")
    weights = []
    for name in ("whole", "halved"):
        settings = config(
            tmp_path / name,
            model={"pretrained": str(tmp_path / "source"), "dropout": 0.2},
            training={"epochs": 3},
        )
        if name == "halved":
            for event in train(settings):
                if isinstance(event, Epoch) and event.epoch == 2:
                    break
        run(settings, resume=True)
        weights.append(Path(settings.output, "last", "model.safetensors").read_bytes())
    assert weights[0] == weights[1]


def test_a_damaged_tokenizer_is_an_error(trained, tmp_path):
    _, tagger = trained
    tagger.save(tmp_path / "model")
    path = tmp_path / "model" / "encoder" / "tokenizer.json"
    path.write_text(path.read_text().replace("cat", "dog"))
    with pytest.raises(ModelError, match=r"encoder/tokenizer\.json: has been changed"):
        Tagger.load(tmp_path / "model")


def test_long_sentences_are_read_in_blocks_with_context(trained, monkeypatch):
    """In blocks, the windows of the encoder begin elsewhere, so that scores differ slightly."""
    from bcrf.tagger.prediction import long_sentences, tagging

    _, tagger = trained
    words = ["the", "cat", "a", "abc", "unheard", "cab"] * 50
    (whole,) = tagger.tag([words])
    monkeypatch.setattr(tagging, "LONGEST_WHOLE", 200)
    monkeypatch.setattr(long_sentences, "BLOCK_TOKENS", 64)
    monkeypatch.setattr(long_sentences, "CONTEXT", 32)
    lengths = []
    read = type(tagger.reader).__call__
    monkeypatch.setattr(
        type(tagger.reader),
        "__call__",
        lambda self, tokens: lengths.append(len(tokens)) or read(self, tokens),
    )
    (found,) = tagger.tag([words])
    assert lengths == [96, 128, 128, 128, 76]  # memory is bounded by the block
    same = sum(a == b for a, b in zip(found.labels, whole.labels, strict=True)) / len(words)
    print(f"{same:.2%} of the labels of {len(words)} tokens agree")
    assert same > 0.9


def test_a_saved_model_is_fine_tuned_without_the_original_encoder(trained, tmp_path):
    _, tagger = trained
    text = write(tmp_path, "pos").read_text().replace("INTJ", "X")
    (tmp_path / "new.conllu").write_text(text)
    model = tmp_path / "model"
    tagger.save(model)
    settings = Config.from_dict(
        {
            "output": str(tmp_path / "tuned"),
            "data": {"train": str(tmp_path / "new.conllu")},
            "training": {"init_from": str(model), "epochs": 1, "device": "cpu"},
            "optimizer": {"learning_rate": 1e-12},
        }
    )
    run(settings)
    tuned = Tagger.load(settings.output)
    assert tuned.labels[:3] == tagger.labels
    assert "X" in tuned.labels
    old, new = (dict(t.model.encoder.named_parameters()) for t in (tagger, tuned))
    for name, weights in old.items():
        torch.testing.assert_close(new[name], weights)
