"""Column types: their names and their Arrow types.

The name of a type is its name in Spark SQL (``long`` or ``bigint``, ``decimal(10,2)``, ``array<string>``,
``map<string,long>``, ``struct<id:long not null,note:string>``), with up to `MAX_NESTING` nested levels. Common names of
other systems (``int64``, ``text``, ``varchar``, ``timestamp without time zone``) mean the same types. Its Arrow type
is the one that Spark uses, including names and nullability of inner fields. Elements of arrays and values of maps may
also be ``not null``, which Spark supports but has no syntax for. Keys of maps are never null.

A ``timestamp`` is a point in time: microseconds since 1970 in UTC. A ``timestamp_ntz`` is a date and time without a
time zone. An ``interval day to second``, or a part of it, is a number of microseconds.
"""

from __future__ import annotations

import re
from collections.abc import Collection, Sequence

import pyarrow as pa

from headrace.errors import SchemaError, shown

_DAY_TIME_UNITS = ("day", "hour", "minute", "second")
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
    "timestamp_ntz": pa.timestamp("us"),
}
# Other names: of Spark SQL, of standard SQL, of Arrow and pandas. A name with a length is none of them, because no
# column has a maximum length. `int8` is not one either: it has 8 bits in Arrow and 8 bytes in PostgreSQL.
_ALIASES = {
    "bool": "boolean",
    "tinyint": "byte",
    "smallint": "short",
    "int16": "short",
    "integer": "int",
    "int32": "int",
    "bigint": "long",
    "int64": "long",
    "real": "float",
    "float32": "float",
    "float64": "double",
    "dec": "decimal",
    "numeric": "decimal",
    "text": "string",
    "varchar": "string",
    "str": "string",
    "uuid": "string",
    "blob": "binary",
    "bytea": "binary",
    "bytes": "binary",
    "timestamp_ltz": "timestamp",
    "timestamptz": "timestamp",
    "datetime": "timestamp_ntz",
}
_INTERVAL = pa.duration("us")
_INTERVAL_NAME = "interval day to second"
VALID_TYPE_NAMES = (
    *_NAMED,
    "decimal(p,s) of up to 38 digits",
    _INTERVAL_NAME,
    "array<type>",
    "map<type,type>",
    "struct<name:type,…>",
)
MAX_NESTING = 30
"""The maximum number of nested arrays, maps and structs.

Arrow supports 64 levels. A map has two levels, and Spark adds a struct around all columns.
"""
KEY_TYPE_NAMES = (
    "string",
    "long",
    "binary",
    "boolean",
    "byte",
    "short",
    "int",
    "decimal(p,s)",
    "date",
    "timestamp",
    "timestamp_ntz",
)
"""The names of all types that key columns can have; a store may have fewer, see `headrace.ports.Capabilities`."""
COMMON_KEY_TYPES = KEY_TYPE_NAMES[:3]
"""The names of the types that key columns can have in every store of headrace."""
_KEY_TYPES = [_NAMED[name] for name in KEY_TYPE_NAMES if name in _NAMED]

_TOKEN = re.compile(r"\s*(`(?:[^`]|``)+`|\w+|[<>(),:]|\S)")
_PLAIN_NAME = re.compile(r"[A-Za-z_][A-Za-z0-9_]*")
# Metadata of types that Spark represents as structs.
_SPARK_OWN = (b"variant", b"geometry", b"geography")


def parse_type(text: str | pa.DataType) -> pa.DataType:
    """Return the Arrow type for a type name such as ``"long"``, ignoring case, or check an Arrow type.

    Raises:
        SchemaError: the name is unknown, a column cannot have the Arrow type, or the type has too many levels.
    """
    if isinstance(text, pa.DataType):
        check_nesting(text)
        return parse_type(type_name(text))
    if not isinstance(text, str):
        raise SchemaError("a type is a name or an Arrow type", received=shown(text), valid=VALID_TYPE_NAMES)
    return _Parser(text).parse()


