"""Untrusted model folders: no code runs, no file outside is read, time and memory are limited.

An attacker can compute checksums too, so all of these folders have the right checksums.
"""

import io
import json
import os
import shutil
import sys
from pathlib import Path

import pytest
import safetensors.torch
import torch

from bcrf.cli.streams import is_terminal, reserved_standard_input, standard_input
from bcrf.tagger import ModelError, Tagger
from bcrf.tagger.model_folder.model_files import is_inside, open_model_file
from bcrf.tagger.nn import PretrainedEncoder
from tests.cli_cases import bcrf
from tests.tagger_cases import SMALL, config, run, trained, write
from tests.tampering import change_description, change_encoder_config, reseal

posix = pytest.mark.skipif(os.name != "posix", reason="needs links, pipes and devices")


@pytest.fixture(scope="module")
def original(tmp_path_factory) -> Path:
    """A model without a pretrained encoder."""
    folder = tmp_path_factory.mktemp("trust")
    trained(folder, training={"epochs": 1}).save(folder / "model")
    return folder / "model"


@pytest.fixture
def model(original, tmp_path) -> Path:
    return shutil.copytree(original, tmp_path / "model")


@pytest.fixture(scope="module")
def original_encoder(tmp_path_factory) -> Path:
    """A model with a tiny pretrained encoder."""
    pytest.importorskip("transformers")
    from tests.tagger.test_nn_pretrained import bert, tokenizer

    folder = tmp_path_factory.mktemp("trust-encoder")
    bert().save_pretrained(folder / "source")
    tokenizer().save_pretrained(folder / "source")
    settings = config(folder, model={"pretrained": str(folder / "source")}, training={"epochs": 1})
    run(settings)
    Tagger.load(settings.output).save(folder / "model")
    return folder


@pytest.fixture
def encoder_model(original_encoder, tmp_path) -> Path:
    return shutil.copytree(original_encoder / "model", tmp_path / "model")


def refused(folder: Path, message: str) -> None:
    with pytest.raises(ModelError, match=message):
        Tagger.load(folder)


# --------------------------------------------------------------------------------------------- code

EVIL = """
import pathlib
pathlib.Path({marker!r}).write_text("code was run")
from transformers import BertConfig, BertModel, BertTokenizerFast
class EvilConfig(BertConfig):
    model_type = "evil"
class EvilModel(BertModel):
    config_class = EvilConfig
class EvilTokenizer(BertTokenizerFast):
    pass
"""


def request_code(encoder: Path, marker: Path) -> None:
    """Let an encoder's files ask for code that creates the file `marker`."""
    (encoder / "evil.py").write_text(EVIL.format(marker=str(marker)))
    for name, references in {
        "config.json": {"AutoConfig": "evil.EvilConfig", "AutoModel": "evil.EvilModel"},
        "tokenizer_config.json": {"AutoTokenizer": ["evil.EvilTokenizer", "evil.EvilTokenizer"]},
    }.items():
        path = encoder / name
        values = json.loads(path.read_text()) | {"auto_map": references, "model_type": "evil"}
        path.write_text(json.dumps(values))


@pytest.mark.slow
@pytest.mark.parametrize("answer", ["y", "1", "yes"])
@pytest.mark.parametrize("hidden", [False, True], ids=["with-file", "file-hidden"])
def test_no_command_runs_code_of_a_model(encoder_model, tmp_path, answer, hidden):
    """The text begins with a line that transformers would read as the consent to run code."""
    marker = tmp_path / "marker"
    request_code(encoder_model / "encoder", marker)
    if hidden:  # the file name is permitted, but the key in the file is refused
        (encoder_model / "encoder" / "evil.py").rename(encoder_model / "encoder" / "evil.txt")
    reseal(encoder_model)
    gold = write(tmp_path, "pos")
    for command in (["tag"], ["evaluate", str(gold)]):
        arguments = [command[0], str(encoder_model), *command[1:]]
        found = bcrf(*arguments, stdin=f"{answer}\n{answer}\n{answer}\n", code=1)
        assert found.stderr.startswith("bcrf: error: ")
        assert found.stderr.count("\n") == 1
        assert found.stdout == ""
    assert not marker.exists()


