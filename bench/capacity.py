"""The rates of whole streams on one core and on two, for narrow and wide rows, beside `headrace capacity`."""

from __future__ import annotations

import json
from collections.abc import Callable, Iterator
from pathlib import Path
from typing import Any

import pyarrow as pa
from pyspark.sql import DataFrame, SparkSession
from pyspark.sql import functions as F

import headrace
from bench.measure import COLUMNS, Ratio, Result, batch_seconds, drain, orders, rate
from headrace.inspect.capacity import MEASURED_BYTES, Stream
from headrace.ports import Store

_BATCH_KEYS = 100_000
_KEYS = 500_000
# The batches of a stream into a table.
_BATCHES = 2
_SETTINGS = {"spark.ui.enabled": "false", "spark.driver.memory": "4g", "spark.sql.shuffle.partitions": "2"}
_PAYLOAD = 360
# Measured rate / rate of the model, or the reverse: the greater of the two.
_FACTOR = 2.0
_STREAMS: dict[str, Callable[[int], Stream]] = {
    "queue to noop": lambda width: Stream("embedded-queue", row_bytes=width),
    "tunnel to noop": lambda width: Stream("embedded-tunnel", row_bytes=width),
    "queue to queue": lambda width: Stream("embedded-queue", write="embedded-queue", row_bytes=width),
    "queue to table": lambda width: Stream("embedded-queue", write="embedded-table", row_bytes=width),
    "queue to sums by key": lambda width: Stream("embedded-queue", "groups", "embedded-table", width),
}


def capacity(directory: Path, scale: float) -> Result:
    """Streams of an embedded store on one core and on two, compared with the model of `headrace capacity`."""
    place = directory / "store"
    sizes = {MEASURED_BYTES: int(1_000_000 * scale), MEASURED_BYTES + _PAYLOAD: int(400_000 * scale)}
    with headrace.open(place, create=True, synchronous="off") as store:
        for width, rows in sizes.items():
            _fill(store, width, rows)
        figures, worst = {}, 1.0
        for cores in (1, 2):
            spark = headrace.session("bench", master=f"local[{cores},4]", conf=_SETTINGS)
            spark.sparkContext.setLogLevel("ERROR")
            try:
                for what, width, measured in _rates(spark, store, place, directory, sizes):
                    expected = _STREAMS[what](width).rows_per_second(cores)
                    figures[f"{what}, rows of {width} bytes, {cores} core{'s' * (cores > 1)}"] = (
                        f"{rate(measured, 1)} (model: {rate(expected, 1)})"
                    )
                    worst = max(worst, measured / expected, expected / measured)
            finally:
                spark.stop()
    return Result(
        "capacity: whole streams on an embedded store, by cores and bytes of a row",
        figures,
        [Ratio("measured / model, or the reverse, at worst", worst, _FACTOR, at_most=True)],
        "Rows divided by the time of the batches that Spark reports, in one run after one to warm up. Driver, "
        "executors and store share the cores.",
    )


def _columns(width: int) -> dict[str, str]:
    return COLUMNS if width == MEASURED_BYTES else {**COLUMNS, "payload": "string"}


def _rows(first: int, count: int, width: int, shuffled: int | None = None) -> pa.Table:
    rows = orders(first, count, shuffled=shuffled)
    if width == MEASURED_BYTES:
        return rows
    text = "".join(chr(97 + place % 26) for place in range(_PAYLOAD))
    return rows.append_column("payload", pa.array([text] * count, pa.string()))


def _fill(store: Store, width: int, rows: int) -> None:
    """Make a queue with random keys and a table with a log, of two partitions each, and a table of as many keys."""
    queue = store.create_queue(f"queue{width}", _columns(width), partitions=2)
    table = store.create_table(f"table{width}", _columns(width), ["UserId", "OrderId"])
    middle = orders(_KEYS // 2, 1).to_pylist()[0]
    table.split(at={"UserId": middle["UserId"], "OrderId": middle["OrderId"]})
    target = store.create_table(f"target{width}", _columns(width), ["UserId", "OrderId"])
    store.create_table(
        f"sums{width}", {"UserId": "string", "OrderId": "long", "price": "double"}, ["UserId", "OrderId"]
    )
    store.create_tunnel(f"table{width}", f"tunnel{width}", kind="Stream")
    for number, first in enumerate(range(0, rows, _BATCH_KEYS)):
        queue.append(_rows(first, _BATCH_KEYS, width, shuffled=_KEYS), partition=number % 2)
    for first in range(0, _KEYS, _BATCH_KEYS):
        table.put(_rows(first, _BATCH_KEYS, width))
        target.put(_rows(first, _BATCH_KEYS, width))


def _rates(
    spark: SparkSession, store: Store, place: Path, directory: Path, sizes: dict[int, int]
) -> Iterator[tuple[str, int, float]]:
    """Yield the path, the bytes of a row, and the rows per second of each stream."""
    runs = iter(range(1000))
    name = spark.sparkContext.applicationId

    def stream(**options: object) -> DataFrame:
        reader = spark.readStream.format("headrace").option("store", str(place))
        return reader.options(**{option: str(value) for option, value in options.items()}).load()

    def checkpoint() -> Path:
        return directory / f"checkpoint-{name}-{next(runs)}"

    def read(source: str) -> Callable[[int], float]:
        def run(width: int) -> float:
            taken, seen = drain(stream(startingPosition="earliest", **{source: f"{source}{width}"}), checkpoint())
            return seen / taken

        return run

    def write(query: Callable[[DataFrame], DataFrame], rows: int, batches: int, width: int, **target: Any) -> float:
        name = f"queue{width}"
        ends = {str(number): bounds.upper - rows // 2 for number, bounds in store.queue(name).bounds().items()}
        position = json.dumps({name: ends})
        running = headrace.write_stream(
            query(stream(queue=name, startingPosition=position, maxRowsPerTrigger=rows // batches)),
            store=place,
            checkpoint=checkpoint(),
            trigger={"availableNow": True},
            **target,
        ).start()
        running.awaitTermination()
        taken, seen = batch_seconds(running)
        assert seen == rows, f"{seen} rows instead of {rows}"
        return seen / taken

    def copy(width: int) -> float:
        name = f"copy{width}"
        store.create_queue(name, _columns(width), partitions=2)
        try:
            return write(lambda rows: rows, sizes[width], 1, width, queue=name)
        finally:
            store.drop_queue(name)

    def put(width: int) -> float:
        return write(lambda rows: rows, _BATCHES * _BATCH_KEYS, _BATCHES, width, table=f"target{width}", mode="update")

    def sums(width: int) -> float:
        def query(rows: DataFrame) -> DataFrame:
            return rows.groupBy("UserId", "OrderId").agg(F.sum("price").alias("price"))

        return write(query, _BATCHES * _BATCH_KEYS, _BATCHES, width, table=f"sums{width}", mode="update")

    for width in sizes:
        for what, run in {
            "queue to noop": read("queue"),
            "tunnel to noop": read("tunnel"),
            "queue to queue": copy,
            "queue to table": put,
            "queue to sums by key": sums,
        }.items():
            run(width)
            yield what, width, run(width)
