"""The compiler accepts every form in which the library launches its kernels.

The interpreter accepts more than the compiler does, so these builds run in a process without it.
"""

from __future__ import annotations

import json
import os
import subprocess
import sys
from typing import Any

import pytest

from tests.triton.support import needs_triton

pytestmark = [needs_triton, pytest.mark.slow]

PROBE = """
import importlib, json, sys
import triton
from triton.backends.compiler import GPUTarget
from triton.compiler import ASTSource

built = []
for module, name, shared, constants in json.loads(sys.argv[1]):
    builds = importlib.import_module(f"bcrf.kernels.triton.{module}").BUILDS
    (build,) = (x for x in builds if x.name == name)
    signature, values, options = build.arguments("fp32", 17, shared)
    signature |= dict.fromkeys(constants, "constexpr")
    source = ASTSource(build.kernel, signature, values | constants)
    built.append(triton.compile(source, target=GPUTarget("cuda", 80, 32), options=options).name)
print(json.dumps(built))
"""

# Launches turn integers that are 1, and tensors that are None, into constants.
STRIDES = ("unary_batch", "unary_position", "pair_batch", "pair_edge", "pair_from")
ONES = dict.fromkeys(("max_length", "num_tags", *STRIDES), 1)
NO_PAIRS = {"pair": None, "start_end": None}
VARIANTS: dict[tuple[str, str], list[dict[str, Any]]] = {
    ("crf", "crf_messages"): [
        {"tags": None},
        {"forward": None, "backward": None},
        {"tags": None, "forward": None, "backward": None, "start_end": None},
    ],
    ("crf", "crf_gradients"): [
        {"tags": None},
        {"by_unary": None},
        {"by_pair": None, "tags": None},
        {"SUMMED": False, "CHUNK": 4},
    ],
    ("viterbi", "viterbi"): [],
    ("reachability", "reachable_tags"): [{"batch": 1}],
    ("projections", "bregman_projections"): [
        {"initial": None, "first": 1},
        {"live": None, "initial": None, "start_end": None},
        {"initial": None, "GAUGE_RIGHT": True, "steps": 1},
        {"live_batch": 1, "tile": 1, "window": 1},
    ],
    ("bregman_kernels", "bregman_value"): [
        {"tags": None},
        {"terms": None},
        {"tags": None, "terms": None, "by_unary": None},
    ],
    ("bregman_kernels", "bregman_results"): [{"OUTGOING": True}],
    ("bregman_kernels", "bregman_best_tags"): [{"OUTGOING": True}],
    ("partial_value", "bregman_partial_value"): [
        {"terms": None, "allowed_terms": None},
        {"terms": None, "allowed_terms": None, "by_unary": None},
    ],
    ("pair_gradient", "bregman_pair_gradient"): [{"tags": None}, {"SUMMED": False}],
    ("pair_gradient", "bregman_partial_pair_gradient"): [{"SUMMED": False}],
    ("certificate", "certificate_arcs"): [],
    ("certificate", "certificate_check"): [],
}


@pytest.mark.parametrize("names", VARIANTS, ids="-".join)
@pytest.mark.parametrize("shared", [True, False])
def test_variants_compile(names: tuple[str, str], shared: bool) -> None:
    variants = [*VARIANTS[names], ONES, *([NO_PAIRS] if shared else [{"follow": None}])]
    jobs = json.dumps([[*names, shared, constants] for constants in variants])
    environment = {k: v for k, v in os.environ.items() if k != "TRITON_INTERPRET"}
    done = subprocess.run(
        [sys.executable, "-c", PROBE, jobs], env=environment, capture_output=True, text=True
    )
    assert not done.returncode, done.stderr
    assert len(json.loads(done.stdout.splitlines()[-1])) == len(variants)
