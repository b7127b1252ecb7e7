"""Column types: their names, and the Arrow and Spark types they stand for.

A type is written as Spark SQL writes it (``long`` or ``bigint``, ``decimal(10,2)``, …) and held as an
Arrow type. Timestamps are instants: microseconds since 1970 in UTC.
"""

from __future__ import annotations

import re

import pyarrow as pa

from headrace.errors import SchemaError

_NAMED: dict[str, pa.DataType] = {
    "boolean": pa.bool_(),
    "byte": pa.int8(),
    "short": pa.int16(),
    "int": pa.int32(),
    "long": pa.int64(),
    "float": pa.float32(),
    "double": pa.float64(),
    "string": pa.string(),
    "binary": pa.binary(),
    "date": pa.date32(),
    "timestamp": pa.timestamp("us", tz="UTC"),
}
_ALIASES = {
    "bool": "boolean",
    "tinyint": "byte",
    "smallint": "short",
    "integer": "int",
    "bigint": "long",
    "real": "float",
    "dec": "decimal",
    "numeric": "decimal",
}
_DECIMAL = re.compile(r"decimal(?:\s*\(\s*(\d+)\s*(?:,\s*(\d+)\s*)?\))?")
VALID_TYPE_NAMES = (*_NAMED, "decimal(p,s)")
KEY_TYPES: tuple[pa.DataType, ...] = (pa.string(), pa.int64(), pa.binary())


def parse_type(text: str | pa.DataType) -> pa.DataType:
    """Return the Arrow type for a type name such as ``"long"``, in any case, or check an Arrow type.

    Raises:
        SchemaError: the name is unknown, or the Arrow type has no place in a table.
    """
    if isinstance(text, pa.DataType):
        return parse_type(type_name(text))
    name = text.strip().lower()
    head = re.match(r"[a-z]*", name)
    word = head.group() if head else ""
    name = _ALIASES.get(word, word) + name[len(word) :]
    if name in _NAMED:
        return _NAMED[name]
    match = _DECIMAL.fullmatch(name)
    if match:
        precision, scale = int(match[1] or 10), int(match[2] or 0)
        if 1 <= precision <= 38 and 0 <= scale <= precision:
            return pa.decimal128(precision, scale)
    raise SchemaError("unknown column type", received=repr(text), valid=VALID_TYPE_NAMES)


def type_name(data_type: pa.DataType) -> str:
    """Return the name of an Arrow type; the inverse of `parse_type`.

    Arrow's other widths of the same thing (large strings, string views, other time units) take the
    name of the type that they are stored as.
    """
    for name, known in _NAMED.items():
        if data_type.equals(known):
            return name
    if pa.types.is_decimal(data_type) and data_type.precision <= 38:
        return f"decimal({data_type.precision},{data_type.scale})"
    if pa.types.is_large_string(data_type) or pa.types.is_string_view(data_type):
        return "string"
    if (
        pa.types.is_large_binary(data_type)
        or pa.types.is_binary_view(data_type)
        or pa.types.is_fixed_size_binary(data_type)
    ):
        return "binary"
    if pa.types.is_timestamp(data_type):
        return "timestamp"
    if pa.types.is_date(data_type):
        return "date"
    if pa.types.is_dictionary(data_type):
        return type_name(data_type.value_type)
    raise SchemaError("a column cannot have this type", received=data_type, valid=VALID_TYPE_NAMES)
