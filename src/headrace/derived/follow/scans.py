"""Followed scans: streaming DataFrames of ``readAs=table``, and the signed rows of their batches."""

from __future__ import annotations

from collections import Counter
from collections.abc import Iterator, Mapping, Sequence
from contextlib import contextmanager
from dataclasses import dataclass, replace
from typing import TYPE_CHECKING

import pyarrow as pa
import pyarrow.compute as pc

from headrace.derived.gathering.gather import difference
from headrace.derived.last_rows import net_changes
from headrace.derived.own_names import ORDER, SIGN
from headrace.errors import OptionError
from headrace.model.tables.change_columns import CHANGE_COLUMNS, CHANGE_TYPE, ROW_KEY, SIGNED, SOURCE, TABLE_COLUMN
from headrace.spark.analysed_plans import operators, plan_of
from headrace.spark.executors import sent
from headrace.sql_text.lexer import quote_name

if TYPE_CHECKING:
    from pyspark.sql import DataFrame
    from pyspark.sql.types import StructType

_SCAN = "__scan"
# The operators of the plan of a reader, also below views and with fewer columns.
_OF_READERS = frozenset(("StreamingRelationV2", "Project", "SubqueryAlias", "View"))
_ENTERING = ("insert", "update_postimage")
_ENTERS = f"{CHANGE_TYPE} IN {_ENTERING}"
_SIGNED = f"CAST(CASE WHEN {_ENTERS} THEN 1 ELSE -1 END AS TINYINT) AS {SIGN}"
_ORDERED = f"monotonically_increasing_id() AS {ORDER}"


@dataclass(frozen=True)
class FollowedScan:
    """A followed scan.

    Attributes:
        name: its name in the query.
        schema: the table's columns, without those of changes.
        key: the columns of the table's primary key, in order.
        source: the mark of the table, see `headrace.model.tables.change_columns.source_mark`.
    """

    name: str
    schema: StructType
    key: tuple[str, ...]
    source: str = ""

    @classmethod
    def of(cls, name: str, df: DataFrame) -> FollowedScan:
        """Return the scan of a DataFrame.

        Raises:
            OptionError: the DataFrame is not a stream of ``readAs=table``, or not all its columns are there.
        """
        from pyspark.sql.types import StructType

        if not df.isStreaming or not is_followed(df.schema):
            raise OptionError(
                f"scan {name!r} does not have readAs = 'table'",
                received="a stream of other rows" if df.isStreaming else "a DataFrame that is not a stream",
                remedy='read it with spark.readStream.format("headrace").option("tunnel", …)'
                '.option("readAs", "table").load(), without a schema; join static tables as views of the session',
            )
        columns = StructType([field for field in df.schema if field.name not in CHANGE_COLUMNS.names])
        _check_reader(name, df, columns)
        places = {int(field.metadata[ROW_KEY]): field.name for field in columns if ROW_KEY in field.metadata}
        source = str(df.schema[CHANGE_TYPE].metadata.get(SOURCE, ""))
        return cls(name, columns, tuple(places[place] for place in sorted(places)), source)

    def signed(self, changes: DataFrame, *, net: bool = False) -> DataFrame:
        """Return the rows of a batch with `SIGN` and `ORDER` instead of the columns of changes.

        Args:
            net: leave out the rows that the batch adds and removes again.
        """
        columns = [quote_name(field.name) for field in self.schema]
        if not net:
            return changes.selectExpr(*columns, _SIGNED, _ORDERED)
        return self._net(changes.selectExpr(*columns, _SIGNED)).selectExpr("*", _ORDERED)

    def _net(self, rows: DataFrame) -> DataFrame:
        # All changes of a key are in one partition, in their order: a channel of a batch is one task.
        names, places = rows.columns, [self.schema.names.index(name) for name in self.key]
        # mapInArrow parses column names as paths, with dots and back-ticks.
        renamed = rows.toDF(*(f"c{index}" for index in range(len(names))))
        return renamed.mapInArrow(sent(lambda parts: net_changes(parts, places)), renamed.schema).toDF(*names)


def _check_reader(name: str, df: DataFrame, columns: StructType) -> None:
    """Raise `OptionError` unless a DataFrame has the rows of a reader as they are, and names that Spark can resolve."""
    others = sorted(set(operators(plan_of(df), in_views=True)) - _OF_READERS)
    computed = [field.name for field in columns if TABLE_COLUMN not in field.metadata]
    if others or computed:
        raise OptionError(
            f"the DataFrame of scan {name!r} is not one of a reader as it is",
            received=", ".join(others or computed),
            remedy="write filters, joins and computed columns into the query",
        )
    keys = sum(ROW_KEY in field.metadata for field in columns)
    if keys != int(df.schema[CHANGE_TYPE].metadata[SIGNED]):
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


def is_followed(schema: StructType) -> bool:
    """Return whether the rows of a DataFrame are changes that add up to a table."""
    signed = CHANGE_TYPE in schema.names and SIGNED in schema[CHANGE_TYPE].metadata
    return signed and any(ROW_KEY in field.metadata for field in schema)


