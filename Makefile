PYTHON ?= python3
VENV := .venv
BIN := $(VENV)/bin
BENCH := .venv-bench/bin
PIP := python -m pip install -q --disable-pip-version-check -c constraints.txt

# Stamps: an installation is repeated only when what it depends on has changed.
CORE := $(VENV)/.installed-core
CLI := $(VENV)/.installed-cli
DEV := $(VENV)/.installed-dev
BENCH_CORE := .venv-bench/.installed-core

# What the compiled extension is made of.
NATIVE := CMakeLists.txt $(wildcard native/*.cpp native/*.h native/*.inl)

# pytest runs two workers: one torch thread each, or they compete for the cores.
PYTEST := OMP_NUM_THREADS=1 OPENBLAS_NUM_THREADS=1 $(BIN)/python -m pytest -n 2

.DEFAULT_GOAL := help
.PHONY: help demo test test-slow bench campaign native sanitize lint types format clean

help:  ## list the targets
	@grep -E '^[a-z-]+:.*##' $(MAKEFILE_LIST) | sed -E 's/:[^#]*## */\t/' | expand -t 12

demo: $(CLI)  ## train the four families on a sample corpus, and compare them
	$(BIN)/bcrf demo

test: lint types  ## lint, type-check and run the fast tests
	$(PYTEST) -m "not slow"

test-slow: $(DEV)  ## run the slow tests
	$(PYTEST) -m slow

bench: $(BENCH_CORE)  ## measure against other libraries, in an environment of its own; ARGS="..."
	$(BENCH)/python -m benchmarks.peers install
	$(BENCH)/python -m benchmarks $(ARGS)

campaign: $(DEV)  ## crash, tamper with and mutate everything; ARGS=--sample: a small share of it
	OMP_NUM_THREADS=1 $(BIN)/python -m campaign $(ARGS)

native: $(CORE)  ## compile the extension in full view; a failure is an error here
	BCRF_REQUIRE_NATIVE=1 $(call editable,$(VENV)) -vv

# Python does not bring the sanitizers, so they are loaded before it; nor libstdc++, whose functions
# they look up as soon as they are loaded.
sanitize: $(DEV)  ## fuzz the extension under the address and undefined-behaviour sanitizers of GCC
	$(BIN)/cmake -S . -B build/sanitize -G Ninja -D CMAKE_MAKE_PROGRAM="$(CURDIR)/$(BIN)/ninja" \
		-D Python_EXECUTABLE="$(CURDIR)/$(BIN)/python" -D CMAKE_CXX_COMPILER=$(CXX) \
		-D CMAKE_BUILD_TYPE=Debug -D BCRF_SANITIZE=ON
	$(BIN)/cmake --build build/sanitize
	LD_PRELOAD="$$($(CXX) -print-file-name=libasan.so) $$($(CXX) -print-file-name=libstdc++.so)" \
		ASAN_OPTIONS=detect_leaks=0 UBSAN_OPTIONS=print_stacktrace=1 \
		BCRF_NATIVE="$$(echo "$(CURDIR)"/build/sanitize/_native*.so)" \
		$(BIN)/python -m tests.fuzz_native --seconds 60

lint: $(DEV)  ## check style and formatting
	$(BIN)/ruff check .
	$(BIN)/ruff format --check .

types: $(DEV)  ## check types
	$(BIN)/mypy

format: $(DEV)  ## fix what the linter can fix, then format
	$(BIN)/ruff check --fix .
	$(BIN)/ruff format .

clean:  ## remove caches and build products; the environments stay
	rm -rf build dist .mypy_cache .pytest_cache .ruff_cache .hypothesis
	find src tests examples benchmarks campaign -name __pycache__ -type d -prune -exec rm -rf {} +

$(BIN)/python $(BENCH)/python: %/bin/python:
	$(PYTHON) -m venv $*

# Without isolation, the build tools are those of constraints.txt, and stay where the last build
# found them, so that only what has changed is compiled. They are looked for on the PATH.
editable = PATH="$(CURDIR)/$(1)/bin:$$PATH" $(1)/bin/$(PIP) --no-build-isolation -e .

# The library does not use numpy, but torch warns at import when it is missing.
$(CORE) $(BENCH_CORE): %/.installed-core: pyproject.toml constraints.txt $(NATIVE) | %/bin/python
	$*/bin/$(PIP) torch numpy
	$*/bin/$(PIP) scikit-build-core nanobind cmake ninja
	$(call editable,$*)
	@$*/bin/python -c 'import bcrf._native' 2> /dev/null || echo \
		'WARNING: bcrf is installed without its compiled extension; "make clean native" says why.'
	@touch $@

# bcrf is there already: this installs what it asks for.
$(CLI) $(DEV): $(VENV)/.installed-%: $(CORE)
	$(BIN)/$(PIP) 'bcrf[$*]'
	@touch $@
