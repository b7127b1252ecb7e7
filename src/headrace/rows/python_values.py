"""Conversion of Python values into the exact type of a column, without loss."""

from __future__ import annotations

import datetime
import decimal
import os
import threading
from collections.abc import Callable, Mapping, Sequence
from itertools import chain
from typing import Any

import numpy as np
import pyarrow as pa

# Hooks run in reverse order of registration. Ours must run before that of `forks`: a thread that loads pandas may
# collect a handle of a store, which waits for the fork to end.
import headrace.support.sqlite.forks  # noqa: F401
from headrace.rows.arrow_values import check_finite, check_not_null
from headrace.rows.conversion_errors import INVALID_UTF8, NULL, OUT_OF_RANGE, WRONG_TYPE, ConversionError
from headrace.rows.nested import Mask, Numbers, build_lists, build_structs

_INTEGERS: tuple[type, ...] = (int, np.integer)
_FLOATS: tuple[type, ...] = (float, np.floating)
_SEQUENCES: tuple[type, ...] = (list, tuple, np.ndarray)


def _before_fork() -> None:
    """Wait until pyarrow has looked for pandas.

    It does so at the first conversion of a process, under a lock. A child that is forked while another thread holds the
    lock would wait for ever at its own first conversion.
    """
    if threading.active_count() > 1:
        pa.array([])


os.register_at_fork(before=_before_fork)


def from_python(values: Sequence[Any], target: pa.DataType) -> pa.Array:
    """Return an array with exactly the target type, at all levels.

    The value of an array is a list, a tuple or a numpy array; of a map, a mapping or (key, value) pairs, as in Arrow;
    of a struct, a mapping, in which a missing field is null.

    Raises:
        ConversionError: the type cannot represent a value.
    """
    kinds = set(map(type, values))
    # NaT and NA of pandas are nulls.
    if absent := {kind for kind in kinds if kind.__name__ in ("NaTType", "NAType")}:
        values = [None if type(value) in absent else value for value in values]
    kinds -= {type(None), *absent}
    if build := _nested(target):
        return build(values, kinds, target)
    values = _prepared(values, kinds, target)
    try:
        array = pa.array(values, target)
    except (pa.ArrowException, UnicodeError, OverflowError, ValueError, TypeError) as error:
        raise ConversionError(INVALID_UTF8 if isinstance(error, UnicodeError) else OUT_OF_RANGE) from None
    if pa.types.is_float32(target):
        check_finite(pa.array(values, pa.float64()), array)
    return array


# -- composite values -----------------------------------------------------------------------------------


def _nested(target: pa.DataType) -> Callable[[Sequence[Any], set[type], pa.DataType], pa.Array] | None:
    if pa.types.is_list(target):
        return _to_list
    if pa.types.is_map(target):
        return _to_map
    return _to_struct if pa.types.is_struct(target) else None


def _to_list(values: Sequence[Any], kinds: set[type], target: pa.DataType) -> pa.Array:
    _only(kinds, *_SEQUENCES)
    _check_dimensions(values)
    flat = list(chain.from_iterable(value for value in values if value is not None))
    inner = _inside(flat, target.value_field, "[]")
    return build_lists(target, _sizes(values), _valid(values), [inner])


def _to_map(values: Sequence[Any], kinds: set[type], target: pa.DataType) -> pa.Array:
    _only(kinds, Mapping, *_SEQUENCES)
    _check_dimensions(values)
    pairs = list(
        chain.from_iterable(
            value.items() if isinstance(value, Mapping) else value for value in values if value is not None
        )
    )
    if not all(isinstance(pair, tuple | list) and len(pair) == 2 for pair in pairs):
        raise ConversionError(WRONG_TYPE)
    keys = _inside([pair[0] for pair in pairs], target.key_field, ".key")
    items = _inside([pair[1] for pair in pairs], target.item_field, ".value")
    return build_lists(target, _sizes(values), _valid(values), [keys, items])


def _check_dimensions(values: Sequence[Any]) -> None:
    """Raise `ConversionError` for a numpy array without dimensions."""
    if any(isinstance(value, np.ndarray) and not value.ndim for value in values):
        raise ConversionError(WRONG_TYPE)


