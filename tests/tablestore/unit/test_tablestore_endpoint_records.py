"""Changes of a channel as records of the Tablestore endpoint."""

from __future__ import annotations

import time
from pathlib import Path
from typing import Any

import pytest

from headrace_tablestore.endpoint.instances import Instance
from headrace_tablestore.endpoint.tables import table_operations
from headrace_tablestore.wire import table_pb2
from headrace_tablestore.wire import tunnel_pb2 as pb
from headrace_tablestore.wire.limits import MAX_PAGE_BYTES, MAX_PAGE_ROWS
from headrace_tablestore.wire.plainbuffer.rows import decode_row
from headrace_tablestore.wire.plainbuffer.values import Cell, CellOp
from tests.tablestore.unit.tablestore_endpoint import COLUMNS, Service, read_all, refused, rows_of, values


@pytest.fixture
def service(tmp_path: Path) -> Service:
    return Service(Instance("shop", tmp_path / "shop"))


def test_each_kind_of_change_becomes_the_record_that_clients_expect(service: Service) -> None:
    table = service.table()
    tunnel = service.create()
    table.put([{"id": 1, "text": "a", "number": 0.5}])
    table.put([{"id": 1, "text": "b"}])
    table.update([{"id": 1, "number": 1.5}])
    table.update([{"id": 1, "text": None}])
    table.update([{"id": 2, "text": "new"}])
    table.delete([{"id": 1}])
    page = service.read(tunnel, "stream-1")
    rows = rows_of(page)
    assert [record.action_type for record in page.records] == [
        pb.PUT_ROW,
        pb.PUT_ROW,
        pb.UPDATE_ROW,
        pb.UPDATE_ROW,
        pb.UPDATE_ROW,
        pb.DELETE_ROW,
    ]
    assert [values(row) for row in rows] == [
        {"text": "a", "number": 0.5},
        {"text": "b"},
        {"number": 1.5},
        {"text": CellOp.DELETE_ALL},
        {"text": "new"},
        {},
    ]
    assert [row.key for row in rows] == [(("id", number),) for number in (1, 1, 1, 1, 2, 1)]
    now = time.time_ns()
    for row in rows:
        assert row.sequence is not None
        assert abs(row.sequence.timestamp * 1000 - now) < 60_000_000_000
        assert all(cell.timestamp == row.sequence.timestamp // 1000 for cell in row.cells if cell.op is None)


def test_one_name_of_several_types_is_one_cell(service: Service) -> None:
    table = service.table(columns={"id": "long", "c": "string", "c:INTEGER": "long", "c:BOOLEAN": "boolean"})
    table.put([{"id": 1, "c": "base"}, {"id": 2, "c:BOOLEAN": True}])
    tunnel = service.create()
    assert [values(row) for row in rows_of(service.read(tunnel, "BaseData_1-0"))] == [{"c": "base"}, {"c": True}]
    gone: dict[str, Any] = {"c": None, "c:INTEGER": None, "c:BOOLEAN": None}
    table.update([{"id": 1, **gone, "c:INTEGER": 7}])
    only_integer = service.read(tunnel, "stream-1")
    table.update([{"id": 1, **gone, "c": "text"}, {"id": 2, **gone, "c:INTEGER": 8}])
    table.update([{"id": 1, **gone}])
    table.put([{"id": 3, "c": "put"}, {"id": 4, "c:INTEGER": 9}])
    table.delete([{"id": 4}])
    rows = rows_of(service.read(tunnel, "stream-1"))
    # The vectorised encoding (one type) and the encoding row by row have the same result.
    assert rows[:1] == rows_of(only_integer)
    assert [row.cells and row.cells[0].name for row in rows] == ["c", "c", "c", "c", "c", "c", ()]
    assert [values(row) for row in rows] == [
        {"c": 7},
        {"c": "text"},
        {"c": 8},
        {"c": CellOp.DELETE_ALL},
        {"c": "put"},
        {"c": 9},
        {},
    ]


def test_cells_have_their_own_timestamps_and_hidden_columns_are_never_sent(service: Service) -> None:
    table = service.table(columns={**COLUMNS, ":timestamp": "long", ":timestamps": "binary"})
    tunnel = service.create()
    table.put([{"id": 1, "text": "a", "number": 2.0, ":timestamp": 1234}])
    table.put([{"id": 2, "text": "written without"}])
    first, second = rows_of(service.read(tunnel, "stream-1"))
    assert first.cells == (Cell("number", 2.0, timestamp=1234), Cell("text", "a", timestamp=1234))
    assert second.sequence is not None
    assert second.cells == (Cell("text", "written without", timestamp=second.sequence.timestamp // 1000),)


def test_a_page_has_at_most_5000_records_and_records_of_a_commit_are_numbered(service: Service) -> None:
    table = service.table()
    tunnel = service.create("Stream")
    table.put([{"id": number} for number in range(2 * MAX_PAGE_ROWS + 7)])
    page = service.read(tunnel, "stream-1")
    assert len(page.records) == MAX_PAGE_ROWS
    assert page.may_more_record
    rows, last = read_all(service, tunnel, "stream-1")
    assert [row.key[0][1] for row in rows] == list(range(2 * MAX_PAGE_ROWS + 7))
    sequences = [row.sequence for row in rows if row.sequence is not None]
    assert sequences == sorted(set(sequences))
    assert len(sequences) == len(rows)
    idle = service.read(tunnel, "stream-1", last)
    assert (len(idle.records), idle.next_token, idle.may_more_record) == (0, last, False)


@pytest.mark.parametrize("channel", ["stream-1", "BaseData_1-0"])
def test_a_page_has_at_most_4_megabytes_or_one_row(service: Service, channel: str) -> None:
    table = service.table()
    tunnel = service.create("Stream")
    rows = [{"id": number, "text": "x" * (700 << 10)} for number in range(12)]
    rows[3]["text"] = "y" * (5 << 20)
    table.put(rows)
    if channel.startswith("BaseData"):
        tunnel = service.create("BaseData", "second")
    token, keys = service.checkpoint(tunnel, channel).checkpoint, []
    while token != "finished":
        page = service.read(tunnel, channel, token)
        assert len(page.records) <= 1 or sum(len(record.record) for record in page.records) <= MAX_PAGE_BYTES
        keys += [row.key[0][1] for row in rows_of(page)]
        if not page.may_more_record:
            break
        token = page.next_token
    assert keys == list(range(12))


def test_the_same_token_always_returns_the_same_records(service: Service) -> None:
    table = service.table()
    tunnel = service.create("Stream")
    token = service.checkpoint(tunnel, "stream-1").checkpoint
    table.put([{"id": number, "text": str(number)} for number in range(10)])
    first = service.read(tunnel, "stream-1", token)
    service.save(tunnel, "stream-1", first.next_token)
    table.update([{"id": 1, "text": "later"}])
    assert service.read(tunnel, "stream-1", token).records[:10] == first.records
    assert service.checkpoint(tunnel, "stream-1").checkpoint == first.next_token
    after = service.read(tunnel, "stream-1", first.next_token)
    assert [values(row) for row in rows_of(after)] == [{"text": "later"}]


def test_records_have_the_values_before_the_change_if_the_stream_keeps_them(service: Service) -> None:
    meta = table_pb2.TableMeta(table_name="T", primary_key=[{"name": "id", "type": table_pb2.INTEGER}])
    spec = table_pb2.StreamSpecification(enable_stream=True, expiration_time=24, columns_to_get=["text"])
    request = table_pb2.CreateTableRequest(
        table_meta=meta, reserved_throughput={"capacity_unit": {}}, table_options={"max_versions": 1}, stream_spec=spec
    )
    table_operations.create_table(service.instance, request)
    table = service.store.table("T")
    table.add_columns({"text": "string", "number": "double"})
    tunnel = service.create("Stream")
    table.put([{"id": 1, "text": "old", "number": 1.0}])
    table.put([{"id": 1, "text": "new"}])
    table.update([{"id": 1, "number": 2.0}])
    table.delete([{"id": 1}])
    page = service.read(tunnel, "stream-1")
    origins = [record.origin_record and values(decode_row(record.origin_record)) for record in page.records]
    assert origins == [b"", {"text": "old"}, {"text": "new"}, {"text": "new"}]
    assert not service.read(tunnel, "stream-1", page.next_token).records


def test_a_table_with_types_unknown_to_tablestore_cannot_be_read(service: Service) -> None:
    service.table(columns={"id": "long", "list": "array<long>"}).put([{"id": 1}])
    assert "'list'" in refused("OTSParameterInvalid", service.read, service.create(), "BaseData_1-0")
