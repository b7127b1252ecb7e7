"""Filters of Tablestore: parsing, and evaluation for one row or a page of rows. Pure functions.

Values are compared within one type, doubles by IEEE 754. A cell of another type than the comparison's value is unequal,
and neither less nor greater.
"""

from __future__ import annotations

import enum
import functools
import operator
from collections.abc import Callable, Iterator, Mapping, Sequence
from dataclasses import dataclass
from typing import Any, TypeAlias

import numpy as np
import pyarrow as pa
import pyarrow.compute as pc
from google.protobuf.message import DecodeError

from headrace.model.tables.conditions import Predicate
from headrace_tablestore.endpoint.errors import invalid, refused
from headrace_tablestore.endpoint.messages import read_message
from headrace_tablestore.endpoint.rows.layout import (
    ARROW_TYPES,
    CellType,
    Mask,
    as_mask,
    cell_type,
    check_value_size,
    is_valid,
    type_of_column,
)
from headrace_tablestore.wire import table_pb2 as pb
from headrace_tablestore.wire.limits import SERVED_FILTERS
from headrace_tablestore.wire.plainbuffer.rows import decode_value
from headrace_tablestore.wire.plainbuffer.values import Value

Columns: TypeAlias = Mapping[str, Sequence[pa.Array]]
"""By wire name, the columns of the types of its cells. At most one of them is not null in a row."""


class Comparator(enum.IntEnum):
    EQUAL = 1
    NOT_EQUAL = 2
    GREATER = 3
    GREATER_EQUAL = 4
    LESS = 5
    LESS_EQUAL = 6
    EXIST = 7
    NOT_EXIST = 8


_SCALAR: dict[Comparator, Callable[[Any, Any], bool]] = {
    Comparator.EQUAL: operator.eq,
    Comparator.NOT_EQUAL: operator.ne,
    Comparator.GREATER: operator.gt,
    Comparator.GREATER_EQUAL: operator.ge,
    Comparator.LESS: operator.lt,
    Comparator.LESS_EQUAL: operator.le,
}
_VECTOR: dict[Comparator, Callable[[pa.Array, pa.Scalar], pa.Array]] = {
    Comparator.EQUAL: pc.equal,
    Comparator.NOT_EQUAL: pc.not_equal,
    Comparator.GREATER: pc.greater,
    Comparator.GREATER_EQUAL: pc.greater_equal,
    Comparator.LESS: pc.less,
    Comparator.LESS_EQUAL: pc.less_equal,
}
_OPERATORS = {
    Comparator.EQUAL: "=",
    Comparator.GREATER: ">",
    Comparator.GREATER_EQUAL: ">=",
    Comparator.LESS: "<",
    Comparator.LESS_EQUAL: "<=",
}


class Combinator(enum.IntEnum):
    NOT = 1
    AND = 2
    OR = 3


@dataclass(frozen=True)
class Rule:
    """Replaces a string before a comparison by the match of a group of a regular expression, cast to a type."""

    regex: str
    cast: CellType

    def apply(self, texts: pa.StringArray) -> list[Value]:
        """Return the value of each string; None if the expression does not match or the match cannot be cast."""
        try:
            matched = pc.match_substring_regex(texts, self.regex)
            parts = pc.replace_substring_regex(texts, rf"(?s)^.*?(?:{self.regex}).*$", r"\1", max_replacements=1)
        except pa.ArrowInvalid:
            raise invalid(
                "the regular expression of a filter is invalid in RE2, or has no group", received=repr(self.regex)
            ) from None
        return [
            self._cast(part) if fits else None
            for fits, part in zip(matched.to_pylist(), parts.to_pylist(), strict=True)
        ]

    def _cast(self, text: str) -> Value:
        try:
            match self.cast:
                case CellType.INTEGER:
                    return int(text)
                case CellType.DOUBLE:
                    return float(text)
                case CellType.BINARY:
                    return text.encode()
        except ValueError:
            return None
        return text


@dataclass(frozen=True)
class Comparison:
    """A condition on one column.

    Attributes:
        if_missing: the result for a row without such a cell.
        latest_only: compare only the newest version of a cell; otherwise one version must satisfy the condition.
    """

    column: str
    comparator: Comparator
    value: Value
    if_missing: bool
    rule: Rule | None = None
    latest_only: bool = True


@dataclass(frozen=True)
class Combination:
    """A combination of filters. NOT has one part."""

    combinator: Combinator
    parts: tuple[Filter, ...]


@dataclass(frozen=True)
class Pagination:
    """No condition. Selects ``limit`` cells of each row from ``offset`` on, in the order of their names."""

    offset: int
    limit: int


