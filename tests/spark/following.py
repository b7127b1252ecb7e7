"""A followed query that tests advance batch by batch, and compare with the same SELECT over the current rows."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any

import pyarrow as pa
import pytest
from pyspark.sql import DataFrame, SparkSession
from pyspark.sql.classic import dataframe as classic
from pyspark.sql.streaming.query import StreamingQuery

import headrace
from headrace.derived.gathering.arrangements import ArrangedRows
from headrace.model.tables.conditions import KeyRange
from headrace.ports import Store, Table
from headrace.spark.settings import changed_settings
from headrace.spark.versions import spark_schema

INTERPRETED = {"spark.sql.codegen.wholeStage": "false", "spark.sql.codegen.factoryMode": "NO_CODEGEN"}
"""The settings with which Spark interprets its plans: for few rows, compiling them takes longer."""


def scan(spark: SparkSession, store: Store, tunnel: str, **options: Any) -> DataFrame:
    """Return a stream of a tunnel with ``readAs=table``."""
    reader = spark.readStream.format("headrace").options(store=store.url, tunnel=tunnel, readAs="table", **options)
    return reader.load()


def view_rows(spark: SparkSession, store: Store, table: str, name: str | None = None) -> None:
    """Create a view of the rows that a table has now, by default with its name. Spark gets them from this process."""
    rows = store.table(table).scan().read_all()
    spark.createDataFrame(rows, spark_schema(rows.schema)).createOrReplaceTempView(name or table)


def rows_in_driver(monkeypatch: pytest.MonkeyPatch) -> list[int]:
    """Return a list to which the number of rows is added of each result, and of each scan of kept rows, in the driver.

    Lookups by key are not in it.
    """
    counts: list[int] = []
    to_arrow, scanned = classic.DataFrame.toArrow, ArrangedRows._scanned

    def counted_result(frame: classic.DataFrame) -> pa.Table:
        found = to_arrow(frame)
        counts.append(found.num_rows)
        return found

    def counted_scan(rows: ArrangedRows, table: Table, most: int, keys: KeyRange | None = None) -> pa.Table | None:
        found = scanned(rows, table, most, keys)
        counts.append(most + 1 if found is None else found.num_rows)
        return found

    monkeypatch.setattr(classic.DataFrame, "toArrow", counted_result)
    monkeypatch.setattr(ArrangedRows, "_scanned", counted_scan)
    return counts


@dataclass
class Following:
    """A query over followed tables, each read with a new tunnel or all with one, into one target.

    A running query takes a batch in a fraction of the time of a query that starts for each. So `advance` keeps it
    running, and only `restart` stops it.

    Args:
        store: the store of the followed tables.
        sql: the query. The names of scans in it are those of the tables.
        tables: the followed tables.
        target: the name of the target.
        directory: a directory for the checkpoint.
        sink: the store of the target; by default that of the tables.
        options: options of the scans, such as maxRowsPerTrigger.
        arguments: further arguments of `headrace.follow`.
        tunnels: the beginning of the names of its tunnels; the target by default.
        together: the name of the one tunnel of all tables; by default each table has its own.
    """

    spark: SparkSession
    store: Store
    sql: str
    tables: Sequence[str]
    target: str
    directory: Path
    sink: Store | None = None
    options: Mapping[str, Any] = field(default_factory=dict)
    arguments: Mapping[str, Any] = field(default_factory=dict)
    query: StreamingQuery | None = None
    tunnels: str | None = None
    together: str | None = None

    def start(self) -> StreamingQuery:
        """Start the query, at its checkpoint if it has one."""
        scans = {}
        if self.together is not None:
            if self.together not in {each.name for each in self.store.tunnels()}:
                self.store.create_tunnel(self.tables, self.together)
            one = scan(self.spark, self.store, self.together, rows="typed", **self.options)
            scans = dict.fromkeys(self.tables, one)
        for table in () if self.together is not None else self.tables:
            tunnel = f"{self.tunnels or self.target}_{table}"
            if tunnel not in {each.name for each in self.store.tunnels(table)}:
                self.store.create_tunnel(table, tunnel, kind="BaseAndStream")
            scans[table] = scan(self.spark, self.store, tunnel, **self.options)
        sink = self.sink or self.store
        given = {"store": sink.url, "table": self.target, **self.arguments}
        stream = headrace.follow(
            self.spark, self.sql, scans=scans, checkpoint=self.directory / self.target.replace("/", "_"), **given
        )
        self.query = stream.start()
        return self.query

    def advance(self) -> list[dict[str, Any]]:
        """Process all changes, and return the rows of the target in key order."""
        query = self.query or self.start()
        query.processAllAvailable()
        return list((self.sink or self.store).table(self.target).scan().read_all().to_pylist())

    def stop(self) -> None:
        if self.query is not None:
            self.query.stop()
            self.query = None

    def restart(self) -> None:
        """Stop the query; `advance` starts it at its checkpoint."""
        self.stop()

    def expected(self) -> list[dict[str, Any]]:
        """Return what Spark's batch over the current rows gives, in the order of the target's key.

        With rows of the format headrace and with generated code, this would take as long as the batch to compare with.
        """
        with changed_settings(self.spark, INTERPRETED):
            for table in self.tables:
                view_rows(self.spark, self.store, table)
            found = self.spark.sql(self.sql).collect()
        key = (self.sink or self.store).table(self.target).schema.primary_key
        return sorted((row.asDict() for row in found), key=lambda row: tuple(row[name] for name in key))

    def __enter__(self) -> Following:
        return self

    def __exit__(self, *_: object) -> None:
        self.stop()
