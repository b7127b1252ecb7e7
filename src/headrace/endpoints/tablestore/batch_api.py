"""Operations on many rows, each with its own result: BatchGetRow, BatchWriteRow, BulkImport."""

from __future__ import annotations

import functools
from collections.abc import Iterable, Sequence

from headrace.endpoints.tablestore.alike import put_alike, update_alike
from headrace.endpoints.tablestore.errors import invalid, service_error
from headrace.endpoints.tablestore.instances import Instance
from headrace.endpoints.tablestore.keys import key_of
from headrace.endpoints.tablestore.reading import Selection
from headrace.endpoints.tablestore.rows_api import check_plain, consumed, consumed_by, find_rows
from headrace.endpoints.tablestore.writing import Outcome, RowWrite, write_rows, write_units
from headrace.errors import HeadraceError
from headrace.model import Key
from headrace.wire.plainbuffer.rows import decode_row
from headrace.wire.tablestore import table_pb2 as pb
from headrace.wire.tablestore.errors import ServiceError
from headrace.wire.tablestore.limits import MAX_BATCH_GET_ROWS, MAX_BATCH_WRITE_BYTES, MAX_BATCH_WRITE_ROWS

_NO_CONDITION = pb.Condition(row_existence=pb.IGNORE)
_NO_CONTENT = pb.ReturnContent()
# Fewer rows are as quick one by one.
_MANY = 3


def batch_get_row(instance: Instance, request: pb.BatchGetRowRequest) -> pb.BatchGetRowResponse:
    """Return rows of several tables, in the order of the request."""
    _check_count(sum(len(table.primary_key) for table in request.tables), MAX_BATCH_GET_ROWS)
    response = pb.BatchGetRowResponse()
    for part in request.tables:
        answer = response.tables.add(table_name=part.table_name)
        try:
            answer.rows.extend(_get_rows(instance, part))
        except HeadraceError as error:
            answer.rows.extend([_failed_read(error)] * len(part.primary_key))
    return response


def _get_rows(instance: Instance, part: pb.TableInBatchGetRowRequest) -> list[pb.RowInBatchGetRowResponse]:
    if any(part.token):
        raise invalid("this endpoint gives rows whole, and takes no token to go on inside of one")
    table = instance.table(part.table_name)
    selection = Selection.of(part, instance.settings.get(part.table_name).expired_before())
    schema = table.schema
    keys: list[Key] = []
    rows: list[pb.RowInBatchGetRowResponse | None] = []
    for data in part.primary_key:
        try:
            keys.append(key_of(data, schema))
            rows.append(None)
        except HeadraceError as error:
            rows.append(_failed_read(error))
    selected = find_rows(table, schema, keys, selection)
    found = iter(selected.each())
    given = ((next(found) if kept else b"") for kept in selected.kept.tolist())
    return [_read_row(next(given)) if row is None else row for row in rows]


def _read_row(row: bytes) -> pb.RowInBatchGetRowResponse:
    return pb.RowInBatchGetRowResponse(is_ok=True, consumed=consumed(read=write_units(len(row))), row=row)


def _failed_read(error: HeadraceError) -> pb.RowInBatchGetRowResponse:
    """Return what is said of a row that cannot be read; an error that is not the client's ends the request."""
    known = service_error(error)
    if known is None:
        raise error
    return pb.RowInBatchGetRowResponse(is_ok=False, error=_message(known))


def batch_write_row(instance: Instance, request: pb.BatchWriteRowRequest) -> pb.BatchWriteRowResponse:
    """Write rows of several tables, those of each table in one transaction.

    An atomic request is for one table; either all its writes are made, or the first error is raised.
    """
    check_plain(request)
    _check_count(sum(len(table.rows) for table in request.tables), MAX_BATCH_WRITE_ROWS)
    size = sum(len(row.row_change) for table in request.tables for row in table.rows)
    if size > MAX_BATCH_WRITE_BYTES:
        raise invalid("the rows of a batch are too large", received=size, valid=f"at most {MAX_BATCH_WRITE_BYTES}")
    if request.is_atomic and len(request.tables) != 1:
        raise invalid("an atomic batch is for one table", received=f"{len(request.tables)} tables")
    response = pb.BatchWriteRowResponse()
    for part in request.tables:
        outcomes = _write(instance, part, atomic=request.is_atomic)
        response.tables.add(table_name=part.table_name, rows=map(_written_row, outcomes))
    return response


