"""A followed scan: a streaming DataFrame of ``readAs=table``, and its signed rows."""

from __future__ import annotations

from collections import Counter
from collections.abc import Mapping
from dataclasses import dataclass, field
from typing import TYPE_CHECKING

import pyarrow as pa
import pyarrow.compute as pc

from headrace.derived.last_rows import net_changes
from headrace.derived.own_names import ORDER, SIGN
from headrace.errors import OptionError
from headrace.model.tables.change_columns import CHANGE_COLUMNS, CHANGE_TYPE, ROW_KEY, SIGNED, SOURCE, TABLE_COLUMN
from headrace.model.tables.several_tables import TunnelMark
from headrace.spark.analysed_plans import OF_READERS, operators, plan_of
from headrace.spark.arrow_functions import map_in_arrow
from headrace.spark.several_tables import numbers_in, scanned_table, tunnel_of
from headrace.sql_text.lexer import quote_name

if TYPE_CHECKING:
    from pyspark.sql import DataFrame
    from pyspark.sql.types import StructType

ENTERING = ("insert", "update_postimage")
"""The types of changes whose rows enter a table."""
_ENTERS = f"{CHANGE_TYPE} IN {ENTERING}"
_SIGNED = f"CAST(CASE WHEN {_ENTERS} THEN 1 ELSE -1 END AS TINYINT) AS {SIGN}"
ORDERED = f"monotonically_increasing_id() AS {ORDER}"


@dataclass(frozen=True)
class FollowedScan:
    """A followed scan.

    Attributes:
        name: its name in the query.
        schema: the table's columns, without those of changes.
        key: the columns of the table's primary key, in order.
        source: the mark of the table, see `headrace.model.tables.change_columns.source_mark`.
        tunnel: the tunnel of several tables that has the changes; None for a tunnel of this table alone.
        table: the name of the table in the rows of this tunnel.
        numbers: the numbers of the columns, as far as the store of the table has them.
        inner: it is no scan, but the table with the groups of an inner query; see `headrace.derived.follow.planning`.
        label, labels: then the name and the columns for people.
    """

    name: str
    schema: StructType
    key: tuple[str, ...]
    source: str = ""
    tunnel: TunnelMark | None = None
    table: str = ""
    numbers: Mapping[str, int] = field(default_factory=dict)
    inner: bool = False
    label: str = ""
    labels: tuple[str, ...] = ()

    @property
    def mark(self) -> str:
        """What a position in a checkpoint belongs to: the table, and the tunnel if it has several tables."""
        return self.source if self.tunnel is None else f"{self.source} {self.tunnel.id}"

    @classmethod
    def of(cls, name: str, rows: DataFrame, stream: DataFrame | None = None) -> FollowedScan:
        """Return the scan of a DataFrame.

        Args:
            rows: the columns of the table, or some of them, and the columns of changes.
            stream: the changes of several tables of which ``rows`` are those of one; ``rows`` by default.

        Raises:
            OptionError: the DataFrame is not a stream of ``readAs=table``, or not all its columns are there.
        """
        from pyspark.sql.types import StructType

        stream = rows if stream is None else stream
        if not rows.isStreaming or not _is_followed(rows.schema):
            raise OptionError(
                f"scan {name!r} does not have readAs = 'table'",
                received="a stream of other rows" if rows.isStreaming else "a DataFrame that is not a stream",
                remedy='read it with spark.readStream.format("headrace").option("tunnel", …)'
                '.option("readAs", "table").load(), without a schema; join static tables as views of the session',
            )
        columns = StructType([field for field in rows.schema if field.name not in CHANGE_COLUMNS.names])
        change = rows.schema[CHANGE_TYPE].metadata
        _check_reader(name, stream, columns, keys=int(change[SIGNED]))
        places = {int(field.metadata[ROW_KEY]): field.name for field in columns if ROW_KEY in field.metadata}
        key = tuple(places[place] for place in sorted(places))
        tunnel = tunnel_of(stream.schema)
        table = "" if tunnel is None else table_of(name, stream.schema)
        return cls(name, columns, key, str(change.get(SOURCE, "")), tunnel, table, numbers_in(columns))

    def signed(self, changes: DataFrame, *, net: bool) -> DataFrame:
        """Return the rows of a batch with `SIGN` and `ORDER` instead of the columns of changes.

        Args:
            net: leave out the rows that the batch adds and removes again.
        """
        columns = [quote_name(field.name) for field in self.schema]
        if not net:
            return changes.selectExpr(*columns, _SIGNED, ORDERED)
        return self._net(changes.selectExpr(*columns, _SIGNED)).selectExpr("*", ORDERED)

    def _net(self, rows: DataFrame) -> DataFrame:
        # All changes of a key are in one partition, in their order: a channel of a batch is one task.
        places = [self.schema.names.index(name) for name in self.key]
        return map_in_arrow(rows, lambda parts: net_changes(parts, places), rows.schema)


