"""The TOML files of the tables: their runs, errors in them, and the files of corpora."""

from __future__ import annotations

import re
from pathlib import Path
from typing import Any

import pytest

from bcrf.cli.config_file import read_config
from reproduction import ExperimentError, ExperimentSet, RunContext, Selection
from reproduction.data_folder import DataFolder
from reproduction.selection import RunSpec, run_specs
from tests.reproduction_cases import ANALYSIS, POS, SAMPLES, TIMING, experiment_set, tables

ROOT = Path(__file__).parents[2]
EXPERIMENTS = ROOT / "experiments"


@pytest.fixture(scope="module")
def real() -> ExperimentSet:
    paths = sorted(EXPERIMENTS.glob("*.toml"))
    return ExperimentSet.from_dicts(
        EXPERIMENTS, {path.stem: read_config(str(path)) for path in paths}
    )


# ------------------------------------------------------------------------------ the project's own


def test_all_tables_of_the_paper_exist(real):
    assert set(real.experiments) == {"pos", "segmentation", "ner", "ner-partial", "mean-field"}
    assert list(real.timings) == ["timing"]
    assert list(real.analyses) == ["analysis"]


@pytest.mark.parametrize(
    ("table", "corpora", "networks", "runs"),
    [
        ("pos", {"dutch", "english", "french", "german"}, {"0", "2"}, 4 * 2 * 4 * 5),
        ("segmentation", {"chinese", "japanese"}, {"0", "2", "4"}, 2 * 3 * 4 * 5),
        ("ner", {"conll2003"}, {"base", "large"}, 2 * 4 * 5),
        # two objectives; the literal reading once
        ("ner-partial", {"conll2003"}, {"base", "large"}, 2 * 2 * (5 + 1)),
    ],
)
def test_the_default_is_the_grid_of_the_paper(real, table, corpora, networks, runs):
    found = list(run_specs(real.experiments[table], Selection()))
    assert len(found) == len(set(found)) == runs
    assert {spec.corpus for spec in found} == corpora
    assert {spec.network for spec in found} == networks


def test_every_number_of_the_paper_has_a_run_and_a_decoder(real):
    count = {}
    for name, experiment in real.experiments.items():
        runs = set(run_specs(experiment, Selection()))
        for variant, network, corpus, objective, decoder in experiment.paper:
            assert RunSpec(name, corpus, network, variant, objective, 0) in runs
            assert decoder == "unstructured" or decoder in experiment.decoders
        count[name] = len(experiment.paper)
    assert count == {
        "pos": 96, "segmentation": 72, "ner": 24, "ner-partial": 20, "mean-field": 0,
    }  # fmt: skip


def test_every_speed_up_of_the_paper_is_measured(real):
    plan = real.timings["timing"]
    for measure, source, network, corpus, method in plan.paper:
        assert source in (plan.training if measure == "training" else plan.decoding)
        assert method in plan.methods(measure)[1:]
        experiment = real.experiments[source]
        assert corpus in experiment.corpora
        assert network in experiment.networks
    assert len(plan.paper) == 80


def test_extra_corpora_and_networks_are_run_only_if_selected(real):
    ner = real.experiments["ner"]
    assert {c.corpus for c in run_specs(ner, Selection())} == {"conll2003"}
    asked = list(run_specs(ner, Selection(languages=("wnut17",), layers=("minilm",), seeds=(7,))))
    assert {(c.corpus, c.network, c.seed) for c in asked} == {("wnut17", "minilm", 7)}
    chinese = list(run_specs(ner, Selection(languages=("uner_chinese",))))
    # A corpus runs the networks that it names, even if they are extra.
    assert {c.network for c in chinese} == {"0", "2", "minilm-long"}


def test_networks_have_the_hyperparameters_of_the_paper(real):
    for experiment in real.experiments.values():
        for spec in run_specs(experiment, Selection(seeds=(0,))):
            config = experiment.config(
                spec.corpus, spec.network, spec.variant, spec.objective, 0, "run", "train", "dev"
            )
            model = config.model
            assert (model.width, model.heads, model.hidden) == (768, 8, 2048)
            assert (model.transitions, config.optimizer.schedule) == ("pairs", "linear")
            assert config.optimizer.warmup == 0.1
            pretrained = model.pretrained is not None
            assert config.optimizer.learning_rate == (3e-5 if pretrained else 3e-4)
            characters = experiment.task == "pos" and model.layers > 0
            assert model.characters == ("cnn" if characters else "none")
            assert pretrained == (experiment.task == "ner")


