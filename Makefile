# make demo        build and train examples/gpt.py on two processes
# make test        C++ tests and fast Python tests: core-test, python-test
# make test-all    also the slow Python tests
# make wheel-test  a wheel, installed and run in an environment of its own
# make wheels      a wheel for each release of PyTorch, tried without a compiler, in dist
# make sanitize    C++ tests of the core with ASan and UBSan, then with TSan
# make fuzz        random searches and texts with ASan and UBSan: COUNT=10000 SEED=1
# make fuzz-inputs  files, arguments and models of any kind: COUNT=10000 SEED=1
# make soak    random strategies of random models against one process: SECONDS=3600
# make soak-pipelines  random pipelines against one process: COUNT=300
# make faults  faults at random points of small jobs, and what follows: COUNT=100 SEED=1
# make lint        ruff, mypy, clang-format       make format   repair the style
# make stubs       the types of the bindings, after a change of csrc/bindings
# make tidy        clang-tidy on the core         make clean    remove outputs
# make check       everything: lint, all tests, sanitizers; .ci/run is shorter
# make paper       the paper's figures and tables, see docs/paper.md
# make gpu-check   all steps of benchmarks/gpu_check on a machine with one GPU
# make docs        the site of the documentation, in build/site
# make models      common models against one process, see docs/models.md
#
# PYTHON=<python> chooses an environment. By default it is the active one if
# that has torch, otherwise .venv, which is created.

SHELL := /bin/bash
.SHELLFLAGS := -euo pipefail -c
.DELETE_ON_ERROR:

TORCH ?= torch==2.13.0
JOBS ?= $(shell nproc)

ACTIVE_WITH_TORCH := $(shell python3 -c 'import importlib.util as u, sys; \
  ok = u.find_spec("torch") and sys.version_info >= (3, 11); \
  print(sys.executable if ok else "")' 2>/dev/null)
ifeq ($(ACTIVE_WITH_TORCH),)
  PYTHON ?= $(CURDIR)/.venv/bin/python
else
  PYTHON ?= $(ACTIVE_WITH_TORCH)
endif
export PATH := $(dir $(PYTHON)):$(PATH)
# Tests start hundreds of processes, none of which is to compile the package anew.
unexport PYTHONDONTWRITEBYTECODE

PIP := $(PYTHON) -m pip --disable-pip-version-check
BUILD := build/cmake
STAMPS := build/stamps$(subst /,_,$(PYTHON))
CPP_FILES := $(shell find csrc tests/csrc benchmarks/csrc -name '*.h' -o -name '*.cc')
# Folders are listed as well: their times tell that a file was removed.
CORE_INPUTS := CMakeLists.txt $(shell find cmake csrc)
PYTHON_PATHS := tensoropt_torch tests examples docs setup.py \
                $(wildcard benchmarks)

# For builds of the core without PyTorch, apart from the folder of fmt's headers,
# and without precompiled headers: they are also the proof that it needs neither.
CORE_ONLY = -G Ninja -DTENSOROPT_CORE_ONLY=ON -DTENSOROPT_WERROR=ON \
  -DCMAKE_DISABLE_PRECOMPILE_HEADERS=ON \
  -DTENSOROPT_FMT_INCLUDE_DIR=$$($(PYTHON) -c 'import os, torch; \
    print(os.path.dirname(torch.__file__) + "/include")')

.PHONY: demo test test-all core-test python-test wheel-test wheels sanitize fuzz fuzz-inputs soak \
  soak-pipelines faults \
  check lint stubs \
  format tidy clean paper models gpu-check docs links

demo: $(STAMPS)/built
	OMP_NUM_THREADS=1 $(PYTHON) -m torch.distributed.run --standalone \
	  --nproc-per-node 2 examples/train_gpt.py

test: core-test python-test

# A worker for each core, but no more than a few: many tests start processes of their own.
PYTEST = $(PYTHON) -m pytest --numprocesses $(JOBS) --maxprocesses 4 --dist worksteal

python-test: $(STAMPS)/built $(STAMPS)/dev
	$(PYTEST)

test-all: core-test $(STAMPS)/built
	$(PYTEST) -m ''

wheel-test: $(STAMPS)/built $(STAMPS)/dev
	$(PYTHON) -m pytest -m '' tests/test_wheel.py

# RELEASES="2.13 2.14" are some releases of PyTorch; by default all that pyproject.toml allows.
wheels: $(STAMPS)/env
	$(PYTHON) .ci/build_wheels.py $(RELEASES)

check:
	.ci/run lint test-all sanitize

core-test: $(STAMPS)/built $(STAMPS)/dev
	cmake -S . -B $(BUILD) -DTENSOROPT_BUILD_TESTS=ON >/dev/null
	cmake --build $(BUILD) --parallel $(JOBS)
	ctest --test-dir $(BUILD) --output-on-failure \
	  --no-tests=error --parallel $(JOBS)

# SANITIZERS="address" runs one of them only.
# ThreadSanitizer cannot live with much address space randomisation: setarch.
SANITIZERS ?= address thread
sanitize: $(STAMPS)/dev
	fixed=$$(setarch -R true 2>/dev/null && echo setarch -R || true); \
	for kind in $(SANITIZERS); do \
	  cmake -S . -B build/$$kind $(CORE_ONLY) -DTENSOROPT_BUILD_TESTS=ON \
	    -DCMAKE_BUILD_TYPE=RelWithDebInfo -DTENSOROPT_SANITIZE=$$kind; \
	  cmake --build build/$$kind --parallel $(JOBS); \
	  $$fixed ctest --test-dir build/$$kind --output-on-failure \
	    --no-tests=error --parallel $(JOBS); \
	done

