"""The driver of a job from the README: a queue, aggregated into a table. Started by `Cluster.start_job`."""

from __future__ import annotations

import json
import sys
from pathlib import Path
from typing import Any
from urllib.request import urlopen

from pyspark.sql import DataFrame, SparkSession
from pyspark.sql import functions as F

import headrace

# Everything of Spark's web page and of its interface for programs that can show settings, plans and environments.
_PAGES = ("environment/", "SQL/", "executors/", "StreamingQuery/", "jobs/")
_LISTS = ("environment", "sql?details=true&length=100", "allexecutors", "stages?details=true", "jobs")


def main(given: dict[str, Any]) -> None:
    """Run the job to the end of the queue, or forever with ``follow`` and with a second job that copies the queue.

    The options ``reads`` name the consumer of the queue, or the tunnel of a table.
    """
    spark = headrace.session("totals", master=given["master"], conf=given["conf"])

    def clicks(**options: str) -> DataFrame:
        options = {"store": given["store"], "maxRowsPerTrigger": given.get("rows_per_batch", 1000), **options}
        reader = spark.readStream.format("headrace").options(**options, **given.get("options", {}))
        return reader.load("clicks").select("user", "ms")

    if given.get("follow"):
        headrace.write_stream(
            clicks(consumer="//home/copies"),
            store=given["store"],
            queue="copied",
            checkpoint=f"{given['checkpoint']}-copy",
        ).start()
    rows = clicks(**given.get("reads", {"consumer": "//home/totals"}))
    totals = rows.groupBy("user").agg(F.count("*").alias("clicks"), F.sum("ms").alias("ms"))
    stream = headrace.write_stream(
        totals,
        store=given["store"],
        table="totals",
        mode="update",
        checkpoint=given["checkpoint"],
        options=given.get("options"),
    )
    query = (stream if given.get("follow") else stream.trigger(availableNow=True)).start()
    # Either query: the driver ends when one of them fails.
    spark.streams.awaitAnyTermination() if given.get("follow") else query.awaitTermination()
    progress = query.lastProgress
    assert progress is not None
    infos = spark.sparkContext._jsc.sc().statusTracker().getExecutorInfos()
    driver = spark.conf.get("spark.driver.host")
    executors = sorted({info.host() for info in infos} - {driver})
    if "pages" in given:
        Path(given["pages"]).write_text(_pages(spark))
    print(json.dumps({"batches": progress["batchId"] + 1, "executors": executors, "driver": driver}))
    spark.stop()


def _pages(spark: SparkSession) -> str:
    """Return the text of all pages of Spark's own web page."""
    page = spark.sparkContext.uiWebUrl
    application = f"{page}/api/v1/applications/{spark.sparkContext.applicationId}"
    addresses = [f"{page}/{name}" for name in _PAGES] + [f"{application}/{name}" for name in _LISTS]
    return "\n".join(f"{address}\n{urlopen(address, timeout=30).read().decode()}" for address in addresses)


main(json.loads(sys.argv[1]))