def check_nesting(data_type: pa.DataType, column: str = "") -> None:
    """Raise `SchemaError` if a type has more than `MAX_NESTING` nested arrays, maps and structs."""
    # Without recursion: a type can have more levels than Python's stack.
    level = [data_type]
    for _ in range(MAX_NESTING + 1):
        level = [inner for outer in level for inner in _inner_types(outer)]
        if not level:
            return
    raise _too_deep(column)


def _inner_types(data_type: pa.DataType) -> list[pa.DataType]:
    if pa.types.is_map(data_type):
        return [data_type.key_type, data_type.item_type]
    return [data_type.field(index).type for index in range(data_type.num_fields)]


def _too_deep(column: str = "", at: str = "") -> SchemaError:
    return SchemaError(
        f"the type{f' of column {column!r}' if column else ''} is nested too deeply{at}",
        valid=f"at most {MAX_NESTING} nested arrays, maps and structs",
        remedy="use a string (JSON, for example) or a binary for the inner values",
    )


class _Parser:
    """Parses one type name."""

    def __init__(self, text: str) -> None:
        self._text = text
        found = list(_TOKEN.finditer(text))
        self._tokens = [match[1] for match in found]
        self._starts = [match.start(1) for match in found]
        self._at = 0
        self._depth = 0

    def parse(self) -> pa.DataType:
        found = self._type()
        if self._at < len(self._tokens):
            if self._tokens[self._at] == "(":
                raise SchemaError(
                    f"type {type_name(found)} has no length or precision",
                    received=shown(self._text),
                    remedy="leave out the parentheses",
                )
            raise self._error(self._tokens[self._at])
        return found

    def _type(self) -> pa.DataType:
        word = self._next()
        name = _ALIASES.get(word.lower(), word.lower())
        if word.lower() == "timestamp":
            return self._timestamp()
        if name == "double":
            self._take("precision")
        if name in _NAMED:
            return _NAMED[name]
        match name:
            case "decimal":
                return self._decimal()
            case "interval":
                return self._interval()
            case "array" | "map" | "struct":
                return self._composite(name)
        raise self._error(word)

    def _composite(self, name: str) -> pa.DataType:
        if self._depth == MAX_NESTING:
            raise _too_deep(at=f" from character {self._starts[self._at - 1] + 1} on")
        self._depth += 1
        found = {"array": self._array, "map": self._map, "struct": self._struct}[name]()
        self._depth -= 1
        return found

    def _array(self) -> pa.DataType:
        self._expect("<")
        element = self._field("element")
        self._expect(">")
        return pa.list_(element)

    def _field(self, name: str) -> pa.Field:
        """Parse a type, and ``not null`` if it follows; return a field."""
        data_type = self._type()
        if not self._take("not"):
            return pa.field(name, data_type)
        self._expect("null")
        return pa.field(name, data_type, nullable=False)

    def _decimal(self) -> pa.DataType:
        precision, scale = 10, 0
        if self._take("("):
            precision = self._number()
            scale = self._number() if self._take(",") else 0
            self._expect(")")
        if not 1 <= precision <= 38 or not 0 <= scale <= precision:
            raise self._error(f"decimal({precision},{scale})")
        return pa.decimal128(precision, scale)

    def _timestamp(self) -> pa.DataType:
        without = self._take("without")
        if without or self._take("with"):
            self._expect("time")
            self._expect("zone")
        return _NAMED["timestamp_ntz" if without else "timestamp"]

    def _interval(self) -> pa.DataType:
        first = last = self._next().lower()
        if self._take("to"):
            last = self._next().lower()
        if first in ("year", "month"):
            raise _year_month(self._text)
        units = _DAY_TIME_UNITS
        if first not in units or last not in units or units.index(first) > units.index(last):
            raise self._error(f"interval {first}")
        return _INTERVAL

    def _map(self) -> pa.DataType:
        self._expect("<")
        key = self._type()
        if has_map(key):
            raise SchemaError("the key of a map cannot contain a map", received=shown(self._text))
        if self._take("not"):
            self._expect("null")
        self._expect(",")
        value = self._field("value")
        self._expect(">")
        return pa.map_(pa.field("key", key, nullable=False), value)

    def _struct(self) -> pa.DataType:
        self._expect("<")
        fields: list[pa.Field] = []
        while not fields or self._take(","):
            name = self._next()
            if name.startswith("`"):
                name = name[1:-1].replace("``", "`")
            elif not re.fullmatch(r"\w+", name):
                raise self._error(name)
            try:
                name.encode()
            except UnicodeEncodeError:
                raise SchemaError("the name of a field must be valid Unicode", received=shown(name)) from None
            self._take(":")
            fields.append(self._field(name))
        self._expect(">")
        names = [field.name for field in fields]
        if len(set(names)) < len(names):
            raise SchemaError("two fields of a struct have the same name", received=shown(self._text))
        return pa.struct(fields)

    def _number(self) -> int:
        word = self._next()
        # Python rejects very long numbers.
        if not re.fullmatch("[0-9]{1,9}", word):
            raise self._error(word)
        return int(word)

    def _next(self) -> str:
        if self._at == len(self._tokens):
            raise self._error("")
        self._at += 1
        return str(self._tokens[self._at - 1])

    def _take(self, word: str) -> bool:
        found = self._at < len(self._tokens) and self._tokens[self._at].lower() == word
        self._at += found
        return found

    def _expect(self, word: str) -> None:
        if not self._take(word):
            raise self._error(self._tokens[self._at] if self._at < len(self._tokens) else "", f"; expected {word!r}")

    def _error(self, found: str, expected: str = "") -> SchemaError:
        where = f" at {shown(found)}" if found and found != self._text.strip() else ""
        return SchemaError(f"unknown column type{where}{expected}", received=shown(self._text), valid=VALID_TYPE_NAMES)


