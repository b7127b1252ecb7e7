"""Directories of Delta tables, and what other programs do to them."""

from __future__ import annotations

import json
from collections.abc import Mapping, Sequence
from pathlib import Path
from typing import Any

import pyarrow as pa
import pytest
from deltalake import DeltaTable, QueryBuilder, write_deltalake

import headrace
from headrace.ports import Store
from headrace_lake.delta.snapshot import Snapshot
from headrace_lake.delta.vectors import location_of

COLUMNS = {"id": "long", "name": "string"}


def opened(directory: Path, **options: Any) -> Store:
    """Return a store with table ``t`` in a directory."""
    store = headrace.open(f"delta://{directory}", create=True)
    store.create_table("t", COLUMNS, "id", exist_ok=True, **options)
    return store


def foreign(directory: Path, table: str = "t") -> DeltaTable:
    """Return a table as another program opens it."""
    return DeltaTable(str(directory / table))


def append(directory: Path, rows: Sequence[Mapping[str, Any]], table: str = "t") -> None:
    """Append rows as another program."""
    fields = pa.schema([pa.field("id", pa.int64(), nullable=False), pa.field("name", pa.string())])
    write_deltalake(str(directory / table), pa.Table.from_pylist(list(rows), fields), mode="append")


def define_as_spark(
    directory: Path,
    properties: Mapping[str, str],
    table: str = "t",
    *,
    protocol: Mapping[str, Any] | None = None,
    rename: Mapping[str, str] | None = None,
) -> None:
    """Change the definition of a table in a way that delta-rs does not have.

    Args:
        rename: the new names of columns, whose names in the files stay.
    """
    theirs = foreign(directory, table)
    fields = json.loads(theirs.schema().to_json())
    for number, field in enumerate(fields["fields"] if rename else (), 1):
        field["metadata"] |= {"delta.columnMapping.id": number, "delta.columnMapping.physicalName": field["name"]}
        field["name"] = rename.get(field["name"], field["name"]) if rename else field["name"]
    metadata = {
        "id": str(theirs.metadata().id),
        "format": {"provider": "parquet", "options": {}},
        "schemaString": json.dumps(fields),
        "partitionColumns": theirs.metadata().partition_columns,
        "configuration": {**theirs.metadata().configuration, **properties},
    }
    actions: list[Mapping[str, Any]] = [{"protocol": protocol}] if protocol is not None else []
    entry = directory / table / "_delta_log" / f"{theirs.version() + 1:020}.json"
    entry.write_text("".join(f"{json.dumps(action)}\n" for action in (*actions, {"metaData": metadata})))


def rows_of(directory: Path, table: str = "t") -> list[dict[str, Any]]:
    """Return the rows as delta-rs reads them, by key."""
    # Other than DataFrames and datasets of the package, its queries read deletion vectors.
    rows = QueryBuilder().register("t", foreign(directory, table)).execute("SELECT * FROM t ORDER BY id").read_all()
    return pa.table(rows).to_pylist()  # type: ignore[no-any-return]


def orphans(directory: Path, table: str = "t") -> set[str]:
    """Return the data files that no version of a table has had."""
    names = {path.name: path.name for path in (directory / table).glob("*.parquet")}
    names |= {path.name: location_of(path.name) for path in (directory / table).glob("hr/*.bin")}
    for entry in (directory / table / "_delta_log").glob("*.json"):
        text = entry.read_text()
        names = {name: shown for name, shown in names.items() if shown not in text}
    return set(names)


class Interference:
    """Runs another program's step before the next commit of a table: after all checks of the commit."""

    def __init__(self, monkeypatch: pytest.MonkeyPatch) -> None:
        self.steps: list[Any] = []
        commit = Snapshot.commit

        def after_a_step(snapshot: Snapshot, *arguments: Any, **options: Any) -> int:
            if self.steps:
                self.steps.pop(0)()
            return commit(snapshot, *arguments, **options)

        monkeypatch.setattr(Snapshot, "commit", after_a_step)
