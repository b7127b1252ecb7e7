"""Connections to PostgreSQL: passwords and TLS of libpq, copies in other processes, and no secret in any text."""

from __future__ import annotations

import multiprocessing
import os
import pickle
import socket
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import psycopg
import pytest
from psycopg import sql

import headrace
from headrace.errors import NotFoundError, OptionError, StoreError
from headrace.ports import Store
from headrace.stores.postgres.store import PostgresStore
from tests.conformance import serving
from tests.postgres_proxy import postgres_proxy
from tests.postgres_server import USER, PostgresServer

PASSWORD = "s3cret'of the\\tests"


@pytest.fixture(scope="module")
def locked() -> Iterator[str]:
    """The address of a database whose user needs a password."""
    server = PostgresServer.start()
    try:
        with psycopg.connect(host="127.0.0.1", port=server.port, user=USER, dbname="postgres", autocommit=True) as root:
            root.execute(sql.SQL("CREATE ROLE locked LOGIN PASSWORD {}").format(PASSWORD))
            root.execute("CREATE ROLE no_login")
            root.execute("CREATE ROLE rejected LOGIN")
            root.execute("CREATE TABLE t (id int PRIMARY KEY)")
            root.execute("GRANT SELECT ON t TO locked")
            rules = server.root / "data" / "pg_hba.conf"
            refused = "host all rejected 127.0.0.1/32 reject\n"
            rules.write_text(f"{refused}host all locked 127.0.0.1/32 scram-sha-256\n" + rules.read_text())
            root.execute("SELECT pg_reload_conf()")
        yield f"postgresql://locked@127.0.0.1:{server.port}/postgres"
    finally:
        server.remove()


@pytest.fixture(autouse=True)
def no_password(monkeypatch: pytest.MonkeyPatch, tmp_path: Path) -> None:
    monkeypatch.delenv("PGPASSWORD", raising=False)
    monkeypatch.setenv("PGPASSFILE", str(tmp_path / "none"))


def test_a_password_is_an_option_a_variable_or_in_a_file(
    locked: str, monkeypatch: pytest.MonkeyPatch, tmp_path: Path
) -> None:
    def readable(**options: Any) -> bool:
        with headrace.open(locked, retry_seconds=0, **options) as store:
            # Both drivers connect.
            return store.tables() == ["t"] and store.table("t").scan().read_all().num_rows == 0

    assert readable(password=PASSWORD)
    with pytest.raises(OptionError, match="does not accept the user or the password"):
        readable()
    file = tmp_path / "passwords"
    file.write_text(f"*:*:*:locked:{PASSWORD}\n".replace("\\", "\\\\"))
    file.chmod(0o600)
    assert readable(passfile=str(file))
    monkeypatch.setenv("PGPASSFILE", str(file))
    assert readable()
    monkeypatch.delenv("PGPASSFILE")
    monkeypatch.setenv("PGPASSWORD", PASSWORD)
    assert readable()


def test_a_wrong_password_or_database_is_an_error_at_once_without_the_password(locked: str) -> None:
    missing = locked.rpartition("/")[0] + "/nothing"
    for url, password, error in ((locked, "wrong-hush", OptionError), (missing, PASSWORD, NotFoundError)):
        store = headrace.open(url, password=password, retry_seconds=1e6)
        with pytest.raises(error) as caught:
            store.tables()
        texts = [str(caught.value), repr(caught.value), repr(store), store.url, repr(vars(store))]
        assert not [text for text in texts if password in text or password[:6] in text]


@pytest.mark.parametrize("user", ["no_login", "rejected", "missing"])
def test_a_user_that_the_server_refuses_is_an_error_at_once(locked: str, user: str) -> None:
    store = headrace.open(locked.replace("locked@", f"{user}@"), retry_seconds=1e6)
    with pytest.raises(OptionError, match="does not accept the user or the password"):
        store.tables()
    # Through the other driver.
    with pytest.raises(OptionError, match="does not accept the user or the password"), store._connection.reading():  # type: ignore[attr-defined]
        pass


def test_a_server_that_disappears_is_noticed_by_tcp_within_a_minute(store: Store) -> None:
    assert isinstance(store, PostgresStore)
    with (
        psycopg.connect(store._connection.address.conninfo()) as connection,
        socket.socket(fileno=os.dup(connection.fileno())) as client,
    ):
        settings = (socket.TCP_KEEPIDLE, socket.TCP_KEEPINTVL, socket.TCP_KEEPCNT, socket.TCP_USER_TIMEOUT)
        idle, interval, count, unanswered = (client.getsockopt(socket.IPPROTO_TCP, name) for name in settings)
        assert client.getsockopt(socket.SOL_SOCKET, socket.SO_KEEPALIVE) == 1
        assert idle + interval * count <= 60
        assert unanswered <= 60_000


