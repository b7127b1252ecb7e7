"""Scans: projection, conditions, key ranges, one state for each scan."""

from __future__ import annotations

import datetime
import decimal
import itertools
from collections.abc import Sequence
from typing import Any

import numpy as np
import pyarrow as pa
import pytest
from hypothesis import HealthCheck, given, settings
from hypothesis import strategies as st

from headrace.errors import OptionError, SchemaError
from headrace.model.tables.conditions import OPERATORS, KeyRange, Predicate
from headrace.ports import Store, Table
from headrace.testing import Place
from headrace.testing.capabilities import has_type, storable
from headrace.testing.effort import THOROUGH, thorough
from headrace.testing.reading import Row, rows_of

UTC = datetime.UTC
_NAN, _INF = float("nan"), float("inf")
COLUMNS = {
    "k1": "string",
    "k2": "long",
    "flag": "boolean",
    "small": "byte",
    "whole": "long",
    "real": "float",
    "wide": "double",
    "text": "string",
    "bytes": "binary",
    "day": "date",
    "time": "timestamp",
    "money": "decimal(12,2)",
}
VALUES: dict[str, list[Any]] = {
    "k1": ["", "a", "ab", "abc", "b", "é", "🙂"],
    "k2": [-(2**63), -1, 0, 1, 2, 2**63 - 1],
    "flag": [True, False],
    "small": [-128, -1, 0, 1, 127],
    "whole": [-(2**63), -1, 0, 1, 2**53 + 1, 2**63 - 1],
    "real": [-_INF, -1.5, -0.0, 0.0, 0.5, 1.5, _INF, _NAN],
    "wide": [-_INF, -1.5, -0.0, 0.0, 0.1, 1.5, 5e-324, _INF, _NAN],
    "text": ["", "\0", "a", "a\0", "ab", "b", "é", "\ud7ff", "\ue000", "🙂", "\U0010ffff", "\U0010ffff\U0010ffff"],
    "bytes": [b"", b"\0", b"a", b"ab", b"\xff", b"\xff\xff", b"\xff\xffa"],
    "day": [datetime.date.min, datetime.date(1969, 12, 31), datetime.date(2026, 1, 1), datetime.date.max],
    "time": [
        datetime.datetime(1, 1, 1, tzinfo=UTC),
        datetime.datetime(1969, 12, 31, 23, 59, 59, 999999, UTC),
        datetime.datetime(2026, 1, 1, tzinfo=UTC),
    ],
    "money": [decimal.Decimal("-9999999999.99"), decimal.Decimal("-0.01"), decimal.Decimal("0.00"), decimal.Decimal(7)],
}
KEYS = [(k1, k2) for k1 in VALUES["k1"] for k2 in VALUES["k2"]]


@pytest.fixture
def rows(store: Store) -> list[Row]:
    """The rows of `mixed`: the storable values of `VALUES`, and nulls, in a different order in each column."""
    random = np.random.default_rng(0)
    rows = []
    for k1, k2 in KEYS:
        row: dict[str, Any] = {"k1": k1, "k2": k2}
        for name in list(COLUMNS)[2:]:
            choices = [*storable(store, VALUES[name]), None]
            row[name] = choices[random.integers(len(choices))]
        rows.append(row)
    return rows


@pytest.fixture
def mixed(store: Store, rows: list[Row]) -> Table:
    columns = {name: kind for name, kind in COLUMNS.items() if has_type(store, kind)}
    table = store.create_table("mixed", columns, ("k1", "k2"))
    table.put([{name: row[name] for name in columns} for row in rows])
    return table


def keys_of(rows: list[Row]) -> list[tuple[Any, ...]]:
    return [(row["k1"], row["k2"]) for row in rows]


def _order(value: Any) -> Any:
    """Return the sort key of a number: NaN equals NaN and is greater than every number, as in Spark."""
    if isinstance(value, float):
        return (value != value, 0.0 if value != value else value)
    return value


