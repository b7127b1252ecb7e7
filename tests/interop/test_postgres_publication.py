"""Publication and files in a PostgreSQL database: crashes of the server, lost connections, constraints, rights."""

from __future__ import annotations

import json
import threading
from collections.abc import Callable, Iterator
from concurrent.futures import Future, ThreadPoolExecutor
from contextlib import suppress
from typing import Any

import psycopg
import pyarrow as pa
import pytest

import headrace
from headrace.batches.sinks.targets import TableTarget
from headrace.errors import PublicationError, RowsNotWrittenError, SchemaError, StoreError
from headrace.model.tables.changes import RowChange
from headrace.ports import Marker, Publisher, Staged, Store, Write
from headrace.testing.queue_reading import wait_until
from headrace.testing.reading import rows_of
from tests.conformance import serving
from tests.postgres_server import USER, PostgresServer

Session = psycopg.Connection[tuple[Any, ...]]


@pytest.fixture
def url() -> str:
    """The address of an empty database."""
    return serving.postgres_database()


@pytest.fixture
def store(url: str) -> Iterator[Store]:
    with headrace.open(url) as opened:
        yield opened


@pytest.fixture
def session(url: str) -> Iterator[Session]:
    with psycopg.connect(url, autocommit=True) as opened:
        yield opened


@pytest.fixture
def server() -> Iterator[PostgresServer]:
    """A server for one test, which may crash it."""
    started = PostgresServer.start()
    try:
        yield started
    finally:
        started.remove()


def address(server: PostgresServer) -> str:
    return f"postgresql://{USER}@127.0.0.1:{server.port}/postgres"


def staged(publisher: Publisher, batch: int, *rows: dict[str, Any]) -> tuple[Staged, ...]:
    return tuple(publisher.stage(batch, [pa.RecordBatch.from_pylist(list(rows))]))


def write(publisher: Publisher, batch: int, *rows: dict[str, Any], change: RowChange = RowChange.PUT) -> bool:
    """Stage and publish rows for table ``t``."""
    return publisher.publish(batch, [Write("t", change, staged(publisher, batch, *rows))])


def blocked(url: str, call: Callable[[], bool], then: Callable[[Session, int], None]) -> Future[bool]:
    """Start a publication into table ``t``, which a lock stops before its first row, and do something to its process.

    Args:
        then: gets a session, which holds the lock until ``then`` returns, and the number of the server's process.
    """
    result: Future[bool] = Future()
    with (
        # A crash of the server ends the sessions.
        suppress(psycopg.OperationalError),
        psycopg.connect(url) as holder,
        psycopg.connect(url, autocommit=True) as watcher,
    ):
        holder.execute("LOCK TABLE t IN EXCLUSIVE MODE")

        def run() -> None:
            try:
                result.set_result(call())
            except BaseException as error:
                result.set_exception(error)

        threading.Thread(target=run).start()
        waiting: list[tuple[Any, ...]] = []
        while not waiting and not result.done():
            waiting = watcher.execute(
                "SELECT pid FROM pg_locks WHERE relation = 't'::regclass AND NOT granted"
            ).fetchall()
        assert waiting, "the publication did not wait for the lock"
        then(watcher, waiting[0][0])
        holder.rollback()
    return result


def test_writes_of_a_few_rows_leave_no_warning_in_the_log_of_the_server(server: PostgresServer) -> None:
    url = address(server)
    with headrace.open(url) as store, psycopg.connect(url, autocommit=True) as session:
        table, publisher = store.create_table("t", {"id": "long", "n": "long"}, "id"), store.publisher("job")
        session.execute("CREATE VIEW v AS TABLE t")
        # More rows are copied, and after a copy the driver begins a transaction again.
        for batch, change in enumerate((RowChange.PUT, RowChange.UPDATE, RowChange.DELETE)):
            rows = [{"id": number} if change is RowChange.DELETE else {"id": number, "n": 1} for number in range(3000)]
            assert write(publisher, batch, *rows, change=change)
            table.put({"id": batch, "n": 1})
        assert rows_of(store.table("v")) == [{"id": 2, "n": 1}]
    assert "WARNING" not in (server.root / "log").read_text()


