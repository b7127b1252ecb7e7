"""Operations of the endpoint that the official Python SDK does not have, called as the application calls them."""

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

from headrace.model.tables.changes import ChangeOp
from headrace.model.tables.conditions import KeyRange
from headrace.testing.effort import thorough
from headrace_tablestore.endpoint.instances import Instance
from headrace_tablestore.endpoint.rows.batches import batch_write_row, bulk_import
from headrace_tablestore.endpoint.rows.ranges import get_range
from headrace_tablestore.endpoint.rows.single_rows import delete_row, get_row, put_row, update_row
from headrace_tablestore.endpoint.tables import settings
from headrace_tablestore.endpoint.tables.table_operations import (
    compute_split_points_by_size,
    create_table,
    delete_table,
    describe_table,
    list_table,
    update_table,
)
from headrace_tablestore.wire import table_pb2 as pb
from headrace_tablestore.wire.errors import ServiceError
from headrace_tablestore.wire.plainbuffer.rows import decode_row, decode_rows, encode_row
from headrace_tablestore.wire.plainbuffer.values import Cell, CellOp, Marker, Row

IGNORED = pb.Condition(row_existence=pb.IGNORE)
NOT_THERE = pb.Condition(row_existence=pb.EXPECT_NOT_EXIST)


@pytest.fixture
def instance(tmp_path: Path) -> Iterator[Instance]:
    instance = Instance("shop", tmp_path / "shop")
    create(instance)
    yield instance
    instance.store.close()


def create(instance: Instance, name: str = "t", **options: Any) -> None:
    request = pb.CreateTableRequest(table_options=pb.TableOptions(**options))
    request.table_meta.table_name = name
    request.table_meta.primary_key.add(name="k", type=pb.INTEGER)
    request.reserved_throughput.capacity_unit.read = 0
    create_table(instance, request)


def create_numbered(instance: Instance) -> None:
    """Create a table with the key (p, n), whose second column the server numbers."""
    request = pb.CreateTableRequest(table_meta=pb.TableMeta(table_name="numbered"))
    request.table_meta.primary_key.add(name="p", type=pb.INTEGER)
    request.table_meta.primary_key.add(name="n", type=pb.INTEGER, option=pb.AUTO_INCREMENT)
    request.reserved_throughput.capacity_unit.read = 0
    create_table(instance, request)


def pair(p: int, n: int | Marker, *cells: Cell) -> bytes:
    return encode_row(Row((("p", p), ("n", n)), cells))


def pairs(instance: Instance) -> list[tuple[int, int]]:
    """Return the keys of all rows of the table of `create_numbered`."""
    rows = instance.table("numbered").scan(["p", "n"]).read_all()
    return list(zip(rows["p"].to_pylist(), rows["n"].to_pylist(), strict=True))


def change(number: int, *cells: Cell) -> bytes:
    return encode_row(Row((("k", number),), cells))


def put(instance: Instance, number: int, *cells: Cell, table: str = "t") -> None:
    put_row(instance, pb.PutRowRequest(table_name=table, row=change(number, *cells), condition=IGNORED))


def update(instance: Instance, number: int, *cells: Cell, table: str = "t", **more: Any) -> pb.UpdateRowResponse:
    row = change(number, *cells)
    return update_row(instance, pb.UpdateRowRequest(table_name=table, row_change=row, condition=IGNORED, **more))


def names(instance: Instance, number: int, table: str = "t", **wanted: Any) -> list[str] | None:
    """Return the names of a row's cells; None without a row."""
    request = pb.GetRowRequest(table_name=table, primary_key=change(number), max_versions=1, **wanted)
    row = get_row(instance, request).row
    return [cell.name for cell in decode_row(row).cells] if row else None


def scan_request(low: Any = Marker.INF_MIN, high: Any = Marker.INF_MAX, **wanted: Any) -> pb.GetRangeRequest:
    return pb.GetRangeRequest(
        table_name="t",
        direction=pb.FORWARD,
        max_versions=1,
        inclusive_start_primary_key=encode_row(Row((("k", low),))),
        exclusive_end_primary_key=encode_row(Row((("k", high),))),
        **wanted,
    )


def code_of(call: Any, *arguments: Any) -> str:
    with pytest.raises(ServiceError) as caught:
        call(*arguments)
    return caught.value.code


# -- writes ---------------------------------------------------------------------------------------------------


