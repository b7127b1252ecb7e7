"""A stream on a standalone cluster keeps exact totals while machines die, lose their network, and the driver moves."""

from __future__ import annotations

import json
import subprocess
import sys
import time
from collections.abc import Callable, Iterator
from pathlib import Path

import pytest

import headrace
from headrace.ports import Store
from tests.clusters.network import Network
from tests.clusters.standalone import Cluster, Remote

TOKEN = "token-of-the-tests"
USERS = 7
START = """
from pyspark.sql.functions import count, sum

import headrace

spark = headrace.session("cluster", conf={conf!r})
spark.sparkContext.setLogLevel("ERROR")
clicks = (
    spark.readStream.format("headrace")
    .options(store={store!r}, consumer="//tmp/reader", maxRowsPerPartition=20)
    .load("//tmp/clicks")
)
totals = clicks.groupBy("user").agg(count("*").alias("clicks"), sum("ms").alias("ms"))
query = headrace.write_stream(
    totals, store={store!r}, table="//tmp/totals", mode="update", checkpoint={checkpoint!r}
).start()
"""


@pytest.fixture
def served(network: Network, tmp_path: Path) -> Iterator[str]:
    """The URL of a store that all machines reach."""
    server = subprocess.Popen(
        [sys.executable, "-m", "headrace.cli.main", "serve", "--json", "--ytsaurus", "0", "--host", network.address,
         "--root", str(tmp_path / "cluster")],
        stdout=subprocess.PIPE,
        text=True,
        env={"PATH": "/usr/bin:/bin", "HEADRACE_YT_TOKEN": TOKEN, "PYTHONPATH": ":".join(sys.path)},
    )  # fmt: skip
    assert server.stdout is not None
    with server.stdout:
        yield f"yt+{json.loads(server.stdout.readline())['endpoint']}"
        server.terminate()
        server.wait(30)


def append(store: Store, first: int, count: int) -> None:
    rows = [{"user": f"u{number % USERS}", "ms": number} for number in range(first, first + count)]
    for partition in (0, 1):
        store.queue("//tmp/clicks").append(rows[partition::2], partition=partition)


def expected(count: int) -> dict[str, tuple[int, int]]:
    numbers = {f"u{user}": range(user, count, USERS) for user in range(USERS)}
    return {user: (len(each), sum(each)) for user, each in numbers.items()}


def totals(store: Store) -> dict[str, tuple[int, int]]:
    rows = store.table("//tmp/totals").scan().read_all().to_pylist()
    return {row["user"]: (row["clicks"], row["ms"]) for row in rows}


def wait_for(condition: Callable[[], bool], what: str, seconds: float = 180) -> None:
    end = time.monotonic() + seconds
    while not condition():
        assert time.monotonic() < end, what
        time.sleep(0.1)


def test_totals_stay_exact_when_machines_die_lose_their_network_and_the_driver_moves(
    network: Network, served: str
) -> None:
    master, *workers, other = network.hosts
    cluster = Cluster(master)
    for host in workers:
        cluster.add_worker(host)
    # Not a setting of Spark, and not in its URLs: the token is in the environment of the driver only.
    environment = {"YT_TOKEN": TOKEN}
    with headrace.open(served, token=TOKEN) as store:
        store.create_queue("//tmp/clicks", {"user": "string", "ms": "long"}, partitions=2)
        store.create_table("//tmp/totals", {"user": "string", "clicks": "long", "ms": "long"}, "user")
        store.create_consumer("//tmp/reader")
        store.register_consumer("//tmp/clicks", "//tmp/reader")
        append(store, 0, 200)

        def read() -> int:
            return sum(clicks for clicks, _ in totals(store).values())

        code = START.format(conf=cluster.conf(other), store=served, checkpoint=f"{served}/tmp/checkpoint")
        driver = Remote(other, environment)
        driver.run(code)
        wait_for(lambda: read() >= 40, "the first batches")

        # The power of one machine fails in the middle of the batches.
        workers[0].kill()
        wait_for(lambda: totals(store) == expected(200), "the batches after a lost machine")

        # The other one loses its network, and another machine takes its work.
        append(store, 200, 200)
        wait_for(lambda: read() >= 220, "a batch before the cut")
        workers[1].unplug()
        cluster.add_worker(workers[0])
        wait_for(lambda: totals(store) == expected(400), "the batches without the network of a machine")
        workers[1].plug_in()

        # The driver dies, and starts on another machine. The checkpoint is in the store.
        append(store, 400, 100)
        driver.kill()
        driver = Remote(workers[1], environment)
        driver.run(START.format(conf=cluster.conf(workers[1]), store=served, checkpoint=f"{served}/tmp/checkpoint"))
        append(store, 500, 100)
        wait_for(lambda: totals(store) == expected(600), "the batches of the new driver")
        assert driver.run("result = query.exception() is None")
        assert TOKEN not in driver.run("result = str(spark.sparkContext.getConf().getAll())")
        driver.kill()
        files = [path for host in network.hosts for path in host.directory.rglob("*") if path.is_file()]
        assert [path for path in files if TOKEN.encode() in path.read_bytes()] == []
