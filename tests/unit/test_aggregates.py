"""Aggregates that follow signed rows: results over random histories are those over the current rows."""

from __future__ import annotations

import datetime
import math
import pickle
import random
from collections.abc import Iterator, Mapping, Sequence
from dataclasses import replace
from decimal import ROUND_HALF_UP, Decimal
from fractions import Fraction
from typing import Any

import pyarrow as pa
import pytest
from hypothesis import HealthCheck, given, settings
from hypothesis import strategies as st

import headrace
from headrace.derived.own_names import ALIVE, SIGN, value_column
from headrace.derived.state.aggregates import Aggregate
from headrace.derived.state.group_states import GroupStates
from headrace.derived.state.state_tables import REMOVED, create_tables
from headrace.errors import NumericOverflowError, OptionError, StateMismatchError, UnsupportedError
from headrace.model.tables.changes import RowChange
from headrace.ports import Store, Table
from headrace.testing.effort import thorough

DECIMAL = pa.decimal128(12, 2)
TYPES = {
    "a0": pa.int64(),
    "a1": pa.float64(),
    "a2": DECIMAL,
    "a3": pa.string(),
    "a4": pa.date32(),
    "a5": pa.float32(),
    "a6": pa.bool_(),
    "a7": pa.binary(),
}
SUMS = {"a0": pa.int64(), "a1": pa.float64(), "a2": pa.decimal128(22, 2), "a5": pa.float64()}
AVERAGES = {"a0": pa.float64(), "a1": pa.float64(), "a2": pa.decimal128(16, 6), "a5": pa.float64()}


def aggregate(kind: Any, *names: str, result: pa.DataType | None = None) -> Aggregate:
    """Return an aggregate of some columns of `TYPES` with Spark's result type."""
    types = tuple(TYPES[name] for name in names)
    if result is None:
        result = pa.int64()
        if kind in ("min", "max"):
            result = types[0]
        elif kind in ("sum", "avg"):
            result = (SUMS if kind == "sum" else AVERAGES)[names[0]]
    return Aggregate(kind, names, types, result)


ALL = [
    aggregate("count_rows"),
    *(aggregate("count", name) for name in ("a0", "a3")),
    *(aggregate(kind, name) for kind in ("sum", "avg") for name in SUMS),
    *(aggregate(kind, name) for kind in ("min", "max") for name in TYPES),
    *(aggregate("count_distinct", name) for name in ("a0", "a1", "a3")),
    aggregate("count_distinct", "a0", "a3"),
]
GROUPS = pa.schema([("g0", pa.string()), ("g1", pa.float64())])

texts = st.text("ab\x00é", max_size=3)
VALUES: Mapping[str, st.SearchStrategy[Any]] = {
    "g0": st.none() | st.sampled_from(["", "x", "y\x00", "z" * 600, "z" * 601]),
    "g1": st.sampled_from([None, 0.0, -0.0, 1.5, math.nan]),
    "a0": st.none() | st.integers(-3, 3) | st.integers(-(2**50), 2**50),
    "a1": st.none() | st.sampled_from([0.1, -0.1, 1e300, -1e-300, 5e-324, -0.0, math.inf, -math.inf, math.nan]),
    "a2": st.none() | st.decimals("-9999999999.99", "9999999999.99", places=2),
    "a3": st.none() | texts,
    "a4": st.none() | st.dates(datetime.date(1960, 1, 1), datetime.date(1980, 1, 1)),
    "a5": st.none() | st.floats(width=32),
    "a6": st.none() | st.booleans(),
    "a7": st.none() | st.binary(max_size=3),
}
rows_of_tables = st.fixed_dictionaries(dict(VALUES))


