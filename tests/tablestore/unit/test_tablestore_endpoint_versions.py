"""Tables with several versions of a cell: reads, updates, and records of tunnels."""

from __future__ import annotations

import tempfile
import time
from collections.abc import Iterator, Sequence
from pathlib import Path
from typing import Any

import pytest
from hypothesis import given
from hypothesis import settings as settings_of_hypothesis
from hypothesis import strategies as st

from headrace.testing.effort import thorough
from headrace_tablestore.endpoint.instances import Instance
from headrace_tablestore.endpoint.rows import single_rows
from headrace_tablestore.endpoint.rows.batches import batch_get_row, batch_write_row
from headrace_tablestore.endpoint.rows.ranges import get_range
from headrace_tablestore.endpoint.tables import table_operations
from headrace_tablestore.wire import table_pb2 as pb
from headrace_tablestore.wire.errors import ServiceError
from headrace_tablestore.wire.plainbuffer.rows import decode_row, decode_rows, encode_row, encode_value
from headrace_tablestore.wire.plainbuffer.values import Cell, CellOp, Marker, Row
from tests.tablestore.unit.tablestore_endpoint import Service, rows_of

# The first timestamp (ms) of cells in tests. No timestamp is in the future.
EPOCH = time.time_ns() // 1_000_000 - 60_000
IGNORED = pb.Condition(row_existence=pb.IGNORE)
Versions = dict[str, dict[int, Any]]


@pytest.fixture
def service(tmp_path: Path) -> Iterator[Service]:
    service = Service(Instance("shop", tmp_path / "shop"))
    create(service.instance)
    yield service
    service.store.close()


def create(instance: Instance, max_versions: int = 3, **options: Any) -> None:
    options = {"time_to_live": -1, "max_versions": max_versions, **options}
    request = pb.CreateTableRequest(table_options=pb.TableOptions(**options))
    request.table_meta.table_name = "T"
    request.table_meta.primary_key.add(name="k", type=pb.INTEGER)
    request.reserved_throughput.capacity_unit.read = 0
    table_operations.create_table(instance, request)


def cell(name: str, value: Any, at: int) -> Cell:
    return Cell(name, value, None, EPOCH + at)


def change(*cells: Cell, key: int = 1) -> bytes:
    return encode_row(Row((("k", key),), cells))


def put(instance: Instance, *cells: Cell) -> None:
    single_rows.put_row(instance, pb.PutRowRequest(table_name="T", row=change(*cells), condition=IGNORED))


def update(instance: Instance, *cells: Cell, condition: pb.Condition = IGNORED) -> None:
    request = pb.UpdateRowRequest(table_name="T", row_change=change(*cells), condition=condition)
    single_rows.update_row(instance, request)


def told(cells: Sequence[Cell]) -> list[tuple[str, Any, int]]:
    return [(each.name, each.op or each.value, (each.timestamp or EPOCH) - EPOCH) for each in cells]


def read(instance: Instance, **wanted: Any) -> list[tuple[str, Any, int]] | None:
    """Return the cells of the row. GetRow, BatchGetRow and GetRange must agree."""
    one = single_rows.get_row(instance, pb.GetRowRequest(table_name="T", primary_key=change(), **wanted)).row
    batch = pb.BatchGetRowRequest()
    batch.tables.add(table_name="T", primary_key=[change()], **wanted)
    (table,) = batch_get_row(instance, batch).tables
    bounds = [encode_row(Row((("k", marker),))) for marker in (Marker.INF_MIN, Marker.INF_MAX)]
    page = pb.GetRangeRequest(table_name="T", direction=pb.FORWARD, **wanted)
    page.inclusive_start_primary_key, page.exclusive_end_primary_key = bounds
    rows = decode_rows(get_range(instance, page).rows)
    assert table.rows[0].row == one
    assert rows == ([decode_row(one)] if one else [])
    return told(rows[0].cells) if rows else None


def times(start: int, end: int) -> pb.TimeRange:
    return pb.TimeRange(start_time=EPOCH + start, end_time=EPOCH + end)


def newer(column: str, value: Any, *, latest_only: bool) -> bytes:
    """Return a filter: the column is greater than the value."""
    comparison = pb.SingleColumnValueFilter(
        comparator=pb.CT_GREATER_THAN,
        column_name=column,
        column_value=encode_value(value),
        filter_if_missing=True,
        latest_version_only=latest_only,
    )
    return pb.Filter(type=pb.FT_SINGLE_COLUMN_VALUE, filter=comparison.SerializeToString()).SerializeToString()


