"""Tables of a Tablestore instance: `TablestoreTable`, and what a table there can be.

The service keeps the types of the key columns and of up to 32 predefined columns; every other cell of a row may have
any name and type. A table's schema here is what the service keeps, and behind it the columns that the caller says it
knows.
"""

from __future__ import annotations

import dataclasses
import time
from collections.abc import Mapping, Sequence
from typing import TYPE_CHECKING, Any

import pyarrow as pa

from headrace.errors import NotFoundError, OptionError, SchemaError, UnsupportedError
from headrace.option_names import check_names
from headrace.ports import Rows, Table, TableDescription, TrimReport
from headrace.rows import to_arrow
from headrace.rows.conditions import typed_key, typed_range
from headrace.stores.tablestore.reading import Reader, splits
from headrace.tables.changes import RowChange
from headrace.tables.conditions import KeyRange, Where, parse_where
from headrace.tables.options import TableOptions
from headrace.tables.schema import Column, KeyValue, TableSchema
from headrace.types import type_name
from headrace.wire.plainbuffer.encoding import check_schema
from headrace.wire.tablestore import table_pb2 as pb
from headrace.wire.tablestore.limits import MAX_DEFINED_COLUMNS, MAX_STREAM_HOURS, MIN_STREAM_HOURS, is_name

if TYPE_CHECKING:
    from headrace.stores.tablestore.connection import Connection
    from headrace.stores.tablestore.writing import Writer

VALID_NAME = "letters, digits and _, no digit first, at most 255"
_HOUR = 3600
_VALID_RETENTION = f"whole hours in seconds, {MIN_STREAM_HOURS * _HOUR} to {MAX_STREAM_HOURS * _HOUR}"
_KEY_TYPES: dict[int, pa.DataType] = {pb.INTEGER: pa.int64(), pb.STRING: pa.string(), pb.BINARY: pa.binary()}
_DEFINED_TYPES: dict[int, pa.DataType] = {
    pb.DCT_INTEGER: pa.int64(),
    pb.DCT_DOUBLE: pa.float64(),
    pb.DCT_BOOLEAN: pa.bool_(),
    pb.DCT_STRING: pa.string(),
    pb.DCT_BLOB: pa.binary(),
}
_COLUMNS_OF: dict[RowChange, Any] = {RowChange.PUT: "all", RowChange.UPDATE: "given", RowChange.DELETE: "keys"}


class TablestoreTable(Table):
    """A table of an instance, with the columns that it had when the handle was made.

    Args:
        connection: the way to the service.
        writer: writes the rows.
        name: the table.
        columns: columns that the caller knows of.

    Raises:
        NotFoundError: there is no such table.
        SchemaError: a column of the caller's has another type than the service keeps for it.
    """

    def __init__(
        self, connection: Connection, writer: Writer, name: str, columns: Sequence[Column] | None = None
    ) -> None:
        self.name = name
        self._connection = connection
        self._writer = writer
        self._schema = declared(schema_of(described(connection, name).table_meta), columns or ())

    def __repr__(self) -> str:
        return f"TablestoreTable({self.name!r})"

    @property
    def schema(self) -> TableSchema:
        return self._schema

    # -- writing ----------------------------------------------------------------------------------------

    def put(self, rows: Rows) -> int:
        """Write whole rows; see `headrace.ports.Table.put`. Not all of them become visible at once.

        The service numbers no commits: returned is this machine's time, in microseconds since 1970.
        """
        return self._write(RowChange.PUT, rows)

    def update(self, rows: Rows, *, keep_nulls: bool = True) -> int:
        return self._write(RowChange.UPDATE, rows, keep_nulls=keep_nulls)

    def delete(self, keys: Rows) -> int:
        return self._write(RowChange.DELETE, keys)

    def _write(self, change: RowChange, rows: Rows, *, keep_nulls: bool = False) -> int:
        typed = to_arrow(rows, self._schema, columns=_COLUMNS_OF[change])
        if change is RowChange.UPDATE and typed.num_columns == len(self._schema.primary_key):
            raise SchemaError(
                "an update needs a column to set besides the key",
                received=typed.column_names,
                valid=[column.name for column in self._schema.attributes],
            )
        self._writer.write(self.name, self._schema, change, typed, keep_nulls=keep_nulls)
        return time.time_ns() // 1000

    # -- reading ----------------------------------------------------------------------------------------

    def get(self, key: Mapping[str, KeyValue], columns: Sequence[str] | None = None) -> dict[str, Any] | None:
        schema = self._schema
        if set(key) != set(schema.primary_key):
            raise SchemaError("a key needs exactly the key columns", received=list(key), valid=schema.primary_key)
        names = [schema.column(name).name for name in (schema.names if columns is None else columns)]
        values = typed_key(schema, [key[name] for name in schema.primary_key])
        rows = Reader(self._connection, self.name, schema, names).get([values])
        if not rows.num_rows:
            return None
        row: dict[str, Any] = rows.select(names).to_pylist()[0]
        return row

    def scan(
        self,
        columns: Sequence[str] | None = None,
        where: Where | None = None,
        *,
        keys: KeyRange | None = None,
        batch_rows: int = 65536,
    ) -> pa.RecordBatchReader:
        """Read rows in key order; see `headrace.ports.Table.scan`. Each page of rows is as it is when it is read."""
        names = self._schema.names if columns is None else columns
        reader = Reader(self._connection, self.name, self._schema, names, parse_where(where))
        return reader.scan(typed_range(self._schema, keys or KeyRange()), batch_rows)

    def splits(self, count: int, *, size: int | None = None) -> list[KeyRange]:
        return splits(self._connection, self.name, count, size)

    # -- what the service does itself, and what it does not ---------------------------------------------

    def split(self, partition: int | None = None, at: Mapping[str, KeyValue] | None = None) -> tuple[int, int]:
        raise UnsupportedError("Tablestore splits the partitions of a table itself")

    def merge(self, left: int, right: int) -> int:
        raise UnsupportedError("Tablestore merges the partitions of a table itself")

    def add_columns(self, columns: Mapping[str, str | pa.DataType]) -> None:
        raise UnsupportedError(
            "rows of Tablestore have any columns, so none are added to a table",
            remedy="name them where the table is opened: store.table(name, columns={…}), or option catalog",
        )

    def set_options(self, **changes: Any) -> TableOptions:
        hours = stream_hours(changes)
        if hours is not None:
            stream = pb.StreamSpecification(enable_stream=True, expiration_time=hours)
            # A list that is left out is one without columns.
            stream.columns_to_get.extend(described(self._connection, self.name).stream_details.column_to_get)
            request = pb.UpdateTableRequest(table_name=self.name, stream_spec=stream)
            self._connection.call("UpdateTable", request, pb.UpdateTableResponse, repeatable=True)
        return self.describe().options

    def describe(self) -> TableDescription:
        """Return the table as it stands; the service tells neither its number of rows nor its partitions."""
        answer = described(self._connection, self.name)
        stream = answer.stream_details
        return TableDescription(
            name=self.name,
            schema=self._schema,
            # Without a stream no changes are kept; the first tunnel enables it.
            options=dataclasses.replace(
                _FIXED_OPTIONS, retention_seconds=float(stream.expiration_time * _HOUR if stream.enable_stream else 0)
            ),
            rows=None,
            partitions=(),
        )

    def trim(self, *, before: Mapping[int, int] | None = None, cut_tunnels: bool = False) -> TrimReport:
        raise UnsupportedError(
            "Tablestore removes changes itself, when they are older than the table's retention",
            remedy="set_options(retention_seconds=…)",
        )


