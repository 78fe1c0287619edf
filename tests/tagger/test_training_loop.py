"""Training from beginning to end: against a plain loop, its events, and the files it writes."""

import json
from collections import Counter
from pathlib import Path

import pytest
import torch

import bcrf
from bcrf.tagger import Tagger
from bcrf.tagger.data import DataError, LengthBatches
from bcrf.tagger.nn import TaggerModel, training_solver
from bcrf.tagger.training import Config, Epoch, Finished, Started, Step, train
from bcrf.tagger.training.randomness import seeded
from tests.tagger_cases import config, epochs, pairs, run, trained

CPU = torch.device("cpu")


def log_lines(settings) -> list[dict]:
    text = Path(settings.output, "metrics.jsonl").read_text(encoding="utf-8")
    return [json.loads(line) for line in text.splitlines()]


# ------------------------------------------------------------------------------------------- oracle


@pytest.mark.parametrize("objective", ["crf", "bregman", "mean_field-3", "unstructured"])
def test_losses_are_those_of_a_plain_loop(tmp_path, objective):
    """One sentence at a time, without padding, with torch's own Adam and scheduler."""
    settings = config(
        tmp_path,
        model={"objective": objective},
        training={"epochs": 2},
        optimizer={"learning_rate": 0.01, "warmup": 0.25},
    )
    steps = [event for event in run(settings) if isinstance(event, Step)]
    tagger = Tagger.load(settings.output)

    sentences = pairs("pos")
    words, task = tagger.vocabularies.words, tagger.task
    with seeded(CPU, 0, "first weights"):
        model = TaggerModel(settings.model, tagger.model.sizes)
    model.encoder.table.sparse = False  # torch.optim.Adam does not accept sparse gradients
    optimizer = torch.optim.Adam(model.parameters(), lr=0.01)
    total = 2 * 3  # eleven sentences, four at a time
    scheduler = torch.optim.lr_scheduler.LambdaLR(
        optimizer, lambda i: (i + 1) / 2 if i < 2 else (total - i) / (total - 2)
    )
    solver = training_solver(objective)
    plan = LengthBatches([len(sentence) for sentence in sentences], sentences=4)
    expected = []
    for epoch in (1, 2):
        for batch in plan.epoch(epoch):
            optimizer.zero_grad()
            losses = []
            for index in batch:
                ids = torch.tensor([words.ids([word for word, _ in sentences[index]])])
                states = model.encoder.table(ids)
                chain = model.scorer(states, torch.tensor([ids.shape[1]]))
                gold = [task.labels.index(tag) for _, tag in sentences[index]]
                losses.append(bcrf.loss(solver, chain, torch.tensor([gold])))
            loss = torch.cat(losses).mean()
            loss.backward()
            optimizer.step()
            rate = scheduler.get_last_lr()[0]
            scheduler.step()
            expected.append((loss.item(), rate, len(batch)))
    found = [(step.loss, step.learning_rate, step.sentences) for step in steps]
    torch.testing.assert_close(found, expected, rtol=1e-5, atol=1e-6)
    last = Tagger.load(Path(settings.output, "last")).model.state_dict()
    torch.testing.assert_close(dict(last), dict(model.state_dict()), rtol=1e-4, atol=1e-5)


# ----------------------------------------------------------------------------------------- learning


@pytest.mark.parametrize("objective", ["unstructured", "crf", "mean_field", "bregman"])
@pytest.mark.parametrize("task", ["pos", "segmentation", "ner"])
def test_every_family_learns_every_task(tmp_path, task, objective):
    settings = config(
        tmp_path,
        task,
        model={"objective": objective},
        optimizer={"learning_rate": 0.05},
        training={"epochs": 12},
    )
    found = epochs(run(settings))
    assert found[-1].loss < 0.6 * found[0].loss
    assert found[-1].score > found[0].score
    if objective in ("crf", "bregman"):  # without context words are ambiguous
        assert Tagger.load(settings.output).evaluate(settings.data.train).score > 0.9


def test_layers_and_characters_learn(tmp_path):
    settings = config(
        tmp_path,
        model={"layers": 2, "characters": "cnn", "character_width": 4, "objective": "unstructured"},
        optimizer={"learning_rate": 0.015, "clip": 50.0},
        training={"epochs": 25},
    )
    # Transitions and single words are not enough; the layers see the context.
    dev = [pair for sentence in pairs("pos")[3:] for pair in sentence]
    tags = {word: Counter(tag for other, tag in dev if other == word) for word, _ in dev}
    by_words = sum(count.most_common(1)[0][1] for count in tags.values()) / len(dev)
    assert by_words < max(epoch.score for epoch in epochs(run(settings)))


