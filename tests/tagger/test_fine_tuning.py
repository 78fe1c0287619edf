"""Fine-tuning: what a training takes over from a saved model, and what it adds."""

from pathlib import Path

import pytest
import torch

from bcrf.tagger import ModelError, Tagger
from bcrf.tagger.nn import UNKNOWN
from bcrf.tagger.training import Config, Event, Finished, train
from tests.tagger_cases import epochs, run, trained, weights_equal, write

NEW = {
    "pos": [("INTJ", "X"), ("dogs", "hounds")],
    "ner": [("-ORG", "-EVENT"), ("Turin", "Milano")],
    "segmentation": [("\tX\t", "\tSYM\t"), ("书", "報")],
}
"""Replacements in the corpus of a task, so that it has new tags and new words."""


def base(folder: Path, task: str, **changes) -> Tagger:
    return trained(folder / "base", task, **changes)


def new_file(folder: Path, task: str) -> Path:
    path = write(folder, task, "new")
    text = path.read_text()
    for old, new in NEW[task]:
        text = text.replace(old, new)
    path.write_text(text)
    return path


def fine_tuned(folder: Path, file: Path, **parts) -> Config:
    values = {
        "output": str(folder / "tuned"),
        "data": {"train": str(file), "dev": str(file)},
        "training": {"init_from": str(folder / "base" / "run"), "epochs": 2, "device": "cpu"},
    }
    for part, settings in parts.items():
        values[part] = values.get(part, {}) | settings
    return Config.from_dict(values)


def begun(settings: Config) -> None:
    """Run only the set-up of a training, without a step."""
    events = train(settings)
    next(events)
    events.close()


def state_after_no_step(settings: Config) -> tuple[Tagger, Tagger]:
    """Return the tagger that the training begins with, and the model that it came from."""
    from bcrf.tagger.training.loop import _Run
    from bcrf.tagger.training.workers import Workers

    start = _Run(settings, Workers(0, 1, torch.device("cpu"))).tagger
    return start, Tagger.load(settings.training.init_from, "cpu")


@pytest.mark.parametrize("task", ["pos", "ner", "segmentation"])
def test_a_model_with_features_keeps_its_features_and_weights(tmp_path, task):
    base(tmp_path, task, model={"features": "character" if task == "segmentation" else "word"})
    tagger, old = state_after_no_step(fine_tuned(tmp_path, new_file(tmp_path, task)))
    assert tagger.vocabularies.features == old.vocabularies.features is not None
    assert tagger.labels[: len(old.labels)] == old.labels
    for name, weight in old.model.encoder.state_dict().items():
        torch.testing.assert_close(tagger.model.encoder.state_dict()[name], weight, rtol=0, atol=0)


@pytest.mark.parametrize("task", ["pos", "ner", "segmentation"])
@pytest.mark.parametrize("transitions", ["pairs", "shared"])
def test_old_labels_and_words_keep_their_weights(tmp_path, task, transitions):
    base(tmp_path, task, model={"transitions": transitions, "characters": "cnn"})
    tagger, old = state_after_no_step(fine_tuned(tmp_path, new_file(tmp_path, task)))
    assert tagger.labels[: len(old.labels)] == old.labels
    assert len(tagger.labels) > len(old.labels)
    words, old_words = (t.vocabularies.words.tokens for t in (tagger, old))
    assert words[: len(old_words)] == old_words
    assert len(words) > len(old_words)
    table, old_table = (t.model.encoder.table.weight for t in (tagger, old))
    assert torch.equal(table[: len(old_table)], old_table)
    unknown = old_table[UNKNOWN].expand(len(table) - len(old_table), -1)
    assert torch.equal(table[len(old_table) :], unknown)
    # The scores of old labels, and of transitions between them, are the same for all words.
    for tokens in (old_words[2:6], words[-3:]):
        chains = [t.chain([t.reader(tokens)], [None]) for t in (tagger, old)]
        size = len(old.labels)
        torch.testing.assert_close(chains[0].unary[..., :size], chains[1].unary)
        mine = chains[0].transitions[..., :size, :size]
        torch.testing.assert_close(mine, chains[1].transitions)


