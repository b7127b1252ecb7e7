"""Writing to Tablestore: the distribution of rows over requests, their order, and errors of single rows."""

from __future__ import annotations

import threading
from collections.abc import Callable
from typing import Any

import numpy as np
import pyarrow as pa
import pytest
from google.protobuf.message import Message
from hypothesis import given
from hypothesis import strategies as st

from headrace.errors import NotFoundError, OptionError, RowsNotWrittenError, SchemaError, StoreError, UnsupportedError
from headrace.model.tables.changes import RowChange
from headrace.model.tables.schema import Column, TableSchema
from headrace_tablestore.store.publication.publisher import differences
from headrace_tablestore.store.tables.stored_tables import declared, stream_hours
from headrace_tablestore.store.tables.table import TablestoreTable
from headrace_tablestore.store.tables.write_options import WriteOptions
from headrace_tablestore.store.tables.writing import Writer, requests, too_large, turns
from headrace_tablestore.wire import table_pb2 as pb
from headrace_tablestore.wire.plainbuffer.rows import decode_row
from headrace_tablestore.wire.plainbuffer.values import CellOp

SCHEMA = TableSchema.of({"id": "string", "n": "long", "real": "double", "note": "string"}, "id")
Answer = Callable[[str], tuple[str, str] | None]


class Service:
    """Accepts BatchWriteRow requests. ``answer`` returns the error of a row by its key, or None."""

    def __init__(self, answer: Answer = lambda _: None) -> None:
        self.asked: list[list[tuple[int, int, Any]]] = []
        self._answer = answer
        self._lock = threading.Lock()

    def call(self, operation: str, request: Message, _: type[Message], *, repeatable: bool) -> Message:
        assert operation == "BatchWriteRow"
        assert repeatable
        assert isinstance(request, pb.BatchWriteRowRequest)
        answer = pb.BatchWriteRowResponse()
        rows = answer.tables.add(table_name="t").rows
        asked = []
        with self._lock:
            for row in request.tables[0].rows:
                found = decode_row(row.row_change)
                asked.append((int(row.type), int(row.condition.row_existence), found))
                failed = self._answer(str(found.key[0][1]))
                rows.add(is_ok=failed is None, error=failed and pb.Error(code=failed[0], message=failed[1]))
            self.asked.append(asked)
        return answer

    def writer(self, **options: Any) -> Writer:
        return Writer(self, WriteOptions(**options))  # type: ignore[arg-type]


def rows(*values: dict[str, Any], columns: tuple[str, ...] = ("id", "n")) -> pa.Table:
    return pa.Table.from_pylist(list(values), pa.schema([SCHEMA.arrow.field(name) for name in columns]))


def keys(asked: list[tuple[int, int, Any]]) -> list[str]:
    return [row.key[0][1] for _, _, row in asked]


# -- rows of each request -------------------------------------------------------------------------------


@given(sizes=st.lists(st.integers(0, 500), max_size=60), most_rows=st.integers(1, 20), most_bytes=st.integers(1, 2000))
def test_requests_hold_all_rows_in_order_within_their_limits(sizes: list[int], most_rows: int, most_bytes: int) -> None:
    parts = requests(np.array(sizes, np.int64), most_rows, most_bytes)
    assert [place for part in parts for place in range(part.start, part.stop)] == list(range(len(sizes)))
    for part in parts:
        count = part.stop - part.start
        assert 1 <= count <= most_rows
        assert count == 1 or sum(sizes[part]) <= most_bytes


@given(
    given_keys=st.lists(st.tuples(st.sampled_from("abc"), st.integers(0, 2)), max_size=30),
    change=st.sampled_from([RowChange.PUT, RowChange.UPDATE, RowChange.DELETE]),
)
def test_a_round_of_requests_has_each_key_once_and_each_keys_rows_keep_their_order(
    given_keys: list[tuple[str, int]], change: RowChange
) -> None:
    schema = TableSchema.of({"a": "string", "b": "long"}, ("a", "b"))
    batch = pa.RecordBatch.from_pylist([{"a": a, "b": b} for a, b in given_keys], schema.arrow)
    done = [list(turn) for turn in turns(batch, schema, change, np.arange(len(given_keys)))]
    for turn in done:
        assert turn == sorted(turn)
        assert len({given_keys[place] for place in turn}) == len(turn)
    places = [place for turn in done for place in turn]
    for key in set(given_keys):
        wanted = [place for place, other in enumerate(given_keys) if other == key]
        # Only the last put or delete of a key has an effect; updates set different cells.
        assert [place for place in places if given_keys[place] == key] == (
            wanted if change is RowChange.UPDATE else wanted[-1:]
        )


def test_invalid_rows_are_detected_before_they_are_sent() -> None:
    options = WriteOptions(max_key_bytes=3, max_cell_bytes=5, max_columns=1)
    batch = rows(
        {"id": "abc", "n": 1},
        {"id": "abcd"},
        {"id": "éé"},
        {"id": "a", "note": "123456"},
        {"id": "b", "n": 1, "note": "x"},
        columns=("id", "n", "note"),
    ).to_batches()[0]
    assert sorted(failure.row for failure in too_large(batch, SCHEMA, options)) == [1, 2, 3, 4]


