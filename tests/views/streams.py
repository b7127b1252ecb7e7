"""Views that streams keep in tables of a store, compared with DuckDB and with Spark's batch after each batch.

A stream is `headrace.follow` with a scan of each table that the query reads.
"""

from __future__ import annotations

from collections.abc import Callable, Mapping
from contextlib import ExitStack
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any, Protocol, TypeAlias

import pyarrow as pa
from pyspark.sql import SparkSession

from headrace.ports import Store, Table
from tests.spark.following import Following, view_rows
from tests.views.changes import Batch, apply
from tests.views.comparing import difference
from tests.views.queries import Query
from tests.views.rules import WrongAnswer
from tests.views.tables import Database, TableDefinition
from tests.views.tpch_queries import TpchQuery


@dataclass(frozen=True)
class KeyedView:
    """A query whose answer has a key.

    Attributes:
        sql: the query that a stream keeps.
        key: the key of its target.
        oracle: the same for DuckDB, with the columns that are compared, in the order of the target.
    """

    sql: str
    key: tuple[str, ...]
    oracle: str
    tables: tuple[str, ...]

    @classmethod
    def of_tpch(cls, query: TpchQuery) -> KeyedView:
        if query.key:
            return cls(query.sql, query.key, query.sql, tuple(query.tables))
        # One row, whose key is a constant.
        sql = query.sql.replace("SELECT ", "SELECT 'all' AS k, ", 1)
        return cls(sql, ("k",), sql, tuple(query.tables))

    @classmethod
    def of_bag(cls, query: Query, columns: list[str], tables: Mapping[str, TableDefinition]) -> KeyedView:
        """Return a view over a query without a key: the text of each different row, and how often it is there."""
        text = " || '|' || ".join(f"coalesce(CAST({name} AS STRING), 'null')" for name in columns)
        names = ", ".join(columns)
        read = tuple(name for name in tables if f" {name} " in f" {query} ".replace("(", " ").replace(")", " "))
        counted = f"count(*) AS n, {names} FROM ({query}) AS bag GROUP BY {names}"
        return cls(f"SELECT {text} AS k, {counted}", ("k",), f"SELECT {counted}", read)


class KeptStream(Protocol):
    """A stream that keeps a view in a target."""

    def advance(self) -> list[dict[str, Any]]:
        """Process all changes, and return the rows of the target."""

    def restart(self) -> None:
        """Stop, and go on at the next `advance`."""

    def stop(self) -> None: ...


@dataclass(frozen=True)
class Place:
    """Where a view is kept."""

    spark: SparkSession
    store: Store
    directory: Path
    target: str


Start: TypeAlias = Callable[[Place, KeyedView], KeptStream]
"""Starts a stream for a view."""


def follow(place: Place, view: KeyedView, **options: Any) -> Following:
    """Start `headrace.follow`, with options of the scans."""
    return Following(place.spark, place.store, view.sql, view.tables, place.target, place.directory, options=options)


@dataclass
class Run:
    """Tables in a store with their oracle, and streams that keep views of them in the same store.

    Args:
        rows: the first rows of the tables: base data of the tunnels.
        start: starts a stream.
    """

    spark: SparkSession
    store: Store
    directory: Path
    tables: Mapping[str, TableDefinition]
    rows: Mapping[str, pa.Table]
    start: Start
    _streams: dict[str, tuple[KeyedView, KeptStream]] = field(default_factory=dict)

    def __post_init__(self) -> None:
        self.database = Database(self.tables, self.rows)
        self._stack = ExitStack()
        self._stack.callback(self.database.close)
        self._tables: dict[str, Table] = {}
        for name, definition in self.tables.items():
            table = self.store.create_table(name, definition.columns, definition.key, pre_images=True)
            table.put(self.rows[name])
            self._tables[name] = table

    def keep(self, name: str, view: KeyedView) -> None:
        """Create the target of a view, and start its stream."""
        for each in view.tables:
            view_rows(self.spark, self.store, each)
        columns = {
            column.name: column.dataType.simpleString().replace("bigint", "long")
            for column in self.spark.sql(view.sql).schema
        }
        self.store.create_table(name, columns, view.key)
        stream = self.start(Place(self.spark, self.store, self.directory, name), view)
        self._stack.callback(stream.stop)
        self._streams[name] = view, stream
        self.compare(name)

    def play(self, batch: Batch, *, restart: bool = False) -> None:
        """Change the tables in the store and in the oracle, and compare the targets.

        Args:
            restart: stop the streams before the changes.
        """
        if restart:
            for _, stream in self._streams.values():
                stream.restart()
        for change in batch:
            rows = list(change.rows)
            table = self._tables[change.table]
            {"put": table.put, "update": table.update, "delete": table.delete}[change.kind](rows)
        apply(self.database, batch)
        for name in self._streams:
            self.compare(name)

    def compare(self, name: str) -> None:
        view, stream = self._streams[name]
        stream.advance()
        expected = self.database.query(view.oracle)
        actual = self.store.table(name).scan().read_all().select(expected.column_names)
        differs = difference(actual, expected)
        if differs is not None:
            raise WrongAnswer(f"{name}: {differs}\n{view.sql}")

    def compare_with_spark(self) -> None:
        """Compare the targets with Spark's batch over the tables, also in the types of numbers."""
        for name, (view, _) in self._streams.items():
            for each in view.tables:
                view_rows(self.spark, self.store, each)
            expected = self.spark.sql(view.sql).toArrow()
            actual = self.store.table(name).scan().read_all().select(expected.column_names)
            differs = difference(actual.cast(expected.schema), expected)
            if differs is not None:
                raise WrongAnswer(f"{name}, compared with Spark: {differs}\n{view.sql}")

    def __enter__(self) -> Run:
        return self

    def __exit__(self, *_: object) -> None:
        self._stack.close()
