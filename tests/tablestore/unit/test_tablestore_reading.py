"""Reading from Tablestore: the requests, page by page, and the results."""

from __future__ import annotations

import logging
from collections.abc import Callable, Sequence
from typing import Any

import pytest
from google.protobuf.message import Message

from headrace.errors import OptionError
from headrace.model.tables.conditions import KeyRange, parse_where
from headrace.model.tables.schema import TableSchema
from headrace_tablestore.store.connection import Patience
from headrace_tablestore.store.failures import ServiceBusyError
from headrace_tablestore.store.tables.reading import Reader, splits
from headrace_tablestore.wire import table_pb2 as pb
from headrace_tablestore.wire.plainbuffer.rows import decode_row, encode_row, encode_rows
from headrace_tablestore.wire.plainbuffer.values import Cell, Marker, Row, Value

SCHEMA = TableSchema.of({"id": "string", "n": "long", "note": "string"}, "id")
NO_COST = pb.ConsumedCapacity(capacity_unit=pb.CapacityUnit(read=1))


class Service:
    """Responds to each request with the next response of a list, and repeats the last one."""

    def __init__(self, *answers: Callable[[Any], Message]) -> None:
        self.asked: list[Any] = []
        self._answers = answers

    def call(self, _: str, request: Message, __: type[Message]) -> Message:
        kept = type(request)()
        kept.CopyFrom(request)
        self.asked.append(kept)
        return self._answers[min(len(self.asked), len(self._answers)) - 1](kept)

    def reader(self, columns: Sequence[str], where: Any = None, schema: TableSchema = SCHEMA) -> Reader:
        return Reader(self, "t", schema, columns, parse_where(where))  # type: ignore[arg-type]


def row(key: str, **cells: Value) -> Row:
    return Row((("id", key),), tuple(Cell(name, value, timestamp=1) for name, value in cells.items()))


def page(*rows: Row, next: str | None = None) -> Callable[[Any], Message]:
    start = None if next is None else encode_row(row(next))
    return lambda _: pb.GetRangeResponse(consumed=NO_COST, rows=encode_rows(rows), next_start_primary_key=start)


def test_pages_are_read_to_the_end_and_empty_pages_are_skipped() -> None:
    service = Service(page(row("a", n=1), next="b"), page(next="c"), page(row("c", n=2, other=True), row("d")))
    found = service.reader(["n", "id"]).scan(KeyRange(), None, 1)
    assert [batch.to_pylist() for batch in found] == [
        [{"n": n, "id": key}] for n, key in ((1, "a"), (2, "c"), (None, "d"))
    ]
    starts = [decode_row(request.inclusive_start_primary_key).key[0][1] for request in service.asked]
    assert starts == [Marker.INF_MIN, "b", "c"]


def test_with_a_limit_no_page_is_requested_that_is_not_needed() -> None:
    service = Service(page(next="a"), page(row("a"), next="b"), page(row("b"), next="c"))
    found = service.reader(["id"]).scan(KeyRange(), 2, 10)
    assert found.read_all().to_pylist() == [{"id": "a"}, {"id": "b"}]
    assert [request.limit for request in service.asked] == [2, 2, 2]
    assert service.reader(["id"]).scan(KeyRange(), 0, 10).read_all().num_rows == 0
    assert len(service.asked) == 3


def test_a_key_column_is_always_requested_so_that_no_row_is_omitted() -> None:
    service = Service(page(row("a"), row("b", n=1)))
    assert service.reader(["note"]).scan(KeyRange(), None, 10).read_all().to_pylist() == [{"note": None}] * 2
    assert service.asked[0].columns_to_get == ["id", "note"]
    assert service.reader([]).scan(KeyRange(), None, 10).read_all().num_rows == 2
    assert service.asked[1].columns_to_get == ["id"]


