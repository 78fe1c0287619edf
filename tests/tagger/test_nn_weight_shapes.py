"""The shapes of the weights, which are computed without a network of that size."""

import dataclasses
import subprocess
import sys
from pathlib import Path

import pytest

from bcrf.tagger.nn import TaggerModel, weight_shapes
from tests.tagger.test_nn_model import BIO, SIZES, TINY

CHOICES = [
    {},
    {"layers": 2},
    {"characters": "cnn"},
    {"transitions": "shared"},
    {"objective": "unstructured"},
]


@pytest.mark.parametrize("structure", [None, BIO])
@pytest.mark.parametrize("choices", CHOICES, ids=str)
def test_weight_shapes_are_those_of_the_network(choices, structure):
    config = dataclasses.replace(TINY, **choices)
    found = weight_shapes(config, SIZES, structure)
    expected = TaggerModel(config, SIZES, structure).state_dict()
    assert all(weight.is_meta for weight in found.values())
    assert {name: (w.shape, w.dtype) for name, w in found.items()} == {
        name: (w.shape, w.dtype) for name, w in expected.items()
    }


def test_weight_shapes_do_not_import_the_compiler_of_torch():
    """Some operations on the device "meta" import it, which takes a second and 100 MB."""
    probe = """
import sys
from tests.tagger.test_nn_weight_shapes import (
    BIO, CHOICES, SIZES, TINY, dataclasses, weight_shapes
)
for name in [name for name in sys.modules if name.startswith("torch._dynamo")]:
    raise SystemExit(f"the test itself has imported {name}")
for choices in CHOICES:
    for structure in (None, BIO):
        weight_shapes(dataclasses.replace(TINY, **choices), SIZES, structure)
        assert "torch._dynamo" not in sys.modules, (choices, structure)
"""
    subprocess.run([sys.executable, "-c", probe], check=True, cwd=Path(__file__).parents[2])
