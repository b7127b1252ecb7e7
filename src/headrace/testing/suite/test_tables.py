"""Tables: all values of all types round-trip, rows are in key order, and writes are atomic."""

from __future__ import annotations

import datetime
import decimal
import itertools
import re
from collections.abc import Callable
from typing import Any

import pandas as pd
import pyarrow as pa
import pytest
from hypothesis import HealthCheck, given, settings
from hypothesis import strategies as st

from headrace.errors import AlreadyExistsError, NotFoundError, OptionError, SchemaError, UnsupportedError
from headrace.model.tables.alterations import Alteration
from headrace.model.tables.conditions import KeyRange
from headrace.model.tables.schema import parse_columns
from headrace.ports import Rows, Store, Table
from headrace.testing import Place
from headrace.testing.capabilities import has_key_type, has_type, storable, traits, types
from headrace.testing.effort import thorough
from headrace.testing.queue_reading import wait_until
from headrace.testing.reading import rows_of, state_of

D = decimal.Decimal
UTC = datetime.UTC
_numbers = itertools.count()

EDGES: dict[str, list[Any]] = {
    "boolean": [True, False],
    "byte": [-128, -1, 0, 127],
    "short": [-(2**15), 0, 2**15 - 1],
    "int": [-(2**31), -1, 0, 2**31 - 1],
    "long": [-(2**63), -1, 0, 2**53 + 1, 2**63 - 1],
    "float": [0.0, -0.0, float("inf"), float("-inf"), float("nan"), 3.4028234663852886e38, 1.401298464324817e-45],
    "double": [0.0, -0.0, float("inf"), float("-inf"), float("nan"), 1.7976931348623157e308, 5e-324, 0.1],
    "string": ["", "\0", "a\0b", "é", "e\u0301", "\uffff", "🙂𝄞", "\U0010ffff", "'\"`;--", "x" * 100_000],
    "binary": [b"", b"\0", b"a\0b", b"\xff\xfe", bytes(range(256)), b"x" * 100_000],
    "date": [datetime.date.min, datetime.date(1969, 12, 31), datetime.date(1970, 1, 1), datetime.date.max],
    "timestamp": [
        datetime.datetime.min.replace(tzinfo=UTC),
        datetime.datetime(1969, 12, 31, 23, 59, 59, 999999, UTC),
        datetime.datetime(1970, 1, 1, tzinfo=UTC),
        datetime.datetime(2026, 1, 31, 12, 0, 0, 1, UTC),
        datetime.datetime.max.replace(tzinfo=UTC),
    ],
    "decimal(10,2)": [D("-99999999.99"), D("0.00"), D("0.01"), D("99999999.99")],
    "decimal(38,0)": [D("-" + "9" * 38), D(0), D("9" * 38)],
    "decimal(38,38)": [D("-0." + "9" * 38), D("0." + "0" * 37 + "1")],
}
KEY_VALUES: dict[str, list[Any]] = {
    "string": ["", "\0", "a", "a\0", "ab", "b", "z", "é", "\uffff", "🙂", "\U0010ffff"],
    "long": [-(2**63), -2, -1, 0, 1, 2, 255, 256, 2**63 - 1],
    "binary": [b"", b"\0", b"\0\0", b"a", b"a\0", b"\x7f", b"\x80", b"\xff", b"\xff\xff"],
}
KEYS = [
    ("string",),
    ("long",),
    ("binary",),
    ("string", "long"),
    ("long", "string"),
    ("binary", "string"),
    ("string", "string", "binary"),
    ("long", "binary", "string", "long"),
    ("string", "long", "binary", "string"),
]
NAMES = [
    "//tmp/t",
    "a'b\"c`d",
    "SELECT",
    "rowid",
    " ",
    "a.b",
    "a\nb",
    "a\0b",
    "日本語 🙂",
    "?1 %s {x}",
    "_op",
    "k0",
    "A",
    "a",
]


def fresh(store: Store, columns: dict[str, str], key: str | tuple[str, ...]) -> Table:
    """Create a table with a new name, because hypothesis runs a test many times on one store."""
    return store.create_table(f"table_{next(_numbers)}", columns, key)