# -- crashes and lost connections -------------------------------------------------------------------------


@pytest.mark.parametrize("change", [RowChange.PUT, RowChange.REPLACE_ALL])
def test_a_query_can_leave_out_columns_that_the_server_fills(store: Store, session: Session, change: RowChange) -> None:
    session.execute(
        "CREATE TABLE t (id bigint PRIMARY KEY, serial int NOT NULL GENERATED ALWAYS AS IDENTITY,"
        " state text NOT NULL DEFAULT 'new', n int, twice int GENERATED ALWAYS AS (n * 2) STORED NOT NULL,"
        " note text DEFAULT 'none')"
    )
    session.execute("INSERT INTO t (id, state, n) VALUES (1, 'old', 1)")
    target, publisher = TableTarget("t", change), store.publisher("job")
    rows = pa.RecordBatch.from_pylist([{"id": 1, "n": 5}, {"id": 2, "n": 6}])
    target.check(store, rows.schema)
    assert publisher.publish(0, [target.write(target.stage_rows(store, publisher, 0, [rows]))])
    assert session.execute("SELECT id, serial = 1, state, n, twice, note FROM t ORDER BY id").fetchall() == [
        (1, True, "old", 5, 10, None),
        (2, False, "new", 6, 12, None),
    ]
    with pytest.raises(SchemaError, match="'state' is NOT NULL and has no value in row 1"):
        store.table("t").put([{"id": 3, "n": 1, "state": "new"}, {"id": 4, "n": 1}])


def test_rows_staged_before_a_crash_of_the_server_are_refused_and_staged_again(server: PostgresServer) -> None:
    with headrace.open(address(server)) as store:
        table = store.create_table("t", {"id": "long", "text": "string"}, "id")
        publisher = store.publisher("job")
        before = staged(publisher, 0, {"id": 1, "text": "a"})
        server.stop(immediately=True)
        server.run()
        after = staged(publisher, 0, {"id": 2, "text": "b"})
        with pytest.raises(PublicationError, match="crashed"):
            publisher.publish(0, [Write("t", RowChange.PUT, before + after)])
        assert rows_of(table) == []
        assert not publisher.published(0)
        assert write(publisher, 0, {"id": 1, "text": "a"}, {"id": 2, "text": "b"})
        server.stop(immediately=True)
        server.run()
        assert publisher.published(0)
    with headrace.open(address(server)) as again:
        assert rows_of(again.table("t")) == [{"id": 1, "text": "a"}, {"id": 2, "text": "b"}]


def test_a_crash_of_the_server_during_publication_changes_nothing(server: PostgresServer) -> None:
    url = address(server)
    with headrace.open(url) as store:
        table = store.create_table("t", {"id": "long"}, "id")
        publisher = store.publisher("job")
        rows = staged(publisher, 0, {"id": 1})

        def crash(watcher: Session, process: int) -> None:
            server.stop(immediately=True)
            server.run()

        published = blocked(url, lambda: publisher.publish(0, [Write("t", RowChange.PUT, rows)]), crash)
        with pytest.raises(PublicationError, match="crashed"):
            published.result(60)
        assert not publisher.published(0)
        assert rows_of(table) == []
        assert write(publisher, 0, {"id": 1})
        assert rows_of(table) == [{"id": 1}]


def test_a_publication_whose_connection_is_killed_is_repeated(url: str, store: Store) -> None:
    table = store.create_table("t", {"id": "long"}, "id")
    publisher = store.publisher("job")
    rows = staged(publisher, 0, {"id": 1})

    def kill(watcher: Session, process: int) -> None:
        watcher.execute("SELECT pg_terminate_backend(%s)", [process])

    result = blocked(url, lambda: publisher.publish(0, [Write("t", RowChange.PUT, rows)]), kill)
    assert result.result(60)
    assert rows_of(table) == [{"id": 1}]
    assert publisher.published(0)


