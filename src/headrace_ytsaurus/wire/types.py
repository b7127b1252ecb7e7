"""Columns of YTsaurus' tables: their types (``type_v3``), and the Arrow types of their values in headrace.

A column keeps its type in YTsaurus, so values are written with exactly this type. A value that the type cannot
represent is an error. If headrace has no type with the same values, the column gets a larger one (unsigned numbers;
``decimal(20,0)`` for ``uint64``), or YSON as bytes (``any``, and composite types that Arrow cannot represent, such as
an optional inside an optional).

====================================================== ===========================================================
in YTsaurus                                            in headrace
====================================================== ===========================================================
int8, int16, int32, int64                              byte, short, int, long
uint8, uint16, uint32, uint64                          short, int, long, decimal(20,0)
float, double, bool                                    float, double, boolean
string, utf8, json                                     string
uuid                                                   binary, 16 bytes
date, date32                                           date
datetime, timestamp, datetime64, timestamp64           timestamp
interval, interval64                                   long, microseconds
decimal(p,s)                                           decimal(p,s)
null, void                                             binary, always null
yson, and types without an equivalent                  binary, YSON
optional<T>                                            T that may be null
list<T>, dict<K,V>, struct, tagged<T>                  array<T>, map<K,V>, struct, T
tuple                                                  struct of _1, _2, …
variant over a struct, over a tuple                    struct of _vname, …, or _v_1, …; all null but one
====================================================== ===========================================================

A ``string`` in YTsaurus can contain any bytes. `YtColumn.of_bytes` returns a column with its strings as binary;
``utf8`` and ``json`` are always text. Types of headrace without an equivalent in YTsaurus are tagged, so that they can
be recognized: ``binary``, ``timestamp_ntz`` and ``interval day to second``.

YTsaurus' client has a parser of types, ``yt.type_info``. It accepts decimals of any precision and any depth, and not
the older names, so the checks would remain; and most of this module is the mapping to Arrow.
"""

from __future__ import annotations

from collections import Counter
from collections.abc import Callable, Iterable, Mapping, Sequence
from dataclasses import dataclass, field, replace
from typing import Any, Final, TypeAlias

import pyarrow as pa

from headrace.errors import SchemaError, UnsupportedError
from headrace.model.tables.schema import Column
from headrace.model.types import type_name
from headrace_ytsaurus.wire.yson.scalars import as_flag

TypeV3: TypeAlias = str | Mapping[str, Any]
"""A type in the form of ``type_v3``: a name, or a mapping with ``type_name`` and the parameters of the type."""

