"""Streams of tunnels of several tables, whose rows have a struct column for each table."""

from __future__ import annotations

from typing import TYPE_CHECKING

from headrace.model.tables.change_columns import CHANGE_COLUMNS, CHANGE_TYPE
from headrace.model.tables.several_tables import TABLE

if TYPE_CHECKING:
    from pyspark.sql import DataFrame


def of_table(changes: DataFrame, table: str) -> DataFrame:
    """Return the changes of one table, with the columns and the metadata that a stream of that table has.

    Args:
        changes: rows with ``rows=typed``, see `headrace.model.tables.several_tables`.
        table: the name of the table.
    """
    from pyspark.sql import functions as F

    metadata = changes.schema[table].metadata
    columns = [
        F.col(name).alias(name, metadata=metadata) if name == CHANGE_TYPE else F.col(name)
        for name in CHANGE_COLUMNS.names
    ]
    quoted = f"`{table.replace('`', '``')}`"
    return changes.where(F.col(TABLE) == table).select(f"{quoted}.*", *columns)