def exact(value: Any) -> Any:
    """Return a value in a form in which -0.0 differs from 0.0, and NaN equals NaN."""
    return repr(value) if isinstance(value, float) else value


# -- values ---------------------------------------------------------------------------------------------


@pytest.mark.parametrize("kind", types(EDGES))
def test_every_value_of_a_type_round_trips(store: Store, kind: str) -> None:
    values = [*storable(store, EDGES[kind]), None]
    for write in ("put", "update"):
        table = store.create_table(write, {"id": "long", "value": kind}, "id")
        getattr(table, write)([{"id": index, "value": value} for index, value in enumerate(values)])
        found = [row["value"] for row in rows_of(table)]
        assert list(map(exact, found)) == list(map(exact, values))
        for index, value in enumerate(values):
            row = table.get({"id": index})
            assert row is not None
            assert (row["id"], exact(row["value"])) == (index, exact(value))
        assert table.scan().schema == table.schema.arrow


def test_a_row_of_all_types_and_a_row_of_nulls_round_trip(store: Store) -> None:
    columns, values = _edges(store)
    table = store.create_table("t", {"id": "long", **columns}, "id")
    full = {"id": 1, **values}
    table.put([full, {"id": 2}])
    assert table.get({"id": 1}) == full
    assert table.get({"id": 2}) == {"id": 2, **dict.fromkeys(columns)}


def _edges(store: Store) -> tuple[dict[str, str], dict[str, Any]]:
    """Return a column of each type that a store has, named by it, and a value of each."""
    names = {re.sub(r"\W", "_", kind): kind for kind in EDGES if has_type(store, kind)}
    return names, {name: EDGES[kind][0] for name, kind in names.items()}


def test_rows_are_in_key_order_and_are_found_by_key(store: Store) -> None:
    for kinds in KEYS:
        if not all(has_key_type(store, kind) for kind in kinds):
            continue
        names = [f"key_{index}" for index in range(len(kinds))]
        table = fresh(store, {"value": "long", **dict(zip(names, kinds, strict=True))}, tuple(names))
        step = 1 if len(kinds) < 3 else 3
        values = [storable(store, KEY_VALUES[kind][::step]) for kind in kinds]
        keys = sorted(itertools.product(*values))
        table.put([{**dict(zip(names, key, strict=True)), "value": n} for n, key in reversed(list(enumerate(keys)))])
        assert [tuple(row[name] for name in names) for row in rows_of(table)] == keys
        assert [row["value"] for row in rows_of(table, ["value"])] == list(range(len(keys)))
        for number in range(0, len(keys), 7):
            assert table.get(dict(zip(names, keys[number], strict=True)), ["value"]) == {"value": number}
        table.delete([dict(zip(names, key, strict=True)) for key in keys[::2]])
        assert [row["value"] for row in rows_of(table, ["value"])] == list(range(len(keys)))[1::2]
        assert table.get(dict(zip(names, keys[0], strict=True))) is None


@settings(max_examples=thorough(40), deadline=None, suppress_health_check=[HealthCheck.function_scoped_fixture])
@given(keys=st.lists(st.text(max_size=4), unique=True, max_size=20))
def test_text_keys_are_ordered_by_their_utf8_bytes(store: Store, keys: list[str]) -> None:
    table = fresh(store, {"id": "string", "n": "long"}, "id")
    stored = storable(store, keys)
    table.put([{"id": key} for key in stored])
    assert [row["id"] for row in rows_of(table)] == sorted(stored, key=str.encode)


@pytest.mark.needs("any_names")
@pytest.mark.parametrize("name", NAMES)
def test_tables_and_columns_can_have_any_name(store: Store, name: str) -> None:
    table = store.create_table(name, {name: "string", f"{name}!": "long"}, name)
    table.put({name: "x", f"{name}!": 1})
    table.update({name: "x", f"{name}!": 2})
    assert store.tables() == [name]
    assert store.table(name).get({name: "x"}) == {name: "x", f"{name}!": 2}
    assert rows_of(table, [f"{name}!"], {name: "x"}) == [{f"{name}!": 2}]
    table.delete({name: "x"})
    assert rows_of(table) == []


