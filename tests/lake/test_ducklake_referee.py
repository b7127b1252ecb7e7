"""A DuckLake that headrace and DuckDB write, read by both."""

from __future__ import annotations

import datetime
import decimal
import json
import time
from concurrent.futures import ThreadPoolExecutor
from pathlib import Path
from typing import Any

import pytest

from headrace.model.findings import Status
from headrace.ports import Store
from headrace_lake.ducklake import compacting
from headrace_lake.ducklake.store import DuckLakeStore
from headrace_lake.maintenance import Compaction
from tests.lake.ducklakes import catalog, database, needs_referee, opened, referee

pytestmark = needs_referee
_STATEMENTS = 4
COUNT = "SELECT count(*), sum(id)::bigint, count(DISTINCT id) FROM lake.t"
TYPES = {
    "id": "long",
    "text": "string",
    "bytes": "binary",
    "tiny": "byte",
    "small": "short",
    "whole": "int",
    "single": "float",
    "twice": "double",
    "flag": "boolean",
    "day": "date",
    "instant": "timestamp",
    "local": "timestamp_ntz",
    "price": "decimal(10,2)",
    "large": "decimal(38,3)",
}
NESTED = {"texts": "array<string>", "counts": "map<string,int>", "inner": "struct<a:int,b:array<struct<c:string>>>"}
NOON = datetime.datetime(2026, 1, 2, 12, 0, 0, 120000)
ROW: dict[str, Any] = {
    "text": "a\0b'\"ü",
    "bytes": b"\x00\xff'",
    "tiny": -128,
    "small": 2**15 - 1,
    "whole": -(2**31),
    "single": 0.1,
    "twice": float("nan"),
    "flag": True,
    "day": datetime.date(1, 1, 1),
    "instant": NOON.replace(tzinfo=datetime.UTC),
    "local": datetime.datetime(9999, 12, 31, 23, 59, 59, 999999),
    "price": decimal.Decimal("-0.10"),
    "large": decimal.Decimal("12345678901234567890123456789012345.678"),
}


@pytest.fixture
def url() -> str:
    return database()


@pytest.fixture
def store(url: str, tmp_path: Path) -> Store:
    return opened(url, tmp_path)


def shape(store: Store) -> list[Any]:
    """Return what `COUNT` finds."""
    ids = [row["id"] for row in store.table("t")]
    return [len(ids), sum(ids), len(set(ids))]


@pytest.mark.parametrize("rows", [2, 1200])
def test_all_types_in_the_catalog_and_in_files(store: Store, url: str, tmp_path: Path, rows: int) -> None:
    table = store.create_table("sales.types", TYPES | (NESTED if rows > 2 else {}), "id")
    first: dict[str, Any] = {"id": 0, **ROW}
    if rows > 2:
        first |= {"texts": ["a", None], "counts": {"k": 1}, "inner": {"a": 1, "b": [{"c": "x"}, None]}}
    table.put([first, *({"id": number} for number in range(1, rows))])
    columns = ", ".join(f"{name}::varchar" for name in TYPES if name not in ("text", "bytes"))
    found = referee(
        url,
        tmp_path,
        f"SELECT {columns}, hex(text), hex(bytes) FROM lake.sales.types WHERE id = 0",
        "SELECT count(*) FROM lake.sales.types WHERE text IS NULL AND instant IS NULL",
        # The bounds of the catalog exclude no row.
        f"SELECT id FROM lake.sales.types WHERE local >= '{first['local']}' AND instant <= '{first['instant']}'"
        " AND day < '0001-01-02' AND isnan(twice) AND large > 1e30 AND bytes >= '' AND tiny < 0",
        "SELECT to_json(t) FROM lake.sales.types t WHERE id = 0" if rows > 2 else "SELECT 1",
    )
    assert found[0][0] == [
        *("0", "-128", "32767", "-2147483648", "0.1", "nan", "true", "0001-01-01"),
        *("2026-01-02 12:00:00.12+00", "9999-12-31 23:59:59.999999", "-0.10", str(first["large"])),
        *(first["text"].encode().hex().upper(), first["bytes"].hex().upper()),
    ]
    assert found[1] == [[rows - 1]]
    assert found[2] == [[0]]
    if rows > 2:
        nested = json.loads(found[3][0][0])
        assert nested["texts"] == ["a", None]
        assert nested["counts"] == {"k": 1}
        assert nested["inner"] == {"a": 1, "b": [{"c": "x"}, None]}


def test_bounds_that_both_have_written_exclude_no_row(store: DuckLakeStore, url: str, tmp_path: Path) -> None:
    table = store.create_table("types", TYPES, "id")
    bounds = (
        "SELECT s.min_value, s.max_value FROM ducklake_table_column_stats s JOIN ducklake_column c"
        " USING (table_id, column_id) WHERE c.column_name = 'flag'"
    )
    referee(url, tmp_path, "INSERT INTO lake.types (id, flag) SELECT i, true FROM range(10, 1010) r (i)")
    # DuckDB writes the bounds of a file in another way than those of rows in the catalog.
    assert catalog(url, bounds) == [("1", "1")]
    table.put([{"id": 0, **ROW, "flag": False}, {"id": 1}])
    assert catalog(url, bounds) == [("false", "1")]
    for maintenance in ("SELECT 1", "CALL ducklake_flush_inlined_data('lake')"):
        referee(url, tmp_path, maintenance)
        assert [each.status for each in store.maintenance("types").check()] == [Status.OK]
    assert [row["id"] for row in table.scan(where={"flag": False}).read_all().to_pylist()] == [0]
    assert referee(url, tmp_path, "SELECT id FROM lake.types WHERE NOT flag") == [[[0]]]