def type_name(data_type: pa.DataType) -> str:
    """Return the name of an Arrow type; the inverse of `parse_type`.

    Equivalent Arrow types (large strings, string and list views, other time units, other names of the fields inside
    lists and maps) have the name of the type that stores them.

    Raises:
        SchemaError: a column cannot have the type.
    """
    types = pa.types
    for name, known in _NAMED.items():
        if data_type.equals(known):
            return name
    if types.is_decimal(data_type) and data_type.precision <= 38 and data_type.scale >= 0:
        return f"decimal({data_type.precision},{data_type.scale})"
    if is_text(data_type):
        return "string"
    if is_bytes(data_type):
        return "binary"
    if types.is_timestamp(data_type):
        return "timestamp" if data_type.tz else "timestamp_ntz"
    if types.is_date(data_type):
        return "date"
    if types.is_duration(data_type):
        return _INTERVAL_NAME
    if types.is_dictionary(data_type):
        return type_name(data_type.value_type)
    if is_array(data_type):
        return f"array<{_inner_name(data_type.value_field)}>"
    if types.is_map(data_type):
        return f"map<{type_name(data_type.key_type)},{_inner_name(data_type.item_field)}>"
    if types.is_struct(data_type) and data_type.num_fields:
        return f"struct<{','.join(_struct_field_name(field) for field in data_type)}>"
    if types.is_interval(data_type):
        raise _year_month(str(data_type))
    raise SchemaError("a column cannot have this type", received=data_type, valid=VALID_TYPE_NAMES)


def is_key_type(data_type: pa.DataType) -> bool:
    """Return whether a key column can have a type in some store."""
    return data_type in _KEY_TYPES or bool(pa.types.is_decimal128(data_type))


def is_one_of(data_type: pa.DataType, names: Collection[str]) -> bool:
    """Return whether a type is among names such as those of `KEY_TYPE_NAMES`, where ``decimal(p,s)`` is any decimal."""
    return ("decimal(p,s)" if pa.types.is_decimal(data_type) else type_name(data_type)) in names


