"""Keys of each type: their order, ranges, conditions, lookups, partitions and tunnels."""

from __future__ import annotations

import datetime
import decimal
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
from headrace.testing.capabilities import has_type, traits, types
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


@pytest.mark.needs("all_key_types")
class TestKeysOfEachType:
    @pytest.fixture(params=types(KINDS))
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


@pytest.mark.needs("all_key_types")
@pytest.mark.needs_type("timestamp")
def test_a_date_that_python_does_not_have_cannot_be_a_key(store: Store) -> None:
    table = store.create_table("t", {"k": "timestamp"}, "k")
    with pytest.raises(SchemaError, match="valid: 1 to 9999"):
        table.put(pa.table({"k": pa.array([2**60], pa.timestamp("us", tz="UTC"))}))


@pytest.mark.parametrize("kind", ["boolean", "float", "double", "array<string>", "interval day to second"])
def test_other_types_cannot_be_keys(store: Store, kind: str) -> None:
    with pytest.raises(SchemaError, match=", ".join(KEY_TYPE_NAMES[:3])):
        store.create_table("t", {"k": kind}, "k")


def test_a_store_has_all_types_of_keys_or_names_those_that_it_has(store: Store) -> None:
    for kind in filter(partial(has_type, store), KINDS):
        if traits(store).all_key_types:
            assert store.create_table(f"t_{kind[:3]}_{len(kind)}", {"k": kind}, "k").schema.primary_key == ("k",)
        else:
            with pytest.raises(UnsupportedError, match="valid: string, long, binary"):
                store.create_table("t", {"k": kind}, "k")
