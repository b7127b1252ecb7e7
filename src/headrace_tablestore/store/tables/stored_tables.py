"""Tables of the service: their description and columns, creation and options.

The service keeps the types of the key columns and of up to 32 predefined columns. Every other cell of a row may have
any name and type.
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from typing import TYPE_CHECKING, Any

import pyarrow as pa

from headrace.errors import NotFoundError, OptionError, SchemaError, UnsupportedError
from headrace.model.tables.options import TableOptions, check_option_names
from headrace.model.tables.schema import Column, TableSchema
from headrace.model.types import type_name
from headrace_tablestore.wire import table_pb2 as pb
from headrace_tablestore.wire.limits import MAX_DEFINED_COLUMNS, MAX_STREAM_HOURS, MIN_STREAM_HOURS, is_name
from headrace_tablestore.wire.plainbuffer.encoding import check_schema

if TYPE_CHECKING:
    from headrace_tablestore.store.connection import TablestoreConnection

VALID_NAME = "letters, digits and _, no digit first, at most 255"
HOUR_SECONDS = 3600
_VALID_RETENTION = f"whole hours in seconds, {MIN_STREAM_HOURS * HOUR_SECONDS} to {MAX_STREAM_HOURS * HOUR_SECONDS}"
_KEY_TYPES: dict[int, pa.DataType] = {pb.INTEGER: pa.int64(), pb.STRING: pa.string(), pb.BINARY: pa.binary()}
_DEFINED_TYPES: dict[int, pa.DataType] = {
    pb.DCT_INTEGER: pa.int64(),
    pb.DCT_DOUBLE: pa.float64(),
    pb.DCT_BOOLEAN: pa.bool_(),
    pb.DCT_STRING: pa.string(),
    pb.DCT_BLOB: pa.binary(),
}


def described(connection: TablestoreConnection, name: str) -> pb.DescribeTableResponse:
    """Return the service's description of a table, or raise `NotFoundError`."""
    if not is_name(name):
        # For the service the name is invalid, so no table has it.
        raise NotFoundError("no such table", received=repr(name), valid=f"a name of {VALID_NAME}")
    try:
        return connection.call("DescribeTable", pb.DescribeTableRequest(table_name=name), pb.DescribeTableResponse)
    except NotFoundError:
        raise NotFoundError("no such table", received=repr(name)) from None


def schema_of(meta: pb.TableMeta) -> TableSchema:
    """Return the key columns and the predefined columns."""
    keys = [Column(column.name, _KEY_TYPES[column.type], nullable=False) for column in meta.primary_key]
    attributes = [Column(column.name, _DEFINED_TYPES[column.type]) for column in meta.defined_column]
    return TableSchema((*keys, *attributes), tuple(column.name for column in keys))


def with_long_keys(schema: TableSchema) -> TableSchema:
    """Return columns with `long` for all whole numbers in the key: the service has no other type of them."""
    return TableSchema(
        tuple(
            Column(column.name, pa.int64(), nullable=False)
            if column.name in schema.primary_key and pa.types.is_integer(column.type)
            else column
            for column in schema.columns
        ),
        schema.primary_key,
    )


def declared(kept: TableSchema, columns: Sequence[Column]) -> TableSchema:
    """Return the columns of the service and of the caller; the caller's types take precedence.

    Raises:
        SchemaError: the caller's type of a column does not match the service's type.
        UnsupportedError: Tablestore does not have values of the caller's type.
    """
    by_name = {column.name: Column(column.name, column.type) for column in columns}
    for column in kept.columns:
        wanted = by_name.get(column.name, column)
        if wire_type(wanted.type) not in (None, wire_type(column.type)):
            raise SchemaError(
                f"column {column.name!r} has another type in the table",
                received=type_name(wanted.type),
                valid=type_name(column.type),
            )
        if column.name in kept.primary_key:
            by_name[column.name] = column
    here = [by_name.pop(column.name, column) for column in kept.columns]
    schema = TableSchema((*here, *by_name.values()), kept.primary_key)
    check_schema(schema)
    return schema


def wire_type(data_type: pa.DataType) -> pa.DataType | None:
    """Return the service's type for an Arrow type; None if the service has none."""
    if pa.types.is_integer(data_type):
        return pa.int64()
    if pa.types.is_floating(data_type):
        return pa.float64()
    return data_type if data_type in (pa.bool_(), pa.string(), pa.binary()) else None


def create(connection: TablestoreConnection, name: str, schema: TableSchema, options: Mapping[str, Any]) -> None:
    """Create a table; the service keeps the types of its first 32 attributes.

    Raises:
        AlreadyExistsError: the name is taken.
        UnsupportedError: the service cannot have such a table.
    """
    for kind, text in (("table", name), *(("column", column) for column in schema.names)):
        if not is_name(text):
            raise UnsupportedError(f"Tablestore has no {kind} of this name", received=repr(text), valid=VALID_NAME)
    check_schema(schema)
    for column in schema.attributes:
        if not column.nullable:
            raise UnsupportedError(
                f"Tablestore cannot keep column {column.name!r} NOT NULL", remedy="leave out NOT NULL"
            )
    hours = stream_hours(options)
    kinds = {data_type: code for code, data_type in _DEFINED_TYPES.items()}
    key_kinds = {data_type: code for code, data_type in _KEY_TYPES.items()}
    request = pb.CreateTableRequest(
        table_meta=pb.TableMeta(
            table_name=name,
            primary_key=[
                pb.PrimaryKeySchema(name=key, type=key_kinds[schema.column(key).type])  # type: ignore[arg-type]
                for key in schema.primary_key
            ],
            defined_column=[
                pb.DefinedColumnSchema(name=column.name, type=kinds[wire_type(column.type)])  # type: ignore[arg-type]
                for column in schema.attributes[:MAX_DEFINED_COLUMNS]
            ],
        ),
        reserved_throughput=pb.ReservedThroughput(capacity_unit=pb.CapacityUnit(read=0, write=0)),
        table_options=pb.TableOptions(time_to_live=-1, max_versions=1),
    )
    if hours is not None:
        request.stream_spec.enable_stream = True
        request.stream_spec.expiration_time = hours
    connection.call("CreateTable", request, pb.CreateTableResponse)


FIXED_OPTIONS = TableOptions(pre_images=False, retention_bytes=None, retention_ignores_tunnels=True)
"""The options of all tables, except for the retention."""


def stream_hours(options: Mapping[str, Any]) -> int | None:
    """Return the retention of changes in hours from options of `TableOptions`; None if no option sets it.

    Raises:
        OptionError: an option is unknown, or the service does not have this retention.
        UnsupportedError: the service does not support an option.
    """
    check_option_names(options)
    for name, value in options.items():
        # A table has no log of changes until the first tunnel, unless its retention is set.
        unlogged = name == "change_log" and value is False and "retention_seconds" not in options
        if name != "retention_seconds" and value != getattr(FIXED_OPTIONS, name) and not unlogged:
            raise UnsupportedError(
                f"tables of Tablestore cannot have option {name}",
                received=repr(value),
                valid=repr(getattr(FIXED_OPTIONS, name)),
            )
    if "retention_seconds" not in options:
        return None
    seconds = options["retention_seconds"]
    is_number = isinstance(seconds, int | float) and not isinstance(seconds, bool)
    if not is_number or seconds % HOUR_SECONDS or not MIN_STREAM_HOURS <= seconds // HOUR_SECONDS <= MAX_STREAM_HOURS:
        raise OptionError(
            "Tablestore cannot keep changes for such a time", received=repr(seconds), valid=_VALID_RETENTION
        )
    return int(seconds // HOUR_SECONDS)
