"""Mirrors without Spark from PostgreSQL to PostgreSQL: base data in chunks, TRUNCATE, columns, takeovers."""

from __future__ import annotations

import threading
import time
from collections.abc import Iterator
from contextlib import contextmanager
from typing import Any

import psycopg
import pytest

import headrace
from headrace.errors import DataLossError, SchemaError
from headrace.model.tables.changes import ChangeOp
from headrace.ports import RetriedRows, Store
from headrace.stores.postgres.publication.publisher import PostgresPublisher
from headrace.testing.queue_reading import wait_until
from headrace.workers import leased_channel
from tests.conformance import serving
from tests.interop.own_database import Server


@pytest.fixture
def target(request: pytest.FixtureRequest) -> Iterator[Store]:
    """The store of the copy, in another database."""
    with headrace.open(serving.postgres_database(f"copy{abs(hash(request.node.nodeid)):x}")) as opened:
        yield opened
        for tunnel in opened.tunnels():
            opened.drop_tunnel(tunnel.id)


def create(server: Server, rows: int = 0, *, partitioned: bool = False) -> None:
    columns = "id int PRIMARY KEY, v text, n numeric(10,2), at timestamptz, doc jsonb"
    server.execute(f"CREATE TABLE t ({columns}) {'PARTITION BY RANGE (id)' if partitioned else ''}".encode())
    if partitioned:
        server.execute("CREATE TABLE t0 PARTITION OF t FOR VALUES FROM (0) TO (5)")
        server.execute("CREATE TABLE t1 PARTITION OF t DEFAULT")
    server.execute(
        "INSERT INTO t SELECT i, 'base ' || i, i / 4.0, now(), json_build_object('i', i) FROM generate_series(1, %s) i",
        (rows,),
    )


def copy(store: Store, target: Store, **options: Any) -> int:
    changes = list[int]()
    headrace.mirror_worker(store, "t", target, idle="stop", **options).run(changes.append)
    return sum(changes)


def seen(target: Store) -> int:
    """Return the number of rows of the copy, whose columns may be about to change."""
    with psycopg.connect(target.url) as session:
        row = session.execute("SELECT count(*) FROM t").fetchone()
    assert row is not None
    return int(row[0])


def is_equal(store: Store, target: Store) -> bool:
    return headrace.diff_tables(store.table("t"), target.table("t")).equal


@contextmanager
def running(store: Store, target: Store, **options: Any) -> Iterator[None]:
    """Run a worker in a thread."""
    failed = list[BaseException]()
    worker = headrace.mirror_worker(store, "t", target, **options)

    def run() -> None:
        try:
            worker.run()
        except BaseException as error:
            failed.append(error)

    thread = threading.Thread(target=run)
    thread.start()
    try:
        yield
    finally:
        worker.stop()
        thread.join(60)
        assert failed == []


def test_two_workers_copy_base_data_in_chunks_while_rows_change(store: Store, target: Store, server: Server) -> None:
    create(server, 20_000)
    store.create_tunnel("t", "chunks", base_channels=8)
    options: dict[str, Any] = {"tunnel": "chunks", "batch_rows": 1000, "timeout": 5.0}
    # Before the workers, so that the log has each write of the copy.
    setup = headrace.mirror_worker(store, "t", target, **options)
    setup.stop()
    setup.run()
    log = target.create_tunnel("t", "log", "Stream")
    with running(store, target, client="one", **options), running(store, target, client="other", **options):
        for number in range(10):
            server.execute("UPDATE t SET v = 'changed' WHERE id %% 100 = %s", (number,))
            server.execute("DELETE FROM t WHERE id %% 100 = %s", (50 + number,))
            server.execute("INSERT INTO t (id, v) VALUES (%s, 'new')", (30_000 + number,))
        server.execute("UPDATE t SET id = id + 100000 WHERE id < 100")
        wait_until(lambda: is_equal(store, target))
    assert copy(store, target, **options) == 0
    written = dict[int, Any]()
    for batch in log.consume(idle="stop"):
        for row in batch.to_arrow().to_pylist():
            key, kind = row["id"], row["_change_type"]
            value = None if kind == "delete" else row["v"]
            # No row gets the same value twice in the source.
            assert written.get(key) != value or value is None
            written[key] = value


