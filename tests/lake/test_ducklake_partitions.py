"""Partitioned tables of a DuckLake that headrace and DuckDB write, read by both."""

from __future__ import annotations

import datetime
from pathlib import Path
from typing import Any

import pytest

from headrace.errors import SchemaError, StoreError, UnsupportedError
from headrace.model.findings import Status
from headrace.model.tables.changes import RowChange
from headrace_lake.ducklake import writing
from headrace_lake.ducklake.store import DuckLakeStore
from tests.lake.ducklakes import catalog, database, needs_referee, opened, referee
from tests.lake.jobs import write

COLUMNS = {"id": "long", "day": "date", "text": "string"}
DAY, LATER = datetime.date(2026, 1, 1), datetime.date(2026, 1, 2)
FILES = (
    "SELECT d.record_count, CASE WHEN d.partition_id IS NOT NULL"
    " THEN string_agg(coalesce(v.partition_value, 'NULL'), '/' ORDER BY v.partition_key_index) END"
    " FROM ducklake_data_file d LEFT JOIN ducklake_file_partition_value v USING (data_file_id)"
    " WHERE d.end_snapshot IS NULL GROUP BY d.data_file_id ORDER BY 2, 1"
)
ROWS = "SELECT id, day::text, text FROM lake.p ORDER BY id"


@pytest.fixture
def url() -> str:
    return database()