_UTC: Final = pa.timestamp("us", tz="UTC")
_SIMPLE: Final[dict[str, pa.DataType]] = {
    "int8": pa.int8(),
    "int16": pa.int16(),
    "int32": pa.int32(),
    "int64": pa.int64(),
    "uint8": pa.int16(),
    "uint16": pa.int32(),
    "uint32": pa.int64(),
    "uint64": pa.decimal128(20, 0),
    "float": pa.float32(),
    "double": pa.float64(),
    "bool": pa.bool_(),
    "string": pa.string(),
    "utf8": pa.string(),
    "json": pa.string(),
    "uuid": pa.binary(),
    "date": pa.date32(),
    "date32": pa.date32(),
    "datetime": _UTC,
    "datetime64": _UTC,
    "timestamp": _UTC,
    "timestamp64": _UTC,
    "interval": pa.int64(),
    "interval64": pa.int64(),
    "null": pa.binary(),
    "void": pa.binary(),
    "yson": pa.binary(),
}
_COMPOSITE: Final = ("optional", "list", "struct", "tuple", "variant", "dict", "tagged", "decimal")
VALID_TYPES: Final = (*_SIMPLE, *_COMPOSITE)
# Different names of simple types in older schemas.
_OLD_NAMES: Final = {"any": "yson", "boolean": "bool"}
_OLD_OF: Final = {new: old for old, new in _OLD_NAMES.items()}
# Types of headrace without an equivalent in YTsaurus, by their tags.
_TAGGED: Final[dict[str, tuple[pa.DataType, str]]] = {
    "binary": (pa.binary(), "string"),
    "timestamp_ntz": (pa.timestamp("us"), "timestamp64"),
    "interval day to second": (pa.duration("us"), "interval64"),
}
_WRITTEN: Final[dict[pa.DataType, str]] = {
    pa.int8(): "int8",
    pa.int16(): "int16",
    pa.int32(): "int32",
    pa.int64(): "int64",
    pa.float32(): "float",
    pa.float64(): "double",
    pa.bool_(): "bool",
    pa.string(): "string",
    pa.date32(): "date",
    _UTC: "timestamp",
}
_DAYS: Final = 49673
RANGES: Final[Mapping[str, tuple[int, int]]] = {
    **{f"int{bits}": (-(2 ** (bits - 1)), 2 ** (bits - 1) - 1) for bits in (8, 16, 32, 64)},
    **{f"uint{bits}": (0, 2**bits - 1) for bits in (8, 16, 32, 64)},
    "date": (0, _DAYS - 1),
    "datetime": (0, _DAYS * 86_400 - 1),
    "timestamp": (0, _DAYS * 86_400_000_000 - 1),
    "interval": (-_DAYS * 86_400_000_000 + 1, _DAYS * 86_400_000_000 - 1),
    "date32": (-53_375_809, 53_375_807),
    "datetime64": (-4_611_669_897_600, 4_611_669_811_199),
    "timestamp64": (-4_611_669_897_600_000_000, 4_611_669_811_199_999_999),
    "interval64": (-9_223_339_708_799_999_999, 9_223_339_708_799_999_999),
}
"""Minimum and maximum of every type that is a whole number on the wire."""
UNSIGNED: Final = frozenset({"uint8", "uint16", "uint32", "uint64", "date", "datetime", "timestamp"})
"""The types that are unsigned numbers on the wire."""
MAX_DECIMAL_PRECISION: Final = 35
_MAX_DEPTH: Final = 32


@dataclass(frozen=True)
class YtColumn:
    """A column of a table, with its types in YTsaurus and in headrace.

    Attributes:
        name: the name in YTsaurus.
        type: the Arrow type of its values.
        yt: its ``type_v3``, without the outermost optional.
        required: its values are never null.
        sort_order: ``ascending`` or ``descending`` for key columns.
        expression: the expression of a computed column, which is never written.
        more: other properties in the schema (aggregate, lock, group, …), unchanged.
    """

    name: str
    type: pa.DataType
    yt: TypeV3 = field(hash=False)
    required: bool = False
    sort_order: str | None = None
    expression: str | None = None
    more: Mapping[str, Any] = field(default_factory=dict, hash=False)

    @classmethod
    def of(cls, name: str, yt: TypeV3, *, required: bool | None = None, sort_order: str | None = None) -> YtColumn:
        """Return a column of a type in YTsaurus.

        Args:
            required: by default true, unless the type is optional, null, void or yson.

        Raises:
            SchemaError: YTsaurus has no such type.
        """
        if type_parts(yt)[0] == "yson":
            yt = {"type_name": "optional", "item": "yson"}
        plain, never_null = _without_optional(yt, name)
        return cls(name, arrow_type(yt, name), plain, never_null if required is None else required, sort_order)

    @property
    def of_bytes(self) -> YtColumn:
        """The column with all strings in its type as bytes."""
        whole = self.more.get("type_v3", self.type_v3)
        return replace(self, type=_arrow(whole, self.name, 0, pa.binary()) or pa.binary())

    @property
    def column(self) -> Column:
        """The column for a table or queue of headrace."""
        return Column(self.name, self.type, nullable=not self.required)

    @property
    def type_v3(self) -> TypeV3:
        """The type in YTsaurus, with the outermost optional."""
        return self.yt if self.required or self.yt in ("null", "void") else {"type_name": "optional", "item": self.yt}


def columns_of(schema: Iterable[Mapping[str, Any]]) -> tuple[YtColumn, ...]:
    """Parse a table's schema, the value of ``@schema``.

    ``type_v3`` has precedence over the older ``type`` and ``required``.

    Raises:
        SchemaError: the schema is invalid, or the type of a column is unknown. The message names the column.
    """
    columns = tuple(_column_of(definition) for definition in _listed(schema, "a schema", Mapping))
    names = [column.name for column in columns]
    if repeated := sorted(name for name, count in Counter(names).items() if count > 1):
        raise SchemaError("a schema has a column twice", received=", ".join(repeated))
    keys = [column.sort_order is not None for column in columns]
    if keys != sorted(keys, reverse=True):
        raise SchemaError("key columns must be before the other columns of a schema", received=names)
    return columns


