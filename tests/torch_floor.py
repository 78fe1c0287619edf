"""Names of torch that the package uses, and which of them the oldest supported torch has.

`python -m tests.torch_floor PYTHON`, where PYTHON is the interpreter of an environment with that
torch, writes `tests/data/torch_floor.json`; `test_torch_floor` compares it with the sources.
"""

from __future__ import annotations

import ast
import functools
import importlib
import inspect
import json
import re
import subprocess
import sys
from collections.abc import Iterator
from pathlib import Path

import torch

ROOT = Path(__file__).parents[1]
SOURCE = ROOT / "src" / "bcrf"
MANIFEST = Path(__file__).parent / "data" / "torch_floor.json"

# The sources do not show the types of objects. We assume that an attribute belongs to one of these
# classes if the class has an attribute of this name.
CLASSES = {"torch.Tensor": torch.Tensor, "torch.nn.Module": torch.nn.Module}


def _imported(tree: ast.AST) -> Iterator[tuple[str, str]]:
    """Yield the local name and the full name of everything that is imported."""
    for node in ast.walk(tree):
        if isinstance(node, ast.Import):
            for alias in node.names:
                yield alias.asname or alias.name.split(".")[0], alias.name
        elif isinstance(node, ast.ImportFrom) and node.level == 0:
            for alias in node.names:
                yield alias.asname or alias.name, f"{node.module}.{alias.name}"


def names_in(source: str) -> tuple[set[str], set[str]]:
    """Full names of torch that `source` uses, and the names of all other attributes in it."""
    tree = ast.parse(source)
    imported = [pair for pair in _imported(tree) if pair[1].split(".")[0] == "torch"]
    names, attributes = {name for _, name in imported}, set()
    known = {local: local if local == "torch" else name for local, name in imported}

    def full_name(node: ast.expr) -> str | None:
        if isinstance(node, ast.Name):
            return known.get(node.id)
        if isinstance(node, ast.Attribute):
            owner = full_name(node.value)
            return owner and f"{owner}.{node.attr}"
        return None

    for node in ast.walk(tree):
        if isinstance(node, ast.Attribute):
            name = full_name(node)
            if name is not None:
                names.add(name)
            elif not node.attr.startswith("__"):  # those are Python's
                attributes.add(node.attr)
        elif isinstance(node, ast.Call) and ast.unparse(node.func) in ("getattr", "hasattr"):
            owner, key = full_name(node.args[0]), node.args[1]
            if owner is not None and isinstance(key, ast.Constant):
                names.add(f"{owner}.{key.value}")
    return names, attributes


def names_in_native(source: str) -> tuple[set[str], set[str]]:
    """Return the same for C++ sources, which look up names through nanobind."""
    found = re.findall(r'(\w*)[()]*\.attr\("(\w+)"\)', source)
    names = {f"torch.{name}" for owner, name in found if owner == "torch"}
    return names, {name for owner, name in found if owner != "torch"}


def exists(name: str) -> bool:
    """Whether torch has `name`.

    Another interpreter runs this function, too, so it must not use other names of this module.
    """
    parts = name.split(".")
    for k in range(len(parts), 0, -1):  # the longest module, then its attributes
        try:
            found = importlib.import_module(".".join(parts[:k]))
        except ImportError:
            continue
        for part in parts[k:]:
            if not hasattr(found, part):
                return False
            found = getattr(found, part)
        return True
    return False


@functools.cache
def used_names() -> frozenset[str]:
    """Full names of torch that the package uses; attributes of `CLASSES` by their names alone."""
    found = [names_in(path.read_text(encoding="utf-8")) for path in SOURCE.rglob("*.py")]
    native = (ROOT / "native").rglob("*.cpp")
    found += [names_in_native(path.read_text(encoding="utf-8")) for path in native]
    names, attributes = (set[str]().union(*sets) for sets in zip(*found, strict=True))
    return frozenset(names) | {
        f"{name}.{attribute}"
        for name, owner in CLASSES.items()
        for attribute in attributes
        if hasattr(owner, attribute)
    }


PROGRAM = """
import importlib, json, sys, torch

{exists}
missing = [name for name in json.load(sys.stdin) if not exists(name)]
print(json.dumps([torch.__version__, missing]))
"""


def main(python: str) -> None:
    names = sorted(used_names())
    output = subprocess.run(
        [python, "-c", PROGRAM.format(exists=inspect.getsource(exists))],
        input=json.dumps(names),
        stdout=subprocess.PIPE,
        text=True,
        check=True,
    ).stdout
    version, missing = json.loads(output.splitlines()[-1])
    found = {"version": version, "missing": missing, "names": sorted({*names} - {*missing})}
    MANIFEST.parent.mkdir(exist_ok=True)
    MANIFEST.write_text(json.dumps(found, indent=0) + "\n", encoding="utf-8")
    print(f"torch {version}: {len(names)} names, without {missing}")


if __name__ == "__main__":
    main(*sys.argv[1:])
