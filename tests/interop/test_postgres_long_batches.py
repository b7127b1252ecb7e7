"""Batches of a PostgreSQL tunnel that are longer than a window: what they cost the server, and lost connections."""

from __future__ import annotations

from collections.abc import Iterator
from typing import Any

import psycopg
import pytest

import headrace
from headrace.ports import Store, Tunnel
from headrace.stores.postgres.tunnels import log, slot_reads
from headrace.testing.reading import only_channel, read_from, unpack
from tests.conformance import serving

WINDOW = 256 << 10
WINDOWS = 16
ROWS = 200


@pytest.fixture
def url(request: pytest.FixtureRequest) -> str:
    return serving.postgres_database(f"l{abs(hash(request.node.nodeid)):x}")


@pytest.fixture
def server(url: str) -> Iterator[psycopg.Connection[Any]]:
    with psycopg.connect(url, user="postgres", autocommit=True) as connection:
        yield connection


@pytest.fixture
def store(url: str, server: psycopg.Connection[Any], monkeypatch: pytest.MonkeyPatch) -> Iterator[Store]:
    monkeypatch.setattr(log, "WINDOW_BYTES", WINDOW)
    # Results in files, too.
    monkeypatch.setattr(slot_reads, "MEMORY_BYTES", 2 * WINDOW)
    server.execute("CREATE TABLE orders (id bigint PRIMARY KEY, note text)")
    with headrace.open(url) as opened:
        yield opened
        for tunnel in opened.tunnels():
            opened.drop_tunnel(tunnel.id)


def fill(server: psycopg.Connection[Any], tunnel: Tunnel) -> int:
    """Commit transactions of many windows; return their number of rows."""
    start = tunnel.channels()[0].committed.token
    rows = 0
    while server.execute("SELECT pg_current_wal_lsn() - %s::pg_lsn", (start,)).fetchone() < (WINDOWS * WINDOW,):  # type: ignore[operator]
        server.execute(
            "INSERT INTO orders SELECT n, repeat('x', 200) FROM generate_series(%s::int, %s) n", (rows, rows + ROWS - 1)
        )
        rows += ROWS
    return rows


def decoded_bytes(server: psycopg.Connection[Any], tunnel: Tunnel) -> int:
    """Return the bytes of changes that the server has decoded for a tunnel so far."""
    found = server.execute(
        "SELECT total_bytes FROM pg_stat_replication_slots WHERE slot_name = %s", (f"headrace_{tunnel.id}",)
    ).fetchone()
    return int(found[0]) if found else 0


def test_a_batch_of_many_windows_costs_the_server_a_small_multiple_of_its_log(
    store: Store, server: psycopg.Connection[Any]
) -> None:
    tunnel = store.create_tunnel("orders", "changes", "Stream")
    channel, start = only_channel(tunnel), tunnel.channels()[0].committed
    rows = fill(server, tunnel)
    server.execute(
        "SELECT count(*) FROM pg_logical_slot_peek_binary_changes(%s, NULL, NULL, 'proto_version', '1',"
        " 'publication_names', %s)",
        (f"headrace_{tunnel.id}", f"headrace_{tunnel.id}"),
    )
    once = decoded_bytes(server, tunnel)
    assert once > WINDOWS * WINDOW / 4
    tunnel.backlog(channel, start)
    small = decoded_bytes(server, tunnel) - once
    assert small < once / 2, "a plan looks at two windows"
    changes, end = read_from(tunnel, channel, start, page_rows=1000)
    assert [change.key for change in changes] == [(number,) for number in range(rows)]
    # At most three times the log, and once more to see that nothing follows; 8.5 times if each window were a read.
    assert decoded_bytes(server, tunnel) - once - small < 4.5 * once
    # The batch is the same when it is read again, by another process in windows of another size.
    with headrace.open(store.url) as other:
        log.WINDOW_BYTES *= 3
        again, _ = read_from(other.tunnel("changes"), channel, start, until=end, page_rows=777)
    assert again == changes