def test_a_worker_publishes_batches_of_two_channels_at_a_time(
    store: Store, target: Store, server: Server, monkeypatch: pytest.MonkeyPatch
) -> None:
    create(server, 1000)
    store.create_tunnel("t", "chunks", base_channels=2)
    both, publish = threading.Barrier(2), PostgresPublisher.publish

    def together(self: PostgresPublisher, *arguments: Any, **options: Any) -> bool:
        # Not those of the mirror's record.
        if self.in_process:
            both.wait(60)
        return publish(self, *arguments, **options)

    monkeypatch.setattr(PostgresPublisher, "publish", together)
    assert copy(store, target, tunnel="chunks") == 1000
    assert is_equal(store, target)


def test_a_worker_ends_at_a_partition_that_has_come_and_left_with_rows(
    store: Store, target: Store, server: Server
) -> None:
    create(server, 3, partitioned=True)
    copy(store, target)
    server.execute("CREATE TABLE t2 PARTITION OF t FOR VALUES FROM (100) TO (200)")
    server.execute("INSERT INTO t (id) VALUES (100)")
    server.execute("ALTER TABLE t DETACH PARTITION t2")
    for _ in range(2):
        with pytest.raises(DataLossError, match=r"partition public\.t2 was detached or dropped"):
            copy(store, target)
    assert is_equal(store, target)


@pytest.mark.parametrize("partitioned", [False, True])
def test_truncations_and_changes_of_columns_follow_in_order(
    store: Store, target: Store, server: Server, partitioned: bool
) -> None:
    create(server, 10, partitioned=partitioned)
    copy(store, target, history=False)
    with running(store, target):
        server.execute("TRUNCATE t; INSERT INTO t (id, v) VALUES (3, 'after'), (11, 'after')")
        wait_until(lambda: seen(target) == 2)
        server.execute("ALTER TABLE t RENAME v TO w; ALTER TABLE t DROP n; ALTER TABLE t ADD m int DEFAULT 7")
        server.execute("INSERT INTO t (id, w) VALUES (12, 'renamed')")
        wait_until(lambda: seen(target) == 3)
    assert target.table("t").schema.names == ("id", "w", "at", "doc", "m")
    assert is_equal(store, target)
    with server.transaction():
        server.execute("INSERT INTO t (id, w) VALUES (13, 'lost'); TRUNCATE t; INSERT INTO t (id, w) VALUES (14, 'x')")
    copy(store, target, batch_rows=1)
    assert is_equal(store, target)


@pytest.mark.parametrize("batch_rows", [1, 100])
def test_rows_that_are_truncated_in_their_own_transaction_have_no_versions(
    store: Store, target: Store, server: Server, batch_rows: int
) -> None:
    """A batch ends before a TRUNCATE, so the batch with the row does not know that."""
    create(server, 2)
    copy(store, target, history=True)
    with server.transaction():
        server.execute("INSERT INTO t (id) VALUES (13); TRUNCATE t; INSERT INTO t (id) VALUES (14); DELETE FROM t")
        server.execute("INSERT INTO t (id, v) VALUES (14, 'x')")
    copy(store, target, history=True, batch_rows=batch_rows)
    versions = target.table("t").scan(["id", "v", "is_current"]).read_all().to_pylist()
    assert [(row["id"], row["v"], row["is_current"]) for row in versions] == [
        (1, "base 1", False), (2, "base 2", False), (14, "x", True)
    ]  # fmt: skip


