"""Partitions of DuckLake tables: columns, or parts of their times, by which new files are divided. No I/O.

A table can get another partitioning at any time: its files keep theirs. Rows of the catalog have none, as in DuckDB,
until they move into files. Files are in the directory of the table: readers skip them by the bounds in the catalog.
"""

from __future__ import annotations

from collections.abc import Callable, Iterator
from dataclasses import dataclass
from typing import Any

import pyarrow as pa
import pyarrow.compute as pc

from headrace.errors import SchemaError, UnsupportedError
from headrace.model.tables.schema import TableSchema
from headrace.model.types import type_name
from headrace_lake import partitions

IDENTITY = "identity"
# Parts of an instant depend on the time zone of DuckDB's session.
_PARTS: dict[str, Callable[[pa.ChunkedArray], pa.ChunkedArray]] = {
    "year": pc.year,
    "month": pc.month,
    "day": pc.day,
    "hour": pc.hour,
}


@dataclass(frozen=True)
class FilePartition:
    """The partition of a file.

    Attributes:
        id: the number of the partitioning that its table had.
        values: a text for each field of the partitioning.
    """

    id: int
    values: tuple[str | None, ...]


@dataclass(frozen=True)
class PartitionField:
    """What a table is divided by: a column, or the result of a function of it."""

    column: str
    transform: str

    def __str__(self) -> str:
        return self.column if self.transform == IDENTITY else f"{self.transform}({self.column})"


@dataclass(frozen=True)
class Partitioning:
    """How a table divides its new files.

    Attributes:
        id: its number in the catalog.
    """

    id: int
    fields: tuple[PartitionField, ...]

    def check(self, schema: TableSchema) -> None:
        """Raise `UnsupportedError` if headrace does not divide rows so."""
        for field in self.fields:
            kind = schema.column(field.column).type
            if field.transform == IDENTITY:
                partitions.check_partitions(schema, [field.column])
                continue
            is_date = pa.types.is_date32(kind) and field.transform != "hour"
            if field.transform not in _PARTS or not (is_date or (pa.types.is_timestamp(kind) and kind.tz is None)):
                raise UnsupportedError(
                    "headrace writes no DuckLake tables with this partitioning",
                    received=f"{field.transform} of column {field.column!r}, {type_name(kind)}",
                    valid=f"columns; {', '.join(_PARTS)} of a date or a timestamp_ntz",
                    remedy="ALTER TABLE … SET PARTITIONED BY (…) in DuckDB",
                )

    def divided(self, rows: pa.Table, beside: pa.Table) -> Iterator[tuple[FilePartition, pa.Table]]:
        """Yield the partitions of rows, with the rows of another table that belong to each.

        Args:
            beside: as many rows.
        """
        columns = [_PARTS.get(each.transform, _same)(rows.column(each.column)) for each in self.fields]
        for values, part in partitions.divided(beside, columns):
            yield FilePartition(self.id, tuple(map(_text, values))), part


def _same(values: pa.ChunkedArray) -> pa.ChunkedArray:
    return values


def _text(value: Any) -> str | None:
    """Return a value as DuckDB shows it."""
    if value is None:
        return None
    text = str(value)
    if "\0" in text:
        raise SchemaError(
            "a text of a partition column has a NUL, which a catalog in PostgreSQL does not have",
            received=repr(text)[:200],
            remedy="write another text, or into a table without this partition column",
        )
    return text
