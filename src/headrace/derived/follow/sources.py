"""The streaming sources of a followed query, and the rows of each scan in its batches.

A streaming query of Spark has one DataFrame. Scans of one tunnel of several tables have one source, so a batch ends at
one position for all of them. Further sources are united with it, each with its rows as a struct.
"""

from __future__ import annotations

from collections.abc import Iterator, Mapping, Sequence
from contextlib import ExitStack, contextmanager
from dataclasses import dataclass, replace
from functools import reduce
from typing import TYPE_CHECKING, NamedTuple

import pyarrow as pa
import pyarrow.compute as pc

from headrace.derived.follow.scans import ENTERING, FollowedScan, signed_rows, table_of
from headrace.derived.gathering.gather import by_sign, difference
from headrace.derived.last_rows import net_changes
from headrace.derived.own_names import ORDER, SIGN
from headrace.errors import OptionError
from headrace.model.tables.change_columns import CHANGE_COLUMNS, CHANGE_TYPE, TRUNCATE
from headrace.model.tables.several_tables import TABLE
from headrace.spark.several_tables import of_table, tunnel_of
from headrace.sql_text.lexer import quote, quote_name

if TYPE_CHECKING:
    from pyspark.sql import DataFrame

_SOURCE = "__source"


class ScanFrames(NamedTuple):
    """The DataFrames of a followed scan.

    Attributes:
        rows: the columns of the table, or some of them, and the columns of changes.
        stream: the source of the rows: ``rows`` itself, or the changes of all tables of a tunnel.
    """

    rows: DataFrame
    stream: DataFrame

    @classmethod
    def of(cls, name: str, df: DataFrame) -> ScanFrames:
        """Return the frames of a DataFrame as its reader has loaded it.

        Raises:
            OptionError: the DataFrame has several tables, and it is not clear which one the scan is.
        """
        several = tunnel_of(df.schema) is not None
        return cls(of_table(df, table_of(name, df.schema)) if several else df, df)


def sources(scans: Sequence[FollowedScan]) -> list[list[FollowedScan]]:
    """Return the scans of each source, in the order of the first ones: the scans of one tunnel have the same source.

    Raises:
        OptionError: scans of one tunnel have different limits.
    """
    found: dict[tuple[str, str], list[FollowedScan]] = {}
    for scan in scans:
        of = ("", scan.name) if scan.tunnel is None else (scan.tunnel.store, scan.tunnel.id)
        found.setdefault(of, []).append(scan)
    for group in found.values():
        limits = {scan.name: scan.tunnel.limits for scan in group if scan.tunnel is not None}
        if len(set(limits.values())) > 1:
            raise OptionError(
                f"scans of one tunnel are one stream, and those of {_tunnel(group)} have different limits",
                received="; ".join(f"{name}: {text}" for name, text in limits.items()),
                remedy="give all of them the same options",
            )
    return list(found.values())


def one_stream(frames: Mapping[str, DataFrame], scans: Sequence[FollowedScan]) -> DataFrame:
    """Return one DataFrame with the changes of all scans.

    Args:
        frames: the DataFrames of the scans' sources, by scan.

    Raises:
        OptionError: see `sources`; or a table has changed while the scans of its tunnel were loaded.
    """
    from pyspark.sql import functions as F

    groups = sources(scans)
    for group in groups:
        _check_same_columns(frames, group)
    if len(groups) == 1:
        return frames[groups[0][0].name]
    united: DataFrame | None = None
    for number, group in enumerate(groups):
        one = frames[group[0].name].select(F.lit(number).alias(_SOURCE), F.struct("*").alias(f"s{number}"))
        united = one if united is None else united.unionByName(one, allowMissingColumns=True)
    assert united is not None
    return united


