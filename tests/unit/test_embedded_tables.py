"""Tables of the embedded store: cases that the model test does not cover."""

from __future__ import annotations

import gc
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import apsw
import numpy as np
import pyarrow as pa
import pytest

from headrace.errors import NotFoundError, OptionError, SchemaError
from headrace.model.tables.changes import ChangeOp, Changes, RowChange
from headrace.model.tables.conditions import KeyRange
from headrace.model.tables.options import TableOptions
from headrace.model.tables.schema import TableSchema
from headrace.stores.embedded.connection import Database, stamp
from headrace.stores.embedded.tables import change_log, conditions, physical, reading, stored_tables
from headrace.stores.embedded.tables.stored_tables import table_options
from headrace.stores.embedded.tables.table import EmbeddedTable

COLUMNS = {"id": "long", "name": "string", "price": "double", "data": "binary"}


@pytest.fixture
def database(tmp_path: Path) -> Iterator[Database]:
    database = Database(tmp_path / "store", create=True, synchronous="off")
    yield database
    database.close()


def create(
    database: Database, columns: dict[str, str] | None = None, key: str | list[str] = "id", **options: Any
) -> EmbeddedTable:
    with database.write() as connection:
        stored_tables.create(connection, "t", TableSchema.of(columns or COLUMNS, key), TableOptions(**options))
    return EmbeddedTable(database, "t")


@pytest.fixture
def table(database: Database) -> EmbeddedTable:
    return create(database)


def apply(database: Database, table: EmbeddedTable, change: RowChange, rows: Any) -> None:
    with database.write() as connection:
        version, ts = stamp(connection)
        table.apply(connection, change, rows, version, ts)


def changes_of(database: Database, table: EmbeddedTable, first: int = 0) -> Changes:
    """Return the log of the only partition of a table."""
    (partition,) = table.describe().partitions
    with database.read() as connection:
        return change_log.read(connection, partition.id, first, 10_000)[0]


def ids(table: EmbeddedTable, **arguments: Any) -> list[int]:
    found: list[int] = table.scan(["id"], **arguments).read_all().column("id").to_pylist()
    return found


# -- writes ---------------------------------------------------------------------------------------------------


def test_writing_no_rows_makes_no_commit(database: Database, table: EmbeddedTable) -> None:
    version = table.put({"id": 1})
    assert table.put([]) == version
    assert table.delete([]) == version
    assert table.update(pa.table({"id": pa.array([], pa.int64()), "name": pa.array([], pa.string())})) == version
    assert table.put({"id": 2}) == version + 1


@pytest.mark.parametrize("split", [False, True])
def test_a_table_without_change_log_replaces_and_counts_its_rows(database: Database, *, split: bool) -> None:
    columns = {"a": "string", "b": "long", "name": "string", "price": "double"}
    table = create(database, columns, ["a", "b"], change_log=False)
    if split:
        (partition,) = table.describe().partitions
        table.split(partition.id, at={"a": "n"})
    table.put([{"a": "x", "b": 1, "name": "old", "price": 1.0}, {"a": "m", "b": 2, "name": "kept", "price": 2.0}])
    table.put(
        [
            {"a": "x", "b": 1, "name": "again", "price": 3.0},
            {"a": "x", "b": 1, "name": None, "price": None},
            {"a": "c", "b": 1, "name": "new", "price": 4.0},
        ]
    )
    table.delete([{"a": "m", "b": 2}, {"a": "m", "b": 3}])
    assert table.scan().read_all().to_pylist() == [
        {"a": "c", "b": 1, "name": "new", "price": 4.0},
        {"a": "x", "b": 1, "name": None, "price": None},
    ]
    assert sum(each.rows for each in table.describe().partitions if each.open) == 2


def test_each_write_of_a_key_in_one_call_is_a_change(database: Database) -> None:
    table = create(database, pre_images=True)
    table.put([{"id": 2, "name": "a"}, {"id": 1, "name": "b"}, {"id": 2, "name": "c"}])
    changes = changes_of(database, table)
    assert [ChangeOp(op).name for op in changes.ops.to_pylist()] == ["INSERT", "INSERT", "PREIMAGE", "REPLACE"]
    assert changes.rows.column("name").to_pylist() == ["b", "a", "a", "c"]
    assert len(set(changes.versions.to_pylist())) == 1


