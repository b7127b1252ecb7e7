"""Errors of PostgreSQL: what a user reads when texts, times or open transactions are in the way."""

from __future__ import annotations

import logging
from collections.abc import Callable, Iterator

import psycopg
import pyarrow as pa
import pytest

import headrace
from headrace.errors import SchemaError, StoreBusyError, UnsupportedError
from headrace.model.tables.changes import RowChange
from headrace.ports import Store, Write
from headrace.stores.postgres.tunnels import blockers, slots
from tests.conformance import serving
from tests.postgres_server import USER


@pytest.fixture
def store() -> Iterator[Store]:
    with headrace.open(serving.postgres_database()) as opened:
        yield opened


def test_open_transactions_that_delay_a_new_tunnel_are_named_without_their_values(
    store: Store, monkeypatch: pytest.MonkeyPatch, caplog: pytest.LogCaptureFixture
) -> None:
    monkeypatch.setattr(blockers, "_SHOWN_SECONDS", 0.1)
    monkeypatch.setattr(slots, "_CREATE_SECONDS", 1)
    store.create_table("t", {"id": "long", "v": "string"}, "id")
    with psycopg.connect(store.url, application_name="shop") as writer:
        with psycopg.connect(store.url) as other:
            other.execute("INSERT INTO t VALUES (1, 'hush')")
            other.execute("PREPARE TRANSACTION 'orphan'")
        writer.execute("INSERT INTO t VALUES (2, 'hush')")
        try:
            with caplog.at_level(logging.WARNING), pytest.raises(StoreBusyError) as caught:
                store.create_tunnel("t", "late")
        finally:
            with psycopg.connect(store.url, autocommit=True) as other:
                other.execute("ROLLBACK PREPARED 'orphan'")
        process = f"process {writer.info.backend_pid} of user {USER}"
    for text in (caplog.text, str(caught.value)):
        assert process in text
        assert "shop, INSERT, idle in transaction, open for " in text
        assert "prepared transaction 'orphan' of user" in text
        assert "hush" not in text
    assert store.tunnels() == []
    assert store.create_tunnel("t", "late").name == "late"


def test_objects_that_do_not_let_a_column_change_are_named(store: Store) -> None:
    shop = store.create_table("shop", {"id": "int", "n": "int", "note": "string"}, "id")
    headrace.mirror_worker(store, "shop", store, "copy", idle="stop").run()
    with psycopg.connect(store.url, autocommit=True) as session:
        session.execute("CREATE VIEW numbers AS SELECT n FROM copy")
    copy = store.table("copy")
    used = r"view (public\.)?numbers depends on"
    with pytest.raises(UnsupportedError, match=f"type cannot change.*{used}"):
        copy.widen_column("n", "long")
    with pytest.raises(UnsupportedError, match=f"to be dropped.*{used}.*create them again"):
        copy.drop_columns(["n"])
    with pytest.raises(UnsupportedError, match=f"to be dropped.*{used}"):
        store.drop_table("copy")
    shop.widen_column("n", "long")
    shop.put({"id": 1, "n": 2**40})
    with pytest.raises(UnsupportedError, match=used):
        headrace.mirror_worker(store, "shop", store, "copy", idle="stop").run()
    with psycopg.connect(store.url, autocommit=True) as session:
        session.execute("DROP VIEW numbers")
    headrace.mirror_worker(store, "shop", store, "copy", idle="stop").run()
    assert list(store.table("copy")) == list(shop)


def test_a_text_that_is_not_sent_is_no_lost_connection(store: Store, caplog: pytest.LogCaptureFixture) -> None:
    store.create_table("t", {"id": "long"}, "id")
    with caplog.at_level(logging.INFO), pytest.raises(SchemaError, match="cannot contain NUL"):
        store.create_tunnel("t", "a\0b")
    assert "trying again" not in caplog.text
    assert store.tunnels() == []


