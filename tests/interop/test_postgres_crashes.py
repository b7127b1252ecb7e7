"""Kills of readers of base data, and crashes of the server: reading continues where it was, and is exact."""

from __future__ import annotations

import os
import signal
from collections.abc import Callable, Iterator, Sequence
from typing import Any

import psycopg
import pytest

import headrace
from headrace.errors import DataLossError, HeadraceError
from headrace.model.tables.conditions import KeyRange
from headrace.model.tunnels.values import ChannelKind
from headrace.ports import Tunnel
from headrace.stores.postgres.tunnels import stored_tunnels
from headrace.stores.postgres.tunnels.base_data import ChunkRows
from headrace.stores.postgres.tunnels.followed import OneTable
from headrace.support import failpoints
from headrace.testing.processes import CONTEXT
from headrace.testing.reading import drain, read_from, replay, state_of
from tests.conformance import serving
from tests.postgres_server import USER, PostgresServer

ROWS, CHUNKS = 4000, 8
# The last transaction of the first chunk, the rows of the second one, and their spool.
KILLS = ["chunk:3", *(f"{point}:{times}" for point in ("uncommitted", "committed") for times in (13, 19, 21))]


@pytest.fixture(autouse=True)
def base_data_is_read_later(monkeypatch: pytest.MonkeyPatch) -> None:
    """Let the first reader read the base data, as that of large tables."""
    monkeypatch.setattr(stored_tunnels, "SMALL_TABLE_ROWS", 0)


@pytest.fixture
def read_ranges(monkeypatch: pytest.MonkeyPatch) -> list[KeyRange]:
    """The key ranges that this process has read from tables as base data."""
    found: list[KeyRange] = []
    snapshots = OneTable.snapshots

    def noting(self: OneTable, parts: Sequence[tuple[int, KeyRange]]) -> list[ChunkRows]:
        found.extend(keys for _, keys in parts)
        return snapshots(self, parts)

    monkeypatch.setattr(OneTable, "snapshots", noting)
    return found


def create(url: str, session: psycopg.Connection[Any]) -> None:
    session.execute("CREATE TABLE orders (id bigint PRIMARY KEY, price bigint)")
    session.execute("INSERT INTO orders SELECT n, n FROM generate_series(1, %s) n", [ROWS])
    with headrace.open(url) as store:
        store.create_tunnel("orders", "changes", base_channels=CHUNKS)


def read_base_data(url: str, kill: str) -> None:
    """Read the chunks in order, until a failpoint, or the end of the given number of chunks, kills this process."""
    point, _, times = kill.partition(":")
    with headrace.open(url) as store:
        tunnel = store.tunnel("changes")
        chunks = [channel for channel in tunnel.channels() if channel.kind is ChannelKind.BASE_DATA]
        failpoints.arm(None if point == "chunk" else kill)
        for number, channel in enumerate(chunks):
            if point == "chunk" and number == int(times):
                os.kill(os.getpid(), signal.SIGKILL)
            read_from(tunnel, channel.id, channel.committed, page_rows=100)


@pytest.mark.parametrize("kill", KILLS)
def test_base_data_whose_reader_was_killed_continues_with_the_chunk_that_it_was_reading(
    read_ranges: list[KeyRange], kill: str
) -> None:
    url = serving.postgres_database()
    with psycopg.connect(url, autocommit=True) as session:
        create(url, session)
        reader = CONTEXT.Process(target=read_base_data, args=(url, kill))
        reader.start()
        reader.join(60)
        assert reader.exitcode == -signal.SIGKILL
        spooled = session.execute(
            "SELECT channel, snapshot, time, rows FROM headrace.chunk ORDER BY channel"
        ).fetchall()
        assert 0 < len(spooled) < CHUNKS
        session.execute("UPDATE orders SET price = -price WHERE id % 3 = 0")
        session.execute("DELETE FROM orders WHERE id % 7 = 0")
        with headrace.open(url) as store:
            tunnel = store.tunnel("changes")
            assert replay(drain(tunnel, page_rows=100)) == state_of(store.table("orders"))
            assert len(read_ranges) == CHUNKS - len(spooled)
            kept = "SELECT channel, snapshot, time, rows FROM headrace.chunk WHERE channel = ANY(%s) ORDER BY channel"
            assert session.execute(kept, [[channel for channel, *_ in spooled]]).fetchall() == spooled
            store.drop_tunnel("changes")


# -- crashes of the server ------------------------------------------------------------------------------------


@pytest.fixture
def server() -> Iterator[PostgresServer]:
    """A server for one test, which may crash it."""
    started = PostgresServer.start()
    try:
        yield started
    finally:
        started.remove()


@pytest.fixture
def url(server: PostgresServer) -> str:
    return f"postgresql://{USER}@127.0.0.1:{server.port}/postgres"


def crash(server: PostgresServer) -> None:
    """Stop the server at once, and start it again: its sessions end, and its tables recover from the log."""
    server.stop(immediately=True)
    server.run()


