"""Changes of several tables as changes of one table. No I/O.

The one table has a column `TABLE` with the name of the table of each row, and for each table a struct column of its
name. The struct of a row's table has the row, and the others are null.
"""

from __future__ import annotations

import json
from collections import Counter
from collections.abc import Mapping, Sequence
from typing import Final, NamedTuple

import numpy as np
import numpy.typing as npt
import pyarrow as pa

from headrace.errors import SchemaError
from headrace.model.tables.change_columns import (
    CHANGE_COLUMNS,
    ROW_KEY,
    SIGNED,
    SOURCE,
    TABLE_COLUMN,
    TRANSACTION_ID,
    ChangeShape,
    marked_columns,
)
from headrace.model.tables.changes import Changes
from headrace.model.tables.schema import Column, KeylessSchema, TableSchema

Indexes = npt.NDArray[np.int64]
TABLE: Final = "_table"
"""The column with the names of tables."""
TUNNEL: Final = "headrace.tunnel"
"""In the metadata of `TABLE` of signed rows: the tunnel of the stream, see `TunnelMark`."""
SCANNED: Final = "headrace.table"
"""In the metadata of `TABLE` of signed rows: the one of the tables that the reader has named."""


class TunnelMark(NamedTuple):
    """The tunnel of several tables that a stream reads, and how.

    Attributes:
        store: the id of the store. A copy of a store has the same tunnels.
        id: the id of the tunnel.
        name: the name of the tunnel.
        limits: the options that divide its rows into batches, in words.
    """

    store: str
    id: str
    name: str
    limits: str


def schema_of(tables: Mapping[str, TableSchema]) -> TableSchema:
    """Return the columns of the one table.

    Raises:
        SchemaError: names of tables differ only in case from each other or from another column. Spark cannot
            distinguish such columns.
    """
    others = [TABLE, *CHANGE_COLUMNS.names, TRANSACTION_ID.name]
    counts = Counter(name.lower() for name in (*tables, *others))
    clash = [name for name in tables if counts[name.lower()] > 1]
    if clash:
        raise SchemaError(
            "tables of a tunnel are columns of its rows, and their names must differ in more than case",
            received=", ".join(clash),
            valid=f"names that also differ from {', '.join(others)}",
            remedy="leave out the table, or create a tunnel of its own for it",
        )
    columns = [Column(TABLE, pa.string())]
    columns += [Column(name, pa.struct(list(schema.nullable()))) for name, schema in tables.items()]
    return KeylessSchema(tuple(columns), problem=f"the table is the changes of {', '.join(tables)}")


def together(schema: TableSchema, parts: Sequence[tuple[str, Changes]], order: Indexes | None = None) -> Changes:
    """Return changes of tables as changes of the one table.

    Args:
        schema: the columns of the one table.
        parts: changes, each with the name of its table.
        order: indexes into the changes of all parts, one part after the other: the changes of the result in their
            order. All in this order by default.
    """
    parts = [(name, part) for name, part in parts if part.num_rows]
    changes = [part for _, part in parts]
    if not parts:
        return Changes.none(schema)
    transactions = [part.transactions for part in changes if part.transactions is not None]
    indexes = None if order is None else pa.array(order)

    def ordered(arrays: Sequence[pa.Array]) -> pa.Array:
        joined = pa.concat_arrays(arrays) if len(arrays) > 1 else arrays[0]
        return joined if indexes is None else joined.take(indexes)

    return Changes(
        rows_together(schema, [(name, part.rows) for name, part in parts], order),
        ordered([part.ops for part in changes]),
        ordered([part.versions for part in changes]),
        ordered([part.timestamps for part in changes]),
        transactions=ordered(transactions) if len(transactions) == len(changes) else None,
    )


def rows_together(
    schema: TableSchema, parts: Sequence[tuple[str, pa.RecordBatch]], order: Indexes | None = None
) -> pa.RecordBatch:
    """Return rows of tables as rows of the one table; see `together`. There is at least one part."""
    counts = np.array([rows.num_rows for _, rows in parts])
    rows = np.arange(counts.sum()) if order is None else order
    part_of = np.searchsorted(np.cumsum(counts), rows, side="right")
    columns: list[pa.Array] = [pa.array([name for name, _ in parts], pa.string()).take(pa.array(part_of))]
    for column in schema.columns[1:]:
        own = np.array([name == column.name for name, _ in parts])
        if not own.any():
            columns.append(pa.nulls(len(rows), column.type))
            continue
        structs = _structs(column.type, [part for name, part in parts if name == column.name])
        if order is not None or not own.all():
            # From an index into the rows of all parts to one into those of this table.
            shift = np.cumsum(np.where(own, counts, 0)) - np.cumsum(counts)
            structs = structs.take(pa.array(rows + shift[part_of], mask=~own[part_of]))
        columns.append(structs)
    return pa.RecordBatch.from_arrays(columns, schema=schema.changes)


