"""Conversion of Python values to and from Arrow: for composite types, and for rows that are read one by one.

On the wire a struct is a map (or a list of its members in order), a tuple a list, a dict a list of pairs, a variant a
pair of the alternative and its value, a uuid 16 bytes, a decimal bytes, and a time a number.
"""

from __future__ import annotations

import decimal
import math
from collections.abc import Callable, Mapping
from typing import Any, Final, TypeAlias

import numpy as np
import pyarrow as pa

from headrace_ytsaurus.wire.types import (
    RANGES,
    UNSIGNED,
    TypeV3,
    YtColumn,
    carried_as_yson,
    members_of,
    type_parts,
    untagged,
    without_optional,
)
from headrace_ytsaurus.wire.yson.conversion_errors import NOT_TEXT, conversion_error
from headrace_ytsaurus.wire.yson.documents import YsonError, dumps, loads

Convert: TypeAlias = Callable[[Any], Any]

_EXACT: Final = decimal.Context(prec=40)
_SECONDS: Final = ("datetime", "datetime64")
_TEXTS: Final = ("string", "utf8", "json")


class MisfitError(Exception):
    """A value does not fit; the caller adds column and row."""


def as_array(values: list[Any], column: YtColumn, first_row: int = 0, *, whole_doubles: bool = False) -> pa.Array:
    """Convert values from the wire to an Arrow array of the column's type; None is null.

    Args:
        values: numbers, bytes, lists and dicts, from `documents.load_fragment`.
        first_row: the number of the first row, for messages.
        whole_doubles: accept whole numbers as doubles, as in JSON.

    Raises:
        SchemaError: a value does not fit.
    """
    convert = _Converters(whole_doubles).of(column.yt, column.type)
    found: list[Any] = [None] * len(values)
    for row, value in enumerate(values):
        if value is not None:
            try:
                if getattr(value, "__dict__", {}).get("attributes"):
                    raise MisfitError("a value with attributes")
                found[row] = convert(value)
            except MisfitError as error:
                raise conversion_error(column, first_row + row, str(error)) from None
    return pa.array(found, type=column.type)


def as_values(array: pa.Array, column: YtColumn, first_row: int = 0) -> list[Any]:
    """Convert an Arrow array to values for `documents.dumps`; the inverse of `as_array`.

    Raises:
        SchemaError: a value does not fit the type in YTsaurus.
    """
    convert = _writer(column.yt, array.type)
    found: list[Any] = array.cast(numbered(array.type)).to_pylist()
    for row, value in enumerate(found):
        if value is not None:
            try:
                found[row] = convert(value)
            except MisfitError as error:
                raise conversion_error(column, first_row + row, str(error)) from None
    return found


def numbered(data_type: pa.DataType) -> pa.DataType:
    """Return a type with numbers in place of times, at any depth. Arrays can be cast to it without loss."""
    types = pa.types
    if types.is_timestamp(data_type) or types.is_duration(data_type):
        return pa.int64()
    if types.is_date32(data_type):
        return pa.int32()
    if types.is_list(data_type):
        return pa.list_(_numbered_field(data_type.value_field))
    if types.is_map(data_type):
        return pa.map_(_numbered_field(data_type.key_field), _numbered_field(data_type.item_field))
    if types.is_struct(data_type):
        return pa.struct([_numbered_field(field) for field in data_type])
    return data_type


def _numbered_field(field: pa.Field) -> pa.Field:
    return field.with_type(numbered(field.type))


def decimal_width(precision: int) -> int:
    """Return the number of bytes of a decimal on the wire for a number of digits."""
    return 4 if precision <= 9 else 8 if precision <= 18 else 16