@pytest.mark.parametrize("listed", [True, False])
def test_python_code_in_a_model_is_refused_by_name(encoder_model, tmp_path, monkeypatch, listed):
    marker = tmp_path / "marker"
    monkeypatch.setattr(sys, "stdin", io.StringIO("y\ny\ny\n"))
    files = {p.relative_to(encoder_model).as_posix() for p in encoder_model.rglob("*.*")}
    request_code(encoder_model / "encoder", marker)
    reseal(encoder_model, None if listed else files)
    refused(encoder_model, r"evil\.py")
    (encoder_model / "encoder" / "evil.py").unlink()
    reseal(encoder_model)
    refused(encoder_model, r"encoder.*has the key 'auto_map'")
    assert not marker.exists()
    assert sys.stdin.read() == "y\ny\ny\n"  # the question was not asked


def test_python_code_of_an_encoder_is_refused(original_encoder, tmp_path, monkeypatch):
    """The encoder is the one from which training starts."""
    marker, source = tmp_path / "marker", tmp_path / "source"
    shutil.copytree(original_encoder / "source", source)
    monkeypatch.setattr(sys, "stdin", io.StringIO("y\ny\ny\n"))
    request_code(source, marker)
    with pytest.raises(ValueError, match=r"evil\.py is Python code, which bcrf never runs"):
        PretrainedEncoder.load(str(source))
    (source / "evil.py").rename(tmp_path / "evil.py")
    with pytest.raises(ValueError, match=r"config\.json has the key 'auto_map'"):
        PretrainedEncoder.load(str(source))
    with pytest.raises(ValueError, match="auto_map"):
        run(config(tmp_path / "run", model={"pretrained": str(source)}))
    assert not marker.exists()
    assert sys.stdin.read() == "y\ny\ny\n"


def test_weights_of_an_encoder_are_never_pickles(original_encoder, tmp_path):
    source = shutil.copytree(original_encoder / "source", tmp_path / "source")
    weights = safetensors.torch.load_file(source / "model.safetensors")
    torch.save(weights, source / "pytorch_model.bin")
    (source / "model.safetensors").unlink()
    with pytest.raises(OSError, match=r"pretrained: cannot load .*safetensors"):
        PretrainedEncoder.load(str(source))


def test_only_the_text_reader_gets_standard_input(monkeypatch):
    text = io.TextIOWrapper(io.BytesIO(b"yes\n"))
    monkeypatch.setattr(sys, "stdin", text)
    with reserved_standard_input():
        with pytest.raises(EOFError):
            input()
        assert not is_terminal()
        assert standard_input().read() == b"yes\n"
    assert sys.stdin is text


def test_standard_input_may_be_closed(monkeypatch):
    monkeypatch.setattr(sys, "stdin", None)
    with reserved_standard_input():
        assert not is_terminal()
        with pytest.raises(Exception, match="standard input is closed; name a FILE"):
            standard_input()
    assert sys.stdin is None


# ------------------------------------------------------------------------------------------- schema


def put(key: str, value: object):
    return lambda values: values.__setitem__(key, value)


