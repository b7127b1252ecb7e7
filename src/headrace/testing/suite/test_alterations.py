"""Columns that are dropped, renamed and widened: rows, earlier changes, and publications."""

from __future__ import annotations

from decimal import Decimal

import pyarrow as pa
import pytest

from headrace.errors import SchemaError
from headrace.model.tables.alterations import Alteration
from headrace.model.tables.changes import RowChange
from headrace.model.tables.schema import Column
from headrace.ports import Store, Table, Write
from headrace.testing.reading import drain

pytestmark = pytest.mark.needs("alters")


@pytest.fixture
def things(store: Store) -> Table:
    columns = {"id": "long", "n": "int", "f": "float", "text": "string", "d": "decimal(4,2) not null"}
    table = store.create_table("things", columns, "id")
    table.put([{"id": 1, "n": 2**31 - 1, "f": 0.5, "text": "one", "d": Decimal("1.50")}, {"id": 2, "d": Decimal(2)}])
    return table


def test_rows_keep_their_values(things: Table) -> None:
    numbers = dict(things.column_numbers() or {})
    things.rename_column("text", "name")
    things.widen_column("n", "long")
    things.drop_columns(["f"])
    things.alter(
        Alteration(widened={"d": pa.string()}, relaxed=["d"], added=[Column("f", pa.string())], values={"f": "new"})
    )
    assert things.schema.names == ("id", "n", "name", "d", "f")
    things.put({"id": 3, "n": 2**40, "name": "three"})
    assert list(things) == [
        {"id": 1, "n": 2**31 - 1, "name": "one", "d": "1.50", "f": "new"},
        {"id": 2, "n": None, "name": None, "d": "2.00", "f": "new"},
        {"id": 3, "n": 2**40, "name": "three", "d": None, "f": None},
    ]
    now = things.column_numbers() or {}
    assert things.numbered_schema() == (things.schema, now)
    assert [now[name] for name in ("id", "n", "name", "d")] == [numbers[name] for name in ("id", "n", "text", "d")]
    assert now["f"] not in numbers.values()


def test_names_are_exchanged_and_the_key_is_renamed(things: Table) -> None:
    things.alter(Alteration(renamed={"n": "text", "text": "n", "id": "key"}))
    assert things.schema.primary_key == ("key",)
    assert things.get({"key": 1}, ["key", "text", "n"]) == {"key": 1, "text": 2**31 - 1, "n": "one"}


def test_changes_that_a_table_cannot_have_change_nothing(things: Table) -> None:
    before = things.schema
    for wrong in (
        Alteration(dropped=["id"]),
        Alteration(dropped=["f", "nothing"]),
        Alteration(renamed={"n": "f"}),
        Alteration(widened={"n": pa.int16()}),
        Alteration(widened={"text": pa.int64()}),
        Alteration(widened={"id": pa.string()}),
        Alteration(dropped=["f"], added=[Column("n", pa.string())]),
    ):
        with pytest.raises(SchemaError):
            things.alter(wrong)
    assert things.schema == before


@pytest.mark.needs("tunnels")
def test_earlier_changes_have_the_new_columns(store: Store, things: Table) -> None:
    tunnel = store.create_tunnel("things", "changes", "Stream")
    things.put({"id": 4, "n": 4, "text": "four", "d": Decimal(4)})
    things.rename_column("text", "name")
    # PostgreSQL's log has no definitions: this is a look between the two.
    assert tunnel.describe().table == "things"
    things.widen_column("n", "long")
    things.put({"id": 5, "n": 2**40, "name": "five", "d": Decimal(5)})
    rows = [dict(change.row) for change in drain(tunnel)]
    assert [(row["n"], row["name"]) for row in rows] == [(4, "four"), (2**40, "five")]


@pytest.mark.needs("transactions")
def test_a_publication_changes_columns_with_its_rows_or_not_at_all(store: Store, things: Table) -> None:
    publisher = store.publisher("job")
    change = Alteration(dropped=["f"], renamed={"text": "name"}, added=[Column("more", pa.int64())])
    wider = change.applied(things.schema)

    def staged(batch: int, rows: list[dict[str, object]]) -> Write:
        parts = pa.Table.from_pylist(rows, wider.arrow).to_batches()
        return Write("things", RowChange.PUT, tuple(publisher.stage(batch, parts)), change)

    before = things.schema
    nothing = [{"id": 1, "n": 1, "name": "x", "d": None, "more": 1}]
    with pytest.raises(Exception):  # noqa: B017 (each store has its own error for a null)
        publisher.publish(0, [staged(0, [{**nothing[0], "d": None}])])
    assert things.schema == before
    publisher.discard(0)
    write = staged(0, [{"id": 2, "n": 7, "name": "two", "d": Decimal(7), "more": 8}])
    assert publisher.publish(0, [write])
    assert not publisher.publish(0, [write])
    assert things.schema == wider
    assert list(things) == [
        {"id": 1, "n": 2**31 - 1, "name": "one", "d": Decimal("1.50"), "more": None},
        {"id": 2, "n": 7, "name": "two", "d": Decimal(7), "more": 8},
    ]
