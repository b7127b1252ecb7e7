"""Tables that join a PostgreSQL tunnel of several tables while it is read, and tables that leave it."""

from __future__ import annotations

import json
import threading
import time
from collections.abc import Iterator, Sequence
from concurrent.futures import ThreadPoolExecutor
from typing import Any

import psycopg
import pytest

import headrace
from headrace.batches.feeds.tunnel_feed import TunnelFeed
from headrace.cli.main import main
from headrace.errors import NotFoundError, SchemaError
from headrace.model.tables.changes import ChangeOp
from headrace.model.tunnels.records import INITIAL_BATCH
from headrace.model.tunnels.values import FINISHED, ChannelKind, TunnelKind
from headrace.ports import Store
from headrace.stores.postgres.tunnels import followed_tables, joining, log, stored_tunnels
from headrace.stores.postgres.tunnels.base_data import ChunkRows
from headrace.stores.postgres.tunnels.followed import one_snapshot
from headrace.stores.postgres.tunnels.meta_tables import TunnelDatabase
from headrace.testing.reading import Change, drain, read_batch, run_to_the_end, unpack
from headrace.workers import TunnelWorker
from tests.conformance import serving
from tests.interop.test_postgres_several_tables import followed, rows_of


@pytest.fixture
def url(request: pytest.FixtureRequest) -> str:
    return serving.postgres_database(f"joining{abs(hash(request.node.nodeid)):x}")


@pytest.fixture
def server(url: str) -> Iterator[psycopg.Connection[Any]]:
    with psycopg.connect(url, user="postgres", autocommit=True) as connection:
        yield connection


@pytest.fixture
def store(url: str, server: psycopg.Connection[Any], monkeypatch: pytest.MonkeyPatch) -> Iterator[Store]:
    monkeypatch.setattr(joining, "LOOK_SECONDS", 0.0)
    monkeypatch.setattr(joining, "_LOOKING_SHARE", float("inf"))
    monkeypatch.setattr(joining, "_LOCK_SECONDS", 0.2)
    server.execute("CREATE TABLE orders (id bigint PRIMARY KEY, price bigint)")
    with headrace.open(url) as opened:
        yield opened
        for tunnel in opened.tunnels():
            opened.drop_tunnel(tunnel.id)


def read_on(feed: TunnelFeed, previous: str = INITIAL_BATCH) -> list[Change]:
    return [change for _, changes in run_to_the_end(feed, previous) for change in changes]


def texts(changes: list[Change]) -> list[tuple[str, str, Any]]:
    """Return operation, table and row of changes."""
    return [(change.op.name, change.key[1], change.row["row"]) for change in changes]


@pytest.mark.parametrize("kind", [TunnelKind.BASE_AND_STREAM, TunnelKind.STREAM])
def test_a_later_table_joins_with_its_base_data_and_then_its_changes(
    store: Store, server: psycopg.Connection[Any], kind: TunnelKind
) -> None:
    tunnel = store.create_tunnel_of_tables("public.*", "changes", kind)
    server.execute("CREATE TABLE bills (id bigint PRIMARY KEY, total bigint)")
    server.execute("INSERT INTO bills VALUES (1, 10), (2, 20)")
    assert tunnel.take_in_tables() == ["bills"]
    # The next reads of the slot see no row twice: those of the chunk, and those after it.
    server.execute("UPDATE bills SET total = 11 WHERE id = 1")
    server.execute("INSERT INTO orders VALUES (1, 1)")
    changes = read_on(TunnelFeed(tunnel))
    assert sorted(texts(changes)) == [
        ("BASE", "bills", '{"id":1,"total":11}'),
        ("BASE", "bills", '{"id":2,"total":20}'),
        ("INSERT", "orders", '{"id":1,"price":1}'),
    ]
    server.execute("DELETE FROM bills WHERE id = 2")
    assert texts(drain(tunnel)) == [("DELETE", "bills", None)]
    assert tunnel.describe().warnings == ()
    assert server.execute("SELECT count(*) FROM pg_publication_tables").fetchone() == (2,)