@pytest.mark.parametrize(
    ("change", "message"),
    [
        (put("version", True), r"expected the format version 1, found True"),
        (put("version", 1.0), r"expected the format version 1, found 1\.0"),
        (put("files", {}), r"its list of files lacks model\.safetensors"),
        (put("files", []), r"'files' must be a dict, found a list"),
        (
            put("files", {"model.safetensors": "00"}),
            r"expected the SHA-256 of 'model\.safetensors'",
        ),
        (put("files", {"model.safetensors": 7}), r"expected the SHA-256 of 'model\.safetensors'"),
        (lambda v: v["files"].update({"../model.json": "0" * 64}), r"is not the name of a file"),
        (lambda v: v["files"].update({"/etc/passwd": "0" * 64}), r"is not the name of a file"),
        (lambda v: v["files"].update({"encoder/../x.json": "0" * 64}), r"is not the name of"),
        (lambda v: v["files"].update({"encoder/a/b.json": "0" * 64}), r"is not the name of"),
        (lambda v: v["files"].update({"encoder/x.bin": "0" * 64}), r"is not the name of"),
        (lambda v: v["files"].update({"encoder/x.py": "0" * 64}), r"is not the name of"),
        (lambda v: v.pop("files"), r"'files' is missing"),
        (lambda v: v.pop("task"), r"'task' is missing"),
        (put("info", 7), r"'info' must be a dict, found a int"),
        (put("decoder", None), r"'decoder' must be a str"),
        (put("extra", 1), r"unknown key 'extra'"),
        (lambda v: v["task"].update(labels="abc"), r"labels must be a list of strings"),
        (lambda v: v["task"].update(labels=["A"] * 12), r"labels must be distinct"),
        (lambda v: v["task"].update(labels=["\ud800"]), r"is damaged"),
        (lambda v: v["model"].update(layers=True), r"layers: expected an integer"),
        (lambda v: v["model"].update(width="16"), r"width: expected an integer"),
        (lambda v: v["model"].update(dropout=float("nan")), r"dropout: expected a number"),
        (lambda v: v["vocabularies"]["words"].update(tokens=7), r"tokens of a vocabulary"),
        (put("vocabularies", {}), r"does not fit this version"),
        (put("repair", "magic"), r"repair must be one of"),
        (put("decoder", "magic"), r"must be one of"),
    ],
)
def test_the_schema_is_strict(model, change, message):
    change_description(model, change)
    refused(model, message)


def test_deeply_nested_json_is_an_error(model):
    text = (model / "model.json").read_text()
    (model / "model.json").write_text(text[:-2] + ', "x": ' + "[" * 100_000 + "]" * 100_000 + "}")
    refused(model, r"model\.json: is damaged: its JSON is nested too deeply")


def test_paths_inside_a_folder():
    assert all(map(is_inside, ["a", "a/b", "a.b/c", ".a"]))
    outside = ["", ".", "..", "../a", "a/../b", "/a", "a//b", "a/", "./a", "a\\b", "c:a", "a\0"]
    assert not any(map(is_inside, outside))


# ----------------------------------------------------------------------------------------- weights


def change_weights(folder: Path, change) -> None:  # type: ignore[no-untyped-def]
    weights = safetensors.torch.load_file(folder / "model.safetensors")
    change(weights)
    safetensors.torch.save_file(weights, folder / "model.safetensors")
    reseal(folder)


@pytest.mark.parametrize(
    ("change", "message"),
    [
        (
            lambda w: w["scorer.tags.bias"].fill_(torch.nan),
            r"'scorer\.tags\.bias' has entries that",
        ),
        (lambda w: w["scorer.start"].fill_(torch.inf), r"'scorer\.start' has entries that"),
        (lambda w: w.pop("scorer.start"), r"lacks the weights 'scorer\.start'"),
        (lambda w: w.update(more=torch.ones(2)), r"has no weights 'more'"),
        (
            lambda w: w.update({"scorer.start": w["scorer.start"].double()}),
            r"'scorer\.start' is F64 .*; expected F32",
        ),
    ],
)
def test_weights_must_fit_the_network(model, change, message):
    change_weights(model, change)
    refused(model, rf"model\.safetensors: {message}|model\.safetensors: .*{message}")


@pytest.mark.parametrize("decoder", ["viterbi", "bregman-10", "mean_field-5", "unstructured"])
def test_weights_whose_scores_overflow_are_a_model_error(model, decoder):
    change_weights(model, lambda w: [tensor.fill_(1e30) for tensor in w.values()])
    tagger = Tagger.load(model)
    with pytest.raises(ModelError, match=r"<input>:1: the model cannot tag this sentence.* is inf"):
        tagger.tag([["the", "cat"]], decoder=decoder)


