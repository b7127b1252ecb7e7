"""A client of Spark Connect: the job ``totals`` on a server on another host. Started by `Site.run_job`."""

from __future__ import annotations

import json
import os
import sys
from typing import Any

from pyspark.sql import functions as F

import headrace


def main(given: dict[str, Any]) -> None:
    """Run the job to the end of the queue.

    With ``token``, it is an option of each read and write, also in SQL.
    """
    os.environ["SPARK_REMOTE"] = given["server"]
    spark = headrace.session()
    secret = {"token": given["token"]} if "token" in given else {}
    options = {"store": given["store"], "consumer": "//home/totals", "maxRowsPerTrigger": 500}
    clicks = spark.readStream.format("headrace").options(**options, **secret).load("clicks")
    totals = clicks.groupBy("user").agg(F.count("*").alias("clicks"), F.sum("ms").alias("ms"))
    stream = headrace.write_stream(
        totals,
        store=given["store"],
        table="totals",
        mode="update",
        checkpoint="headrace:///checkpoints/totals",
        options=secret,
    )
    stream.trigger(availableNow=True).start().awaitTermination()
    if secret:
        named = f"store '{given['store']}', token '{given['token']}', table 'totals'"
        spark.sql(f"CREATE TEMPORARY VIEW totals USING headrace OPTIONS ({named})")
        rows = spark.table("totals")
        rows.write.format("headrace").options(store=given["store"], table="totals", **secret).mode("append").save()
    spark.stop()


main(json.loads(sys.argv[1]))
