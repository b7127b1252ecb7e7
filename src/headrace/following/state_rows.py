"""Rows for the tables of state, on their way through a query of Spark.

The rows travel as one column beside the results, of type `STATE_TYPE`. It is null but in the first row of each record
batch, which has all state rows of the record batch as Arrow IPC streams. So Spark copies a few large values, whatever
the number and the types of the columns of state.
"""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from dataclasses import dataclass

import pyarrow as pa

from headrace.tables.changes import RowChange

STATE = "__state"
STATE_TYPE = pa.list_(
    pa.struct(
        [
            pa.field("table", pa.string(), nullable=False),
            pa.field("change", pa.string(), nullable=False),
            pa.field("rows", pa.binary(), nullable=False),
        ]
    )
)
STATE_DDL = "array<struct<table:string,change:string,rows:binary>>"
"""`STATE_TYPE` in Spark SQL."""


@dataclass(frozen=True)
class StateRows:
    """Rows to put into a table of state, or keys to delete.

    Attributes:
        table: the table's role: a key of `GroupStates.tables`.
        change: PUT or DELETE.
        rows: the rows, or the keys.
    """

    table: str
    change: RowChange
    rows: pa.Table


def state_column(count: int, writes: Sequence[StateRows]) -> pa.Array:
    """Return a column of ``count`` values with state rows in the first one."""
    value = [
        {"table": each.table, "change": each.change.name, "rows": _stream(each.rows)}
        for each in writes
        if each.rows.num_rows
    ]
    if not value:
        return pa.nulls(count, STATE_TYPE)
    return pa.concat_arrays([pa.array([value], STATE_TYPE), pa.nulls(count - 1, STATE_TYPE)])


def state_rows(column: pa.Array | pa.ChunkedArray) -> Iterator[StateRows]:
    """Yield the state rows of a column; the inverse of `state_column`."""
    for value in column.drop_null():
        for each in value.as_py():
            rows = pa.ipc.open_stream(each["rows"]).read_all()
            yield StateRows(each["table"], RowChange[each["change"]], rows)


def _stream(rows: pa.Table) -> pa.Buffer:
    sink = pa.BufferOutputStream()
    with pa.ipc.new_stream(sink, rows.schema) as writer:
        writer.write_table(rows)
    return sink.getvalue().to_pybytes()
