"""The columns of Iceberg tables in headrace's types, and back. No I/O.

The primary key is the table property `headrace.primaryKey`, a JSON list of columns. Data files have the ids of the
fields, by which other readers find columns. headrace finds them by name: a table in which a name has meant two fields
is refused.
"""

from __future__ import annotations

import itertools
import re
from collections.abc import Iterable, Iterator, Mapping

import pyarrow as pa
from pyiceberg.schema import Schema
from pyiceberg.types import (
    BinaryType,
    BooleanType,
    DateType,
    DecimalType,
    DoubleType,
    FloatType,
    IcebergType,
    IntegerType,
    ListType,
    LongType,
    MapType,
    NestedField,
    StringType,
    StructType,
    TimestampType,
    TimestamptzType,
)

from headrace.errors import SchemaError, UnsupportedError
from headrace.model.tables.column_limits import check_columns
from headrace.model.tables.schema import TableSchema, parse_columns
from headrace.model.types import type_name
from headrace_lake.column_checks import check_columns_in_files
from headrace_lake.primary_keys import PRIMARY_KEY, key_text, schema_with_key

RETRIES = "commit.retry.num-retries"
"""The property with the number of attempts by which pyiceberg repeats a commit without headrace's checks."""
MERGES, MANIFESTS = "commit.manifest-merge.enabled", "commit.manifest.min-count-to-merge"
"""The properties by which appends of pyiceberg merge manifests: whether they do, and from which number on."""
SNAPSHOTS = "headrace.keepSnapshots"
"""The property with the number of snapshots that commits of headrace keep in the metadata."""
_FIELD_ID = b"PARQUET:field_id"
# Writers escape other names in files, each in its own way.
_NAME = re.compile(r"[A-Za-z_][A-Za-z0-9_]*")
_VALID_NAME = "letters A to Z, digits and underscores, and no digit first"
_TYPES: tuple[tuple[pa.DataType, IcebergType], ...] = (
    (pa.bool_(), BooleanType()),
    (pa.int32(), IntegerType()),
    (pa.int64(), LongType()),
    (pa.float32(), FloatType()),
    (pa.float64(), DoubleType()),
    (pa.string(), StringType()),
    (pa.binary(), BinaryType()),
    (pa.date32(), DateType()),
    (pa.timestamp("us", "UTC"), TimestamptzType()),
    (pa.timestamp("us"), TimestampType()),
)


def check_schema(schema: TableSchema) -> None:
    """Raise `SchemaError` if an Iceberg table cannot have these columns."""
    check_columns(schema)
    check_columns_in_files(schema, "Iceberg", empty_structs=False)
    for field in schema.arrow:
        _check_name(field.name)
        _check_type(field.name, field.type)


def _check_name(name: str) -> None:
    if not _NAME.fullmatch(name):
        raise SchemaError("headrace has no Iceberg column of this name", received=repr(name)[:200], valid=_VALID_NAME)


def _check_type(column: str, kind: pa.DataType) -> None:
    if pa.types.is_int8(kind) or pa.types.is_int16(kind):
        raise SchemaError(
            f"column {column!r} has a type that Iceberg does not have",
            received=type_name(kind),
            remedy="declare it int",
        )
    for inner in (kind.field(number) for number in range(kind.num_fields)):
        if pa.types.is_struct(kind):
            _check_name(inner.name)
        _check_type(column, inner.type)


def properties_of(schema: TableSchema) -> dict[str, str]:
    """Return the table properties of a new table."""
    return {
        PRIMARY_KEY: key_text(schema),
        RETRIES: "0",
        "format-version": "2",
        # Each commit costs time for each manifest, and for each snapshot in the metadata.
        MERGES: "true",
        MANIFESTS: "10",
        SNAPSHOTS: "20",
        # Otherwise each commit leaves a file of metadata, of which only the last one counts.
        "write.metadata.delete-after-commit.enabled": "true",
    }


def iceberg_schema(fields: pa.Schema) -> Schema:
    """Return columns in Iceberg's types. A catalog gives a new table other ids."""
    ids = itertools.count(1)
    return Schema(*_nested(fields, ids))


def _nested(fields: Iterable[pa.Field], ids: Iterator[int]) -> list[NestedField]:
    return [
        NestedField(next(ids), field.name, _iceberg_type(field.type, ids), required=not field.nullable)
        for field in fields
    ]


