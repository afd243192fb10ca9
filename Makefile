# Each target does the set-up it needs; a set-up that is done costs a fraction of a second.
PYTHON ?= $(shell for p in python3 python3.14 python3.13 python3.12 python3.11; do \
	$$p -c 'import sys; sys.exit(not (3, 11) <= sys.version_info < (3, 15))' 2>/dev/null && echo $$p && break; done)
BACKEND ?=
ARGS ?=
BIN := .venv/bin

.PHONY: help setup run test check e2e fuzz bench chaos lock clean
.DEFAULT_GOAL := help

help: ## this list
	@grep -hE '^[a-z0-9]+:.*##' $(MAKEFILE_LIST) | sed -E 's/^([a-z0-9]+):[^#]*## /  make \1|/' | awk -F'|' '{printf "%-14s%s\n", $$1, $$2}'

setup: ## create .venv and install (BACKEND=cpu, cuda12 or cuda13; macOS always gets Metal)
	@test -n "$(PYTHON)" || { echo 'setup: no Python 3.11 to 3.14 found. Install one, or: make setup PYTHON=/path/to/python3'; exit 1; }
	@$(PYTHON) tools/setup.py $(if $(BACKEND),--backend $(BACKEND))

run: setup ## serve on 127.0.0.1:8080 (ARGS="--port 9000 …", see `starling serve --help`)
	@exec $(BIN)/starling serve $(ARGS)

test: setup ## all tests (ARGS="-m 'not model and not port'" for the quick ones)
	@$(BIN)/pytest $(ARGS)

check: setup ## ruff and mypy --strict
	@$(BIN)/ruff check .
	@$(BIN)/ruff format --check .
	@$(BIN)/mypy

e2e: setup ## only the tests with real processes and the official clients
	@$(BIN)/pytest tests/e2e $(ARGS)

fuzz: setup ## requests made from /openapi.json, right and wrong, for ten minutes (ARGS="--seconds 60 --seed 1")
	@$(BIN)/python -m tests.e2e.fuzzing $(ARGS)

bench: setup ## measure, against peers in the same run
	@$(PYTHON) tools/setup.py --peers
	@$(BIN)/python -m benchmarks $(ARGS)

chaos: setup ## ten minutes of requests while workers are killed at random (ARGS="--seconds 60")
	@$(BIN)/python -m benchmarks --chaos $(ARGS)

lock: ## write locks/ anew from pyproject.toml
	@$(PYTHON) -m tools.lock

clean: ## remove .venv and the tools' caches (models stay in the data directory)
	@rm -rf .venv .mypy_cache .ruff_cache .pytest_cache .hypothesis