def read_with_crashes(tunnel: Tunnel, monkeypatch: pytest.MonkeyPatch, crash: Callable[[], None]) -> list[Any]:
    """Read a tunnel to its end like `drain`, with a crash of the server before each second page."""
    pages = 0
    read = tunnel.read

    def reading(*arguments: Any) -> Any:
        nonlocal pages
        pages += 1
        if pages % 2 == 0 and pages <= 8:
            crash()
        return read(*arguments)

    monkeypatch.setattr(tunnel, "read", reading)
    found = drain(tunnel, page_rows=ROWS // CHUNKS)
    assert pages >= 8
    return found


def test_base_data_and_stream_continue_by_themselves_after_crashes_of_the_server(
    server: PostgresServer, url: str, read_ranges: list[KeyRange], monkeypatch: pytest.MonkeyPatch
) -> None:
    with psycopg.connect(url, autocommit=True) as session:
        create(url, session)
        session.execute("UPDATE orders SET price = -price WHERE id <= 2000")
        session.execute("DELETE FROM orders WHERE id % 7 = 0")
    with headrace.open(url) as store:
        changes = read_with_crashes(store.tunnel("changes"), monkeypatch, lambda: crash(server))
        assert replay(changes) == state_of(store.table("orders"))
        assert len(read_ranges) == CHUNKS
    with headrace.open(url) as store:
        store.table("orders").put({"id": 1, "price": 5})
        assert [change.row for change in drain(store.tunnel("changes"))] == [{"id": 1, "price": 5}]


def test_a_server_that_does_not_come_back_is_an_error_and_the_reader_continues_later(
    server: PostgresServer, url: str
) -> None:
    with psycopg.connect(url, autocommit=True) as session:
        create(url, session)
    with headrace.open(url, retry_seconds=0.2) as store:
        tunnel = store.tunnel("changes")
        channels = tunnel.channels()
        read_from(tunnel, channels[0].id, channels[0].committed)
        server.stop(immediately=True)
        with pytest.raises(HeadraceError, match="connection to postgresql://"):
            read_from(tunnel, channels[1].id, channels[1].committed)
        server.run()
        assert replay(drain(tunnel)) == state_of(store.table("orders"))


def test_values_by_using_are_noticed_after_a_crash_of_the_server(server: PostgresServer, url: str) -> None:
    with headrace.open(url) as store:
        with psycopg.connect(url, autocommit=True) as session:
            session.execute("CREATE TABLE t (id int PRIMARY KEY); INSERT INTO t VALUES (1)")
            session.execute("ALTER TABLE t ADD c int DEFAULT 5; ALTER TABLE t ALTER c DROP DEFAULT")
            tunnel = store.create_tunnel("t", "changes")
            assert [change.row for change in drain(tunnel)] == [{"id": 1, "c": 5}]
            session.execute("ALTER TABLE t ALTER c TYPE int USING c * 10")
        crash(server)
        with pytest.raises(DataLossError, match="column 'c' was rewritten"):
            drain(tunnel)
        store.drop_tunnel("changes")


def test_partitions_are_the_same_after_a_crash_of_the_server(server: PostgresServer, url: str) -> None:
    def execute(statement: str) -> None:
        with psycopg.connect(url) as session:
            session.execute(statement.encode())

    execute("CREATE TABLE parted (id int PRIMARY KEY, n int) PARTITION BY RANGE (id)")
    execute("CREATE TABLE low PARTITION OF parted FOR VALUES FROM (0) TO (10); INSERT INTO parted VALUES (1, 1)")
    with headrace.open(url) as store:
        tunnel, parted = store.create_tunnel("parted", "changes"), store.table("parted")
        state = replay(drain(tunnel))
        execute("CREATE TABLE new PARTITION OF parted FOR VALUES FROM (10) TO (20)")
        execute("CREATE TABLE had (LIKE parted INCLUDING ALL)")
        execute("ALTER TABLE parted ATTACH PARTITION had FOR VALUES FROM (20) TO (30)")
        execute("INSERT INTO parted VALUES (20, 20)")
        crash(server)
        execute("INSERT INTO parted VALUES (2, 2), (11, 11), (21, 21)")
        state = replay(drain(tunnel), state)
        assert state == state_of(parted)
        execute("ALTER TABLE parted ADD m int")
        crash(server)
        execute("DELETE FROM parted WHERE id = 1")
        assert len(drain(tunnel)) == 1
        # The catalog no longer shows the order within the transaction.
        execute(
            "CREATE TABLE filled (LIKE parted INCLUDING ALL); INSERT INTO filled VALUES (31, 31);"
            "ALTER TABLE parted ATTACH PARTITION filled FOR VALUES FROM (30) TO (40)"
        )
        crash(server)
        with pytest.raises(DataLossError, match=r"partition public\.filled was attached with rows"):
            drain(tunnel)
        store.drop_tunnel("changes")
