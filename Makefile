# Everything a developer runs; `make help` lists it.
PYTHON ?= python3
VENV := .venv
BIN := $(VENV)/bin
INSTALL := $(BIN)/python -m pip install --quiet --disable-pip-version-check --constraint constraints.txt

.DEFAULT_GOAL := help
.PHONY: help setup demo test soak agent lint format bench clean

help: ## List the targets
	@grep -hE '^[a-z]+:.*## ' $(MAKEFILE_LIST) | sed -E 's/:.*## /\t/' | expand -t 10

$(BIN)/python:
	@$(PYTHON) -c 'import sys; sys.exit(sys.version_info < (3, 11))' \
		|| { echo "cotune needs Python 3.11 or newer: make PYTHON=/path/to/python3.11 ..."; exit 1; }
	$(PYTHON) -m venv $(VENV)

$(VENV)/user: pyproject.toml constraints.txt | $(BIN)/python
	@echo "Installing cotune into $(VENV) ..."
	$(INSTALL) --editable '.[boost]'
	@touch $@

$(VENV)/developer: pyproject.toml constraints.txt | $(BIN)/python
	@echo "Installing cotune and what its tests need into $(VENV) ..."
	$(INSTALL) --editable '.[dev]'
	@touch $@ $(VENV)/user

setup: $(VENV)/developer ## Make the virtual environment .venv with all that development needs

demo: $(VENV)/user ## Tune a real model over simulated parties, in about a minute
	@$(BIN)/cotune demo

test: $(VENV)/developer lint agent ## Check the code and run all tests, two files at a time
	$(BIN)/pytest -n 2 --dist loadfile --no-loadscope-reorder

soak: $(VENV)/developer ## Run the long forms of the tests that damage files and messages
	COTUNE_SOAK=1 $(BIN)/pytest -m soak -n 2 --timeout 5400

agent: $(VENV)/user ## Set the key agent up, if a CPython 3.12 or 3.10 that fits can be found
	@$(BIN)/cotune agent doctor --setup || echo "The tests with real ciphertexts will be skipped."

lint: $(VENV)/developer ## Run ruff and mypy
	$(BIN)/ruff check .
	$(BIN)/ruff format --check .
	$(BIN)/mypy

format: $(VENV)/developer ## Let ruff mend what it can
	$(BIN)/ruff check --fix .
	$(BIN)/ruff format .

bench: $(VENV)/developer ## Measure speed beside hand-written code (some minutes)
	$(BIN)/python benchmarks/local_search.py
	$(BIN)/python benchmarks/parties.py
	$(BIN)/python benchmarks/privacy.py
	$(BIN)/python benchmarks/engine.py --quick

clean: ## Remove the virtual environment and all caches
	rm -rf $(VENV) .mypy_cache .ruff_cache .pytest_cache .hypothesis
