# Everything here works on a fresh checkout with Python >= 3.11 and make.
PYTHON ?= python3
ENGINE ?= simulated
VENV := .venv
BIN := $(VENV)/bin
PIP := $(BIN)/python -m pip --disable-pip-version-check -q

.PHONY: demo install dev test test-vllm test-clients lint clean

demo: install  ## the overlap experiment under every policy, in one table (ENGINE=vllm: on a real vLLM on this CPU)
	$(BIN)/headway demo --engine $(ENGINE)

install: $(BIN)/headway

$(BIN)/headway: pyproject.toml requirements/run.lock
	$(PYTHON) -c 'import sys; sys.exit(0 if sys.version_info >= (3, 11) else "headway needs Python >= 3.11, this is " + sys.version.split()[0] + ": make PYTHON=python3.11")'
	test -x $(BIN)/python || $(PYTHON) -m venv $(VENV)
	$(PIP) install -r requirements/run.lock
	$(PIP) install --no-deps -e .
	@touch $@

dev: $(VENV)/dev.stamp

$(VENV)/dev.stamp: $(BIN)/headway requirements/dev.lock
	$(PIP) install -r requirements/dev.lock
	@touch $@

lint: dev
	$(BIN)/ruff check .
	$(BIN)/ruff format --check .
	$(BIN)/mypy

test: lint  ## all that needs no real vLLM
	$(BIN)/python -m pytest -m "not vllm and not clients" -n 2 --dist worksteal

test-vllm: dev  ## against a real vLLM on this CPU, installed into .venv-vllm (3.4 GB) first
	$(BIN)/headway lab install
	HEADWAY_VLLM_PYTHON=$${HEADWAY_VLLM_PYTHON:-$(CURDIR)/.venv-vllm/bin/python} $(BIN)/python -m pytest -m vllm --timeout 400 tests/vllm

test-clients: dev  ## clients from npm and LiteLLM, held for six minutes of the gateway's clock (x86-64 Linux; installs them first)
	cd tests/clients && npm ci --silent
	test -x .venv-clients/bin/python || $(PYTHON) -m venv .venv-clients
	.venv-clients/bin/python -m pip --disable-pip-version-check -q install -r requirements/clients.lock
	HEADWAY_CLIENTS_PYTHON=$(CURDIR)/.venv-clients/bin/python $(BIN)/python -m pytest -m clients --timeout 900 tests/clients

clean:
	rm -rf $(VENV) .venv-vllm .venv-clients tests/clients/node_modules .cache
