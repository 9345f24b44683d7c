# Every target sets up what it needs: `make demo` and `make test` work on a fresh machine with Python 3.11+.
PYTHON ?= python3
VENV   ?= .venv
BIN    := $(VENV)/bin
# One thread a process: trees and linear algebra oversubscribe badly when many processes share few cores.
export OMP_NUM_THREADS ?= 1
export OPENBLAS_NUM_THREADS ?= 1
# The one version of torch that tests and benchmarks run with; an installation may have any from 2.2 on.
TORCH  ?= torch==2.13.0

.PHONY: venv demo test lint protos clean

venv: $(VENV)/.dev

$(VENV)/bin/python:
	$(PYTHON) -m venv $(VENV)
	$(BIN)/python -m pip install --quiet --upgrade pip

$(VENV)/.dev: $(VENV)/bin/python pyproject.toml
	$(BIN)/python -m pip install --quiet -e '.[dev,demo]' '$(TORCH)'
	touch $@

$(VENV)/.demo: $(VENV)/bin/python pyproject.toml
	$(BIN)/python -m pip install --quiet -e '.[demo]'
	touch $@

demo: $(VENV)/.demo
	$(BIN)/hanse demo activity

lint: venv
	$(BIN)/ruff check .
	$(BIN)/ruff format --check .
	$(BIN)/mypy
	$(BIN)/lint-imports

protos: venv
	$(BIN)/python protos/generate.py

# The browser tests of the dashboard need Chromium: apt-get install chromium (or dnf, brew); else they are skipped.
test: venv
	$(BIN)/python protos/generate.py --check
	$(BIN)/python -m pytest

clean:
	rm -rf $(VENV) build dist