# Who changes the first or the last row waits behind its lock until no session has the advisory lock.
_PAUSE = """
CREATE FUNCTION pause() RETURNS trigger LANGUAGE plpgsql AS
$$ BEGIN PERFORM pg_advisory_xact_lock_shared(1); RETURN coalesce(NEW, OLD); END $$;
CREATE TRIGGER pause BEFORE UPDATE OR DELETE ON t FOR EACH ROW WHEN (OLD.id <> 1) EXECUTE FUNCTION pause()
"""


@pytest.mark.parametrize("change", [RowChange.PUT, RowChange.UPDATE, RowChange.DELETE, RowChange.REPLACE_ALL])
def test_a_publication_that_loses_a_deadlock_is_repeated(
    url: str, session: Session, change: RowChange, caplog: pytest.LogCaptureFixture
) -> None:
    caplog.set_level("INFO", "headrace")
    # The server ends the transaction that notices the deadlock: that of headrace. A transaction looks for deadlocks
    # only once in each wait, after this time, so it must be the last that begins to wait.
    session.execute(f'ALTER DATABASE "{session.info.dbname}" SET deadlock_timeout = 10'.encode())
    with headrace.open(url) as store, psycopg.connect(url) as other, ThreadPoolExecutor(2) as threads:
        table = store.create_table("t", {"id": "long", "text": "string"}, "id")
        table.put([{"id": number, "text": "old"} for number in range(3)])
        publisher = store.publisher("job")
        rows = staged(publisher, 0, *({"id": number, "text": "new"} for number in range(3)))
        session.execute(_PAUSE)
        session.execute("SELECT pg_advisory_lock(1)")
        other.execute("SET deadlock_timeout = '1h'")
        other.execute("SET session_replication_role = replica")
        other.execute("UPDATE t SET text = 'of another' WHERE id = 1")
        published = threads.submit(publisher.publish, 0, [Write("t", change, rows)])
        wait_until(lambda: session.execute("SELECT FROM pg_locks WHERE NOT granted").rowcount == 1)
        # It has the first or the last row, for which the other transaction waits now.
        updated = threads.submit(other.execute, "UPDATE t SET text = 'of another' WHERE id <> 1")
        wait_until(lambda: session.execute("SELECT FROM pg_locks WHERE NOT granted").rowcount == 2)
        session.execute("SELECT pg_advisory_unlock(1)")
        updated.result(60)
        other.commit()
        assert published.result(60)
        assert "deadlock detected" in caplog.text
        left = [] if change is RowChange.DELETE else [{"id": number, "text": "new"} for number in range(3)]
        assert rows_of(table) == left


def test_of_concurrent_publications_of_one_batch_one_writes(url: str, store: Store, session: Session) -> None:
    store.create_table("t", {"id": "long", "attempt": "long"}, "id")
    session.execute("CREATE TABLE log (attempt bigint)")
    session.execute(
        "CREATE FUNCTION note() RETURNS trigger LANGUAGE plpgsql AS"
        " $$ BEGIN INSERT INTO log VALUES (NEW.attempt); RETURN NEW; END $$"
    )
    session.execute("CREATE TRIGGER note AFTER INSERT OR UPDATE ON t FOR EACH ROW EXECUTE FUNCTION note()")
    start = threading.Barrier(4)

    def publish(attempt: int) -> list[bool]:
        with headrace.open(url) as other:
            publisher = other.publisher("job")
            rows = [staged(publisher, batch, {"id": batch, "attempt": attempt}) for batch in range(5)]
            done = []
            for batch in range(5):
                start.wait(60)
                done.append(publisher.publish(batch, [Write("t", RowChange.PUT, rows[batch])]))
            return done

    with ThreadPoolExecutor(4) as threads:
        results = list(threads.map(publish, range(4)))
    assert [sum(done) for done in zip(*results, strict=True)] == [1] * 5
    assert session.execute("SELECT count(*) FROM log").fetchone() == (5,)


# -- constraints, triggers, types ---------------------------------------------------------------------------