@pytest.fixture
def store(url: str, tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> DuckLakeStore:
    """A store in which writes of four rows are files, and those of three rows are in the catalog."""
    monkeypatch.setattr(writing, "INLINED_ROWS", 3)
    found = opened(url, tmp_path)
    assert isinstance(found, DuckLakeStore)
    return found


def row(number: int, day: datetime.date | None = DAY, text: str | None = "x") -> dict[str, Any]:
    return {"id": number, "day": day, "text": text}


@needs_referee
def test_duckdb_reads_divides_and_merges_the_same_table(store: DuckLakeStore, url: str, tmp_path: Path) -> None:
    table = store.create_table("p", COLUMNS, "id", partition_by=["day", "text"])
    table.put([row(1), row(2), row(3, LATER), row(4, None, None), row(5, text="")])
    assert catalog(url, FILES) == [(1, "2026-01-01/"), (2, "2026-01-01/x"), (1, "2026-01-02/x"), (1, "NULL/NULL")]
    # A few rows are in the catalog, which has no partitions, until they move into files.
    table.put([row(1, LATER), row(6, LATER, "a b")])
    assert len(catalog(url, FILES)) == 4
    found, explained = referee(url, tmp_path, ROWS, "EXPLAIN ANALYZE SELECT * FROM lake.p WHERE day = '2026-01-02'")
    expected = [
        [1, "2026-01-02", "x"],
        [2, "2026-01-01", "x"],
        [3, "2026-01-02", "x"],
        [4, None, None],
        [5, "2026-01-01", ""],
        [6, "2026-01-02", "a b"],
    ]
    assert found == expected
    assert "Total Files Read: 1" in str(explained)
    assert store.maintenance("p").compact().version is not None
    assert catalog(url, FILES) == [
        (1, "2026-01-01/"),
        (1, "2026-01-01/x"),
        (1, "2026-01-02/a b"),
        (2, "2026-01-02/x"),
        (1, "NULL/NULL"),
    ]
    moved = referee(
        url,
        tmp_path,
        ROWS,
        # Five rows are a file: up to three are inlined by headrace, and up to ten by DuckDB.
        "INSERT INTO lake.p SELECT 100 + i, '2026-01-02', 'x' FROM range(20) t(i)",
        "UPDATE lake.p SET text = 'moved' WHERE id = 3",
        "CALL ducklake_flush_inlined_data('lake')",
        "CALL ducklake_merge_adjacent_files('lake')",
        "CALL ducklake_rewrite_data_files('lake')",
        "SELECT count(*), sum(id)::bigint FROM lake.p WHERE day = '2026-01-02' AND text = 'x'",
    )
    assert moved[0] == expected
    assert moved[-1] == [[21, 1 + sum(range(100, 120))]]
    assert (1, "2026-01-02/moved") in catalog(url, FILES)
    table.put([row(number, text="y") for number in range(100, 110)])
    assert len(list(table)) == 26
    assert [each.status for each in store.maintenance("p").check()] == [Status.OK]


@needs_referee
def test_a_table_that_duckdb_divides_anew(store: DuckLakeStore, url: str, tmp_path: Path) -> None:
    referee(
        url,
        tmp_path,
        "CREATE TABLE lake.p (id BIGINT, ts TIMESTAMP, text VARCHAR)",
        "INSERT INTO lake.p SELECT i, '2025-12-31 23:00:00'::TIMESTAMP + INTERVAL (i) HOUR, 'a' FROM range(20) t(i)",
        "ALTER TABLE lake.p SET PARTITIONED BY (year(ts), month(ts), day(ts), hour(ts), text)",
    )
    assert store.table("p").describe().partition_by == ("year(ts)", "month(ts)", "day(ts)", "hour(ts)", "text")
    publisher = store.publisher("job")
    noon = datetime.datetime(2026, 1, 1, 12, 30)
    rows = [{"id": 100 + number, "ts": noon, "text": "b"} for number in range(5)]
    rows.append({"id": 105, "ts": datetime.datetime(1960, 2, 3, 4), "text": None})
    publisher.publish(0, [write(store, publisher, 0, "p", rows, RowChange.PUT)])
    assert catalog(url, FILES) == [(1, "1960/2/3/4/NULL"), (5, "2026/1/1/12/b"), (20, None)]
    referee(url, tmp_path, "ALTER TABLE lake.p SET PARTITIONED BY (text)")
    publisher.publish(1, [write(store, publisher, 1, "p", rows[:5], RowChange.PUT)])
    publisher.publish(2, [write(store, publisher, 2, "p", rows[:3], RowChange.PUT)])
    # Files of other partitions stay as they are, those of the same one are merged.
    publisher.publish(3, [write(store, publisher, 3, "p", rows[:4], RowChange.PUT)])
    store.maintenance("p").compact()
    assert catalog(url, FILES) == [(1, "1960/2/3/4/NULL"), (5, "2026/1/1/12/b"), (12, "b"), (20, None)]
    queries = (
        "SELECT count(*), sum(id)::bigint FROM lake.p WHERE text = 'b'",
        "SELECT count(*) FROM lake.p WHERE year(ts) = 2026 AND text = 'a'",
        "SELECT count(*) FROM lake.p WHERE ts < '2000-01-01'",
    )
    ids = [*range(100, 105)] * 2 + [*range(100, 103)] + [*range(100, 104)]
    assert referee(url, tmp_path, *queries) == [[[17, sum(ids)]], [[19]], [[1]]]
    referee(url, tmp_path, "ALTER TABLE lake.p RESET PARTITIONED BY")
    publisher.publish(4, [write(store, publisher, 4, "p", rows[:5], RowChange.PUT)])
    assert (5, None) in catalog(url, FILES)


@needs_referee
def test_rows_of_the_catalog_from_before_a_partition_column(store: DuckLakeStore, url: str, tmp_path: Path) -> None:
    referee(
        url,
        tmp_path,
        "CREATE TABLE lake.p (id BIGINT)",
        "INSERT INTO lake.p VALUES (1), (2)",
        "ALTER TABLE lake.p ADD COLUMN text VARCHAR",
        "ALTER TABLE lake.p SET PARTITIONED BY (text)",
        "INSERT INTO lake.p VALUES (3, 'x')",
        "DELETE FROM lake.p WHERE id = 2",
    )
    (before,) = referee(url, tmp_path, "SELECT max(snapshot_id)::bigint FROM ducklake_snapshots('lake')")
    rows = [{"id": 1, "text": None}, {"id": 3, "text": "x"}]
    assert sorted(store.table("p"), key=lambda each: each["id"]) == rows
    assert store.maintenance("p").compact().after == 3
    assert catalog(url, FILES) == [(1, "NULL"), (1, "x")]
    assert sorted(store.table("p"), key=lambda each: each["id"]) == rows
    past = f"FROM lake.p AT (VERSION => {before[0][0] - 1}) ORDER BY id"
    assert referee(url, tmp_path, "FROM lake.p ORDER BY id", past) == [
        [[1, None], [3, "x"]],
        [[1, None], [2, None], [3, "x"]],
    ]


@needs_referee
@pytest.mark.parametrize("partitioning", ["bucket(4, id)", "day(instant)", "twice"])
def test_what_headrace_does_not_divide_is_refused(
    store: DuckLakeStore, url: str, tmp_path: Path, partitioning: str
) -> None:
    referee(
        url,
        tmp_path,
        "CREATE TABLE lake.p (id BIGINT, instant TIMESTAMPTZ, twice DOUBLE)",
        f"ALTER TABLE lake.p SET PARTITIONED BY ({partitioning})",
        "INSERT INTO lake.p VALUES (1, '2026-01-01 00:00:00+00', 0.5)",
    )
    assert [each["id"] for each in store.table("p")] == [1]
    publisher = store.publisher("job")
    rows = [{"id": 2, "instant": datetime.datetime(2026, 1, 1, tzinfo=datetime.UTC), "twice": 0.5}]
    with pytest.raises(UnsupportedError, match="partition"):
        publisher.publish(0, [write(store, publisher, 0, "p", rows, RowChange.PUT)])
    with pytest.raises(UnsupportedError, match="partition"):
        store.maintenance("p").compact()
    assert [each["id"] for each in store.table("p")] == [1]


def test_a_scan_reads_only_files_of_its_partitions(store: DuckLakeStore, url: str, tmp_path: Path) -> None:
    table = store.create_table("p", COLUMNS | {"ts": "timestamp_ntz"}, "id", partition_by=["day", "text"])
    days, noon = (DAY, LATER, None), datetime.datetime(2026, 1, 1, 12)
    rows = [
        row(number, days[number % 3], "é" if number % 2 else None)
        | {"ts": noon + datetime.timedelta(days=number % 3, microseconds=number)}
        for number in range(24)
    ]
    table.put(rows)
    # A row in the catalog has no partition.
    table.put([row(24, LATER, "é") | {"ts": None}])
    rows.append(row(24, LATER, "é") | {"ts": None})
    partitions = {
        name: (day, text)
        for name, day, text in catalog(
            url,
            "SELECT d.path, max(v.partition_value) FILTER (WHERE v.partition_key_index = 0),"
            " max(v.partition_value) FILTER (WHERE v.partition_key_index = 1)"
            " FROM ducklake_data_file d JOIN ducklake_file_partition_value v USING (data_file_id) GROUP BY d.path",
        )
    }
    assert len(partitions) == 6
    for name, (day, text) in partitions.items():
        if (day, text) != (str(LATER), "é"):
            next(tmp_path.rglob(name)).unlink()
    kept = [each for each in rows if (each["day"], each["text"]) == (LATER, "é")]
    conditions: list[Any] = [
        {"day": LATER, "text": "é"},
        {"day": [LATER, datetime.date(2030, 1, 1)], "text": "é"},
        [("day", ">", DAY), ("text", "is not null", None)],
        [("day", ">=", LATER), ("text", "starts with", "é")],
        [("day", "<=", LATER), ("day", "!=", DAY), ("ts", ">", noon + datetime.timedelta(hours=1)), ("text", ">", "e")],
    ]
    for where in conditions:
        found = [each for each in kept if each["ts"] is not None or not any("ts" in part for part in where)]
        assert table.scan(where=where).read_all().to_pylist() == found
    unknown: list[Any] = [{"day": datetime.date(2030, 1, 1)}, [("day", "<", DAY)], [("text", "starts with", "éa")]]
    for where in unknown:
        assert table.scan(where=where).read_all().num_rows == 0
    others: list[Any] = [{"day": None}, {"text": None}, [("day", "<", LATER)], [("text", "!=", "x")], {"ts": noon}]
    for where in others:
        with pytest.raises(StoreError, match="does not exist"):
            table.scan(where=where).read_all()


def test_values_that_a_catalog_does_not_have(store: DuckLakeStore) -> None:
    table = store.create_table("p", COLUMNS, "id", partition_by=["text", "day"])
    with pytest.raises(SchemaError, match="NUL"):
        table.put([row(number, text="a\0b") for number in range(4)])
    assert list(table) == []


def test_a_new_column_and_a_drop(store: DuckLakeStore, url: str) -> None:
    table = store.create_table("p", COLUMNS, "id", partition_by="text")
    table.put([row(number) for number in range(4)])
    table.add_columns({"n": "int"})
    table.put([row(number, text="y") | {"n": 1} for number in range(2, 6)])
    assert catalog(url, FILES) == [(4, "x"), (4, "y")]
    store.drop_table("p")
    assert catalog(url, "SELECT count(*) FROM ducklake_partition_info WHERE end_snapshot IS NULL") == [(0,)]
    assert list(store.create_table("p", COLUMNS, "id")) == []
