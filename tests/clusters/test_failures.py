"""What fails on executors of other machines, and how it reads: each error names the host, the cause and the remedy.

`docs/deployment.md` shows these messages.
"""

from __future__ import annotations

import json
import shutil
import uuid
from collections.abc import Callable, Iterator
from contextlib import ExitStack, contextmanager
from pathlib import Path
from typing import Any

import pytest

import headrace
from headrace.stores.embedded.store import EmbeddedStore
from tests.clusters.environments import interpreter, move_away, packages_of, remove, replace
from tests.clusters.hosts import Host
from tests.clusters.standalone import WORKERS, Cluster

OTHER_STORE = "the address of the store leads to another store on the host of this task than on that of the driver"
Attempt = Callable[..., dict[str, Any]]


@pytest.fixture(scope="module")
def attempt(cluster: Cluster) -> Iterator[Attempt]:
    """Let the one driver of the file read or write, and return its result or error."""
    # Each task gets a new Python process, which finds the packages that are there now.
    conf = {"spark.task.maxFailures": 1, "spark.python.worker.reuse": "false"}
    driver = cluster.talk_to_job("attempts", {}, conf=conf)
    assert driver.stdin is not None
    assert driver.stdout is not None
    assert driver.stdout.readline() == "ready\n", cluster.driver.log("driver-log")[-4000:]

    def make(kind: str, **arguments: Any) -> dict[str, Any]:
        assert driver.stdin is not None
        assert driver.stdout is not None
        driver.stdin.write(json.dumps({"kind": kind, **arguments}) + "\n")
        driver.stdin.flush()
        answer: dict[str, Any] = json.loads(driver.stdout.readline())
        return answer

    yield make
    driver.stdin.close()
    driver.wait(60)
    driver.stdout.close()


@pytest.fixture(scope="module")
def served(cluster: Cluster, attempt: Attempt) -> str:
    """A store that all hosts reach, with the tables of the attempts."""
    assert attempt("create", store=cluster.store_url) == {"result": 20}
    return cluster.store_url


def attempts(store: str) -> list[dict[str, Any]]:
    """Return one attempt of each path on which work reaches executors."""
    return [
        {"kind": "read", "store": store, "table": "queue"},
        {"kind": "write", "store": store},
        {"kind": "follow", "store": store, "checkpoint": f"headrace:///checkpoints/{uuid.uuid4()}"},
        *attempts_of_each_direction(store),
    ]


def attempts_of_each_direction(store: str) -> list[dict[str, Any]]:
    """Return one attempt to read, and one to write."""
    return [
        {"kind": "read", "store": store, "table": "source"},
        {"kind": "stream", "store": store, "checkpoint": f"headrace:///checkpoints/{uuid.uuid4()}"},
    ]


@contextmanager
def on_workers(cluster: Cluster, change: Callable[[Host, Path, ExitStack], None]) -> Iterator[None]:
    """Change the workers' environments for a while; the stack undoes it."""
    with ExitStack() as undo:
        for name in WORKERS:
            host = cluster.network.hosts[name]
            change(host, packages_of(host.own / "venv"), undo)
        yield


def error_of(answer: dict[str, Any]) -> str:
    """Return the error of an attempt, which must have failed."""
    assert "error" in answer, answer
    return str(answer["error"])


def test_executors_without_headrace_are_refused_by_name(cluster: Cluster, attempt: Attempt, served: str) -> None:
    with on_workers(cluster, lambda host, packages, undo: remove(packages, undo)):
        for each in attempts(served):
            error = error_of(attempt(**each))
            assert "headrace is not installed in a Python process of Spark; received: host worker-" in error
            assert f"install headrace {headrace.__version__} where" in error


def test_executors_with_another_version_are_refused_by_name(cluster: Cluster, attempt: Attempt, served: str) -> None:
    with on_workers(cluster, lambda host, packages, undo: replace(packages, "0.0.9", undo)):
        for each in attempts(served):
            error = error_of(attempt(**each))
            assert "received: headrace 0.0.9 on host worker-" in error
            assert f"valid: headrace {headrace.__version__};" in error