# Stops at the first that fails, and says its seed.
COUNT ?= 10000
SEED ?= 1
fuzz: $(STAMPS)/dev
	cmake -S . -B build/address $(CORE_ONLY) -DTENSOROPT_BUILD_TESTS=ON \
	  -DCMAKE_BUILD_TYPE=RelWithDebInfo -DTENSOROPT_SANITIZE=address
	cmake --build build/address --target test_search test_rules --parallel $(JOBS)
	for test in test_search test_rules; do \
	  TENSOROPT_FUZZ_COUNT=$(COUNT) TENSOROPT_FUZZ_SEED=$(SEED) \
	    build/address/$$test --gtest_filter='Any*'; \
	done

# An input that fails is made as small as it still fails, and printed. Counts are added up by seed.
fuzz-inputs: $(STAMPS)/built $(STAMPS)/dev
	TENSOROPT_FUZZ_COUNT=$(COUNT) TENSOROPT_FUZZ_SEED=$(SEED) \
	TENSOROPT_FUZZ_RESULT=benchmarks/results/fuzz.json \
	  $(PYTHON) -m pytest -n0 tests/fuzz --hypothesis-show-statistics

# Says the seed of each round, adds up what was run in benchmarks/results/soak.json, and goes on
# there. SEED=1 begins with that one.
SECONDS ?= 3600
soak: $(STAMPS)/built $(STAMPS)/dev
	$(PYTHON) -m tests.distributed.soak --seconds $(SECONDS) --count $(COUNT) \
	  $(if $(filter command line,$(origin SEED)),--seed $(SEED))

# Adds up what was run in benchmarks/results/pipelines.json, and goes on with the seeds after it.
soak-pipelines: COUNT = 300
soak-pipelines: $(STAMPS)/built $(STAMPS)/dev
	$(PYTHON) -m tests.distributed.soak_pipelines --count $(COUNT)

# Each row of benchmarks/results/faults.json is made anew.
faults: COUNT = 100
faults: $(STAMPS)/built $(STAMPS)/dev
	$(PYTHON) -m tests.distributed.faults --count $(COUNT) --seed $(SEED) --table

lint: $(STAMPS)/dev
	ruff check $(PYTHON_PATHS)
	ruff format --check $(PYTHON_PATHS)
	mypy
	$(if $(CPP_FILES),clang-format --dry-run --Werror $(CPP_FILES))

format: $(STAMPS)/dev
	ruff check --fix $(PYTHON_PATHS)
	ruff format $(PYTHON_PATHS)
	$(if $(CPP_FILES),clang-format -i $(CPP_FILES))

stubs: $(STAMPS)/built $(STAMPS)/dev
	$(PYTHON) .ci/write_stubs.py

tidy: $(STAMPS)/dev
	cmake -S . -B build/tidy $(CORE_ONLY) >/dev/null
	clang-tidy -p build/tidy --quiet \
	  $$(find csrc -name '*.cc' -not -path 'csrc/runtime/*' \
	     -not -path 'csrc/bindings/*')

# STUDIES="frontiers growth" runs some of them only.
paper: $(STAMPS)/built $(STAMPS)/dev
	$(PYTHON) -m benchmarks.paper $(STUDIES)

# MODELS="llama t5" runs some of them only.
models: $(STAMPS)/built $(STAMPS)/dev
	$(PYTHON) -m benchmarks.coverage $(if $(MODELS),--models $(MODELS))

# Installs nothing and needs no network. GPU_CHECK="--device cpu --small" without a GPU.
gpu-check:
	$(PYTHON) -m benchmarks.gpu_check $(GPU_CHECK)

# Warnings are errors: of links between pages, of docstrings, of pages that are not in the menu.
SPHINX = $(PYTHON) -m sphinx --quiet --fail-on-warning --keep-going
docs: $(STAMPS)/built $(STAMPS)/dev
	$(SPHINX) -b html docs build/site

# Asks the network whether links to other sites live.
links: $(STAMPS)/built $(STAMPS)/dev
	$(SPHINX) -b linkcheck docs build/links

clean:
	rm -rf build *.egg-info tensoropt_torch/*.so
	rm -rf .mypy_cache .pytest_cache .ruff_cache .hypothesis
	find . -name __pycache__ -not -path './.venv/*' -prune -exec rm -rf {} +

# --- environment -------------------------------------------------------------

# A Python with torch and what the build needs.
$(STAMPS)/env: .ci/system_packages.sh .ci/create_venv.sh
	[[ -x "$(PYTHON)" ]] || .ci/create_venv.sh .venv
	.ci/system_packages.sh build $(PYTHON)
	$(PYTHON) -c 'import torch' 2>/dev/null || \
	  $(PIP) install '$(TORCH)'
	$(PIP) install --quiet 'setuptools>=77' ninja numpy rich
	command -v cmake >/dev/null || $(PIP) install --quiet 'cmake>=3.22'
	@mkdir -p $(@D) && touch $@

# The tools for tests and linting.
$(STAMPS)/dev: $(STAMPS)/env requirements-dev.txt
	.ci/system_packages.sh test $(PYTHON)
	$(PIP) install --quiet -r requirements-dev.txt
	@touch $@

# The libraries inside tensoropt_torch/, and the package in the environment.
$(STAMPS)/built: $(STAMPS)/env setup.py pyproject.toml $(CORE_INPUTS)
	$(PIP) install --quiet --no-build-isolation -e .
	@touch $@