def test_the_stream_waits_before_the_first_change_of_a_table_for_its_base_data(
    store: Store, server: psycopg.Connection[Any], url: str
) -> None:
    tunnel = store.create_tunnel_of_tables("public.*", "changes")
    (stream,) = [each for each in tunnel.channels() if each.kind is ChannelKind.STREAM]
    server.execute("CREATE TABLE bills (id bigint PRIMARY KEY)")
    # A reader that has seen the tunnel without the table.
    with headrace.open(url) as other:
        early = other.tunnel("changes")
        assert early.backlog(stream.id, stream.committed).rows == 0
        assert tunnel.take_in_tables() == ["bills"]
        server.execute("INSERT INTO orders VALUES (1, 1)")
        with server.transaction():
            server.execute("INSERT INTO orders VALUES (2, 2)")
            server.execute("INSERT INTO bills VALUES (7)")
        server.execute("INSERT INTO orders VALUES (3, 3)")
        for each in (early, tunnel):
            page = each.read(stream.id, stream.committed, 100)
            assert page.changes.rows.column("row").to_pylist() == ['{"id":1,"price":1}']
            assert each.read(stream.id, page.next, 100).changes.num_rows == 0
            backlog = each.backlog(stream.id, stream.committed)
            assert (backlog.rows, each.backlog(stream.id, page.next).rows) == (1, 0)
        (base,) = [each for each in tunnel.channels() if each.kind is ChannelKind.BASE_DATA]
        rows = tunnel.read(base.id, base.committed, 100)
        assert (rows.changes.rows.column("row").to_pylist(), rows.next) == (['{"id":7}'], FINISHED)
        # Base data that is read and not committed does not count.
        assert early.read(stream.id, page.next, 100).changes.num_rows == 0
        tunnel.commit({base.id: rows.next})
        for each in (early, tunnel):
            last = each.read(stream.id, page.next, 100)
            assert last.changes.rows.column("row").to_pylist() == ['{"id":2,"price":2}', '{"id":3,"price":3}']