def signed_rows(rows: pa.Table, schema: pa.Schema) -> pa.Table:
    """Return rows of changes with `SIGN` instead of the columns of changes.

    Args:
        schema: the columns of the table to return, in Spark's Arrow types.
    """
    enters = pc.is_in(rows.column(CHANGE_TYPE), pa.array(ENTERING))
    signs = pc.if_else(enters, pa.scalar(1, pa.int8()), pa.scalar(-1, pa.int8()))
    return rows.select(schema.names).cast(schema).append_column(SIGN, signs)


def table_of(scan: str, schema: StructType) -> str:
    """Return the table of a scan in the rows of a tunnel of several tables: that of the reader, or of the scan's name.

    Raises:
        OptionError: the tunnel has no such table.
    """
    tables = [field.name for field in schema if SIGNED in field.metadata]
    wanted = scanned_table(schema) or scan
    table = next((name for name in tables if name.lower() == wanted.lower()), None)
    if table is None:
        tunnel = tunnel_of(schema)
        raise OptionError(
            f"scan {scan!r} does not say which table of its tunnel it is",
            received=f"tunnel {'' if tunnel is None else tunnel.name} of {', '.join(tables)}",
            valid=tables,
            remedy="give the scan the name of the table, or name the table in load(…)",
        )
    return table


def _check_reader(name: str, stream: DataFrame, columns: StructType, *, keys: int) -> None:
    """Raise `OptionError` unless a DataFrame has the rows of a reader as they are, and names that Spark can resolve.

    Args:
        keys: the number of columns of the table's primary key.
    """
    others = sorted(set(operators(plan_of(stream), in_views=True)) - OF_READERS)
    computed = [field.name for field in columns if TABLE_COLUMN not in field.metadata]
    if others or computed:
        raise OptionError(
            f"the DataFrame of scan {name!r} is not one of a reader as it is",
            received=", ".join(others or computed),
            remedy="write filters, joins and computed columns into the query",
        )
    if sum(ROW_KEY in field.metadata for field in columns) != keys:
        raise OptionError(
            f"the DataFrame of scan {name!r} lacks a column of the table's primary key",
            received=columns.names,
            remedy="keep all key columns",
        )
    counts = Counter(field.lower() for field in (*columns.names, *CHANGE_COLUMNS.names))
    twice = [field for field in columns.names if counts[field.lower()] > 1]
    if twice:
        raise OptionError(
            f"a followed query ignores the case of names, and scan {name!r} has columns that differ only in case",
            received=", ".join(twice),
            valid=f"names that also differ from {', '.join(CHANGE_COLUMNS.names)}",
            remedy="rename the columns of the table",
        )


def _is_followed(schema: StructType) -> bool:
    """Return whether the rows of a DataFrame are changes that add up to a table."""
    signed = CHANGE_TYPE in schema.names and SIGNED in schema[CHANGE_TYPE].metadata
    return signed and any(ROW_KEY in field.metadata for field in schema)
