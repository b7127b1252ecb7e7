"""Values of rows in the catalog: inlined rows, and bounds. No I/O.

PostgreSQL has no NUL in texts, and other ranges of dates and times. So DuckLake keeps texts as ``bytea``, and dates and
times as texts, in DuckDB's form.
"""

from __future__ import annotations

import re
from collections.abc import Sequence
from ctypes import c_float
from decimal import Decimal

import pyarrow as pa
import pyarrow.compute as pc

from headrace_lake.data_files import text_bound
from headrace_lake.ducklake.columns import LakeColumn

_TEXTS = ("date", "timestamp", "timestamptz")
# The years 1 to 9999, whose texts have four digits.
_DAYS = (-719_162, 2_932_896)
_MICROSECONDS = (_DAYS[0] * 86_400_000_000, (_DAYS[1] + 1) * 86_400_000_000 - 1)
_PG_TYPES = {
    "boolean": "boolean",
    "int8": "smallint",
    "int16": "smallint",
    "int32": "integer",
    "int64": "bigint",
    "float32": "real",
    "float64": "double precision",
    "varchar": "bytea",
    "blob": "bytea",
    **dict.fromkeys(_TEXTS, "varchar"),
}


def inlined_type(column: LakeColumn) -> str:
    """Return the type of a column of inlined rows in PostgreSQL. Nested values are texts."""
    return "varchar" if column.inner else _PG_TYPES.get(column.kind, column.kind)


def can_be_inlined(rows: pa.Table, columns: Sequence[LakeColumn]) -> bool:
    """Return whether the catalog can have rows. Nested values go into files, so that their texts need no parser."""
    for column in columns:
        if column.inner:
            return False
        if column.kind in _TEXTS and not _has_plain_years(rows.column(column.name), column.kind):
            return False
    return True


def _has_plain_years(values: pa.ChunkedArray, kind: str) -> bool:
    low, high = _DAYS if kind == "date" else _MICROSECONDS
    numbers = values.cast(pa.int32() if kind == "date" else pa.int64())
    bounds = pc.min_max(numbers)
    least, greatest = bounds["min"].as_py(), bounds["max"].as_py()
    return least is None or (low <= least and greatest <= high)


def to_catalog(values: pa.ChunkedArray, kind: str) -> pa.ChunkedArray:
    """Return values as the catalog has them."""
    if kind == "varchar":
        return values.cast(pa.binary())
    if kind == "int8":
        return values.cast(pa.int16())
    return to_text(values, kind) if kind in _TEXTS else values


def from_catalog(values: pa.ChunkedArray, column: LakeColumn) -> pa.ChunkedArray:
    """Return values of the catalog in the type of their column; see `shown`."""
    kind = column.type
    if column.kind == "timestamptz":
        texts = pc.replace_substring_regex(values, r"\+00$", "")
        return texts.cast(pa.timestamp("us")).cast(kind)
    return values.cast(kind)


def to_text(values: pa.ChunkedArray, kind: str) -> pa.ChunkedArray:
    """Return dates or times as DuckDB shows them."""
    if kind == "date":
        return values.cast(pa.string())
    # Of a time with a zone, the instant.
    texts = values.cast(pa.timestamp("us")).cast(pa.string())
    texts = pc.replace_substring_regex(texts, r"\.0+$", "")
    texts = pc.replace_substring_regex(texts, r"(\.\d*[1-9])0+$", r"\1")
    return pc.binary_join_element_wise(texts, "+00", "") if kind == "timestamptz" else texts


# -- bounds -------------------------------------------------------------------------------------------------------

_LONGEST_BOUND = 256
_PLAIN_TIME = re.compile(r"\d{4}-[^(]*")
_UNBOUNDED = ("-infinity", "infinity")


def bound_of(value: pa.Scalar, kind: str, *, up: bool) -> str:
    """Return a value, or one beyond it, as the text of a bound."""
    if kind in _TEXTS:
        one = pa.chunked_array([pa.array([value.cast(_number(kind)).as_py()], _number(kind)).cast(value.type)])
        return to_text(one, kind)[0].as_py() if _has_plain_years(one, kind) else _UNBOUNDED[up]
    if kind == "boolean":
        return "true" if value.as_py() else "false"
    if kind == "blob":
        return _text_bound("".join(_escaped(each) for each in value.as_py()), up=up)
    if kind == "varchar":
        return _text_bound(value.as_py(), up=up)
    if kind == "float32":
        # The shortest text of the same double is no bound of the float.
        return repr(value.cast(pa.float64()).as_py())
    if kind.startswith("decimal"):
        # Without an exponent, which DuckDB does not read in all decimals.
        return f"{value.as_py():f}"
    return str(value.as_py())


def _number(kind: str) -> pa.DataType:
    return pa.int32() if kind == "date" else pa.int64()


def _escaped(byte: int) -> str:
    return chr(byte) if 32 <= byte < 127 and byte not in b"\\'\"" else f"\\x{byte:02X}"


def _text_bound(text: str, *, up: bool) -> str:
    head, nul, _ = text.partition("\0")
    if len(head) > _LONGEST_BOUND:
        return text_bound(head, _LONGEST_BOUND, up=up)
    return head + ("\x01" if nul and up else "")


def is_same_bound(kind: str, left: str, right: str) -> bool:
    """Return whether two bounds, as DuckDB and headrace write them, are the same value."""
    if left == right:
        return True
    # DuckDB writes the shortest text of a float, of which the double is another one.
    return kind == "float32" and c_float(float(left)).value == c_float(float(right)).value


def wider(kind: str, left: str | None, right: str | None, *, up: bool) -> str | None:
    """Return the wider one of two bounds; None for the bound of no values."""
    if left is None or right is None:
        return right if left is None else left
    if kind in _TEXTS:
        if not (_PLAIN_TIME.fullmatch(left) and _PLAIN_TIME.fullmatch(right)):
            return _UNBOUNDED[up]
        return max(left, right) if up else min(left, right)
    if kind == "boolean":
        # DuckDB writes 0 and 1 for the rows of a file, and false and true for those in the catalog.
        return (max if up else min)(left, right, key=("1", "true").__contains__)
    if kind in ("varchar", "blob"):
        return (max if up else min)(left, right, key=str.encode)
    if kind.startswith("float"):
        # DuckDB has NaN above all numbers.
        if "nan" in (left, right):
            other = right if left == "nan" else left
            return "nan" if up else other
        return (max if up else min)(left, right, key=float)
    return (max if up else min)(left, right, key=Decimal)