@pytest.mark.parametrize("path", sorted(EXPERIMENTS.glob("*.toml")), ids=lambda p: p.stem)
def test_files_begin_with_their_command(path):
    comment = re.match(r"(#.*\n)+", path.read_text(encoding="utf-8"))
    assert comment
    assert f"\n#   python -m reproduction {path.stem} --data DIR\n" in comment[0]


# ---------------------------------------------------------------------------------------- choices


def test_runs_can_be_chosen(tmp_path):
    pos = experiment_set(tmp_path).experiments["pos"]
    everything = list(run_specs(pos, Selection()))
    assert [c.seed for c in everything] == [0] * 8 + [
        1
    ] * 8  # all runs of one seed, then those of the next
    assert {c.network for c in everything} == {"0"}
    chosen = list(
        run_specs(pos, Selection(("english",), ("0", "1"), (3,), ("bregman-10-relaxed", "crf")))
    )
    assert chosen == [
        RunSpec("pos", "english", network, "", objective, 3)
        for network in ("0", "1")
        for objective in ("bregman-10-relaxed", "crf")
    ]


def test_a_variant_may_have_seeds_of_its_own(tmp_path):
    partial = experiment_set(tmp_path).experiments["partial"]
    found = [(c.variant, c.seed) for c in run_specs(partial, Selection(objectives=("crf",)))]
    assert found == [("exclusive", 0), ("literal", 0), ("exclusive", 1)]


@pytest.mark.parametrize(
    ("selection", "message"),
    [
        (
            Selection(languages=("elvish",)),
            "languages: unknown name 'elvish'; expected english, klingon",
        ),
        (Selection(layers=("9",)), "layers: unknown name '9'; expected 0, 1"),
        (Selection(objectives=("magic",)), "objectives: objective must be one of unstructured"),
    ],
)
def test_unknown_choices_are_named(tmp_path, selection, message):
    which = experiment_set(tmp_path)
    context = RunContext(which.experiments, SAMPLES, tmp_path)
    with pytest.raises(ExperimentError, match=re.escape(message)):
        list(which.jobs("pos", selection, context))


def test_unknown_tables_are_named(tmp_path):
    which = experiment_set(tmp_path)
    context = RunContext(which.experiments, SAMPLES, tmp_path)
    with pytest.raises(ExperimentError, match=r"no table 'poss' in .*; expected one of pos, "):
        list(which.jobs("poss", Selection(), context))


def test_folders_of_runs_differ(tmp_path, real):
    for experiment in real.experiments.values():
        found = list(run_specs(experiment, Selection()))
        assert len({spec.folder(tmp_path) for spec in found}) == len(found)


# ---------------------------------------------------------------------------------- wrong tables


def without(values: dict[str, Any], key: str) -> dict[str, Any]:
    return {name: value for name, value in values.items() if name != key}


