"""Tunnels of a PostgreSQL server: what they leave behind, what slots lose, and what others do to the table."""

from __future__ import annotations

import threading
from collections.abc import Iterator
from itertools import groupby
from typing import Any

import psycopg
import pyarrow as pa
import pytest
from psycopg import pq, sql

import headrace
from headrace.batches.feeds.channel_reading import read_channel
from headrace.batches.feeds.limits import Limits
from headrace.batches.feeds.tunnel_feed import TunnelFeed
from headrace.errors import DataLossError, OptionError, StoreBusyError, UnsupportedError
from headrace.formats.headrace.source import HeadraceSource, HeadraceTunnel
from headrace.model.tables.changes import ChangeOp
from headrace.model.tunnels.records import INITIAL_BATCH
from headrace.model.tunnels.values import FINISHED, ChannelKind, Page, Position, Start, StartKind
from headrace.ports import Store
from headrace.stores.postgres.tunnels import log
from headrace.stores.postgres.tunnels import tunnel as tunnel_module
from headrace.stores.postgres.tunnels.positions import lsn_of, lsn_text
from headrace.testing.reading import drain, only_channel, read_from, replay, state_of
from tests.conformance import serving


@pytest.fixture
def url(request: pytest.FixtureRequest) -> str:
    return serving.postgres_database(f"t{abs(hash(request.node.nodeid)):x}")


@pytest.fixture
def server(url: str) -> Iterator[psycopg.Connection[Any]]:
    with psycopg.connect(url, user="postgres", autocommit=True) as connection:
        yield connection


@pytest.fixture
def store(url: str, server: psycopg.Connection[Any]) -> Iterator[Store]:
    server.execute("CREATE TABLE orders (id text PRIMARY KEY, price bigint, note text)")
    with headrace.open(url) as opened:
        yield opened
        for tunnel in opened.tunnels():
            opened.drop_tunnel(tunnel.id)


def slots_and_publications(server: psycopg.Connection[Any]) -> list[Any]:
    return server.execute(
        "SELECT slot_name FROM pg_replication_slots WHERE database = current_database()"
        " UNION ALL SELECT pubname FROM pg_publication"
    ).fetchall()


def test_a_dropped_tunnel_leaves_nothing_on_the_server(store: Store, server: psycopg.Connection[Any]) -> None:
    store.create_tunnel("orders", "changes")
    assert len(slots_and_publications(server)) == 2
    store.drop_tunnel("changes")
    assert slots_and_publications(server) == []
    store.create_tunnel("orders", "changes")
    store.drop_table("orders")
    assert slots_and_publications(server) == []


@pytest.mark.parametrize("lost", ["slot", "publication"])
def test_a_lost_slot_or_publication_is_a_data_loss(store: Store, server: psycopg.Connection[Any], lost: str) -> None:
    tunnel = store.create_tunnel("orders", "changes", "Stream")
    channel, start = only_channel(tunnel), tunnel.channels()[0].committed
    server.execute("INSERT INTO orders VALUES ('a', 1)")
    name = sql.Identifier(f"headrace_{tunnel.id}")
    if lost == "slot":
        server.execute("SELECT pg_drop_replication_slot(%s)", (f"headrace_{tunnel.id}",))
    else:
        server.execute(sql.SQL("DROP PUBLICATION {}").format(name))
    with pytest.raises(DataLossError, match=f"{lost} of tunnel 'changes' does not exist.*{start.token}"):
        tunnel.read(channel, start, 10)


def test_a_slot_that_others_have_advanced_is_a_data_loss(store: Store, server: psycopg.Connection[Any]) -> None:
    tunnel = store.create_tunnel("orders", "changes", "Stream")
    channel, start = only_channel(tunnel), tunnel.channels()[0].committed
    server.execute("INSERT INTO orders VALUES ('a', 1)")
    server.execute("SELECT pg_replication_slot_advance(%s, pg_current_wal_flush_lsn())", (f"headrace_{tunnel.id}",))
    server.execute("INSERT INTO orders VALUES ('b', 1)")
    with pytest.raises(DataLossError, match="have been removed"):
        tunnel.read(channel, start, 10)
    found, lost = tunnel.skip_lost(channel, start)
    assert lost is None
    assert [change.key for change in read_from(tunnel, channel, found)[0]] == [("b",)]