def test_dropout_and_unknown_words_change_the_loss(tmp_path):
    plain = epochs(run(config(tmp_path / "a")))
    for number, change in enumerate([{"dropout": 0.5}, {"unknown_rate": 0.5}]):
        changed = epochs(run(config(tmp_path / f"b{number}", model=change)))
        assert changed[0].loss != plain[0].loss
    other = epochs(run(config(tmp_path / "c", training={"seed": 1})))
    assert other[0].loss != plain[0].loss
    again = epochs(run(config(tmp_path / "d")))
    assert [epoch.loss for epoch in again] == [epoch.loss for epoch in plain]


def test_half_precision_is_close(tmp_path):
    full = epochs(run(config(tmp_path / "a", training={"epochs": 5})))
    half = epochs(run(config(tmp_path / "b", training={"epochs": 5, "precision": "bfloat16"})))
    assert half[-1].loss != full[-1].loss
    assert half[-1].loss == pytest.approx(full[-1].loss, rel=0.1)


def test_lazy_updates_change_rounding_only(tmp_path):
    lazy = run(config(tmp_path / "a", training={"epochs": 5}))
    dense = run(config(tmp_path / "b", training={"epochs": 5}, optimizer={"lazy": False}))
    losses = [[epoch.loss for epoch in epochs(events)] for events in (lazy, dense)]
    assert losses[0] == pytest.approx(losses[1], rel=1e-4)


def test_batches_by_tokens(tmp_path):
    settings = config(tmp_path, training={"batch": 12, "batch_unit": "tokens", "epochs": 1})
    steps = [event for event in run(settings) if isinstance(event, Step)]
    assert sum(step.sentences for step in steps) == 11
    assert sum(step.tokens for step in steps) == sum(map(len, pairs("pos")))
    assert max(step.tokens for step in steps) <= 12
    assert len({step.sentences for step in steps}) > 1


# ----------------------------------------------------------------------------------- partial labels


def test_partially_supervised_training_learns_mentions(tmp_path):
    """Every sentence occurs several times, so that each mention is annotated in some copy."""
    settings = config(
        tmp_path,
        "ner",
        data={"partial": True},
        training={"epochs": 8, "batch": 8},
    )
    path = Path(settings.data.train)
    path.write_text(path.read_text() * 10)
    found = epochs(run(settings))
    assert found[-1].loss < 0.3 * found[0].loss
    assert found[-1].score > 0.9


def test_readings_of_partial_supervision_differ(tmp_path):
    """The literal reading allows more sequences, so its loss is smaller."""
    losses = {}
    for reading in ("exclusive", "literal"):
        data = {"partial": True, "partial_reading": reading}
        settings = config(tmp_path / reading, "ner", data=data, training={"epochs": 1})
        losses[reading] = epochs(run(settings))[0].loss
    full = epochs(run(config(tmp_path / "full", "ner", training={"epochs": 1})))[0].loss
    assert losses["literal"] < losses["exclusive"] < full


@pytest.mark.filterwarnings("ignore:.*score on dev is 0.00")  # after one epoch
def test_the_partial_split_follows_the_seed(tmp_path):
    def first_loss(name: str, **training: int) -> float:
        settings = config(
            tmp_path / name, "ner", data={"partial": True}, training={"epochs": 1, **training}
        )
        return epochs(run(settings))[0].loss

    assert first_loss("a") == first_loss("b")
    assert first_loss("a2") != first_loss("c", seed=1)


def test_partial_labels_from_a_file(tmp_path):
    """Unknown labels are learned from other sentences."""
    settings = config(tmp_path, "ner", optimizer={"learning_rate": 0.05}, training={"epochs": 15})
    text = forget_some_labels(settings)
    assert "?" in text
    assert "|" in text
    assert epochs(run(settings))[-1].score > 0.9


def test_partial_labels_have_a_smaller_loss(tmp_path):
    losses = []
    for partial in (False, True):
        settings = config(
            tmp_path / str(partial),
            "ner",
            optimizer={"learning_rate": 1e-9},
            training={"epochs": 1},
        )
        if partial:
            forget_some_labels(settings)
        losses.append(epochs(run(settings))[0].loss)
    assert losses[1] < losses[0] - 0.05


