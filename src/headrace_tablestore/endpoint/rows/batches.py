"""Operations on many rows, each with its own result: BatchGetRow, BatchWriteRow, BulkImport."""

from __future__ import annotations

import contextlib
import functools
from collections.abc import Sequence, Sized
from typing import TypeAlias

from headrace.errors import HeadraceError, NotFoundError
from headrace.model.tables.schema import Key
from headrace_tablestore.endpoint.errors import refused, service_error
from headrace_tablestore.endpoint.instances import Instance
from headrace_tablestore.endpoint.rows.bulk_writes import BulkRows, write_bulk
from headrace_tablestore.endpoint.rows.keys import check_key, key_in
from headrace_tablestore.endpoint.rows.reading import Selection
from headrace_tablestore.endpoint.rows.single_rows import check_no_token, check_plain, consumed, consumed_by, find_rows
from headrace_tablestore.endpoint.rows.writing import Outcome, RowWrite, write_rows, write_units
from headrace_tablestore.wire import table_pb2 as pb
from headrace_tablestore.wire.errors import ServiceError
from headrace_tablestore.wire.limits import MAX_BATCH_GET_ROWS, MAX_BATCH_WRITE_BYTES, MAX_BATCH_WRITE_ROWS
from headrace_tablestore.wire.plainbuffer.rows import decode_row
from headrace_tablestore.wire.plainbuffer.values import Row, Value

_RowRequest: TypeAlias = pb.RowInBatchWriteRowRequest | pb.RowInBulkImportRequest
_NO_CONDITION = pb.Condition(row_existence=pb.IGNORE)
_NO_CONTENT = pb.ReturnContent()
# Fewer rows than this are as fast one by one.
_MANY = 3


def batch_get_row(instance: Instance, request: pb.BatchGetRowRequest) -> pb.BatchGetRowResponse:
    """Return rows of several tables, in the order of the request."""
    if not request.tables:
        raise refused("No row specified in the request of BatchGetRow.")
    _check_count(sum(len(table.primary_key) for table in request.tables), MAX_BATCH_GET_ROWS)
    reads = [_read_of(instance, part) for part in request.tables]
    response = pb.BatchGetRowResponse()
    for part, (selection, keys) in zip(request.tables, reads, strict=True):
        table = response.tables.add(table_name=part.table_name)
        try:
            table.rows.extend(_get_rows(instance, part.table_name, selection, keys))
        except HeadraceError as error:
            table.rows.extend([_failed_read(error)] * len(keys))
    return response


def _read_of(instance: Instance, part: pb.TableInBatchGetRowRequest) -> tuple[Selection, list[Row]]:
    """Return the selection and the keys of one table.

    Raises:
        ServiceError: OTSParameterInvalid: the keys are invalid for any table. This fails the whole request.
    """
    for token in part.token:
        check_no_token(token)
    settings = instance.settings.get(part.table_name)
    selection = Selection.of(part, settings, instance.column_names(part.table_name))
    keys = [decode_row(data) for data in part.primary_key]
    for row in keys:
        check_key(row.key)
    return selection, keys


def _get_rows(
    instance: Instance, table_name: str, selection: Selection, rows: Sequence[Row]
) -> list[pb.RowInBatchGetRowResponse]:
    table = instance.table(table_name)
    schema = table.schema
    keys: list[Key] = []
    failed: list[pb.RowInBatchGetRowResponse | None] = []
    for row in rows:
        try:
            keys.append(key_in(row, schema))
            failed.append(None)
        except HeadraceError as error:
            failed.append(_failed_read(error))
    selected = find_rows(table, schema, keys, selection)
    found = iter(selected.each())
    read = ((next(found) if kept else b"") for kept in selected.kept.tolist())
    return [_read_row(next(read)) if row is None else row for row in failed]


def _read_row(row: bytes) -> pb.RowInBatchGetRowResponse:
    return pb.RowInBatchGetRowResponse(is_ok=True, consumed=consumed(read=write_units(len(row))), row=row)


