PYTHON ?= python3
VENV := .venv
BIN := $(VENV)/bin
BENCH := .venv-bench/bin
PIP := python -m pip install -q --disable-pip-version-check -c constraints.txt

# Stamp files. An installation is repeated only when one of its prerequisites has changed.
CORE := $(VENV)/.installed-core
CLI := $(VENV)/.installed-cli
DEV := $(VENV)/.installed-dev
BENCH_CORE := .venv-bench/.installed-core
INTEGRATIONS := .venv-integrations/.installed

# The sources of the compiled extension.
NATIVE := CMakeLists.txt $(wildcard native/*.h native/*/*.h native/*/*.cpp)

# pytest runs two workers. Each uses one torch thread, so that they do not compete for the cores.
PYTEST := OMP_NUM_THREADS=1 OPENBLAS_NUM_THREADS=1 $(BIN)/python -m pytest -n 2

.DEFAULT_GOAL := help
.PHONY: help demo test test-slow test-integrations models docs bench bench-gpu bench-taggers gpu-page compare reproduce campaign native wheel sanitize lint types format clean

help:  ## list the targets
	@grep -E '^[a-z-]+:.*##' $(MAKEFILE_LIST) | sed -E 's/:[^#]*## */\t/' | expand -t 12

demo: $(CLI)  ## train the four families on a sample corpus, and compare them
	$(BIN)/bcrf demo

test: lint types  ## lint, type-check and run the fast tests
	$(PYTEST) -m "not slow"

test-slow: $(DEV)  ## run the slow tests
	$(PYTEST) -m slow

test-integrations: $(INTEGRATIONS)  ## test spaCy and Ray, in an environment of their own
	OMP_NUM_THREADS=1 .venv-integrations/bin/python -m pytest integration_tests $(ARGS)

docs: $(DEV)  ## build the documentation site into build/docs; a warning or a broken link is an error
	$(BIN)/python -m sphinx -b html -n -W --keep-going -q docs build/docs

bench: $(BENCH_CORE)  ## measure against other libraries, in an environment of its own; ARGS="..."
	$(BENCH)/python -m benchmarks.peers install
	$(BENCH)/python -m benchmarks $(ARGS)

bench-gpu: $(BENCH_CORE)  ## the same on an NVIDIA GPU; writes docs/benchmarks-gpu.md; ARGS="..."
	$(BENCH)/python -m benchmarks.peers install
	$(BENCH)/python -m benchmarks --device cuda $(ARGS)

gpu-page: $(BENCH_CORE)  ## count launches, compile the Triton kernels without a GPU, write docs/gpu.md
	$(BENCH)/python -m benchmarks.peers install
	$(BENCH)/$(PIP) triton
	$(BENCH)/python -m benchmarks.gpu $(ARGS)

bench-taggers: $(BENCH_CORE)  ## train and measure the taggers of several libraries; ARGS="--data DIR"
	$(BENCH)/python -m benchmarks.taggers.install
	$(BENCH)/$(PIP) 'bcrf[tagger]'
	$(BENCH)/python -m benchmarks.taggers $(ARGS)

compare: $(DEV)  ## compare the speed of two source trees; ARGS="BEFORE AFTER"
	$(BIN)/python -m benchmarks.compare $(ARGS)

reproduce: $(DEV)  ## run the paper's experiments; ARGS="pos --data DIR", ARGS=report
	$(BIN)/python -m reproduction $(ARGS)

models: $(DEV)  ## train the models that come with the package; ARGS="--data DIR"
	OMP_NUM_THREADS=1 $(BIN)/python -m bundled_models $(ARGS)

campaign: $(DEV)  ## crash, tamper with and mutate everything; ARGS=--sample: a small share of it
	OMP_NUM_THREADS=1 $(BIN)/python -m campaign $(ARGS)

native: $(CORE)  ## compile the extension in full view; a failure is an error here
	BCRF_REQUIRE_NATIVE=1 $(call editable,$(VENV)) -vv

# The wheel does not contain libgomp. torch ships its own libgomp and loads it first; the extension
# must use the same one, so that both share one pool of threads. `make wheel PYTHON=python3.12`
# builds the abi3 wheel, which also serves all later versions of Python.
WHEEL_PYTHON ?= $(PYTHON)
wheel: $(DEV)  ## build a manylinux wheel in build/wheel and test it without a compiler
	rm -rf build/wheel && $(WHEEL_PYTHON) -m venv build/wheel/tools
	build/wheel/tools/bin/$(PIP) scikit-build-core nanobind cmake ninja
	PATH="$(CURDIR)/build/wheel/tools/bin:$$PATH" BCRF_REQUIRE_NATIVE=1 build/wheel/tools/bin/python -m pip wheel \
		-q --disable-pip-version-check --no-deps --no-build-isolation -w build/wheel/unrepaired .
	PATH="$(CURDIR)/$(BIN):$$PATH" $(BIN)/python -m auditwheel repair --exclude libgomp.so.1 \
		-w build/wheel build/wheel/unrepaired/bcrf-*.whl
	$(BIN)/python -m tests.project.wheel build/wheel/bcrf-*.whl --python $(WHEEL_PYTHON)

# Python is not linked with the sanitizers, so LD_PRELOAD loads them first. It also loads libstdc++,
# because the sanitizers look up its functions as soon as they are loaded.
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
	find src tests integration_tests examples measurement benchmarks campaign reproduction bundled_models -name __pycache__ -type d -prune -exec rm -rf {} +

$(BIN)/python $(BENCH)/python: %/bin/python:
	$(PYTHON) -m venv $*

# Without isolation, the build uses the tools of the environment, with the versions of
# constraints.txt. Their paths stay the same, so that a new build compiles only changed files. The
# build looks for the tools on the PATH.
editable = PATH="$(CURDIR)/$(1)/bin:$$PATH" $(1)/bin/$(PIP) --no-build-isolation -e .

# The library does not use numpy, but torch warns at import when it is missing.
$(CORE) $(BENCH_CORE): %/.installed-core: pyproject.toml constraints.txt $(NATIVE) | %/bin/python
	$*/bin/$(PIP) torch numpy
	$*/bin/$(PIP) scikit-build-core nanobind cmake ninja
	$(call editable,$*)
	@$*/bin/python -c 'import bcrf._native' 2> /dev/null || echo \
		'WARNING: bcrf is installed without its compiled extension; "make clean native" says why.'
	@touch $@

# bcrf is installed already; this installs the dependencies of one of its extras.
$(CLI) $(DEV): $(VENV)/.installed-%: $(CORE)
	$(BIN)/$(PIP) 'bcrf[$*]'
	@touch $@

# This environment sees the packages of .venv, so that torch is not installed and bcrf not compiled a
# second time, and adds those that are too large for `make test`.
$(INTEGRATIONS): $(DEV)
	$(BIN)/python -m venv .venv-integrations
	.venv-integrations/bin/python -c 'import pathlib, sysconfig; \
		path = pathlib.Path(sysconfig.get_path("purelib")); \
		shared = path.parents[3] / "$(VENV)" / path.relative_to(path.parents[2]); \
		path.joinpath("shared.pth").write_text(f"import site; site.addsitedir({str(shared)!r})\n")'
	.venv-integrations/bin/$(PIP) 'bcrf[spacy,ray]' datasets
	@touch $@
