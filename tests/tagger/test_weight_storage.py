"""Weights in half precision and in integers of 8 bits."""

import json
from pathlib import Path

import pytest
import torch

from bcrf.tagger import ModelError, Tagger, Tokenizer
from bcrf.tagger.model_folder.tensors import load_tensors, save_tensors
from bcrf.tagger.model_folder.weight_storage import compress, expand, stored_infos
from tests.tagger_cases import pairs, trained, weights_equal
from tests.tampering import change_description, reseal
from tests.tokenizer_cases import TEXT, load_tokenizer

STORAGES = ("float32", "float16", "int8")


@pytest.fixture(scope="module")
def tagger(tmp_path_factory) -> Tagger:
    model = {"width": 2048, "score_width": 64}  # most matrices are large enough to be compressed
    return trained(tmp_path_factory.mktemp("pos"), model=model, training={"epochs": 6})


def sentences() -> list[list[str]]:
    return [[word for word, _ in sentence] for sentence in pairs("pos")]


def weights() -> dict[str, torch.Tensor]:
    generator = torch.Generator().manual_seed(0)
    table = torch.randn(900, 64, generator=generator) * torch.logspace(-6, 6, 900).unsqueeze(1)
    return {
        "table": table.clamp(-6e4, 6e4),
        "kernel": torch.randn(200, 30, 9, generator=generator),
        "small": torch.randn(50, 50, generator=generator),
        "vector": torch.randn(60_000, generator=generator),
        "numbers": torch.arange(60_000).reshape(300, 200),
        "empty": torch.zeros(0, 64),
    }


# ------------------------------------------------------------------------------ compress and expand


@pytest.mark.parametrize("storage", STORAGES)
def test_weights_come_back_up_to_rounding(storage):
    before = weights()
    after = expand(compress(before, storage))
    assert after.keys() == before.keys()
    for name, weight in before.items():
        assert after[name].dtype == weight.dtype
        rows = weight.double().flatten(1) if weight.dim() > 1 else weight.double()
        error = (after[name].double() - weight).abs().reshape(rows.shape)
        if storage == "float32" or name in ("small", "vector", "numbers", "empty"):
            assert not error.any()
        elif storage == "float16":
            assert (error <= rows.abs() * 2**-11 + 2**-25).all()
        else:  # half of a step of the row
            step = rows.abs().amax(1, keepdim=True) / 127
            assert (error <= 0.501 * step).all()
            assert error.any()


def test_sizes():
    before = {"table": torch.randn(1000, 64)}
    bytes_of = {
        storage: sum(tensor.nbytes for tensor in compress(before, storage).values())
        for storage in STORAGES
    }
    assert bytes_of == {"float32": 256_000, "float16": 128_000, "int8": 64_000 + 4_000}


def test_rows_of_zeros_and_of_tiny_numbers():
    table = torch.zeros(900, 64)
    table[1] = 1e-45
    table[2] = -1e-30
    after = expand(compress({"table": table}, "int8"))["table"]
    assert after.isfinite().all()
    assert not after[:2].any()
    torch.testing.assert_close(after[2], table[2])


def test_compressing_twice_changes_nothing():
    once = expand(compress(weights(), "int8"))
    twice = expand(compress(once, "int8"))
    for name, weight in once.items():
        torch.testing.assert_close(twice[name], weight, rtol=1e-6, atol=0)


@pytest.mark.parametrize("storage", STORAGES)
def test_the_infos_are_those_of_the_file(tmp_path, storage):
    from bcrf.tagger.model_folder.description import weight_infos

    save_tensors(tmp_path / "model.safetensors", compress(weights(), storage))
    on_meta = {name: weight.to("meta") for name, weight in weights().items()}
    assert weight_infos(tmp_path) == stored_infos(on_meta, storage)


@pytest.mark.parametrize("storage", ["float16", "int8"])
@pytest.mark.parametrize("value", [float("nan"), float("inf"), 1e30])
def test_weights_that_cannot_be_stored_are_named(storage, value):
    table = torch.zeros(900, 64)
    table[3, 4] = value
    if storage == "int8" and value == 1e30:
        assert expand(compress({"table": table}, storage))["table"][3, 4] == pytest.approx(1e30)
        return
    with pytest.raises(ValueError, match=r"^table: a weight"):
        compress({"table": table}, storage)


def test_an_unknown_storage_is_an_error():
    with pytest.raises(ValueError, match=r"one of 'float32', 'float16', 'int8'; got 'int4'"):
        compress({}, "int4")


# ------------------------------------------------------------------------------------ model folders


@pytest.mark.parametrize("storage", ["float16", "int8"])
def test_a_compressed_model_is_smaller_and_tags_alike(tagger, tmp_path, storage):
    tagger.save(tmp_path / "full")
    tagger.save(tmp_path / "compressed", storage)
    full, compressed = (
        (tmp_path / name / "model.safetensors").stat().st_size for name in ("full", "compressed")
    )
    assert compressed < {"float16": 0.6, "int8": 0.4}[storage] * full
    again = Tagger.load(tmp_path / "compressed")
    assert all(p.dtype == torch.float32 for p in again.model.parameters())
    assert not weights_equal(again, tagger)
    found, expected = (one.tag(sentences(), probabilities=True) for one in (again, tagger))
    for a, b in zip(found, expected, strict=True):
        assert a.tags == b.tags
        assert a.probabilities == pytest.approx(b.probabilities, abs=0.02)


def test_a_model_in_float32_has_no_new_key(tagger, tmp_path):
    tagger.save(tmp_path / "full")
    assert "storage" not in json.loads((tmp_path / "full" / "model.json").read_text())


def test_another_storage_than_that_of_the_weights_is_an_error(tagger, tmp_path):
    tagger.save(tmp_path / "model", "int8")
    for storage, message in (
        ("float32", r"model\.safetensors: .* is I8 .*; expected F32"),
        ("float16", r"model\.safetensors: .* is I8 .*; expected F16"),
        (["int8"], r"model\.json: storage must be one of"),
    ):
        change_description(tmp_path / "model", lambda d, value=storage: d.update(storage=value))
        with pytest.raises(ModelError, match=message):
            Tagger.load(tmp_path / "model")


@pytest.mark.parametrize("change", ["missing", "shape", "nan"])
def test_damaged_scales_are_an_error(tagger, tmp_path, change):
    tagger.save(tmp_path / "model", "int8")
    path: Path = tmp_path / "model" / "model.safetensors"
    # The tensors of a file are mapped into memory, and the file is written anew.
    stored = {name: tensor.clone() for name, tensor in load_tensors(path).items()}
    name = next(name for name in stored if name.endswith("/scale"))
    if change == "missing":
        del stored[name]
    elif change == "shape":
        stored[name] = stored[name][1:]
    else:
        stored[name][0] = float("nan")
    save_tensors(path, stored)
    reseal(tmp_path / "model")
    with pytest.raises(ModelError, match=r"model\.safetensors: "):
        Tagger.load(tmp_path / "model")


def test_a_tokenizer_is_compressed_with_its_tagger(tagger, tmp_path):
    tagger.tokenizer = tokenizer = load_tokenizer(tmp_path)
    try:
        tagger.save(tmp_path / "both", "int8")
    finally:
        tagger.tokenizer = None
    inner = json.loads((tmp_path / "both" / "tokenizer" / "model.json").read_text())
    assert inner["storage"] == "int8"
    expected = tokenizer.split(TEXT)
    for one in (Tagger.load(tmp_path / "both").tokenizer, Tokenizer.load(tmp_path / "both")):
        assert [s.words for s in one.split(TEXT)] == [s.words for s in expected]