class Following:
    """A query over a store: merges batches, and applies state rows as a publication does."""

    def __init__(self, store: Store, states: GroupStates, prefix: str) -> None:
        self.states = states
        self.tables: dict[str, Table] = create_tables(store, states.tables(prefix))
        self.results: dict[Any, dict[str, Any]] = {}

    def run(
        self, batch: int, signed: Sequence[tuple[int, Mapping[str, Any]]], schema: pa.Schema, *, applied: float = 1.0
    ) -> None:
        """Merge a batch and publish it.

        Args:
            applied: the share of state rows that are applied; without all, the results are not, as after a crash.
        """
        rows = pa.Table.from_pylist(
            [{**row, SIGN: sign} for sign, row in signed], schema.append(pa.field(SIGN, "int8"))
        )
        output = list(self.states.merge(self.tables, batch, rows.to_batches(max_chunksize=3)))
        writes = [each for _, of_groups in output for each in of_groups]
        for each in writes:
            change = each.rows.slice(0, math.ceil(each.rows.num_rows * applied))
            if change.num_rows:
                table = self.tables[each.table]
                table.put(change) if each.change is RowChange.PUT else table.delete(change)
        if applied < 1:
            return
        for part, _ in output:
            assert part.schema == self.states.output
            for row in part.to_pylist():
                key = tuple(same(row[name]) for name in schema.names if name.startswith("g"))
                self.results.pop(key, None)
                if row[ALIVE]:
                    self.results[key] = {
                        name: same(value) for name, value in row.items() if name not in (ALIVE, *schema.names)
                    }


def same(value: Any) -> Any:
    """Return a value that equals those that Spark takes for equal: one NaN, one zero."""
    if isinstance(value, float):
        return "NaN" if math.isnan(value) else value + 0.0
    return value


def expected(aggregate: Aggregate, rows: Sequence[Mapping[str, Any]]) -> Any:
    """Return the value of an aggregate over rows, computed with Python's exact numbers."""
    if aggregate.kind == "count_rows":
        return len(rows)
    found = [tuple(row[name] for name in aggregate.arguments) for row in rows]
    found = [each for each in found if None not in each]
    if aggregate.kind == "count":
        return len(found)
    if aggregate.kind == "count_distinct":
        return len({tuple(same(value) for value in each) for each in found})
    if not found:
        return None
    values = [value for (value,) in found]
    if aggregate.kind in ("min", "max"):
        choose = min if aggregate.kind == "min" else max
        return same(choose(values, key=order))
    divisor = len(values) if aggregate.kind == "avg" else 1
    if isinstance(values[0], float):
        special = [value for value in values if not math.isfinite(value)]
        if special:
            return same(sum(special))
    total = sum(map(Fraction, values), Fraction(0)) / divisor
    if pa.types.is_decimal(aggregate.result):
        scaled = Decimal(total.numerator * 10**aggregate.result.scale) / Decimal(total.denominator)
        return scaled.quantize(Decimal(1), ROUND_HALF_UP).scaleb(-aggregate.result.scale)
    if pa.types.is_integer(aggregate.result):
        return int(total)
    try:
        return float(total)
    except OverflowError:
        return math.inf if total > 0 else -math.inf


def order(value: Any) -> Any:
    if isinstance(value, float):
        return (1, 0.0) if math.isnan(value) else (0, value)
    return value.encode() if isinstance(value, str) else value


def over(rows: Sequence[Mapping[str, Any]], groups: Sequence[str], aggregates: Sequence[Aggregate]) -> dict[Any, Any]:
    """Return the results of a query over the current rows."""
    by_group: dict[Any, list[Mapping[str, Any]]] = {}
    for row in rows:
        by_group.setdefault(tuple(same(row[name]) for name in groups), []).append(row)
    if not groups:
        by_group.setdefault((), [])
    return {
        key: {value_column(index): expected(each, members) for index, each in enumerate(aggregates)}
        for key, members in by_group.items()
    }


@pytest.fixture(scope="module")
def store(tmp_path_factory: pytest.TempPathFactory) -> Iterator[Store]:
    opened = headrace.open(tmp_path_factory.mktemp("state"), create=True, synchronous="off")
    yield opened
    opened.close()


