"""What comes from headrace and goes back to it. The environment variable HEADRACE_STORE names the store."""

from pyspark import pipelines as dp
from pyspark.sql import DataFrame, SparkSession
from pyspark.sql import functions as F

spark = SparkSession.active()


def changes(tunnel: str) -> DataFrame:
    """Return the changes that a tunnel reads. Each flow needs a tunnel of its own."""
    return spark.readStream.format("headrace").option("tunnel", tunnel).load()


@dp.table(comment="Every change of table orders, with its kind, version and time.")
def order_changes() -> DataFrame:
    return changes("history")


@dp.materialized_view(comment="The table users, as it is when the pipeline runs.")
def users() -> DataFrame:
    return spark.read.format("headrace").load("users")


# A table of the store as a sink, in which each batch is published once: every order that was ever 50 or more.
dp.create_sink("big_orders", "headrace", {"table": "big_orders"})


@dp.append_flow(target="big_orders", name="put_big_orders")
def put_big_orders() -> DataFrame:
    rows = changes("big").where("_change_type IN ('insert', 'update_postimage') AND price >= 50")
    return rows.select("id", "user", F.col("price") * 2, "_commit_version").toDF("id", "user", "p2", "version")


# A sink has one kind of row change. Deletes are rows of another sink, from the table of all changes.
dp.create_sink("closed_orders", "headrace", {"table": "closed_orders"})


@dp.append_flow(target="closed_orders")
def keep_closed_orders() -> DataFrame:
    rows = spark.readStream.table("order_changes").where("_change_type = 'delete'")
    return rows.select("id", F.col("_commit_version").alias("version"))
