# `make demo` and `make test` work on a bare machine with Python 3.11 (or later) and pip.
PYTHON ?= python3
VENV := .venv
BIN := $(VENV)/bin
INSTALL := $(BIN)/python -m pip install --quiet --disable-pip-version-check --constraint constraints.txt

# Tests run in parallel, one worker per core, each with one torch thread.
WORKERS ?= $(shell nproc 2> /dev/null || echo 2)
PARALLEL := -n $(WORKERS) --dist worksteal

.PHONY: demo check test fuzz test-gpu lint browser docs clean

# Two cores are what the time limits are written for; torch takes what the machine has.
demo: $(VENV)/.core
	$(BIN)/ucn demo --overwrite

# The quick part: lint, types and fast unit tests; commands, pages, server and scripts are left to `make test`.
WHOLE := $(addprefix --ignore=tests/,benchmarks bench cli docs serve examples)
check: lint
	$(BIN)/python -m pytest $(PARALLEL) -m "not slow" $(WHOLE)

# Everything, with the 20 slowest tests named.
test: lint browser
	$(BIN)/python -m pytest $(PARALLEL) --durations=20

# Thousands of hostile files and hundreds of kills, within half an hour; FUZZ_SEED takes other ones.
FUZZ ?= 3000
FUZZ_SEED ?= 0
fuzz: $(VENV)/.dev
	UCN_FUZZ=$(FUZZ) UCN_FUZZ_SEED=$(FUZZ_SEED) UCN_KILLS=6 timeout 1800 $(BIN)/python -m pytest -q tests/hostile

# Every CUDA case, on a machine with a GPU: tests marked gpu, and the kernels' cases that `make test` interprets.
# GPU_PYTHON=python3 takes the Python that is there instead of .venv.
GPU_PYTHON ?= $(BIN)/python
test-gpu:
	PYTHONPATH=src $(GPU_PYTHON) -c "import torch; assert torch.cuda.is_available(), 'make test-gpu needs a CUDA device'"
	PYTHONPATH=src $(GPU_PYTHON) -m pytest -m gpu $(sort $(shell grep -rl --include='test_*.py' 'mark\.gpu' tests))
	PYTHONPATH=src $(GPU_PYTHON) -m pytest $(sort $(shell find tests -name 'fused_*_cases.py'))

lint: $(VENV)/.dev
	$(BIN)/ruff check .
	$(BIN)/ruff format --check .
	$(BIN)/mypy

# Debian's Chromium, in which the web page is tested; without it those tests are skipped and say so.
browser:
ifeq ($(UCN_INSTALL_BROWSER),1)
	@command -v chromium > /dev/null || { \
	  if [ "$$(id -u)" = 0 ]; then as_root=env; else as_root="sudo -n env"; fi; \
	  $$as_root apt-get update -qq && \
	  $$as_root DEBIAN_FRONTEND=noninteractive apt-get install -y -qq --no-install-recommends chromium; \
	} > /dev/null || echo "Chromium could not be installed: the tests of the web page in a browser are skipped"
endif

# The documentation as a site, in build/site; index.html opens it from the disk, with its search.
docs: $(VENV)/.dev
	NO_MKDOCS_2_WARNING=1 $(BIN)/mkdocs build --strict

# The stamps make a second run quick: pip runs again only when the dependencies changed.
$(VENV)/.python:
	$(PYTHON) -m venv $(VENV)
	touch $@

$(VENV)/.core: $(VENV)/.python pyproject.toml constraints.txt
	$(INSTALL) --editable .
	touch $@

$(VENV)/.dev: $(VENV)/.core
	$(INSTALL) --editable '.[baselines,dev,train,docs,export,heif,hub,kornia,ray,reconstruct,serve]'
	touch $@

clean:
	rm -rf $(VENV) build dist .pytest_cache .mypy_cache .ruff_cache