def test_executors_without_the_packages_of_the_store_name_the_extra(
    cluster: Cluster, attempt: Attempt, served: str
) -> None:
    with on_workers(cluster, lambda host, packages, undo: move_away(packages / "yt", undo)):
        for each in attempts(served):
            error = error_of(attempt(**each))
            assert "MissingDependencyError: packages for a YTsaurus cluster are not installed" in error
            assert "received: no module yt; pip install 'headrace[yt]'" in error
            assert "In a task on host worker-" in error


def test_executors_without_the_interpreter_name_its_path(cluster: Cluster, attempt: Attempt, served: str) -> None:
    def take(host: Host, packages: Path, undo: ExitStack) -> None:
        move_away(interpreter(host.own), undo)
        # The process that forks the tasks' processes.
        host.run(["sh", "-c", "kill $(pgrep -f '[p]yspark.daemon') || true"])

    with on_workers(cluster, take):
        for each in attempts(served):
            error = error_of(attempt(**each))
            assert f'Cannot run program "{cluster.python}": error=2, No such file or directory' in error
    assert attempt("read", store=served, table="source") == {"result": 20}


# The client of YTsaurus repeats requests for two minutes.
@pytest.mark.storm
def test_executors_that_cannot_reach_the_store_name_the_host(cluster: Cluster, attempt: Attempt, served: str) -> None:
    def cut(host: Host, packages: Path, undo: ExitStack) -> None:
        host.run(["ip", "route", "add", "prohibit", cluster.store.address])
        undo.callback(lambda: host.run(["ip", "route", "delete", "prohibit", cluster.store.address]))

    with on_workers(cluster, cut):
        for each in attempts_of_each_direction(served):
            error = error_of(attempt(**each))
            assert "YtBusyError: ask for the cluster's name: ConnectionError: " in error
            assert "; check the address of the proxy, and that it runs" in error
            assert "In a task on host worker-" in error
    assert attempt("read", store=served, table="source") == {"result": 20}


def test_another_directory_at_the_path_of_an_embedded_store_is_never_read_or_written(
    cluster: Cluster, attempt: Attempt
) -> None:
    store = str(cluster.driver.home / "shop")
    assert attempt("create", store=store) == {"result": 20}
    hosts = [cluster.network.hosts[name] for name in WORKERS]

    # No store at the path: none is created.
    for each in attempts(store):
        error = error_of(attempt(**each))
        assert "the store of the driver is not on the host of this task; received: /" in error
        assert "serve it with `headrace serve`" in error
        assert "In a task on host worker-" in error
    assert not [host.name for host in hosts if (host.own / "shop").exists()]

    # Another store with tables of the same names, and then a copy of the driver's, which has the same id.
    for host in hosts:
        create_other(host.own / "shop")
    for each in attempts(store):
        assert OTHER_STORE in error_of(attempt(**each))
    assert all(content(host.own / "shop") == ([], [], [(0,)]) for host in hosts)
    for host in hosts:
        shutil.rmtree(host.own / "shop")
        shutil.copytree(cluster.driver.own / "shop", host.own / "shop")
    copied = [content(host.own / "shop") for host in hosts]
    for each in attempts(store):
        error = error_of(attempt(**each))
        assert OTHER_STORE in error
        assert "In a task on host worker-" in error
    assert [content(host.own / "shop") for host in hosts] == copied


def create_other(directory: Path) -> None:
    with headrace.open(directory, create=True) as store:
        for name in ("source", "sink"):
            store.create_table(name, {"id": "long", "n": "long"}, "id")


def content(directory: Path) -> tuple[list[Any], list[Any], list[Any]]:
    """Return the rows of both tables, and the number of staged parts."""
    with headrace.open(directory) as store:
        assert isinstance(store, EmbeddedStore)
        rows = [store.table(name).scan().read_all().to_pylist() for name in ("source", "sink")]
        return rows[0], rows[1], store.database.query("SELECT count(*) FROM stage")
