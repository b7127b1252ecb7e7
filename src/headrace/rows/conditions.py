"""Conditions and key ranges in the types of a table's columns, for their evaluation in stores."""

from __future__ import annotations

from collections.abc import Iterable, Mapping, Sequence
from dataclasses import dataclass
from typing import Any

import pyarrow as pa

from headrace.errors import OptionError, SchemaError, shown
from headrace.model.tables.conditions import KeyRange, Predicate
from headrace.model.tables.schema import Column, Key, KeyValue, TableSchema
from headrace.model.types import type_name
from headrace.rows.from_user import to_column

MAX_VALUES = 10_000
"""The maximum number of values in a condition with ``in``."""
BOUNDING = ("=", "<", "<=", ">", ">=", "starts with")
"""The operators that restrict the key range if the column is a key column."""
_LAST_CODE_POINT = "\U0010ffff"


@dataclass(frozen=True)
class Cut:
    """A bound between keys: before the first key that starts with ``prefix``, or after the last one."""

    prefix: Key
    after: bool = False

    def __lt__(self, other: Cut) -> bool:
        return self._order < other._order

    @property
    def _order(self) -> tuple[tuple[int, KeyValue], ...]:
        return tuple((0, value) for value in self.prefix) + (((1, 0),) if self.after else ())


def key_cuts(column: Column, predicate: Predicate, prefix: Key) -> tuple[list[Cut], list[Cut]]:
    """Return the bounds of the keys that start with a prefix and satisfy a condition on the next key column.

    Args:
        column: the key column after the columns of the prefix.
        predicate: a condition on ``column``, with an operator of `BOUNDING`.

    Returns:
        The lower bounds and the upper bounds; each list has at most one bound.
    """
    value = operands(column, predicate)[0].as_py()
    key = (*prefix, value)
    match predicate.operator:
        case "=":
            return [Cut(key)], [Cut(key, after=True)]
        case "<":
            return [], [Cut(key)]
        case "<=":
            return [], [Cut(key, after=True)]
        case ">":
            return [Cut(key, after=True)], []
        case ">=":
            return [Cut(key)], []
        case _:
            end = after_prefix(value)
            return [Cut(key)], [] if end is None else [Cut((*prefix, end))]


def typed_key(schema: TableSchema, key: Sequence[Any]) -> Key:
    """Return a key, or a prefix of a key, in the types of the key columns; or raise `SchemaError`."""
    if len(key) > len(schema.primary_key):
        raise SchemaError("a key has more values than the table has key columns", received=len(key))
    if None in key:
        raise SchemaError("a value of a key is null", received=shown(tuple(key)))
    columns = [schema.column(name) for name in schema.primary_key]
    return tuple(
        value if _is_typed(value, column.type) else to_column([value], column)[0].as_py()
        for value, column in zip(key, columns, strict=False)
    )


def whole_key(schema: TableSchema, key: Mapping[str, Any]) -> Key:
    """Return a key, by the names of its columns, in their types; or raise `SchemaError`."""
    if set(key) != set(schema.primary_key):
        raise SchemaError("a key needs exactly the key columns", received=list(key), valid=schema.primary_key)
    return typed_key(schema, [key[name] for name in schema.primary_key])


def _is_typed(value: Any, data_type: pa.DataType) -> bool:
    """Return whether a value needs no conversion. A conversion takes 100 µs: too long for thousands of ranges."""
    if type(value) is int:
        return data_type == pa.int64() and -(1 << 63) <= value < 1 << 63
    return type(value) is bytes and data_type == pa.binary()


def check_scan_sizes(limit: int | None, batch_rows: int) -> None:
    """Check the sizes of `headrace.ports.Table.scan`.

    Raises:
        OptionError: ``limit`` is less than 0, or ``batch_rows`` less than 1.
    """
    if limit is not None and limit < 0:
        raise OptionError("limit must be at least 0", received=limit)
    if batch_rows < 1:
        raise OptionError("batch_rows must be at least 1", received=batch_rows)


def typed_range(schema: TableSchema, keys: KeyRange) -> KeyRange:
    """Return a key range with its bounds in the types of the key columns, or raise `SchemaError`."""
    return KeyRange(
        None if keys.low is None else typed_key(schema, keys.low),
        None if keys.high is None else typed_key(schema, keys.high),
    )


def check_comparable(column: Column, operator: str) -> None:
    """Raise `OptionError` for a comparison with a composite column."""
    if pa.types.is_nested(column.type):
        raise OptionError(
            f"the operator {operator!r} cannot be used with a composite column",
            received=f"{column.name!r} of type {type_name(column.type)}",
            valid=("is null", "is not null"),
        )


def operands(column: Column, predicate: Predicate) -> pa.Array:
    """Return the values of a comparison in the column's type, without nulls, which no row equals.

    Raises:
        SchemaError: the column cannot represent a value.
        OptionError: the operator is invalid for the column or the value.
    """
    operator, value = predicate.operator, predicate.value
    if operator == "starts with" and not (pa.types.is_string(column.type) or pa.types.is_binary(column.type)):
        raise OptionError(
            "the operator 'starts with' needs a string or binary column",
            received=f"{column.name!r} of type {type_name(column.type)}",
        )
    values = [value]
    if operator == "in":
        if (
            isinstance(value, str | bytes | memoryview)
            or not isinstance(value, Iterable)
            or not getattr(value, "ndim", 1)
        ):
            raise OptionError("the operator 'in' needs a list of values", received=shown(value))
        values = list(value)
        if len(values) > MAX_VALUES:
            raise OptionError("too many values in a condition", received=len(values), valid=f"at most {MAX_VALUES}")
    try:
        return to_column([item for item in values if item is not None], column).combine_chunks()
    except SchemaError as error:
        raise SchemaError(
            f"a condition on column {column.name!r} has a value that the column cannot represent",
            received=error.received,
            valid=error.valid,
        ) from None


def after_prefix(prefix: KeyValue) -> KeyValue | None:
    """Return the smallest text or binary after all that start with a prefix; None if there is none."""
    if isinstance(prefix, bytes):
        shortened = prefix.rstrip(b"\xff")
        return shortened[:-1] + bytes([shortened[-1] + 1]) if shortened else None
    text = str(prefix).rstrip(_LAST_CODE_POINT)
    if not text:
        return None
    following = ord(text[-1]) + 1
    # UTF-8 has no surrogates.
    return text[:-1] + chr(0xE000 if following == 0xD800 else following)
