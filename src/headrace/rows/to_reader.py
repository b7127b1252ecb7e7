"""Stored values in the types that a reader asks for; the counterpart of `headrace.rows.from_user`."""

from __future__ import annotations

import base64
import datetime
import json
from typing import Any

import pyarrow as pa

from headrace.errors import SchemaError
from headrace.model.types import type_name


def opaque_type(data_type: pa.DataType) -> pa.DataType:
    """Return the type of a column if composite values are returned as JSON in binary columns."""
    return pa.binary() if pa.types.is_nested(data_type) else data_type


def as_type(values: pa.Array, field: pa.Field) -> pa.Array:
    """Return values in the type of a field; composite values become JSON if the field is binary.

    Raises:
        SchemaError: the type cannot represent a value.
    """
    if values.type.equals(field.type):
        return values
    if pa.types.is_nested(values.type) and pa.types.is_binary(field.type):
        return _as_json(values)
    try:
        return values.cast(field.type)
    except (pa.ArrowInvalid, pa.ArrowNotImplementedError):
        raise SchemaError(
            f"column {field.name!r} cannot be read as another type",
            received=field.type,
            valid=type_name(values.type),
            remedy="use the column's own type in .schema(…), and cast in the query",
        ) from None


def _as_json(values: pa.Array) -> pa.Array:
    # Value by value, because Arrow does not write JSON. A map becomes a list of pairs, because its keys may have any
    # type.
    texts = [None if value is None else _json(value) for value in values.to_pylist()]
    return pa.array(texts, pa.binary())


def _json(value: Any) -> bytes:
    return json.dumps(value, ensure_ascii=False, separators=(",", ":"), default=_json_value).encode()


def _json_value(value: Any) -> Any:
    if isinstance(value, bytes):
        return base64.b64encode(value).decode()
    if isinstance(value, datetime.date):
        return value.isoformat()
    return str(value)
