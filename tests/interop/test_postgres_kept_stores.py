"""The store of a task stays open for the next task of its process, and never longer, for others, or elsewhere."""

from __future__ import annotations

import multiprocessing
import time
from collections.abc import Callable, Iterator
from contextlib import ExitStack

import psycopg
import pyarrow as pa
import pytest
from pyspark.sql.types import LongType, StructField, StructType

import headrace
from headrace.errors import NotFoundError, StoreError
from headrace.formats.registry import source_of
from headrace.model.tables.changes import RowChange
from headrace.ports import Store, Write
from headrace.spark import kept_stores
from headrace.spark.executors import task_store
from headrace.spark.native_sinks import StreamSink
from headrace.stores.postgres.store import PostgresStore
from headrace.stores.registry import StoreAddress
from tests.conformance import serving
from tests.pgbouncer import needs_pgbouncer, pgbouncer
from tests.postgres_server import USER, PostgresServer, create_database, drop_database

_SESSIONS = """
SELECT pid, backend_start::text FROM pg_stat_activity
WHERE application_name = 'headrace' AND datname = current_database()
"""
_PATIENCE = 10.0
OTHER = "other_of_kept_stores"


@pytest.fixture(autouse=True)
def nothing_kept() -> Iterator[None]:
    kept_stores.close_all()
    yield
    kept_stores.close_all()


@pytest.fixture
def url() -> str:
    """The address of an empty database."""
    return serving.postgres_database()


@pytest.fixture
def observer(url: str) -> Iterator[psycopg.Connection]:
    """Another connection to the database, in autocommit mode."""
    with psycopg.connect(url, autocommit=True) as connection:
        yield connection


def address_of(url: str) -> StoreAddress:
    """Return the address of a store as the driver sends it, and leave no connection."""
    with headrace.open(url) as store:
        store.create_table("t", {"id": "long"}, "id", exist_ok=True)
        address = StoreAddress(url).of(store)
    # The server ends a session after its client has left.
    with psycopg.connect(url, autocommit=True) as observer:
        wait_until(lambda: not sessions(observer))
    return address


def sessions(observer: psycopg.Connection) -> set[tuple[int, str]]:
    return set(observer.execute(_SESSIONS).fetchall())


def use(store: Store, number: int = 1) -> None:
    """Use both drivers."""
    store.table("t").put([{"id": number}])


def run_task(address: StoreAddress, number: int = 1) -> None:
    with task_store(address) as store:
        use(store, number)


def wait_until(condition: Callable[[], bool]) -> None:
    deadline = time.monotonic() + _PATIENCE
    while not condition():
        assert time.monotonic() < deadline
        time.sleep(0.01)


def test_a_task_has_the_connections_of_the_task_before_it(url: str, observer: psycopg.Connection) -> None:
    address = address_of(url)
    run_task(address)
    kept = sessions(observer)
    assert len(kept) == 2
    for number in range(3):
        run_task(address, number)
        assert sessions(observer) == kept
    kept_stores.close_all()
    wait_until(lambda: not sessions(observer))


def test_a_native_sink_has_the_connections_of_the_batch_before(url: str, observer: psycopg.Connection) -> None:
    address_of(url)
    sink = source_of("headrace", {"store": url, "table": "t"})
    schema = StructType([StructField("id", LongType())])
    StreamSink(sink, schema).abort([], 0)
    kept = sessions(observer)
    assert kept
    for number in range(3):
        StreamSink(sink, schema).abort([], number)
        assert sessions(observer) == kept


def test_two_tasks_at_a_time_have_two_stores(url: str) -> None:
    address = address_of(url)
    run_task(address)
    with task_store(address) as one, task_store(address) as two:
        assert one is not two