def test_a_table_keeps_its_maximum_of_versions(service: Service) -> None:
    instance = service.instance
    described = table_operations.describe_table(instance, pb.DescribeTableRequest(table_name="T"))
    assert described.table_options.max_versions == 3
    for number in range(5):
        update(instance, cell("a", number, number))
    update(instance, cell("b", "x", 7), cell("b", 0.5, 8))
    assert read(instance, max_versions=1) == [("a", 4, 4), ("b", 0.5, 8)]
    assert read(instance, max_versions=2) == [("a", 4, 4), ("a", 3, 3), ("b", 0.5, 8), ("b", "x", 7)]
    assert read(instance, max_versions=9, columns_to_get=["a"]) == [("a", 4, 4), ("a", 3, 3), ("a", 2, 2)]
    assert read(instance, time_range=times(3, 8)) == [("a", 4, 4), ("a", 3, 3), ("b", "x", 7)]
    assert read(instance, time_range=times(0, 4), max_versions=1) == [("a", 3, 3)]
    assert read(instance, time_range=pb.TimeRange(specific_time=EPOCH + 2)) == [("a", 2, 2)]
    assert read(instance, time_range=times(20, 21)) == []
    assert read(instance, time_range=times(0, 2), columns_to_get=["a"]) is None
    page = pb.ColumnPaginationFilter(offset=1, limit=1).SerializeToString()
    paged = pb.Filter(type=pb.FT_COLUMN_PAGINATION, filter=page).SerializeToString()
    assert read(instance, max_versions=2, filter=paged) == [("b", 0.5, 8), ("b", "x", 7)]


def test_a_filter_checks_the_newest_version_or_all_versions(service: Service) -> None:
    instance = service.instance
    put(instance, cell("a", 9, 1), cell("a", 5, 2))
    assert read(instance, max_versions=2, filter=newer("a", 7, latest_only=True)) is None
    assert read(instance, max_versions=2, filter=newer("a", 7, latest_only=False)) == [("a", 5, 2), ("a", 9, 1)]
    assert read(instance, max_versions=1, filter=newer("a", 7, latest_only=False)) is None
    assert read(instance, time_range=times(0, 2), filter=newer("a", 7, latest_only=True)) == [("a", 9, 1)]
    condition = pb.Condition(row_existence=pb.IGNORE, column_condition=newer("a", 7, latest_only=True))
    with pytest.raises(ServiceError, match="Condition check failed"):
        update(instance, cell("b", 1, 1), condition=condition)
    condition.column_condition = newer("a", 7, latest_only=False)
    update(instance, cell("b", 1, 1), condition=condition)


def test_an_increment_creates_a_version(service: Service) -> None:
    instance = service.instance
    update(instance, cell("n", 5, 1))
    update(instance, Cell("n", 2, CellOp.INCREMENT))
    found = read(instance, max_versions=3)
    assert found is not None
    assert [value for _, value, _ in found] == [7, 5]


def test_each_version_expires_by_its_own_timestamp(tmp_path: Path) -> None:
    instance = Instance("shop", tmp_path / "shop")
    create(instance, time_to_live=86400, deviation_cell_version_in_sec=2 * 86400)
    day = 86_400_000
    put(instance, cell("a", 1, -day + 30_000), cell("a", 2, 1))
    assert read(instance, max_versions=3) == [("a", 2, 1)]
    instance.store.close()


def test_a_new_maximum_of_versions_applies_to_later_writes(service: Service) -> None:
    instance = service.instance

    def allow(count: int) -> None:
        options = pb.TableOptions(max_versions=count)
        table_operations.update_table(instance, pb.UpdateTableRequest(table_name="T", table_options=options))

    put(instance, cell("a", 1, 1), cell("a", 2, 2), cell("a", 3, 3))
    allow(1)
    assert read(instance, max_versions=3) == [("a", 3, 3)]
    assert read(instance, time_range=times(0, 3)) == []
    update(instance, cell("a", 4, 4))
    allow(2)
    update(instance, cell("a", 5, 5))
    assert read(instance, max_versions=3) == [("a", 5, 5), ("a", 4, 4)]
    for wrong in (0, -1):
        with pytest.raises(ServiceError, match="at least 1"):
            allow(wrong)


@pytest.mark.parametrize("columns", [{"k": "long", "a": "long"}, {"k": "long"}], ids=["own column", "key alone"])
def test_a_table_of_headrace_can_start_to_keep_versions(service: Service, columns: dict[str, str]) -> None:
    table_operations.delete_table(service.instance, pb.DeleteTableRequest(table_name="T"))
    service.table("T", columns, "k")
    options = pb.TableOptions(max_versions=2)
    table_operations.update_table(service.instance, pb.UpdateTableRequest(table_name="T", table_options=options))
    update(service.instance, cell("a", 1, 1))
    update(service.instance, cell("a", 2, 2))
    assert read(service.instance, max_versions=2) == [("a", 2, 2), ("a", 1, 1)]


def test_a_bulk_write_keeps_versions(service: Service) -> None:
    instance = service.instance
    for value in range(2):
        request = pb.BatchWriteRowRequest()
        table = request.tables.add(table_name="T")
        for key in range(1, 6):
            data = change(Cell("a", value), key=key)
            table.rows.add(type=pb.UPDATE, row_change=data, condition=IGNORED)
        assert all(row.is_ok for row in batch_write_row(instance, request).tables[0].rows)
        time.sleep(0.002)  # Versions of the same millisecond replace each other.
    found = single_rows.get_row(
        instance, pb.GetRowRequest(table_name="T", primary_key=change(key=5), max_versions=9)
    ).row
    assert [each.value for each in decode_row(found).cells] == [1, 0]


