"""The common code of the drivers that storms kill."""

from __future__ import annotations

from collections.abc import Sequence
from pathlib import Path

from pyspark.sql import SparkSession
from pyspark.sql.streaming.query import StreamingQuery

import headrace


def driver_session() -> SparkSession:
    """Start a session that starts quickly and tolerates the death of its workers."""
    spark = headrace.session(
        "chaos",
        master="local[2,8]",
        conf={
            "spark.ui.enabled": "false",
            "spark.sql.shuffle.partitions": 2,
        },
    )
    spark.sparkContext.setLogLevel("ERROR")
    return spark


def run_until_told(directory: Path, spark: SparkSession, queries: Sequence[StreamingQuery]) -> None:
    """Run queries until the file ``written`` exists and they have caught up. Then create the file ``done``."""
    (directory / "running").touch()
    while not (directory / "written").exists():
        for query in queries:
            query.awaitTermination(1)
    for query in queries:
        query.processAllAvailable()
        query.stop()
    (directory / "done").touch()
    spark.stop()