# -- the writer -----------------------------------------------------------------------------------------


def test_rows_fill_each_request() -> None:
    service = Service()
    service.writer().write("t", SCHEMA, RowChange.PUT, rows(*({"id": f"{n:04}", "n": n} for n in range(1001))))
    assert sorted(map(len, service.asked)) == [1, 200, 200, 200, 200, 200]
    assert sorted(key for asked in service.asked for key in keys(asked)) == [f"{n:04}" for n in range(1001)]


def test_updates_of_one_row_are_written_in_sequence() -> None:
    service = Service()
    table = rows({"id": "a", "n": 1}, {"id": "b", "n": 1}, {"id": "a", "n": 2}, {"id": "a", "n": 3})
    service.writer().write("t", SCHEMA, RowChange.UPDATE, table)
    assert [keys(asked) for asked in service.asked] == [["a", "b"], ["a"], ["a"]]
    assert [asked[0][2].cells[0].value for asked in service.asked] == [1, 2, 3]


def test_an_update_without_cells_only_creates_the_row() -> None:
    service = Service(lambda _: ("OTSConditionCheckFail", "Condition check failed."))
    service.writer().write("t", SCHEMA, RowChange.UPDATE, rows({"id": "a"}))
    ((kind, condition, row),) = service.asked[0]
    assert (kind, condition, row.cells) == (pb.PUT, pb.EXPECT_NOT_EXIST, ())


def test_setting_a_cell_to_null_removes_it() -> None:
    service = Service()
    table = rows({"id": "a", "n": 1}, columns=("id", "n", "note"))
    service.writer().write("t", SCHEMA, RowChange.UPDATE, table, keep_nulls=True)
    ((_, _, row),) = service.asked[0]
    assert [(cell.name, cell.value, cell.op) for cell in row.cells] == [
        ("n", 1, None),
        ("note", None, CellOp.DELETE_ALL),
    ]


def test_only_rows_with_temporary_errors_are_retried() -> None:
    tries: dict[str, int] = {}

    def answer(key: str) -> tuple[str, str] | None:
        tries[key] = tries.get(key, 0) + 1
        return ("OTSServerBusy", "busy") if key in "bd" and tries[key] < 3 else None

    service = Service(answer)
    service.writer(retry_pause=0.001).write("t", SCHEMA, RowChange.PUT, rows(*({"id": key} for key in "abcd")))
    assert [keys(asked) for asked in service.asked] == [["a", "b", "c", "d"], ["b", "d"], ["b", "d"]]


def test_refused_rows_are_reported_with_their_keys_and_the_others_are_written() -> None:
    service = Service(lambda key: ("OTSOutOfColumnCountLimit", "too many.") if key in "bc" else None)
    table = rows(*({"id": key} for key in "abcd"), {"id": "x" * 2000})
    with pytest.raises(RowsNotWrittenError, match=r"1 of 5 rows.*x\.\.\..*at most 1024"):
        service.writer().write("t", SCHEMA, RowChange.PUT, table)
    assert service.asked == []
    with pytest.raises(RowsNotWrittenError, match=r"2 of 4 .*\('b',\): OTSOutOfColumn.*: too many; \('c',\)"):
        service.writer().write("t", SCHEMA, RowChange.PUT, table.slice(0, 4))
    assert len(service.asked) == 1


