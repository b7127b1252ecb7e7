"""What is said of a value that does not fit its column."""

from __future__ import annotations

from headrace.errors import SchemaError
from headrace.wire.ytsaurus.types import RANGES, YtColumn, type_parts, untagged


def misfit(column: YtColumn, row: int, received: str) -> SchemaError:
    """Return the error that names a column and a row, counted from 0, and what the column takes."""
    name, parts = type_parts(untagged(column.yt))
    valid = name
    if name in RANGES:
        low, high = RANGES[name]
        valid = f"{name}, from {low} to {high}"
    elif name == "decimal":
        valid = f"decimal({parts['precision']},{parts['scale']})"
    elif name == "uuid":
        valid = "a uuid, as a string of 16 bytes"
    return SchemaError(
        f"row {row} has a value that does not fit column {column.name!r}", received=received, valid=valid
    )
