"""Operations on single rows: GetRow, PutRow, UpdateRow, DeleteRow."""

from __future__ import annotations

import time
from typing import Any

from headrace.model.tables.schema import Key, TableSchema
from headrace.stores.embedded.for_servers import EmbeddedTable
from headrace_tablestore.endpoint.errors import invalid
from headrace_tablestore.endpoint.instances import Instance, staying
from headrace_tablestore.endpoint.rows import transactions
from headrace_tablestore.endpoint.rows.keys import key_of, key_table
from headrace_tablestore.endpoint.rows.layout import layout_of
from headrace_tablestore.endpoint.rows.reading import Selected, Selection
from headrace_tablestore.endpoint.rows.versions import SelectedVersions, select_rows
from headrace_tablestore.endpoint.rows.writing import Outcome, RowWrite, write_rows, write_units
from headrace_tablestore.wire import table_pb2 as pb
from headrace_tablestore.wire.plainbuffer.rows import decode_row


def get_row(instance: Instance, request: pb.GetRowRequest) -> pb.GetRowResponse:
    """Return one row; no bytes if it does not exist or the filter excludes it."""
    check_plain(request)
    table = instance.table(request.table_name)
    schema = table.schema
    settings = instance.settings.get(request.table_name)
    selection = Selection.of(request, settings, instance.column_names(request.table_name))
    selected = find_rows(table, schema, [key_of(request.primary_key, schema)], selection)
    row = selected.each()[0] if selected.num_rows else b""
    return pb.GetRowResponse(consumed=consumed(read=write_units(len(row))), row=row)


def put_row(instance: Instance, request: pb.PutRowRequest) -> pb.PutRowResponse:
    outcome = _write(instance, request, pb.PUT, request.row)
    return pb.PutRowResponse(consumed=consumed_by(outcome), row=outcome.row or None)


def update_row(instance: Instance, request: pb.UpdateRowRequest) -> pb.UpdateRowResponse:
    outcome = _write(instance, request, pb.UPDATE, request.row_change)
    return pb.UpdateRowResponse(consumed=consumed_by(outcome), row=outcome.row or None)


def delete_row(instance: Instance, request: pb.DeleteRowRequest) -> pb.DeleteRowResponse:
    outcome = _write(instance, request, pb.DELETE, request.primary_key)
    return pb.DeleteRowResponse(consumed=consumed_by(outcome), row=outcome.row or None)


def _write(
    instance: Instance,
    request: pb.PutRowRequest | pb.UpdateRowRequest | pb.DeleteRowRequest,
    kind: int,
    data: bytes,
) -> Outcome:
    check_plain(request)
    known = instance.column_names(request.table_name)
    write = RowWrite.of(kind, decode_row(data), len(data), request.condition, request.return_content, known)
    (outcome,) = write_rows(instance, request.table_name, [write])
    if outcome.error is not None:
        raise outcome.error
    return outcome


def find_rows(
    table: EmbeddedTable, schema: TableSchema, keys: list[Key], selection: Selection
) -> Selected | SelectedVersions:
    """Return the selected rows of some keys; ``kept`` says which keys they have.

    Args:
        schema: the table's schema when the keys were parsed.
    """
    with staying(table, schema):
        found = transactions.find(table, key_table(keys, schema))
    layout = layout_of(found.schema)
    return select_rows(found.rows, layout, selection, time.time_ns() // 1_000_000, found.present)


def check_plain(request: Any) -> None:
    """Raise `ServiceError` for a request with a local transaction or a token inside a row."""
    fields = request.DESCRIPTOR.fields_by_name
    if "transaction_id" in fields and request.transaction_id:
        raise invalid("the endpoint does not support local transactions")
    if "token" in fields:
        check_no_token(request.token)


def check_no_token(token: bytes) -> None:
    """Raise `ServiceError` for a token that continues inside a row."""
    if token:
        raise invalid("the endpoint returns whole rows, and does not support tokens inside a row")


def consumed(read: int = 0, write: int = 0) -> pb.ConsumedCapacity:
    """Return capacity units as a message."""
    return pb.ConsumedCapacity(capacity_unit=pb.CapacityUnit(read=read, write=write))


def consumed_by(outcome: Outcome) -> pb.ConsumedCapacity:
    return consumed(outcome.read_units, outcome.write_units)
