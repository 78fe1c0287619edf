"""The command `bcrf` itself: help, exit codes, error messages, terminals."""

from __future__ import annotations

import importlib
import os
import re
import signal
import subprocess
import sys
import threading
import time
from pathlib import Path
from types import ModuleType

import pytest

from bcrf.cli import main
from bcrf.cli.errors import UserError, explain, import_extra
from bcrf.cli.main import COMMANDS
from bcrf.cli.terminal import plain_table
from bcrf.suggestions import did_you_mean
from bcrf.tagger import ModelError
from bcrf.tagger.data import DataError
from bcrf.tagger.fetching import FetchError
from tests.cli_cases import bcrf

ROOT = Path(__file__).parents[2]


def test_version_and_help():
    version = re.search(r'^version = "(.*)"', (ROOT / "pyproject.toml").read_text(), re.MULTILINE)
    assert version
    assert bcrf("--version").stdout == f"bcrf {version[1]}\n"
    shown = bcrf("--help").stdout
    for command, purpose in COMMANDS.items():
        assert re.search(rf"^  {command} +{purpose}$", shown, re.MULTILINE)


@pytest.mark.parametrize("command", COMMANDS)
def test_every_command_has_help(command, capsys):
    with pytest.raises(SystemExit) as exit:
        main([command, "--help"])
    assert exit.value.code == 0
    shown = capsys.readouterr().out
    assert shown.startswith(f"usage: bcrf {command} ")
    assert max(map(len, shown.splitlines())) <= 100


def test_the_documentation_names_only_existing_options(capsys):
    page = (ROOT / "docs" / "cli.md").read_text()
    sections = dict(re.findall(r"^## bcrf (\w+)$(.*?)(?=^## |\Z)", page, re.MULTILINE | re.DOTALL))
    assert sorted(sections) == sorted(COMMANDS)
    for command, text in sections.items():
        with pytest.raises(SystemExit):
            main([command, "--help"])
        known = set(re.findall(r"--\w[\w.-]*", capsys.readouterr().out))
        named = set(re.findall(r"--\w[\w.-]*", text)) - {"--help", "--nproc-per-node"}
        assert named
        assert named <= known


def test_unknown_commands_are_usage_errors(capsys):
    assert "there is no command 'tga'; did you mean tag?" in bcrf("tga", code=2).stderr
    assert "there is no command 'xyz'; expected demo, train, " in bcrf("xyz", code=2).stderr
    for name in ("reproduce", "reproduction"):
        errors = bcrf(name, "--data", "data", code=2).stderr
        assert f"there is no command {name!r}; in a checkout of the project, `python -m " in errors
        assert "`python -m reproduction` runs the experiments of the paper\n" in errors
    assert main([]) == 2
    assert capsys.readouterr().out.startswith("usage: bcrf COMMAND")
    for arguments in (["check"], ["evaluate"], ["--nothing"], ["demo", "--nothing"]):
        with pytest.raises(SystemExit) as exit:
            main(arguments)
        assert exit.value.code == 2


@pytest.mark.parametrize(
    ("arguments", "message"),
    [
        (
            ["tag", "MODEL", "--devise", "cpu"],
            "no option --devise; did you mean --device?",
        ),
        (["tag", "MODEL", "--zzz"], "there is no option --zzz\n"),
        (["evaluate", "A", "B", "C"], "unexpected argument 'C'"),
        (["evaluate"], "expected MODEL, FILE\n"),
        (["tag", "MODEL", "--window"], "--window: expected a value"),
        (["tag", "MODEL", "--window", "x"], "--window: expected a whole number, got 'x'"),
        (["tag", "MODEL", "--threads", "0"], "--threads: expected at least 1, got 0"),
        (
            ["tag", "MODEL", "--repair", "rules"],
            "--repair: expected rule, mbr or none, got 'rules'; did you mean rule?",
        ),
        (["train"], "expected CONFIG, or at least --output and --data.train"),
        (["train", "--epochs", "3"], "no option --epochs; did you mean --training.epochs?"),
        (["train", "--taks", "ner"], "no option --taks; did you mean --data.task?"),
        (["train", "--modle.layers=3"], "no option --modle.layers; did you mean --model.layers?"),
        (["--versoin"], "there is no option --versoin; did you mean --version?"),
    ],
)
def test_errors_about_wrong_options(arguments, message, capsys):
    with pytest.raises(SystemExit) as exit:
        main(arguments)
    assert exit.value.code == 2
    printed = capsys.readouterr().err
    assert message in printed
    assert printed.splitlines()[-1].endswith(" --help explains all options.")