def test_an_update_returns_the_new_values_of_the_requested_columns(instance: Instance) -> None:
    put(instance, 1, Cell("a", 1), Cell("b", "x"))
    wanted = pb.ReturnContent(return_type=pb.RT_AFTER_MODIFY, return_column_names=["n", "b", "nothing"])
    answer = update(instance, 1, Cell("n", 5, CellOp.INCREMENT), return_content=wanted)
    assert [(cell.name, cell.value) for cell in decode_row(answer.row).cells] == [("n", 5), ("b", "x")]
    wanted = pb.ReturnContent(return_type=pb.RT_PK)
    assert decode_row(update(instance, 1, Cell("a", 2), return_content=wanted).row) == Row((("k", 1),))
    assert not update(instance, 1, Cell("a", 2)).row


def test_writes_cost_units_of_4_kb(instance: Instance) -> None:
    request = pb.PutRowRequest(table_name="t", row=change(1, Cell("a", "x" * 5000)), condition=NOT_THERE)
    unit = put_row(instance, request).consumed.capacity_unit
    assert (unit.read, unit.write) == (1, 2)


@pytest.mark.parametrize(
    "cells",
    [
        (),
        (Cell("a", None),),
        (Cell("a", 1.5, CellOp.INCREMENT),),
        (Cell("a", None, CellOp.DELETE_ONE),),
        (Cell("k", 1),),
        (Cell("#a", 1),),
        (Cell(":timestamp", 1),),
        (Cell("a", 1, None, 5),),
    ],
)
def test_an_invalid_update_is_refused(instance: Instance, cells: Sequence[Cell]) -> None:
    assert code_of(lambda: update(instance, 1, *cells)) == "OTSParameterInvalid"
    assert names(instance, 1) is None


def batch(
    instance: Instance,
    *rows: tuple[pb.OperationType, bytes, pb.Condition],
    atomic: bool = False,
    table: str = "t",
) -> list[str]:
    """Write rows in one batch; return the error code of each row, or an empty string."""
    request = pb.BatchWriteRowRequest(is_atomic=atomic)
    part = request.tables.add(table_name=table)
    for kind, row, condition in rows:
        part.rows.add(type=kind, row_change=row, condition=condition)
    return [row.error.code for row in batch_write_row(instance, request).tables[0].rows]


def test_an_atomic_batch_is_applied_completely_or_not_at_all(instance: Instance) -> None:
    create_numbered(instance)

    def rows(*numbers: int, first: int = 1) -> list[tuple[pb.OperationType, bytes, pb.Condition]]:
        return [(pb.PUT, pair(first, number), NOT_THERE) for number in numbers]

    assert batch(instance, *rows(2), atomic=True, table="numbered") == [""]
    assert batch(instance, *rows(1, 2, 3), atomic=True, table="numbered") == ["OTSConditionCheckFail"] * 3
    assert pairs(instance) == [(1, 2)]
    assert batch(instance, *rows(1, 2, 3), table="numbered") == ["", "OTSConditionCheckFail", ""]
    assert pairs(instance) == [(1, 1), (1, 2), (1, 3)]


def test_an_atomic_batch_over_several_partition_keys_is_refused_row_by_row(instance: Instance) -> None:
    request = pb.BatchWriteRowRequest(is_atomic=True)
    part = request.tables.add(table_name="t")
    for number in (0, 0, 1, 2):
        part.rows.add(type=pb.PUT, row_change=change(number, Cell("a", 1)), condition=IGNORED)
    (answer,) = batch_write_row(instance, request).tables
    problem = "Data out of scope of atomic. Atomic PartKey:0. Data PartKey:1"
    assert [(row.is_ok, row.error.code, row.error.message) for row in answer.rows] == [
        (False, "OTSDataOutOfRange", problem)
    ] * 4
    assert names(instance, 0) is None


@pytest.mark.parametrize("is_atomic", [False, True])
def test_the_server_numbers_the_keys_of_puts_and_updates(instance: Instance, is_atomic: bool) -> None:
    create_numbered(instance)
    key = pair(1, Marker.AUTO_INCREMENT, Cell("a", 1))
    wanted = pb.ReturnContent(return_type=pb.RT_PK)
    put_request = pb.PutRowRequest(table_name="numbered", row=key, condition=IGNORED, return_content=wanted)
    update_request = pb.UpdateRowRequest(
        table_name="numbered", row_change=key, condition=IGNORED, return_content=wanted
    )
    given = [
        decode_row(put_row(instance, put_request).row).key,
        decode_row(update_row(instance, update_request).row).key,
    ]
    assert batch(instance, *[(pb.UPDATE, key, IGNORED)] * 4, atomic=is_atomic, table="numbered") == [""] * 4
    imported = pb.BulkImportRequest(table_name="numbered")
    for kind in (pb.PUT, pb.UPDATE):
        imported.rows.add(type=kind, row_change=key)
    assert all(row.is_ok for row in bulk_import(instance, imported).rows)
    there = pairs(instance)
    assert len(set(there)) == 8
    assert [tuple(value for _, value in key) for key in given] == there[:2]
    update_request.condition.row_existence = pb.EXPECT_EXIST
    assert code_of(update_row, instance, update_request) == "OTSConditionCheckFail"
    request = pb.DeleteRowRequest(table_name="numbered", primary_key=pair(1, Marker.AUTO_INCREMENT), condition=IGNORED)
    assert code_of(delete_row, instance, request) == "OTSParameterInvalid"
    assert len(pairs(instance)) == 8


