"""The error of a value that does not fit its column."""

from __future__ import annotations

from headrace.errors import SchemaError
from headrace_ytsaurus.wire.types import RANGES, YtColumn, type_parts, untagged

NOT_TEXT = "a string that is not UTF-8"


def conversion_error(column: YtColumn, row: int, received: str) -> SchemaError:
    """Return the error for a column and a row, counted from 0, with the valid values of the column."""
    name, parts = type_parts(untagged(column.yt))
    valid = name
    if name in RANGES:
        low, high = RANGES[name]
        valid = f"{name}, from {low} to {high}"
    elif name == "decimal":
        valid = f"decimal({parts['precision']},{parts['scale']})"
    elif name == "uuid":
        valid = "a uuid, as a string of 16 bytes"
    remedy = None
    if received == NOT_TEXT:
        valid = "text in UTF-8"
        if name not in ("utf8", "json"):
            remedy = "have strings as bytes: option binary_strings (format headrace: binaryStrings)"
    problem = f"row {row} has a value that does not fit column {column.name!r}"
    return SchemaError(problem, received=received, valid=valid, remedy=remedy)
