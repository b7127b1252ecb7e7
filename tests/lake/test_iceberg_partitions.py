"""Partitioned Iceberg tables: those of pyiceberg as targets, and those of headrace as other programs read them."""

from __future__ import annotations

import datetime
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import pyarrow as pa
import pyarrow.parquet as pq
import pytest
from pyiceberg.transforms import (
    BucketTransform,
    DayTransform,
    HourTransform,
    IdentityTransform,
    MonthTransform,
    Transform,
    TruncateTransform,
    YearTransform,
)

from headrace.errors import SchemaError, StoreError, UnsupportedError
from headrace.model.findings import Status
from headrace.model.tables.changes import RowChange
from headrace.ports import Store
from headrace_lake.iceberg.store import IcebergStore
from headrace_lake.iceberg.version import Version
from tests.lake.icebergs import Interference, catalog, foreign, needs_referee, opened, referees, rows_of
from tests.lake.jobs import write

PROPERTIES = {"headrace.primaryKey": '["id"]', "commit.retry.num-retries": "0"}
FIELDS = pa.schema(
    {"id": pa.int64(), "day": pa.date32(), "text": pa.string(), "n": pa.int32(), "ts": pa.timestamp("us", "UTC")}
)
IDENTITY: tuple[tuple[str, Transform[Any, Any]], ...] = (("day", IdentityTransform()), ("text", IdentityTransform()))


@pytest.fixture
def store(tmp_path: Path) -> Iterator[IcebergStore]:
    with opened(tmp_path) as found:
        assert isinstance(found, IcebergStore)
        yield found


def create(directory: Path, *fields: tuple[str, Transform[Any, Any]]) -> None:
    """Create table ``p`` as another program."""
    table = catalog(directory).create_table("default.p", FIELDS, properties=PROPERTIES)
    with table.update_spec() as update:
        for place, (column, how) in enumerate(fields):
            update.add_field(column, how, f"part{place}")


def row(number: int, day: int | None = 1, text: str | None = "a b", n: int = 0) -> dict[str, Any]:
    start = datetime.datetime(1969, 12, 31, 23, 30, tzinfo=datetime.UTC)
    date = None if day is None else datetime.date(2026, 1, day)
    return {"id": number, "day": date, "text": text, "n": n, "ts": start + datetime.timedelta(hours=number)}


def partitions(directory: Path) -> list[tuple[list[Any], int]]:
    """Return the partition and the number of rows of each file."""
    found = foreign(directory, "p").inspect.files().to_pylist()
    return sorted(((list(each["partition"].values()), each["record_count"]) for each in found), key=str)


def test_pyiceberg_skips_files_of_other_partitions(store: Store, tmp_path: Path) -> None:
    table = store.create_table("p", {"id": "long", "day": "date", "text": "string"}, "id", partition_by=["day", "text"])
    day = datetime.date(2026, 1, 1)
    rows = [{"id": number, "day": day if number % 2 else None, "text": str(number % 3)} for number in range(12)]
    table.put(rows)
    assert partitions(tmp_path) == [([each, text], 2) for each in (None, day) for text in ("0", "1", "2")]
    scan = foreign(tmp_path, "p").scan("day = '2026-01-01' and text in ('1', '2')")
    assert len(list(scan.plan_files())) == 2
    assert sorted(scan.to_arrow().column("id").to_pylist()) == [1, 5, 7, 11]
    assert len(list(foreign(tmp_path, "p").scan("day is null").plan_files())) == 3


def test_a_scan_reads_only_files_of_its_partitions(store: Store, tmp_path: Path) -> None:
    create(tmp_path, *IDENTITY, ("id", BucketTransform(2)))
    table = store.table("p")
    table.put([row(number, 1 + number % 2) for number in range(8)])
    for file in foreign(tmp_path, "p").inspect.files().to_pylist():
        if file["partition"]["part0"] == datetime.date(2026, 1, 1):
            Path(file["file_path"].removeprefix("file://")).unlink()
    found = table.scan(where=[("day", ">", datetime.date(2026, 1, 1)), ("id", "<", 6)]).read_all()
    assert found.column("id").to_pylist() == [1, 3, 5]
    with pytest.raises(StoreError, match="does not exist"):
        table.scan(where={"id": 1}).read_all()


