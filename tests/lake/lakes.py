"""Directories of Delta tables, and what other programs do to them."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from pathlib import Path
from typing import Any

import pyarrow as pa
import pytest
from deltalake import DeltaTable, write_deltalake

import headrace
from headrace.ports import Store
from headrace_lake.delta.log import DataFile
from headrace_lake.delta.snapshot import Added, Snapshot

COLUMNS = {"id": "long", "name": "string"}


def opened(directory: Path) -> Store:
    """Return a store with table ``t`` in a directory."""
    store = headrace.open(f"delta://{directory}", create=True)
    store.create_table("t", COLUMNS, "id", exist_ok=True)
    return store


def foreign(directory: Path, table: str = "t") -> DeltaTable:
    """Return a table as another program opens it."""
    return DeltaTable(str(directory / table))


def append(directory: Path, rows: Sequence[Mapping[str, Any]], table: str = "t") -> None:
    """Append rows as another program."""
    fields = pa.schema([pa.field("id", pa.int64(), nullable=False), pa.field("name", pa.string())])
    write_deltalake(str(directory / table), pa.Table.from_pylist(list(rows), fields), mode="append")


def rows_of(directory: Path, table: str = "t") -> list[dict[str, Any]]:
    """Return the rows as delta-rs reads them, by key."""
    found: list[dict[str, Any]] = foreign(directory, table).to_pyarrow_table().to_pylist()
    return sorted(found, key=lambda row: row["id"])


def orphans(directory: Path, table: str = "t") -> set[str]:
    """Return the data files that no version of a table has had."""
    names = {path.name for path in (directory / table).glob("*.parquet")}
    for entry in (directory / table / "_delta_log").glob("*.json"):
        names -= {name for name in names if name in entry.read_text()}
    return names


class Interference:
    """Runs another program's step before the next commit of a table: after all checks of the commit."""

    def __init__(self, monkeypatch: pytest.MonkeyPatch) -> None:
        self.steps: list[Any] = []
        commit = Snapshot.commit

        def after_a_step(
            snapshot: Snapshot,
            added: Sequence[Added],
            removed: Sequence[DataFile],
            markers: Mapping[str, int],
            information: Mapping[str, Any],
            **options: bool,
        ) -> int:
            if self.steps:
                self.steps.pop(0)()
            return commit(snapshot, added, removed, markers, information, **options)

        monkeypatch.setattr(Snapshot, "commit", after_a_step)