@pytest.mark.parametrize("encoding", ["SQL_ASCII", "LATIN1"])
def test_texts_of_databases_in_other_encodings_are_right(store: Store, encoding: str) -> None:
    name = f"encoded_{encoding.lower()}"
    with psycopg.connect(store.url, autocommit=True) as session:
        session.execute(f"DROP DATABASE IF EXISTS {name} WITH (FORCE)".encode())
        session.execute(f"CREATE DATABASE {name} TEMPLATE template0 ENCODING '{encoding}' LOCALE 'C'".encode())
    url = store.url.rpartition("/")[0] + f"/{name}"
    with headrace.open(url) as encoded, psycopg.connect(url, autocommit=True, client_encoding="utf8") as session:
        session.execute('CREATE TABLE "tä" ("ü" int PRIMARY KEY, v text)')
        assert encoded.tables() == ["tä"]
        table = encoded.table("tä")
        table.put({"ü": 1, "v": "café"})
        assert session.execute("SELECT v = 'café' FROM \"tä\"").fetchone() == (True,)
        assert table.scan(where={"v": "café"}).read_all().to_pylist() == [{"ü": 1, "v": "café"}]
        with encoded.create_tunnel("tä", "followed").consume(client="test", idle="stop") as changes:
            session.execute("UPDATE \"tä\" SET v = 'né'")
            seen = [row["v"] for batch in changes for row in batch.to_arrow().to_pylist()]
        assert seen == ["café", "né"]
        if encoding == "LATIN1":
            with pytest.raises(SchemaError, match="has no equivalent in encoding"):
                table.put({"ü": 2, "v": "日本"})
            encoded.drop_table("tä")
            return
        session.execute("INSERT INTO \"tä\" VALUES (2, E'caf\\351')")
        with pytest.raises(SchemaError, match=r"not UTF-8; received: bytes 0xe9.*SQL_ASCII") as caught:
            table.scan().read_all()
        assert table.scan(["ü"]).read_all().num_rows == 2
        correction = str(caught.value).partition("SET c = ")[2].replace("(c,", "(v,")
        session.execute(f'UPDATE "tä" SET v = {correction} WHERE "ü" = 2'.encode())
        assert table.get({"ü": 2}) == {"ü": 2, "v": "café"}
        encoded.drop_table("tä")


@pytest.mark.parametrize(
    ("kind", "value", "problem"),
    [
        ("bit(3)", "1111", r"does not match type bit\(3\).*received: '1111'.*valid: PostgreSQL's type bit\(3\)"),
        ("uuid", "nope", "invalid input syntax for type uuid.*valid: PostgreSQL's type uuid"),
        ("varchar(3)", "long", "would round or shorten.*received: 'long'.*widen the column"),
        ("numeric(40,2)", "1e50", r"numeric field overflow.*type numeric\(40,2\)"),
        ("age", -1, r"constraint \"age_check\".*type public.age CHECK \(\(VALUE > 0\)\)"),
        ("jsonb", "{", "invalid input syntax for type json"),
    ],
)
def test_a_value_that_the_server_refuses_is_named_with_its_column_and_row(
    store: Store, kind: str, value: object, problem: str
) -> None:
    with psycopg.connect(store.url, autocommit=True) as session:
        session.execute("DROP TABLE IF EXISTS t; DROP DOMAIN IF EXISTS age; CREATE DOMAIN age AS int CHECK (VALUE > 0)")
        session.execute(f"CREATE TABLE t (id int, k text, other int, v {kind}, PRIMARY KEY (k, id))".encode())
    table = store.table("t")
    rows = [{"id": number, "k": "a", "v": value if number == 70 else None} for number in range(100)]
    publisher = store.publisher("job")
    batches = pa.Table.from_pylist(rows).to_batches()
    writes = [Write("t", RowChange.UPDATE, tuple(publisher.stage(0, batches, table="t", change=RowChange.UPDATE)))]
    where = r"column 'v' of table 't'.*key k = 'a', id = 70"
    works: list[Callable[[], object]] = [
        lambda: table.put(rows),
        lambda: table.update(rows),
        lambda: publisher.publish(0, writes),
    ]
    for work in works:
        with pytest.raises(SchemaError, match=f"{where}.*{problem}"):
            work()
    assert table.scan().read_all().num_rows == 0


def test_a_key_that_the_server_refuses_is_named(store: Store) -> None:
    with psycopg.connect(store.url, autocommit=True) as session:
        session.execute("CREATE DOMAIN small AS bigint CHECK (VALUE < 100)")
        session.execute("CREATE TABLE numbered (id small PRIMARY KEY)")
    with pytest.raises(SchemaError, match=r"column 'id' of table 'numbered'.*key id = 1099511627776.*check constraint"):
        store.table("numbered").put({"id": 2**40})