def test_writes_of_a_batch_see_each_other_and_have_one_version(instance: Instance) -> None:
    rows = [
        (pb.PUT, change(1, Cell("a", 1)), NOT_THERE),
        (pb.UPDATE, change(1, Cell("a", 5, CellOp.INCREMENT)), IGNORED),
        (pb.PUT, change(1, Cell("a", 1)), NOT_THERE),
        (pb.DELETE, encode_row(Row((("k", 1),), (), delete=True)), IGNORED),
        (pb.PUT, change(1, Cell("b", 1)), NOT_THERE),
        (pb.UPDATE, change(2, Cell("b", 1), Cell("c", None, CellOp.DELETE_ALL)), IGNORED),
    ]
    tunnel = instance.store.create_tunnel("t", "all", "Stream")
    assert batch(instance, *rows) == ["", "", "OTSConditionCheckFail", "", "", ""]
    (channel,) = tunnel.channels()
    changes = tunnel.read(channel.id, channel.committed, 100).changes
    assert len(set(changes.versions.to_pylist())) == 1
    ops = [(key, ChangeOp(op)) for key, op in zip(changes.rows["k"].to_pylist(), changes.ops.to_pylist(), strict=True)]
    assert [op for key, op in ops if key == 1] == [
        ChangeOp.INSERT,
        ChangeOp.UPDATE,
        ChangeOp.DELETE,
        ChangeOp.INSERT,
    ]
    assert [op for key, op in ops if key == 2] == [ChangeOp.UPSERT]
    assert (names(instance, 1), names(instance, 2)) == (["b"], ["b"])


def test_a_write_without_effect_is_no_change(instance: Instance) -> None:
    put(instance, 1, Cell("a", 1))
    tunnel = instance.store.create_tunnel("t", "all", "Stream")
    update(instance, 1, Cell("b", None, CellOp.DELETE_ALL))
    update(instance, 2, Cell("b", None, CellOp.DELETE_ALL))
    request = pb.PutRowRequest(table_name="t", row=change(1), condition=NOT_THERE)
    assert code_of(put_row, instance, request) == "OTSConditionCheckFail"
    (channel,) = tunnel.channels()
    assert tunnel.backlog(channel.id, channel.committed).empty


def test_bulk_import_takes_rows_of_all_kinds(instance: Instance) -> None:
    put(instance, 3, Cell("a", 1))
    request = pb.BulkImportRequest(table_name="t")
    request.rows.add(type=pb.PUT, row_change=change(1, Cell("a", 1)))
    request.rows.add(type=pb.UPDATE, row_change=change(2, Cell("b", 1)))
    request.rows.add(type=pb.DELETE, row_change=change(3))
    request.rows.add(type=pb.PUT, row_change=encode_row(Row((("k", "no number"),))))
    assert [row.error.code for row in bulk_import(instance, request).rows] == ["", "", "", "OTSInvalidPK"]
    assert [names(instance, number) for number in (1, 2, 3)] == [["a"], ["b"], None]
    alike = pb.BulkImportRequest(table_name="t")
    for number in range(10):
        alike.rows.add(type=pb.PUT, row_change=change(number, Cell("c", number)))
    assert [row.is_ok for row in bulk_import(instance, alike).rows] == [True] * 10
    assert len(decode_rows(get_range(instance, scan_request()).rows)) == 10


@pytest.mark.parametrize(
    ("odd", "code"),
    [
        (change(9, Cell("n", 5, CellOp.INCREMENT)), ""),
        (encode_row(Row((("other", 1),), (Cell("n", 1),))), "OTSInvalidPK"),
    ],
    ids=["increment", "another key"],
)
def test_one_invalid_row_of_a_batch_has_its_own_error(instance: Instance, odd: bytes, code: str) -> None:
    rows = [(pb.UPDATE, change(number, Cell("n", 1)), IGNORED) for number in range(4)]
    assert batch(instance, *rows[:2], (pb.UPDATE, odd, IGNORED), *rows[2:]) == ["", "", code, "", ""]
    assert [names(instance, number) for number in range(4)] == [["n"]] * 4


