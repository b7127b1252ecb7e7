"""Conditions as Tablestore's filters, and as a mask over rows that came through one.

The service compares cells of any type with the value of a filter, and does not document how it orders NaN or signed
zeros. So a filter excludes only rows that certainly do not satisfy the conditions, and the mask decides.
Comparisons follow Spark: null never satisfies a condition, NaN equals NaN and is greater than every number, and -0.0
equals 0.0.
"""

from __future__ import annotations

import math
from collections.abc import Sequence
from typing import Any

import numpy as np
import pyarrow as pa
import pyarrow.compute as pc

from headrace.model.tables.conditions import Predicate
from headrace.model.tables.schema import TableSchema
from headrace.rows.conditions import check_comparable, operands
from headrace_tablestore.wire import table_pb2 as pb
from headrace_tablestore.wire.limits import MAX_FILTERS
from headrace_tablestore.wire.plainbuffer.rows import encode_value

_COMPARATORS = {
    "=": pb.CT_EQUAL,
    "!=": pb.CT_NOT_EQUAL,
    ">": pb.CT_GREATER_THAN,
    ">=": pb.CT_GREATER_EQUAL,
    "<": pb.CT_LESS_THAN,
    "<=": pb.CT_LESS_EQUAL,
}
# Operators that NaN satisfies in Spark, but not in the service: the service gets the opposite, negated.
_OPPOSITES = {"!=": "=", ">": "<=", ">=": "<"}
_EXACT_TYPES = (pa.string(), pa.binary(), pa.int64())


def check(schema: TableSchema, predicates: Sequence[Predicate]) -> None:
    """Raise `SchemaError` or `OptionError` for a condition that cannot be evaluated."""
    for predicate in predicates:
        column = schema.column(predicate.column)
        if predicate.operator in ("is null", "is not null"):
            continue
        check_comparable(column, predicate.operator)
        operands(column, predicate)


# -- for the service ----------------------------------------------------------------------------------------


def filter_of(schema: TableSchema, predicates: Sequence[Predicate]) -> bytes | None:
    """Return a filter that accepts all rows that satisfy the conditions; None if it would accept every row.

    The read must include its columns.
    """
    parts: list[pb.Filter] = []
    room = MAX_FILTERS
    for predicate in predicates:
        part, size = _part(schema, predicate)
        if part is not None and size <= room:
            parts.append(part)
            room -= size
    if not parts:
        return None
    return (parts[0] if len(parts) == 1 else _combined(pb.LO_AND, parts)).SerializeToString()


def _part(schema: TableSchema, predicate: Predicate) -> tuple[pb.Filter | None, int]:
    """Return one condition as a filter and the number of comparisons in it; None where it cannot be one."""
    column = schema.column(predicate.column)
    # Conditions on the key become ranges. The service cannot test for null: for headrace, a cell of another type than
    # the column's is null, too.
    if column.name in schema.primary_key or (predicate.operator not in _COMPARATORS and predicate.operator != "in"):
        return None, 0
    values: list[Any] = operands(column, predicate).to_pylist()
    if not values or not all(_comparable(column.type, predicate.operator, value) for value in values):
        return None, 0
    if predicate.operator == "in":
        equal = [_comparison(column.name, "=", value) for value in values]
        return (equal[0] if len(equal) == 1 else _combined(pb.LO_OR, equal)), len(equal)
    if pa.types.is_floating(column.type) and predicate.operator in _OPPOSITES:
        return _combined(pb.LO_NOT, [_comparison(column.name, _OPPOSITES[predicate.operator], values[0])]), 1
    return _comparison(column.name, predicate.operator, values[0]), 1


def _comparable(data_type: pa.DataType, operator: str, value: Any) -> bool:
    """Tell whether the service is sure to compare with a value as we do, or lets more rows through."""
    if data_type == pa.bool_():
        return operator in ("=", "!=")
    if data_type == pa.float64():
        return math.isfinite(value) and value != 0.0
    # Values of a float column are doubles in the service, with digits that the column does not have.
    return data_type in _EXACT_TYPES or pa.types.is_integer(data_type)


def _comparison(column: str, operator: str, value: Any) -> pb.Filter:
    single = pb.SingleColumnValueFilter(
        comparator=_COMPARATORS[operator],
        column_name=column,
        column_value=encode_value(value),
        filter_if_missing=True,
        latest_version_only=True,
    )
    return pb.Filter(type=pb.FT_SINGLE_COLUMN_VALUE, filter=single.SerializeToString())


def _combined(combinator: pb.LogicalOperator, parts: Sequence[pb.Filter]) -> pb.Filter:
    composite = pb.CompositeColumnValueFilter(combinator=combinator, sub_filters=parts)
    return pb.Filter(type=pb.FT_COMPOSITE_COLUMN_VALUE, filter=composite.SerializeToString())


# -- over rows ----------------------------------------------------------------------------------------------


def matching(rows: pa.RecordBatch, schema: TableSchema, predicates: Sequence[Predicate]) -> pa.RecordBatch:
    """Return the rows that satisfy all conditions; they have the columns of the conditions, in the schema's types."""
    for predicate in predicates:
        rows = rows.filter(_mask(rows.column(predicate.column), schema, predicate))
    return rows


def _mask(values: pa.Array, schema: TableSchema, predicate: Predicate) -> pa.BooleanArray:
    if predicate.operator == "is null":
        return values.is_null()
    if predicate.operator == "is not null":
        return values.is_valid()
    wanted = operands(schema.column(predicate.column), predicate)
    if len(wanted) == 0:
        return pa.array(np.zeros(len(values), np.bool_))
    match predicate.operator:
        case "starts with":
            mask = pc.starts_with(values, pattern=wanted[0].as_py())
        case "in" if not pa.types.is_floating(values.type):
            mask = pc.is_in(values, value_set=wanted)
        case "in":
            mask = _compared(values, "=", wanted[0])
            for each in wanted[1:]:
                mask = pc.or_(mask, _compared(values, "=", each))
        case operator:
            mask = _compared(values, operator, wanted[0])
    return pc.and_(mask.fill_null(False), values.is_valid())


_KERNELS = {
    "=": pc.equal,
    "!=": pc.not_equal,
    "<": pc.less,
    "<=": pc.less_equal,
    ">": pc.greater,
    ">=": pc.greater_equal,
}


def _compared(values: pa.Array, operator: str, operand: pa.Scalar) -> pa.BooleanArray:
    if values.type == pa.bool_():
        return _KERNELS[operator](values.cast(pa.int8()), operand.cast(pa.int8()))
    if not pa.types.is_floating(values.type):
        return _KERNELS[operator](values, operand)
    # NaN as a number above all others, and every other number below it.
    not_a_number = pc.is_nan(values)
    if math.isnan(operand.as_py()):
        return _KERNELS[operator](not_a_number.cast(pa.int8()), pa.scalar(1, pa.int8()))
    compared = _KERNELS[operator](values, operand)
    return pc.or_(compared, not_a_number) if operator in (">", ">=") else compared