class _Converters:
    """Creates converters from values of the wire to values for `pyarrow.array`."""

    def __init__(self, whole_doubles: bool) -> None:
        self._whole_doubles = whole_doubles

    def of(self, yt: TypeV3, data_type: pa.DataType) -> Convert:
        """Return the converter for values that are not null."""
        if carried_as_yson(yt, data_type):
            return lambda value: dumps(value, text=False)
        yt = untagged(without_optional(yt)[0])
        name, parts = type_parts(yt)
        if name in RANGES:
            return _read_number(name, data_type)
        match name:
            case "double" | "float":
                return self._double(name)
            case "bool":
                return _read_boolean
            case "decimal":
                return _read_decimal(parts["precision"], parts["scale"])
            case "uuid":
                return _read_uuid
            case "null" | "void":
                return _refuse
            case "list":
                item = self._member(parts["item"], data_type.value_type)
                return lambda value: [item(one) for one in _listed(value)]
            case "dict":
                return self._dict(parts, data_type)
            case "struct" | "tuple":
                return self._struct(yt, data_type)
            case "variant":
                return self._variant(yt, data_type)
        return _read_text if pa.types.is_string(data_type) else _read_bytes

    def _member(self, yt: TypeV3, data_type: pa.DataType) -> Convert:
        """Return the converter for inner values, which may be null if their type allows it."""
        return _nullable(self.of(yt, data_type), required=without_optional(yt)[1])

    def _double(self, name: str) -> Convert:
        kinds = (float, int) if self._whole_doubles else (float,)

        def double(value: Any) -> float:
            if not isinstance(value, kinds) or isinstance(value, bool):
                raise _wrong(value)
            try:
                found = float(value)
            except OverflowError:
                raise MisfitError("a number out of range") from None
            if name == "float":
                with np.errstate(over="ignore"):
                    if math.isinf(np.float32(found)) and not math.isinf(found):
                        raise MisfitError(f"a double {found!r}")
            return found

        return double

    def _dict(self, parts: Mapping[str, Any], data_type: pa.DataType) -> Convert:
        key, item = self._member(parts["key"], data_type.key_type), self._member(parts["value"], data_type.item_type)

        def pairs(value: Any) -> list[tuple[Any, Any]]:
            if isinstance(value, Mapping):
                return [(key(_key(name)), item(one)) for name, one in value.items()]
            return [(key(pair[0]), item(pair[1])) for pair in (_listed(pair, 2) for pair in _listed(value))]

        return pairs

    def _struct(self, yt: TypeV3, data_type: pa.DataType) -> Convert:
        fields = [
            (arrow_name, name.encode(), self._member(part, data_type.field(place).type))
            for place, (arrow_name, name, part) in enumerate(members_of(yt))
        ]
        by_place = type_parts(yt)[0] == "tuple"
        known = {name for _, name, _ in fields}

        def struct(value: Any) -> dict[str, Any]:
            if isinstance(value, Mapping) and not by_place:
                named = {_key(name): one for name, one in value.items()}
                if not named.keys() <= known:
                    raise MisfitError("a struct with members that its type does not have")
                return {arrow_name: convert(named.get(name)) for arrow_name, name, convert in fields}
            listed = _listed(value, len(fields))
            return {arrow_name: convert(one) for (arrow_name, _, convert), one in zip(fields, listed, strict=True)}

        return struct

    def _variant(self, yt: TypeV3, data_type: pa.DataType) -> Convert:
        members = members_of(yt)
        choices: dict[Any, tuple[str, Convert]] = {}
        for place, (arrow_name, name, part) in enumerate(members):
            choice = arrow_name, self._member(part, data_type.field(place).type)
            choices[place] = choice
            if "members" in type_parts(yt)[1]:
                choices[name.encode()] = choice

        def variant(value: Any) -> dict[str, Any]:
            chosen, one = _listed(value, 2)
            if isinstance(chosen, bool) or not isinstance(chosen, bytes | int) or chosen not in choices:
                raise MisfitError("a variant that its type does not have")
            arrow_name, convert = choices[chosen]
            return {arrow_name: convert(one)}

        return variant


def _read_number(name: str, data_type: pa.DataType) -> Convert:
    low, high = RANGES[name]
    as_decimal = pa.types.is_decimal(data_type)
    factor = 1_000_000 if name in _SECONDS else 1

    def number(value: Any) -> Any:
        if not isinstance(value, int) or isinstance(value, bool):
            raise _wrong(value)
        if not low <= value <= high:
            raise MisfitError(f"the number {int(value)}")
        return decimal.Decimal(int(value)) if as_decimal else int(value) * factor

    return number


def _read_boolean(value: Any) -> bool:
    if not isinstance(value, bool):
        raise _wrong(value)
    return value


def _read_bytes(value: Any) -> bytes:
    if not isinstance(value, bytes):
        raise _wrong(value)
    return bytes(value)


def _read_text(value: Any) -> str:
    try:
        return _read_bytes(value).decode()
    except UnicodeDecodeError:
        raise MisfitError(NOT_TEXT) from None


def _read_uuid(value: Any) -> bytes:
    if len(_read_bytes(value)) != 16:
        raise MisfitError(f"a string of {len(value)} bytes")
    return bytes(value)


def _read_decimal(precision: int, scale: int) -> Convert:
    width = decimal_width(precision)

    def number(value: Any) -> decimal.Decimal:
        if len(_read_bytes(value)) != width:
            raise MisfitError(f"a string of {len(value)} bytes")
        found = int.from_bytes(value, "big") - (1 << 8 * width - 1)
        if abs(found) >= 10**precision:
            raise MisfitError("infinity, NaN, or too many digits")
        return decimal.Decimal(found).scaleb(-scale, _EXACT)

    return number


