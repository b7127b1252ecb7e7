"""A job on a standalone cluster: each host has its own addresses, files and Python environment."""

from __future__ import annotations

import json
import shutil
import subprocess
import sys
import tarfile
from collections.abc import Iterator
from contextlib import ExitStack
from pathlib import Path
from typing import Any

import pytest

import headrace
from tests.clusters.database import Database, database
from tests.clusters.environments import create, install, packages_of, remove
from tests.clusters.event_log import EventLog
from tests.clusters.hosts import Host
from tests.clusters.standalone import TOKEN, WORKERS, Cluster
from tests.clusters.totals import Tables, expected

ROWS = 1000
PASSWORD = "password-of-the-database"


@pytest.fixture(scope="module")
def shop(cluster: Cluster) -> Iterator[Database]:
    """A database on a host of its own."""
    with database(cluster.network.add("database"), PASSWORD) as running:
        yield running


def test_a_job_runs_on_a_cluster_and_its_secrets_are_nowhere_to_be_read(cluster: Cluster, tables: Tables) -> None:
    tables.append(ROWS)
    # The environment has it, too.
    result = run_without_trace_of(TOKEN, cluster, {"options": {"token": TOKEN}})
    assert result["batches"] >= 2
    # Spark may start one of the two a little later than the last batch.
    assert set(result["executors"]) <= set(WORKERS)
    assert result["driver"] == "driver"
    totals, _, offsets = tables.read()
    assert totals == expected(tables.rows)
    assert offsets["totals"] == {"0": tables.rows // 2, "1": tables.rows // 2}


def test_a_job_follows_a_database_whose_password_only_the_driver_has(cluster: Cluster, shop: Database) -> None:
    with headrace.open(shop.own_url) as store:
        clicks = store.create_table("clicks", {"id": "long", "user": "string", "ms": "long"}, "id")
        store.create_table("totals", {"user": "string", "clicks": "long", "ms": "long"}, "user")
        rows = [{"id": n, "user": f"u{n % 10}", "ms": n} for n in range(ROWS)]
        # Half of the rows are in the table before the tunnel, and half are changes.
        clicks.put(rows[: ROWS // 2])
        store.create_tunnel("clicks", "totals")
        clicks.put(rows[ROWS // 2 :])

        listing = [cluster.python, "-m", "headrace.cli.main", "table", "list", "-s", shop.url]
        refused = cluster.network.hosts[WORKERS[0]].run(listing, check=False)
        assert "does not accept the user or the password" in refused.stderr
        given = {"store": shop.url, "reads": {"tunnel": "totals"}}
        result = run_without_trace_of(PASSWORD, cluster, given, {"PGPASSWORD": PASSWORD})
        assert result["batches"] >= 2
        totals = store.table("totals").scan().read_all().to_pylist()
        assert {row["user"]: (row["clicks"], row["ms"]) for row in totals} == expected(ROWS)
        store.drop_tunnel("totals")


def test_an_archive_or_python_files_bring_headrace_to_executors(cluster: Cluster, tables: Tables) -> None:
    driver = cluster.driver
    # The archive of docs/deployment.md. Most packages are links to those of the tests, which are on all hosts here.
    create(driver.own / "environment", copied=["pyspark"])
    packed = driver.own / "environment.tar.gz"
    places = ["-p", driver.own / "environment", "-o", packed, "--exclude", "*/pyspark/jars/*"]
    subprocess.run([sys.executable, "-m", "venv_pack", "--quiet", *map(str, places)], check=True)
    with tarfile.open(packed) as archive:
        assert not [name for name in archive.getnames() if "/pyspark/jars/" in name]
    (driver.own / "sources").mkdir()
    install(driver.own / "sources")
    shutil.make_archive(str(driver.own / "headrace"), "zip", driver.own / "sources")
    with ExitStack() as undo:
        for name in WORKERS:
            remove(packages_of(cluster.network.hosts[name].own / "venv"), undo)
        given = {"checkpoint": "headrace:///checkpoints/totals"}

        tables.append(100)
        conf = {"spark.archives": f"{driver.home}/environment.tar.gz#environment"}
        cluster.run_job("totals", given, conf=conf, variables={"PYSPARK_PYTHON": "./environment/bin/python"})
        assert tables.read()[0] == expected(tables.rows)

        tables.append(100)
        files = ["--master", cluster.master_url, "--py-files", driver.home / "headrace.zip"]
        python = {"PYSPARK_PYTHON": str(cluster.python)}
        cluster.run_job("totals", given, submit=files, variables=python)
        assert tables.read()[0] == expected(tables.rows)


def run_without_trace_of(
    secret: str, cluster: Cluster, given: dict[str, Any], variables: dict[str, str] | None = None
) -> dict[str, Any]:
    """Run the job ``totals``, look for a secret wherever Spark shows something, and return the result of the job."""
    log = EventLog(cluster.driver)
    given = {
        "checkpoint": "headrace:///checkpoints/totals",
        "rows_per_batch": 500,
        "pages": str(cluster.driver.home / "pages"),
        **given,
    }
    conf = {**log.settings, "spark.ui.showConsoleProgress": "true"}
    done = cluster.run_job("totals", given, conf=conf, variables=variables)
    pages, events = cluster.driver.own / "pages", _files(log.directory)
    assert "headrace" in pages.read_text()
    # The log is plain text.
    assert any("SparkListenerEnvironmentUpdate" in path.read_text(errors="replace") for path in events)
    shown = [pages, *events, *(path for host in cluster.network.hosts.values() for path in _logs(host))]
    # The logs of the daemons and of two executors.
    assert len(shown) >= 7
    assert not [str(path) for path in shown if secret in path.read_text(errors="replace")]
    assert secret not in done.stdout + done.stderr
    assert secret not in json.dumps(cluster.state())
    result: dict[str, Any] = json.loads(done.stdout.splitlines()[-1])
    return result


def _logs(host: Host) -> list[Path]:
    """Return the logs of the daemons and of the executors of a host."""
    return [*host.own.glob("log"), *_files(host.own / "work")]


def _files(directory: Path) -> list[Path]:
    return [path for path in directory.rglob("*") if path.is_file()]
