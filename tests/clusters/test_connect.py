"""Spark Connect with its server on another host: what the client and the server need, and how it reads otherwise."""

from __future__ import annotations

from collections.abc import Iterator
from contextlib import ExitStack

import pytest

import headrace
from tests.clusters import hosts
from tests.clusters.environments import packages_of, replace
from tests.clusters.event_log import EventLog
from tests.clusters.hosts import wait_until
from tests.clusters.standalone import TOKEN, Site
from tests.clusters.totals import Tables, expected
from tests.startup import spark_archive

pytest.importorskip("grpc")

# Not Spark's own port, 15002: a client that ignores the address would fail.
PORT = 15102
ROWS = 1000
_SERVER = "org.apache.spark.sql.connect.service.SparkConnectServer"
# Prints all pages of the server to which its pages link.
_READ_PAGES = """
import html, re, urllib.request
found, unread = {}, ["/"]
while unread:
    path = unread.pop()
    if path not in found and "/kill/" not in path and "sort=" not in path:
        with urllib.request.urlopen("http://localhost:4040" + path, timeout=30) as page:
            found[path] = html.unescape(page.read().decode())
        links = re.findall('href="(/[^"#]*)', found[path])
        unread += [link for link in links if not link.startswith("/static/")]
print("".join(found.values()))
"""
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
    settings += [f"{name}={value}" for name, value in EventLog(server).settings.items()]
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


def run(site: Site, variables: dict[str, str], **given: str) -> str:
    """Run the client; return its error, or an empty text."""
    done = site.run_job("connect", {"server": f"sc://server:{PORT}", **given}, variables=variables, check=False)
    return done.stderr if done.returncode else ""


def test_a_job_runs_on_a_server_on_another_host(site: Site, tables: Tables) -> None:
    # The server's executors read the checkpoint from this client, so the client must know its own address.
    assert "set the environment variable HEADRACE_CHECKPOINT_HOST to a host name or address" in run(site, {})
    error = run(site, CLIENT)
    assert not error, error[-3000:] + site.network.hosts["server"].log()[-5000:]
    assert tables.read()[0] == expected(tables.rows)


def test_pages_and_event_logs_show_no_token_of_options_or_of_sql(site: Site, tables: Tables) -> None:
    server = site.network.hosts["server"]
    error = run(site, CLIENT, token=TOKEN)
    assert not error, error[-3000:] + server.log()[-5000:]
    shown = server.run([site.python, "-I", "-c", _READ_PAGES], check=True).stdout
    events = [path.read_text(errors="replace") for path in EventLog(server).directory.rglob("*") if path.is_file()]
    for text in (shown, "".join(events)):
        # Spark does show the requests.
        assert "CREATE TEMPORARY VIEW totals USING headrace" in text
        assert "redacted" in text
        assert TOKEN not in text


def test_a_server_with_another_version_is_refused_by_name(site: Site, tables: Tables) -> None:
    server = site.network.hosts["server"]
    tables.append(2)
    with ExitStack() as undo:
        replace(packages_of(server.own / "venv"), "0.0.9", undo)
        error = run(site, CLIENT)
    assert (
        f"received: headrace 0.0.9 on host server, Python {site.python}; valid: headrace {headrace.__version__}"
        in error
    )