def _check_same_columns(frames: Mapping[str, DataFrame], group: Sequence[FollowedScan]) -> None:
    first = frames[group[0].name].schema
    for scan in group[1:]:
        if first[scan.table].dataType != frames[scan.name].schema[scan.table].dataType:
            raise OptionError(
                f"table {scan.table!r} has changed between the loads of two scans of {_tunnel(group)}",
                received=f"scans {group[0].name}, {scan.name}",
                remedy="load both again; in SQL, DROP SCAN and CREATE SCAN",
            )


def _tunnel(group: Sequence[FollowedScan]) -> str:
    mark = group[0].tunnel
    return "a tunnel" if mark is None else f"tunnel {mark.name!r}"


class _Place(NamedTuple):
    """The rows of a scan in a batch of `one_stream`, in Spark SQL: its text is one call to Spark.

    Attributes:
        source: the path of the columns of its source, empty or with a dot at the end.
        table: the path of the columns of its table.
        conditions: what the rows of the scan have in common.
    """

    source: str
    table: str
    conditions: list[str]

    @property
    def condition(self) -> str:
        return " AND ".join(self.conditions)

    def own(self, batch: DataFrame) -> DataFrame:
        """Return the rows of the scan."""
        return batch.where(self.condition) if self.conditions else batch

    def columns(self, names: Sequence[str]) -> list[str]:
        """Return columns of the table with their names in the scan."""
        return [f"{self.table}{quote_name(name)} AS {quote_name(name)}" for name in names]

    def change(self, name: str) -> str:
        """Return a column of changes."""
        return f"{self.source}{name} AS {name}"


def _places(scans: Sequence[FollowedScan]) -> dict[str, _Place]:
    """Return the places of the scans of a query, by their names in their order."""
    groups, found = sources(scans), dict[str, _Place]()
    for number, group in enumerate(groups):
        source = f"s{number}." if len(groups) > 1 else ""
        of_source = [f"{_SOURCE} = {number}"] if source else []
        for scan in group:
            table = f"{source}{quote_name(scan.table)}." if scan.tunnel is not None else source
            of_table = [f"{source}{TABLE} = {quote(scan.table)}"] if scan.tunnel is not None else []
            found[scan.name] = _Place(source, table, [*of_source, *of_table])
    return {scan.name: found[scan.name] for scan in scans}


@contextmanager
def batch_of_each(batch: DataFrame, scans: Sequence[FollowedScan], *, net: bool) -> Iterator[dict[str, DataFrame]]:
    """Yield the signed rows of a batch of `one_stream`, by scan; see `FollowedScan.signed`."""
    found = {}
    for scan, place in zip(scans, _places(scans).values(), strict=True):
        changes = [place.change(name) for name in CHANGE_COLUMNS.names]
        rows = place.own(batch).selectExpr(*place.columns(scan.schema.names), *changes)
        found[scan.name] = scan.signed(rows, net=net)
    with ExitStack() as opened:
        if len(scans) > 1:
            opened.callback(batch.persist().unpersist)
        yield found


def used_columns(batch: DataFrame, scans: Sequence[FollowedScan], columns: Mapping[str, pa.Schema]) -> DataFrame:
    """Return a batch of `one_stream` with some columns of each scan, and the types of its changes.

    The columns of several scans are a struct for each, which is null in the rows of other tables.

    Args:
        columns: for each scan the columns, in Spark's Arrow types.
    """
    places = _places(scans)
    fields = {name: [*place.columns(columns[name].names), place.change(CHANGE_TYPE)] for name, place in places.items()}
    if len(scans) == 1:
        ((name, place),) = places.items()
        return place.own(batch).selectExpr(*fields[name])
    return batch.selectExpr(
        *(
            f"CASE WHEN {place.condition} THEN struct({', '.join(fields[name])}) END AS {_packed(number)}"
            for number, (name, place) in enumerate(places.items())
        )
    )


