"""Decoding of rows in request bodies into the columns of a table."""

from __future__ import annotations

from collections.abc import Sequence

from headrace.errors import SchemaError
from headrace_ytsaurus.endpoint.context import Context
from headrace_ytsaurus.endpoint.errors import refused
from headrace_ytsaurus.endpoint.tables.state import Table
from headrace_ytsaurus.wire.errors import Code, YtError
from headrace_ytsaurus.wire.types import YtColumn
from headrace_ytsaurus.wire.yson import json_rows, rows_decoding
from headrace_ytsaurus.wire.yson.rows_decoding import Decoded

__all__ = ["Decoded", "read_body"]


def read_body(context: Context, body: bytes, columns: Sequence[YtColumn], table: Table) -> Decoded:
    """Decode rows into columns of a table, and additional columns of a command.

    Raises:
        YtError: a row is null or has an unknown column; 307, a value does not fit its column.
    """
    form = context.input_format
    try:
        if form.name == "yson":
            decoded = rows_decoding.read_rows(body, columns)
        else:
            decoded = json_rows.read_json_rows(body, columns, form.style)
    except SchemaError as error:
        raise YtError(Code.SCHEMA_VIOLATION, str(error)) from None
    if decoded.unknown:
        raise YtError(
            Code.COLUMN_NOT_FOUND,
            f"No such column {min(decoded.unknown)!r} in table {table.name}, or it cannot be written",
            valid=", ".join(column.name for column in columns),
            attributes={"path": table.name},
        )
    if decoded.absent is not None:
        raise refused(f"A row for table {table.name} is null")
    return decoded
