"""The writes of a transaction, folded into the last state of each key."""

from __future__ import annotations

from collections.abc import Callable, Sequence
from dataclasses import dataclass
from typing import Literal, TypeAlias

import numpy as np
import pyarrow as pa
import pyarrow.compute as pc

from headrace.errors import SchemaError
from headrace.model.tables.changes import RowChange
from headrace.model.tables.schema import TableSchema
from headrace.rows import to_arrow
from headrace.rows.by_position import aggregated, aligned, last_rows

DELETED = ""
"""The column of a state that marks removed rows: a name that no column has."""
FindRows: TypeAlias = Callable[[pa.Table], pa.Table]
_COLUMNS: dict[RowChange, Literal["all", "given", "keys"]] = {RowChange.UPDATE: "given", RowChange.DELETE: "keys"}


@dataclass(frozen=True)
class TableWrite:
    """Rows and their change of a table.

    Attributes:
        rows: rows in the types of the table: all columns, or for an update some, or for a delete the key.
        keep_nulls: whether a null of an update sets the cell.
    """

    change: RowChange
    rows: pa.Table
    keep_nulls: bool = False

    @classmethod
    def of(
        cls, change: RowChange, parts: Sequence[pa.Table], schema: TableSchema, *, decided: bool = False
    ) -> TableWrite:
        """Return staged rows in the types of a table.

        Args:
            decided: whether the batch is decided: columns that the table does not have were dropped since.

        Raises:
            SchemaError: the rows are not those of the table, or an update has no column besides the key.
        """
        rows = pa.concat_tables(parts, promote_options="default") if parts else schema.arrow.empty_table()
        if decided:
            rows = rows.select([name for name in rows.column_names if name in schema])
        typed = to_arrow(rows, schema, columns=_COLUMNS.get(change, "all"))
        if change is RowChange.UPDATE and not decided and typed.num_columns == len(schema.primary_key):
            raise SchemaError("an update needs a column to set besides the key", received=typed.column_names)
        return cls(change, typed)


def last_state(writes: Sequence[TableWrite], schema: TableSchema, find: FindRows) -> pa.Table:
    """Return the last state of each key: all columns, and whether the row is removed, in column `DELETED`.

    Args:
        find: returns the rows of a table with some different keys, for updates.
    """
    key = schema.primary_key
    state = _marked(schema.nullable().empty_table(), deleted=False)
    anew = False
    for write in writes:
        if write.change is RowChange.REPLACE_ALL:
            state, anew = state.slice(0, 0), True
        rows = write.rows
        if write.change is RowChange.UPDATE:
            rows = _updated(write, state, None if anew else find, schema)
        full = pa.table({name: _column(rows, name, schema) for name in schema.names})
        both = pa.concat_tables([state, _marked(full, deleted=write.change is RowChange.DELETE)])
        state = both.take(pa.array(last_rows(both, key))) if key else both
    return state


def _column(rows: pa.Table, name: str, schema: TableSchema) -> pa.ChunkedArray:
    if name in rows.column_names:
        return rows.column(name)
    return pa.chunked_array([pa.nulls(rows.num_rows, schema.column(name).type)])


def _marked(rows: pa.Table, *, deleted: bool) -> pa.Table:
    return rows.append_column(DELETED, pa.array(np.full(rows.num_rows, deleted)))


def _updated(write: TableWrite, state: pa.Table, find: FindRows | None, schema: TableSchema) -> pa.Table:
    """Return the whole rows after an update."""
    key = schema.primary_key
    rows = write.rows.take(pa.array(last_rows(write.rows, key))) if write.keep_nulls else _cells(write.rows, key)
    old_rows = [] if find is None else [find(rows)]
    before = pa.concat_tables([*old_rows, state.drop_columns([DELETED])])
    before = before.take(pa.array(last_rows(before, key)))
    old = aligned(rows, before, key, schema.nullable())
    new = {name: rows.column(name) for name in rows.column_names}
    if not write.keep_nulls:
        new = {name: pc.coalesce(column, old.column(name)) for name, column in new.items()}
    return pa.table({name: new.get(name, old.column(name)) for name in schema.names})


def _cells(rows: pa.Table, key: Sequence[str]) -> pa.Table:
    """Return a row for each key, with the last value of each column that is not null."""
    rest = [name for name in rows.column_names if name not in key]
    places = [pa.array(np.arange(rows.num_rows), mask=np.asarray(rows.column(name).is_null())) for name in rest]
    keys, last = aggregated(rows.select(list(key)).columns, [("max", each) for each in places])
    cells = [rows.column(name).take(each) for name, each in zip(rest, last, strict=True)]
    return pa.table([*keys, *cells], [*key, *rest]).select(rows.column_names)
