"""Writing rows to YTsaurus' tables and queues: partitions, updates, options of queues."""

from __future__ import annotations

from typing import Any

import pyarrow as pa
import pytest
from hypothesis import given
from hypothesis import strategies as st

from headrace.errors import OptionError
from headrace.model.queues.columns import TABLET_INDEX
from headrace.model.queues.validation import Route
from headrace.model.queues.values import QueueOptions, partition_of_keys
from headrace.model.tables.changes import RowChange
from headrace_ytsaurus.store.queues.options import config_of, options_of
from headrace_ytsaurus.store.queues.routing import in_partitions, routed
from headrace_ytsaurus.store.schemas import TableLayout
from headrace_ytsaurus.store.tables.writing import _pieces, keys_gone, last_of_each_key
from headrace_ytsaurus.wire.types import YtColumn

LAYOUT = TableLayout.of(
    [YtColumn.of("id", "int64", sort_order="ascending")]
    + [YtColumn.of(name, "int64", required=False) for name in ("a", "b")],
    "t",
)
CELL = st.none() | st.integers(0, 3)


def addressed(*indexes: int | None) -> pa.Table:
    return pa.table({"data": [str(n) for n in range(len(indexes))], TABLET_INDEX: pa.array(indexes, pa.int64())})


def numbers(rows: pa.Table) -> list[int]:
    found: list[int] = rows.column(TABLET_INDEX).to_pylist()
    return found


# -- partitions -----------------------------------------------------------------------------------------------


def test_rows_without_a_partition_go_to_the_emptiest_one() -> None:
    assert numbers(routed(addressed(2, None, 0), Route(), [5, 3, 9])) == [2, 1, 0]
    assert numbers(routed(addressed(None, None), Route(), [5, 3, 3])) == [1, 1]
    assert numbers(routed(addressed(None, None), Route.of(2, None), [0, 0, 0])) == [2, 2]


def test_rows_with_the_same_key_go_to_one_partition() -> None:
    rows = addressed(*[None] * 50)
    found = routed(rows, Route.of(None, "data"), [0] * 4)
    assert numbers(found) == partition_of_keys(rows, ["data"], 4).tolist()
    parts = in_partitions(found)
    assert sorted(row for part in parts.values() for row in part.tolist()) == list(range(50))
    assert all((part[1:] > part[:-1]).all() for part in parts.values())


@pytest.mark.parametrize(
    ("indexes", "route"),
    [((3,), Route()), ((-1,), Route()), ((None,), Route(3)), ((0,), Route(1)), ((0,), Route(None, ("data",)))],
)
def test_a_missing_or_doubly_chosen_partition_is_refused(indexes: tuple[Any, ...], route: Route) -> None:
    with pytest.raises(OptionError):
        routed(addressed(*indexes), route, [0, 0, 0])


@pytest.mark.parametrize(("partition", "key"), [(0, "data"), (None, ())])
def test_only_one_kind_of_routing_is_accepted(partition: int | None, key: Any) -> None:
    with pytest.raises(OptionError):
        Route.of(partition, key)


# -- updates --------------------------------------------------------------------------------------------------


@given(rows=st.lists(st.tuples(st.integers(0, 4), CELL, CELL), max_size=30))
def test_grouped_updates_equal_row_by_row_updates(rows: list[tuple[int, Any, Any]]) -> None:
    schema = pa.schema([("id", pa.int64()), ("a", pa.int64()), ("b", pa.int64())])
    table = pa.Table.from_pylist([dict(zip(schema.names, row, strict=True)) for row in rows], schema=schema)
    expected: dict[int, dict[str, Any]] = {}
    for key, *cells in rows:
        row = expected.setdefault(key, {})
        row |= {name: cell for name, cell in zip("ab", cells, strict=True) if cell is not None}
    found: dict[int, dict[str, Any]] = {}
    for piece in _pieces(table, RowChange.UPDATE, LAYOUT, keep_nulls=False):
        for row in piece.to_pylist():
            assert None not in row.values()
            found.setdefault(row.pop("id"), {}).update(row)
    assert found == expected


def test_puts_and_updates_with_nulls_are_written_unchanged() -> None:
    rows = pa.table({"id": [1], "a": pa.array([None], pa.int64())})
    for change, keep_nulls in ((RowChange.UPDATE, True), (RowChange.PUT, False)):
        assert [piece.to_pylist() for piece in _pieces(rows, change, LAYOUT, keep_nulls=keep_nulls)] == [
            [{"id": 1, "a": None}]
        ]


def test_replacing_a_table_writes_last_rows_and_deletes_other_keys() -> None:
    rows = pa.table({"id": [2, 1, 2], "a": [1, 2, 3]})
    wanted = last_of_each_key(rows, ["id"])
    assert wanted.to_pylist() == [{"id": 1, "a": 2}, {"id": 2, "a": 3}]
    here = pa.table({"id": [1, 5, 9]})
    assert sorted(keys_gone(here, wanted.select(["id"])).column("id").to_pylist()) == [5, 9]
    assert last_of_each_key(rows.slice(0, 0), ["id"]).num_rows == 0


# -- options of queues ----------------------------------------------------------------------------------------


def test_queue_options_round_trip() -> None:
    changes = {"auto_trim": True, "retained_rows": 7, "retained_seconds": 3600.0}
    options, config = config_of(QueueOptions(), changes)
    assert config == {"enable": True, "retained_rows": 7, "retained_lifetime_duration": 3_600_000}
    assert options_of(config) == options == QueueOptions(True, 7, 3600.0)
    assert options_of({}) == QueueOptions()
    assert config_of(options, {"retained_rows": None})[1] == {"enable": True, "retained_lifetime_duration": 3_600_000}


@pytest.mark.parametrize(
    "changes",
    [{"colour": 1}, {"auto_trim": 1}, {"retained_rows": 1.5}, {"retained_seconds": -1}, {"retained_rows": True}],
)
def test_invalid_queue_options_are_refused(changes: dict[str, Any]) -> None:
    with pytest.raises(OptionError):
        config_of(QueueOptions(), changes)