def one_stream(frames: Mapping[str, DataFrame]) -> DataFrame:
    """Return one DataFrame with the changes of all scans: a streaming query has one."""
    from pyspark.sql import functions as F

    if len(frames) == 1:
        return next(iter(frames.values()))
    united: DataFrame | None = None
    for name, df in frames.items():
        one = df.select(F.lit(name).alias(_SCAN), F.struct("*").alias(_packed(list(frames).index(name))))
        united = one if united is None else united.unionByName(one, allowMissingColumns=True)
    assert united is not None
    return united


def used_columns(batch: DataFrame, scans: Sequence[FollowedScan], columns: Mapping[str, pa.Schema]) -> DataFrame:
    """Return a batch of `one_stream` with some columns of each scan, and the types of its changes.

    Args:
        columns: for each scan the columns, in Spark's Arrow types.
    """
    from pyspark.sql import functions as F

    def read(scan: FollowedScan) -> list[str]:
        return [*(quote_name(name) for name in columns[scan.name].names), CHANGE_TYPE]

    if len(scans) == 1:
        return batch.select(*read(scans[0]))
    structs = [
        F.struct(*(f"{_packed(number)}.{name}" for name in read(scan))).alias(_packed(number))
        for number, scan in enumerate(scans)
    ]
    return batch.select(_SCAN, *structs)


def signed_tables(
    rows: pa.Table, scans: Sequence[FollowedScan], columns: Mapping[str, pa.Schema]
) -> Iterator[tuple[FollowedScan, pa.Table]]:
    """Yield the scans of rows of `used_columns`, and their rows with `SIGN`, in the order of their changes."""
    for number, scan in enumerate(scans):
        schema, part = columns[scan.name], rows
        if len(scans) > 1:
            own = rows.filter(pc.equal(rows.column(_SCAN), scan.name)).column(_packed(number)).combine_chunks()
            part = pa.table(own.flatten(), [*schema.names, CHANGE_TYPE])
        enters = pc.is_in(part.column(CHANGE_TYPE), pa.array(_ENTERING))
        signs = pc.if_else(enters, pa.scalar(1, pa.int8()), pa.scalar(-1, pa.int8()))
        yield scan, part.select(schema.names).cast(schema).append_column(SIGN, signs)


def entered_rows(
    changes: DataFrame, scans: Sequence[FollowedScan], columns: Mapping[str, pa.Schema]
) -> dict[str, DataFrame]:
    """Return the rows of each table after a batch of `used_columns` before which it has none."""
    from pyspark.sql import functions as F
    from pyspark.sql.types import StructType

    several = len(scans) > 1
    types = [f"{_packed(number)}.{CHANGE_TYPE}" for number in range(len(scans))] if several else [CHANGE_TYPE]
    only_inserts = changes.where(F.coalesce(*map(F.col, types)) != _ENTERING[0]).isEmpty()
    found = {}
    for number, scan in enumerate(scans):
        rows = changes.where(F.col(_SCAN) == scan.name).select(f"{_packed(number)}.*") if several else changes
        if only_inserts:
            found[scan.name] = rows.drop(CHANGE_TYPE)
            continue
        read = replace(scan, schema=StructType([scan.schema[name] for name in columns[scan.name].names]))
        found[scan.name] = read.signed(rows, net=True).where(f"{SIGN} > 0").drop(SIGN, ORDER)
    return found


def net_changes_of(
    batch: DataFrame, scans: Sequence[FollowedScan], columns: Mapping[str, pa.Schema]
) -> dict[str, tuple[pa.Table, pa.Table]]:
    """Read a batch of `one_stream`; return the rows that leave and that enter each table, for tables with changes.

    Args:
        columns: for each scan the columns to read, in Spark's Arrow types.
    """
    found = {}
    for scan, signed in signed_tables(used_columns(batch, scans, columns).toArrow(), scans, columns):
        places = [columns[scan.name].get_field_index(name) for name in scan.key]
        net = pa.Table.from_batches(net_changes(signed.to_batches(), places), signed.schema)
        sides = [net.filter(pc.equal(net.column(SIGN), sign)).drop_columns([SIGN]) for sign in (-1, 1)]
        # A row that only changes in other columns does not change.
        parted = dict(difference(*sides))
        if parted:
            found[scan.name] = (parted.get(-1, sides[0].slice(0, 0)), parted.get(1, sides[1].slice(0, 0)))
    return found


@contextmanager
def batch_of_each(
    batch: DataFrame, scans: Sequence[FollowedScan], *, net: bool = False
) -> Iterator[dict[str, DataFrame]]:
    """Yield the signed rows of a batch of `one_stream`, by scan; see `FollowedScan.signed`."""
    from pyspark.sql import functions as F

    if len(scans) == 1:
        yield {scans[0].name: scans[0].signed(batch, net=net)}
        return
    batch.persist()
    try:
        yield {
            scan.name: scan.signed(batch.where(F.col(_SCAN) == scan.name).select(f"{_packed(number)}.*"), net=net)
            for number, scan in enumerate(scans)
        }
    finally:
        batch.unpersist()


def _packed(number: int) -> str:
    return f"s{number}"
