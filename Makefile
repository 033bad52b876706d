# Every target sets up what it needs: a virtual environment in .venv, then the job.
PYTHON ?= python3
BIN := .venv/bin
SPREAD := -n auto --dist loadfile  # a test process a core, each file in one of them

.PHONY: demo test quick check format bench clean

demo: .venv/demo
	$(BIN)/prunewald demo

test: .venv/ready
	$(BIN)/pytest $(SPREAD)

quick: .venv/ready
	$(BIN)/pytest $(SPREAD) -m "not slow"

check: .venv/ready
	$(BIN)/ruff format --check .
	$(BIN)/ruff check .
	$(BIN)/mypy
	$(MAKE) test

format: .venv/ready
	$(BIN)/ruff format .
	$(BIN)/ruff check --fix .

bench: .venv/ready
	$(BIN)/python -m benchmarks.sigma
	$(BIN)/python -m benchmarks.step
	$(BIN)/python -m benchmarks.select
	$(BIN)/python -m benchmarks.ensemble
	$(BIN)/python -m benchmarks.units
	$(BIN)/python -m benchmarks.closed_forms
	$(BIN)/python -m benchmarks.size
	$(BIN)/python -m benchmarks.certificates
	$(BIN)/python -m benchmarks.wanda
	$(BIN)/python -m benchmarks.run_sparse

clean:
	rm -rf .venv

.venv/demo: pyproject.toml constraints.txt
	$(PYTHON) -m venv .venv
	$(BIN)/pip install --quiet --upgrade pip
	$(BIN)/pip install --quiet -c constraints.txt torch
	$(BIN)/pip install --quiet -c constraints.txt -e '.[demo]'
	touch $@

.venv/ready: .venv/demo  # what the tests need besides: frameworks, linters
	$(BIN)/pip install --quiet -c constraints.txt -e '.[dev]'
	touch $@
