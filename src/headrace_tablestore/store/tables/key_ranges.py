"""The keys of rows that may satisfy conditions: single keys, or ranges of keys in Tablestore's form.

Pure functions. The keys include all rows that satisfy the conditions, and may include others.
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass
from typing import TypeAlias

from headrace.model.tables.conditions import KeyRange, Predicate
from headrace.model.tables.schema import Column, Key, KeyValue, TableSchema
from headrace.rows.conditions import BOUNDING, Cut, key_cuts, operands
from headrace_tablestore.wire.limits import MAX_BATCH_GET_ROWS, MAX_KEY_VALUE_BYTES
from headrace_tablestore.wire.plainbuffer.values import Marker, Value, values_of_key

_MAX_RANGES = 100
_LAST_INTEGER = (1 << 63) - 1

WireKey: TypeAlias = tuple[tuple[str, Value], ...]
"""A key or a bound of a range: the key columns by name; a bound may contain markers."""


@dataclass(frozen=True)
class Span:
    """The keys from ``low`` to ``high``; None is open."""

    low: Cut | None = None
    high: Cut | None = None

    @property
    def empty(self) -> bool:
        return self.low is not None and self.high is not None and not self.low < self.high

    def start(self, schema: TableSchema) -> WireKey:
        """Return the first key of the range, for GetRange."""
        return _bound(schema, self.low, Marker.INF_MIN)

    def end(self, schema: TableSchema) -> WireKey:
        """Return the end of the range (excluded), for GetRange."""
        return _bound(schema, self.high, Marker.INF_MAX)


@dataclass(frozen=True)
class MatchingKeys:
    """Single complete keys, or else ranges of keys. Both are in key order and without overlap."""

    keys: tuple[Key, ...] | None
    spans: tuple[Span, ...] = ()


NO_KEYS = MatchingKeys(())


def matching_keys(schema: TableSchema, keys: KeyRange, predicates: Sequence[Predicate]) -> MatchingKeys:
    """Return the keys in a range that may satisfy conditions.

    Args:
        schema: the table's columns.
        keys: the range; its bounds have the types of the key columns.
        predicates: conditions on any columns; all must hold.

    Raises:
        SchemaError: a column does not exist, or its type does not have the value of a condition.
    """
    if any(_never_holds(predicate) for predicate in predicates):
        return NO_KEYS
    prefixes = _prefixes(schema, predicates)
    depth = len(prefixes[0]) if prefixes else 0
    spans = [span for prefix in prefixes for span in _spans(schema, prefix, keys, predicates)]
    if depth == len(schema.primary_key) and len(spans) <= MAX_BATCH_GET_ROWS:
        return MatchingKeys(tuple(span.low.prefix for span in spans if span.low is not None))
    return MatchingKeys(None, tuple(spans)) if spans else NO_KEYS


def _never_holds(predicate: Predicate) -> bool:
    """Return whether a condition compares with null."""
    return predicate.value is None and predicate.operator not in ("is null", "is not null")


def _prefixes(schema: TableSchema, predicates: Sequence[Predicate]) -> list[Key]:
    """Return the key prefixes that the conditions allow, in key order; ``()`` is the prefix of all keys."""
    prefixes: list[Key] = [()]
    for name in schema.primary_key:
        values = _equal_values(schema.column(name), predicates)
        if values is None or len(prefixes) * len(values) > _MAX_RANGES:
            break
        prefixes = [(*prefix, value) for prefix in prefixes for value in values]
    return prefixes


def _equal_values(column: Column, predicates: Sequence[Predicate]) -> list[KeyValue] | None:
    """Return the possible values of a key column, in order; None if no condition lists them."""
    allowed: set[KeyValue] | None = None
    for predicate in predicates:
        if predicate.column == column.name and predicate.operator in ("=", "in"):
            values = set(operands(column, predicate).to_pylist())
            allowed = values if allowed is None else allowed & values
    # Python orders texts by code points, which is the order of their UTF-8 bytes.
    return None if allowed is None else sorted(allowed)


def _spans(schema: TableSchema, prefix: Key, keys: KeyRange, predicates: Sequence[Predicate]) -> list[Span]:
    """Return the range of the keys with a prefix; None if it is empty."""
    lows = [] if keys.low is None else [Cut(keys.low)]
    highs = [] if keys.high is None else [Cut(keys.high)]
    if prefix:
        lows.append(Cut(prefix))
        highs.append(Cut(prefix, after=True))
    if len(prefix) < len(schema.primary_key):
        column = schema.column(schema.primary_key[len(prefix)])
        for predicate in predicates:
            if predicate.column == column.name and predicate.operator in BOUNDING:
                low, high = key_cuts(column, predicate, prefix)
                lows += low
                highs += high
    span = Span(max(lows, default=None), min(highs, default=None))
    if len(prefix) == len(schema.primary_key) and span != Span(Cut(prefix), Cut(prefix, after=True)):
        # The single key is outside the range.
        return []
    return [] if span.empty else [span]


def _bound(schema: TableSchema, cut: Cut | None, open_end: Marker) -> WireKey:
    if cut is None:
        return tuple((name, open_end) for name in schema.primary_key)
    prefix = values_of_key(cut.prefix)
    values: list[Value] = list(prefix)
    missing = len(schema.primary_key) - len(values)
    if cut.after and not missing:
        # After a complete key, the next possible key begins the range.
        values[-1] = _successor(prefix[-1], exact=open_end is Marker.INF_MIN)
    values += [Marker.INF_MAX if cut.after else Marker.INF_MIN] * missing
    return tuple(zip(schema.primary_key, values, strict=True))


def _successor(value: str | int | bytes, *, exact: bool) -> Value:
    """Return the next value of a key column.

    Args:
        exact: if the next value is too long for a key, return the value itself instead of a later one.
    """
    if isinstance(value, int):
        return Marker.INF_MAX if value == _LAST_INTEGER else value + 1
    longer: str | bytes
    if isinstance(value, bytes):
        longer, size = value + b"\0", len(value) + 1
    else:
        longer, size = value + "\0", len(value.encode()) + 1
    if size <= MAX_KEY_VALUE_BYTES:
        return longer
    return value if exact else Marker.INF_MAX