VALUES: st.SearchStrategy[Any] = st.one_of(
    st.integers(-5, 5), st.text(max_size=3), st.booleans(), st.floats(), st.binary(max_size=3)
)


@st.composite
def alike_batches(draw: st.DrawFn) -> tuple[pb.OperationType, list[bytes]]:
    """Return rows with about the same columns in the same order, to put or to update."""
    columns = draw(st.lists(st.sampled_from("abc"), unique=True, min_size=1))
    kinds: dict[str, st.SearchStrategy[Any]] = {
        name: draw(st.sampled_from([st.integers(-5, 5), st.text(max_size=3), VALUES])) for name in columns
    }
    rows = []
    is_unique = draw(st.sampled_from([True, True, True, False]))
    for number in draw(st.lists(st.integers(0, 5), min_size=1, max_size=6, unique=is_unique)):
        present = [name for name in columns if draw(st.integers(0, 9))] or columns[:1]
        rows.append(change(number, *(Cell(name, draw(kinds[name])) for name in present)))
    return draw(st.sampled_from([pb.PUT, pb.UPDATE])), rows


@settings_of_hypothesis(deadline=None, max_examples=thorough(25))
@given(batches=st.lists(alike_batches(), min_size=2, max_size=4))
def test_bulk_writes_have_the_result_of_single_writes(
    batches: list[tuple[pb.OperationType, list[bytes]]],
) -> None:
    with tempfile.TemporaryDirectory() as directory, pytest.MonkeyPatch.context() as patch:
        written = []
        began = int(time.time()) - 100
        for many in (1, 1000):
            patch.setattr("headrace_tablestore.endpoint.rows.batches._MANY", many)
            instance = Instance("shop", Path(directory) / f"{many}")
            create(instance)
            errors = []
            for second, (kind, rows) in enumerate(batches, start=began):
                with pytest.MonkeyPatch.context() as clock:
                    clock.setattr(time, "time_ns", lambda now=second: now * 1_000_000_000)
                    errors.append(batch(instance, *((kind, row, IGNORED) for row in rows)))
            written.append((errors, get_range(instance, scan_request()).rows))
            instance.store.close()
        assert written[0] == written[1]


def test_a_table_may_forbid_updates(instance: Instance) -> None:
    create(instance, "fixed", allow_update=False)
    put(instance, 1, Cell("a", 1), table="fixed")
    assert code_of(lambda: update(instance, 1, Cell("a", 2), table="fixed")) == "OTSParameterInvalid"


# -- time to live ---------------------------------------------------------------------------------------------


def test_expired_cells_are_not_returned(instance: Instance, monkeypatch: pytest.MonkeyPatch) -> None:
    create(instance, "short", time_to_live=86400, deviation_cell_version_in_sec=10**9)
    old = time.time_ns() // 1_000_000 - 86_400_000 - 1000
    put(instance, 1, Cell("a", 1, None, old), Cell("b", 2), table="short")
    put(instance, 2, Cell("a", 1), table="short")
    assert names(instance, 1, "short") == ["b"]
    # An update of another cell does not restore it.
    update(instance, 1, Cell("c", 3), Cell("d", 1), table="short")
    assert names(instance, 1, "short") == ["b", "c", "d"]
    later = time.time_ns() + 90_000 * 1_000_000_000
    monkeypatch.setattr(time, "time_ns", lambda: later)
    assert names(instance, 2, "short") is None
    assert names(instance, 2, "short", columns_to_get=["k"]) is None
    request = pb.PutRowRequest(table_name="short", row=change(2, Cell("b", 1)), condition=NOT_THERE)
    put_row(instance, request)
    assert names(instance, 2, "short") == ["b"]


# -- ranges, splits, tables ---------------------------------------------------------------------------------------


def test_split_points_cut_a_table_into_equal_parts(instance: Instance) -> None:
    instance.table("t").put([{"k": number} for number in range(1000)])
    request = pb.ComputeSplitPointsBySizeRequest(table_name="t", split_size=1, split_size_unit_in_byte=1)
    request.split_point_limit = 4
    answer = compute_split_points_by_size(instance, request)
    assert [column.name for column in answer.schema] == ["k"]
    assert [decode_row(point).key for point in answer.split_points] == [(("k", 250),), (("k", 500),), (("k", 750),)]
    assert sum(location.repeat for location in answer.locations) == 4
    whole = pb.ComputeSplitPointsBySizeRequest(table_name="t", split_size=1)
    assert list(compute_split_points_by_size(instance, whole).split_points) == []
    whole.split_size = 0
    assert code_of(compute_split_points_by_size, instance, whole) == "OTSParameterInvalid"