def _to_struct(values: Sequence[Any], kinds: set[type], target: pa.DataType) -> pa.Array:
    _only(kinds, Mapping)
    names = {field.name for field in target}
    for name in chain.from_iterable(value for value in values if value is not None):
        if name not in names:
            raise ConversionError("a field that the type does not have", f".{name}")
    valid = _valid(values)
    inner = []
    for field in target:
        step = f".{field.name}"
        cells = [None if value is None else value.get(field.name) for value in values]
        converted = _inside(cells, field.with_nullable(True), step)
        if converted.null_count and not field.nullable:
            check_not_null(converted, valid, step)
        inner.append(converted)
    return build_structs(target, len(values), valid, inner)


def _inside(values: Sequence[Any], field: pa.Field, step: str) -> pa.Array:
    try:
        converted = from_python(values, field.type)
    except ConversionError as error:
        raise error.inside(step) from None
    if converted.null_count and not field.nullable:
        raise ConversionError(NULL, step)
    return converted


def _sizes(values: Sequence[Any]) -> Numbers:
    return np.fromiter((0 if value is None else len(value) for value in values), np.int64, len(values))


def _valid(values: Sequence[Any]) -> Mask:
    return np.fromiter((value is not None for value in values), np.bool_, len(values))


# -- plain values ---------------------------------------------------------------------------------------


def _prepared(values: Sequence[Any], kinds: set[type], target: pa.DataType) -> Sequence[Any]:
    """Return the values in a form that `pa.array` converts without loss, or raise `ConversionError`."""
    types = pa.types
    if types.is_integer(target):
        _only(kinds, *_INTEGERS, *_FLOATS)
        if any(issubclass(kind, _FLOATS) for kind in kinds):
            return [_integral(value) for value in values]
    elif types.is_floating(target):
        _only(kinds, *_INTEGERS, *_FLOATS)
    elif types.is_boolean(target):
        _only(kinds, bool, np.bool_)
    elif types.is_string(target):
        _only(kinds, str)
    elif types.is_binary(target):
        _only(kinds, bytes, bytearray, memoryview)
    elif types.is_decimal(target):
        _only(kinds, decimal.Decimal, *_INTEGERS)
    elif types.is_date(target):
        _only(kinds, datetime.date)
        if any(issubclass(kind, datetime.datetime) for kind in kinds):
            raise ConversionError(WRONG_TYPE)
    elif types.is_duration(target):
        _only(kinds, datetime.timedelta)
        if any(getattr(value, "nanoseconds", 0) for value in values):
            raise ConversionError(OUT_OF_RANGE)
    else:
        return _times(values, kinds, target)
    return values


def _times(values: Sequence[Any], kinds: set[type], target: pa.DataType) -> Sequence[Any]:
    _only(kinds, datetime.date)
    if any(getattr(value, "nanosecond", 0) for value in values):
        raise ConversionError(OUT_OF_RANGE)
    # A time with a zone has no local date and time without a choice of zone.
    if target.tz is None and any(getattr(value, "tzinfo", None) is not None for value in values):
        raise ConversionError(WRONG_TYPE)
    if all(issubclass(kind, datetime.datetime) for kind in kinds):
        return values
    zone = None if target.tz is None else datetime.UTC
    return [_midnight(value, zone) for value in values]


def _only(kinds: set[type], *allowed: type) -> None:
    for kind in kinds:
        if not issubclass(kind, allowed) or (issubclass(kind, bool) and bool not in allowed):
            raise ConversionError(WRONG_TYPE)


def _integral(value: Any) -> Any:
    if value is None or isinstance(value, _INTEGERS):
        return value
    if not float(value).is_integer():
        raise ConversionError(OUT_OF_RANGE)
    return int(value)


def _midnight(value: Any, zone: datetime.tzinfo | None) -> Any:
    if value is None or isinstance(value, datetime.datetime):
        return value
    return datetime.datetime(value.year, value.month, value.day, tzinfo=zone)