def packed(frames: Sequence[DataFrame]) -> DataFrame:
    """Return rows as those of `used_columns`, of the rows of each scan, in their order."""
    from pyspark.sql import functions as F

    if len(frames) == 1:
        return frames[0]
    structs = [rows.select(F.struct("*").alias(_packed(number))) for number, rows in enumerate(frames)]
    return reduce(lambda one, other: one.unionByName(other, allowMissingColumns=True), structs)


def signed_tables(
    rows: pa.Table, scans: Sequence[FollowedScan], columns: Mapping[str, pa.Schema]
) -> Iterator[tuple[FollowedScan, pa.Table, pa.Table | None]]:
    """Yield the scans of rows of `used_columns`, and their rows with `SIGN`, in the order of their changes.

    The rows that stand for a TRUNCATE are the third value, None without any.
    """
    for number, scan in enumerate(scans):
        part, wanted, truncation = rows, columns[scan.name], None
        if len(scans) > 1:
            column = rows.column(_packed(number))
            own = column.filter(column.is_valid()).combine_chunks()
            part = pa.table(own.flatten(), [*wanted.names, CHANGE_TYPE])
        if pc.any(truncates := pc.equal(part.column(CHANGE_TYPE), TRUNCATE)).as_py():
            truncation = part.filter(truncates).select(wanted.names).cast(wanted)
            part = part.filter(pc.invert(truncates))
        yield scan, signed_rows(part, wanted), truncation


def entered_rows(
    changes: DataFrame, scans: Sequence[FollowedScan], columns: Mapping[str, pa.Schema]
) -> dict[str, DataFrame]:
    """Return the rows of each table after a batch of `used_columns` before which it has none."""
    from pyspark.sql import functions as F
    from pyspark.sql.types import StructType

    several = len(scans) > 1
    types = [f"{_packed(number)}.{CHANGE_TYPE}" for number in range(len(scans))] if several else [CHANGE_TYPE]
    # A row without a type is of a table that the query does not read.
    only_inserts = changes.where(F.coalesce(*map(F.col, types)) != ENTERING[0]).isEmpty()
    found = {}
    for number, scan in enumerate(scans):
        packed = _packed(number)
        rows = changes.where(F.col(packed).isNotNull()).select(f"{packed}.*") if several else changes
        if only_inserts:
            found[scan.name] = rows.drop(CHANGE_TYPE)
            continue
        read = replace(scan, schema=StructType([scan.schema[name] for name in columns[scan.name].names]))
        found[scan.name] = read.signed(rows, net=True).where(f"{SIGN} > 0").drop(SIGN, ORDER)
    return found


@dataclass(frozen=True)
class NetChanges:
    """What a batch changes in a table.

    Attributes:
        removed, added: the rows that leave and that enter the table.
        truncation: the row of a TRUNCATE before these changes; None without. Its columns are null. Other
            values limit it to some of the rows.
    """

    removed: pa.Table
    added: pa.Table
    truncation: pa.Table | None = None


def net_changes_of(
    batch: DataFrame, scans: Sequence[FollowedScan], columns: Mapping[str, pa.Schema]
) -> dict[str, NetChanges]:
    """Read a batch of `one_stream`; return the changes of each table, for tables with changes.

    Args:
        columns: for each scan the columns to read, in Spark's Arrow types.
    """
    found = {}
    rows = used_columns(batch, scans, columns).toArrow()
    for scan, signed, truncation in signed_tables(rows, scans, columns):
        places = [columns[scan.name].get_field_index(name) for name in scan.key]
        net = pa.Table.from_batches(net_changes(signed.to_batches(), places), signed.schema)
        sides = by_sign(net)
        # A row that only changes in other columns does not change.
        parted = dict(difference(*sides))
        if parted or truncation is not None:
            removed, added = parted.get(-1, sides[0].slice(0, 0)), parted.get(1, sides[1].slice(0, 0))
            found[scan.name] = NetChanges(removed, added, truncation)
    return found


def _packed(number: int) -> str:
    return f"c{number}"
