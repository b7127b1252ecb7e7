"""Executors that cannot do the work of their query: what they say, and that they read and create no other store."""

from __future__ import annotations

import re
from pathlib import Path

import headrace
from tests.clusters.network import Host, Network
from tests.clusters.standalone import ROOT, Cluster, Remote

READ = """
rows = spark.read.format("headrace").option("store", {store!r}).load("clicks").collect()
result = [row.user for row in rows]
"""
PACKAGE = ROOT / "src" / "headrace"


def make_store(path: Path, user: str) -> None:
    with headrace.open(path, create=True) as store:
        store.create_queue("clicks", {"user": "string"}).append([{"user": user}])


def test_executors_with_another_disk_another_release_or_no_package_are_refused_by_name(
    network: Network, tmp_path: Path
) -> None:
    master, machine, other, _ = network.hosts
    shop, elsewhere, empty = (tmp_path / name for name in ("shop", "elsewhere", "empty"))
    make_store(shop, "right")
    make_store(elsewhere, "wrong")
    empty.mkdir()
    release = tmp_path / "other_release.py"
    text = (PACKAGE / "__init__.py").read_text()
    release.write_text(re.sub(r'__version__ = ".*"', '__version__ = "9.9.9"', text))
    cluster = Cluster(master)
    # libpq reads it in the executors.
    driver = Remote(other, {"PGPASSWORD": "in-the-driver"})
    conf = {**cluster.conf(other), "spark.task.maxFailures": "1"}
    driver.run(f'import headrace; spark = headrace.session("shop", conf={conf!r})')
    code = READ.format(store=str(shop))

    def error(machine: Host, disks: dict[Path, Path]) -> str:
        cluster.add_worker(machine, disks)
        try:
            return driver.error(code)
        finally:
            machine.kill()

    assert "has another store at this address than the driver" in error(machine, {shop: elsewhere})
    assert "the store of this query is not on machine" in error(machine, {shop: empty})
    assert list(empty.iterdir()) == []
    different = error(machine, {PACKAGE / "__init__.py": release})
    assert f"{headrace.__version__} in the driver, 9.9.9 on" in different
    assert "install the same release on all machines" in different
    assert "No module named 'headrace" in error(machine, {PACKAGE: empty})
    # The right machine: this one's disk and packages.
    cluster.add_worker(machine)
    assert driver.run(code) == ["right"]
    assert driver.run(
        "import os\n"
        "executors = spark.sparkContext.parallelize([0], 1)\n"
        "result = executors.map(lambda _: os.environ.get('PGPASSWORD')).collect()"
    ) == ["in-the-driver"]
    driver.kill()
