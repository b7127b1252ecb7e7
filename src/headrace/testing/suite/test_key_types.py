"""Keys of each type: their order, ranges, conditions, lookups, partitions and tunnels."""

from __future__ import annotations

import datetime
import decimal
import re
from functools import partial
from typing import Any

import pyarrow as pa
import pytest

from headrace.errors import SchemaError, UnsupportedError
from headrace.inspect.comparing.tables import diff_tables
from headrace.model.tables.changes import RowChange
from headrace.model.tables.conditions import KeyRange
from headrace.model.types import KEY_TYPE_NAMES
from headrace.ports import Store, Table, Write
from headrace.testing.capabilities import has_key_type, has_type, key_types
from headrace.testing.reading import drain, replay, state_of

UTC = datetime.UTC
# In the order of the values.
VALUES: dict[str, list[Any]] = {
    "byte": [-128, -1, 0, 1, 127],
    "short": [-(2**15), -300, 0, 300, 2**15 - 1],
    "int": [-(2**31), -70_000, 0, 70_000, 2**31 - 1],
    "decimal(38,2)": [decimal.Decimal(text) for text in ("-1e35", "-1.50", "0", "0.01", "1e35")],
    "date": [datetime.date(1, 1, 1), datetime.date(1969, 12, 31), datetime.date(1970, 1, 1), datetime.date(2026, 2, 3),
             datetime.date(9999, 12, 31)],
    "timestamp": [datetime.datetime(1, 1, 1, tzinfo=UTC), datetime.datetime(1969, 12, 31, 23, 59, 59, 999999, UTC),
                  datetime.datetime(1970, 1, 1, tzinfo=UTC), datetime.datetime(2026, 1, 2, 3, 4, 5, 6, UTC),
                  datetime.datetime(9999, 12, 31, 23, 59, 59, 999999, UTC)],
    "timestamp_ntz": [datetime.datetime(1, 1, 1), datetime.datetime(1969, 12, 31, 23, 59, 59, 999999),
                      datetime.datetime(1970, 1, 1), datetime.datetime(2026, 1, 2, 3, 4, 5, 6),
                      datetime.datetime(9999, 12, 31, 23, 59, 59, 999999)],
}  # fmt: skip
KINDS = sorted(VALUES)