Filter: TypeAlias = "Comparison | Combination | Pagination"


# -- parsing -------------------------------------------------------------------------------------


@functools.lru_cache(maxsize=512)
def parse_filter(data: bytes) -> Filter:
    """Parse a Filter message.

    Raises:
        ServiceError: OTSParameterInvalid: the message is invalid, or contains too many filters.
    """
    _check_count(data)
    parsed = _parse(data)
    if isinstance(parsed, Combination) and _has_pagination(parsed):
        raise invalid("a column pagination filter cannot be part of another filter")
    return parsed


def _check_count(data: bytes) -> None:
    """Check the number of nested filters before anything else, because they may be nested deeply."""
    waiting, count = [data], 0
    while waiting:
        count += 1
        if count > SERVED_FILTERS:
            raise refused(f"The count of filter exceeds the max: {SERVED_FILTERS}.")
        try:
            message = read_message(pb.Filter, waiting.pop())
            if message.type == pb.FT_COMPOSITE_COLUMN_VALUE:
                parts = read_message(pb.CompositeColumnValueFilter, message.filter).sub_filters
                waiting += [part.SerializeToString() for part in parts[: SERVED_FILTERS + 1]]
        except DecodeError:
            raise invalid("a filter is not a Filter message") from None


def _parse(data: bytes) -> Filter:
    try:
        message = read_message(pb.Filter, data)
        match message.type:
            case pb.FT_SINGLE_COLUMN_VALUE:
                return _comparison(read_message(pb.SingleColumnValueFilter, message.filter))
            case pb.FT_COMPOSITE_COLUMN_VALUE:
                composite = read_message(pb.CompositeColumnValueFilter, message.filter)
                parts = tuple(_parse(part.SerializeToString()) for part in composite.sub_filters)
                return _combination(Combinator(composite.combinator), parts)
            case _:
                page = read_message(pb.ColumnPaginationFilter, message.filter)
                if page.offset < 0 or page.limit <= 0:
                    raise invalid("a column pagination filter has an offset of at least 0 and a limit of at least 1")
                return Pagination(page.offset, page.limit)
    except DecodeError:
        raise invalid("a filter is not a Filter message") from None


def _combination(combinator: Combinator, parts: tuple[Filter, ...]) -> Combination:
    if combinator is Combinator.NOT:
        if len(parts) != 1:
            raise refused("Invalid NOT operator: the number of sub-filters must be 1.")
    elif len(parts) < 2:
        raise refused("Invalid AND/OR operator: the number of sub-filters must be more than 1.")
    return Combination(combinator, parts)


def _comparison(message: pb.SingleColumnValueFilter) -> Comparison:
    comparator = Comparator(message.comparator)
    rule = None
    if message.HasField("value_trans_rule"):
        transformation = message.value_trans_rule
        casts = {
            pb.VT_INTEGER: CellType.INTEGER,
            pb.VT_DOUBLE: CellType.DOUBLE,
            pb.VT_STRING: CellType.STRING,
            pb.VT_BLOB: CellType.BINARY,
        }
        cast = casts.get(transformation.cast_type) if transformation.HasField("cast_type") else CellType.STRING
        if cast is None:
            raise invalid("a filter has an invalid cast type")
        rule = Rule(transformation.regex, cast)
    value: Value = None
    if comparator not in (Comparator.EXIST, Comparator.NOT_EXIST):
        value = decode_value(message.column_value)
        check_value_size(message.column_name, value)
        if cell_type(value) is None:
            raise invalid(f"a filter compares column {message.column_name!r} without a value", received=repr(value))
    missing = not message.filter_if_missing
    return Comparison(message.column_name, comparator, value, missing, rule, message.latest_version_only)


def column_names(parsed: Filter) -> Iterator[str]:
    """Yield the names of the columns in a filter."""
    if isinstance(parsed, Comparison):
        yield parsed.column
    elif isinstance(parsed, Combination):
        for part in parsed.parts:
            yield from column_names(part)


def _has_pagination(parsed: Filter) -> bool:
    return isinstance(parsed, Pagination) or (
        isinstance(parsed, Combination) and any(_has_pagination(part) for part in parsed.parts)
    )


# -- one row ------------------------------------------------------------------------------------------------


def matches(parsed: Filter, cells: Mapping[str, Sequence[Value]]) -> bool:
    """Return whether a row satisfies a filter.

    Args:
        cells: by wire name, the versions of the cells of key and attributes, the newest first.
    """
    match parsed:
        case Comparison():
            versions = cells.get(parsed.column) or (None,)
            return any(_matches_one(parsed, value) for value in (versions[:1] if parsed.latest_only else versions))
        case Combination(Combinator.NOT, parts):
            return not matches(parts[0], cells)
        case Combination(Combinator.AND, parts):
            return all(matches(part, cells) for part in parts)
        case Combination(_, parts):
            return any(matches(part, cells) for part in parts)
    return True


