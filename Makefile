# Each target that has a `##` comment shows up in `make help`.

PYTHON ?= python3
VENV   ?= .venv
PY     := $(VENV)/bin/python
STAMP  := $(VENV)/.installed
JOBS   ?= 3
PYTEST  = $(PY) -m pytest -n $(JOBS) --dist loadgroup --timeout 600

# Tests, benchmarks and demos start hundreds of processes: each would compile the whole package again.
unexport PYTHONDONTWRITEBYTECODE

.DEFAULT_GOAL := help
.PHONY: help venv demo test unit lint format typecheck torture simulate bench bench-engine bench-spark demo-spark clean

help:  ## show this list
	@awk -F ':.*## ' '/^[a-z-]+:.*## / {printf "  make %-14s %s\n", $$1, $$2}' $(MAKEFILE_LIST)

venv: $(STAMP)  ## make the environment in .venv (the other targets do so by themselves)

$(STAMP): pyproject.toml
	@$(PYTHON) -c 'import sys; sys.exit(sys.version_info < (3, 11))' \
		|| { echo "omniray needs Python 3.11 or newer: make PYTHON=/path/to/python3.11 $(MAKECMDGOALS)"; exit 2; }
	$(PYTHON) -m venv $(VENV)
	$(PY) -m pip install --quiet --disable-pip-version-check --editable '.[dev]'
	@touch $@

demo: $(STAMP)  ## eight writers on one graph on S3, through a coordinator on Ray, while things are killed
	@$(PY) -m omniray.coordinator.demo.writers

demo-spark: $(STAMP)  ## a pipeline on Spark: a data set with planted faults becomes one commit and a table of rejects
	@$(PY) -m omniray.coordinator.demo.spark

test: lint typecheck  ## everything that must pass: ruff, mypy, all tests with coverage
	$(PYTEST) --cov --cov-report=term $(ARGS)

unit: $(STAMP)  ## the tests without servers and processes, about a minute; or those that ARGS names
	$(PYTEST) $(if $(filter tests/%,$(ARGS)),,tests/unit) $(ARGS)

lint: $(STAMP)  ## ruff, rules and format
	$(PY) -m ruff check .
	$(PY) -m ruff format --check .

typecheck: $(STAMP)  ## mypy, strict
	$(PY) -m mypy

torture: $(STAMP)  ## the long forms of the tests: every kill, every fault, long random runs; takes an hour or so
	OMNIRAY_TORTURE=1 OMNIRAY_RACES=50 $(PY) -m pytest -n $(JOBS) tests/recovery tests/faults tests/model tests/processes tests/ray tests/spark $(ARGS)

format: $(STAMP)  ## let ruff rewrite what it can
	$(PY) -m ruff check --fix .
	$(PY) -m ruff format .

simulate: $(STAMP)  ## the real publisher under many seeded schedules: make simulate SEEDS=100000
	OMNIRAY_SEEDS=$(or $(SEEDS),100000) $(PY) -m pytest -q -n $(JOBS) --timeout 36000 tests/model/test_rounds.py -k "promises" $(ARGS)

bench: $(STAMP)  ## ours beside the peers: many writers at once, on S3 with latency and on disk; takes an hour or so
	$(PY) -m bench.peers --plot docs/bench.svg $(ARGS)

bench-engine: $(STAMP)  ## ours beside the bare library: loads, single rows, S3 latency, long histories
	$(PY) -m bench.engine $(ARGS)

bench-spark: $(STAMP)  ## frames into a graph beside Spark writing Parquet, the handoff to Ray, memory
	$(PY) -m bench.spark $(ARGS)

clean:  ## remove the environment and everything that was built
	rm -rf $(VENV) build dist src/omniray.egg-info .coverage* .mypy_cache .pytest_cache .ruff_cache .hypothesis
	find . -name __pycache__ -type d -prune -exec rm -rf {} +