def test_an_update_logs_which_cells_it_set(database: Database, table: EmbeddedTable) -> None:
    table.put({"id": 1, "name": "a", "price": 1.0})
    table.update([{"id": 1, "price": 2.0, "data": None}, {"id": 2, "price": None, "data": b"x"}])
    apply(database, table, RowChange.UPDATE, [{"id": 1, "price": None, "data": b"y"}])
    changes = changes_of(database, table, 1)
    assert changes.written is not None
    assert [ChangeOp(op).name for op in changes.ops.to_pylist()] == ["UPDATE", "UPSERT", "UPDATE"]
    assert {name: written.to_pylist() for name, written in changes.written.items()} == {
        "name": [False, False, False],
        "price": [True, True, False],
        "data": [True, True, True],
    }
    assert changes.rows.to_pylist()[2] == {"id": 1, "name": "a", "price": 2.0, "data": b"y"}


def test_an_update_without_columns_to_set_is_an_error(table: EmbeddedTable) -> None:
    with pytest.raises(SchemaError, match="besides the key"):
        table.update({"id": 1})


def test_replacing_all_rows_logs_only_the_differences(database: Database, table: EmbeddedTable) -> None:
    rows = [{"id": number, "name": f"n{number}", "price": float("nan")} for number in range(5)]
    table.put(rows)
    apply(database, table, RowChange.REPLACE_ALL, [*rows[1:4], {"id": 9}, {"id": 3, "name": "x"}])
    changes = changes_of(database, table, 5)
    assert list(zip(changes.rows.column("id").to_pylist(), changes.ops.to_pylist(), strict=True)) == [
        (0, ChangeOp.DELETE),
        (3, ChangeOp.REPLACE),
        (4, ChangeOp.DELETE),
        (9, ChangeOp.INSERT),
    ]
    assert ids(table) == [1, 2, 3, 9]
    apply(database, table, RowChange.REPLACE_ALL, [])
    assert ids(table) == []


def test_replacing_all_rows_reads_the_old_rows_page_by_page(
    database: Database, table: EmbeddedTable, monkeypatch: pytest.MonkeyPatch
) -> None:
    old, new = list(range(0, 300, 2)), list(range(0, 400, 3))
    table.put([{"id": number} for number in old])
    monkeypatch.setattr(physical, "PAGE_BYTES", 7 * physical.PhysicalTable(0, table.schema, 1).codec.row_width)
    apply(database, table, RowChange.REPLACE_ALL, [{"id": number} for number in new])
    assert ids(table) == new
    changes = changes_of(database, table, len(old))
    assert changes.num_rows == len(set(old) ^ set(new))


def test_a_failing_write_changes_nothing(database: Database, table: EmbeddedTable) -> None:
    table.put({"id": 1})

    def put_and_fail() -> None:
        with database.write() as connection:
            version, ts = stamp(connection)
            table.apply(connection, RowChange.PUT, {"id": 2}, version, ts)
            raise RuntimeError

    with pytest.raises(RuntimeError):
        put_and_fail()
    assert ids(table) == [1]
    assert table.describe().rows == changes_of(database, table).num_rows == 1


