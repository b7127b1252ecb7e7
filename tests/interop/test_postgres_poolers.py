"""A real pgbouncer in front of PostgreSQL: few connections, many threads, and errors that say what is wrong."""

from __future__ import annotations

import logging
import threading
from concurrent.futures import ThreadPoolExecutor
from pathlib import Path

import pyarrow as pa
import pytest

import headrace
from headrace.errors import StoreError
from headrace.model.tables.changes import RowChange
from headrace.ports import Store, Write
from headrace.stores.postgres import connection
from headrace.stores.postgres.store import PostgresStore
from tests.conformance import serving
from tests.pgbouncer import needs_pgbouncer, pgbouncer
from tests.postgres_server import USER

pytestmark = needs_pgbouncer
_THREADS, _ROUNDS = 8, 1


@pytest.fixture
def server() -> int:
    """The port of a server with an empty database ``pooled``."""
    return int(serving.postgres_database("pooled").rpartition(":")[2].partition("/")[0])


def _url(port: int) -> str:
    return f"postgresql://{USER}@127.0.0.1:{port}/pooled"


@pytest.mark.parametrize(("mode", "size"), [("session", 3), ("session", 1), ("transaction", 2)])
def test_more_threads_than_connections_wait_for_each_other(
    server: int, mode: str, size: int, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(connection, "_SCARCE_SECONDS", 0.1)
    errors: list[BaseException] = []
    with pgbouncer(server, mode, default_pool_size=str(size)) as port, headrace.open(_url(port)) as store:
        store.drop_table("t", missing_ok=True)
        store.create_table("t", {"id": "long", "v": "string"}, "id")

        def work(number: int) -> None:
            try:
                table = store.table("t")
                publisher = store.publisher(f"{mode} {size} {number}")
                for batch in range(_ROUNDS):
                    key = {"id": number * _ROUNDS + batch}
                    table.put(key | {"v": "put"})
                    assert table.get(key) == key | {"v": "put"}
                    staged = publisher.stage(batch, pa.Table.from_pylist([key | {"v": "published"}]).to_batches())
                    assert publisher.publish(batch, [Write("t", RowChange.PUT, tuple(staged))])
            except BaseException as error:
                errors.append(error)

        threads = [threading.Thread(target=work, args=(number,), daemon=True) for number in range(_THREADS)]
        for thread in threads:
            thread.start()
        for thread in threads:
            thread.join(120)
        assert not [thread for thread in threads if thread.is_alive()]
        assert not errors
        assert store.table("t").scan(["v"]).read_all().to_pylist() == [{"v": "published"}] * (_THREADS * _ROUNDS)


def test_a_pooler_without_a_free_connection_is_named_within_seconds(
    server: int, monkeypatch: pytest.MonkeyPatch, caplog: pytest.LogCaptureFixture
) -> None:
    monkeypatch.setattr(connection, "_SCARCE_SECONDS", 0.1)
    monkeypatch.setattr(connection, "_SHOWN_SECONDS", 0.2)
    settings = {"default_pool_size": "1", "query_wait_timeout": "2"}
    with pgbouncer(server, "session", **settings) as port, headrace.open(_url(port), retry_seconds=0) as store:
        store.drop_table("t", missing_ok=True)
        table = store.create_table("t", {"id": "long"}, "id")
        table.put({"id": 1})
        reader = table.scan()
        reader.read_next_batch()
        with (
            caplog.at_level(logging.WARNING),
            pytest.raises(StoreError, match=r"no connection to .* is free.*pool_size"),
        ):
            table.get({"id": 1})
        assert "pool_mode = transaction" in caplog.text
        del reader
        assert table.get({"id": 1}) == {"id": 1}


@pytest.mark.parametrize("mode", ["session", "transaction"])
def test_no_statement_is_prepared_behind_a_pooler(server: int, mode: str) -> None:
    with pgbouncer(server, mode) as port, headrace.open(_url(port)) as store:
        assert isinstance(store, PostgresStore)
        assert len([store.tables() for _ in range(10)]) == 10
        prepared = store.connection.ask(
            lambda session: session.execute("SELECT count(*) FROM pg_prepared_statements").fetchone()
        )
        assert prepared == (0,)


def test_a_parameter_that_the_pooler_refuses_is_an_error_at_once(server: int, monkeypatch: pytest.MonkeyPatch) -> None:
    with pgbouncer(server, "transaction") as port:
        with (
            headrace.open(_url(port), options="-c work_mem=5MB", retry_seconds=1e6) as store,
            pytest.raises(StoreError, match=r"leave out option options.*ignore_startup_parameters"),
        ):
            store.tables()
        monkeypatch.setenv("PGOPTIONS", "-c work_mem=5MB")
        with (
            headrace.open(_url(port), retry_seconds=1e6) as store,
            pytest.raises(StoreError, match="PGOPTIONS"),
        ):
            store.tables()


def test_an_iceberg_catalog_behind_a_pooler_of_transactions(server: int, tmp_path: Path) -> None:
    """Each transaction can have another session of the server."""

    def work(store: Store, name: str) -> list[int]:
        table = store.create_table(name, {"id": "long"}, "id")
        publisher = store.publisher(f"{tmp_path} {name}")
        for batch in range(8):
            table.put({"id": 2 * batch})
            rows = pa.Table.from_pylist([{"id": 2 * batch + 1}]).to_batches()
            staged = publisher.stage(batch, rows, table=name, change=RowChange.PUT)
            assert publisher.publish(batch, [Write(name, RowChange.PUT, tuple(staged))])
        return [row["id"] for row in table]

    with pgbouncer(server, "transaction", default_pool_size="3") as port, ThreadPoolExecutor(3) as pool:
        url = f"iceberg+{_url(port)}"
        with headrace.open(url, create=True, warehouse=str(tmp_path), catalog=tmp_path.name) as store:
            found = [pool.submit(work, store, name) for name in "abc"]
            assert [each.result(120) for each in found] == [list(range(16))] * 3