@pytest.mark.needs("any_names")
def test_tables_and_columns_with_unusual_names_coexist(store: Store) -> None:
    columns = {"id": "long", **dict.fromkeys(NAMES, "string")}
    for name in NAMES:
        store.create_table(name, columns, "id").put({"id": 1, name: name})
    assert store.tables() == sorted(NAMES)
    for name in NAMES:
        assert rows_of(store.table(name)) == [{"id": 1, **dict.fromkeys(NAMES), name: name}]


# -- writing --------------------------------------------------------------------------------------------

_ROWS = [{"id": "a", "price": 1, "note": "x"}, {"id": "b", "price": None, "note": None}]
_FORMS: dict[str, Callable[[], Rows]] = {
    "arrow table": lambda: pa.Table.from_pylist(_ROWS),
    "arrow table of pieces": lambda: pa.concat_tables(
        [pa.Table.from_pylist(_ROWS[:1])] * 2 + [pa.Table.from_pylist(_ROWS)], promote_options="permissive"
    ),
    "record batch": lambda: pa.RecordBatch.from_pylist(_ROWS),
    "pandas": lambda: pd.DataFrame(_ROWS),
    "dicts": lambda: list(_ROWS),
    "other column order": lambda: pa.Table.from_pylist(_ROWS).select(["note", "price", "id"]),
}


def test_rows_are_accepted_in_every_form(orders: Table) -> None:
    for form, rows in _FORMS.items():
        orders.put(rows())
        assert rows_of(orders) == _ROWS, form
        orders.delete(rows())
        assert rows_of(orders) == [], form
        orders.update(rows())
        assert rows_of(orders) == _ROWS, form
        orders.delete(_ROWS)


def test_one_dict_is_one_row(orders: Table) -> None:
    orders.put({"id": "a", "price": 1})
    orders.update({"id": "a", "note": "x"})
    assert rows_of(orders) == [{"id": "a", "price": 1, "note": "x"}]


def test_put_replaces_the_row_and_sets_missing_columns_to_null(orders: Table) -> None:
    orders.put({"id": "a", "price": 1, "note": "x"})
    orders.put({"id": "a", "price": 2})
    assert orders.get({"id": "a"}) == {"id": "a", "price": 2, "note": None}


def test_update_sets_only_the_given_cells_and_inserts_missing_rows(orders: Table) -> None:
    orders.put({"id": "a", "price": 1, "note": "x"})
    orders.update([{"id": "a", "price": 2}, {"id": "b", "price": 3}])
    assert rows_of(orders) == [{"id": "a", "price": 2, "note": "x"}, {"id": "b", "price": 3, "note": None}]


def test_update_sets_nulls_unless_keep_nulls_is_false(orders: Table) -> None:
    orders.put({"id": "a", "price": 1, "note": "x"})
    orders.update({"id": "a", "price": None, "note": "y"}, keep_nulls=False)
    assert orders.get({"id": "a"}) == {"id": "a", "price": 1, "note": "y"}
    orders.update({"id": "a", "price": None})
    assert orders.get({"id": "a"}) == {"id": "a", "price": None, "note": "y"}


def test_update_needs_a_column_to_set(orders: Table) -> None:
    with pytest.raises(SchemaError):
        orders.update({"id": "a"})


def test_delete_uses_only_the_key_and_keeps_other_rows(orders: Table) -> None:
    orders.put([{"id": "a"}, {"id": "b"}])
    orders.delete([{"id": "a", "price": 77}, {"id": "nobody"}])
    assert rows_of(orders, ["id"]) == [{"id": "b"}]