@pytest.mark.parametrize("content", [b"", b"x", b"\xff" * 8, b"\xff" * 100, b"\0" * 100])
def test_damaged_weights_are_an_error_in_one_line(model, content):
    (model / "model.safetensors").write_bytes(content)
    reseal(model)
    with pytest.raises(ModelError, match=r"model\.safetensors: has been changed") as error:
        Tagger.load(model)
    assert "\n" not in str(error.value)


# ---------------------------------------------------------------------------------------- resources


@pytest.mark.parametrize(
    ("change", "message"),
    [
        (
            lambda v: v["model"].update(layers=10**9),
            r"layers: found 1000000000 layers; .* at most 256",
        ),
        (lambda v: v["model"].update(width=10**9), r"model\.safetensors: .*expected F32"),
        (lambda v: v["model"].update(score_width=10**12), r"model\.safetensors: .*expected F32"),
        (lambda v: v["model"].update(objective="bregman-1000000000"), r"1000000000 iterations"),
        (lambda v: v["model"].update(objective="bregman-" + "9" * 30), r"9{30} iterations"),
        (put("decoder", "mean_field-1000000000"), r"1000000000 iterations; .* at most 10000"),
        (
            lambda v: v["task"].update(labels=[str(i) for i in range(10**5)]),
            r"labels: found 100000 labels; a model may have at most 4096",
        ),
        (
            lambda v: v["vocabularies"]["words"]["tokens"].extend(map(str, range(10**5))),
            r"model\.safetensors: .*expected F32",
        ),
    ],
)
def test_sizes_are_checked_before_anything_is_built(model, change, message):
    change_description(model, change)
    refused(model, message)


@pytest.mark.parametrize(
    ("changes", "message"),
    [
        ({"num_hidden_layers": 10**9}, r"'num_hidden_layers' is 1000000000; .* at most 1,048,576"),
        ({"num_hidden_layers": 10**6}, r"more than \d+ modules"),
        ({"num_labels": 10**9}, r"'num_labels' is 1000000000"),
        ({"hidden_size": 10**6, "num_attention_heads": 1}, r"model\.safetensors: .*expected F32"),
        ({"vocab_size": 10**6}, r"model\.safetensors: .*expected F32"),
        ({"hidden_size": "16"}, r"pretrained: cannot load|does not fit"),
        ({"hidden_size": None}, r"pretrained: cannot load|does not fit"),
        ({"hidden_size": [1]}, r"pretrained: cannot load|does not fit"),
        ({"model_type": 7}, r"pretrained: cannot load|does not fit"),
        ({"model_type": "nothing"}, r"pretrained: cannot load"),
        ({"hidden_act": {"a": 1}}, r"pretrained: cannot load|does not fit"),
    ],
)
def test_the_configuration_of_an_encoder_is_not_trusted(encoder_model, changes, message):
    change_encoder_config(encoder_model, **changes)
    with pytest.raises(ModelError, match=message) as error:
        Tagger.load(encoder_model)
    assert "\n" not in str(error.value)


@pytest.mark.parametrize(
    "content",
    [b"", b"[]", b"7", b"{}", b'{"model": 7}', b'{"version": [], "model": {}}', b"[" * 10**5],
)
@pytest.mark.parametrize("name", ["tokenizer.json", "tokenizer_config.json", "config.json"])
def test_other_files_of_an_encoder_are_not_trusted(encoder_model, name, content):
    (encoder_model / "encoder" / name).write_bytes(content)
    reseal(encoder_model)
    if name == "tokenizer_config.json" and content == b"{}":
        Tagger.load(encoder_model)  # a tokenizer needs none of its settings
        return
    with pytest.raises(ModelError, match=r"[^\n]*encoder[^\n]*") as error:
        Tagger.load(encoder_model)
    assert "\n" not in str(error.value)