def test_rows_that_the_copy_refuses_are_beside_it_through_base_data_changes_and_truncations(
    store: Store, target: Store, server: Server
) -> None:
    create(server, 200)
    with psycopg.connect(target.url, autocommit=True) as session:
        session.execute(
            "CREATE TABLE t (id int PRIMARY KEY, v varchar(8), n numeric(10,2) CHECK (n <> 5), at timestamptz,"
            " doc jsonb)"
        )

        def bad() -> list[Any]:
            return session.execute("SELECT key, batch FROM t_bad_rows ORDER BY (key::json->>'id')::int").fetchall()

        assert copy(store, target, bad_rows="table") == 200
        # 'base 100' has 8 characters; 20 / 4 is 5.
        assert [key for key, _ in bad()] == ['{"id":20}']
        server.execute("UPDATE t SET v = 'a longer text' WHERE id IN (7, 8, 9); DELETE FROM t WHERE id = 20")
        assert copy(store, target, bad_rows="table", batch_rows=2) == 4
        assert [key for key, _ in bad()] == ['{"id":7}', '{"id":8}', '{"id":9}']
        server.execute("ALTER TABLE t ADD m int DEFAULT 3; UPDATE t SET v = 'good' WHERE id = 7")
        copy(store, target, bad_rows="table")
        assert [key for key, _ in bad()] == ['{"id":8}', '{"id":9}']
        session.execute("ALTER TABLE t ALTER v TYPE text")
        assert target.retry_bad_rows("t") == RetriedRows(2, 0, 0)
        assert is_equal(store, target)
        server.execute("UPDATE t SET n = 5 WHERE id < 4; TRUNCATE t; INSERT INTO t (id, n) VALUES (300, 5), (2, 6)")
        copy(store, target, bad_rows="table", batch_rows=2)
        assert [key for key, _ in bad()] == ['{"id":300}']
        assert seen(target) == 1


@pytest.mark.parametrize("options", [{}, {"history": True}, {"schema_change": "lenient"}], ids=str)
def test_a_column_that_was_null_between_two_looks_is_null_in_the_copy(
    store: Store, target: Store, server: Server, options: dict[str, Any]
) -> None:
    server.execute("CREATE TABLE t (id int PRIMARY KEY, v int NOT NULL)")
    copy(store, target, **options)
    # The migration of a column: its rows get values in steps, and it is NOT NULL again when the next worker looks.
    server.execute("ALTER TABLE t ALTER v DROP NOT NULL; ALTER TABLE t RENAME v TO w; INSERT INTO t VALUES (1), (2)")
    server.execute("UPDATE t SET w = 5 WHERE id = 1")
    server.execute("UPDATE t SET w = 6 WHERE id = 2; ALTER TABLE t ALTER w SET NOT NULL")
    assert copy(store, target, batch_rows=1, **options) == 4
    assert [column.nullable for column in target.table("t").schema.columns][:2] == [False, True]
    rows = [(row["id"], row["w"]) for row in target.table("t")]
    assert rows == ([(1, None), (1, 5), (2, None), (2, 6)] if options.get("history") else [(1, 5), (2, 6)])


def test_a_mirror_that_follows_no_change_names_a_column_that_was_null(
    store: Store, target: Store, server: Server
) -> None:
    server.execute("CREATE TABLE t (id int PRIMARY KEY, v int NOT NULL, w int)")
    copy(store, target, schema_change="fail")
    server.execute("ALTER TABLE t ALTER v DROP NOT NULL; INSERT INTO t VALUES (1)")
    server.execute("UPDATE t SET v = 5; ALTER TABLE t ALTER v SET NOT NULL")
    with pytest.raises(SchemaError, match="schemaChange=fail; received: column v may be null"):
        copy(store, target, batch_rows=1, schema_change="fail")
    # A column that only the copy has as NOT NULL stays so.
    with psycopg.connect(target.url, autocommit=True) as session:
        session.execute("ALTER TABLE t ALTER v DROP NOT NULL, ALTER w SET NOT NULL")
    with pytest.raises(SchemaError, match="'w' is NOT NULL and has no value"):
        copy(store, target, batch_rows=1)