def test_a_partitioned_table_of_another_program(store: IcebergStore, tmp_path: Path) -> None:
    create(tmp_path, *IDENTITY)
    rows = [row(1), row(2, text=None), row(3, None), row(4, 2)]
    foreign(tmp_path, "p").append(pa.Table.from_pylist(rows, FIELDS))
    table = store.table("p")
    assert sorted(table, key=lambda each: each["id"]) == rows
    table.put([row(1, 2), row(5, 2)])
    table.delete({"id": 2})
    expected = [row(1, 2), row(3, None), row(4, 2), row(5, 2)]
    assert rows_of(tmp_path, "p") == expected
    first, later = datetime.date(2026, 1, 1), datetime.date(2026, 1, 2)
    assert partitions(tmp_path) == [([None, "a b"], 1), ([later, "a b"], 1), ([later, "a b"], 2)]
    assert store.maintenance("p").compact().after == 1
    assert partitions(tmp_path) == [([None, "a b"], 1), ([later, "a b"], 3)]
    foreign(tmp_path, "p").overwrite(pa.Table.from_pylist([row(9)], FIELDS))
    assert partitions(tmp_path) == [([first, "a b"], 1)]
    # Files of pyiceberg are in directories of partitions.
    assert len(list(tmp_path.rglob("part0=*/*/*.parquet"))) == 5
    with foreign(tmp_path, "p").maintenance.expire_snapshots() as expiry:
        expiry.older_than(datetime.datetime.now() + datetime.timedelta(days=1))
    store.maintenance("p").vacuum(0)
    assert len(list(tmp_path.rglob("part0=*/*/*.parquet"))) == 1
    assert list(table) == [row(9)]


@pytest.mark.parametrize(
    ("column", "transform", "expected"),
    [
        ("id", BucketTransform(4), None),
        ("text", BucketTransform(3), None),
        ("day", BucketTransform(3), None),
        ("ts", BucketTransform(3), None),
        ("n", TruncateTransform(10), [-10, 0, None]),
        ("text", TruncateTransform(2), ["a ", "ü", None]),
        ("day", MonthTransform(), [672, None]),
        ("ts", YearTransform(), [-1, 0]),
        ("ts", DayTransform(), [datetime.date(1969, 12, 31), datetime.date(1970, 1, 1)]),
        ("ts", HourTransform(), [-1, 0, 1, 2, 3, 4]),
        ("ts", IdentityTransform(), None),
    ],
)
def test_functions_of_columns(
    store: Store, tmp_path: Path, column: str, transform: Transform[Any, Any], expected: list[Any] | None
) -> None:
    create(tmp_path, (column, transform))
    shown = column if isinstance(transform, IdentityTransform) else f"{transform}({column})"
    assert store.table("p").describe().partition_by == (shown,)
    rows = [row(0, n=-3), row(1), row(2, None, None), row(3, text="ü"), row(4, 2), row(5)]
    del rows[2]["n"]
    store.table("p").put(rows)
    assert rows_of(tmp_path, "p") == [row(2, None, None) | {"n": None} if each is rows[2] else each for each in rows]
    if expected is not None:
        assert sorted((values[0] for values, _ in partitions(tmp_path)), key=str) == sorted(expected, key=str)
    field = foreign(tmp_path, "p").schema().find_field(column)
    for each in rows:
        # pyiceberg computes the partition of the value by itself, and skips the other ones.
        value = each.get(column)
        condition = f"{column} is null" if value is None else f"{column} = {_literal(value)}"
        scan = foreign(tmp_path, "p").scan(condition)
        assert each["id"] in scan.to_arrow().column("id").to_pylist(), field
    store.table("p").put([each | {"text": "new"} for each in rows])
    assert {each["text"] for each in rows_of(tmp_path, "p")} == {"new"}


def _literal(value: Any) -> str:
    if isinstance(value, datetime.datetime):
        return f"'{value.isoformat()}'"
    return str(value) if isinstance(value, int) else f"'{value}'"


def test_files_without_the_columns_of_their_partition(store: IcebergStore, tmp_path: Path) -> None:
    """Tables that come from Hive have such files."""
    create(tmp_path, ("day", IdentityTransform()), ("id", IdentityTransform()))
    file = tmp_path / "theirs.parquet"
    pq.write_table(pa.Table.from_pylist([row(7)], FIELDS).drop_columns(["day", "id"]), file)
    table = foreign(tmp_path, "p")
    statistics = '{"numRecords": 1, "minValues": {}, "maxValues": {}, "nullCount": {}}'
    (partition,) = (record for record, _ in Version("p", table).partitions(pa.Table.from_pylist([row(7)], FIELDS)))
    entry = Version("p", table).added(file, statistics, partition)
    with table.transaction() as transaction, transaction.update_snapshot().fast_append() as snapshot:
        snapshot.append_data_file(entry)
    assert list(store.table("p")) == [row(7)]
    assert store.table("p").get({"id": 7}) == row(7)
    assert [each.status for each in store.maintenance("p").check()] == [Status.OK]
    store.table("p").update({"id": 7, "n": 1})
    assert list(store.table("p")) == [row(7, n=1)]
    assert rows_of(tmp_path, "p") == [row(7, n=1)]