def test_a_user_without_a_right_is_told_the_right(locked: str) -> None:
    with headrace.open(locked, password=PASSWORD, retry_seconds=0) as store:
        with pytest.raises(StoreError, match=r"no right.*permission denied for table t") as caught:
            store.table("t").put({"id": 1})
        assert PASSWORD not in str(caught.value)


def test_tls_that_the_server_does_not_have_is_an_error(locked: str) -> None:
    for mode, message in (("require", "does not support SSL"), ("nonsense", "sslmode")):
        store = headrace.open(locked, password=PASSWORD, sslmode=mode, retry_seconds=1e6)
        with pytest.raises(StoreError, match=message):
            store.tables()


@pytest.fixture
def store() -> Iterator[Store]:
    with headrace.open(serving.postgres_database()) as opened:
        yield opened


def test_a_pickled_store_and_table_connect_again(store: Store) -> None:
    table = store.create_table("t", {"id": "long"}, "id")
    table.put({"id": 1})
    for _ in range(2):
        other_store, other = pickle.loads(pickle.dumps((store, table)))
        other.put({"id": 2})
        assert other_store.table("t").schema == table.schema
        other_store.close()
    assert table.scan().read_all().to_pylist() == [{"id": 1}, {"id": 2}]


def test_a_forked_process_does_not_use_or_close_the_connections_of_its_parent(store: Store) -> None:
    table = store.create_table("t", {"id": "long"}, "id")
    table.put({"id": 0})

    def work(number: int) -> None:
        table.put({"id": number})
        assert table.get({"id": 0}) == {"id": 0}
        store.close()

    sessions = "SELECT pid FROM pg_stat_activity WHERE application_name = 'headrace'"
    with psycopg.connect(store.url) as observer:
        before = observer.execute(sessions).fetchall()
        children = [multiprocessing.get_context("fork").Process(target=work, args=(number,)) for number in (1, 2)]
        for child in children:
            child.start()
        for child in children:
            child.join()
        assert [child.exitcode for child in children] == [0, 0]
        table.put({"id": 3})
        observer.rollback()
        # None is new; those of earlier tests can have ended.
        assert set(observer.execute(sessions).fetchall()) <= set(before)
    assert table.scan().read_all().num_rows == 4


def test_idle_connections_do_not_outlive_a_restart_of_the_server() -> None:
    server = PostgresServer.start()
    try:
        # Without repetitions, each use of a stale connection would be an error.
        url = f"postgresql://{USER}@127.0.0.1:{server.port}/postgres"
        with headrace.open(url, retry_seconds=0) as store:
            table = store.create_table("t", {"id": "long"}, "id")
            for stops in (False, True, False):
                table.put({"id": 1})
                # Several idle connections of each driver.
                readers = [table.scan() for _ in range(3)]
                assert [reader.read_all().num_rows for reader in readers] == [1, 1, 1]
                server.stop(immediately=stops)
                server.run()
                assert table.scan().read_all().to_pylist() == [{"id": 1}]
                table.put({"id": 1})
                assert store.tables() == ["t"]
    finally:
        server.remove()


def test_statements_that_repeat_are_prepared_and_notice_each_change(store: Store) -> None:
    assert isinstance(store, PostgresStore)

    def names() -> set[tuple[str, ...]]:
        return {store.table("changing").schema.names for _ in range(10)}

    with psycopg.connect(store.url, autocommit=True) as other:
        other.execute("CREATE TABLE changing (id bigint PRIMARY KEY)")
        assert names() == {("id",)}
        assert store.connection.ask(_prepared) > 0
        # With it, a generic plan of a large statement takes seconds for each call.
        assert store.connection.ask(lambda session: session.execute("SHOW jit").fetchone()) == ("off",)
        other.execute("ALTER TABLE changing ADD a text, ALTER id TYPE integer")
        assert names() == {("id", "a")}
        other.execute("DROP TABLE changing; CREATE TABLE changing (key text PRIMARY KEY)")
        assert names() == {("key",)}
        # Headrace's own tables, too.
        for _ in range(2):
            assert [store.publisher("prepared").marker() for _ in range(10)] == [None] * 10
            other.execute("DROP SCHEMA headrace CASCADE")
        other.execute("DROP TABLE changing")


def _prepared(session: psycopg.Connection) -> int:
    row = session.execute("SELECT count(*) FROM pg_prepared_statements").fetchone()
    assert row is not None
    return int(row[0])


def test_a_notebook_does_not_wait_for_a_server_that_is_gone(locked: str) -> None:
    port = int(locked.partition("@127.0.0.1:")[2].partition("/")[0])
    with postgres_proxy(port) as proxy:
        url = f"postgresql://locked@127.0.0.1:{proxy.port}/postgres"
        store = headrace.open(url, password=PASSWORD, retry_seconds=6)
        table = store.table("t")
        assert "Table t" in str(table._repr_html_())
    shown = str(table._repr_html_())
    assert "Table t" in shown
    assert "has not answered within 2 seconds" in shown
    store.close()
