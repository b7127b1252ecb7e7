"""A stream in Spark's ``local-cluster``: executors are processes of their own, with other working directories."""

from __future__ import annotations

import os
import shutil
import subprocess
import sys
from collections.abc import Iterator
from pathlib import Path

import pyspark
import pytest

import headrace

SPARK = Path(pyspark.__file__).parent

JOB = """
import sys

import headrace

spark = headrace.session(
    "local-cluster", master="local-cluster[2,1,700]",
    conf={"spark.ui.enabled": "false", "spark.executor.memory": "600m", "spark.sql.shuffle.partitions": "2"},
)
orders = spark.readStream.format("headrace").options(store="shop", tunnel="stats", readAs="table").load()
query = headrace.follow(
    spark,
    "SELECT user, count(*) AS orders, sum(price) AS spent FROM orders GROUP BY user",
    scans={"orders": orders},
    store="shop",
    table="totals",
    trigger={"availableNow": True},
    name="totals",
)
query.start().awaitTermination()
"""


@pytest.fixture
def _no_work_left() -> Iterator[None]:
    """Remove the executors' directories. Spark makes them in its own one."""
    yield
    shutil.rmtree(SPARK / "work", ignore_errors=True)


@pytest.mark.usefixtures("_no_work_left")
def test_a_followed_query_runs_in_executors_of_their_own(tmp_path: Path) -> None:
    # The interpreter of the workers, such as one of an unpacked archive. It notes where it starts.
    interpreter = tmp_path / "python"
    interpreter.write_text(f'#!/bin/sh\necho "$PWD" >> {tmp_path}/started\nexec {sys.executable} "$@"\n')
    interpreter.chmod(0o755)
    with headrace.open(tmp_path / "shop", create=True) as store:
        columns = {"id": "long", "user": "string", "price": "double"}
        orders = store.create_table("orders", columns, "id", pre_images=True)
        store.create_table("totals", {"user": "string", "orders": "long", "spent": "double"}, "user")
        store.create_tunnel("orders", "stats")
        orders.put([{"id": number, "user": f"u{number % 3}", "price": 1.0} for number in range(90)])
        for _ in range(2):
            orders.delete({"id": 0})
            done = subprocess.run(
                [sys.executable, "-c", JOB],
                cwd=tmp_path,
                env={**os.environ, "PYSPARK_PYTHON": str(interpreter)},
                capture_output=True,
                text=True,
                timeout=300,
                check=False,
            )
            assert done.returncode == 0, done.stderr[-4000:]
            rows = store.table("totals").scan().read_all().to_pylist()
            assert {row["user"]: (row["orders"], row["spent"]) for row in rows} == {
                f"u{user}": (len(mine), float(len(mine)))
                for user in range(3)
                if (mine := [row for row in orders.scan().read_all().to_pylist() if row["user"] == f"u{user}"])
            }
            orders.put([{"id": 100, "user": "u1", "price": 1.0}])
    places = {Path(line) for line in (tmp_path / "started").read_text().splitlines()}
    assert any(SPARK / "work" in place.parents for place in places)