def holds(value: Any, operator: str, operand: Any) -> bool:
    """Return whether a condition is true. This is the oracle of these tests."""
    if operator == "is null":
        return value is None
    if operator == "is not null":
        return value is not None
    if value is None or operand is None:
        return False
    if operator == "in":
        return any(holds(value, "=", item) for item in operand)
    if operator == "starts with":
        return bool(value.startswith(operand))
    left, right = _order(value), _order(operand)
    return bool(
        {
            "=": left == right,
            "!=": left != right,
            "<": left < right,
            "<=": left <= right,
            ">": left > right,
            ">=": left >= right,
        }[operator]
    )


@st.composite
def conditions(draw: st.DrawFn, columns: Sequence[str] = tuple(COLUMNS)) -> Predicate:
    name = draw(st.sampled_from(columns))
    starts = COLUMNS[name] in ("string", "binary")
    operator = draw(st.sampled_from([each for each in OPERATORS if starts or each != "starts with"]))
    value: Any = None
    if operator == "in":
        value = draw(st.lists(st.sampled_from([*VALUES[name], None]), max_size=4))
    elif not operator.startswith("is"):
        value = draw(st.sampled_from(VALUES[name]))
    return Predicate(name, operator, value)


@settings(max_examples=thorough(100), deadline=None, suppress_health_check=[HealthCheck.function_scoped_fixture])
@given(data=st.data())
def test_conditions_select_the_same_rows_as_a_loop(mixed: Table, rows: list[Row], data: st.DataObject) -> None:
    wanted = data.draw(st.lists(conditions(mixed.schema.names), min_size=1, max_size=3))
    expected = [
        (row["k1"], row["k2"]) for row in rows if all(holds(row[p.column], p.operator, p.value) for p in wanted)
    ]
    assert keys_of(rows_of(mixed, ["k1", "k2"], wanted)) == expected
    assert mixed.scan([], wanted).read_all().num_rows == len(expected)


def test_every_operator_works_on_every_column_or_is_refused(mixed: Table, rows: list[Row]) -> None:
    for name in mixed.schema.names:
        values = VALUES[name]
        # Quick tests give each operator one of the values; the test above has others.
        some = list(zip(OPERATORS, itertools.cycle(values), strict=False))
        for operator, value in itertools.product(OPERATORS, values) if THOROUGH else some:
            operand = {"in": [value], "is null": None, "is not null": None}.get(operator, value)
            if operator == "starts with" and COLUMNS[name] not in ("string", "binary"):
                with pytest.raises(OptionError):
                    mixed.scan([], [(name, operator, operand)]).read_all()
                continue
            found = mixed.scan([], [(name, operator, operand)]).read_all().num_rows
            assert found == sum(holds(row[name], operator, operand) for row in rows), (name, operator, operand)


def test_conditions_as_a_mapping_mean_equality_any_of_and_null(mixed: Table, rows: list[Row]) -> None:
    def count(where: Any) -> int:
        return int(mixed.scan([], where).read_all().num_rows)

    assert count({"flag": True}) == sum(row["flag"] is True for row in rows)
    assert count({"whole": [0, 1]}) == sum(row["whole"] in (0, 1) for row in rows)
    assert count({"text": None}) == sum(row["text"] is None for row in rows)
    assert count({"k1": "a", "k2": 0}) == 1
    assert count({}) == len(KEYS)


def test_comparisons_with_null_select_no_rows(mixed: Table) -> None:
    for operator in ("=", "!=", "<", ">=", "starts with"):
        assert rows_of(mixed, ["k1"], [("text", operator, None)]) == []


def test_invalid_conditions_are_refused(mixed: Table) -> None:
    for where, error in [
        ([("nothing", "=", 1)], SchemaError),
        ([("whole", "=", "text")], SchemaError),
        ([("small", "<", 1000)], SchemaError),
        ([("whole", "like", 1)], OptionError),
        ("whole = 1", OptionError),
    ]:
        with pytest.raises(error):
            mixed.scan(None, where).read_all()  # type: ignore[arg-type]


# -- projection -----------------------------------------------------------------------------------------


def test_columns_have_the_requested_order(mixed: Table, rows: list[Row]) -> None:
    reader = mixed.scan(["whole", "k2", "text"], {"k1": "a"})
    assert reader.schema.names == ["whole", "k2", "text"]
    expected = [{name: row[name] for name in ("whole", "k2", "text")} for row in rows if row["k1"] == "a"]
    assert reader.read_all().to_pylist() == expected
    with pytest.raises(SchemaError):
        mixed.scan(["nothing"])