def test_a_batch_with_a_limit_costs_the_server_its_own_rows_and_not_those_after_them(
    store: Store, server: psycopg.Connection[Any]
) -> None:
    tunnel = store.create_tunnel("orders", "changes", "Stream")
    channel, start = only_channel(tunnel), tunnel.channels()[0].committed
    rows = fill(server, tunnel)
    wanted = rows // WINDOWS
    page = tunnel.read(channel, start, wanted, total=wanted)
    assert 0 < page.changes.num_rows <= wanted
    part = decoded_bytes(server, tunnel)
    changes, _ = read_from(tunnel, channel, start)
    assert len(changes) == rows
    assert part < (decoded_bytes(server, tunnel) - part) / 3


@pytest.mark.parametrize("message_bytes", [1, 1 << 30], ids=["many messages before", "no messages before"])
def test_a_batch_with_a_limit_has_the_same_rows_wherever_it_begins(
    store: Store, server: psycopg.Connection[Any], monkeypatch: pytest.MonkeyPatch, message_bytes: int
) -> None:
    # How many messages the slot has before a position is an estimate.
    monkeypatch.setattr(slot_reads, "_MESSAGE_BYTES", message_bytes)
    tunnel = store.create_tunnel("orders", "changes", "Stream")
    channel, start = only_channel(tunnel), tunnel.channels()[0].committed
    # Transactions of one row, of which a first read has less than half, and a larger one.
    for number in range(100):
        server.execute("INSERT INTO orders VALUES (%s, 'x')", (number,))
    server.execute("INSERT INTO orders SELECT n, 'x' FROM generate_series(100, 199) n")
    expected, _ = read_from(tunnel, channel, start)
    for first in (0, 1, 60, 99, 150):
        for wanted in (1, 7, 90, 10**15):
            with headrace.open(store.url) as other:
                reader = other.tunnel("changes")
                position, left, most = reader.advance(channel, start, first), wanted, 200 - first
                found: list[Any] = []
                while left and len(found) < most:
                    page = reader.read(channel, position, min(left, 40), total=left)
                    found += unpack(page.changes, ["id"])
                    position, left = page.next, left - page.changes.num_rows
            assert found == expected[first : first + wanted]


def test_a_connection_that_breaks_while_messages_arrive_is_replaced(
    store: Store, server: psycopg.Connection[Any], monkeypatch: pytest.MonkeyPatch
) -> None:
    tunnel = store.create_tunnel("orders", "changes", "Stream")
    channel, start = only_channel(tunnel), tunnel.channels()[0].committed
    rows = fill(server, tunnel)
    received, calls = slot_reads.spooled, list[int]()

    def broken(reader: Any) -> Any:
        calls.append(1)
        if len(calls) == 2:
            first = next(iter(reader))
            assert first.num_rows
            server.execute(
                "SELECT pg_terminate_backend(pid) FROM pg_stat_activity"
                " WHERE datname = current_database() AND pid <> pg_backend_pid()"
            )
        return received(reader)

    monkeypatch.setattr(slot_reads, "spooled", broken)
    changes, _ = read_from(tunnel, channel, start)
    assert [change.key for change in changes] == [(number,) for number in range(rows)]
    assert len(calls) > 2


def test_log_without_changes_is_one_window(
    store: Store, server: psycopg.Connection[Any], monkeypatch: pytest.MonkeyPatch
) -> None:
    tunnel = store.create_tunnel("orders", "changes", "Stream")
    channel, start = only_channel(tunnel), tunnel.channels()[0].committed
    server.execute("CREATE TABLE busy AS SELECT repeat('x', 1000) FROM generate_series(1, 10000)")
    peek, ends = slot_reads.peek, list[int]()

    def counted(database: Any, slot: str, publication: str, end: int, **options: Any) -> Any:
        ends.append(end)
        return peek(database, slot, publication, end, **options)

    monkeypatch.setattr(slot_reads, "peek", counted)
    page = tunnel.read(channel, start, 10)
    assert (page.changes.num_rows, page.next) == (0, start)
    assert len(ends) <= 8
    tunnel.read(channel, start, 10)
    assert len(ends) <= 9, "empty log is not read again"
