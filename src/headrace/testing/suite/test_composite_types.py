"""Composite columns and NOT NULL in tables: values are unchanged by every way of writing and reading."""

from __future__ import annotations

import datetime
from typing import Any

import pyarrow as pa
import pytest

from headrace.errors import HeadraceError, OptionError, SchemaError
from headrace.model.tables.changes import ChangeOp, RowChange
from headrace.model.tables.conditions import Predicate
from headrace.ports import Publisher, Store, Table, Tunnel, Write
from headrace.testing.reading import drain, replay, rows_of, state_of

COLUMNS = {
    "tags": "array<string>",
    "counts": "map<string,long>",
    "place": "struct<x:double not null,names:array<string>>",
    "deep": "array<struct<n:int,m:map<string,array<date>>>>",
    "wait": "interval day to second",
    "local": "timestamp_ntz",
    "price": "decimal(20,3)",
}
DAY = datetime.date(2026, 1, 31)
FULL: dict[str, Any] = {
    "tags": ["a", None, ""],
    "counts": [("x", 1), ("y", None)],
    "place": {"x": 0.5, "names": ["p", "q"]},
    "deep": [{"n": 1, "m": [("k", [DAY, None])]}, None, {"n": None, "m": None}],
    "wait": datetime.timedelta(days=-1, microseconds=5),
    "local": datetime.datetime(2026, 1, 31, 12),
    "price": None,
}
EMPTY: dict[str, Any] = dict.fromkeys(COLUMNS) | {"tags": [], "counts": [], "place": {"x": -1.0, "names": None}}
NULLS: dict[str, Any] = dict.fromkeys(COLUMNS)


pytestmark = pytest.mark.needs_type(*COLUMNS.values())


@pytest.fixture
def things(store: Store) -> Table:
    """An empty table with columns of every composite kind."""
    return store.create_table("things", {"id": "long"} | COLUMNS, "id", pre_images=True)


@pytest.fixture
def tunnel(store: Store, things: Table) -> Tunnel:
    return store.create_tunnel("things", "changes", "Stream")


def numbered(*values: dict[str, Any]) -> list[dict[str, Any]]:
    return [{"id": number} | value for number, value in enumerate(values)]


ROWS = numbered(FULL, EMPTY, NULLS, FULL)


def test_rows_round_trip(things: Table) -> None:
    things.put(ROWS)
    assert rows_of(things) == ROWS
    assert things.scan().schema == things.schema.arrow
    assert rows_of(things, ["deep", "tags"]) == [{"deep": row["deep"], "tags": row["tags"]} for row in ROWS]
    assert things.get({"id": 0}) == ROWS[0]
    assert things.get({"id": 2}, ["place"]) == {"place": None}


def test_many_rows_from_arrow_come_back_in_order(things: Table) -> None:
    rows = [{"id": number} | (FULL, EMPTY, NULLS)[number % 3] for number in range(20_000)]
    given = pa.Table.from_pylist(rows, things.schema.arrow)
    things.put(given)
    assert things.scan(batch_rows=3000).read_all().equals(given)


@pytest.mark.needs("tunnels")
def test_changes_carry_rows_before_and_after(things: Table, tunnel: Tunnel) -> None:
    things.put(ROWS[:2])
    things.update([{"id": 0, "tags": ["new"]}, {"id": 1, "tags": None}, {"id": 9, "tags": []}])
    things.put({"id": 0} | EMPTY)
    things.delete([{"id": 1}])
    changes = drain(tunnel)
    assert replay(changes) == state_of(things)
    deleted = {"id": 1} | EMPTY | {"tags": None}
    assert [(change.op, change.row) for change in changes if change.key == (1,)] == [
        (ChangeOp.INSERT, ROWS[1]),
        (ChangeOp.PREIMAGE, ROWS[1]),
        (ChangeOp.UPDATE, deleted),
        (ChangeOp.DELETE_WITH_ROW, deleted),
    ]
    assert things.get({"id": 9}) == {"id": 9} | NULLS | {"tags": []}


def test_several_updates_of_a_row_in_one_call_are_combined(things: Table) -> None:
    things.update(
        pa.Table.from_pylist(
            [{"id": 1, "tags": ["a"], "place": None}, {"id": 1, "tags": None, "place": FULL["place"]}],
            pa.schema([things.schema.arrow.field(name) for name in ("id", "tags", "place")]),
        ),
        keep_nulls=False,
    )
    assert things.get({"id": 1}) == {"id": 1} | NULLS | {"tags": ["a"], "place": FULL["place"]}


@pytest.mark.needs("tunnels")
def test_base_data_is_the_table_at_the_tunnels_creation(store: Store, things: Table) -> None:
    things.put(ROWS)
    tunnel = store.create_tunnel("things", "both")
    things.put({"id": 0} | NULLS)
    things.delete([{"id": 1}])
    changes = drain(tunnel)
    assert [change.row for change in changes if change.op is ChangeOp.BASE] == ROWS
    assert replay(changes) == state_of(things)


@pytest.mark.needs("tunnels", "add_columns")
def test_columns_added_later_are_null_in_older_rows(store: Store, things: Table, tunnel: Tunnel) -> None:
    things.put(ROWS[:1])
    things.add_columns({"more": "map<string,struct<a:int>>", "text": "string"})
    more = [("k", {"a": 1})]
    things.put({"id": 1, "more": more, "text": "x"})
    things.update({"id": 0, "more": []})
    assert [row["more"] for row in rows_of(things)] == [[], more]
    assert [change.row["more"] for change in drain(tunnel)] == [None, more, None, []]


