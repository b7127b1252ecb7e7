"""Custom state: a report for each sensor that has been silent for ten minutes, with the number of its readings.

``transformWithStateInPandas`` keeps values for each key in the state store, and calls a method when the watermark
passes a timer. Values and timers are part of Spark's checkpoint, so a restart continues with them. It needs RocksDB as
the state store, which `headrace.session` sets, and the package protobuf (in ``pyspark[connect]``).

Run it with ``python examples/event_time/transform_with_state.py``.
"""

from __future__ import annotations

import tempfile
from collections.abc import Iterator
from datetime import datetime
from pathlib import Path
from typing import TYPE_CHECKING, Any

import pandas as pd
from pyspark.sql.streaming.stateful_processor import StatefulProcessor, StatefulProcessorHandle

import headrace

if TYPE_CHECKING:
    from pyspark.sql import DataFrame, SparkSession

    from headrace.spark.write_stream import StreamWriter

SILENCE_MS = 10 * 60 * 1000


def at(time: str) -> datetime:
    """Return a time of the example's day."""
    return datetime.fromisoformat(f"2026-05-01T{time}+00:00")


ARRIVALS = [
    [{"time": at("12:00"), "sensor": "roof"}, {"time": at("12:02"), "sensor": "cellar"}],
    # Out of order: the last reading of the cellar is at 12:04.
    [{"time": at("12:04"), "sensor": "cellar"}, {"time": at("12:03"), "sensor": "cellar"}],
    [{"time": at("12:08"), "sensor": "roof"}],
    # The watermark moves to 12:15. The cellar has been silent since 12:04, the roof for less than ten minutes.
    [{"time": at("12:20"), "sensor": "yard"}],
    # A reading that is too late, and the first new reading of the cellar.
    [{"time": at("12:05"), "sensor": "roof"}, {"time": at("12:21"), "sensor": "cellar"}],
    # The watermark moves to 12:19. The roof has been silent since 12:08.
    [{"time": at("12:24"), "sensor": "yard"}],
]


class Silence(StatefulProcessor):
    """Keeps the time of the last reading and the number of readings of each sensor, until the sensor is silent."""

    def init(self, handle: StatefulProcessorHandle) -> None:
        self._handle = handle
        self._heard = handle.getValueState("heard", "last long, count long")

    def handleInputRows(self, key: Any, rows: Iterator[pd.DataFrame], timerValues: Any) -> Iterator[pd.DataFrame]:
        last, count = self._heard.get() or (0, 0)
        for frame in rows:
            last = max(last, int(frame["time"].max().timestamp() * 1000))
            count += len(frame)
        self._heard.update((last, count))
        for timer in list(self._handle.listTimers()):
            self._handle.deleteTimer(timer)
        self._handle.registerTimer(last + SILENCE_MS)
        return iter(())

    def handleExpiredTimer(self, key: Any, timerValues: Any, expiredTimerInfo: Any) -> Iterator[pd.DataFrame]:
        last, count = self._heard.get() or (0, 0)
        self._heard.clear()
        yield pd.DataFrame({"sensor": [key[0]], "since": [pd.Timestamp(last, unit="ms")], "readings": [count]})


def create(store: headrace.Store) -> None:
    """Create the queue of readings and the queue of reports."""
    store.create_queue("signs", {"time": "timestamp", "sensor": "string"})
    store.create_queue("silent", {"sensor": "string", "since": "timestamp", "readings": "long"})


def silent(signs: DataFrame) -> DataFrame:
    """Return a report for each silence of a sensor."""
    sensors = signs.withWatermark("time", "5 minutes").groupBy("sensor")
    columns = "sensor string, since timestamp, readings long"
    return sensors.transformWithStateInPandas(Silence(), columns, outputMode="Append", timeMode="EventTime")


def build(spark: SparkSession, store: headrace.Store, checkpoint: Path) -> StreamWriter:
    """Return the query."""
    signs = spark.readStream.format("headrace").option("store", store.url).option("queue", "signs").load()
    return headrace.write_stream(silent(signs), store=store.url, queue="silent", checkpoint=checkpoint)


def main(directory: Path) -> None:
    """Append the rows in steps. Each run of the query continues where the last one stopped."""
    spark = headrace.session("transform with state")
    with headrace.open(directory / "store", create=True) as store:
        create(store)
        for rows in ARRIVALS:
            store.queue("signs").append(rows)
            query = build(spark, store, directory / "checkpoint").trigger(availableNow=True).start()
            query.awaitTermination()
        print(store.queue("silent").read(0, 0).rows.to_pandas().to_string(index=False))


if __name__ == "__main__":
    with tempfile.TemporaryDirectory(prefix="headrace-") as temporary:
        main(Path(temporary))
