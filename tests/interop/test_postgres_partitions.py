"""Partitions of a followed table that come, go or change: what the log lacks is an error until it is accepted."""

from __future__ import annotations

from collections.abc import Iterator
from typing import Any

import psycopg
import pytest

import headrace
from headrace.batches.feeds.channel_reading import read_channel
from headrace.batches.feeds.tunnel_feed import TunnelFeed
from headrace.errors import DataLossError, UnsupportedError
from headrace.model.tables.changes import ChangeOp
from headrace.model.tunnels.records import INITIAL_BATCH
from headrace.ports import Store, Tunnel
from headrace.testing.reading import Change, drain, replay, state_of, unpack
from tests.conformance import serving

Server = psycopg.Connection[Any]


@pytest.fixture
def server(request: pytest.FixtureRequest) -> Iterator[Server]:
    url = serving.postgres_database(f"p{abs(hash(request.node.nodeid)):x}")
    with psycopg.connect(url, user="postgres", autocommit=True) as connection:
        connection.execute("CREATE TABLE p (id int PRIMARY KEY, n int) PARTITION BY RANGE (id)")
        for low in (0, 10, 20):
            connection.execute(f"CREATE TABLE p{low} PARTITION OF p FOR VALUES FROM ({low}) TO ({low + 10})")
        connection.execute("INSERT INTO p VALUES (1, 1), (11, 1), (21, 1)")
        connection.execute(f"COMMENT ON TABLE p IS '{url}'")
        yield connection


@pytest.fixture
def store(server: Server) -> Iterator[Store]:
    ((url,),) = server.execute("SELECT obj_description('p'::regclass)").fetchall()
    with headrace.open(url) as opened:
        yield opened
        for tunnel in opened.tunnels():
            opened.drop_tunnel(tunnel.id)


def accepted(tunnel: Tunnel) -> list[Change]:
    """Read a batch with failOnDataLoss=false."""
    feed = TunnelFeed(tunnel)
    batch, found = INITIAL_BATCH, list[Change]()
    while (following := feed.latest(batch)) != batch:
        for task in feed.tasks(batch, following):
            for changes in read_channel(tunnel, task.batch, task.plan, fail_on_data_loss=False):
                found += unpack(changes, tunnel.table.schema.primary_key)
        batch = following
    feed.commit(batch)
    return found


_MADE = "CREATE TABLE p30 (LIKE p INCLUDING ALL); INSERT INTO p30 VALUES (31, 1)"
_ATTACH = "ALTER TABLE p ATTACH PARTITION p30 FOR VALUES FROM (30) TO (40)"
_LOST = {
    "attached with rows": ([_MADE, _ATTACH], "p30 was attached with rows"),
    "made with rows and attached in one transaction": ([f"BEGIN; {_MADE}; {_ATTACH}; COMMIT"], "p30 was attached with"),
    "detached": (["ALTER TABLE p DETACH PARTITION p10"], "p10 was detached or dropped"),
    "dropped": (["DROP TABLE p10"], "p10 was detached or dropped"),
    "truncated": (["TRUNCATE p10"], "p10 was truncated"),
    "truncated and filled": (["TRUNCATE p10", "INSERT INTO p VALUES (12, 1)", "ANALYZE"], "p10 was truncated"),
    "detached for a time": (
        [
            "ALTER TABLE p DETACH PARTITION p10",
            "UPDATE p10 SET n = 7",
            "ALTER TABLE p ATTACH PARTITION p10 FOR VALUES FROM (10) TO (20)",
        ],
        "p10 was detached and attached again",
    ),
    "unlogged for a time": (
        ["ALTER TABLE p10 SET UNLOGGED", "INSERT INTO p VALUES (12, 1)", "ALTER TABLE p10 SET LOGGED"],
        "p10 was",
    ),
}


@pytest.mark.parametrize("case", _LOST)
def test_rows_that_the_log_lacks_are_an_error_until_they_are_accepted(store: Store, server: Server, case: str) -> None:
    tunnel = store.create_tunnel("p", "changes")
    before = drain(tunnel)
    statements, problem = _LOST[case]
    for statement in statements:
        server.execute(statement)
    server.execute("INSERT INTO p VALUES (2, 2)")
    for _ in range(2):
        with pytest.raises(DataLossError, match=problem):
            drain(tunnel)
    assert any(problem in warning for warning in tunnel.describe().warnings)
    with headrace.open(store.url) as other, pytest.raises(DataLossError, match=problem):
        drain(other.tunnel("changes"))
    after = accepted(tunnel)
    assert replay(before + after)[2,] == {"id": 2, "n": 2}
    server.execute("INSERT INTO p VALUES (3, 3)")
    assert [change.key for change in drain(tunnel)] == [(3,)]
    assert tunnel.describe().warnings == ()