@pytest.mark.parametrize("window", [64 << 20, 2000])
def test_tables_join_while_writers_and_readers_run(
    store: Store, server: psycopg.Connection[Any], url: str, monkeypatch: pytest.MonkeyPatch, window: int
) -> None:
    monkeypatch.setattr(log, "WINDOW_BYTES", window)
    # Each table has several chunks, which are read at other times.
    monkeypatch.setattr(stored_tunnels, "BYTES_PER_CHUNK", 8192)
    server.execute("ALTER TABLE orders REPLICA IDENTITY FULL")
    store.create_tunnel_of_tables("public.*", "changes")
    tables = [f"later_{number}" for number in range(4)]

    def write() -> None:
        with psycopg.connect(url, user="postgres", autocommit=True) as connection:
            for name in tables:
                connection.execute(f"CREATE TABLE {name} (id bigint PRIMARY KEY, n bigint)")
                connection.execute(f"INSERT INTO {name} SELECT n, 0 FROM generate_series(1, 500) n")
                for number in range(60):
                    with connection.transaction(force_rollback=number % 7 == 0):
                        connection.execute("INSERT INTO orders VALUES (%s, 0) ON CONFLICT DO NOTHING", (number,))
                        connection.execute("UPDATE orders SET price = price + 1 WHERE id = %s", (number // 2,))
                        for each in tables[: tables.index(name) + 1]:
                            connection.execute(
                                f"INSERT INTO {each} VALUES (%s, 1) ON CONFLICT DO NOTHING", (1000 + number,)
                            )
                            connection.execute(f"UPDATE {each} SET n = n + 1 WHERE id %% 50 = %s", (number % 50,))
                            connection.execute(f"UPDATE {each} SET id = -id WHERE id = %s", (number * 3,))
                            connection.execute(f"DELETE FROM {each} WHERE id = %s", (number * 5,))

    writer = threading.Thread(target=write)
    writer.start()
    found: list[Change] = []
    batches = []
    previous, feed = INITIAL_BATCH, TunnelFeed(store.tunnel("changes"))
    while writer.is_alive():
        batch = feed.latest(previous)
        if batch != previous:
            batches.append((batch, read_batch(feed.tunnel, feed.plan(batch))))
            found += batches[-1][1]
            previous = batch
    writer.join()
    for batch, changes in run_to_the_end(feed, previous):
        batches.append((batch, changes))
        found += changes
    assert followed(found) == rows_of(server, "orders", *tables)
    with headrace.open(url) as other:
        again = TunnelFeed(other.tunnel("changes"))
        for batch, changes in batches:
            # Base data is released with its commit.
            if all(change.op is not ChangeOp.BASE for change in changes):
                assert read_batch(again.tunnel, again.plan(batch)) == changes


def test_a_batch_that_was_planned_before_a_table_joined_is_read_as_planned(
    store: Store, server: psycopg.Connection[Any], url: str
) -> None:
    tunnel = store.create_tunnel_of_tables("public.*", "changes")
    feed = TunnelFeed(tunnel)
    server.execute("INSERT INTO orders VALUES (1, 1)")
    read = feed.latest(INITIAL_BATCH)
    before = read_batch(feed.tunnel, feed.plan(read))
    server.execute("INSERT INTO orders VALUES (2, 2)")
    unread = feed.latest(read)
    server.execute("CREATE TABLE bills (id bigint PRIMARY KEY)")
    with headrace.open(url) as other:
        assert other.tunnel("changes").take_in_tables() == ["bills"]
        server.execute("INSERT INTO bills VALUES (7)")
        again = TunnelFeed(other.tunnel("changes"))
        assert read_batch(again.tunnel, again.plan(read)) == before
        assert texts(read_batch(again.tunnel, again.plan(unread))) == [("INSERT", "orders", '{"id":2,"price":2}')]
        assert texts(read_on(again, unread)) == [("BASE", "bills", '{"id":7}')]
        assert read_batch(again.tunnel, again.plan(read)) == before


def test_a_table_that_cannot_be_followed_is_named_and_joins_when_it_can(
    store: Store, server: psycopg.Connection[Any], caplog: pytest.LogCaptureFixture
) -> None:
    tunnel = store.create_tunnel_of_tables("public.*, !public.secret", "changes")
    server.execute("CREATE TABLE log (id bigint)")
    server.execute("CREATE TABLE secret (id bigint PRIMARY KEY)")
    server.execute("CREATE TABLE __headrace_state (id bigint PRIMARY KEY)")
    server.execute("INSERT INTO log VALUES (1)")
    assert tunnel.take_in_tables() == tunnel.take_in_tables() == []
    assert caplog.text.count("does not follow table log: table 'log' has no primary key") == 1
    assert tunnel.describe().warnings == ("tables that match public.*, !public.secret have not joined the tunnel: log",)
    server.execute("INSERT INTO orders VALUES (1, 1)")
    assert texts(drain(tunnel)) == [("INSERT", "orders", '{"id":1,"price":1}')]
    server.execute("ALTER TABLE log ADD PRIMARY KEY (id)")
    server.execute("ALTER TABLE log REPLICA IDENTITY NOTHING")
    assert tunnel.take_in_tables() == []
    assert "REPLICA IDENTITY NOTHING" in caplog.text
    server.execute("ALTER TABLE log REPLICA IDENTITY DEFAULT")
    assert tunnel.take_in_tables() == ["log"]
    assert texts(drain(tunnel)) == [("BASE", "log", '{"id":1}')]
    assert tunnel.describe().warnings == ()


def test_a_dropped_tunnel_takes_in_no_table(
    store: Store, server: psycopg.Connection[Any], caplog: pytest.LogCaptureFixture
) -> None:
    tunnel = store.create_tunnel_of_tables("public.*", "changes")
    server.execute("CREATE TABLE bills (id bigint PRIMARY KEY)")
    store.drop_tunnel("changes")
    assert tunnel.take_in_tables() == []
    assert caplog.text == ""
    with pytest.raises(NotFoundError, match="the tunnel was dropped"):
        tunnel.describe()


def test_a_transaction_that_has_written_the_table_ends_before_it_joins(
    store: Store, server: psycopg.Connection[Any], url: str, caplog: pytest.LogCaptureFixture
) -> None:
    tunnel = store.create_tunnel_of_tables("public.*", "changes")
    server.execute("CREATE TABLE bills (id bigint PRIMARY KEY)")
    with psycopg.connect(url, user="postgres") as writer:
        writer.execute("INSERT INTO bills VALUES (1)")
        assert tunnel.take_in_tables() == []
        assert "a transaction that has written the table is still open" in caplog.text
    assert tunnel.take_in_tables() == ["bills"]
    assert texts(drain(tunnel)) == [("BASE", "bills", '{"id":1}')]


def test_a_table_with_a_long_transaction_does_not_hold_up_others(
    store: Store, server: psycopg.Connection[Any], url: str
) -> None:
    tunnel = store.create_tunnel_of_tables("public.*", "changes")
    for name in ("a", "b", "c"):
        server.execute(f"CREATE TABLE {name} (id bigint PRIMARY KEY)")
    with psycopg.connect(url, user="postgres") as writer:
        writer.execute("INSERT INTO a VALUES (1)")
        writer.execute("INSERT INTO c VALUES (1)")
        assert [tunnel.take_in_tables() for _ in range(3)] == [[], ["b"], []]
    assert sorted(tunnel.take_in_tables()) == ["a", "c"]


def test_the_log_of_a_new_table_has_its_generated_columns_or_it_is_named(
    store: Store, server: psycopg.Connection[Any], caplog: pytest.LogCaptureFixture
) -> None:
    tunnel = store.create_tunnel_of_tables("public.*", "changes")
    server.execute("CREATE TABLE twice (id bigint PRIMARY KEY, d bigint GENERATED ALWAYS AS (2 * id) STORED)")
    server.execute("INSERT INTO twice VALUES (1)")
    joined = tunnel.take_in_tables()
    if server.info.server_version < 180_000:
        assert joined == []
        assert "the log does not have generated columns of table 'twice'" in caplog.text
        return
    assert texts(drain(tunnel)) == [("BASE", "twice", '{"id":1,"d":2}')]
    server.execute("INSERT INTO twice VALUES (2)")
    server.execute("CREATE TABLE virtual (id bigint PRIMARY KEY, d bigint GENERATED ALWAYS AS (2 * id) VIRTUAL)")
    assert tunnel.take_in_tables() == []
    assert "the log does not have generated columns of table 'virtual'" in caplog.text
    assert texts(drain(tunnel)) == [("INSERT", "twice", '{"id":2,"d":4}')]


def test_a_table_of_another_role_is_named(
    store: Store, server: psycopg.Connection[Any], url: str, caplog: pytest.LogCaptureFixture
) -> None:
    server.execute("DROP ROLE IF EXISTS joining_reader")
    server.execute("CREATE ROLE joining_reader LOGIN REPLICATION")
    ((database,),) = server.execute("SELECT quote_ident(current_database())").fetchall()
    server.execute(f"GRANT CREATE ON DATABASE {database} TO joining_reader")
    server.execute("ALTER TABLE orders OWNER TO joining_reader")
    with headrace.open(url.replace("postgres@", "joining_reader@")) as theirs:
        tunnel = theirs.create_tunnel_of_tables("public.*", "changes")
        server.execute("CREATE TABLE bills (id bigint PRIMARY KEY)")
        server.execute("GRANT SELECT ON bills TO joining_reader")
        server.execute("INSERT INTO orders VALUES (1, 1)")
        assert tunnel.take_in_tables() == []
        assert "does not follow table bills" in caplog.text
        assert texts(drain(tunnel)) == [("INSERT", "orders", '{"id":1,"price":1}')]
        server.execute("ALTER TABLE bills OWNER TO joining_reader")
        assert tunnel.take_in_tables() == ["bills"]
        theirs.drop_tunnel("changes")
    server.execute("DROP OWNED BY joining_reader CASCADE")
    server.execute("DROP ROLE joining_reader")


def test_a_table_that_is_dropped_leaves_at_any_time(
    store: Store, server: psycopg.Connection[Any], caplog: pytest.LogCaptureFixture
) -> None:
    tunnel = store.create_tunnel_of_tables("public.*", "changes")
    # Before its base data is read, after that, and after it was delivered.
    for step in range(3):
        server.execute("CREATE TABLE bills (id bigint PRIMARY KEY)")
        server.execute("INSERT INTO bills VALUES (1), (2)")
        assert tunnel.take_in_tables() == ["bills"]
        base = [each for each in tunnel.channels() if each.committed != FINISHED and each.kind is ChannelKind.BASE_DATA]
        for each in base if step else ():
            tunnel.read(each.id, each.committed, 1)
            tunnel.commit({each.id: tunnel.advance(each.id, each.committed, 1)})
        found = drain(tunnel) if step == 2 else []
        server.execute("INSERT INTO bills VALUES (3)")
        server.execute("INSERT INTO orders VALUES (%s, 0)", (step,))
        server.execute("DROP TABLE bills")
        assert texts(drain(tunnel)) == [("INSERT", "orders", f'{{"id":{step},"price":0}}')]
        assert texts(found) == ([("BASE", "bills", '{"id":2}')] if step == 2 else [])
    assert store.tunnel("changes").describe().warnings == tunnel.describe().warnings == ()
    # Once for each of the three tables.
    assert caplog.text.count("bills was dropped") == 3


@pytest.mark.parametrize(
    ("change", "rows"),
    [
        ("DROP TABLE bills", []),
        ("ALTER TABLE bills RENAME id TO number", ['{"number":1}']),
        ("ALTER TABLE bills RENAME TO papers", ['{"id":1}']),
    ],
)
def test_a_table_changes_between_the_look_at_it_and_the_read_of_its_base_data(
    store: Store, server: psycopg.Connection[Any], monkeypatch: pytest.MonkeyPatch, change: str, rows: list[str]
) -> None:
    tunnel = store.create_tunnel_of_tables("public.*", "changes")
    server.execute("CREATE TABLE bills (id bigint PRIMARY KEY)")
    server.execute("INSERT INTO bills VALUES (1)")
    assert tunnel.take_in_tables() == ["bills"]
    changes = iter([change])

    def after_a_change(database: TunnelDatabase, reads: Sequence[Any]) -> list[ChunkRows]:
        for each in changes:
            server.execute(each)
        return one_snapshot(database, reads)

    monkeypatch.setattr(followed_tables, "one_snapshot", after_a_change)
    assert [change.row["row"] for change in drain(tunnel)] == rows


def test_a_table_that_is_renamed_into_the_patterns_joins(store: Store, server: psycopg.Connection[Any]) -> None:
    server.execute("CREATE SCHEMA hidden")
    server.execute("CREATE TABLE hidden.other (id bigint PRIMARY KEY)")
    server.execute("INSERT INTO hidden.other VALUES (1)")
    tunnel = store.create_tunnel_of_tables("public.*", "changes")
    server.execute("ALTER TABLE hidden.other SET SCHEMA public")
    assert texts(read_on(TunnelFeed(tunnel))) == [("BASE", "other", '{"id":1}')]
    # A followed table that gets another name stays, and another one with its name joins.
    server.execute("ALTER TABLE other RENAME TO older")
    server.execute("CREATE TABLE other (id bigint PRIMARY KEY)")
    server.execute("INSERT INTO older VALUES (2)")
    server.execute("INSERT INTO other VALUES (3)")
    assert tunnel.take_in_tables() == ["other"]
    assert sorted(texts(drain(tunnel))) == [("BASE", "other", '{"id":3}'), ("INSERT", "older", '{"id":2}')]


def test_base_data_has_the_name_of_its_table_when_it_was_read(store: Store, server: psycopg.Connection[Any]) -> None:
    tunnel = store.create_tunnel_of_tables("public.*", "changes")
    server.execute("CREATE TABLE bills (id bigint PRIMARY KEY)")
    server.execute("INSERT INTO bills VALUES (1)")
    assert tunnel.take_in_tables() == ["bills"]
    # The way to replace a table. Changes have the new names, and base data must not mix the two tables.
    server.execute("ALTER TABLE bills RENAME TO older")
    server.execute("CREATE TABLE bills (id bigint PRIMARY KEY)")
    server.execute("INSERT INTO bills VALUES (1)")
    changes = read_on(TunnelFeed(tunnel))
    server.execute("UPDATE older SET id = 2")
    assert followed(changes + drain(tunnel)) == rows_of(server, "bills", "older")
    # A name that the table gets after its rows were read is that of later changes.
    server.execute("CREATE TABLE more (id bigint PRIMARY KEY)")
    server.execute("INSERT INTO more VALUES (1), (2)")
    assert tunnel.take_in_tables() == ["more"]
    (base,) = [each for each in tunnel.channels() if each.committed != FINISHED and each.kind is ChannelKind.BASE_DATA]
    page = tunnel.read(base.id, base.committed, 1)
    server.execute("DELETE FROM more WHERE id = 2")
    server.execute("ALTER TABLE more RENAME TO most")
    assert tunnel.read(base.id, base.committed, 2).changes.rows == page.changes.rows
    assert texts(drain(tunnel)) == [*(("BASE", "more", f'{{"id":{id}}}') for id in (1, 2)), ("DELETE", "more", None)]


def test_partitioned_tables_join_as_one(store: Store, server: psycopg.Connection[Any]) -> None:
    tunnel = store.create_tunnel_of_tables("public.*", "changes")
    server.execute("CREATE TABLE parts (id bigint PRIMARY KEY) PARTITION BY RANGE (id)")
    server.execute("CREATE TABLE part_1 PARTITION OF parts FOR VALUES FROM (0) TO (10)")
    server.execute("INSERT INTO parts VALUES (1)")
    assert tunnel.take_in_tables() == ["parts"]
    server.execute("CREATE TABLE part_2 PARTITION OF parts FOR VALUES FROM (10) TO (20)")
    assert texts(drain(tunnel)) == [("BASE", "parts", '{"id":1}')]
    server.execute("INSERT INTO parts VALUES (2), (12)")
    assert tunnel.take_in_tables() == []
    assert texts(drain(tunnel)) == [("INSERT", "parts", '{"id":2}'), ("INSERT", "parts", '{"id":12}')]


@pytest.mark.parametrize("publication", ["FOR ALL TABLES", "FOR TABLE orders"])
def test_a_publication_of_others_must_have_the_table(
    store: Store, server: psycopg.Connection[Any], publication: str, caplog: pytest.LogCaptureFixture
) -> None:
    server.execute(f"CREATE PUBLICATION theirs {publication}")
    tunnel = store.create_tunnel_of_tables("public.*", "changes", publication="theirs")
    server.execute("CREATE TABLE bills (id bigint PRIMARY KEY)")
    # The log has this row already. Only base data has it.
    server.execute("INSERT INTO bills VALUES (1)")
    server.execute("INSERT INTO orders VALUES (1, 1)")
    joined = tunnel.take_in_tables()
    server.execute("INSERT INTO bills VALUES (2)")
    order = ("INSERT", "orders", '{"id":1,"price":1}')
    if "ALL" in publication:
        assert joined == ["bills"]
        rows = [("BASE", "bills", '{"id":1}'), ("BASE", "bills", '{"id":2}')]
        assert sorted(texts(read_on(TunnelFeed(tunnel)))) == [*rows, order]
    else:
        assert joined == []
        assert "the publication does not have table 'bills'" in caplog.text
        assert texts(read_on(TunnelFeed(tunnel))) == [order]


def test_a_reader_without_the_right_to_lock_a_table_is_told_so(
    store: Store, server: psycopg.Connection[Any], url: str, caplog: pytest.LogCaptureFixture
) -> None:
    server.execute("DROP ROLE IF EXISTS joining_selector")
    server.execute("CREATE ROLE joining_selector LOGIN REPLICATION")
    ((database,),) = server.execute("SELECT quote_ident(current_database())").fetchall()
    server.execute(f"GRANT CREATE ON DATABASE {database} TO joining_selector")
    server.execute("GRANT SELECT ON orders TO joining_selector")
    server.execute("CREATE PUBLICATION theirs FOR ALL TABLES")
    with headrace.open(url.replace("postgres@", "joining_selector@")) as theirs:
        tunnel = theirs.create_tunnel_of_tables("public.*", "changes", publication="theirs")
        server.execute("CREATE TABLE bills (id bigint PRIMARY KEY)")
        server.execute("GRANT SELECT ON bills TO joining_selector")
        assert tunnel.take_in_tables() == []
        assert "may not lock out the writers of the table" in caplog.text
        server.execute("GRANT TRUNCATE ON bills TO joining_selector")
        assert tunnel.take_in_tables() == ["bills"]
        theirs.drop_tunnel("changes")
    server.execute("DROP OWNED BY joining_selector CASCADE")
    server.execute("DROP ROLE joining_selector")


def test_processes_that_take_in_a_table_at_the_same_time_take_it_in_once(
    store: Store, server: psycopg.Connection[Any], url: str
) -> None:
    store.create_tunnel_of_tables("public.*", "changes")
    server.execute("CREATE TABLE bills (id bigint PRIMARY KEY)")
    server.execute("INSERT INTO bills VALUES (1)")

    def take_in(_: int) -> list[str]:
        with headrace.open(url) as other:
            return other.tunnel("changes").take_in_tables()

    with ThreadPoolExecutor(4) as threads:
        taken = list(threads.map(take_in, range(4)))
    assert sorted(taken) == [[], [], [], ["bills"]]
    assert texts(drain(store.tunnel("changes"))) == [("BASE", "bills", '{"id":1}')]


def test_workers_take_in_a_table(store: Store, server: psycopg.Connection[Any], url: str) -> None:
    store.create_tunnel_of_tables("public.*", "changes")
    found: list[Change] = []
    lock = threading.Lock()
    running: list[TunnelWorker] = []

    def work() -> None:
        with headrace.open(url) as other:
            tunnel = other.tunnel("changes")
            with tunnel.consume(heartbeat_interval=0.05) as worker:
                running.append(worker)
                for batch in worker:
                    with lock:
                        found.extend(unpack(batch.changes, tunnel.table.schema.primary_key))

    workers = [threading.Thread(target=work) for _ in range(2)]
    for worker in workers:
        worker.start()
    server.execute("INSERT INTO orders VALUES (1, 1)")
    server.execute("CREATE TABLE bills (id bigint PRIMARY KEY, n bigint)")
    server.execute("INSERT INTO bills SELECT n, 0 FROM generate_series(1, 100) n")
    while not any(change.key[1] == "bills" for change in found):
        server.execute("UPDATE bills SET n = n + 1 WHERE id <= 3")
    server.execute("INSERT INTO orders VALUES (2, 2)")
    while not any(change.key[1] == "orders" and '"id":2' in change.key[2] for change in found):
        time.sleep(0.01)
    for each in running:
        each.stop()
    for worker in workers:
        worker.join()
    with headrace.open(url) as other:
        assert drain(other.tunnel("changes")) == []
    assert followed(found) == rows_of(server, "orders", "bills")


def test_typed_rows_have_the_column_after_the_next_start(
    store: Store, server: psycopg.Connection[Any], capsys: pytest.CaptureFixture[str]
) -> None:
    tunnel = store.create_tunnel_of_tables("public.*", "changes")
    running = tunnel.typed()
    feed = TunnelFeed(running)
    server.execute("INSERT INTO orders VALUES (1, 1)")
    server.execute("CREATE TABLE bills (id bigint PRIMARY KEY)")
    server.execute("INSERT INTO bills VALUES (7)")
    batch = feed.latest(INITIAL_BATCH)
    assert [change.row["orders"]["id"] for change in read_batch(running, feed.plan(batch))] == [1]
    assert running.take_in_tables() == []
    assert list(running.tables) == ["orders"]
    for tables in (["bills"], []):
        assert main(["tunnel", "take-in", "changes", "--json", "-s", store.url]) == 0
        assert json.loads(capsys.readouterr().out)["tables"] == tables
    with pytest.raises(SchemaError, match=r"a table has joined the tunnel.*bills.*start the query again"):
        feed.latest(batch)
    again = TunnelFeed(tunnel.typed())
    assert set(again.tunnel.tables) == {"bills", "orders"}
    found = read_on(again, batch)
    assert [(change.op, change.row["bills"], change.row["orders"]) for change in found] == [
        (ChangeOp.BASE, {"id": 7}, None)
    ]
