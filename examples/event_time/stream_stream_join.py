"""Stream–stream join: which advertisements were clicked within half an hour, and which were not.

Both sides have a watermark, and the condition limits the difference of their times. So Spark knows how long it must
keep a row. The query's watermark is the smaller of the two. A match is written at once. An outer join writes a row
without a match when the watermark shows that no match can follow.

The checkpoint holds the query's watermark, but not those of the two sides. After a restart the watermark moves when
both sides have delivered rows.

Run it with ``python examples/event_time/stream_stream_join.py``; ``leftOuter`` or ``fullOuter`` can be its argument.
"""

from __future__ import annotations

import sys
import tempfile
from datetime import datetime
from pathlib import Path
from typing import TYPE_CHECKING, Any

import headrace

if TYPE_CHECKING:
    from pyspark.sql import DataFrame, SparkSession

    from headrace.spark.write_stream import StreamWriter


def at(time: str) -> datetime:
    """Return a time of the example's day."""
    return datetime.fromisoformat(f"2026-05-01T{time}+00:00")


# Each item arrives at once: rows by queue.
ARRIVALS: list[tuple[str, list[dict[str, Any]]]] = [
    ("shown", [{"ad": 1, "shown": at("12:00")}, {"ad": 2, "shown": at("12:01")}]),
    ("clicked", [{"clicked_ad": 1, "clicked": at("12:10")}]),
    ("shown", [{"ad": 3, "shown": at("12:20")}]),
    # The clicks are far ahead, but the watermark follows the slower side and moves to 12:10.
    ("clicked", [{"clicked_ad": 9, "clicked": at("12:05")}, {"clicked_ad": 1, "clicked": at("12:29")}]),
    ("clicked", [{"clicked_ad": 3, "clicked": at("13:00")}]),
    ("shown", [{"ad": 4, "shown": at("13:20")}, {"ad": 1, "shown": at("12:15")}]),
    # The watermark is at 12:40. The first click is too late, although its advertisement is known.
    ("clicked", [{"clicked_ad": 3, "clicked": at("12:39")}, {"clicked_ad": 4, "clicked": at("13:30")}]),
    ("shown", [{"ad": 5, "shown": at("13:22")}, {"ad": 6, "shown": at("15:00")}]),
    ("clicked", [{"clicked_ad": 6, "clicked": at("15:01")}]),
]


def create(store: headrace.Store) -> None:
    """Create the queues of both sides, and the queue of the result."""
    shown, clicked = {"ad": "long", "shown": "timestamp"}, {"clicked_ad": "long", "clicked": "timestamp"}
    store.create_queue("shown", shown)
    store.create_queue("clicked", clicked)
    store.create_queue("matches", shown | clicked)


def match(shown: DataFrame, clicked: DataFrame, how: str) -> DataFrame:
    """Match each click to an advertisement that was shown in the half hour before."""
    from pyspark.sql import functions as F

    condition = F.expr("ad = clicked_ad AND clicked >= shown AND clicked <= shown + INTERVAL 30 MINUTES")
    early, late = shown.withWatermark("shown", "10 minutes"), clicked.withWatermark("clicked", "20 minutes")
    return early.join(late, condition, how)


def build(spark: SparkSession, store: headrace.Store, checkpoint: Path, how: str = "inner") -> StreamWriter:
    """Return the query."""
    streams = spark.readStream.format("headrace").option("store", store.url)
    shown, clicked = (streams.option("queue", name).load() for name in ("shown", "clicked"))
    return headrace.write_stream(match(shown, clicked, how), store=store.url, queue="matches", checkpoint=checkpoint)


def main(directory: Path, how: str = "inner") -> None:
    """Append the rows in steps while the query runs."""
    spark = headrace.session("stream-stream join")
    with headrace.open(directory / "store", create=True) as store:
        create(store)
        query = build(spark, store, directory / "checkpoint", how).start()
        for name, rows in ARRIVALS:
            store.queue(name).append(rows)
            query.processAllAvailable()
        query.stop()
        print(store.queue("matches").read(0, 0).rows.to_pandas().to_string(index=False))


if __name__ == "__main__":
    with tempfile.TemporaryDirectory(prefix="headrace-") as temporary:
        main(Path(temporary), *sys.argv[1:])