def _written_row(outcome: Outcome) -> pb.RowInBatchWriteRowResponse:
    if outcome.error is not None:
        return pb.RowInBatchWriteRowResponse(is_ok=False, error=_message(outcome.error))
    if not outcome.row:
        return _written(outcome.read_units, outcome.write_units)
    return pb.RowInBatchWriteRowResponse(is_ok=True, consumed=consumed_by(outcome), row=outcome.row)


@functools.lru_cache(maxsize=1024)
def _written(read: int, write: int) -> pb.RowInBatchWriteRowResponse:
    """Return what is said of most rows; messages that have it as a part copy it."""
    return pb.RowInBatchWriteRowResponse(is_ok=True, consumed=consumed(read, write))


def _write(instance: Instance, part: pb.TableInBatchWriteRowRequest, *, atomic: bool) -> list[Outcome]:
    records = [row.row_change for row in part.rows]
    try:
        asks_more = any(_asks_more(row) for row in part.rows)
        if not asks_more and _write_alike(instance, part.table_name, part.rows, records):
            return [Outcome(write_units=write_units(len(record))) for record in records]
        writes = [
            RowWrite.of(row.type, decode_row(data), len(data), row.condition, row.return_content)
            for row, data in zip(part.rows, records, strict=True)
        ]
        return write_rows(instance, part.table_name, writes, atomic=atomic)
    except HeadraceError as error:
        known = service_error(error)
        if atomic or known is None:
            raise
        return [Outcome(error=known) for _ in records]


def _asks_more(row: pb.RowInBatchWriteRowRequest) -> bool:
    """Tell whether a write has a condition, or wants its row returned."""
    condition = row.condition
    if condition.row_existence != pb.IGNORE or condition.column_condition:
        return True
    return row.HasField("return_content") and row.return_content.return_type != pb.RT_NONE


def _write_alike(
    instance: Instance,
    table_name: str,
    rows: Iterable[pb.RowInBatchWriteRowRequest] | Iterable[pb.RowInBulkImportRequest],
    records: Sequence[bytes],
) -> bool:
    """Write rows that are alike, all puts or all updates; do nothing and return False if they are not."""
    kinds = {row.type for row in rows}
    if len(records) < _MANY or len(kinds) > 1:
        return False
    table = instance.table(table_name)
    if kinds == {pb.PUT}:
        return put_alike(table, records)
    return kinds == {pb.UPDATE} and instance.settings.get(table_name).allow_update and update_alike(table, records)


def bulk_import(instance: Instance, request: pb.BulkImportRequest) -> pb.BulkImportResponse:
    """Write rows of one table without conditions."""
    _check_count(len(request.rows), MAX_BATCH_WRITE_ROWS)
    records = [row.row_change for row in request.rows]
    if _write_alike(instance, request.table_name, request.rows, records):
        outcomes = [Outcome(write_units=write_units(len(record))) for record in records]
    else:
        writes = [
            RowWrite.of(row.type, decode_row(data), len(data), _NO_CONDITION, _NO_CONTENT)
            for row, data in zip(request.rows, records, strict=True)
        ]
        outcomes = write_rows(instance, request.table_name, writes)
    return pb.BulkImportResponse(table_name=request.table_name, rows=map(_imported_row, outcomes))


def _imported_row(outcome: Outcome) -> pb.RowInBulkImportResponse:
    if outcome.error is not None:
        return pb.RowInBulkImportResponse(is_ok=False, error=_message(outcome.error))
    return pb.RowInBulkImportResponse(is_ok=True, consumed=consumed_by(outcome))


def _check_count(count: int, most: int) -> None:
    if not 1 <= count <= most:
        raise invalid("wrong number of rows in one request", received=count, valid=f"1 to {most}")


def _message(error: ServiceError) -> pb.Error:
    return pb.Error(code=error.code, message=error.message)