def test_a_write_through_headrace_is_the_newest_version(service: Service) -> None:
    instance, table = service.instance, service.store.table("T")
    put(instance, cell("a", 1, 1), cell("a", 2, 2), cell("b", 1, 1), cell("b", 2, 2))
    update(instance, cell("a", 3, 3))
    tunnel = service.create()
    table.update([{"k": 1, "a": 4, "b": None}])
    assert read(instance, max_versions=3) == [("a", 4, 3), ("a", 2, 2), ("a", 1, 1)]
    assert [told(row.cells) for row, _ in actions(service, tunnel)] == [[("a", 4, 3), ("b", CellOp.DELETE_ALL, 0)]]
    base = rows_of(service.read(service.create(name="later"), "BaseData_1-0"))
    assert [told(row.cells) for row in base] == [[("a", 1, 1), ("a", 2, 2), ("a", 4, 3)]]
    table.put([{"k": 1, "a": 5}])
    found = single_rows.get_row(instance, pb.GetRowRequest(table_name="T", primary_key=change(), max_versions=3)).row
    assert [each.value for each in decode_row(found).cells] == [5]


# -- against a model ----------------------------------------------------------------------------------------

NAMES = st.sampled_from(["a", "b"])
AT = st.integers(0, 5)
VALUES = st.one_of(st.integers(0, 9), st.sampled_from(["x", "y"]))
SETS = st.builds(cell, NAMES, VALUES, AT)
DELETES = st.one_of(
    st.builds(lambda name: Cell(name, op=CellOp.DELETE_ALL), NAMES),
    st.builds(lambda name, at: Cell(name, None, CellOp.DELETE_ONE, EPOCH + at), NAMES, AT),
)
STEPS: st.SearchStrategy[tuple[str, list[Cell]]] = st.one_of(
    st.tuples(st.just("put"), st.lists(SETS, max_size=4)),
    st.tuples(st.just("update"), st.lists(st.one_of(SETS, SETS, DELETES), min_size=1, max_size=4)),
    st.tuples(st.just("delete"), st.just([])),
)


def applied(row: Versions | None, kind: str, cells: Sequence[Cell], most: int = 3) -> Versions | None:
    """Return a row after a step."""
    if kind == "delete":
        return None
    versions: Versions = {} if kind == "put" or row is None else {name: dict(each) for name, each in row.items()}
    for each in cells:
        own = versions.setdefault(each.name, {})
        if each.op is CellOp.DELETE_ALL:
            own.clear()
            continue
        assert each.timestamp is not None
        if each.op is CellOp.DELETE_ONE:
            own.pop(each.timestamp, None)
            continue
        own[each.timestamp] = each.value
        for oldest in sorted(own)[:-most]:
            del own[oldest]
    versions = {name: own for name, own in versions.items() if own}
    return None if kind == "update" and row is None and not versions else versions


def shown(row: Versions | None) -> list[tuple[str, Any, int]] | None:
    if row is None:
        return None
    return [(name, row[name][at], at - EPOCH) for name in sorted(row) for at in sorted(row[name], reverse=True)]


@settings_of_hypothesis(deadline=None, max_examples=thorough(60))
@given(st.lists(STEPS, max_size=8), st.integers(0, 8))
def test_rows_and_tunnels_agree_with_a_model(steps: list[tuple[str, list[Cell]]], tunnel_from: int) -> None:
    with tempfile.TemporaryDirectory() as directory:
        service = Service(Instance("shop", Path(directory) / "shop"))
        create(service.instance)
        row: Versions | None = None
        tunnel = None
        for number, (kind, cells) in enumerate([*steps, ("update", [cell("end", 1, 1)])]):
            if number == min(tunnel_from, len(steps)):
                tunnel = service.create()
            if kind == "put":
                put(service.instance, *cells)
            elif kind == "update":
                update(service.instance, *cells)
            else:
                data = change()
                request = pb.DeleteRowRequest(table_name="T", primary_key=data, condition=IGNORED)
                single_rows.delete_row(service.instance, request)
            row = applied(row, kind, cells)
            assert read(service.instance, max_versions=3) == shown(row)
        assert tunnel is not None
        assert shown(replayed(service, tunnel)) == shown(row)
        service.store.close()


def replayed(service: Service, tunnel: str) -> Versions | None:
    """Return the row that a reader of the tunnel computes: base data, then all changes in order."""
    row: Versions | None = None
    # A table without rows has no base data.
    for channel in [each for each in service.statuses() if each.startswith("BaseData")]:
        for record in rows_of(service.read(tunnel, channel)):
            row = applied(row, "put", record.cells)
    for record, action in actions(service, tunnel):
        row = applied(row, action, record.cells)
    return row


def actions(service: Service, tunnel: str) -> list[tuple[Row, str]]:
    page = service.read(tunnel, "stream-1")
    kinds = ["put", "update", "delete"]
    return [(decode_row(record.record), kinds[record.action_type - 1]) for record in page.records]
