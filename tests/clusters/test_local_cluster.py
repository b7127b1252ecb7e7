"""A stream in Spark's ``local-cluster``: executors are processes of their own, with other working directories."""

from __future__ import annotations

import os
import shutil
import subprocess
import sys
from collections.abc import Iterator
from pathlib import Path

import psutil
import pyspark
import pytest

import headrace
from tests.clusters.hosts import wait_until

_EXECUTOR = "org.apache.spark.executor.CoarseGrainedExecutorBackend"
SPARK = Path(pyspark.__file__).parent

SESSION = """
import headrace

spark = headrace.session(
    "local-cluster", master="local-cluster[2,1,700]",
    conf={"spark.ui.enabled": "false", "spark.executor.memory": "600m", "spark.sql.shuffle.partitions": "2"},
)
"""
JOB = """
orders = spark.readStream.format("headrace").options(store="shop", tunnel="stats", readAs="table").load()
query = headrace.follow(
    spark, {sql!r}, scans={{"orders": orders}}, store="shop", table="totals", trigger={trigger}, name="totals"
)
query.start().awaitTermination()
"""
STATIC_TABLE = """
spark.range(0, 40, 1, 4).selectExpr("concat('u', id) AS user", "id % 3 AS zone").createOrReplaceTempView("zones")
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
    sql = "SELECT user, count(*) AS orders, sum(price) AS spent FROM orders GROUP BY user"
    job = SESSION + JOB.format(sql=sql, trigger={"availableNow": True})
    with headrace.open(tmp_path / "shop", create=True) as store:
        columns = {"id": "long", "user": "string", "price": "double"}
        orders = store.create_table("orders", columns, "id", pre_images=True)
        store.create_table("totals", {"user": "string", "orders": "long", "spent": "double"}, "user")
        store.create_tunnel("orders", "stats")
        orders.put([{"id": number, "user": f"u{number % 3}", "price": 1.0} for number in range(90)])
        for _ in range(2):
            orders.delete({"id": 0})
            done = subprocess.run(
                [sys.executable, "-c", job],
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


@pytest.mark.usefixtures("_no_work_left")
def test_executors_that_are_lost_with_the_rows_of_a_static_table_change_no_result(tmp_path: Path) -> None:
    sql = "SELECT zone, count(*) AS orders FROM orders JOIN zones USING (user) GROUP BY zone"
    job = SESSION + STATIC_TABLE + JOB.format(sql=sql, trigger={"processingTime": "100 milliseconds"})
    with headrace.open(tmp_path / "shop", create=True) as store:
        orders = store.create_table("orders", {"id": "long", "user": "string"}, "id", pre_images=True)
        totals = store.create_table("totals", {"zone": "long", "orders": "long"}, "zone")
        store.create_tunnel("orders", "stats")

        def counts() -> dict[int, int]:
            return {row["zone"]: row["orders"] for row in totals.scan().read_all().to_pylist()}

        def append(first: int, expected: dict[int, int]) -> None:
            orders.put([{"id": first + number, "user": f"u{number}"} for number in range(40)])
            wait_until(lambda: counts() == expected or driver.poll() is not None, f"totals are {expected}", 240)
            assert driver.poll() is None, (tmp_path / "log").read_text()[-4000:]

        with (tmp_path / "log").open("wb") as log:
            driver = psutil.Popen([sys.executable, "-c", job], cwd=tmp_path, stdout=log, stderr=log)
        try:
            append(0, {0: 14, 1: 13, 2: 13})
            # The next batch needs the rows that these have kept. Spark starts others.
            for executor in executors(driver):
                executor.kill()
            append(40, {0: 28, 1: 26, 2: 26})
        finally:
            for process in (*driver.children(recursive=True), driver):
                process.kill()
            driver.wait()
    assert "reads them again" in (tmp_path / "log").read_text()


def executors(driver: psutil.Process) -> list[psutil.Process]:
    """Return the executors of a driver that run."""
    pids = {process.pid for process in driver.children(recursive=True)}
    # A zombie has no command.
    running = psutil.process_iter(["cmdline"])
    return [each for each in running if each.pid in pids and _EXECUTOR in (each.info["cmdline"] or ())]