def test_a_violated_constraint_is_named_with_its_row_and_nothing_changes(store: Store, session: Session) -> None:
    session.execute("CREATE TABLE customer (id bigint PRIMARY KEY)")
    session.execute(
        "CREATE TABLE t (id bigint PRIMARY KEY, customer bigint CONSTRAINT known REFERENCES customer,"
        " price int CONSTRAINT positive CHECK (price > 0))"
    )
    session.execute("INSERT INTO customer VALUES (1)")
    publisher = store.publisher("job")
    good = {"id": 1, "customer": 1, "price": 5}
    for bad, constraint, row in (
        ({"id": 2, "customer": 9, "price": 5}, "known", r"\(customer\)=\(9\)"),
        ({"id": 2, "customer": 1, "price": -7}, "positive", r"\(2, 1, -7\)"),
    ):
        with pytest.raises(RowsNotWrittenError, match=f"(?s){constraint}.*{row}"):
            write(publisher, 0, good, bad)
        assert rows_of(store.table("t")) == []
        assert not publisher.published(0)
    assert write(publisher, 0, good)
    assert rows_of(store.table("t")) == [good]


def test_a_replacement_writes_only_rows_that_differ_also_in_types_without_equality(
    store: Store, session: Session
) -> None:
    session.execute(
        "CREATE TABLE t (id bigint PRIMARY KEY, body json, at point, tags text[], real float8,"
        " size int GENERATED ALWAYS AS (length(body::text)) STORED)"
    )
    session.execute("CREATE TABLE log (op text, id bigint)")
    session.execute(
        "CREATE FUNCTION note() RETURNS trigger LANGUAGE plpgsql AS"
        " $$ BEGIN INSERT INTO log VALUES (TG_OP, COALESCE(NEW.id, OLD.id)); RETURN NULL; END $$"
    )
    session.execute("CREATE TRIGGER note AFTER INSERT OR UPDATE OR DELETE ON t FOR EACH ROW EXECUTE FUNCTION note()")
    publisher = store.publisher("job")
    row = {"id": 1, "body": json.dumps({"a": 1}), "at": "(1,2)", "tags": ["x"], "real": 0.0}
    nulls = {"id": 2, "body": None, "at": None, "tags": None, "real": None}
    gone = {**row, "id": 3}
    write(publisher, 0, row, nulls, gone, change=RowChange.REPLACE_ALL)
    session.execute("TRUNCATE log")
    write(publisher, 1, row, nulls, {**nulls, "id": 4}, change=RowChange.REPLACE_ALL)
    assert session.execute("SELECT * FROM log ORDER BY id").fetchall() == [("DELETE", 3), ("INSERT", 4)]
    session.execute("TRUNCATE log")
    changed = {**row, "body": json.dumps({"a": 2}), "real": -0.0}
    write(publisher, 2, changed, nulls, {**nulls, "id": 4}, change=RowChange.REPLACE_ALL)
    assert session.execute("SELECT * FROM log").fetchall() == [("UPDATE", 1)]
    assert session.execute("SELECT body, real::text, size FROM t WHERE id = 1").fetchone() == ({"a": 2}, "-0", 8)


def test_the_last_staged_row_of_a_key_counts(store: Store) -> None:
    table = store.create_table("t", {"id": "long", "text": "string"}, "id")
    publisher = store.publisher("job")
    receipts = [staged(publisher, 0, {"id": 1, "text": f"{n}"}, {"id": 1, "text": f"{n} again"}) for n in range(3)]
    publisher.publish(0, [Write("t", RowChange.PUT, tuple(one for each in receipts for one in each))])
    assert rows_of(table) == [{"id": 1, "text": "2 again"}]


# -- headrace's own tables ----------------------------------------------------------------------------------