def test_a_store_without_a_task_is_closed(
    url: str, observer: psycopg.Connection, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(kept_stores, "IDLE_SECONDS", 0.05)
    run_task(address_of(url))
    wait_until(lambda: not sessions(observer))
    run_task(address_of(url))


def test_a_store_is_used_for_a_limited_time(
    url: str, observer: psycopg.Connection, monkeypatch: pytest.MonkeyPatch
) -> None:
    address = address_of(url)
    run_task(address)
    kept = sessions(observer)
    monkeypatch.setattr(kept_stores, "monotonic", lambda: time.monotonic() + kept_stores.LONGEST_SECONDS)
    run_task(address)
    assert not kept_stores._kept
    wait_until(lambda: not sessions(observer))
    run_task(address)
    assert len(sessions(observer)) == len(kept)


def test_the_connections_of_a_kept_store_have_no_transaction(url: str, observer: psycopg.Connection) -> None:
    run_task(address_of(url))
    states = observer.execute(
        "SELECT DISTINCT state, backend_xmin IS NULL, EXISTS (SELECT FROM pg_locks l WHERE l.pid = a.pid)"
        " FROM pg_stat_activity a WHERE application_name = 'headrace' AND datname = current_database()"
    ).fetchall()
    assert states == [("idle", True, False)]


def test_a_task_does_not_notice_that_the_server_has_ended_the_connections(
    url: str, observer: psycopg.Connection
) -> None:
    address = address_of(url)
    run_task(address)
    kept = sessions(observer)
    # The new connections have the new settings of the role.
    observer.execute(f"ALTER ROLE {USER} SET synchronous_commit = off")
    try:
        observer.execute("SELECT pg_terminate_backend(pid, 10000) FROM unnest(%s::int[]) pid", ([n for n, _ in kept],))
        with task_store(address) as store:
            use(store)
            assert isinstance(store, PostgresStore)
            shown = store.connection.ask(lambda session: session.execute("SHOW synchronous_commit").fetchone())
            assert shown == ("on",)
    finally:
        observer.execute(f"ALTER ROLE {USER} RESET synchronous_commit")
    assert len(sessions(observer)) == len(kept)
    assert not sessions(observer) & kept


def test_the_store_of_a_task_with_an_error_is_closed(url: str, observer: psycopg.Connection) -> None:
    address = address_of(url)
    run_task(address)
    with pytest.raises(NotFoundError), task_store(address) as store:
        store.table("missing")
    wait_until(lambda: not sessions(observer))

    def rows() -> Iterator[int]:
        with task_store(address) as store:
            use(store)
            yield 1
            yield 2

    # A LIMIT ends a task before its last row.
    begun = rows()
    next(begun)
    begun.close()  # type: ignore[attr-defined]
    wait_until(lambda: not sessions(observer))


def test_another_user_option_or_environment_has_its_own_store(
    url: str, observer: psycopg.Connection, monkeypatch: pytest.MonkeyPatch
) -> None:
    def user_of(address: StoreAddress) -> str:
        with task_store(address) as store:
            assert isinstance(store, PostgresStore)
            row = store.connection.ask(lambda session: session.execute("SELECT current_user::text").fetchone())
            assert row is not None
            return str(row[0])

    without_user = url.replace(f"{USER}@", "")
    with monkeypatch.context() as environment:
        environment.setenv("PGUSER", USER)
        address = address_of(without_user)
        run_task(address)
        assert user_of(address) == USER
        observer.execute(f"DROP ROLE IF EXISTS {OTHER}")
        observer.execute(f"CREATE ROLE {OTHER} LOGIN")
        assert user_of(StoreAddress(without_user, {"user": OTHER}, address.instance)) == OTHER
        with task_store(address):
            # A task that changes the environment.
            environment.setenv("PGUSER", OTHER)
        assert user_of(address) == OTHER
    kept_stores.close_all()
    observer.execute(f"DROP ROLE {OTHER}")


def test_no_text_of_a_kept_store_has_its_password(url: str) -> None:
    with headrace.open(url, password="hush-of-kept") as store:
        store.create_table("t", {"id": "long"}, "id")
        address = StoreAddress(url, {"password": "hush-of-kept"}).of(store)
    run_task(address)
    assert kept_stores._kept
    assert "hush" not in repr(kept_stores._kept) + str(kept_stores._kept)


def test_a_forked_process_does_not_use_or_end_the_connections_of_a_kept_store(
    url: str, observer: psycopg.Connection
) -> None:
    address = address_of(url)
    run_task(address)
    kept = sessions(observer)

    def work(number: int) -> None:
        with task_store(address) as store:
            store.table("t").put([{"id": number}])
            with psycopg.connect(url, autocommit=True) as own:
                assert len(sessions(own)) == 4
        kept_stores.close_all()

    child = multiprocessing.get_context("fork").Process(target=work, args=(7,))
    child.start()
    child.join()
    assert child.exitcode == 0
    wait_until(lambda: sessions(observer) == kept)
    run_task(address, 8)
    assert sessions(observer) == kept
    assert observer.execute("SELECT array_agg(id ORDER BY id) FROM t").fetchone() == ([1, 7, 8],)


def test_a_change_of_a_table_between_two_tasks_is_noticed(url: str, observer: psycopg.Connection) -> None:
    address = address_of(url)
    run_task(address)
    observer.execute("CREATE TYPE color AS ENUM ('red')")
    observer.execute("ALTER TABLE t ADD color color, ADD at date")
    with task_store(address) as store:
        assert store.table("t").schema.names == ("id", "color", "at")
        store.table("t").put([{"id": 2, "color": "red", "at": None}])
    observer.execute("DROP TABLE t; CREATE TABLE t (name text PRIMARY KEY)")
    with task_store(address) as store:
        store.table("t").put([{"name": "n"}])
        assert store.table("t").scan().read_all().to_pylist() == [{"name": "n"}]


def test_a_database_that_was_dropped_and_created_again_is_a_new_one(observer: psycopg.Connection) -> None:
    name, port = "dropped_of_kept_stores", observer.info.port
    drop_database(port, name)
    create_database(port, name)
    address = address_of(f"postgresql://{USER}@127.0.0.1:{port}/{name}")
    rows = pa.table({"id": pa.array([1], pa.int64())})

    def publish() -> bool:
        with task_store(address) as store:
            publisher = store.publisher("job", "t")
            if publisher.published(0):
                return False
            staged = publisher.stage(0, rows.to_batches())
            return publisher.publish(0, [Write("t", RowChange.PUT, tuple(staged))])

    assert publish()
    assert not publish()
    drop_database(port, name)
    create_database(port, name)
    with pytest.raises(NotFoundError), task_store(address) as store:
        store.table("t")
    address_of(address.url)
    assert publish()
    kept_stores.close_all()
    drop_database(port, name)


def test_another_cluster_at_the_address_of_a_kept_store_is_refused() -> None:
    first, second = PostgresServer.start(), PostgresServer.create()
    try:
        address = address_of(f"postgresql://{USER}@127.0.0.1:{first.port}/postgres")
        run_task(address)
        first.stop()
        second.port = first.port
        second.run()
        with pytest.raises(StoreError, match="leads to another store"), task_store(address):
            pass
        second.stop()
        first.run()
        run_task(address, 2)
    finally:
        first.remove()
        second.stop()


def test_a_restart_of_the_server_between_two_tasks_is_not_noticed() -> None:
    server = PostgresServer.start()
    try:
        address = address_of(f"postgresql://{USER}@127.0.0.1:{server.port}/postgres")
        run_task(address)
        server.stop(immediately=True)
        server.run()
        run_task(address, 2)
        kept_stores.close_all()
    finally:
        server.remove()


def test_no_store_is_kept_while_more_than_half_of_the_connections_of_the_server_are_in_use() -> None:
    server = PostgresServer.start(max_connections="20")
    url = f"postgresql://{USER}@127.0.0.1:{server.port}/postgres"
    try:
        address = address_of(url)
        with ExitStack() as others:
            for _ in range(11):
                others.enter_context(psycopg.connect(url))
            run_task(address)
            assert not kept_stores._kept
        with psycopg.connect(url, autocommit=True) as observer:
            busy = "SELECT sum(numbackends) > 2 FROM pg_stat_database"
            wait_until(lambda: observer.execute(busy).fetchone() == (False,))
        run_task(address, 2)
        assert kept_stores._kept
        kept_stores.close_all()
    finally:
        server.remove()


@needs_pgbouncer
@pytest.mark.parametrize("mode", ["session", "transaction"])
def test_no_store_is_kept_behind_a_pooler(url: str, observer: psycopg.Connection, mode: str) -> None:
    with pgbouncer(observer.info.port, mode) as port:
        run_task(address_of(url.replace(f":{observer.info.port}/", f":{port}/")))
        assert not kept_stores._kept
