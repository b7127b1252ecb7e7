"""Expiration of nodes, with a clock of the test."""

from __future__ import annotations

import itertools
import time
from collections.abc import Iterator
from typing import Any

import pytest

from headrace_ytsaurus.endpoint.cluster import Cluster
from headrace_ytsaurus.endpoint.cypress import expiration
from headrace_ytsaurus.endpoint.cypress.expiration import remove_expired
from headrace_ytsaurus.wire.errors import YtError
from tests.ytsaurus.unit.ytsaurus_cluster import call, value_of

HOUR = 3600
_homes = itertools.count()


@pytest.fixture(scope="module")
def cluster(tmp_path_factory: pytest.TempPathFactory) -> Iterator[Cluster]:
    cluster = Cluster(tmp_path_factory.mktemp("cluster"))
    yield cluster
    cluster.close()


@pytest.fixture
def home(cluster: Cluster) -> str:
    path = f"//tmp/expiration-{next(_homes)}"
    call(cluster, "create", type="map_node", path=path)
    return path


class Clock:
    """A clock some seconds ahead of the real one."""

    def __init__(self) -> None:
        self.ahead = 0.0

    def now(self) -> int:
        return int((time.time() + self.ahead) * 1e6)


@pytest.fixture
def clock(monkeypatch: pytest.MonkeyPatch) -> Clock:
    clock = Clock()
    monkeypatch.setattr(expiration, "_now", clock.now)
    return clock


def make(cluster: Cluster, path: str, **attributes: Any) -> str:
    call(cluster, "create", type="document", path=path, attributes=attributes)
    return path


def left(cluster: Cluster, home: str) -> list[str]:
    """Remove the expired nodes, and return the others."""
    remove_expired(cluster.context(), cluster.uses)
    return list(call(cluster, "list", path=home, return_only_value=True).value)


def test_a_node_is_removed_at_its_expiration_time(cluster: Cluster, home: str, clock: Clock) -> None:
    make(cluster, f"{home}/number", expiration_time=int(time.time() + HOUR) * 1000)
    make(cluster, f"{home}/text", expiration_time="2030-01-31T12:00:00Z")
    assert value_of(cluster, f"{home}/text/@expiration_time") == "2030-01-31T12:00:00.000000Z"
    call(cluster, "set", "2001-01-31T00:00:00.5Z", path=f"{make(cluster, f'{home}/set')}/@expiration_time")
    assert left(cluster, home) == ["number", "text"]
    clock.ahead = HOUR + 1
    assert left(cluster, home) == ["text"]
    call(cluster, "remove", path=f"{home}/text/@expiration_time")
    clock.ahead = 1000 * 24 * HOUR * 10
    assert left(cluster, home) == ["text"]


def test_an_unused_node_is_removed_after_its_expiration_timeout(cluster: Cluster, home: str, clock: Clock) -> None:
    for name in ("used", "not"):
        call(
            cluster,
            "create",
            type="table",
            path=f"{home}/{name}/queue",
            recursive=True,
            attributes={"dynamic": True, "schema": [{"name": "data", "type": "string"}]},
        )
        call(cluster, "set", HOUR * 1000, path=f"{home}/{name}/@expiration_timeout")
    assert left(cluster, home) == ["not", "used"]
    clock.ahead = 0.6 * HOUR
    value_of(cluster, f"{home}/used/@type")
    assert left(cluster, home) == ["not", "used"]
    clock.ahead = 1.2 * HOUR
    assert left(cluster, home) == ["used"]
    assert f"{home}/not/queue" not in cluster.store.queues()
    clock.ahead = 1.7 * HOUR
    assert left(cluster, home) == []


def test_a_locked_expired_node_is_removed_after_the_lock(cluster: Cluster, home: str) -> None:
    path = make(cluster, f"{home}/locked")
    transaction = call(cluster, "start_transaction", timeout=60000).value["transaction_id"]
    call(cluster, "set", 1, path=f"{path}/@expiration_time", transaction_id=transaction)
    assert left(cluster, home) == ["locked"]
    call(cluster, "set", 1, path=f"{make(cluster, f'{home}/other')}/@expiration_timeout")
    call(cluster, "commit_transaction", transaction_id=transaction)
    transaction = call(cluster, "start_transaction", timeout=60000).value["transaction_id"]
    if call(cluster, "exists", path=path).value["value"]:
        call(cluster, "lock", path=path, mode="exclusive", transaction_id=transaction)
        assert "locked" in left(cluster, home)
    call(cluster, "abort_transaction", transaction_id=transaction)
    assert "locked" not in left(cluster, home)


def test_copies_and_moved_nodes_lose_expiration_unless_preserved(cluster: Cluster, home: str, clock: Clock) -> None:
    ends = {"expiration_time": int(time.time() + HOUR) * 1000, "expiration_timeout": HOUR * 1000}
    for name in ("a", "b"):
        make(cluster, f"{home}/{name}", **ends)
    kept = {f"preserve_{name}": True for name in ends}
    call(cluster, "copy", source_path=f"{home}/a", destination_path=f"{home}/copied")
    call(cluster, "copy", source_path=f"{home}/a", destination_path=f"{home}/copied-as-it-is", **kept)
    call(cluster, "move", source_path=f"{home}/a", destination_path=f"{home}/moved")
    call(cluster, "move", source_path=f"{home}/b", destination_path=f"{home}/moved-as-it-is", **kept)
    clock.ahead = 2 * HOUR
    assert left(cluster, home) == ["copied", "moved"]


@pytest.mark.parametrize(
    ("name", "value"),
    [
        ("expiration_time", "tomorrow"),
        ("expiration_time", -1),
        ("expiration_time", 1 << 60),
        ("expiration_time", True),
        ("expiration_timeout", "an hour"),
        ("expiration_timeout", -1),
        ("expiration_timeout", -1.5),
    ],
)
def test_invalid_expiration_times_are_refused(cluster: Cluster, home: str, name: str, value: Any) -> None:
    with pytest.raises(YtError, match=f'Error reading attribute "{name}"'):
        make(cluster, f"{home}/new", **{name: value})
    with pytest.raises(YtError, match=f'Error reading attribute "{name}"'):
        call(cluster, "set", value, path=f"{home}/@{name}")
    assert left(cluster, home) == []


def test_system_nodes_do_not_expire(cluster: Cluster) -> None:
    call(cluster, "set", 1, path="//home/@expiration_time")
    assert "home" in left(cluster, "/")
    call(cluster, "remove", path="//home/@expiration_time")