class TestKeysOfEachType:
    @pytest.fixture(params=key_types(KINDS))
    def kind(self, request: pytest.FixtureRequest) -> str:
        kind: str = request.param
        return kind

    @pytest.fixture
    def table(self, store: Store, kind: str) -> Table:
        """Five rows, written in another order."""
        columns = {"k": kind, "part": "string", "n": "long"}
        table = store.create_table("t", columns, ["k", "part"], pre_images=store.capabilities.pre_images)
        rows = [{"k": value, "part": "a", "n": n} for n, value in enumerate(VALUES[kind])]
        table.put(rows[::-1])
        return table

    def test_rows_are_in_the_order_of_the_values(self, table: Table, kind: str) -> None:
        assert table.scan(["k", "n"]).read_all().to_pylist() == [
            {"k": value, "n": n} for n, value in enumerate(VALUES[kind])
        ]
        assert table.scan(["n"], batch_rows=2, read_ahead=False).read_all().column("n").to_pylist() == [0, 1, 2, 3, 4]

    def test_ranges_and_conditions_select_rows(self, table: Table, kind: str) -> None:
        values = VALUES[kind]

        def numbers(**options: Any) -> list[int]:
            found: list[int] = table.scan(["n"], **options).read_all().column("n").to_pylist()
            return found

        assert numbers(keys=KeyRange((values[1],), (values[3],))) == [1, 2]
        assert numbers(where={"k": values[3]}) == [3]
        assert numbers(where=[("k", ">", values[1]), ("k", "<=", values[3])]) == [2, 3]
        assert numbers(where=[("k", "!=", values[2])]) == [0, 1, 3, 4]
        assert numbers(where=[("k", "in", [values[0], values[4]])]) == [0, 4]
        assert numbers(where=[("k", "=", values[1]), ("part", "starts with", "a")]) == [1]

    def test_rows_are_found_updated_and_deleted_by_key(self, table: Table, kind: str) -> None:
        values = VALUES[kind]
        assert table.get({"k": values[3], "part": "a"}) == {"k": values[3], "part": "a", "n": 3}
        assert table.get({"k": values[3], "part": "b"}) is None
        keys = [{"k": values[4], "part": "a"}, {"k": values[2], "part": "z"}, {"k": values[0], "part": "a"}]
        assert table.get_many(keys).column("n").to_pylist() == [4, None, 0]
        table.update([{"k": values[1], "part": "a", "n": 10}])
        table.put([{"k": values[2], "part": "a", "n": 20}, {"k": values[2], "part": "b", "n": 21}])
        table.delete([{"k": values[0], "part": "a"}])
        assert table.scan(["n"]).read_all().column("n").to_pylist() == [10, 20, 21, 3, 4]
        assert table.first_rows([KeyRange((values[2],))], ["k"]).column("k").to_pylist() == [values[2]]

    @pytest.mark.needs("tunnels")
    def test_a_tunnel_reads_base_data_and_changes(self, store: Store, table: Table, kind: str) -> None:
        values = VALUES[kind]
        before = state_of(table)
        tunnel = store.create_tunnel("t", "tn", "BaseAndStream", base_channels=2)
        table.put([{"k": values[2], "part": "a", "n": 20}, {"k": values[2], "part": "b", "n": 21}])
        table.delete([{"k": values[0], "part": "a"}])
        found = drain(tunnel, page_rows=2)
        assert replay(found[: len(before)]) == before
        assert replay(found) == state_of(table)

    @pytest.mark.needs("split_partitions", "tunnels")
    def test_partitions_are_split_at_keys(self, store: Store, table: Table, kind: str) -> None:
        values = VALUES[kind]
        tunnel = store.create_tunnel("t", "tn", "Stream", start="earliest")
        first, second = table.split(at={"k": values[1]})
        table.split(second)
        assert table.merge(first, table.describe().partitions[-2].id) > second
        table.put([{"k": value, "part": "b", "n": 7} for value in values])
        assert replay(drain(tunnel)) == state_of(table)
        bounds = [part.keys.low for part in table.describe().partitions if part.open and part.keys.low]
        assert all(type(low[0]) is type(values[0]) for low in bounds)
        ranges = table.splits(4)
        assert sum(table.scan(keys=each).read_all().num_rows for each in ranges) == 10

    def test_a_publication_writes_rows(self, store: Store, table: Table, kind: str) -> None:
        rows = pa.RecordBatch.from_pylist(
            [{"k": value, "part": "b", "n": 9} for value in VALUES[kind]], schema=table.schema.arrow
        )
        publisher = store.publisher("job")
        staged = publisher.stage(0, [rows], table="t", change=RowChange.PUT)
        assert publisher.publish(0, [Write("t", RowChange.PUT, tuple(staged))])
        assert table.scan(["n"]).read_all().column("n").to_pylist() == [n for each in range(5) for n in (each, 9)]

    def test_two_tables_are_compared(self, store: Store, table: Table, kind: str) -> None:
        other = store.create_table("o", {"k": kind, "part": "string", "n": "long"}, ["k", "part"])
        other.put(table.scan().read_all())
        assert diff_tables(table, other, ranges=3).equal
        other.delete([{"k": VALUES[kind][1], "part": "a"}])
        other.put([{"k": VALUES[kind][4], "part": "a", "n": 8}])
        found = diff_tables(table, other, ranges=3, recheck_after=0.01)
        assert (found.only_in_a, found.only_in_b, found.changed) == (1, 0, 1)

    def test_a_key_that_does_not_fit_is_refused(self, table: Table, kind: str) -> None:
        with pytest.raises(SchemaError):
            table.put([{"k": "no such value", "part": "a"}])