def test_many_parts_of_one_write_are_one_commit(
    database: Database, table: EmbeddedTable, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr("headrace.stores.embedded.tables.writing._PART_ROWS", 3)
    table.put([{"id": number % 20, "name": str(number)} for number in range(50)])
    assert ids(table) == list(range(20))
    changes = changes_of(database, table)
    assert changes.num_rows == 50
    assert len(set(changes.versions.to_pylist())) == 1
    assert table.get({"id": 5}, ["name"]) == {"name": "45"}


def test_columns_added_between_preparing_and_applying_are_null(database: Database, table: EmbeddedTable) -> None:
    prepared = table.prepare(RowChange.PUT, {"id": 1, "name": "a"})
    EmbeddedTable(database, "t").add_columns({"extra": "decimal(10,2)"})
    apply(database, table, RowChange.PUT, prepared)
    assert table.get({"id": 1}, ["name", "extra"]) == {"name": "a", "extra": None}


def test_a_handle_of_a_recreated_table_uses_the_new_columns(database: Database, table: EmbeddedTable) -> None:
    table.put({"id": 1})
    with database.write() as connection:
        stored_tables.drop(connection, table._load(connection).table.object_id)
    with pytest.raises(NotFoundError):
        table.put({"id": 1})
    create(database, {"key": "string", "value": "int"}, "key")
    table.put({"key": "a", "value": 1})
    assert table.scan().read_all().to_pylist() == [{"key": "a", "value": 1}]
    with database.read() as connection:
        ((chunks,),) = connection.execute("SELECT count(*) FROM chunk")
    assert chunks == 1


# -- reads ----------------------------------------------------------------------------------------------------


@pytest.mark.parametrize("name", ["a b", "//tmp/t", "q\"'; DROP TABLE t1", "sélect", "\U0001d11e", "k0"])
def test_column_names_can_be_any_text(database: Database, name: str) -> None:
    table = create(database, {name: "string", f"{name}x": "string"}, name)
    table.put({name: "k", f"{name}x": "v"})
    assert table.scan(where={f"{name}x": "v"}).read_all().to_pylist() == [{name: "k", f"{name}x": "v"}]
    assert table.get({name: "k"}) == {name: "k", f"{name}x": "v"}


def test_a_long_scan_sees_one_state(table: EmbeddedTable, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(reading, "READ_AHEAD_BYTES", 1)
    table.put([{"id": number, "name": "before"} for number in range(100)])
    reader = table.scan(["id", "name"], batch_rows=10)
    rows = reader.read_next_batch().to_pylist()
    table.put([{"id": number, "name": "after"} for number in range(-5, 120)])
    table.delete([{"id": number} for number in range(50, 60)])
    rows += reader.read_all().to_pylist()
    assert rows == [{"id": number, "name": "before"} for number in range(100)]


def test_a_scan_that_is_fully_prefetched_holds_no_transaction(database: Database, table: EmbeddedTable) -> None:
    table.put([{"id": number} for number in range(1000)])
    reader = table.scan(batch_rows=10)
    table.put({"id": 5000})
    # The WAL can be truncated only if no transaction reads from it.
    ((busy, *_),) = database.query("PRAGMA wal_checkpoint(TRUNCATE)")
    assert busy == 0
    assert reader.read_all().num_rows == 1000


def test_dropping_a_long_scan_ends_its_transaction(
    database: Database, table: EmbeddedTable, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(reading, "READ_AHEAD_BYTES", 1)
    table.put([{"id": number} for number in range(1000)])
    readers = [table.scan(batch_rows=10), table.scan(batch_rows=10)]
    readers[0].read_next_batch()
    table.put({"id": 5000})
    readers.clear()
    gc.collect()
    ((busy, *_),) = database.query("PRAGMA wal_checkpoint(TRUNCATE)")
    assert busy == 0


def test_a_scan_without_columns_returns_row_counts(table: EmbeddedTable) -> None:
    table.put([{"id": number, "price": number / 2} for number in range(25)])
    batches = list(table.scan([], where=[("price", ">=", 1.0)], batch_rows=10))
    assert [batch.num_rows for batch in batches] == [10, 10, 3]
    assert batches[0].num_columns == 0


def test_batches_have_at_most_the_requested_rows(table: EmbeddedTable) -> None:
    table.put([{"id": number} for number in range(10_000)])
    assert max(batch.num_rows for batch in table.scan(batch_rows=5000)) <= 5000
    with pytest.raises(OptionError):
        table.scan(batch_rows=0)


def test_pages_of_large_rows_are_short(table: EmbeddedTable) -> None:
    # Above SQLite's limit for a page, after small rows from which the reader estimates the size.
    table.put([{"id": number} for number in range(5000)])
    large = [{"id": 5000 + number, "data": bytes([number]) * (5 << 20)} for number in range(20)]
    for row in large:
        table.put(row)
    batches = list(table.scan(["id", "data"]))
    assert max(batch.nbytes for batch in batches) <= physical.PAGE_BYTES + (1 << 20)
    assert pa.Table.from_batches(batches).slice(5000).to_pylist() == large


def test_a_row_larger_than_a_page_is_read(table: EmbeddedTable) -> None:
    value = bytes(physical._CUT_BYTES + 1)
    table.put([{"id": 1}, {"id": 2, "data": value}, {"id": 3}])
    assert [batch.num_rows for batch in table.scan()] == [1, 1, 1]
    row = table.get({"id": 2})
    assert row is not None
    assert row["data"] == value


def test_key_ranges_and_keys_have_the_types_of_the_key(table: EmbeddedTable) -> None:
    table.put([{"id": number} for number in range(10)])
    assert ids(table, keys=KeyRange((3,), (5,))) == [3, 4]
    with pytest.raises(SchemaError):
        table.scan(keys=KeyRange(("3",)))
    with pytest.raises(SchemaError):
        table.get({"id": "3"})
    with pytest.raises(SchemaError):
        table.get({"id": 3, "name": "x"})
    with pytest.raises(SchemaError):
        table.get({"id": 3}, ["nope"])


# -- base data ------------------------------------------------------------------------------------------------


def take_snapshot(database: Database, table: EmbeddedTable) -> int:
    with database.write() as connection:
        physical_table = table._load(connection).table
        physical_table.create_undo(connection)
        object_id = physical_table.object_id
        connection.execute("INSERT INTO snapshot (object, tunnel, version, ts) VALUES (?, '', 0, 0)", (object_id,))
        return connection.last_insert_rowid()


def test_base_data_is_the_table_at_its_snapshot_while_writers_run(database: Database) -> None:
    table = create(database, {"a": "string", "b": "long", "x": "int", "note": "string"}, ["a", "b"])
    numbers = np.random.default_rng(5)

    def some_writes() -> None:
        rows = [
            {"a": str(numbers.integers(4)), "b": int(numbers.integers(8)), "x": int(numbers.integers(99)), "note": "n"}
            for _ in range(6)
        ]
        table.put(rows[:3])
        table.update([{name: row[name] for name in ("a", "b", "x")} for row in rows[3:4]])
        table.delete(rows[4:])
        apply(database, table, RowChange.REPLACE_ALL, [*table.scan().read_all().to_pylist()[1:], rows[0]])

    for _ in range(3):
        some_writes()
    expected, snapshots = [], []
    for _ in range(2):
        expected.append(table.scan().read_all().to_pylist())
        snapshots.append(take_snapshot(database, table))
        some_writes()
    table.add_columns({"late": "string"})
    for snapshot, rows in zip(snapshots, expected, strict=True):
        after, found = None, []
        while True:
            with database.read() as connection:
                page = table._load(connection).table.read(
                    connection, ["a", "b", "x", "note"], KeyRange(), (), after, 2, snapshot
                )
            found += page.rows.to_pylist()
            if page.ended:
                break
            after = page.last
            some_writes()
        assert found == rows


def test_releasing_a_range_deletes_its_undo_rows(database: Database, table: EmbeddedTable) -> None:
    table.put([{"id": number} for number in range(10)])
    snapshot = take_snapshot(database, table)
    table.delete([{"id": number} for number in range(10)])

    def undo_rows() -> int:
        with database.read() as connection:
            ((count,),) = connection.execute(f"SELECT count(*) FROM u{table._load(connection).table.object_id}")
        return int(count)

    assert undo_rows() == 10
    with database.write() as connection:
        table._load(connection).table.release(connection, snapshot, KeyRange(None, (4,)))
    assert undo_rows() == 6
    with database.write() as connection:
        table._load(connection).table.release(connection, snapshot, None)
    assert undo_rows() == 0


@pytest.mark.parametrize(("snapshot", "reverse"), [(None, False), (1, False), (None, True)])
def test_a_page_is_read_in_key_order_without_sorting(
    database: Database, table: EmbeddedTable, snapshot: int | None, reverse: bool
) -> None:
    take_snapshot(database, table)
    with database.read() as connection:
        rows = table._load(connection).table
        condition = conditions.where(rows.codec, KeyRange((1,), (9,)), (), (5,))
        source, bindings = rows._source([], condition, snapshot, reverse)
        plan = [row[3] for row in connection.execute(f"EXPLAIN QUERY PLAN {source}", (*bindings, 10))]
    assert not [step for step in plan if "TEMP B-TREE" in step or step.startswith("SCAN")], plan


# -- partitions and options -----------------------------------------------------------------------------------


def test_a_split_takes_the_middle_of_the_largest_partition(table: EmbeddedTable) -> None:
    table.put([{"id": number} for number in range(100)])
    left, right = table.split()
    described = {partition.id: partition for partition in table.describe().partitions}
    assert (described[left].keys, described[right].keys) == (KeyRange(None, (50,)), KeyRange((50,), None))
    assert (described[left].rows, described[right].rows) == (50, 50)
    table.put([{"id": number} for number in range(100, 120)])
    assert table.split()[0] > right
    assert {partition.rows for partition in table.describe().partitions} == {0, 50, 35}


@pytest.mark.parametrize("rows", [1, 7, 40])
def test_a_write_logs_each_row_in_the_partition_of_its_key(database: Database, rows: int) -> None:
    table = create(database, {"a": "string", "b": "long"}, ["a", "b"])
    # Bounds of whole keys and of beginnings of keys.
    bounds: list[dict[str, str | int]] = [{"a": "b"}, {"a": "b", "b": 3}, {"a": "c"}, {"a": "c", "b": -1}, {"a": "e"}]
    for at in bounds:
        holder = next(
            each.id
            for each in table.describe().partitions
            if each.open
            and (each.keys.low is None or each.keys.low < tuple(at.values()))
            and (each.keys.high is None or tuple(at.values()) < each.keys.high)
        )
        table.split(holder, at)
    keys = [(letter, number) for letter in "abcdef" for number in range(-2, 8)]
    chosen = [keys[index] for index in np.random.default_rng(rows).choice(len(keys), rows, replace=False)]
    table.put([{"a": a, "b": b} for a, b in chosen])
    for partition in table.describe().partitions:
        if partition.open:
            keep, below = partition.keys.low or (), partition.keys.high
            expected = [key for key in chosen if key >= keep and (below is None or key < below)]
            assert (partition.rows, partition.next) == (len(expected), len(expected))


def test_a_merge_undoes_a_split(table: EmbeddedTable) -> None:
    table.put([{"id": number} for number in range(10)])
    (whole,) = table.describe().partitions
    left, right = table.split(whole.id, {"id": 3})
    merged = table.merge(left, right)
    last = table.describe().partitions[-1]
    assert (last.id, last.keys, last.parents, last.rows) == (merged, KeyRange(), (left, right), 10)


def test_invalid_splits_and_merges_are_errors(database: Database) -> None:
    table = create(database, {"a": "string", "b": "long"}, ["a", "b"])
    (first,) = table.describe().partitions
    with pytest.raises(OptionError, match="fewer than two rows"):
        table.split()
    left, right = table.split(first.id, {"a": "m"})
    middle, last = table.split(right, {"a": "m", "b": 5})
    with pytest.raises(OptionError, match="above its lower bound"):
        table.split(last, {"a": "m", "b": 5})
    with pytest.raises(OptionError, match="inside the partition"):
        table.split(left, {"a": "z"})
    with pytest.raises(SchemaError):
        table.split(left, {"b": 1})
    with pytest.raises(NotFoundError, match="split or merged before"):
        table.split(first.id, {"a": "c"})
    with pytest.raises(NotFoundError, match="no such partition"):
        table.split(999, {"a": "c"})
    with pytest.raises(OptionError, match="adjacent"):
        table.merge(left, last)
    assert table.merge(middle, last) > last


@pytest.mark.parametrize("count", [1, 3, 4, 8])
def test_key_ranges_have_about_equal_size(table: EmbeddedTable, count: int) -> None:
    table.put([{"id": number} for number in range(1000)])
    table.split(at={"id": 100})
    table.split(at={"id": 800})
    ranges = table.splits(count)
    assert 1 <= len(ranges) <= count
    sizes = [len(ids(table, keys=keys)) for keys in ranges]
    assert sum(sizes) == 1000
    if count == 8:
        assert max(sizes) <= 250
    with pytest.raises(OptionError):
        table.splits(0)


def test_empty_partitions_at_the_end_add_no_range(table: EmbeddedTable) -> None:
    table.put({"id": 1})
    _, right = table.split(at={"id": 5})
    table.split(right, at={"id": 7})
    assert table.splits(1) == [KeyRange()]
    assert len(table.splits(2)) <= 2


def test_options_are_checked_and_seen_by_other_handles(database: Database, table: EmbeddedTable) -> None:
    other = EmbeddedTable(database, "t")
    other.put({"id": 1})
    assert table.set_options(pre_images=True, retention_seconds=None).pre_images
    other.put({"id": 1, "name": "x"})
    assert changes_of(database, table).ops.to_pylist() == [ChangeOp.INSERT, ChangeOp.PREIMAGE, ChangeOp.REPLACE]
    for wrong in (
        {"nope": 1},
        {"pre_images": 1},
        {"retention_bytes": "1"},
        {"retention_bytes": 1 << 63},
        {"retention_seconds": -1},
        {"retention_seconds": float("inf")},
    ):
        with pytest.raises(OptionError):
            table_options(TableOptions(), **wrong)


def test_a_retention_longer_than_the_time_since_1970_keeps_everything(table: EmbeddedTable) -> None:
    table.set_options(retention_seconds=1e18)
    table.put({"id": 1})
    assert table.trim().changes == 0


def test_a_table_dropped_between_the_snapshots_of_a_scan_is_read_whole(
    database: Database, table: EmbeddedTable, monkeypatch: pytest.MonkeyPatch
) -> None:
    table.put([{"id": number} for number in range(10)])
    monkeypatch.setattr(reading, "_SHARED_ROWS", 1)
    monkeypatch.setattr("os.cpu_count", lambda: 2)
    snapshot, opened = database.snapshot, iter([False, True])

    def snapshot_behind_a_drop() -> Any:
        if next(opened):
            with database.write() as connection:
                stored_tables.drop(connection, table._load(connection).table.object_id)
        return snapshot()

    monkeypatch.setattr(database, "snapshot", snapshot_behind_a_drop)
    assert table.scan().read_all().num_rows == 10


def test_added_columns_must_be_new(table: EmbeddedTable) -> None:
    with pytest.raises(SchemaError, match="same name"):
        table.add_columns({"name": "string"})
    table.add_columns({})
    assert table.schema.names == tuple(COLUMNS)


def test_too_many_string_columns_are_an_error(database: Database) -> None:
    with pytest.raises(SchemaError, match="too many"):
        create(database, {"id": "long"} | {f"c{number}": "string" for number in range(2000)})


def test_lookups_can_exceed_the_longest_value_of_sqlite(table: EmbeddedTable, database: Database) -> None:
    rows = [{"id": number, "name": f"{number}é" * 100, "price": None, "data": b"\0" * number} for number in range(50)]
    table.put(rows)
    # The largest value of SQLite is 1 GB; of this connection it is 2 kB: about three rows.
    database.connection.limit(apsw.SQLITE_LIMIT_LENGTH, 2000)
    found = table.get_many([{"id": number} for number in (49, 3, 7, 100, 0, 3)])
    assert found.to_pylist() == [rows[49], rows[3], rows[7], dict.fromkeys(COLUMNS), rows[0], rows[3]]
    by_prefix = table.get_by_prefix(pa.table({"id": [49, 3, 100, 7]}))
    assert by_prefix.to_pylist() == [rows[3], rows[7], rows[49]]