@pytest.mark.parametrize(
    ("table", "values", "message"),
    [
        ("pos", without(POS, "seeds"), "pos: seeds is missing; expected a list of distinct"),
        ("pos", without(POS, "kind"), "pos: kind must be one of accuracy, timing, analysis"),
        ("pos", POS | {"seeds": [0, 0]}, "pos: seeds must be a list of distinct integers"),
        ("pos", POS | {"seeds": [-1]}, "pos: seeds must be a list of distinct integers"),
        ("pos", POS | {"seeds": [True]}, "pos: seeds must be a list of distinct integers"),
        ("pos", POS | {"seed": 3}, "pos: unknown key 'seed'"),
        ("pos", POS | {"title": 3}, "pos: title must be a string, got 3"),
        ("pos", POS | {"task": "parsing"}, "pos, english, network 0: data.task: expected one of"),
        (
            "pos",
            POS | {"decoders": ["bregman"]},
            "pos: decoder must be one of viterbi, certified-K",
        ),
        ("pos", POS | {"objectives": ["magic"]}, "pos: objective must be one of"),
        ("pos", POS | {"networks": []}, "pos: networks must be a table of tables"),
        ("pos", POS | {"networks": {"0": 3}}, "pos: networks.0 must be a table, got 3"),
        ("pos", POS | {"networks": {"0": {"extra": 1}}}, "networks.0.extra must be true or false"),
        ("pos", POS | {"networks": {"0": {"size": 1}}}, "unknown key 'networks.0.size'"),
        (
            "pos",
            POS | {"networks": {"0": {"model": {"layer": 1}}}},
            "pos, english, network 0: unknown setting 'model.layer'",
        ),
        ("pos", POS | {"corpora": {"x": {}}}, "corpora.x.train is missing; expected a list of"),
        (
            "pos",
            without(POS, "paper")
            | {"corpora": {"x": POS["corpora"]["english"] | {"networks": ["7"]}}},
            "corpora.x.networks: unknown network '7'; expected 0, 1",
        ),
        (
            "pos",
            POS | {"paper": [{"network": "0", "corpora": ["english"], "rows": [["crf", 1.0]]}]},
            "paper[0].rows must be a list of rows with 3 values each",
        ),
        (
            "pos",
            POS | {"paper": [{"network": "0", "corpora": ["elvish"], "rows": []}]},
            "paper[0]: this table has no corpus elvish with the network 0",
        ),
        (
            "timing",
            TIMING | {"training": ["nothing"]},
            "timing: there is no accuracy table 'nothing'",
        ),
        ("timing", TIMING | {"rounds": 0}, "timing: rounds must be an integer of at least 1"),
        ("timing", TIMING | {"scaling": {}}, "timing: scaling.batch is missing"),
        ("analysis", ANALYSIS | {"objectives": ["x"]}, "analysis: objective must be one of"),
    ],
)
def test_wrong_tables_are_errors_that_name_the_key(tmp_path, table, values, message):
    changed = tables()
    changed[table] = values
    with pytest.raises(ExperimentError) as error:
        ExperimentSet.from_dicts(tmp_path, changed)
    assert message in str(error.value)


# ------------------------------------------------------------------------------------------ files


def test_files_are_found_by_name_in_any_subfolder(tmp_path):
    corpus = experiment_set(tmp_path).experiments["pos"].corpora["klingon"]
    deep = tmp_path / "data" / "a" / "b"
    deep.mkdir(parents=True)
    (deep / "tlh-train.conllu").write_text("x")
    (tmp_path / "data" / "tlh-dev.conllu").write_text("x")
    found = DataFolder(tmp_path / "data").locate(corpus)
    assert found.paths == {
        "train": deep / "tlh-train.conllu",
        "dev": tmp_path / "data" / "tlh-dev.conllu",
    }
    assert found.missing == f"there is no tlh or tlh2 under {tmp_path / 'data'}"
    (deep / "tlh2").write_text("x")
    assert DataFolder(tmp_path / "data").locate(corpus).missing is None
    assert DataFolder(tmp_path / "nowhere").locate(corpus).paths == {}


def test_the_end_of_a_path_distinguishes_files_of_one_name(tmp_path, real):
    for folder in ("wnut17", "other"):
        (tmp_path / folder).mkdir()
        for split in ("train", "dev", "test"):
            (tmp_path / folder / f"{split}.conll").write_text(folder)
    found = DataFolder(tmp_path).locate(real.experiments["ner"].corpora["wnut17"])
    assert {path.parent.name for path in found.paths.values()} == {"wnut17"}
    assert found.missing is None


def test_files_of_one_name_must_have_the_same_content(tmp_path):
    corpus = experiment_set(tmp_path).experiments["pos"].corpora["klingon"]
    for folder in ("a", "b"):
        (tmp_path / "data" / folder).mkdir(parents=True)
        (tmp_path / "data" / folder / "tlh-train.conllu").write_text("same")
    assert DataFolder(tmp_path / "data").locate(corpus).paths["train"].parent.name == "a"
    (tmp_path / "data" / "b" / "tlh-train.conllu").write_text("other")
    with pytest.raises(ExperimentError, match=r"files with the name tlh-train\.conllu under"):
        DataFolder(tmp_path / "data").locate(corpus)


def test_the_training_file_determines_the_edition(tmp_path):
    corpus = experiment_set(tmp_path).experiments["pos"].corpora["english"]
    files = DataFolder(SAMPLES).locate(corpus)
    values = files.description(corpus)
    assert values["edition"] == "unknown edition"
    digest = values["files"]["train"]["sha256"]
    assert values["files"]["train"]["name"] == "english-train.conllu"
    changed = tables()
    changed["pos"]["corpora"]["english"]["editions"] = {digest: "the sample"}
    corpus = ExperimentSet.from_dicts(tmp_path, changed).experiments["pos"].corpora["english"]
    assert files.description(corpus)["edition"] == "the sample"