numbers_of_queries = iter(range(10**9))
histories = st.lists(
    st.tuples(st.lists(rows_of_tables, max_size=8), st.floats(0, 1), st.sampled_from([0, 1, 2])), max_size=5
)


@settings(
    max_examples=thorough(60), deadline=None, suppress_health_check=[HealthCheck.too_slow, HealthCheck.data_too_large]
)
@given(
    history=histories,
    seed=st.integers(0, 2**32),
    groups=st.sampled_from([("g0", "g1"), ("g0",), ()]),
    keeps_previous=st.booleans(),
)
def test_results_are_those_over_the_current_rows(
    store: Store, history: Any, seed: int, groups: tuple[str, ...], keeps_previous: bool
) -> None:
    choose = random.Random(seed)
    schema = pa.schema([*(GROUPS.field(name) for name in groups), *TYPES.items()])
    states = GroupStates(pa.schema([GROUPS.field(name) for name in groups]), ALL, keeps_previous=keeps_previous)
    query = Following(store, states, f"q{next(numbers_of_queries)}_")
    current: list[Mapping[str, Any]] = []
    for batch, (added, removed, replays) in enumerate(history):
        signed: list[tuple[int, Mapping[str, Any]]] = [(1, row) for row in added]
        signed += [(-1, current.pop(choose.randrange(len(current)))) for _ in range(int(removed * len(current)))]
        current += added
        choose.shuffle(signed)
        states.sweep(query.tables, batch)
        for _ in range(replays if keeps_previous else 0):
            query.run(batch, signed, schema, applied=choose.random())
        query.run(batch, signed, schema)
        assert query.results == over(current, groups, ALL)
    if keeps_previous:
        states.sweep(query.tables, len(history))
        assert query.tables[REMOVED].scan().read_all().num_rows == 0
    if not current and groups:
        states.sweep(query.tables, len(history))
        assert all(table.scan().read_all().num_rows == 0 for table in query.tables.values())


# -- errors -------------------------------------------------------------------------------------------------

ONE_GROUP = pa.schema([("g0", pa.string())])


def follow(store: Store, *aggregates: Aggregate, keeps_previous: bool = False) -> tuple[Following, pa.Schema]:
    """Return a query with one column of groups, and the schema of its signed rows."""
    states = pickle.loads(pickle.dumps(GroupStates(ONE_GROUP, aggregates, keeps_previous=keeps_previous)))
    names = dict.fromkeys(name for each in aggregates for name in each.arguments)
    schema = pa.schema([*ONE_GROUP, *((name, TYPES[name]) for name in names)])
    return Following(store, states, f"q{next(numbers_of_queries)}_"), schema


def test_sums_of_integers_may_overflow_until_the_end(store: Store) -> None:
    query, schema = follow(store, replace(aggregate("sum", "a0"), text="sum(price * n)"))
    largest = {"g0": "x", "a0": 2**63 - 1}
    query.run(0, [(1, largest), (1, largest), (-1, {"g0": "x", "a0": 2**63 - 1})], schema)
    assert query.results == {("x",): {value_column(0): 2**63 - 1}}
    with pytest.raises(NumericOverflowError, match=r"sum\(price \* n\) does not fit.*long"):
        query.run(1, [(1, {"g0": "x", "a0": 1})], schema)
    query.run(1, [(1, {"g0": "x", "a0": 1}), (-1, largest)], schema)
    assert query.results == {("x",): {value_column(0): 1}}


def test_sums_of_decimals_that_do_not_fit_are_errors(store: Store) -> None:
    narrow = replace(aggregate("sum", "a2"), result=pa.decimal128(12, 2))
    query, schema = follow(store, narrow)
    row = {"g0": "x", "a2": Decimal("9999999999.99")}
    query.run(0, [(1, row)], schema)
    with pytest.raises(NumericOverflowError, match=r"decimal\(12,2\)"):
        query.run(1, [(1, row)], schema)