def test_the_last_row_of_a_key_in_a_call_counts(orders: Table) -> None:
    orders.put([{"id": "a", "price": 1}, {"id": "b"}, {"id": "a", "price": 2}])
    assert orders.get({"id": "a"}, ["price"]) == {"price": 2}
    cells = pa.table({"id": ["a", "a", "a"], "price": [None, 4, None], "note": ["x", None, None]})
    orders.update(cells, keep_nulls=False)
    assert orders.get({"id": "a"}) == {"id": "a", "price": 4, "note": "x"}
    orders.delete([{"id": "a"}, {"id": "a"}])
    assert rows_of(orders, ["id"]) == [{"id": "b"}]


def test_commit_versions_rise(orders: Table) -> None:
    versions = [
        orders.put({"id": "a"}),
        orders.update({"id": "a", "price": 1}),
        orders.put({"id": "b"}),
        orders.delete({"id": "a"}),
    ]
    assert versions == sorted(set(versions))


def test_writing_no_rows_is_accepted(orders: Table) -> None:
    orders.put({"id": "a"})
    empty = orders.schema.arrow.empty_table()
    nothing: list[Rows] = [[], empty, empty.to_pandas()]
    for rows in nothing:
        orders.put(rows)
        orders.delete(rows)
    orders.update(empty)
    assert rows_of(orders, ["id"]) == [{"id": "a"}]


_MISFITS: dict[str, Any] = {
    "boolean": 1,
    "byte": 128,
    "short": 2**15,
    "int": -(2**31) - 1,
    "long": 2**63,
    "float": 1e39,
    "double": "1.5",
    "string": 5,
    "binary": "text",
    "date": datetime.datetime(2026, 1, 1, 12),
    "timestamp": "2026-01-01",
    "decimal(10,2)": D("0.001"),
}


def test_a_value_that_does_not_fit_is_named_and_nothing_is_written(store: Store) -> None:
    columns = {f"odd_{n}": kind for n, kind in enumerate(_MISFITS) if has_type(store, kind)}
    table = store.create_table("t", {"id": "long", **columns}, "id")
    for column, kind in columns.items():
        rows = [{"id": index, column: EDGES[kind][0]} for index in range(3)]
        rows.append({"id": 3, column: _MISFITS[kind]})
        for write in (table.put, table.update):
            with pytest.raises(SchemaError) as caught:
                write(rows)
            for part in (column, "row 3", kind):
                assert part in str(caught.value)
    assert rows_of(table) == []


_INVALID_ROWS: dict[str, tuple[Any, str]] = {
    "unknown column": ([{"id": "a", "colour": 1}], "colour"),
    "no key": ([{"price": 1}], "id"),
    "null key": ([{"id": "a"}, {"id": None}], "row 1"),
    "column twice": (pa.table([["a"], ["b"]], names=["id", "id"]), "id"),
    "not Unicode": ([{"id": "\ud800"}], "id"),
    "no rows at all": ("rows", "str"),
}


def test_invalid_rows_are_refused(orders: Table) -> None:
    for name, (rows, named) in _INVALID_ROWS.items():
        with pytest.raises(SchemaError, match=named):
            orders.put(rows)
        assert rows_of(orders) == [], name


@pytest.mark.parametrize("row", [{"id": "b\0"}, {"id": "b", "note": "\0"}], ids=["key", "attribute"])
def test_a_text_with_nul_is_written_or_refused_with_its_column(
    store: Store, orders: Table, row: dict[str, Any]
) -> None:
    rows = [{"id": "a"}, row]
    for write in (orders.put, orders.update):
        if traits(store).nul_in_text:
            write(pa.Table.from_pylist(rows, orders.schema.arrow))
            assert orders.get({"id": row["id"]}, ["note"]) == {"note": row.get("note")}
        else:
            with pytest.raises(SchemaError, match="note" if "note" in row else "id"):
                write(pa.Table.from_pylist(rows, orders.schema.arrow))
            assert rows_of(orders) == []
    assert orders.get({"id": "\0"}) is None
    assert orders.get_many([{"id": "\0"}], ["id"]).to_pylist() == [{"id": None}]


