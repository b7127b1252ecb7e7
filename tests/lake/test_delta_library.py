"""The behaviour of the package ``deltalake`` that commits rely on, so that an upgrade that changes it is seen."""

from __future__ import annotations

import json
from collections.abc import Callable, Iterable, Mapping, Sequence
from dataclasses import dataclass
from pathlib import Path

import pyarrow as pa
import pyarrow.parquet as pq
import pytest
from deltalake import CommitProperties, DeltaTable, TableFeatures, Transaction
from deltalake.exceptions import CommitFailedError, DeltaError
from deltalake.schema import Field, PrimitiveType
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


def test_any_commit_in_between_fails_a_commit_without_retries(lake: Lake) -> None:
    stale = lake.open()
    commit(lake.open(), [lake.add(1)])
    with pytest.raises(CommitFailedError):
        commit(stale, [lake.add(2)])
    assert lake.ids() == [1]
    assert stale.version() == 0


@pytest.mark.parametrize(("retries", "ids"), [(0, [1, 2, 3]), (1, [1, 1, 2, 2, 3])])
def test_with_retries_a_remove_of_a_compacted_file_duplicates_its_rows(
    lake: Lake, retries: int, ids: list[int]
) -> None:
    commit(lake.open(), [lake.add(1, 2)])
    commit(lake.open(), [lake.add(3)])
    stale = lake.open()
    lake.open().optimize.compact()
    try:
        commit(stale, [lake.add(1, 2), *removes(stale)], retries=retries)
    except CommitFailedError:
        assert not retries
    assert lake.ids() == ids


def test_the_versions_of_an_application_are_not_compared(lake: Lake) -> None:
    commit(lake.open(), [lake.add(1)], markers={"job": 5})
    for version in (5, 4):
        commit(lake.open(), [lake.add(version)], markers={"job": version})
    assert lake.open().transaction_version("job") == 4


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


def test_a_commit_can_have_a_marker_alone(lake: Lake) -> None:
    commit(lake.open(), [], markers={"job": 0})
    assert (lake.open().version(), lake.open().transaction_version("job")) == (1, 0)


def test_files_are_not_checked(lake: Lake) -> None:
    commit(lake.open(), [RemoveAction("nothing.parquet", True, 0)])
    other = pa.schema([pa.field("id", pa.string()), pa.field("v", pa.string())])
    # A null in a NOT NULL column, and another type.
    commit(lake.open(), [lake.add(None), lake.add("x", columns=other)])  # type: ignore[arg-type]
    commit(lake.open(), removes(lake.open()))
    commit(lake.open(), [lake.add(1, exists=False)])
    with pytest.raises(FileNotFoundError):
        lake.ids()


def test_a_changed_schema_is_a_conflict(lake: Lake) -> None:
    stale = lake.open()
    lake.open().alter.add_columns(Field("w", PrimitiveType("long")))
    with pytest.raises(CommitFailedError, match="Metadata changed"):
        commit(stale, [lake.add(1)], retries=5)
    commit(lake.open(), [lake.add(1)])
    assert lake.open().to_pyarrow_table().column("w").to_pylist() == [None]


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


def test_a_table_with_local_times_lacks_the_feature_of_not_null(tmp_path: Path) -> None:
    columns = pa.schema([pa.field("id", pa.int64(), nullable=False), pa.field("at", pa.timestamp("us"))])
    table = DeltaTable.create(str(tmp_path / "t"), columns)
    assert table.protocol().writer_features == ["timestampNtz"]
    table.alter.add_feature(TableFeatures.Invariants, allow_protocol_versions_increase=True)
    assert sorted(DeltaTable(str(tmp_path / "t")).protocol().writer_features or ()) == ["invariants", "timestampNtz"]


@pytest.mark.parametrize(
    "columns",
    [
        pa.schema([("a", pa.duration("us"))]),
        pa.schema([("a", pa.int64()), ("A", pa.int64())]),
    ],
)
def test_columns_that_a_table_cannot_have(tmp_path: Path, columns: pa.Schema) -> None:
    create: Callable[..., DeltaTable] = DeltaTable.create
    with pytest.raises(Exception, match=r"(?i)duration|duplicate"):
        create(str(tmp_path / "t"), columns)
