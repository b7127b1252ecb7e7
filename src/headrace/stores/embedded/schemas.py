"""The stored columns of a table or queue: a serialized Arrow schema."""

from __future__ import annotations

import pyarrow as pa

from headrace.errors import UnsupportedError
from headrace.model.tables.schema import Column, columns_of
from headrace.model.types import MAX_NESTING


def stored_columns(schema: bytes) -> tuple[Column, ...]:
    """Return the columns of a stored schema; their types were checked when it was stored.

    Raises:
        UnsupportedError: the types are nested deeper than Arrow can read. Earlier versions could store such types.
    """
    try:
        return columns_of(pa.ipc.read_schema(pa.py_buffer(schema)))
    except (pa.ArrowException, OSError) as error:
        raise UnsupportedError(
            "the columns cannot be read: their types are nested too deep, or the store is damaged",
            received=str(error),
            valid=f"at most {MAX_NESTING} arrays, maps and structs inside each other",
            remedy="drop the table or queue, and create it with other columns",
        ) from None