def _iceberg_type(kind: pa.DataType, ids: Iterator[int]) -> IcebergType:
    """Return a type that `check_schema` has accepted."""
    if pa.types.is_decimal(kind):
        return DecimalType(kind.precision, kind.scale)
    if pa.types.is_struct(kind):
        return StructType(*_nested([kind.field(n) for n in range(kind.num_fields)], ids))
    if pa.types.is_map(kind):
        key, value = next(ids), next(ids)
        return MapType(
            key_id=key,
            key_type=_iceberg_type(kind.key_type, ids),
            value_id=value,
            value_type=_iceberg_type(kind.item_type, ids),
            value_required=not kind.item_field.nullable,
        )
    if pa.types.is_list(kind):
        element = next(ids)
        required = not kind.value_field.nullable
        return ListType(element_id=element, element_type=_iceberg_type(kind.value_type, ids), element_required=required)
    return next(found for arrow, found in _TYPES if arrow == kind)


def arrow_fields(schema: Schema) -> pa.Schema:
    """Return columns in Arrow's types, with the ids of the fields as files have them.

    Raises:
        SchemaError: a column has a type or name that headrace does not have.
    """
    return pa.schema([_arrow_field(field) for field in schema.fields])


def _arrow_field(field: NestedField) -> pa.Field:
    _check_name(field.name)
    return _field(field.name, field.field_type, field.field_id, not field.required)


def _field(name: str, kind: IcebergType, number: int, nullable: bool) -> pa.Field:
    return pa.field(name, _arrow_type(kind), nullable, {_FIELD_ID: str(number).encode()})


def _arrow_type(kind: IcebergType) -> pa.DataType:
    if isinstance(kind, DecimalType):
        return pa.decimal128(kind.precision, kind.scale)
    if isinstance(kind, StructType):
        return pa.struct([_arrow_field(field) for field in kind.fields])
    if isinstance(kind, ListType):
        return pa.list_(_field("element", kind.element_type, kind.element_id, not kind.element_required))
    if isinstance(kind, MapType):
        key = _field("key", kind.key_type, kind.key_id, False)
        return pa.map_(key, _field("value", kind.value_type, kind.value_id, not kind.value_required))
    for arrow, found in _TYPES:
        if found == kind:
            return arrow
    raise SchemaError("headrace does not have a type of this Iceberg table", received=str(kind))


def table_schema(name: str, fields: pa.Schema, properties: Mapping[str, str]) -> TableSchema:
    """Return the schema of a table, with the key of its properties.

    Raises:
        StoreDamagedError: the property with the key is invalid.
    """
    return schema_with_key(
        parse_columns(fields.remove_metadata()),
        properties.get(PRIMARY_KEY),
        name=name,
        missing=f"Iceberg table {name!r} does not have the property {PRIMARY_KEY}",
        remedy=f'set it if no two rows have the same key and no key is null: {PRIMARY_KEY} = ["id"]',
    )


def check_history(name: str, now: Schema, schemas: Iterable[Schema]) -> None:
    """Raise `UnsupportedError` if a column of a table had another name or type, or its name was another column's.

    Args:
        schemas: the schemas that the table has had.
    """
    by_path = {path: (number, kind) for path, number, kind in _columns(now.fields)}
    by_id = {number: (path, kind) for path, (number, kind) in by_path.items()}
    for path, number, kind in (each for schema in schemas for each in _columns(schema.fields)):
        if by_path.get(path, (number, kind)) != (number, kind) or by_id.get(number, (path, kind)) != (path, kind):
            raise UnsupportedError(
                f"a column of Iceberg table {name!r} was renamed, retyped, or dropped and added again",
                received=path,
                remedy="copy its rows into a new table",
            )


def _columns(fields: Iterable[NestedField], above: str = "") -> Iterator[tuple[str, int, str]]:
    """Yield the path, the id and the type of fields, and of the fields inside."""
    for field in fields:
        kind = field.field_type
        path = f"{above}{field.name}"
        yield path, field.field_id, str(kind) if kind.is_primitive else type(kind).__name__
        if isinstance(kind, StructType):
            yield from _columns(kind.fields, f"{path}.")
        elif isinstance(kind, ListType):
            yield from _columns([kind.element_field], f"{path}.")
        elif isinstance(kind, MapType):
            yield from _columns([kind.key_field, kind.value_field], f"{path}.")


def column_type(kind: pa.DataType) -> IcebergType:
    """Return the type of a new column. The table gives ids to the fields inside."""
    return _iceberg_type(kind, itertools.count(1))