def test_a_table_that_is_partitioned_anew(store: IcebergStore, tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    create(tmp_path)
    store.table("p").put([row(1), row(2)])
    with foreign(tmp_path, "p").update_spec() as update:
        update.add_field("day", IdentityTransform(), "day")
    store.table("p").put([row(2, 2), row(3, 2)])
    with foreign(tmp_path, "p").update_spec() as update:
        update.remove_field("day")
        update.add_field("ts", DayTransform(), "ts_day")
    store.table("p").put([row(3), row(4)])
    expected = [row(1), row(2, 2), row(3), row(4)]
    assert rows_of(tmp_path, "p") == expected
    assert sorted(store.table("p"), key=lambda each: each["id"]) == expected
    store.table("p").put([row(5)])
    specs = {each["spec_id"] for each in foreign(tmp_path, "p").inspect.files().to_pylist()}
    assert len(specs) == 2
    assert store.maintenance("p").compact().version is not None
    assert rows_of(tmp_path, "p") == [*expected, row(5)]
    (spec,) = {each["spec_id"] for each in foreign(tmp_path, "p").inspect.files().to_pylist()}
    assert spec == max(specs)
    assert store.maintenance("p").compact().version is not None
    assert store.maintenance("p").compact().version is None
    assert rows_of(tmp_path, "p") == [*expected, row(5)]
    assert [each.status for each in store.maintenance("p").check()] == [Status.OK]

    def partition_again() -> None:
        with foreign(tmp_path, "p").update_spec() as update:
            update.remove_field("ts_day")
        foreign(tmp_path, "p").append(pa.Table.from_pylist([row(8)], FIELDS))

    other = Interference(monkeypatch)
    other.steps = [partition_again]
    with pytest.raises(SchemaError, match="partitions or columns were changed"):
        store.table("p").put([row(6)])
    store.table("p").put([row(6)])
    assert rows_of(tmp_path, "p") == [*expected, row(5), row(6), row(8)]


def test_rows_that_were_staged_before_the_table_was_partitioned(store: Store, tmp_path: Path) -> None:
    create(tmp_path)
    publisher = store.publisher("job")
    writes = [write(store, publisher, 0, "p", [row(1), row(2, 2)], RowChange.PUT)]
    with foreign(tmp_path, "p").update_spec() as update:
        update.add_field("day", IdentityTransform(), "day")
    assert publisher.publish(0, writes)
    assert [count for _, count in partitions(tmp_path)] == [1, 1]
    assert rows_of(tmp_path, "p") == [row(1), row(2, 2)]


def test_what_headrace_does_not_divide_is_refused(store: Store, tmp_path: Path) -> None:
    fields = pa.schema({"id": pa.int64(), "x": pa.float64()})
    catalog(tmp_path).create_table("default.p", fields, properties=PROPERTIES)
    with foreign(tmp_path, "p").update_spec() as update:
        update.add_identity("x")
    with pytest.raises(UnsupportedError, match="is partitioned"):
        store.table("p").put({"id": 1, "x": 0.5})
    foreign(tmp_path, "p").append(pa.Table.from_pylist([{"id": 1, "x": 0.5}], fields))
    with pytest.raises(UnsupportedError, match="is partitioned"):
        store.table("p").scan().read_all()
    assert any("is partitioned" in str(finding) for finding in store.diagnose())


def test_a_value_without_a_partition_is_refused(store: Store, tmp_path: Path) -> None:
    create(tmp_path, ("id", TruncateTransform(10)))
    with pytest.raises(SchemaError, match="has no partition"):
        store.table("p").put(row(0) | {"id": -(2**63)})
    assert rows_of(tmp_path, "p") == []


@needs_referee
def test_referees_read_the_same_rows(store: IcebergStore, tmp_path: Path) -> None:
    locations, expected = [], []
    table = store.create_table("p", {"id": "long", "day": "date", "text": "string"}, "id", partition_by=["day", "text"])
    rows = [{"id": n, "day": datetime.date(2026, 1, 1 + n % 2), "text": "a/b ü" if n % 3 else None} for n in range(9)]
    for step in (
        lambda: table.put(rows),
        lambda: table.put([each | {"text": "moved"} for each in rows[:4]]),
        lambda: table.delete([{"id": 5}]),
        lambda: store.maintenance("p").compact(),
    ):
        step()
        locations.append(foreign(tmp_path, "p").metadata_location)
        expected.append([[each["id"], str(each["day"]), each["text"]] for each in rows_of(tmp_path, "p")])
    assert referees(*locations) == [[each, each] for each in expected]
