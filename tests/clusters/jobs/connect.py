"""A client of Spark Connect: the job ``totals`` on a server on another host. Started by `Site.run_job`."""

from __future__ import annotations

import json
import sys
from typing import Any

from pyspark.sql import SparkSession
from pyspark.sql import functions as F

import headrace


def main(given: dict[str, Any]) -> None:
    """Run the job to the end of the queue."""
    spark = SparkSession.builder.remote(given["server"]).getOrCreate()
    options = {"store": given["store"], "consumer": "//home/totals", "maxRowsPerTrigger": 500}
    clicks = spark.readStream.format("headrace").options(**options).load("clicks")
    totals = clicks.groupBy("user").agg(F.count("*").alias("clicks"), F.sum("ms").alias("ms"))
    stream = headrace.write_stream(
        totals, store=given["store"], table="totals", mode="update", checkpoint="headrace:///checkpoints/totals"
    )
    stream.trigger(availableNow=True).start().awaitTermination()
    spark.stop()


main(json.loads(sys.argv[1]))