KEY = ("yes", "no", "day", "price")
ROWS = [
    {"yes": yes, "no": no, "day": datetime.date(2026, 1, day), "price": decimal.Decimal(price)}
    for yes in (False, True)
    for no in (-1, 10)
    for day in (1, 2)
    for price in ("-10.00", "9.50", "10.25")
]


@pytest.mark.needs_key_type("boolean", "int", "date", "decimal(8,2)")
class TestKeysOfSeveralTypes:
    @pytest.fixture
    def table(self, store: Store) -> Table:
        """24 rows, written in another order."""
        columns = {"yes": "boolean", "no": "int", "day": "date", "price": "decimal(8,2)", "n": "long"}
        table = store.create_table("t", columns, KEY, pre_images=store.capabilities.pre_images)
        table.put([{**row, "n": n} for n, row in enumerate(ROWS)][::-1])
        return table

    def test_each_column_orders_and_selects_rows(self, table: Table) -> None:
        assert table.scan(list(KEY)).read_all().to_pylist() == ROWS
        assert table.get({**ROWS[7]}) == {**ROWS[7], "n": 7}
        assert table.get_many([ROWS[23], ROWS[0]]).column("n").to_pylist() == [23, 0]
        low, high = (tuple(ROWS[n].values()) for n in (5, 18))
        assert table.scan(["n"], keys=KeyRange(low, high)).read_all().column("n").to_pylist() == list(range(5, 18))
        assert table.scan(["n"], where={"yes": True, "no": 10}).read_all().column("n").to_pylist() == [*range(18, 24)]
        assert table.scan(["n"], where=[("yes", "<", True)]).read_all().num_rows == 12
        table.delete(ROWS[:3])
        table.update([{**ROWS[3], "n": 33}])
        assert table.scan(["n"]).read_all().column("n").to_pylist() == [33, *range(4, 24)]

    @pytest.mark.needs("tunnels")
    def test_a_tunnel_splits_its_base_data(self, store: Store, table: Table) -> None:
        tunnel = store.create_tunnel("t", "tn", "BaseAndStream", base_channels=3)
        table.put([{**row, "n": 100} for row in ROWS[::5]])
        table.delete(ROWS[1::7])
        assert replay(drain(tunnel, page_rows=4)) == state_of(table)

    def test_two_tables_are_compared(self, store: Store, table: Table) -> None:
        other = store.create_table("o", table.schema.arrow, KEY)
        other.put(table.scan().read_all())
        other.delete([ROWS[23]])
        found = diff_tables(table, other, ranges=3, recheck_after=0.01)
        assert (found.only_in_a, found.only_in_b, found.changed) == (1, 0, 0)
        ranges = table.splits(4)
        assert sum(table.scan(keys=each).read_all().num_rows for each in ranges) == len(ROWS)


@pytest.mark.needs_key_type("timestamp")
def test_a_date_that_python_does_not_have_cannot_be_a_key(store: Store) -> None:
    table = store.create_table("t", {"k": "timestamp"}, "k")
    with pytest.raises(SchemaError, match="valid: 1 to 9999"):
        table.put(pa.table({"k": pa.array([2**60], pa.timestamp("us", tz="UTC"))}))


@pytest.mark.parametrize("kind", ["float", "double", "array<string>", "interval day to second"])
def test_other_types_cannot_be_keys(store: Store, kind: str) -> None:
    with pytest.raises(SchemaError, match=", ".join(KEY_TYPE_NAMES[:3])):
        store.create_table("t", {"k": kind}, "k")


def test_a_key_of_a_type_that_the_store_does_not_have_is_refused(store: Store) -> None:
    valid = ", ".join(store.capabilities.key_types)
    for kind in filter(partial(has_type, store), ["boolean", *KINDS]):
        if not has_key_type(store, kind):
            with pytest.raises(UnsupportedError, match=re.escape(f"valid: {valid}")):
                store.create_table("t", {"k": kind}, "k")