def test_a_page_of_a_range_reads_at_most_5000_rows(instance: Instance) -> None:
    instance.table("t").put([{"k": number} for number in range(5003)])
    answer = get_range(instance, scan_request())
    assert len(decode_rows(answer.rows)) == 5000
    assert decode_row(answer.next_start_primary_key).key == (("k", 5000),)
    last = get_range(instance, scan_request(low=5000))
    assert len(decode_rows(last.rows)) == 3
    assert not last.HasField("next_start_primary_key")


def test_a_range_continues_after_a_row_that_fills_a_page(instance: Instance, monkeypatch: pytest.MonkeyPatch) -> None:
    for number in range(4):
        put(instance, number, Cell("a", "x" * 1000))
    monkeypatch.setattr("headrace.stores.embedded.tables.physical.PAGE_BYTES", 100)
    monkeypatch.setattr("headrace.stores.embedded.tables.physical._CUT_BYTES", 1500)
    found, low = [], 0
    while True:
        answer = get_range(instance, scan_request(low=low))
        found += [row.key[0][1] for row in decode_rows(answer.rows)]
        if not answer.HasField("next_start_primary_key"):
            break
        low = int(str(decode_row(answer.next_start_primary_key).key[0][1]))
    assert found == [0, 1, 2, 3]


def test_tokens_and_transactions_are_refused(instance: Instance) -> None:
    assert code_of(get_range, instance, scan_request(transaction_id="x")) == "OTSParameterInvalid"
    assert code_of(get_range, instance, scan_request(token=b"x")) == "OTSParameterInvalid"
    request = pb.DeleteRowRequest(table_name="t", primary_key=change(1), condition=IGNORED, transaction_id="x")
    assert code_of(delete_row, instance, request) == "OTSParameterInvalid"


def test_a_stream_is_the_log_that_every_table_has(instance: Instance) -> None:
    table = instance.table("t")
    spec = pb.StreamSpecification(enable_stream=True, expiration_time=24, columns_to_get=["a"])
    updated = update_table(instance, pb.UpdateTableRequest(table_name="t", stream_spec=spec))
    assert updated.stream_details.expiration_time == 24
    assert table.describe().options.retention_seconds == 86400
    described = describe_table(instance, pb.DescribeTableRequest(table_name="t"))
    assert described.stream_details == updated.stream_details
    assert list(described.stream_details.column_to_get) == ["a"]
    off = pb.StreamSpecification(enable_stream=False)
    update_table(instance, pb.UpdateTableRequest(table_name="t", stream_spec=off))
    again = update_table(instance, pb.UpdateTableRequest(table_name="t", stream_spec=spec))
    assert again.stream_details.stream_id != updated.stream_details.stream_id
    for hours in (0, 169):
        spec.expiration_time = hours
        request = pb.UpdateTableRequest(table_name="t", stream_spec=spec)
        assert code_of(update_table, instance, request) == "OTSParameterInvalid"


def test_partitions_are_described(instance: Instance) -> None:
    instance.table("t").split(at={"k": 5})
    described = describe_table(instance, pb.DescribeTableRequest(table_name="t"))
    assert [decode_row(split).key for split in described.shard_splits] == [(("k", 5),)]


def test_clients_cannot_use_the_endpoints_own_tables(instance: Instance) -> None:
    assert list(list_table(instance, pb.ListTableRequest()).table_names) == ["t"]
    assert settings.SETTINGS_TABLE in instance.store.tables()
    for call, request in ((describe_table, pb.DescribeTableRequest), (delete_table, pb.DeleteTableRequest)):
        assert code_of(call, instance, request(table_name=settings.SETTINGS_TABLE)) == "OTSParameterInvalid"
    assert settings.SETTINGS_TABLE in instance.store.tables()


def test_a_recreated_table_has_nothing_of_the_old_one(instance: Instance) -> None:
    create(instance, "again", time_to_live=86400)
    put(instance, 1, Cell("a", 1), table="again")
    delete_table(instance, pb.DeleteTableRequest(table_name="again"))
    create(instance, "again")
    put(instance, 2, Cell("a", "text"), table="again")
    assert names(instance, 1, "again") is None
    assert instance.settings.get("again").time_to_live == settings.FOR_EVER
    assert list(instance.table("again").scan(["a"], keys=KeyRange()).read_all().column("a").to_pylist()) == ["text"]
