"""The commands of the tutorial run one after another, as its reader types them."""

from __future__ import annotations

import re
import shutil
import stat
import subprocess
import sys
from pathlib import Path

import pytest

import bcrf

PAGE = Path(__file__).resolve().parents[2] / "docs" / "tagger-tutorial.md"
SAMPLES = Path(bcrf.__file__).parent / "samples"

# `bcrf` of the tutorial: treebanks come from a folder, and trainings are short.
PROGRAM = """#!/bin/sh
case "$1" in
  data) shift; set -- data --from mirror "$@" ;;
  train) set -- "$@" --training.epochs 2 --training.device cpu ;;
esac
exec "{python}" -m bcrf "$@"
"""


def commands() -> str:
    return "\n".join(re.findall(r"```sh\n(.*?)```", PAGE.read_text(encoding="utf-8"), re.DOTALL))


def test_pictures_are_small() -> None:
    names = re.findall(r"\((pictures/[\w-]+\.png)\)", PAGE.read_text(encoding="utf-8"))
    assert len(names) == 4
    for name in names:
        assert (PAGE.parent / name).stat().st_size < 120_000


@pytest.mark.slow
def test_the_commands_of_the_tutorial_run(tmp_path: Path) -> None:
    mirror, programs = tmp_path / "mirror" / "en_ewt", tmp_path / "bin"
    mirror.mkdir(parents=True)
    programs.mkdir()
    for part, sample in (("train", "train"), ("dev", "dev"), ("test", "dev")):
        shutil.copy(SAMPLES / f"english-{sample}.conllu", mirror / f"en_ewt-ud-{part}.conllu")
    interpreter = f'#!/bin/sh\nexec "{sys.executable}" "$@"\n'  # a link would leave the venv
    for name, text in (("bcrf", PROGRAM), ("python", interpreter)):
        program = programs / name
        program.write_text(text.replace("{python}", sys.executable))
        program.chmod(program.stat().st_mode | stat.S_IXUSR)
    path = f"{programs}:/usr/bin:/bin"
    done = subprocess.run(
        ["bash", "-euo", "pipefail", "-c", commands()],
        cwd=tmp_path,
        env={"PATH": path, "HOME": str(tmp_path), "OMP_NUM_THREADS": "1"},
        capture_output=True,
        text=True,
    )
    assert done.returncode == 0, done.stderr
    assert (tmp_path / "report" / "report.html").exists()
    assert (tmp_path / "notes.conllu").read_text().startswith("# text = Ada")
    assert '"entities": [' in done.stdout
