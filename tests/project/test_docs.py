"""The documentation: its code runs, its links lead somewhere, and the site builds."""

from __future__ import annotations

import importlib.util
import re
import runpy
import subprocess
import sys
from pathlib import Path

import pytest

from tests.project.documentation import ROOT, pages, python_blocks

DOCS = ROOT / "docs"
PAGES = [*pages(integration=False), *pages(integration=True)]
BLOCKS = [
    pytest.param(block, id=f"{page.relative_to(ROOT)}-{i}")
    for page in pages(integration=False)
    for i, block in enumerate(python_blocks(page))
]


@pytest.mark.parametrize("block", BLOCKS)
def test_python_blocks_run(block: str, tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.chdir(tmp_path)
    exec(compile(block, "documentation", "exec"), {})


def test_families_example_runs(capsys: pytest.CaptureFixture[str]) -> None:
    runpy.run_path(str(ROOT / "examples" / "families.py"), run_name="__main__")
    printed = capsys.readouterr().out
    for word in ("CRF", "Bregman", "mean field", "unstructured", "Viterbi", "certified"):
        assert word in printed


@pytest.mark.parametrize("page", PAGES, ids=lambda page: str(page.relative_to(ROOT)))
def test_links_lead_to_existing_files(page: Path) -> None:
    for target in re.findall(r"\]\(([^)#:]+)\)", page.read_text()):
        assert (page.parent / target).exists(), f"{page.name} links to {target}"


@pytest.fixture(scope="module")
def site(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """The built site. A warning is an error: unknown names, pages and anchors are warnings."""
    if importlib.util.find_spec("sphinx") is None:
        pytest.skip("the extra `docs` is not installed")
    folder = tmp_path_factory.mktemp("site")
    options = ["-b", "html", "-n", "-W", "--keep-going", "-q"]
    command = [sys.executable, "-m", "sphinx", *options, str(DOCS), str(folder)]
    done = subprocess.run(command, capture_output=True, text=True)
    assert done.returncode == 0, done.stderr
    return folder


def test_every_page_is_on_the_site(site: Path) -> None:
    for page in DOCS.rglob("*.md"):
        assert (site / page.relative_to(DOCS)).with_suffix(".html").exists()


def test_root_pages_link_within_the_site(site: Path) -> None:
    """CONTRIBUTING.md, CHANGELOG.md and SECURITY.md are included in pages of the site."""
    for page in ("contributing", "changelog", "security"):
        text = (site / f"{page}.html").read_text(encoding="utf-8")
        assert not re.findall(r'href="[^":]*\.md[#"]', text)


def test_formulas_need_no_script(site: Path) -> None:
    text = (site / "derivation.html").read_text(encoding="utf-8")
    assert "<math" in text
    assert not re.search(r"<script[^>]*mathjax", text, re.IGNORECASE)


def test_public_names_are_in_the_reference(site: Path) -> None:
    import bcrf

    text = (site / "api.html").read_text(encoding="utf-8")
    names = [name for name in bcrf.__all__ if not name.startswith("_")]
    assert [name for name in names if f'id="bcrf.{name}"' not in text] == []


def test_tables_of_the_layer_page_are_those_of_the_logs() -> None:
    script = runpy.run_path(str(DOCS / "layer_tables.py"))
    page = (DOCS / "which-layer.md").read_text(encoding="utf-8")
    assert script["updated"](page) == page, "run `python docs/layer_tables.py`"


def test_numbers_of_the_readme_are_those_of_the_layer_page() -> None:
    section = (ROOT / "README.md").read_text(encoding="utf-8").split("## Which layer")[1]
    table = section.split("\n\n")[1]
    page = (DOCS / "which-layer.md").read_text(encoding="utf-8")
    milliseconds = [
        float(number) / (1000 if unit == "µs" else 1)
        for number, unit in re.findall(r"\| ([\d.]+) (ms|µs)(?= )", page)
    ]
    times = re.findall(r"([\d.]+) ms", table)
    scores = re.findall(r"\d+\.\d\d(?! ms)", table)
    launches = re.findall(r"(?:Bregman|exact|pytorch-crf) (\d+(?:,\d{3})*)(?![.\d])", table)
    assert (len(times), len(scores), len(launches)) == (3, 12, 3)
    for time in times:
        digits = len(time.partition(".")[2])
        assert any(f"{known:.{digits}f}" == time for known in milliseconds), time
    for number in (*scores, *launches):
        assert re.search(rf"\| {re.escape(number)} ", page), number


def test_architecture_picture_is_that_of_the_code() -> None:
    script = runpy.run_path(str(DOCS / "architecture.py"))
    picture = (DOCS / "architecture.svg").read_text(encoding="utf-8")
    assert script["draw"]() == picture, "run `python docs/architecture.py`"


def test_notation_names_existing_code() -> None:
    """In "`Class.name`, `.other` (`file.py`)" the file exists and contains the names."""
    text = (DOCS / "notation.md").read_text(encoding="utf-8")
    named = re.findall(r"((?:`[^`]+`,? ?(?:\(factored\),? )?)+)\(`([\w/]+\.py)`\)", text)
    assert len(named) > 20
    for names, file in named:
        code = (ROOT / "src" / "bcrf" / file).read_text(encoding="utf-8")
        for name in re.findall(r"(\w+)(?:\([^`]*\))?`", names):
            assert re.search(rf"\b{name}\b", code), f"{name} is not in {file}"


@pytest.mark.parametrize("page", PAGES, ids=lambda page: str(page.relative_to(ROOT)))
def test_source_files_that_pages_name_exist(page: Path) -> None:
    for path in re.findall(
        r"`((?:src|tests|docs|examples|native|configs)/[\w./-]+\.\w+)`", page.read_text()
    ):
        assert (ROOT / path).exists(), f"{page.name} names {path}"


def test_paths_through_the_code_name_existing_functions() -> None:
    """The rows "| `function`, ... | `file.py` | ..." of CONTRIBUTING.md."""
    text = (ROOT / "CONTRIBUTING.md").read_text(encoding="utf-8")
    rows = re.findall(r"^\| ((?:`[\w.]+`(?:, )?)+) \| `([\w/]+\.py)` \|", text, re.MULTILINE)
    assert len(rows) > 40
    for functions, file in rows:
        code = (ROOT / "src" / "bcrf" / file).read_text(encoding="utf-8")
        for function in re.findall(r"`([\w.]+)`", functions):
            *owner, name = function.split(".")
            assert re.search(rf"\bdef {name}\(", code), f"{function} is not in {file}"
            assert all(re.search(rf"^class {one}\b", code, re.MULTILINE) for one in owner)