def _failed_read(error: HeadraceError) -> pb.RowInBatchGetRowResponse:
    """Return the response for a row that cannot be read. An internal error is raised again."""
    known = service_error(error)
    if known is None:
        raise error
    return pb.RowInBatchGetRowResponse(is_ok=False, error=_message(known))


def batch_write_row(instance: Instance, request: pb.BatchWriteRowRequest) -> pb.BatchWriteRowResponse:
    """Write rows of several tables, with one transaction for each table.

    In an atomic request, if one write of a table fails, all its rows have the first error and none is written.
    """
    check_plain(request)
    if not request.tables:
        raise refused("No row is specified in BatchWriteRow.")
    for part in request.tables:
        _check_some(part.table_name, part.rows)
    _check_count(sum(len(table.rows) for table in request.tables), MAX_BATCH_WRITE_ROWS)
    _check_size([row.row_change for table in request.tables for row in table.rows])
    # All rows are checked before any is written.
    tables = [_Writes(instance, part.table_name, part.rows, atomic=request.is_atomic) for part in request.tables]
    if len(tables) > 1:
        for table in tables:
            table.check()
    response = pb.BatchWriteRowResponse()
    for table in tables:
        response.tables.add(table_name=table.name, rows=map(_written_row, table.outcomes()))
    return response


def _written_row(outcome: Outcome) -> pb.RowInBatchWriteRowResponse:
    if outcome.error is not None:
        return pb.RowInBatchWriteRowResponse(is_ok=False, error=_message(outcome.error))
    if not outcome.row:
        return _written(outcome.read_units, outcome.write_units)
    return pb.RowInBatchWriteRowResponse(is_ok=True, consumed=consumed_by(outcome), row=outcome.row)


@functools.lru_cache(maxsize=1024)
def _written(read: int, write: int) -> pb.RowInBatchWriteRowResponse:
    """Return the response for most rows. Messages copy it when they include it."""
    return pb.RowInBatchWriteRowResponse(is_ok=True, consumed=consumed(read, write))


class _Writes:
    """The writes of one table in a batch.

    Args:
        atomic: apply all writes or none.
    """

    def __init__(
        self,
        instance: Instance,
        name: str,
        rows: Sequence[_RowRequest],
        *,
        atomic: bool = False,
    ) -> None:
        self.name = name
        self._instance = instance
        self._rows = rows
        self._atomic = atomic
        self._records = [row.row_change for row in rows]
        self._kind = None if atomic else self._kind_in_bulk()
        self._bulk: BulkRows | None = None
        self._one_by_one: list[RowWrite] = []

    def check(self) -> None:
        """Check the rows before a write of another table.

        Raises:
            ServiceError: OTSParameterInvalid: a row is invalid for any table. This fails the whole request.
        """
        with contextlib.suppress(NotFoundError):
            if self._kind is not None:
                self._bulk = BulkRows.of(self._instance.table(self.name).schema, self._records)
        if self._bulk is None:
            self._decode()

    def outcomes(self) -> list[Outcome]:
        """Apply the writes. Each outcome may have an error. An internal error is raised.

        Raises:
            ServiceError: see `check`.
        """
        try:
            if self._kind is not None and not self._one_by_one and self._write_bulk(self._kind):
                return [Outcome(write_units=write_units(len(record))) for record in self._records]
        except NotFoundError:
            # An invalid row comes before a missing table.
            pass
        except HeadraceError as error:
            return self._failed(error)
        if not self._one_by_one:
            self._decode()
        try:
            return write_rows(self._instance, self.name, self._one_by_one, atomic=self._atomic)
        except HeadraceError as error:
            return self._failed(error)

    def _write_bulk(self, kind: pb.OperationType) -> bool:
        """Write all rows, together with those of other requests unless they have been decoded for `check`."""
        table = self._instance.table(self.name)
        if self._bulk is not None:
            return self._bulk.write(table, kind)
        return self._instance.writes(self.name).write(kind, self._records, functools.partial(write_bulk, table, kind))

    def _kind_in_bulk(self) -> pb.OperationType | None:
        """Return the kind of the writes if they may be written in bulk: all puts or all updates, without conditions."""
        kinds = {row.type for row in self._rows}
        if len(self._records) < _MANY or len(kinds) > 1 or pb.DELETE in kinds or any(map(_has_terms, self._rows)):
            return None
        if pb.UPDATE in kinds and not self._instance.settings.get(self.name).allow_update:
            return None
        return kinds.pop()

    def _decode(self) -> None:
        known = self._instance.column_names(self.name)
        self._one_by_one = [
            RowWrite.of(row.type, decode_row(data), len(data), *_terms(row), known)
            for row, data in zip(self._rows, self._records, strict=True)
        ]

    def _failed(self, error: HeadraceError) -> list[Outcome]:
        """Return the outcomes of rows that all have the same error. An internal error is raised again."""
        known = service_error(error)
        if known is None:
            raise error
        return [Outcome(error=known) for _ in self._rows]


