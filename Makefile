PYTHON ?= python3
BIN := .venv/bin
export OMP_NUM_THREADS ?= 1
export MKL_NUM_THREADS ?= 1

.PHONY: install smoke test lint types unit test-slow test-gpu

install: .venv/installed

.venv/installed: pyproject.toml setup.py
	$(PYTHON) -m venv .venv
	$(BIN)/python -m pip install --quiet --editable '.[dev]'
	touch $@

smoke: install
	$(BIN)/fastslow sweep smoke
	$(BIN)/fastslow figures excess --out runs/smoke --set results=runs/smoke

test: lint types unit

lint: install
	$(BIN)/ruff check .
	$(BIN)/ruff format --check .

types: install
	$(BIN)/mypy

unit: install
	$(BIN)/pytest -q -n 2

test-slow: install
	$(BIN)/pytest -q -n 2 -m 'slow and not gpu'

test-gpu: install
	$(BIN)/pytest -q -m gpu
