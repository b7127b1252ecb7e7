"""The server of a tunnel fails: its standby has the slot and the records of the tunnel, and continues it."""

from __future__ import annotations

from collections.abc import Iterator
from typing import Any

import psycopg
import pytest

import headrace
from headrace.errors import StoreBusyError
from headrace.testing.queue_reading import wait_until
from headrace.testing.reading import only_channel, read_from
from tests.postgres_server import USER, PostgresServer, needs_version

STANDBY = "standby_1"
pytestmark = needs_version(17)


@pytest.fixture
def primary() -> Iterator[PostgresServer]:
    server = PostgresServer.start()
    yield server
    server.remove()


@pytest.fixture
def standby(primary: PostgresServer) -> Iterator[PostgresServer]:
    with connect(primary) as session:
        session.execute("SELECT pg_create_physical_replication_slot(%s, true)", [STANDBY])
        session.execute(f"ALTER SYSTEM SET synchronized_standby_slots = '{STANDBY}'")
        session.execute("SELECT pg_reload_conf()")
    server = PostgresServer.start_standby(primary, STANDBY, sync_replication_slots="on")
    yield server
    server.remove()


def url_of(server: PostgresServer) -> str:
    return f"postgresql://{USER}@127.0.0.1:{server.port}/postgres"


def connect(server: PostgresServer) -> psycopg.Connection[Any]:
    return psycopg.connect(url_of(server), autocommit=True)


def test_a_promoted_standby_continues_a_tunnel_with_a_failover_slot(
    primary: PostgresServer, standby: PostgresServer
) -> None:
    with connect(primary) as before, connect(standby) as after, headrace.open(url_of(primary)) as store:
        before.execute("CREATE TABLE orders (id bigint PRIMARY KEY)")
        tunnel = store.create_tunnel("orders", "shop", kind="Stream", failover=True)
        channel = only_channel(tunnel)
        start = tunnel.channels()[0].committed
        before.execute("INSERT INTO orders SELECT generate_series(1, 10)")
        read, position = read_from(tunnel, channel, start)
        tunnel.commit({channel: position})

        def has_slot() -> bool:
            # A standby has the slot, which is temporary there before, after the slot has followed the log of others
            # over a list of the running transactions.
            before.execute("SELECT pg_logical_emit_message(false, 'other', repeat('x', 2 << 20))")
            before.execute("SELECT pg_log_standby_snapshot()")
            tunnel.backlog(channel, position)
            found = after.execute("SELECT FROM pg_replication_slots WHERE synced AND NOT temporary").fetchone()
            return found is not None

        wait_until(has_slot)
        before.execute("INSERT INTO orders SELECT generate_series(11, 20)")
        written = before.execute("SELECT pg_current_wal_flush_lsn()").fetchone()
        wait_until(lambda: after.execute("SELECT pg_last_wal_replay_lsn() >= %s", written).fetchone() == (True,))
    primary.stop(immediately=True)
    with connect(standby) as after, headrace.open(url_of(standby)) as store:
        after.execute("SELECT pg_promote()")
        after.execute("INSERT INTO orders SELECT generate_series(21, 30)")
        tunnel = store.tunnel("shop")
        assert tunnel.channels()[0].committed == position
        # The setting of the primary is also that of its copy, which would wait for itself.
        with pytest.raises(StoreBusyError, match=f"synchronized_standby_slots with {STANDBY}"):
            read_from(tunnel, channel, position)
        after.execute("ALTER SYSTEM RESET synchronized_standby_slots")
        after.execute("SELECT pg_reload_conf()")
        wait_until(lambda: after.execute("SHOW synchronized_standby_slots").fetchone() == ("",))
        more, position = read_from(tunnel, channel, position)
        assert [change.key for change in read + more] == [(number,) for number in range(1, 31)]
        tunnel.commit({channel: position})