def test_a_scan_without_columns_returns_row_counts(mixed: Table) -> None:
    found = mixed.scan([]).read_all()
    assert (found.num_columns, found.num_rows) == (0, len(KEYS))
    assert mixed.scan([], keys=KeyRange(("a",), ("b",))).read_all().num_rows == 3 * len(VALUES["k2"])


def test_a_scan_of_an_empty_table_returns_its_columns(store: Store) -> None:
    columns = {name: kind for name, kind in COLUMNS.items() if has_type(store, kind)}
    table = store.create_table("t", columns, ("k1", "k2"))
    assert table.scan().read_all() == table.schema.arrow.empty_table()
    assert table.scan([]).read_all().num_rows == 0


def test_batches_have_at_most_the_requested_rows(mixed: Table) -> None:
    for batch_rows in (1, 7, 1000):
        batches = list(mixed.scan(batch_rows=batch_rows))
        assert max(batch.num_rows for batch in batches) <= batch_rows
        assert keys_of(pa.Table.from_batches(batches).to_pylist()) == KEYS


# -- key ranges -----------------------------------------------------------------------------------------

_NUL_BOUNDS = [("a\0",), ("a\0b", 1), ("\0", 0), ("🙂\0",)]
_bounds = st.none() | st.sampled_from(_NUL_BOUNDS) | st.tuples(st.sampled_from(VALUES["k1"])) | st.sampled_from(KEYS)


def within(key: tuple[Any, ...], keys: KeyRange) -> bool:
    above = keys.low is None or key[: len(keys.low)] >= keys.low
    return above and (keys.high is None or key[: len(keys.high)] < keys.high)


@settings(max_examples=thorough(40), deadline=None, suppress_health_check=[HealthCheck.function_scoped_fixture])
@given(low=_bounds, high=_bounds, data=st.data(), batch_rows=st.sampled_from([3, 65536]))
def test_a_key_range_includes_its_low_bound_and_excludes_its_high_bound(
    mixed: Table, rows: list[Row], low: Any, high: Any, data: st.DataObject, batch_rows: int
) -> None:
    wanted = data.draw(st.lists(conditions(mixed.schema.names), max_size=1))
    keys = KeyRange(low, high)
    expected = [
        key
        for key, row in zip(KEYS, rows, strict=True)
        if within(key, keys) and all(holds(row[p.column], p.operator, p.value) for p in wanted)
    ]
    found = mixed.scan(["k1", "k2"], wanted, keys=keys, batch_rows=batch_rows).read_all().to_pylist()
    assert keys_of(found) == expected