def _structs(data_type: pa.StructType, parts: Sequence[pa.RecordBatch]) -> pa.StructArray:
    """Return rows of one table as structs."""
    arrays = [pa.StructArray.from_arrays(part.columns, fields=list(data_type)) for part in parts]
    return pa.concat_arrays(arrays) if len(arrays) > 1 else arrays[0]


class SeveralShape(ChangeShape):
    """The rows of `ChangeShape` for the one table.

    The metadata of the fields of a struct is that of `ChangeShape` for its table, and the metadata of the struct that
    of `_change_type`. So a selection of one table's rows has what a stream of that table has.

    Args:
        schema: the columns of the one table.
        tables: the tables, by the names of their columns.
        wanted: the columns of the rows, in order, structs with the fields to read; None for all.
        pre_images: include `update_preimage` rows.
        transactions: add `_transaction_id`.
        signed: each update and delete must have its old row, see `headrace.model.tables.change_columns.SignedShape`.
    """

    def __init__(
        self,
        schema: TableSchema,
        tables: Mapping[str, TableSchema],
        wanted: pa.Schema | None = None,
        *,
        pre_images: bool = True,
        transactions: bool = False,
        signed: bool = False,
    ) -> None:
        names = None if wanted is None else wanted.names
        super().__init__(schema, names, pre_images=pre_images, transactions=transactions)
        self._signed = signed
        fields = [
            _annotated(field, tables[field.name], signed=signed) if field.name in tables else field
            for field in self.schema
        ]
        if wanted is not None:
            fields = [
                _narrowed(field, wanted.field(field.name).type) if field.name in tables else field for field in fields
            ]
        self.schema = pa.schema(fields)

    def rows(self, changes: Changes) -> pa.RecordBatch:
        """Return the changes as rows; raise `UnsupportedError` if one of them lacks its old row and needs it."""
        if self._signed and len(lacks := changes.without_old_row):
            changes.check_old_rows(changes.rows.column(TABLE)[int(lacks[0])].as_py())
        return super().rows(changes)

    def column(self, changes: Changes, name: str) -> pa.Array:
        values = super().column(changes, name)
        wanted = self.schema.field(name).type
        if values.type == wanted or not pa.types.is_struct(wanted):
            return values
        children = [values.field(field.name) for field in wanted]
        return pa.StructArray.from_arrays(children, fields=list(wanted), mask=values.is_null())


def marked_tables(
    schema: pa.Schema,
    marks: Mapping[str, str],
    numbers: Mapping[str, Mapping[str, int]],
    tunnel: TunnelMark | None = None,
    scanned: str | None = None,
) -> pa.Schema:
    """Return the columns of a `SeveralShape` with the marks of their tables, see `SOURCE`, and of their tunnel.

    Args:
        numbers: the numbers of the columns of each table.
        tunnel: the tunnel of signed rows.
        scanned: the table that the reader has named.
    """
    fields = [
        _marked(field, marks[field.name], numbers[field.name]) if field.name in marks else field for field in schema
    ]
    if tunnel is not None:
        named = {} if scanned is None else {SCANNED: scanned}
        fields = [
            field.with_metadata({TUNNEL: json.dumps(tunnel), **named}) if field.name == TABLE else field
            for field in fields
        ]
    return pa.schema(fields)


def _annotated(field: pa.Field, table: TableSchema, *, signed: bool) -> pa.Field:
    """Return a struct column with the metadata of the columns of its table."""
    places = {name: {ROW_KEY: str(place)} for place, name in enumerate(table.primary_key)}
    inner = [
        each.with_metadata(places.get(each.name, {}) | ({TABLE_COLUMN: each.name} if signed else {}))
        for each in field.type
    ]
    return pa.field(field.name, pa.struct(inner), metadata={SIGNED: str(len(places))} if signed else None)


def _narrowed(field: pa.Field, wanted: pa.DataType) -> pa.Field:
    """Return a struct column with the fields that a reader knows.

    Raises:
        SchemaError: the table does not have one of them, or has it with another type.
    """
    now = {each.name: each for each in field.type}
    for each in wanted if pa.types.is_struct(wanted) else (pa.field(field.name, wanted),):
        if each.name not in now or now[each.name].type != each.type:
            raise SchemaError(
                f"column {each.name!r} of table {field.name!r} is another one than when the query was started",
                received=str(now[each.name].type) if each.name in now else "no such column",
                valid=str(each.type),
                remedy="start the query again with a new checkpoint location and a new tunnel",
            )
    return pa.field(field.name, pa.struct([now[each.name] for each in wanted]), metadata=field.metadata)


def _marked(field: pa.Field, mark: str, numbers: Mapping[str, int]) -> pa.Field:
    key = {each.name for each in field.type if ROW_KEY.encode() in (each.metadata or {})}
    inner = marked_columns(field.type, key, mark, numbers)
    return pa.field(field.name, pa.struct(inner), metadata={**(field.metadata or {}), SOURCE: mark})
