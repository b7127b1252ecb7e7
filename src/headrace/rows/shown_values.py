"""Values to show to people, as Python values."""

from __future__ import annotations

from contextlib import suppress
from typing import Any

import pyarrow as pa

# Also raised for times that only pandas represents, if it is not installed.
_NOT_REPRESENTED = (OverflowError, ValueError)


def shown_values(values: pa.Array | pa.ChunkedArray) -> list[Any]:
    """Return values as `pyarrow.Array.to_pylist` does, but texts for those that Python does not have.

    Python's dates end with the year 9999. In a list, map or struct with a later one, all dates and times are texts.
    """
    try:
        return values.to_pylist()  # type: ignore[no-any-return]
    except _NOT_REPRESENTED:
        chunks = values.chunks if isinstance(values, pa.ChunkedArray) else [values]
        return [_shown(chunk.slice(index, 1)) for chunk in chunks for index in range(len(chunk))]


def shown_rows(rows: pa.RecordBatch | pa.Table) -> list[dict[str, Any]]:
    """Return rows as `pyarrow.RecordBatch.to_pylist` does, with the values of `shown_values`."""
    columns = [shown_values(column) for column in rows.columns]
    return [dict(zip(rows.schema.names, values, strict=True)) for values in zip(*columns, strict=True)]


def _shown(value: pa.Array) -> Any:
    """Return the value of an array that has only one."""
    with suppress(*_NOT_REPRESENTED):
        return value[0].as_py()
    with suppress(*_NOT_REPRESENTED, pa.ArrowException):
        return value.cast(_with_texts(value.type))[0].as_py()
    return value.to_string(skip_new_lines=True)


def _with_texts(data_type: pa.DataType) -> pa.DataType:
    """Return a type with texts instead of dates and times."""
    if pa.types.is_map(data_type):
        return pa.map_(_with_texts(data_type.key_type), _with_texts(data_type.item_type))
    if pa.types.is_list(data_type):
        return pa.list_(_with_texts(data_type.value_type))
    if pa.types.is_struct(data_type):
        return pa.struct([field.with_type(_with_texts(field.type)) for field in data_type])
    is_text = pa.types.is_temporal(data_type) and not pa.types.is_interval(data_type)
    return pa.string() if is_text else data_type