def test_key_ranges_cover_the_table_without_overlap(mixed: Table) -> None:
    for count in (1, 2, 3, 7, 500):
        ranges = mixed.splits(count)
        assert 1 <= len(ranges) <= count
        assert [key for keys in ranges for key in keys_of(mixed.scan(keys=keys).read_all().to_pylist())] == KEYS
        sizes = [mixed.scan([], keys=keys).read_all().num_rows for keys in ranges]
        assert max(sizes) <= 2 * (len(KEYS) // len(ranges) + 1)


@pytest.mark.needs("split_partitions")
def test_key_ranges_cover_an_empty_and_a_split_table(store: Store, orders: Table) -> None:
    assert sum(orders.scan([], keys=keys).read_all().num_rows for keys in orders.splits(4)) == 0
    orders.put([{"id": f"{index:03}"} for index in range(100)])
    orders.split(at={"id": "050"})
    orders.split()
    for count in (1, 2, 3, 5, 50):
        found = [row["id"] for keys in orders.splits(count) for row in orders.scan(keys=keys).read_all().to_pylist()]
        assert found == [f"{index:03}" for index in range(100)]


# -- one state ------------------------------------------------------------------------------------------


@pytest.mark.needs("transactions")
@pytest.mark.parametrize(("count", "size"), [(2000, 50), (16, 2 << 20)], ids=["small rows", "rows of 2 MB"])
def test_a_scan_sees_one_state_while_writers_commit(
    place: Place, store: Store, orders: Table, count: int, size: int
) -> None:
    before = [{"id": f"{index:04}", "price": index, "note": "x" * size} for index in range(count)]
    orders.put(before)
    with place.open() as other_store:
        reader = orders.scan(batch_rows=max(1, count // 20))
        found = reader.read_next_batch().to_pylist()
        for writer in (orders, other_store.table("orders")):
            writer.put([{"id": f"{index:04}x"} for index in range(0, count, 3)])
            writer.delete([{"id": f"{index:04}"} for index in range(0, count, 5)])
            writer.update([{"id": f"{index:04}", "price": -1} for index in range(1, count, 7)])
        found += reader.read_all().to_pylist()
    assert [row["id"] for row in found] == [row["id"] for row in before]
    assert found == before
    assert rows_of(orders, ["id", "price"]) != [{"id": row["id"], "price": row["price"]} for row in before]


@pytest.mark.needs("split_partitions", "add_columns")
def test_a_scan_continues_while_partitions_and_columns_change(store: Store, orders: Table) -> None:
    orders.put([{"id": f"{index:03}", "price": index, "note": None} for index in range(300)])
    reader = orders.scan(batch_rows=50)
    first = reader.read_next_batch()
    orders.add_columns({"later": "string"})
    orders.split()
    orders.update({"id": "200", "later": "x"})
    rest = reader.read_all()
    assert rest.schema == first.schema
    assert [row["price"] for row in first.to_pylist() + rest.to_pylist()] == list(range(300))


def test_unfinished_scans_do_not_affect_writers(orders: Table) -> None:
    orders.put([{"id": f"{index:03}"} for index in range(300)])
    readers = [orders.scan(batch_rows=10) for _ in range(5)]
    for reader in readers[1:]:
        reader.read_next_batch()
    orders.put({"id": "new"})
    del readers
    orders.delete({"id": "new"})
    assert orders.scan([]).read_all().num_rows == 300


def test_a_limit_returns_the_first_rows_in_key_order(mixed: Table) -> None:
    def keys(**options: Any) -> list[tuple[Any, ...]]:
        return keys_of(mixed.scan(["k1", "k2"], **options).read_all().to_pylist())

    everything, flagged = keys(), keys(where=[("flag", "=", True)])
    for limit in (0, 1, 3, 10, 1000):
        assert keys(limit=limit) == keys(limit=limit, batch_rows=2) == everything[:limit]
        assert keys(where=[("flag", "=", True)], limit=limit) == flagged[:limit]
        assert mixed.scan([], limit=limit).read_all().num_rows == min(limit, len(KEYS))


def test_rows_are_the_same_without_reading_ahead(mixed: Table) -> None:
    where = [("flag", "=", True)]
    choices: list[dict[str, Any]] = [
        {},
        {"where": where},
        {"limit": 3},
        {"columns": []},
        {"batch_rows": 2, "where": where},
    ]
    for options in choices:
        ahead, lazy = mixed.scan(**options), mixed.scan(**options, read_ahead=False)
        assert lazy.schema == ahead.schema
        # NaN does not equal itself.
        assert repr(lazy.read_all().to_pylist()) == repr(ahead.read_all().to_pylist())


def test_a_limit_below_zero_is_refused(mixed: Table) -> None:
    with pytest.raises(OptionError, match="limit must be at least 0"):
        mixed.scan(limit=-1)


def test_rows_are_read_as_dicts_and_as_pandas(orders: Table) -> None:
    orders.put([{"id": "a", "price": 1}, {"id": "b", "price": 2}])
    assert [(row["id"], row["price"]) for row in orders] == [("a", 1), ("b", 2)]
    frame = orders.to_pandas(["id"], [("price", ">", 1)])
    assert frame.to_dict("records") == [{"id": "b"}]
    assert len(orders.to_pandas(limit=1)) == 1


def test_a_condition_that_is_a_text_names_the_forms(orders: Table) -> None:
    with pytest.raises(OptionError, match=r"\[\(.price., .>., 10\), …\]; Store.query takes SQL"):
        orders.scan(where="price > 10")  # type: ignore[arg-type]
