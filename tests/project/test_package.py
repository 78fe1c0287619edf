"""The package as a whole: what importing it costs, who imports whom, what it exports."""

import ast
import importlib
import json
import re
import subprocess
import sys
from collections.abc import Iterator
from importlib import resources
from pathlib import Path
from types import ModuleType

import pytest

import bcrf

ROOT = Path(__file__).resolve().parents[2]
SOURCE = ROOT / "src" / "bcrf"

# A module imports only from earlier layers, or from within its own package. `bcrf/__init__.py`
# stands above them all.
LAYERS: list[tuple[str, ...]] = [
    ("compat.private_torch", "_native"),
    ("checks", "compat.caching", "compat.chain_pytree", "suggestions"),
    ("compat.control_flow",),
    ("numerics",),
    ("tag_schemes",),
    ("spans",),
    ("structure",),
    ("chain",),
    ("compat.graph_padding", "diagnosis"),
    ("kernels",),
    ("inference",),
    ("losses", "decoding"),
    ("layers",),
    ("logit_decoding",),
    ("tagger.files",),
    ("tagger.config_tables",),
    ("tagger.data",),
    ("tagger.tasks",),
    ("tagger.nn",),
    ("tagger.model_folder",),
    ("tagger.prediction",),
    ("tagger",),
    ("tagger.shards",),
    ("ray",),
    ("tagger.export",),
    ("tagger.report",),
    ("tagger.training",),
    ("tagger.fetching",),
    ("huggingface",),
    ("spacy",),
    ("cli",),
    ("__main__",),
]
HEIGHT = {name: height for height, layer in enumerate(LAYERS) for name in layer}

IMPORT_SECONDS = 0.2

# ---------------------------------------------------------------------------- the cost of importing

IMPORT_PROBE = """
import json, sys, time
import torch
before = set(sys.modules)
start = time.process_time()
import bcrf
bcrf.loss  # imports the core
seconds = time.process_time() - start
print(json.dumps({"seconds": seconds, "modules": sorted(set(sys.modules) - before)}))
"""


def import_in_fresh_process() -> tuple[float, list[str]]:
    """CPU seconds and modules that importing the core of bcrf adds to `import torch`."""
    command = [sys.executable, "-c", IMPORT_PROBE]
    output = subprocess.run(command, capture_output=True, text=True, check=True).stdout
    report = json.loads(output.splitlines()[-1])
    return report["seconds"], report["modules"]


def test_import_needs_only_torch_and_the_standard_library():
    _, modules = import_in_fresh_process()
    allowed = {"bcrf", "torch", *sys.stdlib_module_names}
    assert "bcrf" in modules
    assert [name for name in modules if name.partition(".")[0] not in allowed] == []


def test_import_is_quick():
    # The minimum of ten runs, and no more runs than it takes: a busy machine has cold caches.
    seconds = []
    while len(seconds) < 10 and min(seconds, default=IMPORT_SECONDS + 1) > IMPORT_SECONDS:
        seconds.append(import_in_fresh_process()[0])
    assert min(seconds) <= IMPORT_SECONDS


def test_torch_is_imported_when_a_public_name_is_used():
    probe = (
        "import sys, bcrf, bcrf.cli; dir(bcrf); print('torch' in sys.modules)\n"
        "from bcrf import LinearChain; print('torch' in sys.modules, 'bcrf.tagger' in sys.modules)"
    )
    command = [sys.executable, "-c", probe]
    output = subprocess.run(command, capture_output=True, text=True, check=True).stdout
    assert output.splitlines() == ["False", "True False"]


# ------------------------------------------------------------------------------------------- layers


def imports(source: str, package: str) -> Iterator[str]:
    """Dotted names that `source`, a module of `package`, imports from bcrf, wherever it does so.

    `from a import b` counts as `a.b`, since `b` may be a module.
    """
    for node in ast.walk(ast.parse(source)):
        if isinstance(node, ast.Import):
            names = [alias.name for alias in node.names]
        elif isinstance(node, ast.ImportFrom):
            origin = node.module or ""
            if node.level:  # one dot is the package itself, each further dot its parent
                parents = package.split(".")
                base = parents[: len(parents) - node.level + 1]
                origin = ".".join([*base, origin] if origin else base)
            names = [f"{origin}.{alias.name}" for alias in node.names]
        else:
            continue
        yield from (name for name in names if name.split(".")[0] == "bcrf")


def layer_of(name: str) -> str | None:
    """The entry of LAYERS that the dotted `name` belongs to: the longest one that is its prefix."""
    parts = name.split(".")[1:]
    prefixes = (".".join(parts[:end]) for end in range(len(parts), 0, -1))
    return next((prefix for prefix in prefixes if prefix in HEIGHT), None)


def violations(source: str, module: str, package: str) -> list[str]:
    """What is wrong with the imports of `source`, the text of the dotted `module`."""
    own = layer_of(module)
    if own is None:
        return [f"{module} is in no layer: add it to LAYERS"]
    found = []
    for name in imports(source, package):
        top = layer_of(name)
        if top == own:
            continue
        if top is None:
            hint = "import from the module that defines it, or add it to LAYERS"
            found.append(f"{module} imports {name}: {hint}")
        elif HEIGHT[top] >= HEIGHT[own]:
            found.append(f"{module} imports {name}, which is not in an earlier layer")
    return found