@pytest.mark.parametrize(
    ("kind", "left"),
    [
        ("count_rows", {"g0": "y", "a0": 1}),
        ("count", {"g0": "x", "a0": 1}),
        ("sum", {"g0": "x", "a0": 2}),
        ("min", {"g0": "x", "a0": 2}),
        ("max", {"g0": "x", "a0": None}),
        ("count_distinct", {"g0": "x", "a0": 2}),
    ],
)
def test_rows_that_were_never_added_cannot_leave(store: Store, kind: str, left: dict[str, Any]) -> None:
    arguments = [] if kind == "count_rows" else ["a0"]
    query, schema = follow(store, aggregate("count", "a0"), aggregate(kind, *arguments))
    query.run(0, [(1, {"g0": "x", "a0": 1 if kind != "count" else None})], schema)
    with pytest.raises(StateMismatchError, match="do not fit the kept state"):
        query.run(1, [(-1, left)], schema)


def test_infinities_that_were_never_added_cannot_leave(store: Store) -> None:
    query, schema = follow(store, aggregate("sum", "a1"))
    query.run(0, [(1, {"g0": "x", "a1": 1.0})], schema)
    with pytest.raises(StateMismatchError):
        query.run(1, [(-1, {"g0": "x", "a1": math.inf})], schema)


def test_state_of_a_later_batch_is_refused(store: Store) -> None:
    query, schema = follow(store, aggregate("count_rows"), keeps_previous=True)
    query.run(5, [(1, {"g0": "x"})], schema)
    with pytest.raises(StateMismatchError, match="newer than its checkpoint"):
        query.run(4, [(1, {"g0": "x"})], schema)


def test_removed_state_of_a_group_that_came_back_stays(store: Store) -> None:
    query, schema = follow(store, aggregate("min", "a0"), keeps_previous=True)
    row = {"g0": "x", "a0": 7}
    query.run(0, [(1, row)], schema)
    query.run(1, [(-1, row)], schema)
    query.run(2, [(1, row)], schema)
    query.states.sweep(query.tables, 3)
    assert {role: table.scan().read_all().num_rows for role, table in query.tables.items()} == {
        "groups": 1,
        "values": 1,
        "removed": 0,
    }
    query.run(3, [(1, row)], schema)
    assert query.results == {("x",): {value_column(0): 7}}


def test_the_next_value_is_found_behind_many_removed_ones(store: Store) -> None:
    query, schema = follow(store, aggregate("min", "a0"), aggregate("max", "a0"))
    rows: list[dict[str, Any]] = [{"g0": group, "a0": number} for group in "xy" for number in range(300)]
    query.run(0, [(1, row) for row in rows], schema)
    query.run(1, [(-1, row) for row in rows if row["a0"] != 150 and row["g0"] == "x"], schema)
    assert query.results[("x",)] == {value_column(0): 150, value_column(1): 150}
    query.run(2, [(-1, row) for row in rows if row["a0"] < 100 and row["g0"] == "y"], schema)
    assert query.results[("y",)] == {value_column(0): 100, value_column(1): 299}


def test_a_task_without_rows_has_no_results(store: Store) -> None:
    query, schema = follow(store, aggregate("count_rows"))
    query.run(0, [], schema)
    assert query.results == {}


@pytest.mark.parametrize("kind", ["sum", "avg"])
def test_texts_have_no_sum(kind: Any) -> None:
    with pytest.raises(UnsupportedError, match=r"cannot be followed.*type string"):
        Aggregate(kind, ("a0",), (pa.string(),), pa.float64())


def test_tables_of_state_have_no_tunnels(store: Store) -> None:
    query, _ = follow(store, aggregate("count_rows"))
    with pytest.raises(UnsupportedError, match="keeps no changes"):
        store.create_tunnel(query.tables["groups"].name, "t")
    with pytest.raises(OptionError, match="when it is created"):
        query.tables["groups"].set_options(change_log=True)
    with pytest.raises(OptionError, match="no pre-images"):
        query.tables["groups"].set_options(pre_images=True)
    assert not query.tables["groups"].describe().options.change_log
