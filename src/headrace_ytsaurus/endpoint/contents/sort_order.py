"""The sort order of static tables, which every write is checked against.

Null is the smallest value. In a column without a type, the order of types is: signed numbers, unsigned numbers,
doubles, booleans, strings.
"""

from __future__ import annotations

from collections.abc import Iterable, Mapping, Sequence
from typing import Any, TypeAlias

import pyarrow as pa
import pyarrow.compute as pc
from yt import yson

from headrace_ytsaurus.endpoint.errors import refused
from headrace_ytsaurus.endpoint.values import type_of
from headrace_ytsaurus.wire.errors import Code, YtError
from headrace_ytsaurus.wire.types import YtColumn
from headrace_ytsaurus.wire.yson import documents

Key: TypeAlias = tuple[tuple[int, Any], ...]
_ANY = "yson"
_RANKS = {"entity": 0, "int64_node": 1, "uint64_node": 2, "double_node": 3, "boolean_node": 4, "string_node": 5}


def check_batches(batches: Sequence[pa.RecordBatch], keys: Sequence[YtColumn], *, unique: bool) -> None:
    """Raise an error unless rows are sorted by their key columns.

    Args:
        batches: the rows in order.
        unique: keys must be unique.

    Raises:
        YtError: 301, the rows are not sorted; 306, two rows have the same key.
    """
    rows = pa.Table.from_batches(batches)
    columns = [rows.column(rows.schema.get_field_index(key.name)).combine_chunks() for key in keys]
    if any(key.yt == _ANY for key in keys):
        values = [_values(key, column) for key, column in zip(keys, columns, strict=True)]
        _check_values(zip(*values, strict=True), unique=unique)
        return
    before, same = pa.scalar(False), pa.scalar(True)
    for key, column in zip(keys, columns, strict=True):
        less, equal = _compared(column.slice(0, max(0, len(column) - 1)), column.slice(1), key.name)
        before = pc.or_(before, pc.and_(same, less))
        same = pc.and_(same, equal)
    wrong = pc.index(before if unique else pc.or_(before, same), pa.scalar(False)).as_py()
    if wrong >= 0:
        first, second = (tuple(column[row].as_py() for column in columns) for row in (wrong, wrong + 1))
        raise _violation(first, second, same=bool(same[wrong].as_py()))


def _values(key: YtColumn, column: pa.Array) -> Iterable[tuple[int, Any]]:
    """Return the values of a key column, each with its type's position in the sort order."""
    values = column.to_pylist()
    if key.yt == _ANY:
        values = [None if value is None else documents.loads(value) for value in values]
    return (_placed(value, key.name) for value in values)


def _compared(left: pa.Array, right: pa.Array, name: str) -> tuple[Any, Any]:
    """Return for each pair whether the left value is less, and whether the values are equal."""
    null, other = pc.is_null(left), pc.is_null(right)
    try:
        less, equal = (pc.fill_null(compare(left, right), False) for compare in (pc.less, pc.equal))
    except pa.ArrowNotImplementedError:
        raise refused(f"Rows cannot be sorted by column {name!r}", received=str(left.type)) from None
    return pc.if_else(null, pc.invert(other), less), pc.if_else(null, other, equal)


def check_keys(keys: Iterable[Key]) -> Key | None:
    """Raise an error unless the keys of rows without a schema are sorted; return the last key."""
    return _check_values(keys, unique=False)


def _check_values(keys: Iterable[Key], *, unique: bool) -> Key | None:
    last: Key | None = None
    for key in keys:
        if last is not None and (key < last or (unique and key == last)):
            raise _violation(*(tuple(value for _, value in each) for each in (last, key)), same=key == last)
        last = key
    return last


def key_of(row: Mapping[Any, Any], names: Sequence[str]) -> Key:
    """Return the sort key of a row without a schema."""
    return tuple(_placed(row.get(name), name) for name in names)


def _placed(value: Any, name: str) -> tuple[int, Any]:
    rank = _RANKS.get(type_of(value))
    if rank is None:
        raise YtError(
            Code.INCOMPARABLE_TYPE,
            f"Rows cannot be sorted by maps or lists in column {name!r}",
            received=repr(value)[:100],
        )
    if rank == _RANKS["entity"]:
        return rank, 0
    return rank, yson.get_bytes(value) if rank == _RANKS["string_node"] and not isinstance(value, bytes) else value


def _violation(first: tuple[Any, ...], second: tuple[Any, ...], *, same: bool) -> YtError:
    if same:
        return YtError(Code.UNIQUE_KEY_VIOLATION, f"Duplicate key {list(first)!r}"[:1000], valid="unique keys")
    return YtError(
        Code.SORT_ORDER_VIOLATION,
        f"Sort order violation: {list(first)!r} > {list(second)!r}"[:1000],
        remedy="sort the rows by the key columns of the table",
    )