_RIGHT = {
    "an empty partition": ["CREATE TABLE p30 PARTITION OF p FOR VALUES FROM (30) TO (40)"],
    "partitions of a partition": [
        "CREATE TABLE p30 PARTITION OF p FOR VALUES FROM (30) TO (40) PARTITION BY RANGE (n)",
        "ALTER TABLE p30 REPLICA IDENTITY DEFAULT",
        "CREATE TABLE p30n PARTITION OF p30 DEFAULT",
    ],
    "a partition that is filled in the same transaction": [
        "BEGIN; CREATE TABLE p30 PARTITION OF p FOR VALUES FROM (30) TO (40); INSERT INTO p VALUES (30, 1); COMMIT"
    ],
    "an empty table that is attached": [
        "CREATE TABLE p30 (LIKE p INCLUDING ALL)",
        _ATTACH,
        "INSERT INTO p VALUES (32, 1)",
    ],
    "VACUUM FULL": ["VACUUM FULL p"],
    "CLUSTER": ["CLUSTER p10 USING p10_pkey", "ANALYZE p"],
    "a wider type": ["ALTER TABLE p ALTER n TYPE bigint", "UPDATE p SET n = 5000000000"],
    "a renamed partition": ["ALTER TABLE p10 RENAME TO other"],
    "a partition for a time": [
        "CREATE TABLE p30 PARTITION OF p FOR VALUES FROM (30) TO (40)",
        "INSERT INTO p VALUES (33, 1)",
        "DELETE FROM p WHERE id = 33",
    ],
}


@pytest.mark.parametrize("case", _RIGHT)
def test_partitions_that_change_with_the_log_are_followed(store: Store, server: Server, case: str) -> None:
    if case.startswith("partitions of"):
        server.execute("DROP TABLE p; CREATE TABLE p (id int, n int, PRIMARY KEY (id, n)) PARTITION BY RANGE (id)")
    tunnel = store.create_tunnel("p", "changes")
    changes = drain(tunnel)
    for statement in _RIGHT[case]:
        server.execute(statement)
    if "p30" in str(_RIGHT[case]):
        server.execute("INSERT INTO p VALUES (31, 5)")
    changes += drain(tunnel)
    assert replay(changes) == state_of(store.table("p"))
    assert tunnel.describe().warnings == ()


def test_partitions_with_defaults_of_their_own_do_not_give_older_rows_a_value(store: Store, server: Server) -> None:
    tunnel = store.create_tunnel("p", "changes")
    drain(tunnel)
    server.execute("INSERT INTO p VALUES (3, 1)")
    server.execute("CREATE TABLE p30 (LIKE p INCLUDING ALL); ALTER TABLE p30 ADD c int DEFAULT 1")
    server.execute("ALTER TABLE p ADD c int DEFAULT 5")
    server.execute(_ATTACH)
    with pytest.raises(DataLossError, match=r"column 'c' is newer, and rows before it have values"):
        drain(tunnel)


def test_values_that_a_rewrite_of_partitions_has_given_to_unread_rows_are_an_error(
    store: Store, server: Server
) -> None:
    tunnel = store.create_tunnel("p", "changes")
    drain(tunnel)
    server.execute("INSERT INTO p VALUES (2, 2)")
    server.execute("ALTER TABLE p ADD r float8 DEFAULT random()")
    # A rewrite for a type leaves no old row, too.
    server.execute("ALTER TABLE p ALTER n TYPE bigint")
    with pytest.raises(DataLossError, match="column 'r' is newer"):
        drain(tunnel)


def test_a_partition_that_becomes_unlogged_is_refused_until_it_is_logged(store: Store, server: Server) -> None:
    tunnel = store.create_tunnel("p", "changes")
    drain(tunnel)
    server.execute("ALTER TABLE p10 SET UNLOGGED")
    with pytest.raises(UnsupportedError, match=r"public\.p10 of table public\.p is unlogged"):
        drain(tunnel)
    assert any("p10" in warning for warning in tunnel.describe().warnings)
    server.execute("ALTER TABLE public.p10 SET LOGGED")
    with pytest.raises(DataLossError, match="p10 was unlogged"):
        drain(tunnel)
    assert accepted(tunnel) == []


def test_pre_images_reach_the_partitions_and_a_new_one_is_noticed(store: Store, server: Server) -> None:
    table = store.table("p")
    assert table.set_options(pre_images=True).pre_images
    tunnel = store.create_tunnel("p", "changes", "Stream")
    server.execute("UPDATE p SET n = 2 WHERE id = 11")
    assert [change.op for change in drain(tunnel)] == [ChangeOp.PREIMAGE, ChangeOp.REPLACE]
    server.execute("CREATE TABLE p30 PARTITION OF p FOR VALUES FROM (30) TO (40)")
    assert not table.describe().options.pre_images
    (warning,) = tunnel.describe().warnings
    assert "partition public.p30 have no old rows" in warning
    assert table.set_options(pre_images=True).pre_images
    server.execute("INSERT INTO p VALUES (31, 1)")
    server.execute("UPDATE p SET n = 2 WHERE id = 31")
    assert [change.op for change in drain(tunnel)][-2:] == [ChangeOp.PREIMAGE, ChangeOp.REPLACE]
    assert not table.set_options(pre_images=False).pre_images
    server.execute("DELETE FROM p WHERE id = 1")
    assert [change.op for change in drain(tunnel)] == [ChangeOp.DELETE]