def test_without_new_labels_it_begins_with_the_predictions_of_the_model(tmp_path):
    old = base(tmp_path, "pos")
    text = write(tmp_path, "pos", "again").read_text().replace("dogs", "hounds")
    (tmp_path / "again.conllu").write_text(text)
    tagger, _ = state_after_no_step(fine_tuned(tmp_path, tmp_path / "again.conllu"))
    sentences = [["the", "hounds", "run"], ["dogs", "saw", "xyz"]]
    before, after = (
        [(x.labels, x.probabilities) for x in t.tag(sentences, probabilities=True)]
        for t in (old, tagger)
    )
    assert [labels for labels, _ in before] == [labels for labels, _ in after]
    for (_, one), (_, two) in zip(before, after, strict=True):
        assert two == pytest.approx(one, rel=1e-5)


@pytest.mark.parametrize("task", ["pos", "ner", "segmentation"])
def test_new_labels_are_learned(tmp_path, task):
    base(tmp_path, task)
    settings = fine_tuned(
        tmp_path,
        new_file(tmp_path, task),
        training={"epochs": 20, "batch": 4},
        optimizer={"learning_rate": 0.05},
    )
    events = run(settings)
    assert max(event.score for event in epochs(events)) > 0.8
    labels = Tagger.load(settings.output).labels
    assert any(label.endswith(NEW[task][0][1].strip("\t-")) for label in labels)


def test_settings_that_are_left_out_are_those_of_the_model(tmp_path):
    data = {"scheme": "BIOES", "lowercase": False}
    base(tmp_path, "ner", data=data, model={"width": 12}, training={"epochs": 12})
    settings = fine_tuned(tmp_path, new_file(tmp_path, "ner"), model={"dropout": 0.4})
    assert settings.data.task == "ner"
    assert settings.data.scheme == "BIOES"
    assert settings.data.lowercase is False
    assert settings.model.width == 12
    assert settings.model.dropout == 0.4


def test_the_decoder_of_the_model_is_taken_over(tmp_path):
    base(tmp_path, "pos", decoding={"decoder": "bregman-3", "repair": "mbr"})
    settings = fine_tuned(tmp_path, new_file(tmp_path, "pos"))
    assert (settings.decoding.decoder, settings.decoding.repair) == ("bregman-3", "mbr")


@pytest.mark.parametrize(
    ("parts", "message"),
    [
        ({"model": {"width": 32}}, "model.width is 32 .in the model: 16.; leave these settings"),
        ({"model": {"transitions": "shared"}}, "model.transitions is 'shared'"),
        ({"model": {"objective": "unstructured"}}, "model.objective is 'unstructured'"),
        ({"data": {"column": "xpos"}}, "the model is for task = 'pos', column = 'upos'"),
    ],
)
def test_settings_that_do_not_fit_the_model_are_named(tmp_path, parts, message):
    base(tmp_path, "pos")
    file = new_file(tmp_path, "pos")
    if "data" in parts:
        lines = [line.split("\t") for line in file.read_text().split("\n")]
        file.write_text(
            "\n".join("\t".join([*r[:4], r[3], *r[5:]]) if r[1:] else "" for r in lines)
        )
    settings = fine_tuned(tmp_path, file, **parts)
    with pytest.raises(ValueError, match=message):
        begun(settings)


def test_another_objective_is_possible(tmp_path):
    base(tmp_path, "pos")
    settings = fine_tuned(tmp_path, new_file(tmp_path, "pos"), model={"objective": "bregman-5"})
    events: list[Event] = run(settings)
    assert isinstance(events[-1], Finished)
    assert Tagger.load(settings.output).decoder == "bregman-5"


def test_a_missing_model_is_named(tmp_path):
    with pytest.raises(ModelError, match="there is no such folder"):
        fine_tuned(tmp_path, write(tmp_path, "pos"))


def test_fine_tuning_can_be_resumed_bit_by_bit(tmp_path):
    base(tmp_path, "pos")
    file = new_file(tmp_path, "pos")
    whole = fine_tuned(tmp_path, file)
    run(whole)
    parts = Config.from_dict({**whole.to_dict(), "output": str(tmp_path / "parts")})
    events = train(parts)
    for event in events:
        if type(event).__name__ == "Epoch":
            break
    events.close()
    run(parts, resume=True)
    one, two = (Tagger.load(c.output) for c in (whole, parts))
    assert weights_equal(one, two)
    assert one.probability_temperature == two.probability_temperature
    assert one.vocabularies == two.vocabularies