def _terms(row: _RowRequest) -> tuple[pb.Condition, pb.ReturnContent]:
    """Return the condition of a write, and the content that it returns."""
    if isinstance(row, pb.RowInBulkImportRequest):
        return _NO_CONDITION, _NO_CONTENT
    return row.condition, row.return_content


def _has_terms(row: _RowRequest) -> bool:
    """Return whether a write has a condition or returns its row."""
    condition, content = _terms(row)
    if condition.row_existence != pb.IGNORE or condition.column_condition:
        return True
    return content.return_type != pb.RT_NONE


def bulk_import(instance: Instance, request: pb.BulkImportRequest) -> pb.BulkImportResponse:
    """Write rows of one table without conditions."""
    _check_some(request.table_name, request.rows)
    _check_count(len(request.rows), MAX_BATCH_WRITE_ROWS)
    instance.table(request.table_name)  # A missing table fails the whole request.
    outcomes = _Writes(instance, request.table_name, request.rows).outcomes()
    return pb.BulkImportResponse(table_name=request.table_name, rows=map(_imported_row, outcomes))


def _imported_row(outcome: Outcome) -> pb.RowInBulkImportResponse:
    if outcome.error is not None:
        return pb.RowInBulkImportResponse(is_ok=False, error=_message(outcome.error))
    return pb.RowInBulkImportResponse(is_ok=True, consumed=consumed_by(outcome))


def _check_some(table_name: str, rows: Sized) -> None:
    if not rows:
        raise refused(f"No operation is specified for table: '{table_name}'.")


def _check_count(count: int, most: int) -> None:
    if count > most:
        raise refused(f"Rows count exceeds the upper limit: {most}.")


def _check_size(changes: Sequence[bytes]) -> None:
    """Check the size of names, values and timestamps, which the tests of the Java SDK count."""
    if sum(map(len, changes)) <= MAX_BATCH_WRITE_BYTES:
        # The encoding makes them larger.
        return
    size = 0
    for change in changes:
        row = decode_row(change)
        size += sum(_bytes_of(name) + _bytes_of(value) for name, value in row.key)
        size += sum(
            _bytes_of(cell.name) + _bytes_of(cell.value) + (0 if cell.timestamp is None else 8) for cell in row.cells
        )
    if size > MAX_BATCH_WRITE_BYTES:
        raise refused(
            "The total data size of BatchWriteRow request exceeds the limit, "
            f"limit size: {MAX_BATCH_WRITE_BYTES}, data size: {size}."
        )


def _bytes_of(value: Value) -> int:
    match value:
        case str():
            return len(value.encode())
        case bytes():
            return len(value)
        case bool():
            return 1
        case int() | float():
            return 8
    return 0


def _message(error: ServiceError) -> pb.Error:
    return pb.Error(code=error.code, message=error.message)
