"""Streams of tunnels of several tables, whose rows have a struct column for each table."""

from __future__ import annotations

import json
from collections.abc import Collection, Iterable
from typing import TYPE_CHECKING

from headrace.model.tables.change_columns import CHANGE_COLUMNS, CHANGE_TYPE, NUMBER, SIGNED
from headrace.model.tables.several_tables import SCANNED, TABLE, TUNNEL, TunnelMark
from headrace.sql_text.lexer import quote_name

if TYPE_CHECKING:
    from pyspark.sql import DataFrame
    from pyspark.sql.types import StructField, StructType


def tunnel_of(schema: StructType) -> TunnelMark | None:
    """Return the tunnel of several tables whose signed rows a stream has; None for other streams."""
    if TABLE not in schema.names or TUNNEL not in schema[TABLE].metadata:
        return None
    return TunnelMark(*json.loads(schema[TABLE].metadata[TUNNEL]))


def scanned_table(schema: StructType) -> str | None:
    """Return the table that the reader of a stream of several tables has named; None if it has named none."""
    if tunnel_of(schema) is None:
        return None
    name: str | None = schema[TABLE].metadata.get(SCANNED)
    return name


def numbers_of(schema: StructType, used: Collection[str]) -> dict[str, dict[str, int]]:
    """Return the numbers of columns of signed rows, by table; the name of the table of other rows is empty.

    Args:
        used: the names of columns of the rows.
    """
    from pyspark.sql.types import StructType

    fields = [field for field in schema if field.name in used]
    found = {"": numbers_in(fields)}
    for field in fields:
        if SIGNED in field.metadata and isinstance(field.dataType, StructType):
            found[field.name] = numbers_in(field.dataType)
    return {name: numbers for name, numbers in found.items() if numbers}


def numbers_in(columns: Iterable[StructField]) -> dict[str, int]:
    """Return the numbers of columns of a table, as far as their metadata have them; see `NUMBER`."""
    return {field.name: int(field.metadata[NUMBER]) for field in columns if NUMBER in field.metadata}


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
    return changes.where(F.col(TABLE) == table).select(f"{quote_name(table)}.*", *columns)
