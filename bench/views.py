"""Kept views of TPC-H: the time of a batch of mixed changes, beside Spark's own computation of the whole answer."""

from __future__ import annotations

import statistics
import sys
from collections.abc import Mapping
from dataclasses import dataclass, field
from pathlib import Path
from typing import TYPE_CHECKING, Any

from pyspark.errors import StreamingQueryException
from pyspark.sql import SparkSession
from tests.views.changes import Changer, Delta, apply
from tests.views.comparing import difference
from tests.views.streams import KeyedView
from tests.views.tables import Database
from tests.views.tpch_data import TABLES, tpch
from tests.views.tpch_queries import TpchQuery, queries

import headrace
from bench.measure import Ratio, Result, seconds, spark_session
from headrace.errors import HeadraceError

if TYPE_CHECKING:
    import pyarrow as pa
    from pyspark.sql.streaming.query import StreamingQuery

_BATCHES = 5
# The first batches also compile.
_COLD = 2
# All changes are committed between two looks of the stream, so that they are one batch.
_SETTINGS = {"spark.sql.streaming.pollingDelay": "1s", "spark.sql.streaming.numRecentProgressUpdates": "100"}
_STATE = "__headrace_state"
_OF_THREE_TABLES, _TURNS = "q3", 3


@dataclass
class _Measured:
    """What a query took.

    Attributes:
        load: the seconds of the first answer.
        batches: the seconds of each batch.
        jobs: the Spark jobs of each batch.
        recomputed: the seconds in which Spark computes the answer from the same tables, after each batch.
        state_rows, state_bytes: the tables of state; bytes with those of the target.
    """

    load: float
    batches: list[float] = field(default_factory=list)
    jobs: list[float] = field(default_factory=list)
    recomputed: list[float] = field(default_factory=list)
    state_rows: int = 0
    state_bytes: int = 0

    @property
    def batch(self) -> float:
        return statistics.median(self.batches[_COLD:])

    @property
    def ratio(self) -> float:
        return statistics.median(self.recomputed[_COLD:]) / self.batch

    def __str__(self) -> str:
        jobs, spark = (statistics.median(each[_COLD:]) for each in (self.jobs, self.recomputed))
        return (
            f"{self.batch * 1000:.0f} ms a batch with {jobs:.0f} jobs; Spark's answer {spark * 1000:.0f} ms "
            f"({self.ratio:.1f} ×); state {self.state_rows:,} rows, {self.state_bytes / 1e6:.1f} MB with the target; "
            f"first answer {self.load:.1f} s"
        )


def views_small(directory: Path, scale: float) -> Result:
    """TPC-H at scale 0.01, 200 changes a batch."""
    return _views(directory, 0.01 * scale, 200)


def views_large(directory: Path, scale: float) -> Result:
    """TPC-H at scale 1, 1,000 changes a batch."""
    return _views(directory, scale, 1_000)


def views_tunnels(directory: Path, scale: float) -> Result:
    """A join of three tables with one tunnel of all beside a tunnel of each, 1,000 changes a batch."""
    rows = tpch(0.01 * scale)
    query = queries(0.01 * scale)[_OF_THREE_TABLES]
    not_null, apart, together = frozenset(query.null_keys), list[float](), list[float]()
    with (
        _filled(directory, rows) as store,
        spark_session(_SETTINGS) as spark,
        Database(TABLES, rows) as database,
    ):
        _read_tables(spark, store)
        changer = Changer(database, seed=1, not_null=not_null)
        for number in range(_TURNS):
            for one, times in ((False, apart), (True, together)):
                name = f"{'one' if one else 'each'}_{number}"
                kept = _keep(spark, store, directory / name, name, query, changer, 1_000, one_tunnel=one)
                # The first turn also warms Spark.
                times += kept.batches[_COLD:] if number else []
    of_each, of_one = statistics.median(apart), statistics.median(together)
    return Result(
        f"views: {_OF_THREE_TABLES} of TPC-H at scale {0.01 * scale:g}, batches of 1,000 mixed changes over its tables",
        {"a tunnel of each table": f"{of_each * 1000:.0f} ms", "one tunnel": f"{of_one * 1000:.0f} ms"},
        [Ratio("a tunnel of each / one tunnel", of_each / of_one, 1.0)],
        "Medians of the times of triggers, from looking for changes to publication and commit, of turns.",
    )


def _filled(directory: Path, rows: Mapping[str, pa.Table]) -> headrace.Store:
    """Return a new store with the tables of TPC-H."""
    store = headrace.open(directory / "store", create=True, synchronous="off")
    for name, definition in TABLES.items():
        table = store.create_table(name, definition.columns, definition.key, pre_images=True)
        for part in rows[name].to_batches(max_chunksize=100_000):
            table.put(part)
    return store


def _read_tables(spark: SparkSession, store: headrace.Store) -> None:
    """Create a view of each table, for batches."""
    for name in TABLES:
        reader = spark.read.format("headrace").options(store=store.url, table=name)
        reader.load().createOrReplaceTempView(name)


