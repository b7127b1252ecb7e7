"""Conversion of Arrow arrays into the exact type of a column, without loss."""

from __future__ import annotations

import numpy as np
import pyarrow as pa
import pyarrow.compute as pc

from headrace.model.types import is_array, is_bytes, is_text
from headrace.rows.conversion_errors import INVALID_UTF8, NULL, OUT_OF_RANGE, WRONG_TYPE, ConversionError
from headrace.rows.nested import Mask, build_lists, build_structs, elements, is_valid


def from_arrow(array: pa.Array, target: pa.DataType) -> pa.Array:
    """Return an array with exactly the target type, at all levels.

    Raises:
        ConversionError: the type cannot represent a value.
    """
    if pa.types.is_dictionary(array.type):
        try:
            array = array.dictionary_decode()
        except pa.ArrowException:
            raise ConversionError("an index outside the dictionary") from None
    if not _can_convert(array.type, target):
        if array.null_count == len(array):
            return pa.nulls(len(array), target)
        raise ConversionError(f"{WRONG_TYPE} {array.type}")
    if pa.types.is_nested(target):
        return _to_struct(array, target) if pa.types.is_struct(target) else _to_list(array, target)
    if pa.types.is_string(target):
        _check_utf8(array)
    if array.type == target:
        return array
    try:
        if pa.types.is_decimal(target):
            return _to_decimal(array, target)
        converted = array.cast(target)
    except pa.ArrowInvalid:
        raise ConversionError(OUT_OF_RANGE) from None
    if pa.types.is_floating(array.type) and pa.types.is_floating(target):
        check_finite(array, converted)
    return converted


def check_finite(before: pa.Array, after: pa.Array) -> None:
    """Raise `ConversionError` if a finite number became infinite."""
    overflown = pc.and_(pc.is_finite(before), pc.invert(pc.is_finite(after)))
    if pc.any(overflown, min_count=0).as_py():
        raise ConversionError(OUT_OF_RANGE)


def _can_convert(source: pa.DataType, target: pa.DataType) -> bool:
    types = pa.types
    if types.is_integer(target) or types.is_floating(target):
        return bool(types.is_integer(source) or types.is_floating(source))
    if types.is_decimal(target):
        return bool(types.is_integer(source) or types.is_decimal(source))
    if types.is_string(target):
        return is_text(source)
    if types.is_binary(target):
        return is_bytes(source)
    if types.is_timestamp(target):
        # A time with a zone has no local date and time without a choice of zone.
        return bool(types.is_date(source) or (types.is_timestamp(source) and (target.tz or not source.tz)))
    if types.is_date(target):
        return bool(types.is_date(source))
    if types.is_duration(target):
        return bool(types.is_duration(source))
    if types.is_list(target):
        return is_array(source)
    if types.is_map(target):
        return bool(types.is_map(source))
    if types.is_struct(target):
        return bool(types.is_struct(source))
    return bool(source == target)


def _to_list(array: pa.Array, target: pa.DataType) -> pa.Array:
    sizes, columns = elements(array)
    fields = [target.key_field, target.item_field] if pa.types.is_map(target) else [target.value_field]
    steps = [".key", ".value"] if pa.types.is_map(target) else ["[]"]
    inner = []
    for column, field, step in zip(columns, fields, steps, strict=True):
        converted = _inside(column, field.type, step)
        if converted.null_count and not field.nullable:
            raise ConversionError(NULL, step)
        inner.append(converted)
    return build_lists(target, sizes, is_valid(array) if array.null_count else None, inner)


def _to_struct(array: pa.Array, target: pa.DataType) -> pa.Array:
    given = [field.name for field in array.type]
    names = [field.name for field in target]
    for name in given:
        if name not in names or given.count(name) > 1:
            raise ConversionError("a field that the type does not have, or a duplicate", f".{name}")
    valid = is_valid(array) if array.null_count else None
    columns = dict(zip(given, array.flatten(), strict=True))
    inner = []
    for field in target:
        step = f".{field.name}"
        if field.name in columns:
            converted = _inside(columns[field.name], field.type, step)
        else:
            converted = pa.nulls(len(array), field.type)
        if converted.null_count and not field.nullable:
            check_not_null(converted, valid, step)
        inner.append(converted)
    return build_structs(target, len(array), valid, inner)


def check_not_null(values: pa.Array, valid: Mask | None, step: str) -> None:
    """Raise `ConversionError` if a struct that is not null has a null field."""
    if np.any(~is_valid(values) if valid is None else valid & ~is_valid(values)):
        raise ConversionError(NULL, step)


def _inside(values: pa.Array, target: pa.DataType, step: str) -> pa.Array:
    try:
        return from_arrow(values, target)
    except ConversionError as error:
        raise error.inside(step) from None


def _check_utf8(array: pa.Array) -> None:
    try:
        array.validate(full=True)
    except pa.ArrowInvalid:
        raise ConversionError(INVALID_UTF8) from None


def _to_decimal(array: pa.Array, target: pa.DataType) -> pa.Array:
    if pa.types.is_integer(array.type):
        array = array.cast(pa.decimal128(20, 0))
    # With 256 bits, because Arrow's 128-bit rescaling overflows silently.
    return array.cast(pa.decimal256(76, target.scale)).cast(target)
