"""Checks of the catalog, and of the rows of tables."""

from __future__ import annotations

import json
import re
from collections.abc import Iterator

import apsw
import pyarrow as pa

from headrace.errors import HeadraceError
from headrace.model.tables.conditions import KeyRange
from headrace.model.tables.schema import TableSchema
from headrace.stores.embedded.checks.problems import Problem, Repair, orphans
from headrace.stores.embedded.format import schema_of_new_store
from headrace.stores.embedded.schemas import stored_columns
from headrace.stores.embedded.tables.codec import RowCodec
from headrace.stores.embedded.tables.keys import key_from_json
from headrace.stores.embedded.tunnels.stored_tunnels import physical_table

_OWN_TABLE = re.compile(r"[tu](\d+)")


def catalog(connection: apsw.Connection) -> Iterator[Problem]:
    """Check that all SQLite tables exist, and that each name has its columns."""
    found = {
        name: {column for (column,) in connection.execute("SELECT name FROM pragma_table_info(?)", (name,))}
        for (name,) in connection.execute("SELECT name FROM sqlite_schema WHERE type = 'table'")
    }
    for name, columns in schema_of_new_store().items():
        missing = columns - found.get(name, set())
        if missing:
            yield Problem(f"table {name} of the database lacks {', '.join(sorted(missing))}")
    ((clocks,),) = connection.execute("SELECT count(*) FROM clock")
    if clocks != 1:
        yield Problem(f"the clock has {clocks} rows instead of one")
    snapshots = {number for (number,) in connection.execute("SELECT object FROM snapshot")}
    objects = list(connection.execute("SELECT id, name, kind, schema_version FROM object"))
    for number, name, kind, version in objects:
        if kind not in ("table", "queue", "consumer", "producer"):
            yield Problem(f"{name!r} is of the unknown kind {kind!r}")
        if kind in ("table", "queue"):
            yield from _schemas(connection, number, name, version)
        needed = {f"t{number}": kind == "table", f"u{number}": number in snapshots}
        for expected in [own for own, is_needed in needed.items() if is_needed]:
            if expected not in found:
                yield Problem(f"table {name!r} has no SQLite table {expected}")
    tables = {number for number, _, kind, _ in objects if kind == "table"}
    for name in found:
        own = _OWN_TABLE.fullmatch(name)
        if own and int(own[1]) not in tables:
            yield Problem(f"SQLite table {name} belongs to no table")
    yield from orphans(
        connection, "object_schema", "object NOT IN (SELECT id FROM object)", "column lists of dropped tables"
    )


def rows(connection: apsw.Connection) -> Iterator[Problem]:
    """Check the partitions of each table: they cover all keys, and their counts are right."""
    for number, name in list(connection.execute("SELECT id, name FROM object WHERE kind = 'table' ORDER BY id")):
        opened = [
            (partition, KeyRange(key_from_json(low), key_from_json(high)), count)
            for partition, low, high, count in connection.execute(
                "SELECT id, low, high, rows FROM partition WHERE object = ? AND open", (number,)
            )
        ]
        opened.sort(key=lambda each: each[1].low or ())
        edges = [None, *(keys.high for _, keys, _ in opened)]
        if (
            not opened
            or edges[-1] is not None
            or any(keys.low != edge for (_, keys, _), edge in zip(opened, edges[:-1], strict=True))
        ):
            yield Problem(f"the partitions of table {name!r} do not cover each key once")
        table = physical_table(connection, number)
        for partition, keys, count in opened:
            actual = table.count(connection, keys)
            if actual != count:
                yield Problem(
                    f"partition {partition} of table {name!r} counts {count} rows and has {actual}",
                    (Repair("count its rows", "UPDATE partition SET rows = ? WHERE id = ?", (actual, partition)),),
                )
        widths = ", ".join(
            str(RowCodec(TableSchema(stored_columns(schema), tuple(json.loads(keys)))).row_width)
            for schema, keys in connection.execute("SELECT schema, keys FROM object_schema WHERE object = ?", (number,))
        )
        ((broken,),) = connection.execute(f"SELECT count(*) FROM t{number} WHERE length(f) NOT IN ({widths})")
        if broken:
            yield Problem(f"{broken} rows of table {name!r} have a wrong length")


def partitions_of_queues(connection: apsw.Connection) -> Iterator[Problem]:
    """Check that the partitions of each queue have the numbers from 0 on, and that partitions have owners."""
    for number, name in list(connection.execute("SELECT id, name FROM object WHERE kind = 'queue' ORDER BY id")):
        numbers = [
            each
            for (each,) in connection.execute("SELECT number FROM partition WHERE object = ? ORDER BY 1", (number,))
        ]
        if numbers != list(range(len(numbers))) or not numbers:
            yield Problem(f"the partitions of queue {name!r} have the numbers {numbers[:20]}")
    for (partition,) in connection.execute("SELECT id FROM partition WHERE object NOT IN (SELECT id FROM object)"):
        yield Problem(f"partition {partition} belongs to no table or queue")


def _schemas(connection: apsw.Connection, number: int, name: str, current: int) -> Iterator[Problem]:
    versions = []
    for version, schema, keys in connection.execute(
        "SELECT version, schema, keys FROM object_schema WHERE object = ? ORDER BY version", (number,)
    ):
        versions.append(version)
        try:
            stored_columns(schema)
            json.loads(keys)
        except (HeadraceError, ValueError, pa.ArrowException) as error:
            yield Problem(f"the columns of {name!r} in version {version} cannot be read: {error}")
    if versions != list(range(1, current + 1)):
        yield Problem(f"{name!r} has the column lists {versions} instead of 1 to {current}")
