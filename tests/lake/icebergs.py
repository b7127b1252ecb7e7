"""Iceberg tables with a catalog in a SQLite or PostgreSQL database, and what other programs do to them.

DuckDB's extensions come in wheels that need one version of DuckDB, so the referees are a program of an environment of
their own: ``make iceberg-referee``.
"""

from __future__ import annotations

import json
import os
import subprocess
from collections.abc import Callable, Mapping, Sequence
from pathlib import Path
from typing import Any

import pyarrow as pa
import pytest
from pyiceberg.catalog.sql import SqlCatalog
from pyiceberg.table import Table

import headrace
from headrace.ports import Store
from headrace_lake.iceberg import commits
from tests.conformance import serving

PROGRAM = os.environ.get("HEADRACE_ICEBERG_PYTHON") or str(
    Path(__file__).parents[2] / "build" / "iceberg" / "bin" / "python"
)
needs_referee = pytest.mark.skipif(not Path(PROGRAM).exists(), reason="needs the program of make iceberg-referee")
FIELDS = pa.schema([pa.field("id", pa.int64(), nullable=False), pa.field("name", pa.string())])


# The name of a file with the URL of a database.
_DATABASE = "database"


def use_postgres(directory: Path) -> str:
    """Let the catalog of a directory be in a new PostgreSQL database; return its URL."""
    directory.mkdir(exist_ok=True)
    url = serving.postgres_database()
    (directory / _DATABASE).write_text(url)
    return url


def _postgres(directory: Path) -> str | None:
    """Return the URL of the PostgreSQL database with the catalog of a directory."""
    file = directory / _DATABASE
    return file.read_text() if file.exists() else None


def url_of(directory: Path) -> str:
    """Return the URL of the store of a directory, which is its warehouse."""
    return f"iceberg+{_postgres(directory) or f'sqlite://{directory}/catalog.db'}"


def opened(directory: Path) -> Store:
    """Return a store with table ``t`` in a directory."""
    store = headrace.open(url_of(directory), create=True, warehouse=str(directory))
    store.create_table("t", {"id": "long", "name": "string"}, "id", exist_ok=True)
    return store


def catalog(directory: Path) -> SqlCatalog:
    """Return the catalog as another program opens it, with pyiceberg's own files."""
    database = _postgres(directory)
    uri = f"sqlite:///{directory}/catalog.db" if database is None else database.replace(":", "+psycopg:", 1)
    return SqlCatalog("default", uri=uri, warehouse=f"file://{directory}/others")


def foreign(directory: Path, table: str = "t") -> Table:
    """Return a table as another program loads it."""
    return catalog(directory).load_table(f"default.{table}")


def append(directory: Path, rows: Sequence[Mapping[str, Any]], table: str = "t") -> None:
    """Append rows as another program."""
    foreign(directory, table).append(pa.Table.from_pylist(list(rows), FIELDS))


def rows_of(directory: Path, table: str = "t") -> list[dict[str, Any]]:
    """Return the rows as pyiceberg reads them, by the first column."""
    rows: list[dict[str, Any]] = foreign(directory, table).scan().to_arrow().to_pylist()
    return sorted(rows, key=lambda row: next(iter(row.values())))


def referees(*locations: str) -> list[list[list[list[Any]]]]:
    """Return the rows of versions, which are files of metadata, as DuckDB and as polars read them."""
    call = [PROGRAM, str(Path(__file__).parent / "iceberg_referee.py"), *locations]
    environment = {**os.environ, "POLARS_ICEBERG_PLANNER": "pyiceberg"}
    printed = subprocess.run(call, check=True, stdout=subprocess.PIPE, env=environment).stdout
    found: list[list[list[list[Any]]]] = json.loads(printed)
    return found


def orphans(directory: Path, table: str = "t") -> set[str]:
    """Return the data files of headrace that no version of a table has had."""
    found = foreign(directory, table)
    known = set(found.inspect.all_files().column("file_path").to_pylist())
    place = Path(found.location().removeprefix("file://"))
    return {str(path) for path in place.glob("data/hr-*.parquet")} - {path.removeprefix("file://") for path in known}


class Interference:
    """Runs another program's step before the next commit of a table: after all checks of the commit."""

    def __init__(self, monkeypatch: pytest.MonkeyPatch) -> None:
        self.steps: list[Callable[[], object]] = []
        committed = commits.committed

        def after_a_step(*arguments: Any) -> int:
            if self.steps:
                self.steps.pop(0)()
            return committed(*arguments)

        monkeypatch.setattr(commits, "committed", after_a_step)
