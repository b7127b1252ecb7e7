"""Spark Connect with its server on another host: what the client and the server need, and how it reads otherwise."""

from __future__ import annotations

from collections.abc import Iterator
from contextlib import ExitStack

import pytest

import headrace
from tests.clusters import hosts
from tests.clusters.environments import install, packages_of, remove
from tests.clusters.hosts import wait_until
from tests.clusters.standalone import TOKEN, Site
from tests.clusters.totals import Tables, expected
from tests.startup import spark_archive

pytest.importorskip("grpc")

# Not Spark's own port, 15002: a client that ignores the address would fail.
PORT = 15102
ROWS = 1000
_SERVER = "org.apache.spark.sql.connect.service.SparkConnectServer"
CLIENT = {"HEADRACE_CHECKPOINT_HOST": "driver"}


@pytest.fixture(scope="module")
def site(tmp_path_factory: pytest.TempPathFactory) -> Iterator[Site]:
    """Hosts for the store, the client and the server of Spark Connect."""
    missing = hosts.missing()
    if missing is not None:
        pytest.skip(missing)
    made = Site(tmp_path_factory.mktemp("site"))
    server = made.add("server")
    settings = ["spark.driver.memory=900m", "spark.sql.shuffle.partitions=2", f"spark.connect.grpc.binding.port={PORT}"]
    # New Python processes find the packages that are there now.
    settings.append("spark.python.worker.reuse=false")
    words = ["--master", "local[2]", *(word for each in settings for word in ("--conf", each)), "spark-internal"]
    server.start(
        [made.spark / "bin" / "spark-submit", "--class", _SERVER, *words],
        {"PYSPARK_PYTHON": str(made.python), "YT_TOKEN": TOKEN, "SPARK_SUBMIT_OPTS": spark_archive.options()},
    )
    wait_until(lambda: server.listens(PORT), "the server of Spark Connect listens")
    yield made
    made.close()


@pytest.fixture(scope="module")
def tables(site: Site) -> Iterator[Tables]:
    """The tables of the job, with rows."""
    created = Tables(site)
    created.append(ROWS)
    yield created
    created.close()


def run(site: Site, variables: dict[str, str]) -> str:
    """Run the client; return its error, or an empty text."""
    done = site.run_job("connect", {"server": f"sc://server:{PORT}"}, variables=variables, check=False)
    return done.stderr if done.returncode else ""


def test_a_job_runs_on_a_server_on_another_host(site: Site, tables: Tables) -> None:
    # The server's executors read the checkpoint from this client, so the client must know its own address.
    assert "set the environment variable HEADRACE_CHECKPOINT_HOST to a host name or address" in run(site, {})
    error = run(site, CLIENT)
    assert not error, error[-3000:] + site.network.hosts["server"].log()[-5000:]
    assert tables.read()[0] == expected(ROWS)


def test_a_server_with_another_version_is_refused_by_name(site: Site, tables: Tables) -> None:
    server = site.network.hosts["server"]
    packages = packages_of(server.own / "venv")
    tables.append(2)
    remove(packages, ExitStack())
    install(packages, "0.0.9")
    error = run(site, CLIENT)
    assert (
        f"received: headrace 0.0.9 on host server, Python {site.python}; valid: headrace {headrace.__version__}"
        in error
    )
