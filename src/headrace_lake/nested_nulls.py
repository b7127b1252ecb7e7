"""Structs that are null, for Parquet: their NOT NULL fields need values, which no reader sees."""

from __future__ import annotations

import pyarrow as pa

from headrace.rows.nested import build_lists, build_structs, elements, is_valid, one_array


def with_inner_values(column: pa.ChunkedArray) -> pa.ChunkedArray:
    """Return a column in which NOT NULL fields of null structs have a value. Other values are unchanged."""
    if not _has_required_fields(column.type):
        return column
    return pa.chunked_array([_filled(one_array(column))], column.type)


def _has_required_fields(kind: pa.DataType) -> bool:
    fields = [kind.field(number) for number in range(kind.num_fields)]
    required = pa.types.is_struct(kind) and any(not field.nullable for field in fields)
    return required or any(_has_required_fields(field.type) for field in fields)


def _filled(values: pa.Array) -> pa.Array:
    kind = values.type
    if pa.types.is_struct(kind):
        children = [_filled(values.field(number)) for number in range(kind.num_fields)]
        children = [
            child if kind.field(number).nullable or not child.null_count else _valid(child)
            for number, child in enumerate(children)
        ]
        return build_structs(kind, len(values), is_valid(values), children)
    if pa.types.is_nested(kind):
        sizes, parts = elements(values)
        return build_lists(kind, sizes, is_valid(values), [_filled(part) for part in parts])
    return values


def _valid(values: pa.Array) -> pa.Array:
    """Return an array without nulls: a null becomes any value."""
    kind = values.type
    if pa.types.is_struct(kind):
        children = [values.field(number) for number in range(kind.num_fields)]
        return build_structs(kind, len(values), None, children)
    if pa.types.is_nested(kind):
        sizes, parts = elements(values)
        return build_lists(kind, sizes, None, parts)
    return pa.Array.from_buffers(kind, len(values), [None, *values.buffers()[1:]], offset=values.offset)