def schema_of(columns: Iterable[YtColumn]) -> list[dict[str, Any]]:
    """Return the columns in the form of ``@schema``, without its attributes ``strict`` and ``unique_keys``."""
    return [_definition_of(column) for column in columns]


def yt_columns(
    columns: Iterable[Column], key: Sequence[str] = (), *, strings_as: str = "string"
) -> tuple[YtColumn, ...]:
    """Return the columns of a new table in YTsaurus for columns of headrace, with ascending key columns first.

    Args:
        key: names of the key columns, in key order.
        strings_as: ``string`` or ``utf8``.

    Raises:
        UnsupportedError: YTsaurus has no type for a column. The message names the column.
    """
    by_name = {column.name: column for column in columns}
    ordered = [by_name[name] for name in key] + [column for column in by_name.values() if column.name not in key]
    return tuple(
        YtColumn(
            column.name,
            column.type,
            yt_type(column.type, column.name, strings_as=strings_as),
            not column.nullable,
            "ascending" if column.name in key else None,
        )
        for column in ordered
    )


def arrow_type(yt: TypeV3, column: str = "") -> pa.DataType:
    """Return the Arrow type for values of a type in YTsaurus.

    Raises:
        SchemaError: YTsaurus has no such type; the message names ``column``.
    """
    return _arrow(yt, column) or pa.binary()


def yt_type(data_type: pa.DataType, column: str = "", *, strings_as: str = "string") -> TypeV3:
    """Return the type in YTsaurus of a new column for an Arrow type, without the outermost optional.

    Raises:
        UnsupportedError: there is none; the message names ``column``.
    """
    if data_type == pa.string():
        return strings_as
    if data_type in _WRITTEN:
        return _WRITTEN[data_type]
    for tag, (tagged, item) in _TAGGED.items():
        if data_type == tagged:
            return {"type_name": "tagged", "tag": tag, "item": item}
    types = pa.types

    def inner(given: pa.Field) -> TypeV3:
        item = yt_type(given.type, column, strings_as=strings_as)
        return {"type_name": "optional", "item": item} if given.nullable else item

    if types.is_decimal128(data_type) and data_type.precision <= MAX_DECIMAL_PRECISION:
        return {"type_name": "decimal", "precision": data_type.precision, "scale": data_type.scale}
    if types.is_list(data_type):
        return {"type_name": "list", "item": inner(data_type.value_field)}
    if types.is_map(data_type):
        return {"type_name": "dict", "key": inner(data_type.key_field), "value": inner(data_type.item_field)}
    if types.is_struct(data_type):
        return {"type_name": "struct", "members": [{"name": one.name, "type": inner(one)} for one in data_type]}
    raise UnsupportedError(
        f"YTsaurus has no type for column {column!r}",
        received=type_name(data_type),
        valid=f"types of headrace, with decimals of up to {MAX_DECIMAL_PRECISION} digits",
        remedy="convert the column",
    )


def type_parts(yt: TypeV3) -> tuple[str, Mapping[str, Any]]:
    """Return the name and the parameters of a type; a simple type has none."""
    if isinstance(yt, str):
        return str(_OLD_NAMES.get(yt, yt)), {}
    return str(yt.get("type_name")), yt


def untagged(yt: TypeV3) -> TypeV3:
    """Return a type without the tags around it."""
    name, parts = type_parts(yt)
    while name == "tagged":
        yt = parts["item"]
        name, parts = type_parts(yt)
    return yt


def carried_as_yson(yt: TypeV3, data_type: pa.DataType) -> bool:
    """Return whether the Arrow type for a type in YTsaurus contains YSON."""
    name, _ = type_parts(untagged(yt))
    return pa.types.is_binary(data_type) and name in ("yson", "optional", "list", "struct", "tuple", "variant", "dict")


