"""The years of keys: Python's dates have the years 1 to 9999, and bounds of key ranges are Python's values."""

from __future__ import annotations

import pyarrow as pa
import pyarrow.compute as pc

from headrace.errors import SchemaError
from headrace.model.types import type_name

_FIRST_YEAR, _LAST_YEAR = 1, 9999


def check_years(values: pa.Array | pa.ChunkedArray) -> None:
    """Raise `SchemaError` if a date or timestamp of a key column is outside the years that keys can have."""
    first, last = (year.as_py() for year in pc.min_max(pc.year(values)).values())
    if first is not None and (first < _FIRST_YEAR or last > _LAST_YEAR):
        raise SchemaError(
            f"a key of type {type_name(values.type)} is outside the years that keys can have",
            received=f"year {first if first < _FIRST_YEAR else last}",
            valid=f"{_FIRST_YEAR} to {_LAST_YEAR}",
        )


def with_years_of_keys(keys: pa.Table) -> pa.Table:
    """Return the rows of a table whose dates and timestamps are Python's."""
    for name, column in zip(keys.column_names, keys.columns, strict=True):
        if pa.types.is_date(column.type) or pa.types.is_timestamp(column.type):
            year = pc.year(keys.column(name))
            keys = keys.filter(pc.and_(pc.greater_equal(year, _FIRST_YEAR), pc.less_equal(year, _LAST_YEAR)))
    return keys
