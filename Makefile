PYTHON ?= python3
VENV := .venv
BIN := $(VENV)/bin
PIP := $(BIN)/python -m pip install -q --disable-pip-version-check -c constraints.txt

# Stamps: an installation is repeated only when what it depends on has changed.
CORE := $(VENV)/.installed-core
DEV := $(VENV)/.installed-dev

# pytest runs two workers: one torch thread each, or they compete for the cores.
PYTEST := OMP_NUM_THREADS=1 OPENBLAS_NUM_THREADS=1 $(BIN)/python -m pytest -n 2

.DEFAULT_GOAL := help
.PHONY: help demo test test-slow lint types format clean

help:  ## list the targets
	@grep -E '^[a-z-]+:.*##' $(MAKEFILE_LIST) | sed -E 's/:[^#]*## */\t/' | expand -t 12

demo: $(CORE)  ## run the example that compares the inference families
	$(BIN)/python examples/families.py

test: lint types  ## lint, type-check and run the fast tests
	$(PYTEST) -m "not slow"

test-slow: $(DEV)  ## run the slow tests
	$(PYTEST) -m slow

lint: $(DEV)  ## check style and formatting
	$(BIN)/ruff check .
	$(BIN)/ruff format --check .

types: $(DEV)  ## check types
	$(BIN)/mypy

format: $(DEV)  ## fix what the linter can fix, then format
	$(BIN)/ruff check --fix .
	$(BIN)/ruff format .

clean:  ## remove caches and build products; the environment stays
	rm -rf build dist .mypy_cache .pytest_cache .ruff_cache .hypothesis
	find src tests examples -name __pycache__ -type d -prune -exec rm -rf {} +

$(BIN)/python:
	$(PYTHON) -m venv $(VENV)

# The library does not use numpy, but torch warns at import when it is missing.
$(CORE): pyproject.toml constraints.txt | $(BIN)/python
	$(PIP) torch numpy
	$(PIP) -e .
	@touch $@

$(DEV): $(CORE)
	$(PIP) -e '.[dev]'
	@touch $@
