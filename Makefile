PYTHON ?= python3
BIN := .venv/bin
INSTALLED := .venv/.installed

.PHONY: help quickstart test test-all check format notebooks benchmarks clean

help:  ## List the targets
	@grep -E '^[a-z-]+:.*##' $(MAKEFILE_LIST) | sed -E 's/:.*## /\t/' | expand -t 14

$(INSTALLED): pyproject.toml constraints.txt
	$(PYTHON) -m venv .venv
	$(BIN)/python -m pip install --quiet --constraint constraints.txt --editable '.[dev]'
	@touch $@

quickstart: $(INSTALLED)  ## Train, evaluate, export and verify a small translator: results in runs/quickstart
	$(BIN)/keras-transformer quickstart

test: $(INSTALLED)  ## The tests, on TensorFlow and what is backend-neutral on JAX too
	$(BIN)/python -m pytest -n 2 --dist loadfile -m 'not slow and not gpu'
	KERAS_BACKEND=jax $(BIN)/python -m pytest -n 2 --dist loadfile -m 'backend_neutral and not slow and not gpu'

test-all: $(INSTALLED)  ## Every test, the slow ones too
	$(BIN)/python -m pytest -n 2 --dist loadfile -m 'not gpu'
	KERAS_BACKEND=jax $(BIN)/python -m pytest -n 2 --dist loadfile -m 'backend_neutral and not gpu'

check: $(INSTALLED)  ## Lint, format, import contract, types of the pure core
	$(BIN)/ruff check .
	$(BIN)/ruff format --check .
	$(BIN)/lint-imports
	$(BIN)/mypy

format: $(INSTALLED)  ## Format the code
	$(BIN)/ruff check --fix .
	$(BIN)/ruff format .

notebooks: $(INSTALLED)  ## Run the notebooks
	$(BIN)/python notebooks/run.py

benchmarks: .venv-bench/.installed  ## Measure beside KerasHub and PyTorch: results in benchmarks/results
	.venv-bench/bin/python benchmarks/train_step.py
	.venv-bench/bin/python benchmarks/attention.py
	.venv-bench/bin/python benchmarks/generation.py

.venv-bench/.installed: benchmarks/requirements.txt pyproject.toml
	$(PYTHON) -m venv .venv-bench
	.venv-bench/bin/python -m pip install --quiet --requirement benchmarks/requirements.txt --editable .
	@touch $@

clean:  ## Remove environments and results
	rm -rf .venv .venv-bench runs build *.egg-info
