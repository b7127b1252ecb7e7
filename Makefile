# The commands of this project. `make` alone lists them.

PYTHON ?= python3
VENV := .venv
BIN := $(VENV)/bin
# Written when everything is installed, so that the second time costs nothing.
READY := $(VENV)/.ready
# Java classes of Spark in the form in which Java loads them fastest; tests/startup makes and uses it.
ARCHIVE := $(VENV)/spark.jsa
# Passed on to the program that a target runs: make test ARGS="-k tunnel -x"
ARGS ?=
# How many processes `make chaos` kills; the tests in `make test` kill fewer.
KILLS ?= 300
# How many sequences of forks `make chaos` runs.
FORKS ?= 200
# The first of the 20 random orders of `make seeds`.
FIRST_SEED ?= 1

.DEFAULT_GOAL := help
.PHONY: help setup demo test test-all seeds durations lint format types bench chaos soak proto clean check-python check-java

help: ## List these commands
	@awk -F ':.*## ' '/^[a-z-]+:.*## / {printf "  make %-8s %s\n", $$1, $$2}' $(firstword $(MAKEFILE_LIST))

setup: $(READY) ## Make .venv with everything for development
	-@$(MAKE) --no-print-directory $(ARCHIVE)

# Dependency groups need pip 25.1.
$(READY): pyproject.toml
	@$(MAKE) --no-print-directory check-python
	$(PYTHON) -m venv $(VENV)
	$(BIN)/python -m pip install --quiet --disable-pip-version-check --upgrade "pip>=25.1"
	$(BIN)/python -m pip install --quiet --disable-pip-version-check --editable ".[connect,serve,tablestore,yt]" --group dev
	$(BIN)/python -m pip install --quiet --disable-pip-version-check --no-deps --group sdk
	@touch $@

demo: $(READY) check-java ## See changes of orders become statistics, exactly once, in about a minute
	@$(BIN)/headrace demo $(ARGS)

$(ARCHIVE): $(READY) | check-java
	$(BIN)/python -m tests.startup.spark_archive

# Tests wait for Spark and for servers half of their time, so three files at once keep two cores busy. tests/order.py
# says why whole files, and why xdist must keep their order.
PYTEST := $(BIN)/python -m pytest --numprocesses=3 --dist=loadfile --no-loadscope-reorder --durations=20

test: $(READY) $(ARCHIVE) check-java ## Run the quick tests, in random order
	$(PYTEST) tests $(ARGS)

test-all: $(READY) $(ARCHIVE) check-java ## Run all tests with full counts: more examples, more commits, and a few kills of each kind
	HEADRACE_TESTS=thorough $(PYTEST) tests -m "not soak" $(ARGS)

seeds: $(READY) ## Run unit and conformance tests in 20 random orders
	for seed in $$(seq $(FIRST_SEED) $$(($(FIRST_SEED) + 19))); do \
		$(PYTEST) tests/unit tests/conformance --randomly-seed=$$seed $(ARGS) || exit 1; \
	done

durations: $(READY) $(ARCHIVE) check-java ## Run the quick tests, and write down how long each file takes, so that long ones begin first
	$(PYTEST) tests --record-durations $(ARGS)

lint: $(READY) ## Check style and formatting
	$(BIN)/ruff check
	$(BIN)/ruff format --check

format: $(READY) ## Repair style and formatting
	$(BIN)/ruff check --fix
	$(BIN)/ruff format

types: $(READY) ## Check types
	$(BIN)/mypy

bench: $(READY) check-java ## Run the benchmarks, each beside what it is measured against
	@$(BIN)/headrace bench --write docs/benchmarks.md $(ARGS)

chaos: $(READY) $(ARCHIVE) check-java ## Kill drivers, workers and writers for a long time; the sums must still be right
	HEADRACE_CHAOS_KILLS=$(KILLS) HEADRACE_CHAOS_FORKS=$(FORKS) $(BIN)/python -m pytest tests/chaos -m "not soak" --timeout=0 $(ARGS)

soak: $(READY) check-java ## Run streams of queues for ten minutes; memory stays flat, files stay bounded
	$(BIN)/python -m pytest -m soak --log-cli-level=INFO $(ARGS)

# In a place of its own: it needs an older protobuf than the rest. Wheels of it are there for Python 3.11 and 3.12.
proto: check-python ## Write the Python code of Tablestore's messages anew
	$(PYTHON) -m venv build/proto
	build/proto/bin/python -m pip install --quiet --disable-pip-version-check --upgrade "pip>=25.1"
	build/proto/bin/python -m pip install --quiet --disable-pip-version-check --group proto
	build/proto/bin/python -m grpc_tools.protoc --proto_path=src --python_out=src --pyi_out=src \
		src/headrace/wire/tablestore/table.proto src/headrace/wire/tablestore/tunnel.proto

clean: ## Remove what building and testing left, .venv too
	rm -rf $(VENV) build dist .mypy_cache .ruff_cache .pytest_cache .hypothesis spark-warehouse metastore_db derby.log
	find . -name __pycache__ -type d -prune -exec rm -rf {} +

check-python:
	@$(PYTHON) -c 'import sys; sys.exit(sys.version_info < (3, 11))' 2>/dev/null || { \
		echo "headrace needs Python 3.11 or newer; found: $$($(PYTHON) --version 2>/dev/null || echo none) ($(PYTHON))." >&2; \
		echo "Name another one: make setup PYTHON=python3.12" >&2; exit 1; }
	@$(PYTHON) -c 'import ensurepip, venv' 2>/dev/null || { \
		echo "$(PYTHON) cannot make virtual environments. On Debian and Ubuntu: apt install python3-venv" >&2; exit 1; }

check-java:
	@java=java; [ -z "$$JAVA_HOME" ] || java="$$JAVA_HOME/bin/java"; \
	found=$$("$$java" -version 2>&1 | sed -n 's/.* version "\([0-9]*\).*/\1/p' | head -n 1); \
	[ "$${found:-0}" -ge 17 ] || { \
		echo "Spark needs Java 17 or newer; found: $${found:-none} ($$java)." >&2; \
		echo "Install one (Debian, Ubuntu: apt install openjdk-17-jre-headless) or point JAVA_HOME to it." >&2; \
		exit 1; }