def test_a_tokenizer_without_an_unknown_piece_is_a_model_error(encoder_model):
    path = encoder_model / "encoder" / "tokenizer.json"
    tokenizer = json.loads(path.read_text())
    tokenizer["model"]["unk_token"] = "missing"
    path.write_text(json.dumps(tokenizer))
    reseal(encoder_model)
    with pytest.raises(ModelError, match=r"the tokenizer cannot split these words"):
        Tagger.load(encoder_model).tag([["zzz", "\u0416"]])


def test_files_that_are_not_listed_are_not_read(encoder_model):
    expected = [t.tags for t in Tagger.load(encoder_model).tag([["the", "cat", "abc"]])]
    path = encoder_model / "encoder" / "tokenizer.json"
    other = json.loads(path.read_text())
    files = json.loads((encoder_model / "model.json").read_text())["files"]
    # transformers would prefer these to tokenizer.json, or add their content to it.
    (encoder_model / "encoder" / "added_tokens.json").write_text('{"the": 5000}')
    (encoder_model / "encoder" / "tokenizer.4.0.0.json").write_text(json.dumps(other))
    (encoder_model / "encoder" / "chat_template.jinja").write_text("{{ 1 }}")
    reseal(encoder_model, set(files))
    tagger = Tagger.load(encoder_model)
    assert [t.tags for t in tagger.tag([["the", "cat", "abc"]])] == expected
    assert "5000" not in str(tagger.model.encoder.tokenizer.get_vocab().values())


@posix
@pytest.mark.parametrize("kind", ["device", "link", "pipe", "folder", "sparse"])
@pytest.mark.parametrize("name", ["model.safetensors", "encoder/tokenizer.json", "model.json"])
def test_only_model_files_of_a_limited_size_are_opened(encoder_model, tmp_path, name, kind):
    path = encoder_model / name
    content = path.read_bytes()
    path.unlink()
    if kind == "device":
        path.symlink_to("/dev/zero")
    elif kind == "link":
        (tmp_path / "outside").write_bytes(content)
        path.symlink_to(tmp_path / "outside")
    elif kind == "pipe":
        os.mkfifo(path)
    elif kind == "folder":
        path.mkdir()
    else:
        with path.open("wb") as stream:
            stream.truncate(1 << 42)  # a sparse file of four terabytes
    expected = {
        "device": "is a symbolic link|holds no model",
        "link": "is a symbolic link",
        "pipe": "expected a regular file|holds no model",
        "folder": "expected a regular file|holds no model",
        "sparse": r"has 4,398,046,511,104 bytes; expected at most",
    }
    refused(encoder_model, expected[kind])


@posix
def test_links_to_and_inside_a_model_folder(encoder_model, tmp_path):
    """The model's own folder may be a link, those within it may not."""
    (tmp_path / "link").symlink_to(encoder_model)
    Tagger.load(tmp_path / "link")
    (encoder_model / "encoder").rename(tmp_path / "elsewhere")
    (encoder_model / "encoder").symlink_to(tmp_path / "elsewhere")
    refused(encoder_model, r"encoder: is a symbolic link")


def test_a_file_outside_is_not_opened(tmp_path):
    (tmp_path / "secret").write_text("x")
    (tmp_path / "model").mkdir()
    with (
        pytest.raises(ModelError, match="is not inside the folder"),
        open_model_file(tmp_path / "model", "../secret", 10),
    ):
        pass


def test_a_description_beyond_the_limits_is_not_written(tmp_path, monkeypatch):
    tagger = trained(tmp_path, model=SMALL, training={"epochs": 1})
    tagger.save(tmp_path / "model")
    monkeypatch.setattr("bcrf.tagger.model_folder.description.MAX_DESCRIPTION_BYTES", 100)
    with pytest.raises(ModelError, match=r"would have .* bytes, .*; raise data\.min_count"):
        tagger.save(tmp_path / "model")
    monkeypatch.undo()
    Tagger.load(tmp_path / "model")