def without_optional(yt: TypeV3) -> tuple[TypeV3, bool]:
    """Return a type without one optional and the tags around it, and whether values are required."""
    name, parts = type_parts(yt)
    if name == "tagged":
        plain, required = without_optional(parts["item"])
        return (yt, True) if required else (plain, False)
    if name == "optional":
        return parts["item"], False
    return yt, name not in ("null", "void")


def members_of(yt: TypeV3) -> list[tuple[str, str, TypeV3]]:
    """Return for each part of a struct, tuple or variant its name in Arrow, its name on the wire, and its type.

    A part without a name is named by its number on the wire, counted from 0.
    """
    name, parts = type_parts(yt)
    prefix = "_v" if name == "variant" else ""
    if "members" in parts:
        return [(prefix + str(one["name"]), str(one["name"]), one["type"]) for one in parts["members"]]
    return [(f"{prefix}_{place + 1}", str(place), one["type"]) for place, one in enumerate(parts["elements"])]


def _column_of(definition: Mapping[str, Any]) -> YtColumn:
    name = definition.get("name")
    if not isinstance(name, str) or not name:
        raise SchemaError("a column of a schema without a name", received=repr(name)[:100])
    whole = definition.get("type_v3")
    if whole is not None:
        yt, required = _without_optional(whole, name)
    else:
        yt, required = _old_type(definition, name)
    sort_order = definition.get("sort_order")
    if sort_order not in (None, "ascending", "descending"):
        raise SchemaError(f"unknown sort order of column {name!r}", received=sort_order, valid="ascending, descending")
    known = ("name", "type", "required", "type_v3", "sort_order", "expression")
    column = YtColumn(
        str(name),
        arrow_type(yt if whole is None else whole, name),
        yt,
        required,
        sort_order and str(sort_order),
        definition.get("expression"),
        {key: value for key, value in definition.items() if key not in known and value is not None},
    )
    if whole is not None and column.type_v3 != whole:
        # The type has a tag around an optional, or an older name.
        return replace(column, more={**column.more, "type_v3": whole})
    return column


def _old_type(definition: Mapping[str, Any], column: str) -> tuple[TypeV3, bool]:
    kind = definition.get("type")
    name = _OLD_NAMES.get(str(kind), str(kind))
    if name not in _SIMPLE:
        raise _unknown(kind, column)
    required = as_flag(definition.get("required", False))
    if required is None:
        raise SchemaError(
            f"required of column {column!r} is not a boolean",
            received=repr(definition["required"])[:100],
            valid="%true, %false",
        )
    if required and name in ("yson", "null", "void"):
        raise SchemaError(f"column {column!r} of this type cannot be required", received=kind)
    return name, required


def _without_optional(yt: TypeV3, column: str) -> tuple[TypeV3, bool]:
    """Check a type; return it without one optional around it, and whether the column is required."""
    _arrow(yt, column)
    plain, required = without_optional(yt)
    if required and type_parts(untagged(plain))[0] == "yson":
        raise SchemaError(f"column {column!r} of type yson must be optional")
    name = type_parts(plain)[0]
    return (name if isinstance(plain, str) else plain), required


def _definition_of(column: YtColumn) -> dict[str, Any]:
    old, required = _old_name(column)
    found: dict[str, Any] = {"name": column.name, "type": old, "required": required, "type_v3": column.type_v3}
    if column.sort_order is not None:
        found["sort_order"] = column.sort_order
    if column.expression is not None:
        found["expression"] = column.expression
    return found | dict(column.more)


def _old_name(column: YtColumn) -> tuple[str, bool]:
    """Return the older name of a type: ``any`` for composite types, ``string`` for decimals."""
    name, _ = type_parts(untagged(column.yt))
    if name == "decimal":
        name = "string"
    elif name not in _SIMPLE:
        name = "yson"
    return _OLD_OF.get(name, name), column.required