def forget_some_labels(settings: Config) -> str:
    path = Path(settings.data.train)
    text = path.read_text()
    text = text.replace("Ada\tB-PER", "Ada\t?", 1).replace("Rome\tB-LOC", "Rome\tB-LOC|O", 1)
    path.write_text(text)
    return text


# ------------------------------------------------------------------------------- events and choices


def test_events_and_log_rows_are_in_order(tmp_path):
    settings = config(tmp_path, training={"epochs": 2, "log_every": 2})
    events = run(settings)
    kinds = [type(event) for event in events]
    assert kinds == [Started, *[Step] * 3, Epoch, *[Step] * 3, Epoch, Finished]
    started, finished = events[0], events[-1]
    assert (started.sentences, started.dev_sentences, started.steps) == (11, 8, 3)
    assert (started.tokens, started.labels) == (sum(map(len, pairs("pos"))), 9)
    assert (started.first_epoch, started.best_score, started.workers) == (1, None, 1)
    assert [(e.epoch, e.step) for e in events if isinstance(e, Step)] == [
        (epoch, step) for epoch in (1, 2) for step in (1, 2, 3)
    ]
    for epoch in epochs(events):
        steps = [e for e in events if isinstance(e, Step) and e.epoch == epoch.epoch]
        mean = sum(step.loss * step.sentences for step in steps) / 11
        assert epoch.loss == pytest.approx(mean, rel=1e-12)
        assert epoch.metric == "accuracy"
        assert epoch.score == epoch.dev["accuracy"]
    assert finished.reason == "done"
    assert finished.best_score == max(epoch.score for epoch in epochs(events))

    lines = log_lines(settings)
    assert [line["event"] for line in lines] == [
        *("start", "step", "epoch", "step", "epoch", "finish")
    ]
    assert lines[2]["loss"] == epochs(events)[0].loss
    assert lines[2]["dev"] == epochs(events)[0].dev
    assert lines[0]["sentences"] == 11
    assert lines[0]["config"] == settings.to_dict()


def test_the_best_epoch_is_kept(tmp_path):
    optimizer = {"learning_rate": 5.0, "schedule": "constant"}
    settings = config(tmp_path, training={"epochs": 8}, optimizer=optimizer)
    found = epochs(run(settings))
    scores = [epoch.score for epoch in found]
    assert (
        max(scores) > scores[-1]
    )  # at this learning rate, some epochs are worse than earlier ones
    best, last = Tagger.load(settings.output), Tagger.load(Path(settings.output, "last"))
    assert best.evaluate(settings.data.dev).score == max(scores)
    assert last.evaluate(settings.data.dev).score == scores[-1]
    assert best.info["epoch"] == len(scores) - scores[::-1].index(max(scores))
    assert best.info["config"] == settings.to_dict()
    assert [epoch.improved for epoch in found] == [
        score >= max(scores[:i], default=-1) for i, score in enumerate(scores)
    ]


def test_patience_ends_early(tmp_path):
    settings = config(
        tmp_path, training={"epochs": 50, "patience": 2}, optimizer={"learning_rate": 0.03}
    )
    events = run(settings)
    finished = events[-1]
    assert finished.reason == "early stopping"
    scores = [epoch.score for epoch in epochs(events)]
    assert len(scores) == scores.index(max(scores)) + 3 < 50  # two epochs without a higher score


def scored(monkeypatch, scores: list[float]) -> None:
    """Replace the scores of the epochs on dev by these."""
    evaluate, rest = Tagger.evaluate_examples, iter(scores)

    def evaluate_examples(self, *arguments):
        found = evaluate(self, *arguments)
        found.scores[found.main] = next(rest)
        return found

    monkeypatch.setattr(Tagger, "evaluate_examples", evaluate_examples)


def test_the_last_of_equal_scores_is_the_best(tmp_path, monkeypatch):
    scored(monkeypatch, [0.5, 0.75, 0.75, 0.25])
    settings = config(tmp_path, training={"epochs": 4})
    *_, finished = events = run(settings)
    assert (finished.best_epoch, finished.best_score) == (3, 0.75)
    assert [epoch.improved for epoch in epochs(events)] == [True, True, True, False]
    assert Tagger.load(settings.output).info["epoch"] == 3


def test_equal_scores_count_against_patience(tmp_path, monkeypatch):
    scored(monkeypatch, [0.5, 0.75, 0.75, 0.75, 0.75])
    *_, finished = run(config(tmp_path, training={"epochs": 50, "patience": 2}))
    assert finished.reason == "early stopping"
    assert finished.best_epoch == 4


