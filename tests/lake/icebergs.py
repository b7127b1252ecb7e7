"""Iceberg tables with a catalog in a SQLite database, and what other programs do to them."""

from __future__ import annotations

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

FIELDS = pa.schema([pa.field("id", pa.int64(), nullable=False), pa.field("name", pa.string())])


def url_of(directory: Path) -> str:
    """Return the URL of the store of a directory."""
    return f"iceberg+sqlite://{directory}/catalog.db"


def opened(directory: Path) -> Store:
    """Return a store with table ``t`` in a directory."""
    store = headrace.open(url_of(directory), create=True)
    store.create_table("t", {"id": "long", "name": "string"}, "id", exist_ok=True)
    return store


def catalog(directory: Path) -> SqlCatalog:
    """Return the catalog as another program opens it, with pyiceberg's own files."""
    return SqlCatalog("default", uri=f"sqlite:///{directory}/catalog.db", warehouse=f"file://{directory}/others")


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
        committed = commits._committed

        def after_a_step(*arguments: Any) -> int:
            if self.steps:
                self.steps.pop(0)()
            return committed(*arguments)

        monkeypatch.setattr(commits, "_committed", after_a_step)