# -- what the service knows of a table, and how one is made --------------------------------------------------


def described(connection: Connection, name: str) -> pb.DescribeTableResponse:
    """Return what the service tells of a table, or raise `NotFoundError`."""
    if not is_name(name):
        # The service would answer that the name is wrong, and so there is no such table.
        raise NotFoundError("no such table", received=repr(name), valid=f"a name of {VALID_NAME}")
    try:
        return connection.call("DescribeTable", pb.DescribeTableRequest(table_name=name), pb.DescribeTableResponse)
    except NotFoundError:
        raise NotFoundError("no such table", received=repr(name)) from None


def schema_of(meta: pb.TableMeta) -> TableSchema:
    """Return the columns that the service keeps the types of."""
    keys = [Column(column.name, _KEY_TYPES[column.type], nullable=False) for column in meta.primary_key]
    attributes = [Column(column.name, _DEFINED_TYPES[column.type]) for column in meta.defined_column]
    return TableSchema((*keys, *attributes), tuple(column.name for column in keys))


def declared(kept: TableSchema, columns: Sequence[Column]) -> TableSchema:
    """Return a table's columns, with those that the caller knows of and the types that it has for them.

    Raises:
        SchemaError: the service keeps a type for a column that values of the caller's cannot have.
        UnsupportedError: rows of Tablestore cannot have values of the caller's type.
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
    """Return the type that the service has for values of a type; None if it has none."""
    if pa.types.is_integer(data_type):
        return pa.int64()
    if pa.types.is_floating(data_type):
        return pa.float64()
    return data_type if data_type in (pa.bool_(), pa.string(), pa.binary()) else None


def create(connection: Connection, name: str, schema: TableSchema, options: Mapping[str, Any]) -> None:
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


_FIXED_OPTIONS = TableOptions(pre_images=False, retention_bytes=None, retention_ignores_tunnels=True)
"""How every table keeps its change log, but for how long."""


def stream_hours(options: Mapping[str, Any]) -> int | None:
    """Return how many hours a table is to keep its changes by given options of `TableOptions`; None if none says it.

    Raises:
        OptionError: an unknown option, or a time that the service does not have.
        UnsupportedError: an option that the service cannot do.
    """
    check_names("a table", options, sorted(field.name for field in dataclasses.fields(TableOptions)))
    for name, value in options.items():
        if name != "retention_seconds" and value != getattr(_FIXED_OPTIONS, name):
            raise UnsupportedError(
                f"tables of Tablestore cannot have option {name}",
                received=repr(value),
                valid=repr(getattr(_FIXED_OPTIONS, name)),
            )
    if "retention_seconds" not in options:
        return None
    seconds = options["retention_seconds"]
    is_number = isinstance(seconds, int | float) and not isinstance(seconds, bool)
    if not is_number or seconds % _HOUR or not MIN_STREAM_HOURS <= seconds // _HOUR <= MAX_STREAM_HOURS:
        raise OptionError(
            "Tablestore cannot keep changes for such a time", received=repr(seconds), valid=_VALID_RETENTION
        )
    return int(seconds // _HOUR)