def test_a_truncation_is_a_data_loss_after_the_changes_before_it(store: Store, server: psycopg.Connection[Any]) -> None:
    tunnel = store.create_tunnel("orders", "changes", "Stream")
    channel, start = only_channel(tunnel), tunnel.channels()[0].committed
    server.execute("INSERT INTO orders VALUES ('a', 1)")
    server.execute("TRUNCATE orders")
    server.execute("INSERT INTO orders VALUES ('b', 1)")
    page = tunnel.read(channel, start, 10)
    assert page.changes.rows.column("id").to_pylist() == ["a"]
    with pytest.raises(DataLossError, match="was truncated"):
        tunnel.read(channel, page.next, 10)
    found, _ = tunnel.skip_lost(channel, page.next)
    assert [change.key for change in read_from(tunnel, channel, found)[0]] == [("b",)]


def test_unchanged_large_values_come_from_the_old_row_or_are_an_error(
    store: Store, server: psycopg.Connection[Any]
) -> None:
    server.execute("ALTER TABLE orders ALTER note SET STORAGE EXTERNAL")
    server.execute("INSERT INTO orders VALUES ('a', 1, repeat('x', 10000))")
    tunnel = store.create_tunnel("orders", "changes", "Stream")
    channel, start = only_channel(tunnel), tunnel.channels()[0].committed
    store.table("orders").set_options(pre_images=True)
    server.execute("UPDATE orders SET price = 2")
    changes, position = read_from(tunnel, channel, start)
    assert [(change.op, len(change.row["note"])) for change in changes] == [
        (ChangeOp.PREIMAGE, 10000),
        (ChangeOp.REPLACE, 10000),
    ]
    store.table("orders").set_options(pre_images=False)
    server.execute("UPDATE orders SET price = 3")
    with pytest.raises(UnsupportedError, match="pre_images=true"):
        tunnel.read(channel, position, 10)


