"""The state store: word counts in RocksDB, and a restart that continues with them.

`headrace.session` sets RocksDB with changelog checkpoints: each batch saves only its changes. The checkpoint holds the
state and the offsets of the rows that it includes. A restart loads both, and continues after these rows.

Run it with ``python examples/event_time/state_store.py``.
"""

from __future__ import annotations

import tempfile
from pathlib import Path
from typing import TYPE_CHECKING

import headrace

if TYPE_CHECKING:
    from pyspark.sql import DataFrame, SparkSession

    from headrace.spark.write_stream import StreamWriter

ARRIVALS = [
    [{"word": "water"}, {"word": "wheel"}, {"word": "water"}],
    [{"word": "water"}],
    [{"word": "mill"}, {"word": "wheel"}],
]


def create(store: headrace.Store) -> None:
    """Create the queue of words and the table of counts."""
    store.create_queue("words", {"word": "string"})
    store.create_table("counts", {"word": "string", "count": "long"}, "word")


def count(words: DataFrame) -> DataFrame:
    """Count each word."""
    return words.groupBy("word").count()


def build(spark: SparkSession, store: headrace.Store, checkpoint: Path) -> StreamWriter:
    """Return the query."""
    words = spark.readStream.format("headrace").option("store", store.url).option("queue", "words").load()
    return headrace.write_stream(count(words), store=store.url, table="counts", checkpoint=checkpoint, mode="update")


def main(directory: Path) -> None:
    """Start the query again for each arrival, and print the number of keys in its state and of changed keys."""
    spark = headrace.session("state store")
    with headrace.open(directory / "store", create=True) as store:
        create(store)
        for rows in ARRIVALS:
            store.queue("words").append(rows)
            query = build(spark, store, directory / "checkpoint").trigger(availableNow=True).start()
            query.awaitTermination()
            assert query.lastProgress is not None
            state = query.lastProgress.stateOperators[0]
            print(f"{state.numRowsTotal} words in the state, {state.numRowsUpdated} of them new or changed")
        print(store.table("counts").scan().read_all().to_pandas().to_string(index=False))


if __name__ == "__main__":
    with tempfile.TemporaryDirectory(prefix="headrace-") as temporary:
        main(Path(temporary))
