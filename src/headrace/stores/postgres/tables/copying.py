"""Rows with new keys, by COPY into their table: without the temporary table and the upsert of `writing`."""

from __future__ import annotations

import pyarrow as pa

from headrace.stores.postgres.connection import Bulk, value_of
from headrace.stores.postgres.schemas import ARROW_TYPES, PgColumn, TableLayout
from headrace.stores.postgres.session import CATALOG_PATH
from headrace.stores.postgres.tables.writing import set_path

# Fewer rows are not worth the check.
_FEWEST = 1000
# The types that the driver writes in the binary format of a column. Its oids would be numbers of eight bytes.
_BINARY = {**ARROW_TYPES, "text": pa.string(), "oid": None}
# A trigger or a rule can keep rows out of the table, which only the upsert notices.
_PLAIN = """
SELECT NOT relhasrules AND NOT EXISTS (SELECT FROM pg_trigger WHERE tgrelid = $1 AND NOT tgisinternal)
FROM pg_class WHERE oid = $1
"""


def can_copy(bulk: Bulk, table: TableLayout, rows: pa.Table) -> bool:
    """Return whether rows in the types of a table can be copied into it, if their keys are new."""
    columns = [(table.column(name), rows.schema.field(name).type) for name in rows.column_names]
    whole = set(rows.column_names).issuperset(table.written.names)
    if rows.num_rows < _FEWEST or table.kind != "r" or not whole or not all(_is_binary(*each) for each in columns):
        return False
    return bool(value_of(bulk, _PLAIN, table.oid))


def _is_binary(column: PgColumn, kind: pa.DataType) -> bool:
    return _BINARY.get(column.base) == kind and not (column.is_array or column.always_identity)


def copy(bulk: Bulk, table: TableLayout, rows: pa.Table, path: str) -> None:
    """Insert rows in the transaction of a connection.

    Args:
        path: the search path of the table's defaults and constraints.

    Raises:
        adbc_driver_manager.Error: a key exists, which is a violation of a constraint like any other.
    """
    set_path(bulk, path)
    with bulk.cursor() as cursor:
        cursor.adbc_ingest(table.name.table, rows, mode="append", db_schema_name=table.name.schema)
    set_path(bulk, CATALOG_PATH)