def test_the_slot_of_an_idle_table_follows_the_log_of_busy_ones(
    store: Store, server: psycopg.Connection[Any], monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(log, "WINDOW_BYTES", 1 << 20)
    tunnel = store.create_tunnel("orders", "changes", "Stream")
    channel, start = only_channel(tunnel), tunnel.channels()[0].committed
    server.execute("CREATE TABLE busy AS SELECT repeat('x', 1000) FROM generate_series(1, 10000)")
    confirmed = "SELECT confirmed_flush_lsn - %s::pg_lsn FROM pg_replication_slots WHERE slot_name = %s"
    values = (start.token, f"headrace_{tunnel.id}")
    assert server.execute(confirmed, values).fetchone() == (0,)
    assert tunnel.backlog(channel, start).rows == 0
    moved = server.execute(confirmed, values).fetchone()
    assert moved is not None
    assert moved[0] > 5_000_000
    # The committed position is before the slot's, and remains valid: nothing is lost between the two.
    server.execute("INSERT INTO orders VALUES ('a', 1)")
    with headrace.open(store.url) as other:
        assert [change.key for change in drain(other.tunnel("changes"))] == [("a",)]
    # A task of a batch with a limit knows the number of its rows.
    with headrace.open(store.url) as task:
        assert task.tunnel("changes").read(channel, start, 10, total=1).changes.num_rows == 1


def test_a_plan_looks_at_little_of_a_long_log_and_finds_rows_behind_that_of_other_tables(
    store: Store, server: psycopg.Connection[Any], monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(tunnel_module, "LOOK_BYTES", 100_000)
    tunnel = store.create_tunnel("orders", "changes", "Stream")
    channel, start = only_channel(tunnel), tunnel.channels()[0].committed
    for first in range(0, 5000, 100):
        server.execute(
            "INSERT INTO orders SELECT lpad(n::text, 6, '0'), n, repeat('x', 100)"
            " FROM generate_series(%s::int, %s::int) n",
            (first, first + 99),
        )
    found = tunnel.backlog(channel, start)
    assert found.rows is None
    assert 0 < found.at_least < 5000
    feed = TunnelFeed(tunnel)
    batch = feed.latest(feed.initial())
    (task,) = feed.tasks(feed.initial(), batch)
    assert sum(part.num_rows for part in read_channel(tunnel, batch, task.plan)) == 5000
    # A description counts all of them.
    assert tunnel.describe().backlog_rows == 5000
    _, end = read_from(tunnel, channel, start)
    server.execute("CREATE TABLE busy AS SELECT repeat('x', 1000) FROM generate_series(1, 2000)")
    assert tunnel.backlog(channel, end).empty
    server.execute("INSERT INTO orders VALUES ('last', 1)")
    assert tunnel.backlog(channel, end).rows == 1


def test_a_page_says_that_no_row_follows_before_the_bound(store: Store) -> None:
    tunnel, table = store.create_tunnel("orders", "changes", "Stream"), store.table("orders")
    channel, start = only_channel(tunnel), tunnel.channels()[0].committed
    for key in "abc":
        table.put({"id": key, "price": 1, "note": ""})
    bound = tunnel.settled_positions()[channel]
    table.put({"id": "later", "price": 1, "note": ""})
    first = tunnel.read(channel, start, 2, bound)
    second = tunnel.read(channel, first.next, 2, bound)
    assert [(page.changes.num_rows, page.last) for page in (first, second)] == [(2, False), (1, True)]
    rest = tunnel.read(channel, second.next, 2, bound)
    assert (rest.changes.num_rows, rest.next) == (0, second.next)
    # A bound that the server has not written yet, and none.
    ahead = Position(lsn_text(lsn_of(tunnel.settled_positions()[channel]) + (1 << 30)))
    assert [tunnel.read(channel, start, 9, until).last for until in (ahead, None)] == [False, False]


def test_a_slot_that_another_process_reads_is_waited_for(store: Store, server: psycopg.Connection[Any]) -> None:
    tunnel = store.create_tunnel("orders", "changes", "Stream")
    channel, start = only_channel(tunnel), tunnel.channels()[0].committed
    server.execute("INSERT INTO orders VALUES ('a', 1)")
    slot = f"headrace_{tunnel.id}"
    with psycopg.connect(store.url, autocommit=True, replication="database") as other:
        begin = f"START_REPLICATION SLOT {slot} LOGICAL 0/0 (proto_version '1', publication_names '{slot}')"
        assert other.pgconn.exec_(begin.encode()).status == pq.ExecStatus.COPY_BOTH
        with (
            headrace.open(store.url, retry_seconds=0.1) as impatient,
            pytest.raises(StoreBusyError, match="is active for PID"),
        ):
            impatient.tunnel("changes").read(channel, start, 10)
        reading = threading.Thread(target=lambda: found.append(tunnel.read(channel, start, 10)))
        found: list[Page] = []
        reading.start()
        other.pgconn.finish()
    reading.join()
    assert found[0].changes.rows.column("id").to_pylist() == ["a"]


def test_a_query_that_needs_all_rows_begins_only_at_the_beginning(store: Store) -> None:
    table = store.table("orders")
    table.put([{"id": "a"}, {"id": "b"}])
    tunnel = store.create_tunnel("orders", "changes")
    beginning = Start(StartKind.BEGINNING)
    positions = tunnel.start_positions(beginning)
    assert positions == {channel.id: channel.committed for channel in tunnel.channels()}
    table.put([{"id": "c"}])
    # What was read and not committed can be read again.
    for _ in range(2):
        found = [change for channel, at in positions.items() for change in read_from(tunnel, channel, at)[0]]
        assert [change.key for change in found] == [("a",), ("b",), ("c",)]
    assert tunnel.start_positions(beginning) == positions
    drain(tunnel)
    with pytest.raises(DataLossError, match=r"read by another query.*a tunnel of its own"):
        tunnel.start_positions(beginning)


def test_a_snapshot_is_read_chunk_by_chunk_while_writers_run(store: Store, server: psycopg.Connection[Any]) -> None:
    server.execute("INSERT INTO orders SELECT lpad(n::text, 6, '0'), n FROM generate_series(1, 60000) n")
    tunnel = store.create_tunnel("orders", "changes", base_channels=4)
    base = [channel for channel in tunnel.channels() if channel.kind is ChannelKind.BASE_DATA]
    assert len(base) == 4
    found = []
    for number, channel in enumerate(base):
        server.execute("UPDATE orders SET price = -%s WHERE id LIKE '%%7'", (number + 1,))
        server.execute("UPDATE orders SET id = id || 'x' WHERE id LIKE %s", (f"00{number}9%",))
        server.execute("DELETE FROM orders WHERE id LIKE %s", (f"{number:02}%3",))
        # Another process reads each chunk.
        with headrace.open(store.url) as other:
            changes, end = read_from(other.tunnel("changes"), channel.id, channel.committed, page_rows=7000)
        assert end == FINISHED
        found += changes
        tunnel.commit({channel.id: end})
    server.execute("UPDATE orders SET price = 0 WHERE id LIKE '%1'")
    found += drain(tunnel, page_rows=20_000)
    assert replay(found) == state_of(store.table("orders"))
    assert server.execute("SELECT count(*) FROM headrace.spool").fetchone() == (0,)


def test_the_first_reader_of_a_chunk_gets_all_its_rows_and_every_later_one_the_same(
    store: Store, server: psycopg.Connection[Any]
) -> None:
    server.execute("INSERT INTO orders SELECT lpad(n::text, 6, '0'), n FROM generate_series(1, 100000) n")
    tunnel = store.create_tunnel("orders", "changes", "BaseData", base_channels=1)
    (channel,) = tunnel.channels()
    first = tunnel.read(channel.id, channel.committed, 10)
    assert (first.changes.num_rows, first.next) == (100_000, FINISHED)
    server.execute("UPDATE orders SET price = 0")
    pages, position = [], channel.committed
    while position != FINISHED:
        page = tunnel.read(channel.id, position, 30_000)
        pages.append(page.changes.rows)
        position = page.next
    assert [rows.num_rows for rows in pages] == [30_000, 30_000, 30_000, 10_000]
    assert pa.Table.from_batches(pages).equals(pa.Table.from_batches([first.changes.rows]))


def test_a_worker_reads_one_chunk_after_the_other(store: Store, server: psycopg.Connection[Any]) -> None:
    server.execute("INSERT INTO orders SELECT lpad(n::text, 6, '0'), n FROM generate_series(1, 60000) n")
    tunnel = store.create_tunnel("orders", "changes", "BaseData", base_channels=12)
    channels = [batch.channel for batch in tunnel.consume(batch_rows=1000, idle="stop")]
    assert len(channels) >= 60
    # A copy of a chunk is in the database until its last batch.
    assert len(list(groupby(channels))) == 12


def test_a_batch_with_a_limit_copies_only_the_chunks_that_it_reads(
    store: Store, server: psycopg.Connection[Any]
) -> None:
    server.execute("INSERT INTO orders SELECT lpad(n::text, 6, '0'), n FROM generate_series(1, 60000) n")
    tunnel = store.create_tunnel("orders", "changes", base_channels=4)
    feed, batch, batches, read = TunnelFeed(tunnel, limits=Limits(rows_per_batch=10_000)), INITIAL_BATCH, 0, 0
    while (following := feed.latest(batch)) != batch:
        for task in feed.tasks(batch, following):
            read += sum(page.num_rows for page in read_channel(tunnel, task.batch, task.plan))
        batch, batches = following, batches + 1
        # The copy of a chunk is deleted when the batch that reads its end is committed.
        copies = server.execute("SELECT count(DISTINCT channel) FROM headrace.spool").fetchone()
        assert copies is not None
        assert copies[0] <= 2
    assert read == 60_000
    assert batches >= 6


def test_a_partitioned_table_is_followed_by_its_own_name(store: Store, server: psycopg.Connection[Any]) -> None:
    server.execute("CREATE TABLE parts (id bigint PRIMARY KEY, note text) PARTITION BY RANGE (id)")
    server.execute("CREATE TABLE parts_low PARTITION OF parts FOR VALUES FROM (0) TO (10)")
    server.execute("CREATE TABLE parts_high PARTITION OF parts FOR VALUES FROM (10) TO (20)")
    server.execute("INSERT INTO parts VALUES (1, 'a'), (11, 'b')")
    tunnel = store.create_tunnel("parts", "changes")
    server.execute("UPDATE parts SET id = 12 WHERE id = 1")
    assert replay(drain(tunnel)) == state_of(store.table("parts"))


def test_types_are_the_same_in_base_data_and_stream(store: Store, server: psycopg.Connection[Any]) -> None:
    server.execute("CREATE TYPE mood AS ENUM ('sad', 'glad')")
    server.execute("CREATE DOMAIN positive AS integer CHECK (VALUE > 0)")
    server.execute(
        "CREATE TABLE kinds (id bigint PRIMARY KEY, n numeric(12,3), free numeric, u uuid, j jsonb, m mood, p positive,"
        " d date, t timestamptz, local timestamp, clock time, f real, flags boolean, b bytea, tags text[], ints int[],"
        " computed bigint)"
    )
    if server.info.server_version >= 180_000:
        server.execute("ALTER TABLE kinds DROP computed, ADD computed bigint GENERATED ALWAYS AS (id * 2) STORED")
    values = (
        "-12.5, 1234567890123456789012345678901234567890.5, gen_random_uuid(), '{\"a\": [1, null]}', 'glad', 7,"
        " '1999-12-31', '2024-02-29 12:00:00.123456+02', '1900-01-01 00:00:01', '23:59:59.5', 1.5, true, '\\x00ff',"
        " '{a,NULL,\"b c\"}', '{1,2,3}'"
    )
    server.execute(f"INSERT INTO kinds VALUES (1, {values})")
    tunnel = store.create_tunnel("kinds", "changes")
    server.execute(f"INSERT INTO kinds VALUES (2, {values})")
    server.execute("INSERT INTO kinds VALUES (3)")
    changes = drain(tunnel)
    assert [change.op for change in changes] == [ChangeOp.BASE, ChangeOp.INSERT, ChangeOp.INSERT]
    assert replay(changes) == state_of(store.table("kinds"))


@pytest.mark.parametrize("identity", ["NOTHING", "USING INDEX prices"])
def test_a_log_without_the_key_of_changed_rows_is_refused(
    store: Store, server: psycopg.Connection[Any], identity: str
) -> None:
    server.execute("ALTER TABLE orders ALTER price SET NOT NULL")
    server.execute("CREATE UNIQUE INDEX prices ON orders (price)")
    server.execute(f"ALTER TABLE orders REPLICA IDENTITY {identity}")
    with pytest.raises(UnsupportedError, match="REPLICA IDENTITY DEFAULT"):
        store.create_tunnel("orders", "changes")
    assert slots_and_publications(server) == []
    assert store.tunnels() == []


def test_a_generated_column_that_is_not_in_the_log_is_refused(store: Store, server: psycopg.Connection[Any]) -> None:
    kind = "VIRTUAL" if server.info.server_version >= 180_000 else "STORED"
    server.execute(f"ALTER TABLE orders ADD double bigint GENERATED ALWAYS AS (price * 2) {kind}")
    with pytest.raises(UnsupportedError, match=r"generated columns.*double"):
        store.create_tunnel("orders", "changes")


def test_a_column_that_is_added_while_a_tunnel_is_open_is_read(store: Store, server: psycopg.Connection[Any]) -> None:
    tunnel = store.create_tunnel("orders", "changes", "Stream")
    server.execute("INSERT INTO orders VALUES ('a', 1)")
    assert [change.key for change in drain(tunnel)] == [("a",)]
    server.execute("ALTER TABLE orders ADD COLUMN city text")
    server.execute("INSERT INTO orders VALUES ('b', 2, NULL, 'Ufa')")
    assert [change.row["city"] for change in drain(tunnel)] == ["Ufa"]


def test_rows_of_a_stream_can_have_the_ids_of_their_transactions(store: Store, server: psycopg.Connection[Any]) -> None:
    server.execute("INSERT INTO orders VALUES ('a', 1)")
    store.create_tunnel("orders", "changes")
    with server.transaction():
        server.execute("INSERT INTO orders VALUES ('b', 2)")
        server.execute("UPDATE orders SET price = 3 WHERE id = 'a'")
        (transaction,) = server.execute("SELECT xmin::text::bigint FROM orders WHERE id = 'b'").fetchone() or (None,)
    named = {"store": store.url, "table": "orders", "tunnel": "changes"}
    source = HeadraceSource({**named, "includeTransactionId": "true"})
    source.check_stream_read()
    read = HeadraceTunnel(source)
    tunnel = read.open_checked(store)
    shape = read.shape(tunnel, pa.schema({"id": pa.string(), "_transaction_id": pa.int64()}))
    found = [
        row
        for channel in tunnel.channels()
        for row in shape.rows(tunnel.read(channel.id, channel.committed, 10).changes).to_pylist()
    ]
    assert found == [
        {"id": "a", "_transaction_id": None},
        {"id": "b", "_transaction_id": transaction},
        {"id": "a", "_transaction_id": transaction},
    ]
    assert source.schema().names[-1] == "_transaction_id"
    assert "_transaction_id" not in HeadraceSource(named).schema().names
    for other in ({"readAs": "table"}, {"changeFormat": "debezium"}):
        with pytest.raises(OptionError, match=f"includeTransactionId and {next(iter(other))}"):
            HeadraceSource({**named, "includeTransactionId": "true", **other}).check_stream_read()


@pytest.mark.parametrize("name", ["a,b", "*", "s 1.a, b*"])
def test_the_tunnel_of_one_table_whose_name_could_be_patterns_is_found(
    store: Store, server: psycopg.Connection[Any], name: str
) -> None:
    server.execute('CREATE SCHEMA IF NOT EXISTS "s 1"')
    for each in (sql.Identifier(*name.split(".")), sql.Identifier("a"), sql.Identifier("b")):
        server.execute(sql.SQL("CREATE TABLE {} (id int PRIMARY KEY)").format(each))
    created = store.create_tunnel(name, "changes", "Stream")
    assert store.tunnel("changes", name).id == created.id
    assert [tunnel.id for tunnel in store.tunnels(name)] == [created.id]
    both = store.create_tunnel(["a", "b"], "both", "Stream")
    assert store.tunnel("both", "a, b").id == both.id