def test_updates_of_different_columns_in_one_call_are_refused(orders: Table) -> None:
    with pytest.raises(SchemaError):
        orders.update([{"id": "a", "price": 1}, {"id": "b", "note": "x"}])
    assert rows_of(orders) == []


# -- getting --------------------------------------------------------------------------------------------


def test_get_returns_the_requested_columns_or_none(orders: Table) -> None:
    orders.put({"id": "a", "price": 1, "note": "x"})
    assert orders.get({"id": "a"}, ["note", "id"]) == {"note": "x", "id": "a"}
    assert orders.get({"id": "b"}) is None


def test_get_accepts_only_the_whole_key(store: Store) -> None:
    table = fresh(store, {"a": "string", "b": "long", "c": "long"}, ("a", "b"))
    table.put({"a": "x", "b": 1})
    for key in ({"a": "x"}, {"a": "x", "b": 1, "c": 2}, {"a": "x", "b": "1"}, {"a": "x", "b": None}):
        with pytest.raises(SchemaError):
            table.get(key)  # type: ignore[arg-type]
    with pytest.raises(SchemaError):
        table.get({"a": "x", "b": 1}, ["nothing"])


# -- columns added later --------------------------------------------------------------------------------


@pytest.mark.needs("add_columns")
@pytest.mark.needs_type("double")
def test_added_columns_are_null_in_old_rows_and_seen_by_other_handles(
    place: Place, orders: Table, store: Store
) -> None:
    orders.put([{"id": "a", "price": 1}, {"id": "b", "price": 2}])
    with place.open() as other_store:
        other = other_store.table("orders")
        assert len(other.schema.names) == 3
        columns, values = _edges(store)
        orders.add_columns(columns)
        assert other.schema == orders.schema
        other.put({"id": "c", "price": 3, **values})
        other.update({"id": "a", "double": 0.5})
        rows = rows_of(orders)
    assert rows[0] == {"id": "a", "price": 1, "note": None, **dict.fromkeys(columns), "double": 0.5}
    assert rows[1] == {"id": "b", "price": 2, "note": None, **dict.fromkeys(columns)}
    assert rows[2]["string"] == EDGES["string"][0]
    assert rows_of(orders, ["id"], {"string": None}) == [{"id": "a"}, {"id": "b"}]
    assert rows_of(orders, ["id"], [("double", "is not null", None)]) == [{"id": "a"}, {"id": "c"}]


@pytest.mark.needs("add_columns")
def test_existing_columns_and_key_columns_cannot_be_added(orders: Table, store: Store) -> None:
    with pytest.raises(SchemaError):
        orders.add_columns({"fresh": "long", "price": "long"})
    with pytest.raises(SchemaError):
        orders.add_columns({"fresh": "nonsense"})
    with pytest.raises(SchemaError):
        orders.alter(Alteration(added=parse_columns({"fresh": "long not null"})))
    assert orders.schema.names == ("id", "price", "note")
    orders.alter(Alteration(added=parse_columns({"fresh": "long"})))
    assert orders.schema.column("fresh").type == pa.int64()


# -- creating and dropping ------------------------------------------------------------------------------


def test_a_table_is_created_once(store: Store) -> None:
    columns = {"id": "string", "n": "long"}
    store.create_table("t", columns, "id").put({"id": "a", "n": 1})
    with pytest.raises(AlreadyExistsError):
        store.create_table("t", columns, "id")
    again = store.create_table("t", columns, "id", exist_ok=True)
    assert again.get({"id": "a"}) == {"id": "a", "n": 1}
    with pytest.raises(SchemaError):
        store.create_table("t", {**columns, "m": "long"}, "id", exist_ok=True)


_INVALID_TABLES: list[tuple[dict[str, str], tuple[str, ...]]] = [
    ({"a": "string"}, ()),
    ({"a": "string"}, ("b",)),
    ({"a": "string"}, ("a", "a")),
    ({"a": "double"}, ("a",)),
    ({"a": "strings"}, ("a",)),
    ({f"c{n}": "string" for n in range(33)}, tuple(f"c{n}" for n in range(33))),
    ({"": "string"}, ("",)),
]


