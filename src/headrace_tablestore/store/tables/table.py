"""`TablestoreTable`: a table of a Tablestore instance.

The schema of a table has the columns of the service, and after them the columns that the caller declares.
"""

from __future__ import annotations

import dataclasses
import time
from collections.abc import Mapping, Sequence
from typing import TYPE_CHECKING, Any

import pyarrow as pa

from headrace.errors import UnsupportedError
from headrace.model.tables.changes import RowChange
from headrace.model.tables.conditions import KeyRange, Where, parse_where
from headrace.model.tables.options import TableOptions
from headrace.model.tables.schema import Column, KeyValue, TableSchema
from headrace.ports import Rows, Table, TableDescription, TrimReport
from headrace.rows import check_sets, to_arrow
from headrace.rows.by_position import aligned
from headrace.rows.conditions import typed_range, whole_key
from headrace_tablestore.store.tables.reading import Reader, splits
from headrace_tablestore.store.tables.stored_tables import (
    FIXED_OPTIONS,
    HOUR_SECONDS,
    declared,
    described,
    schema_of,
    stream_hours,
)
from headrace_tablestore.wire import table_pb2 as pb

if TYPE_CHECKING:
    from headrace_tablestore.store.connection import TablestoreConnection
    from headrace_tablestore.store.tables.writing import Writer

_COLUMNS_OF: dict[RowChange, Any] = {RowChange.PUT: "all", RowChange.UPDATE: "given", RowChange.DELETE: "keys"}


class TablestoreTable(Table):
    """A table of an instance, with its columns at the creation of the handle.

    Args:
        connection: the connection to the service.
        writer: writes the rows.
        name: the table.
        columns: columns that the caller declares.

    Raises:
        NotFoundError: the table does not exist.
        SchemaError: the caller's type of a column does not match the service's type.
    """

    def __init__(
        self, connection: TablestoreConnection, writer: Writer, name: str, columns: Sequence[Column] | None = None
    ) -> None:
        self.name = name
        self._connection = connection
        self._writer = writer
        answer = described(connection, name)
        self._created = answer.creation_time
        self._schema = declared(schema_of(answer.table_meta), columns or ())

    def __repr__(self) -> str:
        return f"TablestoreTable({self.name!r})"

    @property
    def schema(self) -> TableSchema:
        return self._schema

    def identity(self) -> str:
        """Return the time of the table's creation, in the unit of the service; empty if the service has none."""
        return str(self._created or "")

    # -- writing ----------------------------------------------------------------------------------------

    def put(self, rows: Rows) -> int:
        """Write whole rows; see `headrace.ports.Table.put`. They do not become visible at one time.

        The service has no commit versions: the result is this machine's time in µs since 1970.
        """
        return self._write(RowChange.PUT, rows)

    def update(self, rows: Rows, *, keep_nulls: bool = True) -> int:
        return self._write(RowChange.UPDATE, rows, keep_nulls=keep_nulls)

    def delete(self, keys: Rows) -> int:
        return self._write(RowChange.DELETE, keys)

    def _write(self, change: RowChange, rows: Rows, *, keep_nulls: bool = False) -> int:
        typed = to_arrow(rows, self._schema, columns=_COLUMNS_OF[change])
        if change is RowChange.UPDATE:
            check_sets(typed, self._schema)
        self._writer.write(self.name, self._schema, change, typed, keep_nulls=keep_nulls)
        return time.time_ns() // 1000

    # -- reading ----------------------------------------------------------------------------------------

    def get(self, key: Mapping[str, KeyValue], columns: Sequence[str] | None = None) -> dict[str, Any] | None:
        schema = self._schema
        values = whole_key(schema, key)
        names = [schema.column(name).name for name in (schema.names if columns is None else columns)]
        rows = Reader(self._connection, self.name, schema, names).get([values])
        if not rows.num_rows:
            return None
        row: dict[str, Any] = rows.select(names).to_pylist()[0]
        return row

    def get_many(self, keys: Rows, columns: Sequence[str] | None = None) -> pa.Table:
        schema = self._schema
        fields = schema.nullable(columns)
        typed = to_arrow(keys, schema, columns="keys")
        reader = Reader(self._connection, self.name, schema, fields.names)
        return aligned(typed, reader.get_all(typed), schema.primary_key, fields)

    def scan(
        self,
        columns: Sequence[str] | None = None,
        where: Where | None = None,
        *,
        keys: KeyRange | None = None,
        limit: int | None = None,
        batch_rows: int = 65536,
        read_ahead: bool = True,
    ) -> pa.RecordBatchReader:
        """Read rows in key order; see `headrace.ports.Table.scan`. Each page shows the state at its read."""
        names = self._schema.names if columns is None else columns
        reader = Reader(self._connection, self.name, self._schema, names, parse_where(where))
        return reader.scan(typed_range(self._schema, keys or KeyRange()), limit, batch_rows, read_ahead=read_ahead)

    def splits(self, count: int, *, size: int | None = None) -> list[KeyRange]:
        return splits(self._connection, self.name, count, size)

    # -- operations that the service does not have -------------------------------------------------------

    def add_columns(self, columns: Mapping[str, str | pa.DataType]) -> None:
        raise UnsupportedError(
            "rows of Tablestore can have any columns, so columns cannot be added to a table",
            remedy="name them where the table is opened: store.table(name, columns={…}), or option catalog",
        )

    def set_options(self, **changes: Any) -> TableOptions:
        hours = stream_hours(changes)
        if hours is not None:
            stream = pb.StreamSpecification(enable_stream=True, expiration_time=hours)
            # A missing list would remove the columns.
            stream.columns_to_get.extend(described(self._connection, self.name).stream_details.column_to_get)
            request = pb.UpdateTableRequest(table_name=self.name, stream_spec=stream)
            self._connection.call("UpdateTable", request, pb.UpdateTableResponse, repeatable=True)
        return self.describe().options

    def describe(self) -> TableDescription:
        """Describe the table. The service reports neither rows nor partitions."""
        answer = described(self._connection, self.name)
        stream = answer.stream_details
        return TableDescription(
            name=self.name,
            schema=self._schema,
            # Without a stream no changes are kept. The first tunnel enables it.
            options=dataclasses.replace(
                FIXED_OPTIONS,
                retention_seconds=float(stream.expiration_time * HOUR_SECONDS if stream.enable_stream else 0),
            ),
            rows=None,
            partitions=(),
        )

    def trim(self, *, before: Mapping[int, int] | None = None, cut_tunnels: bool = False) -> TrimReport:
        raise UnsupportedError(
            "Tablestore removes changes itself after the retention time of the table",
            remedy="set_options(retention_seconds=…)",
        )