def _refuse(value: Any) -> Any:
    raise _wrong(value)


def _key(name: Any) -> bytes:
    """Return the key of a map as bytes; `yt.yson` has separate classes for some keys."""
    return name if isinstance(name, bytes) else str(name).encode()


def _listed(value: Any, length: int | None = None) -> list[Any]:
    if not isinstance(value, list | tuple):
        raise _wrong(value)
    if length is not None and len(value) != length:
        raise MisfitError(f"a list of {len(value)} items where {length} belong")
    return list(value)


def _wrong(value: Any) -> MisfitError:
    kinds = (
        (bool, "a boolean"),
        (int, "a whole number"),
        (float, "a double"),
        (bytes | str, "a string"),
        (Mapping, "a map"),
        (list | tuple, "a list"),
    )
    return MisfitError(next((name for kind, name in kinds if isinstance(value, kind)), "null"))


def _writer(yt: TypeV3, data_type: pa.DataType) -> Convert:
    """Return the converter for values, not null, from the Python values of `numbered` arrays."""
    if carried_as_yson(yt, data_type):
        return _write_yson
    yt = untagged(without_optional(yt)[0])
    name, parts = type_parts(yt)
    if name in RANGES:
        return _write_number(name)
    match name:
        case "decimal":
            return _write_decimal(parts["precision"], parts["scale"])
        case "uuid":
            return _read_uuid
        case "null" | "void":
            return _refuse
        case "list":
            item = _write_member(parts["item"], data_type.value_type)
            return lambda value: [item(one) for one in value]
        case "dict":
            key, one = (
                _write_member(parts["key"], data_type.key_type),
                _write_member(parts["value"], data_type.item_type),
            )
            return lambda value: [[key(pair[0]), one(pair[1])] for pair in value]
        case "struct" | "tuple" | "variant":
            return _write_struct(name, yt, data_type)
    return lambda value: value


def _write_member(yt: TypeV3, data_type: pa.DataType) -> Convert:
    return _nullable(_writer(yt, data_type), required=without_optional(yt)[1])


def _nullable(convert: Convert, *, required: bool) -> Convert:
    def member(value: Any) -> Any:
        if value is not None:
            return convert(value)
        if required:
            raise MisfitError("null where the type is not optional")
        return None

    return member


def _write_struct(name: str, yt: TypeV3, data_type: pa.DataType) -> Convert:
    members = members_of(yt)
    converts = [
        (arrow_name, wire_name, _writer(part, data_type.field(place).type), without_optional(part)[1])
        for place, (arrow_name, wire_name, part) in enumerate(members)
    ]

    def variant(value: Mapping[str, Any]) -> list[Any]:
        chosen = [place for place, member in enumerate(members) if value[member[0]] is not None]
        if len(chosen) != 1:
            raise MisfitError(f"a variant with {len(chosen)} values")
        arrow_name, wire_name, convert, _ = converts[chosen[0]]
        by_name = "members" in type_parts(yt)[1]
        return [wire_name if by_name else chosen[0], convert(value[arrow_name])]

    if name == "variant":
        return variant

    def struct(value: Mapping[str, Any]) -> Any:
        found = {}
        for arrow_name, wire_name, convert, required in converts:
            one = value[arrow_name]
            if one is None and required:
                raise MisfitError("null where the type is not optional")
            found[wire_name] = None if one is None else convert(one)
        return found if name == "struct" else list(found.values())

    return struct


def _write_number(name: str) -> Convert:
    low, high = RANGES[name]
    unsigned, seconds = name in UNSIGNED, name in _SECONDS

    def number(value: Any) -> Any:
        from yt.yson import YsonUint64

        found, rest = divmod(int(value), 1_000_000) if seconds else (int(value), 0)
        if rest:
            raise MisfitError("a time with a fraction of a second")
        if not low <= found <= high:
            raise MisfitError(f"the number {found}")
        return YsonUint64(found) if unsigned else found

    return number


def _write_decimal(precision: int, scale: int) -> Convert:
    width = decimal_width(precision)

    def number(value: decimal.Decimal) -> bytes:
        found = int(value.scaleb(scale, _EXACT))
        if abs(found) >= 10**precision:
            raise MisfitError("too many digits")
        return (found + (1 << 8 * width - 1)).to_bytes(width, "big")

    return number


def _write_yson(value: bytes) -> Any:
    try:
        return loads(value)
    except YsonError as error:
        raise MisfitError(f"{error.problem}: {error.received}") from None