def test_both_write_and_both_read(store: Store, url: str, tmp_path: Path) -> None:
    table = store.table("t")
    table.put([{"id": number, "name": f"n{number}"} for number in range(3000)])
    table.put([{"id": number, "name": "new"} for number in (1, 5, 4000)])
    table.delete([{"id": number} for number in range(100, 1500)])
    table.delete([{"id": 2000}])
    (count, names) = referee(url, tmp_path, COUNT, "SELECT id FROM lake.t WHERE name = 'new' ORDER BY id")
    assert count == [shape(store)]
    assert names == [[1], [5], [4000]]
    *_, count = referee(
        url,
        tmp_path,
        "UPDATE lake.t SET name = 'duck' WHERE id IN (1, 2, 4000)",
        "DELETE FROM lake.t WHERE id IN (5, 6)",
        "INSERT INTO lake.t SELECT i, 'many' FROM range(5000, 5100) r (i)",
        "INSERT INTO lake.t VALUES (6000, 'one')",
        COUNT,
    )
    assert count == [shape(store)]
    assert [row["id"] for row in table.scan(where={"name": "duck"}).read_all().to_pylist()] == [1, 2, 4000]
    for maintenance in (
        "CALL ducklake_flush_inlined_data('lake')",
        "CALL ducklake_merge_adjacent_files('lake')",
        "CALL ducklake_rewrite_data_files('lake')",
        "CALL ducklake_expire_snapshots('lake', older_than => now() + INTERVAL 1 DAY)",
        "CALL ducklake_cleanup_old_files('lake', cleanup_all => true)",
    ):
        assert referee(url, tmp_path, maintenance, COUNT)[1] == [shape(store)]
        table.put([{"id": 6000, "name": maintenance}, {"id": 5001, "name": maintenance}])
        table.delete([{"id": 5000 + len(maintenance)}])
    assert referee(url, tmp_path, COUNT)[0] == [shape(store)]
    assert referee(url, tmp_path, "SELECT name FROM lake.t WHERE id = 6000") == [[[maintenance]]]


def test_a_flush_keeps_the_past(
    store: DuckLakeStore, url: str, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    table = store.table("t")
    for number in range(4):
        table.put([{"id": number, "name": "old"}, {"id": 10, "name": str(number)}])
    table.delete([{"id": 2}])
    (last,) = catalog(url, "SELECT max(snapshot_id) FROM ducklake_snapshot")[0]
    past = [f"SELECT * FROM lake.t AT (VERSION => {number}) ORDER BY id" for number in range(2, last + 1)]
    changes = f"SELECT * FROM ducklake_table_changes('lake', 'main', 't', 0, {last}) ORDER BY ALL"
    before = referee(url, tmp_path, *past, changes)
    assert store.maintenance("t").compact() == Compaction(last + 1, 0, 2)
    assert catalog(url, "SELECT count(*) FROM ducklake_inlined_data_1_1") == [(0,)]
    assert referee(url, tmp_path, *past, changes) == before
    assert before[-2] == [[row["id"], row["name"]] for row in table]
    assert store.maintenance("t").compact() == Compaction(None)
    # A write that finds many rows in the catalog is followed by a flush.
    monkeypatch.setattr(compacting, "MAX_INLINED_ROWS", 1)
    table.put([{"id": 11, "name": "a"}, {"id": 12, "name": "b"}])
    table.put([{"id": 11, "name": "c"}])
    assert catalog(url, "SELECT count(*) FROM ducklake_inlined_data_1_1") == [(0,)]
    assert referee(url, tmp_path, COUNT)[0] == [shape(store)]


def test_columns_that_are_added(store: Store, url: str, tmp_path: Path) -> None:
    table = store.table("t")
    table.put([{"id": 1, "name": "in the catalog"}])
    table.add_columns({"n": "long", "inner": "struct<a:int>"})
    table.put([{"id": 2, "name": "in a file", "n": 2, "inner": {"a": 3}}])
    rows = [[1, "in the catalog", None, None], [2, "in a file", 2, {"a": 3}]]
    assert referee(url, tmp_path, "SELECT * FROM lake.t ORDER BY id")[0] == rows
    assert [list(row.values()) for row in table] == rows
    referee(url, tmp_path, "ALTER TABLE lake.t ADD COLUMN z INTEGER", "UPDATE lake.t SET z = 1 WHERE id = 1")
    table.update([{"id": 2, "z": 2}])
    assert [row["z"] for row in table] == [1, 2]
    assert referee(url, tmp_path, "SELECT z FROM lake.t ORDER BY id")[0] == [[1], [2]]


def test_both_write_at_the_same_time(store: Store, url: str, tmp_path: Path) -> None:
    inserts = [f"INSERT INTO lake.t SELECT {1000 + n}, 'duck'" for n in range(_STATEMENTS)]
    updates = [f"UPDATE lake.t SET name = 'changed' WHERE id = {1000 + n}" for n in range(_STATEMENTS)]
    with ThreadPoolExecutor() as pool:
        other = pool.submit(referee, url, tmp_path, *inserts, *updates)
        rounds = 0
        while not other.done() or not rounds:
            store.table("t").put([{"id": rounds % 50, "name": str(rounds)}, {"id": 500, "name": str(rounds)}])
            rounds += 1
            # DuckDB repeats its whole statement after a conflict.
            time.sleep(0.2)
        other.result()
    expected = {number % 50: str(number) for number in range(rounds)}
    expected |= {500: str(rounds - 1)} | dict.fromkeys(range(1000, 1000 + _STATEMENTS), "changed")
    assert {row["id"]: row["name"] for row in store.table("t")} == expected
    assert referee(url, tmp_path, COUNT)[0] == [shape(store)]