def _arrow(yt: TypeV3, column: str, depth: int = 0, strings: pa.DataType = _SIMPLE["string"]) -> pa.DataType | None:
    """Check a type and return its Arrow type, or None if only YSON can represent all values.

    Args:
        strings: the Arrow type for ``string``.
    """
    if depth > _MAX_DEPTH:
        raise SchemaError(f"the type of column {column!r} is nested too deep", valid=f"at most {_MAX_DEPTH} levels")
    if not isinstance(yt, str | Mapping):
        raise _unknown(yt, column)
    name, parts = type_parts(yt)
    if name in _SIMPLE:
        return strings if name == "string" else _SIMPLE[name]

    def inner(part: Any) -> pa.DataType | None:
        return _arrow(part, column, depth + 1, strings)

    match name:
        case "decimal":
            return _decimal(parts, column)
        case "tagged":
            found = inner(parts.get("item"))
            known, item = _TAGGED.get(str(parts.get("tag")), (None, None))
            return known if known is not None and parts["item"] == item else found
        case "optional":
            # Arrow cannot represent an optional inside an optional.
            found = inner(parts.get("item"))
            return found if without_optional(parts["item"])[1] else None
        case "list":
            found = inner(parts.get("item"))
            return None if found is None else pa.list_(_field("element", found, parts["item"]))
        case "dict":
            key, value = inner(parts.get("key")), inner(parts.get("value"))
            if key is None or value is None or not _may_be_key(parts["key"]):
                return None
            return pa.map_(pa.field("key", key, nullable=False), _field("value", value, parts["value"]))
        case "struct" | "tuple" | "variant":
            return _struct(name, yt, column, inner)
    raise _unknown(name, column)


def _struct(name: str, yt: TypeV3, column: str, type_of: Callable[[TypeV3], pa.DataType | None]) -> pa.DataType | None:
    _, parts = type_parts(yt)
    listed = "elements" if name == "tuple" or "members" not in parts else "members"
    if name == "struct" or listed == "members":
        for one in _listed(parts.get("members"), f"the members of column {column!r}", Mapping):
            if not isinstance(one.get("name"), str) or not one["name"]:
                raise SchemaError(f"a member without a name in the type of column {column!r}")
    else:
        _listed(parts.get("elements"), f"the elements of column {column!r}", Mapping)
    members = members_of(yt)
    found = [(arrow_name, type_of(one), one) for arrow_name, _, one in members]
    if len({arrow_name for arrow_name, _, _ in found}) < len(found):
        raise SchemaError(f"two members of one name in the type of column {column!r}")
    if not found or any(inner is None for _, inner, _ in found):
        return None
    if name == "variant":
        # In Arrow, a null alternative would look like one that is not chosen.
        if not all(without_optional(one)[1] for _, _, one in found):
            return None
        return pa.struct([pa.field(arrow_name, inner) for arrow_name, inner, _ in found])
    return pa.struct([_field(arrow_name, inner, one) for arrow_name, inner, one in found])


def _decimal(parts: Mapping[str, Any], column: str) -> pa.DataType:
    precision, scale = parts.get("precision"), parts.get("scale")
    if not isinstance(precision, int) or not isinstance(scale, int) or not 1 <= precision <= MAX_DECIMAL_PRECISION:
        raise SchemaError(f"a decimal of impossible size in column {column!r}", received=f"{precision}, {scale}"[:100])
    if not 0 <= scale <= precision:
        raise SchemaError(f"a decimal of impossible size in column {column!r}", received=f"{precision}, {scale}"[:100])
    return pa.decimal128(precision, scale)


def _may_be_key(yt: TypeV3) -> bool:
    """Return whether a type can be a map's key type: never null, and not composite."""
    name, _ = type_parts(untagged(yt))
    return without_optional(yt)[1] and (name in _SIMPLE or name == "decimal")


def _field(name: str, data_type: pa.DataType, yt: TypeV3) -> pa.Field:
    return pa.field(name, data_type, nullable=not without_optional(yt)[1])


def _listed(value: Any, what: str, kind: type) -> list[Any]:
    if not isinstance(value, list | tuple) or not all(isinstance(one, kind) for one in value):
        raise SchemaError(f"{what} cannot be read", received=f"{value!r}"[:100], valid="a list of maps")
    return list(value)


def _unknown(found: Any, column: str) -> SchemaError:
    return SchemaError(f"unknown type of column {column!r}", received=repr(found)[:100], valid=VALID_TYPES)
