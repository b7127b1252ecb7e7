"""Queues: appends compared with bare blobs, streams compared with memory, and the influence of length and width."""

from __future__ import annotations

import statistics
from collections.abc import Callable
from pathlib import Path

import apsw
from pyspark.sql import DataFrame, SparkSession
from pyspark.sql.streaming.query import StreamingQuery

import headrace
from bench.measure import COLUMNS, Ratio, Result, batch_seconds, drain, median_of, orders, rate, seconds, spark_session
from bench.memory import MemorySink, MemorySource
from headrace.ports import Queue

_APPEND_ROWS = 100_000


def _filled(directory: Path, name: str, rows: int, partitions: int) -> Queue:
    """Create a queue with ``rows`` rows, spread evenly over its partitions."""
    store = headrace.open(directory / "store", create=True, synchronous="off")
    queue = store.create_queue(name, COLUMNS, partitions=partitions)
    each = min(_APPEND_ROWS, rows // partitions)
    data = orders(0, each)
    for number in range(rows // each):
        queue.append(data, partition=number % partitions)
    return queue


def _stream(spark: SparkSession, directory: Path, queue: str, **options: object) -> DataFrame:
    stream = spark.readStream.format("headrace").option("store", str(directory / "store")).option("queue", queue)
    return stream.options(**{name: str(value) for name, value in options.items()}).load()


def queue_append(directory: Path, scale: float) -> Result:
    """Durable appends of 10,000 rows from Arrow, compared with bare inserts of the same bytes."""
    rows, repeats = 10_000, max(20, int(100 * scale))
    queue = headrace.open(directory / "store", create=True).create_queue("orders", COLUMNS)
    batches = [orders(number * rows, rows).combine_chunks() for number in range(8)]
    blobs = [batch.to_batches()[0].serialize().to_pybytes() for batch in batches]
    plain = apsw.Connection(str(directory / "plain.db"))
    for pragma in ("journal_mode = WAL", "synchronous = FULL", "wal_autocheckpoint = 16384", "cache_size = -65536"):
        plain.execute(f"PRAGMA {pragma}")
    plain.execute("CREATE TABLE blob (id INTEGER PRIMARY KEY, data BLOB NOT NULL)")
    turns = iter(range(2 * repeats))

    def bare() -> None:
        with plain:
            plain.execute("INSERT INTO blob (data) VALUES (?)", (blobs[next(turns) % len(blobs)],))

    ours, theirs = median_of(
        repeats, lambda: seconds(lambda: queue.append(batches[next(turns) % len(batches)])), lambda: seconds(bare)
    )
    plain.close()
    return Result(
        f"append: batches of {rows:,} rows, 4 columns, synchronous=full",
        {"headrace append from Arrow": rate(rows, ours), "bare SQLite, the same bytes as blobs": rate(rows, theirs)},
        [Ratio("append / bare blobs", theirs / ours, 0.5)],
    )


def queue_source(directory: Path, scale: float) -> Result:
    """A queue into noop, compared with the same rows from memory."""
    rows = int(10_000_000 * scale)
    _filled(directory, "orders", rows, 2)
    with spark_session() as spark:
        spark.dataSource.register(MemorySource)
        runs = iter(range(1000))

        def per_row(df: DataFrame) -> float:
            taken, seen = drain(df, directory / f"checkpoint-{next(runs)}")
            assert seen == rows, f"{seen} rows instead of {rows}"
            return taken

        def ours() -> float:
            return per_row(_stream(spark, directory, "orders", startingPosition="earliest"))

        def memory() -> float:
            return per_row(spark.readStream.format("bench_memory").option("rows", rows).load())

        ours()
        memory()
        taken = median_of(3, ours, memory)
    return Result(
        f"queue source: {rows:,} rows, 4 columns, 2 partitions, into noop",
        {"headrace queue": rate(rows, taken[0]), "the same rows from memory, as Arrow": rate(rows, taken[1])},
        [Ratio("queue / Arrow from memory", taken[1] / taken[0], 0.6)],
    )


def queue_to_queue(directory: Path, scale: float) -> Result:
    """Queue to queue, exactly once and with the consumer in the transaction, compared with memory to memory."""
    rows = int(5_000_000 * scale)
    store = headrace.open(directory / "store", create=True, synchronous="off")
    _filled(directory, "orders", rows, 2)
    with spark_session() as spark:
        spark.dataSource.register(MemorySource)
        spark.dataSource.register(MemorySink)
        runs = iter(range(1000))

        def ours() -> float:
            run = f"copy-{next(runs)}"
            store.create_queue(run, COLUMNS, partitions=2)
            store.create_consumer(f"//{run}")
            store.register_consumer("orders", f"//{run}")
            stream = headrace.write_stream(
                _stream(spark, directory, "orders", consumer=f"//{run}"),
                store=directory / "store",
                queue=run,
                checkpoint=directory / f"checkpoint-{run}",
                trigger={"availableNow": True},
            )
            taken = _finished(stream.start(), rows)
            copied = sum(bounds.rows for bounds in store.queue(run).bounds().values())
            assert copied == rows, f"{copied} rows instead of {rows}"
            store.drop_queue(run)
            return taken

        def memory() -> float:
            stream = spark.readStream.format("bench_memory").option("rows", rows).load().writeStream
            stream = stream.format("bench_sink").option("checkpointLocation", str(directory / f"memory-{next(runs)}"))
            return _finished(stream.trigger(availableNow=True).start(), rows)

        ours()
        memory()
        taken = median_of(3, ours, memory)
    return Result(
        f"queue to queue: {rows:,} rows, 4 columns, 2 partitions, exactly once, one batch",
        {"headrace, queue to queue": rate(rows, taken[0]), "Arrow source to Arrow sink": rate(rows, taken[1])},
        [Ratio("queue to queue / memory to memory", taken[1] / taken[0], 0.5)],
    )


def _finished(query: StreamingQuery, rows: int) -> float:
    query.awaitTermination()
    taken, seen = batch_seconds(query)
    assert seen == rows, f"{seen} rows instead of {rows}"
    return taken


def queue_length(directory: Path, scale: float) -> Result:
    """Batches at the start and at the end of a long queue."""
    rows, batch_rows, batches = int(100_000_000 * scale), 100_000, 12
    _filled(directory, "orders", rows, 1)
    with spark_session() as spark:
        runs = iter(range(1000))

        def batch_from(first: int) -> Callable[[], float]:
            def run() -> float:
                start = f'{{"orders": {{"0": {first}}}}}'
                stream = _stream(spark, directory, "orders", startingPosition=start, maxRowsPerTrigger=batch_rows)
                return _batch_ms(stream, directory / f"checkpoint-{next(runs)}", batches)

            return run

        at_start, at_end = batch_from(0), batch_from(rows - batches * batch_rows)
        at_start()
        begin, end = median_of(3, at_start, at_end)
    return Result(
        f"length: batches of {batch_rows:,} rows at both ends of a queue of {rows:,} rows",
        {"at its start": f"{begin:.0f} ms", "at its end": f"{end:.0f} ms"},
        [Ratio("end / start", end / begin, 1.2, at_most=True)],
    )


def queue_width(directory: Path, scale: float) -> Result:
    """Batches from 64 partitions with 100 rows each, compared with as many rows from one partition."""
    batches, partitions, each = max(15, int(40 * scale)), 64, 100
    for name, count in (("wide", partitions), ("narrow", 1)):
        store = headrace.open(directory / "store", create=True, synchronous="off")
        queue = store.create_queue(name, COLUMNS, partitions=count)
        for number in range(count):
            queue.append(orders(0, (batches + 1) * each * partitions // count), partition=number)
    with spark_session() as spark:
        runs = iter(range(1000))

        def batch_of(name: str, rows_per_partition: int) -> Callable[[], float]:
            def run() -> float:
                stream = _stream(
                    spark, directory, name, startingPosition="earliest", maxRowsPerChannel=rows_per_partition
                )
                return _batch_ms(stream, directory / f"checkpoint-{next(runs)}", batches)

            return run

        wide, narrow = batch_of("wide", each), batch_of("narrow", each * partitions)
        wide()
        narrow()
        many, one = median_of(3, wide, narrow)
    return Result(
        f"width: batches of {each * partitions:,} rows on two cores",
        {f"from {partitions} partitions, {each} rows of each": f"{many:.0f} ms", "from one partition": f"{one:.0f} ms"},
        [Ratio("64 partitions / one", many / one, 1.5, at_most=True)],
        "Whole batches, including the planning of offsets.",
    )


def _batch_ms(stream: DataFrame, checkpoint: Path, batches: int) -> float:
    """Return the median time of the batches of a stream with enough unread rows, without the first two batches."""
    query = stream.writeStream.format("noop").option("checkpointLocation", str(checkpoint)).start()
    try:
        while len(_busy(query)) < batches:
            error = query.exception()
            if error is not None:
                raise error
            query.awaitTermination(1)
    finally:
        query.stop()
    return statistics.median(_busy(query)[2:batches])


def _busy(query: StreamingQuery) -> list[float]:
    return [float(r["durationMs"]["triggerExecution"]) for r in query.recentProgress if r["numInputRows"]]