def test_an_invalid_table_is_refused(store: Store) -> None:
    for columns, key in _INVALID_TABLES:
        with pytest.raises(SchemaError):
            store.create_table("t", columns, key)
        assert store.tables() == [], key


def test_an_error_about_a_missing_table_names_only_the_tables_of_users(store: Store) -> None:
    for name in ("orders", "__headrace_own__"):
        store.create_table(name, {"id": "string", "n": "long"}, "id")
    with pytest.raises(NotFoundError) as missing:
        store.table("none")
    assert "__headrace_own__" not in str(missing.value)


def test_the_name_of_a_dropped_table_can_be_reused(store: Store) -> None:
    old = store.create_table("t", {"id": "string", "n": "long"}, "id")
    old.put({"id": "a", "n": 1})
    store.drop_table("t")
    assert store.tables() == []
    with pytest.raises(NotFoundError):
        store.table("t")
    with pytest.raises(NotFoundError):
        old.put({"id": "a"})
    with pytest.raises(NotFoundError):
        store.drop_table("t")
    store.drop_table("t", missing_ok=True)
    new = store.create_table("t", {"n": "long", "text": "string"}, "n")
    new.put({"n": 1, "text": "x"})
    assert state_of(new) == {(1,): {"n": 1, "text": "x"}}


def test_a_table_is_described(orders: Table, store: Store) -> None:
    orders.put([{"id": str(index)} for index in range(10)])
    orders.delete({"id": "3"})
    described = orders.describe()
    assert (described.name, described.schema) == ("orders", orders.schema)
    # Some stores do not know the number of rows and the bounds of partitions.
    assert described.rows in (9, None)
    assert [partition.keys for partition in described.partitions if partition.open] in ([KeyRange()], [])
    if store.capabilities.trims:
        assert orders.set_options(retention_seconds=7200.0).retention_seconds == 7200.0
        assert store.table("orders").describe().options.retention_seconds == 7200.0
    with pytest.raises(OptionError):
        orders.set_options(colour="red")
    with pytest.raises(OptionError):
        store.create_table("other", {"id": "string"}, "id", colour="red")


def test_partition_columns_are_used_or_refused(store: Store) -> None:
    try:
        table = store.create_table("p", {"id": "string", "day": "string"}, "id", partition_by=["day"])
    except UnsupportedError as error:
        refused = str(error)
    else:
        assert table.describe().partition_by == ("day",)
        return
    assert "no partition columns" in refused
    assert "p" not in store.tables()


def test_a_closed_store_can_be_used_again(store: Store, orders: Table) -> None:
    orders.put({"id": "a"})
    store.close()
    assert rows_of(orders, ["id"]) == [{"id": "a"}]


@pytest.mark.needs("tells_changes")
def test_a_commit_through_another_handle_ends_a_wait(place: Place, store: Store, orders: Table) -> None:
    wait_until(lambda: not store.wait_for_change(0))
    with place.open() as other:
        other.table("orders").put({"id": "a"})
    assert store.wait_for_change(30)


def test_a_table_that_is_created_again_has_another_identity(store: Store, orders: Table) -> None:
    identity = orders.identity()
    assert identity
    orders.put({"id": "a", "price": 1, "note": "x"})
    if store.capabilities.add_columns:
        orders.add_columns({"more": "long"})
    assert store.table("orders").identity() == identity
    columns = {"id": "string", "price": "long", "note": "string"}
    assert store.create_table("other", columns, "id").identity() != identity
    store.drop_table("orders")
    assert store.create_table("orders", columns, "id").identity() not in ("", identity)


def test_the_size_of_a_table_is_known_without_reading_it_or_unknown(store: Store) -> None:
    table = store.create_table("sized", {"id": "long", "text": "string"}, "id")
    table.put([{"id": number, "text": "x" * 100} for number in range(500)])
    table.delete([{"id": number} for number in range(100)])
    size = table.size()
    assert size.rows is None or not size.rows_exact or size.rows == 400
    assert size.bytes is None or 400 * 100 < size.bytes < 10_000_000
