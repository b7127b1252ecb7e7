"""Rows with the columns of another schema."""

from __future__ import annotations

from typing import TypeVar

import pyarrow as pa

_Rows = TypeVar("_Rows", pa.Table, pa.RecordBatch)


def with_fields(rows: _Rows, fields: pa.Schema) -> _Rows:
    """Return the columns of a schema, in its types. Unlike Arrow's cast it accepts a null struct with NOT NULL fields.

    Args:
        rows: rows with at least these columns.
    """
    columns = [rows.column(field.name) for field in fields]
    typed = [
        column if column.type == field.type else column.cast(field.type)
        for column, field in zip(columns, fields, strict=True)
    ]
    return type(rows).from_arrays(typed, schema=fields)