def test_columns_of_conditions_are_requested_and_omitted_from_the_result() -> None:
    service = Service(page(row("a", n=1, note="x"), row("b", n=2, note="y"), row("c", note="z")))
    found = service.reader(["note"], [("n", ">", 1)]).scan(KeyRange(), None, 10).read_all().to_pylist()
    assert found == [{"note": "y"}]
    assert service.asked[0].columns_to_get == ["id", "n", "note"]
    assert service.asked[0].filter


def test_whole_rows_are_requested_if_a_request_cannot_name_all_columns() -> None:
    wide = TableSchema.of({"id": "string", **{f"c{number}": "long" for number in range(128)}}, "id")
    service = Service(page(row("a", c127=1)))
    found = service.reader(wide.names, schema=wide).scan(KeyRange(), None, 10).read_all()
    assert list(service.asked[0].columns_to_get) == []
    assert found.column("c127").to_pylist() == [1]


def test_a_value_of_another_type_is_null_and_logged_once(caplog: pytest.LogCaptureFixture) -> None:
    service = Service(page(row("a", n="text"), next="b"), page(row("b", n="text")))
    with caplog.at_level(logging.WARNING, "headrace"):
        found = service.reader(["n"]).scan(KeyRange(), None, 10).read_all().to_pylist()
    assert found == [{"n": None}] * 2
    assert caplog.text.count("column n has values of another type") == 1


# -- single keys ----------------------------------------------------------------------------------------


def points(failing: dict[str, str]) -> Callable[[Any], Message]:
    """Respond with a row for each key except ``x``, and once with an error for each failing key."""

    def answer(request: pb.BatchGetRowRequest) -> Message:
        found = pb.BatchGetRowResponse()
        rows = found.tables.add(table_name="t").rows
        for encoded in request.tables[0].primary_key:
            key = str(decode_row(encoded).key[0][1])
            code = failing.pop(key, None)
            if code is not None:
                rows.add(is_ok=False, error=pb.Error(code=code))
            else:
                rows.add(is_ok=True, row=b"" if key == "x" else encode_row(row(key, n=1)))
        return found

    return answer


def test_single_keys_are_read_without_a_range_and_busy_rows_are_retried() -> None:
    service = Service(points({"b": "OTSServerBusy"}))
    found = service.reader(["id"], {"id": ["c", "x", "b", "a"]}).scan(KeyRange(), None, 10).read_all()
    assert found.column("id").to_pylist() == ["a", "b", "c"]
    assert [len(request.tables[0].primary_key) for request in service.asked] == [4, 1]


def test_a_row_that_stays_busy_is_an_error(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr("headrace_tablestore.store.tables.reading.PATIENCE", Patience(total=0.0))
    with pytest.raises(ServiceBusyError):
        Service(points({"a": "OTSServerBusy"})).reader(["id"], {"id": "a"}).scan(KeyRange(), None, 10).read_all()


# -- splits ---------------------------------------------------------------------------------------------


def cut_at(*keys: str) -> Callable[[Any], Message]:
    def answer(_: Any) -> Message:
        return pb.ComputeSplitPointsBySizeResponse(
            consumed=NO_COST, split_points=[encode_row(row(key)) for key in keys]
        )

    return answer


def test_a_table_is_split_into_enough_ranges_which_are_then_grouped_evenly() -> None:
    service = Service(cut_at("m"), cut_at("b", "d", "f", "h", "j", "l"))
    found = splits(service, "t", 4)  # type: ignore[arg-type]
    assert [request.split_size for request in service.asked] == [256, 16]
    assert found == [KeyRange(None, ("d",)), KeyRange(("d",), ("h",)), KeyRange(("h",), ("j",)), KeyRange(("j",), None)]


def test_a_given_split_size_is_requested_once() -> None:
    service = Service(cut_at())
    assert splits(service, "t", 1000, 100 << 20) == [KeyRange()]  # type: ignore[arg-type]
    assert [(request.split_size, request.split_size_unit_in_byte) for request in service.asked] == [(100, 1 << 20)]
    with pytest.raises(OptionError):
        splits(service, "t", 0)  # type: ignore[arg-type]