def is_text(data_type: pa.DataType) -> bool:
    """Return whether an Arrow type is one of the forms of ``string``."""
    types = pa.types
    return bool(types.is_string(data_type) or types.is_large_string(data_type) or types.is_string_view(data_type))


def is_bytes(data_type: pa.DataType) -> bool:
    """Return whether an Arrow type is one of the forms of ``binary``."""
    types = pa.types
    return bool(
        types.is_binary(data_type)
        or types.is_large_binary(data_type)
        or types.is_binary_view(data_type)
        or types.is_fixed_size_binary(data_type)
    )


def is_array(data_type: pa.DataType) -> bool:
    """Return whether an Arrow type is one of the forms of ``array<…>``."""
    types = pa.types
    return bool(
        types.is_list(data_type)
        or types.is_large_list(data_type)
        or types.is_fixed_size_list(data_type)
        or types.is_list_view(data_type)
        or types.is_large_list_view(data_type)
    )


def can_hold(wanted: pa.DataType, given: pa.DataType) -> bool:
    """Return whether a column of type ``wanted`` accepts values of type ``given``.

    True if the conversion is lossless or checks each value: another width of a number, a struct without some fields,
    elements that may be null in a type without nulls.

    Raises:
        SchemaError: no column can have type ``given``.
    """
    types = pa.types
    if types.is_null(given):
        return True
    if types.is_dictionary(given):
        return can_hold(wanted, given.value_type)
    if is_array(wanted):
        return is_array(given) and can_hold(wanted.value_type, given.value_type)
    if types.is_map(wanted):
        return bool(
            types.is_map(given)
            and can_hold(wanted.key_type, given.key_type)
            and can_hold(wanted.item_type, given.item_type)
        )
    if types.is_struct(wanted):
        return bool(types.is_struct(given)) and _can_hold_fields(list(wanted), list(given))
    whole, real, exact = types.is_integer, types.is_floating, types.is_decimal
    if whole(given):
        return bool(whole(wanted) or real(wanted) or exact(wanted))
    if real(given):
        return bool(real(wanted))
    if exact(given):
        return bool(exact(wanted))
    if types.is_timestamp(given):
        # A time without a zone is in UTC. A time with a zone cannot become a time without one.
        return bool(types.is_timestamp(wanted) and (wanted.tz is not None or given.tz is None))
    return bool(parse_type(given) == wanted)


def _can_hold_fields(wanted: Sequence[pa.Field], given: Sequence[pa.Field]) -> bool:
    found = {field.name: field.type for field in given}
    names = {field.name for field in wanted}
    return set(found) <= names and all(
        can_hold(field.type, found[field.name]) if field.name in found else field.nullable for field in wanted
    )


def _inner_name(field: pa.Field) -> str:
    return type_name(field.type) + ("" if field.nullable else " not null")


def _struct_field_name(field: pa.Field) -> str:
    if field.metadata and any(mark in field.metadata for mark in _SPARK_OWN):
        raise SchemaError(
            "a column cannot have Spark's variant, geometry or geography type",
            received=f"a struct with such a field {field.name!r}",
            valid=VALID_TYPE_NAMES,
            remedy="write it as a string or binary",
        )
    if not field.name:
        raise SchemaError("a field of a struct has no name", valid="a text that is not empty")
    plain = _PLAIN_NAME.fullmatch(field.name)
    name = field.name if plain else "`" + field.name.replace("`", "``") + "`"
    return f"{name}:{_inner_name(field)}"


def has_map(data_type: pa.DataType) -> bool:
    """Return whether a type is a map, or contains one."""
    if pa.types.is_map(data_type):
        return True
    return any(has_map(data_type.field(index).type) for index in range(data_type.num_fields))


def _year_month(received: str) -> SchemaError:
    return SchemaError(
        "a column cannot have a type of months: Arrow cannot transfer it between Spark and Python",
        received=shown(received),
        valid=_INTERVAL_NAME,
        remedy="write the number of months as an int",
    )