def _matches_one(comparison: Comparison, value: Value) -> bool:
    if comparison.comparator is Comparator.EXIST:
        return value is not None
    if comparison.comparator is Comparator.NOT_EXIST:
        return value is None
    if value is None:
        return comparison.if_missing
    if comparison.rule is not None:
        value = comparison.rule.apply(pa.array([value], pa.string()))[0] if isinstance(value, str) else None
        if value is None:
            return False
    if type(value) is not type(comparison.value):
        return comparison.comparator is Comparator.NOT_EQUAL
    return bool(_SCALAR[comparison.comparator](value, comparison.value))


# -- a page of rows -----------------------------------------------------------------------------------------


def mask(parsed: Filter, columns: Columns, count: int) -> Mask:
    """Return which of ``count`` rows satisfy a filter; see `matches`."""
    match parsed:
        case Comparison():
            return _mask_one(parsed, columns.get(parsed.column, ()), count)
        case Combination(Combinator.NOT, parts):
            return ~mask(parts[0], columns, count)
        case Combination(Combinator.AND, parts):
            return functools.reduce(np.logical_and, (mask(part, columns, count) for part in parts))
        case Combination(_, parts):
            return functools.reduce(np.logical_or, (mask(part, columns, count) for part in parts))
    return np.ones(count, np.bool_)


def _mask_one(comparison: Comparison, columns: Sequence[pa.Array], count: int) -> Mask:
    exists = np.zeros(count, np.bool_)
    holds = np.zeros(count, np.bool_)
    for column in columns:
        has_value = is_valid(column)
        exists |= has_value
        if comparison.comparator < Comparator.EXIST:
            holds |= has_value & _compare(comparison, column, count)
    match comparison.comparator:
        case Comparator.EXIST:
            return exists
        case Comparator.NOT_EXIST:
            return ~exists
    return holds | ~exists if comparison.if_missing else holds


def _compare(comparison: Comparison, column: pa.Array, count: int) -> Mask:
    if comparison.rule is not None:
        if not pa.types.is_string(column.type):
            return np.zeros(count, np.bool_)
        values = comparison.rule.apply(column)
        plain = Comparison(comparison.column, comparison.comparator, comparison.value, if_missing=False)
        return np.fromiter((_matches_one(plain, value) for value in values), np.bool_, count)
    kind = cell_type(comparison.value)
    assert kind is not None
    if type_of_column(column.type) is not kind:
        return np.full(count, comparison.comparator is Comparator.NOT_EQUAL)
    value = pa.scalar(comparison.value, ARROW_TYPES[kind])
    column = column.cast(ARROW_TYPES[kind])
    if kind is CellType.BOOLEAN:
        # Arrow does not order booleans.
        column, value = column.cast(pa.uint8()), value.cast(pa.uint8())
    return as_mask(_VECTOR[comparison.comparator](column, value).fill_null(False))


def paginated(page: Pagination, columns: Mapping[str, pa.Array], count: int) -> dict[str, pa.Array]:
    """Return columns with only the cells of a page of each row.

    Args:
        columns: the columns by any name, in the order of their wire names.
        count: the number of rows.
    """
    seen = np.zeros(count, np.int64)
    result = {}
    for name, column in columns.items():
        has_value = is_valid(column)
        inside = has_value & (seen >= page.offset) & (seen < page.offset + page.limit)
        seen += has_value
        result[name] = column if (inside == has_value).all() else pc.if_else(pa.array(inside), column, None)
    return result


# -- predicates for a store --------------------------------------------------------------------------------


def necessary(parsed: Filter | None, column_of: Callable[[str, CellType], str | None]) -> list[Predicate]:
    """Return necessary conditions of a filter. Rows that do not satisfy the filter may satisfy them, too.

    Args:
        column_of: returns the table's column of a name and type, if it has all cells of that name.
    """
    if isinstance(parsed, Combination) and parsed.combinator is Combinator.AND:
        return [predicate for part in parsed.parts for predicate in necessary(part, column_of)]
    if not isinstance(parsed, Comparison) or parsed.rule is not None or parsed.if_missing:
        return []
    kind = cell_type(parsed.value)
    comparison = _OPERATORS.get(parsed.comparator)
    if kind is None or comparison is None or kind is CellType.BOOLEAN:
        return []
    column = column_of(parsed.column, kind)
    return [] if column is None else [Predicate(column, comparison, parsed.value)]