def modules() -> Iterator[tuple[str, str, Path]]:
    """Dotted name, package and path of every module below `bcrf/__init__.py`."""
    for path in sorted(SOURCE.rglob("*.py")):
        parts = ["bcrf", *path.relative_to(SOURCE).with_suffix("").parts]
        package = ".".join(parts[:-1])
        module = package if parts[-1] == "__init__" else ".".join(parts)
        if module not in ("bcrf", "bcrf.compat"):  # packages without imports of their own
            yield module, package, path


def test_modules_import_only_from_earlier_layers():
    found = [
        violation
        for module, package, path in modules()
        for violation in violations(path.read_text(encoding="utf-8"), module, package)
    ]
    assert not found, "\n".join(found)


@pytest.mark.parametrize(
    ("module", "package", "source", "count"),
    [
        ("bcrf.chain", "bcrf", "import torch\nfrom bcrf.structure import Structure", 0),
        ("bcrf.chain", "bcrf", "from . import checks, structure", 0),
        ("bcrf.inference.crf", "bcrf.inference", "from .base import Solver", 0),
        ("bcrf.inference.crf", "bcrf.inference", "from .. import chain", 0),
        ("bcrf.inference.crf", "bcrf.inference", "from ..kernels.naive import forward", 0),
        ("bcrf.inference", "bcrf.inference", "from .crf import CRF", 0),
        ("bcrf.chain", "bcrf", "from bcrf.losses import loss", 1),
        ("bcrf.chain", "bcrf", "import bcrf.losses as losses", 1),
        ("bcrf.chain", "bcrf", "from . import losses, decoding", 2),
        ("bcrf.chain", "bcrf", "def f():\n    from .losses import loss", 1),
        ("bcrf.chain", "bcrf", "if TYPE_CHECKING:\n    from .inference import CRF", 1),
        ("bcrf.kernels.reference", "bcrf.kernels", "from ..inference.crf import CRF", 1),
        ("bcrf.kernels", "bcrf.kernels", "from ..inference import CRF", 1),
        ("bcrf.losses", "bcrf", "from .decoding import decode", 1),
        ("bcrf.losses", "bcrf", "from bcrf import LinearChain", 1),
        ("bcrf.losses", "bcrf", "import bcrf", 1),
        ("bcrf.losses", "bcrf", "from .nowhere import nothing", 1),
    ],
)
def test_layer_check_sees_every_form_of_import(module, package, source, count):
    assert len(violations(source, module, package)) == count


def test_layer_check_asks_for_unknown_modules_to_be_added():
    (violation,) = violations("", "bcrf.novelty", "bcrf")
    assert "add it to LAYERS" in violation


# ------------------------------------------------------------------------------- names and metadata


def test_all_lists_exactly_the_public_names():
    # Their order is the linter's business (RUF022).
    exported = bcrf.__all__
    assert len(exported) == len(set(exported))
    assert [name for name in exported if not hasattr(bcrf, name)] == []

    public = {
        name
        for name, value in vars(bcrf).items()
        if not name.startswith("_")
        and not isinstance(value, ModuleType)
        and type(value).__module__ != "__future__"  # from __future__ import annotations
    }
    assert public - set(exported) == set()


def test_dir_shows_exactly_the_public_names():
    assert dir(bcrf) == sorted(bcrf.__all__)


def test_type_checkers_and_python_see_the_same_names():
    """Type checkers read the imports under TYPE_CHECKING, which Python never runs."""
    tree = ast.parse((SOURCE / "__init__.py").read_text(encoding="utf-8"))
    (block,) = (node for node in tree.body if isinstance(node, ast.If) and not is_not(node.test))
    declared = {"__version__": bcrf.__version__}
    for node in block.body:
        assert isinstance(node, ast.ImportFrom)
        module = importlib.import_module(f".{node.module}", "bcrf")
        declared |= {alias.name: getattr(module, alias.name) for alias in node.names}
    assert declared == {name: getattr(bcrf, name) for name in bcrf.__all__}


def is_not(test: ast.expr) -> bool:
    return isinstance(test, ast.UnaryOp) and isinstance(test.op, ast.Not)


def test_modules_of_the_core_are_attributes():
    probe = "import bcrf; print(*(getattr(bcrf, name).__name__ for name in bcrf._CORE))"
    command = [sys.executable, "-c", probe]
    output = subprocess.run(command, capture_output=True, text=True, check=True).stdout
    assert output.split() == [f"bcrf.{name}" for name in bcrf._CORE]


def test_unknown_names_are_attribute_errors():
    with pytest.raises(AttributeError, match="module 'bcrf' has no attribute 'nothing'"):
        bcrf.nothing  # noqa: B018
    with pytest.raises(ImportError, match="cannot import name 'nothing'"):
        exec("from bcrf import nothing")


def test_type_information_ships():
    assert resources.files("bcrf").joinpath("py.typed").is_file()


def test_version_is_that_of_the_project():
    # A regular expression, because tomllib is not in Python 3.10.
    text = (ROOT / "pyproject.toml").read_text(encoding="utf-8")
    match = re.search(r'^version = "([^"]+)"$', text, flags=re.MULTILINE)
    assert match
    assert bcrf.__version__ == match.group(1)