def test_suggestions():
    assert did_you_mean("upso", ["upos", "xpos"]) == "; did you mean upos?"
    assert did_you_mean("width", ["model.width", "x.width"]) == (
        "; did you mean model.width or x.width?"
    )
    assert did_you_mean("nothing", ["upos", "xpos"]) == ""


CPU_PROBE = """
import io, resource, sys
from contextlib import redirect_stdout
start = resource.getrusage(resource.RUSAGE_SELF)
from bcrf.cli import main
with redirect_stdout(io.StringIO()):
    try:
        main(sys.argv[1:])
    except SystemExit as exit:
        assert exit.code == 0
end = resource.getrusage(resource.RUSAGE_SELF)
print(end.ru_utime - start.ru_utime + end.ru_stime - start.ru_stime, "torch" in sys.modules)
"""


@pytest.mark.skipif(os.name != "posix", reason="needs the module resource")
@pytest.mark.parametrize(
    ("arguments", "seconds"),
    [(["--help"], 0.3), (["--version"], 0.3), *(([name, "--help"], 1.0) for name in COMMANDS)],
    ids=str,
)
def test_help_is_quick(arguments, seconds):
    """Compare the CPU time without the start of Python; the minimum of up to five runs."""
    times = []
    while len(times) < 5 and min(times, default=seconds) >= seconds:
        command = [sys.executable, "-c", CPU_PROBE, *arguments]
        output = subprocess.run(command, capture_output=True, text=True, check=True).stdout
        time_, torch_imported = output.split()
        assert torch_imported == "False"
        times.append(float(time_))
    assert min(times) < seconds


WAIT_VARIABLES = ("OMP_WAIT_POLICY", "GOMP_SPINCOUNT", "KMP_BLOCKTIME")


def wait_variables_after(code: str, **given: str) -> dict[str, str]:
    """Return the variables of OpenMP's wait policy after `code` has run in a new process."""
    probe = f"""
import os
{code}
print(*(f"{{name}}={{os.environ[name]}}" for name in {WAIT_VARIABLES} if name in os.environ))
"""
    environment = {name: text for name, text in os.environ.items() if name not in WAIT_VARIABLES}
    done = subprocess.run(
        [sys.executable, "-c", probe],
        capture_output=True,
        text=True,
        check=True,
        cwd=ROOT,
        env=environment | given,
    )
    return dict(word.split("=") for word in done.stdout.splitlines()[-1].split())


@pytest.mark.parametrize(
    "code",
    [
        "import sys; from bcrf.cli import main; main([]); assert 'torch' not in sys.modules",
        "import reproduction.__main__ as program; program.main(['none', '--data', 'none'])",
    ],
)
@pytest.mark.parametrize("given", [{}, {"OMP_WAIT_POLICY": "active"}, {"GOMP_SPINCOUNT": "7"}])
def test_waiting_threads_sleep_unless_the_user_decides(code: str, given: dict[str, str]) -> None:
    """The variable is set before torch is imported, because torch loads OpenMP."""
    expected = given or {"OMP_WAIT_POLICY": "passive"}
    assert wait_variables_after(code, **given) == expected


@pytest.mark.parametrize(
    "code",
    [
        "import bcrf; bcrf.loss",  # the policy is the user's: idle machines want spinning threads
        # It would have no effect on this process, but on those that it starts.
        "import torch; from bcrf.cli import main; main([])",
    ],
)
def test_the_wait_policy_is_left_alone_by_the_library_and_after_torch(code: str) -> None:
    assert wait_variables_after(code) == {}


def test_the_console_script_calls_main():
    (line,) = re.findall(r'^bcrf = "(.*)"$', (ROOT / "pyproject.toml").read_text(), re.MULTILINE)
    module, _, name = line.partition(":")
    assert getattr(importlib.import_module(module), name) is main