def _views(directory: Path, scale: float, changes: int) -> Result:
    """Keep one query after the other; each answer is compared with DuckDB's at the end."""
    chosen = queries(scale)
    rows = tpch(scale)
    not_null = frozenset(column for query in chosen.values() for column in query.null_keys)
    figures, measured = {}, []
    with _filled(directory, rows) as store, spark_session(_SETTINGS) as spark, Database(TABLES, rows) as database:
        _read_tables(spark, store)
        changer = Changer(database, seed=1, not_null=not_null)
        for name, query in chosen.items():
            try:
                one = _keep(spark, store, directory / name, name, query, changer, changes)
            except HeadraceError as error:
                figures[name] = f"refused: {error.problem}"
            except StreamingQueryException as error:
                figures[name] = f"failed: {str(error).splitlines()[0]}"
            else:
                measured.append(one)
                figures[name] = str(one)
            print(f"{name}: {figures[name]}", file=sys.stderr, flush=True)
    ratios = [one.ratio for one in measured]
    return Result(
        f"views: TPC-H at scale {scale:g}, batches of {changes:,} mixed changes over its tables, one query at a time",
        figures,
        [
            Ratio("queries that are kept", len(measured), len(chosen)),
            Ratio("Spark's answer / batch, the slowest query", min(ratios, default=0), 1.0),
            Ratio("Spark's answer / batch, median", statistics.median(ratios or [0]), 10.0),
        ],
        "A batch is the time of the trigger, from looking for changes to publication and commit. Spark's answer is a "
        "batch query over the same tables, collected, not written.",
    )


def _keep(
    spark: SparkSession,
    store: headrace.Store,
    directory: Path,
    name: str,
    query: TpchQuery,
    changer: Changer,
    changes: int,
    *,
    one_tunnel: bool = False,
) -> _Measured:
    """Keep a query while its tables change. The target is in a store of its own, whose size is that of the state."""
    view = KeyedView.of_tpch(query)
    if one_tunnel:
        tunnels = dict.fromkeys(view.tables, store.create_tunnel(list(view.tables), name).id)
    else:
        tunnels = {table: store.create_tunnel(table, name).id for table in view.tables}
    try:
        with headrace.open(directory, create=True, synchronous="off") as target:
            running = _start(spark, store, target, name, view, tunnels)
            try:
                measured = _measure(spark, store, running, view, changer, changes)
            finally:
                running.stop()
            expected = changer.database.query(view.oracle)
            differs = difference(target.table(name).scan().read_all().select(expected.column_names), expected)
            assert differs is None, f"{name}: {differs}"
            tables = [table for table in target.tables() if table.startswith(_STATE)]
            measured.state_rows = sum(target.table(table).describe().rows or 0 for table in tables)
    finally:
        for tunnel in set(tunnels.values()):
            store.drop_tunnel(tunnel)
    measured.state_bytes = sum(file.stat().st_size for file in directory.rglob("*") if file.is_file())
    return measured


def _start(
    spark: SparkSession,
    store: headrace.Store,
    target: headrace.Store,
    name: str,
    view: KeyedView,
    tunnels: Mapping[str, str],
) -> StreamingQuery:
    """Create the target of a view, and start its stream with the checkpoint in the target's store."""
    columns = {
        column.name: column.dataType.simpleString().replace("bigint", "long") for column in spark.sql(view.sql).schema
    }
    target.create_table(name, columns, view.key)
    reader = spark.readStream.format("headrace")
    stream = headrace.follow(
        spark,
        view.sql,
        scans={
            table: reader.options(store=store.url, tunnel=tunnel, readAs="table").load(table)
            for table, tunnel in tunnels.items()
        },
        store=target.url,
        table=name,
        checkpoint=headrace.checkpoint(f"headrace:///views/{name}", store=target, spark=spark),
    )
    return stream.start()


def _measure(
    spark: SparkSession,
    store: headrace.Store,
    running: StreamingQuery,
    view: KeyedView,
    changer: Changer,
    changes: int,
) -> _Measured:
    measured = _Measured(seconds(running.processAllAvailable))
    for _ in range(_BATCHES):
        deltas = apply(changer.database, changer.batch(changes))
        before, jobs = _last(running), _jobs(spark)
        _write(store, deltas)
        running.processAllAvailable()
        measured.jobs.append(_jobs(spark) - jobs)
        measured.batches.append(_seconds_after(running, before))
        measured.recomputed.append(seconds(lambda: spark.sql(view.sql).toArrow()))
    return measured


def _write(store: headrace.Store, deltas: Mapping[str, Delta]) -> None:
    """Write the net rows of a batch, with few commits."""
    for name, delta in deltas.items():
        definition = TABLES[name]
        kept = {definition.key_of(row) for row in delta.added.to_pylist()}
        removed: list[dict[str, Any]] = [row for row in delta.removed.to_pylist() if definition.key_of(row) not in kept]
        if removed:
            store.table(name).delete([{column: row[column] for column in definition.key} for row in removed])
        if delta.added.num_rows:
            store.table(name).put(delta.added)


def _jobs(spark: SparkSession) -> int:
    """Return the number of jobs that this driver has started."""
    return int(spark.sparkContext._jsc.sc().dagScheduler().numTotalJobs())


def _last(query: StreamingQuery) -> int:
    """Return the number of the last batch. Reports between batches have that of the next one, and no rows."""
    return max((int(each["batchId"]) for each in query.recentProgress if each["numInputRows"]), default=-1)


def _seconds_after(query: StreamingQuery, batch: int) -> float:
    """Return the time of the batches after one, from looking for changes to the commit."""
    reports = [each for each in query.recentProgress if each["batchId"] > batch and each["numInputRows"]]
    return float(sum(each["durationMs"]["triggerExecution"] for each in reports)) / 1000.0