@pytest.mark.needs("tunnels")
def test_replacing_all_rows_changes_only_different_rows(store: Store, things: Table, tunnel: Tunnel) -> None:
    things.put(ROWS[:3])
    publisher: Publisher = store.publisher("job")
    changed = {"id": 1} | EMPTY | {"counts": [("x", 1)]}
    rows = pa.Table.from_pylist([ROWS[0], changed, ROWS[2]], things.schema.arrow)
    staged = tuple(publisher.stage(0, rows.to_batches()))
    publisher.publish(0, [Write("things", RowChange.REPLACE_ALL, staged)])
    assert [(change.op, change.row) for change in drain(tunnel)[3:]] == [
        (ChangeOp.PREIMAGE, ROWS[1]),
        (ChangeOp.REPLACE, changed),
    ]


def test_conditions_on_composite_columns_test_only_for_null(things: Table) -> None:
    things.put(ROWS)
    assert [row["id"] for row in rows_of(things, ["id"], {"deep": None})] == [1, 2]
    assert [row["id"] for row in rows_of(things, ["id"], [Predicate("place", "is not null")])] == [0, 1, 3]
    for operator, value in [("=", ["a"]), ("in", [["a"]]), ("<", ["a"]), ("starts with", "a")]:
        with pytest.raises((OptionError, SchemaError), match="composite"):
            rows_of(things, ["id"], [("tags", operator, value)])


def test_times_and_intervals_are_compared(things: Table) -> None:
    things.put([{"id": 1, "wait": datetime.timedelta(1)}, {"id": 2, "wait": datetime.timedelta(-1)}, {"id": 3}])
    assert [row["id"] for row in rows_of(things, ["id"], [("wait", "<", datetime.timedelta(0))])] == [2]
    assert rows_of(things, ["id"], [("local", ">", datetime.datetime(2026, 1, 1))]) == []


@pytest.mark.parametrize("key", ["array<string>", "struct<a:int>", "map<string,string>", "interval day to second"])
def test_a_composite_column_cannot_be_a_key(store: Store, key: str) -> None:
    with pytest.raises(SchemaError, match="a key cannot have"):
        store.create_table("keyed", {"id": key}, "id")


# -- NOT NULL -------------------------------------------------------------------------------------------


@pytest.fixture
def strict(store: Store) -> Table:
    """A table with attributes that are never null."""
    columns = {"id": "long", "n": "int not null", "tags": "array<string> not null", "note": "string"}
    return store.create_table("strict", columns, "id")


WHOLE = {"id": 1, "n": 1, "tags": ["a"], "note": None}


def refused(table: Table, error: str, write: Any) -> None:
    """Check that a write fails and changes nothing."""
    before = state_of(table)
    with pytest.raises(HeadraceError, match=error):
        write()
    assert state_of(table) == before


def test_the_schema_shows_columns_that_are_not_null(strict: Table) -> None:
    assert [field.nullable for field in strict.schema.arrow] == [False, False, False, True]
    assert [column.nullable for column in strict.describe().schema.columns] == [False, False, False, True]
    strict.put(WHOLE)
    assert strict.scan().schema == strict.schema.arrow
    assert rows_of(strict) == [WHOLE]


def test_puts_without_a_required_column_are_refused(strict: Table) -> None:
    strict.put(WHOLE)
    refused(strict, "'n' is NOT NULL .* row 1", lambda: strict.put([WHOLE | {"id": 2}, WHOLE | {"id": 3, "n": None}]))
    refused(strict, "'tags' is NOT NULL .* row 0", lambda: strict.put({"id": 2, "n": 1}))


def test_updates_of_a_required_column_to_null_are_refused(strict: Table) -> None:
    strict.put(WHOLE)
    refused(strict, "'n' is NOT NULL .* row 1", lambda: strict.update([{"id": 5, "n": 1}, {"id": 1, "n": None}]))
    strict.update({"id": 1, "n": None, "tags": ["b"]}, keep_nulls=False)
    assert rows_of(strict) == [WHOLE | {"tags": ["b"]}]


def test_updates_that_insert_a_row_without_a_required_column_are_refused(strict: Table) -> None:
    strict.put(WHOLE)
    refused(
        strict,
        r"'tags' is NOT NULL.*would create row {'id': 2}",
        lambda: strict.update([{"id": 1, "n": 7}, {"id": 2, "n": 1}]),
    )
    strict.update({"id": 2, "n": 1, "tags": []})
    assert strict.get({"id": 2}) == {"id": 2, "n": 1, "tags": [], "note": None}


@pytest.mark.needs("tunnels")
def test_deletes_are_logged_for_tables_with_required_columns(store: Store, strict: Table) -> None:
    strict.put([WHOLE, WHOLE | {"id": 2}])
    tunnel = store.create_tunnel("strict", "both")
    strict.delete([{"id": 1}])
    deleted = drain(tunnel)[-1]
    assert (deleted.op, deleted.row) == (ChangeOp.DELETE, {"id": 1, "n": None, "tags": None, "note": None})


@pytest.mark.needs("add_columns")
def test_a_column_cannot_be_added_as_not_null(store: Store, strict: Table) -> None:
    refused(strict, "NOT NULL", lambda: strict.add_columns({"more": "array<int> not null"}))


def test_published_rows_need_their_required_columns(store: Store, strict: Table) -> None:
    publisher: Publisher = store.publisher("job")
    rows = pa.table({"id": [1], "n": pa.array([5], pa.int32())})
    staged = tuple(publisher.stage(0, rows.to_batches()))
    for change in (RowChange.PUT, RowChange.UPDATE, RowChange.REPLACE_ALL):
        refused(
            strict, "'tags' is NOT NULL", lambda change=change: publisher.publish(0, [Write("strict", change, staged)])
        )
    strict.put(WHOLE)
    assert publisher.publish(0, [Write("strict", RowChange.UPDATE, staged)])
    assert rows_of(strict) == [WHOLE | {"n": 5}]
