"""The behaviour of the package ``deltalake`` that commits rely on, so that an upgrade that changes it is seen."""

from __future__ import annotations

import json
from collections.abc import Iterable, Mapping, Sequence
from dataclasses import dataclass
from pathlib import Path

import pyarrow as pa
import pyarrow.parquet as pq
import pytest
from deltalake import CommitProperties, DeltaTable, Transaction
from deltalake.exceptions import DeltaError
from deltalake.transaction import AddAction, RemoveAction

COLUMNS = pa.schema([pa.field("id", pa.int64(), nullable=False), pa.field("v", pa.string())])


@dataclass
class Lake:
    """A Delta table, and commits that name their files."""

    path: Path
    files: int = 0

    def open(self) -> DeltaTable:
        return DeltaTable(str(self.path))

    def add(self, *ids: int | None, columns: pa.Schema = COLUMNS, exists: bool = True) -> AddAction:
        self.files += 1
        path = self.path / f"hr-{self.files}.parquet"
        if exists:
            pq.write_table(
                pa.table([pa.array(ids, columns.types[0]), pa.nulls(len(ids), columns.types[1])], columns.names), path
            )
        size = path.stat().st_size if exists else 10
        return AddAction(path.name, size, {}, 0, True, json.dumps({"numRecords": len(ids)}))

    def ids(self) -> list[int]:
        return sorted(self.open().to_pyarrow_table().column("id").to_pylist())


def commit(
    table: DeltaTable,
    actions: Iterable[AddAction | RemoveAction],
    *,
    retries: int = 0,
    markers: Mapping[str, int] | None = None,
) -> None:
    transactions = [Transaction(app, version, 0) for app, version in (markers or {}).items()]
    properties = CommitProperties(max_commit_retries=retries, app_transactions=transactions)
    table.create_write_transaction(list(actions), "append", table.schema(), commit_properties=properties)


def removes(table: DeltaTable) -> Sequence[RemoveAction]:
    return [RemoveAction(path, True, 0) for path in pa.table(table.get_add_actions()).column("path").to_pylist()]


@pytest.fixture
def lake(tmp_path: Path) -> Lake:
    DeltaTable.create(str(tmp_path / "t"), COLUMNS)
    return Lake(tmp_path / "t")


def test_the_marker_outlives_checkpoints_compaction_and_vacuum(lake: Lake) -> None:
    commit(lake.open(), [lake.add(1)], markers={"job": 7, "job#content": 2**63 - 1})
    commit(lake.open(), [lake.add(2)])
    table = lake.open()
    table.optimize.compact()
    table.create_checkpoint()
    table.vacuum(0, enforce_retention_duration=False, dry_run=False)
    table.cleanup_metadata()
    found = lake.open()
    assert (found.transaction_version("job"), found.transaction_version("job#content")) == (7, 2**63 - 1)
    assert found.transaction_version("other") is None


def test_an_empty_entry_of_the_log_is_a_commit_and_a_torn_one_an_error(lake: Lake) -> None:
    commit(lake.open(), [lake.add(1)])
    entry = lake.path / "_delta_log" / f"{2:020}.json"
    entry.touch()
    assert (lake.open().version(), lake.ids()) == (2, [1])
    entry.write_text('{"add":{"pa')
    with pytest.raises(DeltaError):
        lake.open()


def test_compaction_drops_the_metadata_of_files(lake: Lake) -> None:
    for number in range(2):
        add = lake.add(number)
        rows = pq.read_table(lake.path / add.path).replace_schema_metadata({"headrace.table": "t"})
        pq.write_table(rows, lake.path / add.path)
        add.size = (lake.path / add.path).stat().st_size
        commit(lake.open(), [add])
    lake.open().optimize.compact()
    (path,) = pa.table(lake.open().get_add_actions()).column("path").to_pylist()
    assert b"headrace.table" not in (pq.read_schema(lake.path / path).metadata or {})