def test_a_row_too_large_for_a_request_is_reported_with_its_key_and_not_sent(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    service = Service()
    pauses: list[float] = []
    monkeypatch.setattr("headrace.support.retries.sleep", pauses.append)
    big = {"note": "x" * 1_500_000, "big": "x" * 1_500_000, "wide": "x" * 1_500_000}
    schema = TableSchema.of({"id": "string", **dict.fromkeys(big, "string")}, "id")
    table = pa.Table.from_pylist([{"id": "a"}, {"id": "b", **big}, {"id": "c"}], schema.changes)
    with pytest.raises(RowsNotWrittenError, match=r"1 of 3 rows.*\('b',\): too large: 45\d+ bytes; at most 41"):
        service.writer().write("t", schema, RowChange.PUT, table)
    assert [keys(asked) for asked in service.asked] == [["a", "c"]]
    assert pauses == []


def test_a_response_that_omits_rows_is_an_error(monkeypatch: pytest.MonkeyPatch) -> None:
    service = Service()
    cut = pb.BatchWriteRowResponse()
    cut.tables.add(table_name="t").rows.add(is_ok=True)
    monkeypatch.setattr(service, "call", lambda *_, **__: cut)
    with pytest.raises(StoreError, match="every row; received: 1 rows; valid: 2 rows"):
        service.writer().write("t", SCHEMA, RowChange.PUT, rows({"id": "a"}, {"id": "b"}))


def test_refused_rows_can_be_logged_instead_of_raising_an_error(caplog: pytest.LogCaptureFixture) -> None:
    service = Service(lambda key: ("OTSOutOfRowSizeLimit", "") if key == "b" else None)
    table = rows(*({"id": key} for key in "ab"), {"id": "x" * 2000})
    service.writer(ignore_failed_rows=True).write("t", SCHEMA, RowChange.PUT, table)
    assert [keys(asked) for asked in service.asked] == [["a", "b"]]
    assert "2 of 3 rows were not written" in caplog.text


def test_retries_end_after_their_number_and_a_missing_table_is_named() -> None:
    service = Service(lambda _: ("OTSServerBusy", "busy"))
    with pytest.raises(RowsNotWrittenError, match="OTSServerBusy"):
        service.writer(retry_count=2, retry_pause=0.001).write("t", SCHEMA, RowChange.PUT, rows({"id": "a"}))
    assert len(service.asked) == 3
    gone = Service(lambda _: ("OTSObjectNotExist", "Requested table does not exist."))
    with pytest.raises(NotFoundError):
        gone.writer().write("t", SCHEMA, RowChange.PUT, rows({"id": "a"}))


@pytest.mark.parametrize("options", [{"rows_per_request": 201}, {"requests_in_flight": 0}, {"max_key_bytes": True}])
def test_options_above_the_limits_of_the_service_are_refused(options: dict[str, Any]) -> None:
    with pytest.raises(OptionError, match=rf"{next(iter(options))}.*valid: 1 to"):
        WriteOptions(**options)


# -- differences ----------------------------------------------------------------------------------------

_value = st.fixed_dictionaries(
    {
        "n": st.none() | st.integers(0, 2),
        "real": st.none() | st.sampled_from([0.0, -0.0, float("nan"), 1.5]),
        "note": st.none() | st.sampled_from(["", "x"]),
    }
)
_content = st.lists(st.tuples(st.sampled_from("abcd"), _value), max_size=6)


@given(here=_content, wanted=_content, others=st.sets(st.sampled_from("abcd")))
def test_differences_turn_the_old_content_into_the_new_one(here: Any, wanted: Any, others: set[str]) -> None:
    columns = ("id", "n", "note", "real")
    old, new = ({key: {"id": key, **dict(sorted(row.items()))} for key, row in content} for content in (here, wanted))
    put, gone = differences(
        rows(*old.values(), columns=columns),
        pa.chunked_array([[key in others for key in old]], pa.bool_()),
        rows(*({"id": k, **r} for k, r in wanted), columns=columns),
        SCHEMA,
    )
    changed = {key: row for key, row in new.items() if key not in old or key in others or repr(old[key]) != repr(row)}
    assert sorted(map(repr, put.to_pylist())) == sorted(map(repr, changed.values()))
    assert sorted(row["id"] for row in gone.to_pylist()) == sorted(old.keys() - new.keys())


# -- tables ---------------------------------------------------------------------------------------------


def test_columns_declared_by_the_caller_follow_the_columns_of_the_service() -> None:
    kept = TableSchema.of({"id": "string", "n": "long"}, "id")
    schema = declared(kept, [Column("late", pa.float32()), Column("n", pa.int16())])
    assert [(column.name, column.type) for column in schema.columns] == [
        ("id", pa.string()),
        ("n", pa.int16()),
        ("late", pa.float32()),
    ]
    with pytest.raises(SchemaError, match=r"'n'.*received: string; valid: long"):
        declared(kept, [Column("n", pa.string())])
    with pytest.raises(UnsupportedError, match=r"'at'.*timestamp.*valid: long"):
        declared(kept, [Column("at", pa.timestamp("us", tz="UTC"))])


class _StreamOfSomeColumns:
    """A connection to a table whose changes contain one column besides the key."""

    def __init__(self) -> None:
        self.updates: list[pb.UpdateTableRequest] = []

    def call(self, operation: str, request: Message, _: type[Message], *, repeatable: bool | None = None) -> Message:
        if isinstance(request, pb.UpdateTableRequest):
            self.updates.append(request)
            return pb.UpdateTableResponse()
        stream = pb.StreamDetails(enable_stream=True, expiration_time=24, column_to_get=["n"])
        meta = pb.TableMeta(table_name="t", primary_key=[pb.PrimaryKeySchema(name="id", type=pb.STRING)])
        return pb.DescribeTableResponse(table_meta=meta, stream_details=stream)


def test_a_new_retention_keeps_the_columns_of_changes() -> None:
    connection: Any = _StreamOfSomeColumns()
    TablestoreTable(connection, Writer(connection, WriteOptions()), "t").set_options(retention_seconds=7200)
    (update,) = connection.updates
    assert (update.stream_spec.expiration_time, list(update.stream_spec.columns_to_get)) == (2, ["n"])


def test_a_table_keeps_changes_for_whole_hours_up_to_a_week() -> None:
    assert stream_hours({}) is None
    assert stream_hours({"retention_seconds": 7200.0, "pre_images": False}) == 2
    for seconds in (None, 0, 60, 5400, 8 * 86400, True, "1h"):
        with pytest.raises(OptionError, match="3600 to 604800"):
            stream_hours({"retention_seconds": seconds})
    with pytest.raises(UnsupportedError, match="pre_images"):
        stream_hours({"pre_images": True})
    with pytest.raises(OptionError, match="colour"):
        stream_hours({"colour": "red"})