def test_nothing_stays_staged_and_a_sink_has_one_marker(store: Store, session: Session) -> None:
    store.create_table("t", {"id": "long"}, "id")
    publisher = store.publisher("job")
    staged(publisher, 0, {"id": 7})
    staged(store.publisher("dead", "other"), 3, {"id": 8})
    session.execute("UPDATE headrace.stage SET created = now() - interval '2 days' WHERE job = 'dead'")
    for batch in range(3):
        write(publisher, batch, {"id": batch})
    assert session.execute("SELECT count(*) FROM headrace.stage").fetchone() == (0,)
    assert session.execute("SELECT job, sink, batch FROM headrace.marker").fetchall() == [("job", "", 2)]
    assert store.tables() == ["t"]


def test_a_user_without_the_right_to_create_schemas_uses_one_that_exists(
    url: str, store: Store, session: Session
) -> None:
    name = f"writer_{session.info.dbname}"[:60]
    store.create_table("t", {"id": "long"}, "id")
    session.execute(f'CREATE ROLE "{name}" LOGIN'.encode())
    try:
        session.execute(f'GRANT SELECT, INSERT, UPDATE, DELETE ON t TO "{name}"'.encode())
        with headrace.open(url.replace(f"//{USER}@", f"//{name}@")) as limited:
            with pytest.raises(StoreError, match="right"):
                write(limited.publisher("job"), 0, {"id": 1})
            session.execute("CREATE SCHEMA headrace")
            session.execute(f'GRANT USAGE, CREATE ON SCHEMA headrace TO "{name}"'.encode())
            assert write(limited.publisher("job"), 0, {"id": 1})
            limited.files().write("/a/b", b"content")
            assert limited.files().read("/a/b") == b"content"
    finally:
        session.execute(f'DROP OWNED BY "{name}"'.encode())
        session.execute(f'DROP ROLE "{name}"'.encode())


def test_uploads_of_dead_processes_are_removed(store: Store, session: Session) -> None:
    files = store.files()
    dead = files.create("/dead")
    dead.write(b"x" * (5 << 20))
    session.execute("UPDATE headrace.file_node SET modified = modified - 100000 WHERE name = '/dead'")
    files.write("/alive", b"y")
    assert session.execute("SELECT count(*) FROM headrace.file_part").fetchone() == (1,)
    with pytest.raises(StoreError, match="removed"):
        dead.commit()
    dead.abort()
    assert [status.name for status in files.list("/")] == ["alive"]


@pytest.mark.parametrize(
    "addition",
    [
        "SELECT",
        "INSERT INTO t VALUES (7, 'old')",
        "ALTER TABLE t ADD x uuid",
        "CREATE FUNCTION keep() RETURNS trigger LANGUAGE plpgsql AS 'BEGIN NEW.v := upper(NEW.v); RETURN NEW; END';"
        "CREATE TRIGGER keep BEFORE INSERT ON t FOR EACH ROW EXECUTE FUNCTION keep()",
        "ALTER TABLE t ADD n text DEFAULT 'default', ADD g text GENERATED ALWAYS AS (v || '!') STORED",
    ],
    ids=["copy", "existing", "type", "trigger", "default"],
)
def test_rows_with_new_keys_are_those_of_a_put(store: Store, session: Session, addition: str) -> None:
    session.execute("CREATE TABLE t (id bigint PRIMARY KEY, v text)")
    session.execute(addition.encode())
    publisher = store.publisher("job")
    publisher.in_process = True
    rows = pa.record_batch({"id": pa.array(range(2000), pa.int64()), "v": [f"v{number}" for number in range(2000)]})
    staged = TableTarget("t").stage_rows(store, publisher, 0, [rows])
    assert publisher.publish(0, [Write("t", RowChange.PUT, tuple(staged), new=True)], content="behind them")
    publisher.discard(0)
    assert publisher.marker() == Marker(0, "behind them")
    seen = session.execute("SELECT id, lower(v), count(*) OVER () FROM t WHERE id IN (7, 1999) ORDER BY id").fetchall()
    assert seen == [(7, "v7", 2), (1999, "v1999", 2)]
    assert session.execute("SELECT count(*) FROM t").fetchone() == (2000,)
    if addition.endswith("STORED"):
        assert session.execute("SELECT DISTINCT n, g = v || '!' FROM t").fetchall() == [(None, True)]
