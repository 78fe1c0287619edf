"""Integrations without the packages that they need."""

from __future__ import annotations

import subprocess
import sys

import pytest

from tests.project.documentation import ROOT


def test_spacy_is_missing() -> None:
    program = "import sys; sys.modules['spacy'] = None; import bcrf; import bcrf.spacy"
    done = subprocess.run([sys.executable, "-c", program], capture_output=True, text=True)
    assert done.returncode == 1
    last = done.stderr.strip().splitlines()[-1]
    assert last == "ImportError: bcrf.spacy needs the package spacy: pip install '.[spacy]'"


def test_integration_tests_name_their_command() -> None:
    program = (
        "import sys, importlib.util as u; find = u.find_spec\n"
        "u.find_spec = lambda name, *rest: None if name == 'spacy' else find(name, *rest)\n"
        "import pytest; sys.exit(pytest.main(['--collect-only', '-q', 'integration_tests']))"
    )
    done = subprocess.run([sys.executable, "-c", program], capture_output=True, text=True, cwd=ROOT)
    assert done.returncode == pytest.ExitCode.USAGE_ERROR
    assert "make test-integrations" in done.stderr
