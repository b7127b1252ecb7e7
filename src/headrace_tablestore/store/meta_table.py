"""The meta table: rows with the key (tunnelId, uuid, channelId), in the layout of the EMR connector."""

from __future__ import annotations

import logging
from collections.abc import Iterable, Mapping, Sequence
from typing import NamedTuple

import pyarrow as pa

from headrace.errors import AlreadyExistsError, NotFoundError
from headrace.model.tables.changes import RowChange
from headrace.model.tables.schema import TableSchema
from headrace_tablestore.store.connection import TablestoreConnection
from headrace_tablestore.store.tables.write_options import WriteOptions
from headrace_tablestore.store.tables.writing import Writer
from headrace_tablestore.wire import table_pb2 as pb
from headrace_tablestore.wire.errors import ServiceError
from headrace_tablestore.wire.plainbuffer.rows import decode_row, decode_rows, encode_row
from headrace_tablestore.wire.plainbuffer.values import Cell, Marker, Row, Value

DEFAULT_NAME = "__spark_meta_checkpoint__"
_KEY = ("tunnelId", "uuid", "channelId")
_log = logging.getLogger("headrace")


class MetaRow(NamedTuple):
    """A row of the meta table, of one tunnel."""

    batch: str
    channel: str
    cells: Mapping[str, str | int]


class MetaTable:
    """The table with the records of batches of an instance's tunnels. The first write creates it.

    Args:
        connection: the connection to the service.
        name: the table.
    """

    def __init__(self, connection: TablestoreConnection, name: str = DEFAULT_NAME) -> None:
        self._connection = connection
        self._writer = Writer(connection, WriteOptions())
        self.name = name

    def rows(
        self,
        tunnel: str,
        batch: str | None,
        *,
        first: str | None = None,
        end: str | None = None,
        columns: Sequence[str] = (),
    ) -> list[MetaRow]:
        """Return rows of a tunnel in key order; none if the meta table does not exist.

        Args:
            batch: the uuid; None for all.
            first: the first channel id; ``end`` is the id after the last.
            columns: the attributes to return; all if empty.
        """
        low: Value = Marker.INF_MIN if first is None else first
        high: Value = Marker.INF_MAX if end is None else end
        begin = _key(tunnel, Marker.INF_MIN if batch is None else batch, low)
        request = pb.GetRangeRequest(
            table_name=self.name,
            direction=pb.FORWARD,
            columns_to_get=_named(columns),
            max_versions=1,
            exclusive_end_primary_key=_key(tunnel, Marker.INF_MAX if batch is None else batch, high),
        )
        stored: list[MetaRow] = []
        while begin:
            request.inclusive_start_primary_key = begin
            try:
                answer = self._connection.call("GetRange", request, pb.GetRangeResponse)
            except NotFoundError:
                return []
            stored += [_meta_row(row) for row in decode_rows(answer.rows)]
            begin = answer.next_start_primary_key
        return stored

    def get(self, tunnel: str, batch: str, channel: str, columns: Sequence[str] = ()) -> MetaRow | None:
        """Return one row, or None."""
        request = pb.GetRowRequest(
            table_name=self.name,
            primary_key=_key(tunnel, batch, channel),
            columns_to_get=_named(columns),
            max_versions=1,
        )
        try:
            answer = self._connection.call("GetRow", request, pb.GetRowResponse)
        except NotFoundError:
            return None
        return _meta_row(decode_row(answer.row)) if answer.row else None

    def put_if_absent(self, tunnel: str, row: MetaRow) -> bool:
        """Write a row unless its key exists; return whether it was written.

        After a lost response the request is repeated, and then finds its own row.
        """
        cells = tuple(Cell(name, value) for name, value in row.cells.items())
        request = pb.PutRowRequest(
            table_name=self.name,
            row=encode_row(Row(_key_of(tunnel, row.batch, row.channel), cells)),
            condition=pb.Condition(row_existence=pb.EXPECT_NOT_EXIST),
        )
        try:
            try:
                self._connection.call("PutRow", request, pb.PutRowResponse, repeatable=True)
            except NotFoundError:
                self._create()
                self._connection.call("PutRow", request, pb.PutRowResponse, repeatable=True)
        except ServiceError as error:
            if error.code == "OTSConditionCheckFail":
                return False
            raise
        return True

    def put(self, tunnel: str, rows: Iterable[MetaRow]) -> None:
        """Insert or replace rows."""
        self._write(RowChange.PUT, tunnel, rows)

    def delete(self, tunnel: str, rows: Iterable[MetaRow]) -> None:
        """Delete the rows of some keys."""
        self._write(RowChange.DELETE, tunnel, rows)

    def warn_of_expiry(self) -> None:
        """Log a warning if rows of the table expire: a query that stops for longer loses its position."""
        request = pb.DescribeTableRequest(table_name=self.name)
        try:
            answer = self._connection.call("DescribeTable", request, pb.DescribeTableResponse)
        except NotFoundError:
            return
        seconds = answer.table_options.time_to_live
        if seconds > 0:
            _log.warning(
                "rows of meta table %s expire after %.1f days: a query that is stopped for longer cannot continue from "
                "its checkpoint; set the table's time to live to -1, or name another table in option checkpoint.table",
                self.name,
                seconds / 86400,
            )

    def _write(self, change: RowChange, tunnel: str, rows: Iterable[MetaRow]) -> None:
        cells = [{**dict(_key_of(tunnel, row.batch, row.channel)), **row.cells} for row in rows]
        if cells:
            types = {
                name: "long" if isinstance(value, int) else "string" for row in cells for name, value in row.items()
            }
            schema = TableSchema.of(types, _KEY)
            table = pa.Table.from_pylist(cells, schema=schema.arrow)
            try:
                self._writer.write(self.name, schema, change, table)
            except NotFoundError:
                self._create()
                self._writer.write(self.name, schema, change, table)

    def _create(self) -> None:
        request = pb.CreateTableRequest(
            table_meta=pb.TableMeta(
                table_name=self.name, primary_key=[pb.PrimaryKeySchema(name=name, type=pb.STRING) for name in _KEY]
            ),
            reserved_throughput=pb.ReservedThroughput(capacity_unit=pb.CapacityUnit(read=0, write=0)),
            # Rows must not expire: the feed deletes rows that it no longer needs.
            table_options=pb.TableOptions(time_to_live=-1, max_versions=1),
        )
        try:
            self._connection.call("CreateTable", request, pb.CreateTableResponse)
        except AlreadyExistsError:
            _log.info("meta table %s was made by another process at the same time", self.name)


def _named(columns: Sequence[str]) -> list[str]:
    """Return the columns of a request, with a key column: the service omits rows without any requested column."""
    return [*columns, _KEY[-1]] if columns else []


def _key_of(tunnel: str, batch: Value, channel: Value) -> tuple[tuple[str, Value], ...]:
    return tuple(zip(_KEY, (tunnel, batch, channel), strict=True))


def _key(tunnel: str, batch: Value, channel: Value) -> bytes:
    return encode_row(Row(_key_of(tunnel, batch, channel)))


def _meta_row(row: Row) -> MetaRow:
    _, batch, channel = (str(value) for _, value in row.key)
    return MetaRow(batch, channel, {cell.name: cell.value for cell in row.cells if isinstance(cell.value, str | int)})
