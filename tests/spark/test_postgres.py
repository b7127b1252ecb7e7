"""A PostgreSQL table as a stream in Spark: base data and changes into an embedded table, over restarts."""

from __future__ import annotations

from pathlib import Path
from typing import Any

import psycopg
from pyspark.sql import DataFrame, SparkSession

import headrace
from headrace.testing.reading import state_of
from tests.conformance import serving


def test_a_postgres_table_arrives_in_an_embedded_table_over_restarts(
    spark: SparkSession, tmp_path: Path, checkpoint: str
) -> None:
    url = serving.postgres_database("spark")
    target = headrace.open(tmp_path / "shop", create=True, synchronous="off")
    copy = target.create_table("orders", {"id": "string", "price": "decimal(10,2)", "at": "timestamp"}, "id")
    with psycopg.connect(url, user="postgres", autocommit=True) as server, headrace.open(url) as source:
        server.execute("CREATE TABLE orders (id text PRIMARY KEY, price numeric(10,2), at timestamptz)")
        server.execute("INSERT INTO orders SELECT 'k' || n, n / 4.0, now() FROM generate_series(1, 5000) n")
        tunnel = source.create_tunnel("orders", "copy", base_channels=2)

        def run() -> None:
            stream = spark.readStream.format("headrace").options(store=url, tunnel="copy").load()
            query = (
                stream.writeStream.foreachBatch(write)
                .option("checkpointLocation", checkpoint)
                .trigger(availableNow=True)
                .start()
            )
            query.awaitTermination()

        def write(batch: DataFrame, number: int) -> None:
            rows: list[dict[str, Any]] = [row.asDict() for row in batch.orderBy("_commit_version").collect()]
            for row in rows:
                values = {name: row[name] for name in ("id", "price", "at")}
                if row["_change_type"] == "delete":
                    copy.delete({"id": row["id"]})
                else:
                    changed.append(values)
            copy.put(changed)
            changed.clear()

        changed: list[dict[str, Any]] = []
        run()
        assert copy.scan().read_all().num_rows == 5000
        server.execute("UPDATE orders SET price = -price WHERE id LIKE '%7'")
        server.execute("INSERT INTO orders VALUES ('new', 1, now())")
        run()
        server.execute("DELETE FROM orders WHERE id LIKE '%3'")
        run()
        assert state_of(copy) == state_of(source.table("orders"))
        assert tunnel.describe().backlog_rows == 0
        source.drop_tunnel("copy")
    target.close()