@pytest.mark.parametrize("history", [False, True])
def test_a_copy_without_a_column_that_it_had_is_not_continued(
    store: Store, target: Store, server: Server, history: bool
) -> None:
    create(server, 10)
    copy(store, target, history=history)
    server.execute("UPDATE t SET n = 1 WHERE id = 2")
    with psycopg.connect(target.url, user="postgres", autocommit=True) as session:
        session.execute("ALTER TABLE t RENAME v TO w")
        with pytest.raises(DataLossError, match=r"columns of mirror 't' were dropped.*received: no column v;"):
            copy(store, target, history=history)
        session.execute("ALTER TABLE t RENAME w TO v")
        assert copy(store, target, history=history) == 1
        session.execute("ALTER TABLE t DROP v")
        with pytest.raises(DataLossError, match="no column v"):
            copy(store, target, history=history)
        # Without rows nothing is missing.
        session.execute("DELETE FROM t")
        assert copy(store, target, history=history) == 0
        assert "v" in target.table("t").schema.names


def test_a_wider_key_is_given_to_the_copy_by_hand(store: Store, target: Store, server: Server) -> None:
    create(server, 10)
    copy(store, target)
    server.execute("ALTER TABLE t ALTER id TYPE bigint")
    server.execute("UPDATE t SET id = 5000000000 WHERE id = 1")
    with pytest.raises(SchemaError, match=r"'id' of the primary key .* has a wider type.*give the column this type in"):
        copy(store, target)
    with psycopg.connect(target.url, user="postgres", autocommit=True) as session:
        session.execute("ALTER TABLE t ALTER id TYPE bigint")
    copy(store, target)
    assert is_equal(store, target)


def test_a_source_or_copy_without_its_primary_key_is_named(store: Store, target: Store, server: Server) -> None:
    create(server, 10)
    copy(store, target)
    server.execute("ALTER TABLE t DROP CONSTRAINT t_pkey")
    with pytest.raises(SchemaError, match=r"table 't' has no primary key.*ADD PRIMARY KEY"):
        copy(store, target)
    server.execute("ALTER TABLE t ADD PRIMARY KEY (id)")
    with psycopg.connect(target.url, user="postgres", autocommit=True) as session:
        session.execute("ALTER TABLE t DROP CONSTRAINT t_pkey")
        with pytest.raises(SchemaError, match="another primary key than the mirror; received: none; valid: id;"):
            copy(store, target)
        session.execute("ALTER TABLE t ADD PRIMARY KEY (id)")
    assert copy(store, target) == 0


def test_a_commit_wakes_a_worker(store: Store, target: Store, server: Server, monkeypatch: pytest.MonkeyPatch) -> None:
    create(server, 1)
    copy(store, target)
    # Without the pauses between reads, only the growth of the log can bring a row.
    monkeypatch.setattr(leased_channel, "FIRST_PAUSE", 600.0)
    monkeypatch.setattr(leased_channel, "LONGEST_PAUSE", 600.0)
    with running(store, target):
        for number in range(2, 12):
            server.execute("INSERT INTO t (id) VALUES (%s)", (number,))
            wait_until(lambda number=number: target.table("t").get({"id": number}) is not None)  # type: ignore[misc]


def test_the_session_of_a_worker_is_ended_and_each_change_is_copied_once(
    store: Store, target: Store, server: Server
) -> None:
    create(server, 100)
    setup = headrace.mirror_worker(store, "t", target)
    setup.stop()
    setup.run()
    log = target.create_tunnel("t", "log", "Stream")
    with running(store, target, batch_rows=5), psycopg.connect(target.url, autocommit=True) as admin:
        wait_until(lambda: seen(target) == 100)
        for number in range(40):
            server.execute("INSERT INTO t (id, v) VALUES (%s, 'new')", (1000 + number,))
            admin.execute(
                "SELECT pg_terminate_backend(pid) FROM pg_stat_activity"
                " WHERE datname = current_database() AND pid <> pg_backend_pid()"
            )
            time.sleep(0.02)
        wait_until(lambda: is_equal(store, target))
    kinds = {kind for batch in log.consume(idle="stop") for kind in batch.changes.ops.to_pylist()}
    assert kinds == {ChangeOp.INSERT}, "a row was copied twice"
