"""The conditions of a scan on rows in Arrow, for stores that do not evaluate all of them."""

from __future__ import annotations

from collections.abc import Sequence

import pyarrow as pa
import pyarrow.compute as pc

from headrace.model.tables.conditions import Predicate
from headrace.model.tables.schema import Column
from headrace.rows.conditions import operands


def satisfied(rows: pa.RecordBatch, columns: Sequence[Column], predicates: Sequence[Predicate]) -> pa.RecordBatch:
    """Return the rows that satisfy all conditions.

    Null never satisfies a comparison, NaN equals NaN and is greater than every number, -0.0 equals 0.0.
    """
    by_name = {column.name: column for column in columns}
    for predicate in predicates:
        mask = _mask(rows.column(predicate.column), by_name[predicate.column], predicate)
        rows = rows.filter(pc.fill_null(mask, False))
    return rows


def _mask(values: pa.Array, column: Column, predicate: Predicate) -> pa.Array:
    match predicate.operator:
        case "is null":
            return values.is_null()
        case "is not null":
            return values.is_valid()
    found = operands(column, predicate)
    if predicate.operator == "in":
        mask = pa.array([False] * len(values), pa.bool_())
        if not pa.types.is_floating(column.type):
            return pc.is_in(values, value_set=found)
        for value in found:
            mask = pc.or_(mask, pc.fill_null(_equal(values, value), False))
        return mask
    if not len(found):
        return pa.array([False] * len(values), pa.bool_())
    value = found[0]
    match predicate.operator:
        case "=":
            return _equal(values, value)
        case "!=":
            return pc.invert(_equal(values, value))
        case "<":
            return _less(values, value)
        case "<=":
            return pc.or_(_less(values, value), _equal(values, value))
        case ">":
            return pc.invert(pc.or_(_less(values, value), _equal(values, value)))
        case ">=":
            return pc.invert(_less(values, value))
        case _:
            return pc.starts_with(values, pattern=value.as_py())


def _equal(values: pa.Array, value: pa.Scalar) -> pa.Array:
    if _is_nan(value):
        return pc.is_nan(values)
    return pc.equal(values, value)


def _less(values: pa.Array, value: pa.Scalar) -> pa.Array:
    if _is_nan(value):
        return pc.invert(pc.is_nan(values))
    return pc.less(values, value)


def _is_nan(value: pa.Scalar) -> bool:
    return bool(pa.types.is_floating(value.type) and value.as_py() != value.as_py())