@pytest.mark.parametrize(
    ("error", "message"),
    [
        (UserError("so"), "so"),
        (DataError("a.conllu", 3, "so"), "a.conllu:3: so"),
        (FetchError("so"), "so"),
        (ModelError("so"), "so"),
        (FileNotFoundError(2, "No such file or directory", "x"), "x: No such file or directory"),
        (FileExistsError("x is there"), "x is there"),
        (ImportError("it is missing: pip install '.[tagger]'"), None),
        (ImportError("cannot import name 'x'"), KeyError),
        (ValueError("a bug"), KeyError),
    ],
)
def test_user_errors_are_one_line_and_bugs_are_raised(error, message, monkeypatch, capsys):
    module = importlib.import_module("bcrf.cli.check")

    def fail(arguments: list[str]) -> int:
        raise error

    monkeypatch.setattr(module, "run", fail)
    if message is KeyError:
        assert explain(error) is None
        with pytest.raises(type(error), match=str(error)):
            main(["check"])
    else:
        assert main(["check"]) == 1
        assert capsys.readouterr().err == f"bcrf: error: {message or error}\n"


def test_an_interrupt_prints_one_line(monkeypatch, capsys):
    def stop(arguments: list[str]) -> int:
        raise KeyboardInterrupt

    monkeypatch.setattr(importlib.import_module("bcrf.cli.check"), "run", stop)
    assert main(["check"]) == 130
    assert capsys.readouterr().err == "bcrf: interrupted\n"


@pytest.mark.skipif(os.name != "posix", reason="needs SIGTERM")
def test_a_termination_prints_one_line(monkeypatch, capsys):
    def stop(arguments: list[str]) -> int:
        os.kill(os.getpid(), signal.SIGTERM)
        time.sleep(60)
        return 0

    monkeypatch.setattr(importlib.import_module("bcrf.cli.check"), "run", stop)
    handlers = [signal.SIG_DFL, lambda number, frame: None]
    try:
        for handler in handlers:
            signal.signal(signal.SIGTERM, handler)
            assert main(["check"]) == 143
            assert capsys.readouterr().err == "bcrf: terminated\n"
            assert signal.getsignal(signal.SIGTERM) is handler
    finally:
        signal.signal(signal.SIGTERM, signal.SIG_DFL)


def test_sigterm_is_left_alone_if_ignored_or_outside_the_main_thread(monkeypatch):
    """No handler is installed if the caller ignores SIGTERM, or outside the main thread."""
    found = []

    def look(arguments: list[str]) -> int:
        found.append(signal.getsignal(signal.SIGTERM))
        return 0

    monkeypatch.setattr(importlib.import_module("bcrf.cli.check"), "run", look)
    thread = threading.Thread(target=main, args=(["check"],))
    thread.start()
    thread.join()
    signal.signal(signal.SIGTERM, signal.SIG_IGN)
    try:
        assert main(["check"]) == 0
    finally:
        signal.signal(signal.SIGTERM, signal.SIG_DFL)
    assert found == [signal.SIG_DFL, signal.SIG_IGN]


@pytest.mark.parametrize(
    ("missing", "config", "purpose"),
    [
        ("docstring_parser", "c.toml", "bcrf train"),
        ("yaml", "c.yaml", "reading YAML"),
    ],
)
def test_a_missing_package_is_named_with_its_extra(
    missing, config, purpose, tmp_path, monkeypatch, capsys
):
    def refuse(name: str) -> ModuleType:
        if name == missing:
            raise ModuleNotFoundError(f"No module named {missing!r}", name=missing)
        return importlib.import_module(name)

    monkeypatch.setattr("bcrf.cli.errors.import_module", refuse)
    (tmp_path / config).write_text("")
    assert main(["train", str(tmp_path / config)]) == 1
    message = f"{purpose} needs the package {missing}: pip install '.[cli]'"
    assert capsys.readouterr().err == f"bcrf: error: {message}\n"


def test_an_installed_package_that_fails_is_not_reported_as_missing(tmp_path, monkeypatch):
    (tmp_path / "broken_package.py").write_text("import nowhere_to_be_found")
    monkeypatch.syspath_prepend(tmp_path)
    with pytest.raises(ModuleNotFoundError, match="nowhere_to_be_found"):
        import_extra("broken_package", "cli", "this")
    assert import_extra("sys", "cli", "this") is sys


def test_plain_tables_are_aligned_by_display_width():
    table = plain_table("Title", ["", "tag"], [["我们", "PRON 1.0"], ["naïve", "ADJ"]])
    assert table == "Title\n            tag\n我们   PRON 1.0\nnaïve       ADJ\n"