def test_a_score_of_zero_in_all_epochs_is_a_warning(tmp_path, monkeypatch):
    scored(monkeypatch, [0.0, 0.0, 0.0])
    with pytest.warns(UserWarning, match=r"run: the score on dev is 0\.00 in all epochs; train"):
        *_, finished = run(config(tmp_path, "ner"))
    assert finished.best_epoch == 3


def test_without_dev_the_last_epoch_is_the_best(tmp_path):
    settings = config(tmp_path, data={"dev": None})
    events = run(settings)
    assert all(epoch.improved and epoch.score is None for epoch in epochs(events))
    assert events[-1].best_epoch == 3
    assert Tagger.load(settings.output).info["epoch"] == 3


def test_decoder_and_repair_of_the_config_are_those_of_the_tagger(tmp_path):
    decoding = {"decoder": "bregman-3-relaxed", "repair": "mbr"}
    tagger = trained(tmp_path, "segmentation", decoding=decoding)
    assert (tagger.decoder, tagger.repair) == ("bregman-3-relaxed", "mbr")
    assert trained(tmp_path / "b", model={"objective": "bregman-7"}).decoder == "bregman-7"


def test_data_settings_change_the_vocabulary(tmp_path):
    tagger = trained(tmp_path, data={"lowercase": False, "min_count": 3})
    known = tagger.vocabularies.words
    assert "the" in known
    assert "The" not in known
    assert "cat" in known
    assert "no" not in known
    # Empty sentences are skipped.
    settings = config(tmp_path / "b", "ner")
    path = Path(settings.data.train)
    path.write_text("-DOCSTART-\tO\n\n" + path.read_text())
    assert run(settings)[0].sentences == 8


# ------------------------------------------------------------------------------------------- errors


def test_a_loss_that_is_not_finite_is_an_error(tmp_path):
    settings = config(tmp_path, training={"epochs": 30}, optimizer={"learning_rate": 1e30})
    with pytest.raises(FloatingPointError, match=r"epoch 1, step [23]: .*learning_rate"):
        run(settings)


def test_training_starts_with_the_first_next(tmp_path):
    settings = config(tmp_path)
    train(settings)
    assert not Path(settings.output).exists()


def test_unusable_data_are_errors(tmp_path):
    settings = config(tmp_path)
    Path(settings.data.dev).write_text("# nothing\n\n")
    with pytest.raises(DataError, match=r"dev\.conllu: has no words; expected dev sentences"):
        run(settings)
    Path(settings.data.train).write_text("")
    with pytest.raises(DataError, match=r"train\.conllu: has no words"):
        run(settings)
    Path(settings.data.train).unlink()
    with pytest.raises(DataError, match=r"train\.conllu: cannot be read"):
        run(settings)


def test_dev_labels_without_training_examples_are_named(tmp_path):
    settings = config(tmp_path)
    dev = Path(settings.data.dev)
    text = dev.read_text()
    row = "1\tw\t_\tSYM" + "\t_" * 6 + "\n\n"
    dev.write_text(text + row)
    with pytest.warns(UserWarning, match=r"dev\.conllu: the model does not know the tag SYM \(1\)"):
        run(settings)
    dev.write_text(row)
    with pytest.raises(
        DataError, match=r"dev\.conllu: the model does not know .*; it knows .*NOUN"
    ):
        run(config(tmp_path / "other", data={"dev": str(dev)}))


def test_words_with_spaces_need_the_setting_for_them(tmp_path):
    def with_spaces(spaces: str) -> Config:
        settings = config(
            tmp_path, "segmentation", data={"spaces": spaces}, training={"epochs": 15}
        )
        path = Path(settings.data.train)
        path.write_text(path.read_text().replace("Linux", "Linux 2"))
        return settings

    with pytest.raises(DataError, match=r"train\.conllu:\d+: .*white space.*data\.spaces"):
        run(with_spaces("boundary"))
    settings = with_spaces("auto")
    run(settings)
    (tagged,) = Tagger.load(settings.output).tag(["Linux 2有图书"])
    assert tagged.words == ("Linux 2", "有", "图书")


def test_the_output_must_be_a_folder(tmp_path):
    settings = config(tmp_path)
    Path(settings.output).write_text("")
    with pytest.raises(FileExistsError, match="is a file"):
        run(settings)
