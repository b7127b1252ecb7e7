"""Changes of a table's columns: a new version of its schema, and rows that are written again if they change.

The change log stays as it is: `headrace.stores.embedded.tables.change_log` finds the columns of an older version by
their numbers.
"""

from __future__ import annotations

import apsw
import pyarrow as pa
import pyarrow.compute as pc

from headrace.errors import StoreBusyError
from headrace.model.tables.alterations import Alteration
from headrace.model.tables.column_limits import check_columns
from headrace.model.tables.schema import TableSchema
from headrace.stores.embedded.tables.column_numbers import Numbers
from headrace.stores.embedded.tables.physical import PhysicalTable


def alter(
    connection: apsw.Connection, name: str, before: PhysicalTable, alteration: Alteration, numbers: Numbers
) -> tuple[PhysicalTable, pa.Schema]:
    """Change the columns of a table inside the caller's write transaction; return the table, and the schema to store.

    Raises:
        SchemaError: a column does not exist, or cannot have the change.
        StoreBusyError: rows change whose former values a tunnel has not read.
    """
    schema = alteration.applied(before.schema)
    check_columns(schema)
    after = PhysicalTable(before.object_id, schema, before.schema_version + 1)
    if not alteration.dropped and not alteration.widened:
        after.add_columns(connection, before)
    else:
        _check_no_snapshot(connection, name, before)
        with before.replaced(connection) as old:
            after.create(connection)
            _copy(connection, old, after, alteration)
    return after, numbers.altered(before.schema, schema, alteration).stored(schema.arrow)


def _check_no_snapshot(connection: apsw.Connection, name: str, table: PhysicalTable) -> None:
    if connection.execute("SELECT 1 FROM snapshot WHERE object = ?", (table.object_id,)).fetchone() is not None:
        raise StoreBusyError(
            f"rows of table {name!r} cannot be changed while a tunnel reads its base data",
            received="a tunnel whose base data is not read to its end",
            remedy="let its reader read the base data, or drop the tunnel",
        )


def _copy(connection: apsw.Connection, old: PhysicalTable, new: PhysicalTable, alteration: Alteration) -> None:
    for page in old.pages(connection, old.schema.names):
        if page.rows.num_rows:
            new.write(connection, new.codec.encode(_altered(page.rows, new.schema, alteration)))


def _altered(rows: pa.RecordBatch, schema: TableSchema, alteration: Alteration) -> pa.RecordBatch:
    """Return rows with the columns after changes."""
    columns = []
    for field in schema.arrow:
        former = alteration.name_before(field.name)
        missing = pa.nulls(rows.num_rows, field.type)
        columns.append(missing if former is None else pc.cast(rows.column(former), field.type))
    return pa.RecordBatch.from_arrays(columns, schema=schema.arrow)
