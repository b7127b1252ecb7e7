"""Tunnels of several PostgreSQL tables: one slot, the order of transactions, base data, repeated reads."""

from __future__ import annotations

import base64
import json
import threading
from collections.abc import Iterator, Sequence
from concurrent.futures import ThreadPoolExecutor
from typing import Any

import psycopg
import pytest
from psycopg import sql

import headrace
from headrace.batches.feeds.channel_reading import read_channel
from headrace.batches.feeds.limits import Limits
from headrace.batches.feeds.tunnel_feed import TunnelFeed
from headrace.cli.main import main
from headrace.errors import AlreadyExistsError, DataLossError, NotFoundError, OptionError, SchemaError, UnsupportedError
from headrace.model.tables.changes import ChangeOp
from headrace.model.tables.json_forms import Decimals, JsonForm
from headrace.model.tunnels.records import INITIAL_BATCH
from headrace.model.tunnels.values import FINISHED, ChannelKind
from headrace.ports import Store, Tunnel
from headrace.stores.postgres.names import TableName
from headrace.stores.postgres.tunnels import log, stored_tunnels
from headrace.stores.postgres.tunnels.positions import lsn_of
from headrace.testing.reading import Change, drain, only_channel, read_batch, read_from, replay, run_to_the_end, unpack
from tests.conformance import serving

DEBEZIUM = JsonForm(debezium=True, decimals=Decimals.PRECISE)


@pytest.fixture
def url(request: pytest.FixtureRequest) -> str:
    return serving.postgres_database(f"several{abs(hash(request.node.nodeid)):x}")


@pytest.fixture
def server(url: str) -> Iterator[psycopg.Connection[Any]]:
    with psycopg.connect(url, user="postgres", autocommit=True) as connection:
        yield connection


@pytest.fixture
def store(url: str, server: psycopg.Connection[Any]) -> Iterator[Store]:
    server.execute("CREATE TABLE orders (id bigint PRIMARY KEY, price bigint)")
    server.execute("CREATE TABLE items (order_id bigint, line int, name text, PRIMARY KEY (order_id, line))")
    with headrace.open(url) as opened:
        yield opened
        for tunnel in opened.tunnels():
            opened.drop_tunnel(tunnel.id)


def rows_of(server: psycopg.Connection[Any], *tables: str) -> dict[tuple[str, str], list[dict[str, Any]]]:
    """Return the rows of tables as PostgreSQL writes them as JSON."""
    found = {}
    for table in tables:
        rows = server.execute(f"SELECT to_json(t) FROM {table} t").fetchall()
        if rows:
            found["public", table] = sorted((row for (row,) in rows), key=repr)
    return found


def followed(changes: Sequence[Change]) -> dict[tuple[str, str], list[dict[str, Any]]]:
    """Return the rows of the tables after changes of a tunnel, and check that each change fits the rows before it."""
    found: dict[tuple[str, str], list[dict[str, Any]]] = {}
    for (schema, table, key), row in replay(changes).items():
        values = json.loads(row["row"])
        assert json.loads(key).items() <= values.items()
        found.setdefault((schema, table), []).append(values)
    return {name: sorted(rows, key=repr) for name, rows in found.items()}


def test_a_transaction_over_two_tables_arrives_whole_and_in_order(
    store: Store, server: psycopg.Connection[Any]
) -> None:
    tunnel = store.create_tunnel_of_tables("public.*", "changes", "Stream")
    channel, start = only_channel(tunnel), tunnel.channels()[0].committed
    with server.transaction():
        server.execute("INSERT INTO orders VALUES (1, 10)")
        server.execute("INSERT INTO items VALUES (1, 1, 'tea')")
        server.execute("UPDATE orders SET price = 12")
        server.execute("INSERT INTO items VALUES (1, 2, 'cup')")
        server.execute("DELETE FROM items WHERE line = 1")
    page = tunnel.read(channel, start, 100)
    assert page.changes.rows.column("table").to_pylist() == ["orders", "items", "orders", "items", "items"]
    assert [ChangeOp(op) for op in page.changes.ops.to_pylist()] == [
        ChangeOp.INSERT,
        ChangeOp.INSERT,
        ChangeOp.REPLACE,
        ChangeOp.INSERT,
        ChangeOp.DELETE,
    ]
    assert page.changes.rows.column("row").to_pylist() == [
        '{"id":1,"price":10}',
        '{"order_id":1,"line":1,"name":"tea"}',
        '{"id":1,"price":12}',
        '{"order_id":1,"line":2,"name":"cup"}',
        None,
    ]
    assert page.changes.rows.column("key").to_pylist()[-1] == '{"order_id":1,"line":1}'
    assert len(set(page.changes.versions.to_pylist())) == 1
    assert page.changes.transactions is not None
    assert len(set(page.changes.transactions.to_pylist())) == 1
    # One slot and one publication for both tables.
    assert server.execute(
        "SELECT count(*) FROM pg_replication_slots WHERE database = current_database()"
    ).fetchone() == (1,)
    assert server.execute("SELECT count(*) FROM pg_publication").fetchone() == (1,)


def test_base_data_and_stream_of_all_tables_add_up_while_writers_run(
    store: Store, server: psycopg.Connection[Any], url: str, monkeypatch: pytest.MonkeyPatch
) -> None:
    # No table is small, so that each chunk is read at another time.
    monkeypatch.setattr(stored_tunnels, "SMALL_TABLE_ROWS", 0)
    server.execute("ALTER TABLE orders REPLICA IDENTITY FULL")
    server.execute("INSERT INTO orders SELECT n, n FROM generate_series(1, 2000) n")
    server.execute("INSERT INTO items SELECT n, 1, 'x' FROM generate_series(1, 1000) n")
    stop = threading.Event()

    def write() -> None:
        number = 10_000
        with psycopg.connect(url, user="postgres") as connection:
            while not stop.is_set():
                number += 1
                connection.execute("INSERT INTO orders VALUES (%s, 0)", (number,))
                connection.execute("UPDATE orders SET price = -price WHERE id %% 97 = %s", (number % 97,))
                connection.execute("UPDATE items SET order_id = -order_id WHERE order_id %% 89 = %s", (number % 89,))
                connection.execute("DELETE FROM items WHERE order_id %% 83 = %s", (number % 83,))
                connection.execute("INSERT INTO items VALUES (%s, 1, 'new'), (%s, 2, 'new')", (number, number))
                connection.rollback() if number % 5 == 0 else connection.commit()

    writer = threading.Thread(target=write)
    writer.start()
    try:
        tunnel = store.create_tunnel_of_tables(["orders", "items"], "changes", base_channels=3)
        base = [channel for channel in tunnel.channels() if channel.kind is ChannelKind.BASE_DATA]
        assert len(base) == 6
        found = []
        for channel in reversed(base):
            # Another process reads each chunk.
            with headrace.open(url) as other:
                changes, end = read_from(other.tunnel("changes"), channel.id, channel.committed, page_rows=300)
            assert end == FINISHED
            found += changes
            tunnel.commit({channel.id: end})
    finally:
        stop.set()
        writer.join()
    found += drain(tunnel)
    assert followed(found) == rows_of(server, "orders", "items")
    assert {change.op for change in found} >= {ChangeOp.PREIMAGE, ChangeOp.DELETE, ChangeOp.INSERT, ChangeOp.REPLACE}


def test_base_data_of_small_tables_is_that_of_one_snapshot(store: Store, server: psycopg.Connection[Any]) -> None:
    server.execute("INSERT INTO orders SELECT n, n FROM generate_series(1, 9) n")
    server.execute("INSERT INTO items SELECT n, 1, 'x' FROM generate_series(1, 9) n")
    store.create_tunnel_of_tables(["orders", "items"], "changes", base_channels=2)
    chunks = server.execute("SELECT count(*), count(DISTINCT snapshot) FROM headrace.chunk").fetchone()
    assert chunks == (4, 1)


def test_pieces_of_base_data_are_one_state_from_the_batch_that_passes_the_last_of_them(
    store: Store, server: psycopg.Connection[Any], monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(stored_tunnels, "SMALL_TABLE_ROWS", 0)
    for table in ("left_side", "right_side"):
        server.execute(f"CREATE TABLE {table} (id bigint PRIMARY KEY, amount bigint)")
        server.execute(f"INSERT INTO {table} SELECT n, 100 FROM generate_series(1, 8) n")
    tunnel = store.create_tunnel_of_tables(["left_side", "right_side"], "changes", base_channels=2).typed()
    feed, previous, number = TunnelFeed(tunnel, limits=Limits(rows_per_batch=4)), INITIAL_BATCH, 0
    (stream,) = [each.id for each in tunnel.channels() if each.kind is ChannelKind.STREAM]
    amounts, before, after = dict[tuple[str, int], int](), set[int](), set[int]()
    while (batch := feed.latest(previous)) != previous:
        for part in feed.plan(batch):
            for changes in read_channel(tunnel, batch, part):
                for row in changes.rows.to_pylist():
                    table = row["_table"]
                    amounts[table, row[table]["id"]] = row[table]["amount"]
        end = tunnel.batches.end(batch, stream)
        ((base_end,),) = server.execute("SELECT base_end - '0/0' FROM headrace.tunnel")
        passed = end is not None and lsn_of(end.position) >= base_end
        (after if passed else before).add(sum(amounts.values()))
        for _ in range(3 if number < 18 else 0):
            number += 1
            with server.transaction():
                server.execute("UPDATE left_side SET amount = amount - %s WHERE id = %s", (number, 1 + number % 8))
                server.execute("UPDATE right_side SET amount = amount + %s WHERE id = %s", (number, 8 - number % 8))
        previous = batch
    assert after == {1600}
    # Pieces that were read between two of the transactions.
    assert before - {1600}


@pytest.mark.parametrize("form", [None, DEBEZIUM])
def test_a_repeated_batch_has_the_same_bytes(
    store: Store, server: psycopg.Connection[Any], url: str, form: JsonForm | None
) -> None:
    def opened(of: Store) -> Tunnel:
        tunnel = of.tunnel("changes")
        return tunnel if form is None else tunnel.with_json(form)

    server.execute("INSERT INTO orders SELECT n, n FROM generate_series(1, 100) n")
    store.create_tunnel_of_tables(["public.*"], "changes", base_channels=2)
    feed = TunnelFeed(opened(store))
    first = feed.latest(INITIAL_BATCH)
    base = read_batch(feed.tunnel, feed.plan(first))
    server.execute("INSERT INTO items SELECT n, 1, 'x' FROM generate_series(1, 50) n")
    server.execute("DELETE FROM orders WHERE id > 90")
    batches = run_to_the_end(feed, first)
    server.execute("ALTER TABLE orders ADD COLUMN city text DEFAULT 'Ufa'")
    server.execute("UPDATE orders SET price = 0")
    with headrace.open(url) as other:
        again = TunnelFeed(opened(other))
        for batch, changes in batches:
            assert read_batch(again.tunnel, again.plan(batch)) == changes
    assert len(base) == 100
    assert sum(len(changes) for _, changes in batches) == 60


@pytest.mark.parametrize("text_format", [True, False])
def test_values_in_base_data_and_stream_are_the_same(
    store: Store, server: psycopg.Connection[Any], text_format: bool
) -> None:
    server.execute("CREATE TYPE mood AS ENUM ('sad', 'glad')")
    server.execute("CREATE DOMAIN positive AS integer CHECK (VALUE > 0)")
    server.execute(
        "CREATE TABLE kinds (id bigint PRIMARY KEY, n numeric(12,3), free numeric, u uuid, j jsonb, m mood, p positive,"
        " d date, t timestamptz, local timestamp, short timestamp(3), clock time, clock3 time(3), f real, g float8,"
        " flags boolean, b bytea, tags text[], ints int[], text text)"
    )
    server.execute("ALTER TABLE kinds REPLICA IDENTITY FULL")
    # A table with another type is sent as text.
    server.execute(f"CREATE TABLE spans (id bigint PRIMARY KEY, span {'int4range' if text_format else 'text'})")
    values = (
        "-12.5, 1234567890123456789012345678901234567890.5, 'a0eebc99-9c0b-4ef8-bb6d-6bb9bd380a11', '{\"a\": [1]}',"
        " 'glad', 7, '1999-12-31', '2024-02-29 12:00:00.5+02', '1900-01-01 00:00:01', '2024-02-29 12:00:00.123',"
        " '24:00:00', '23:59:59.5', 1.5, 'NaN', true, '\\x00ff', '{a,NULL,\"b \\\" c\"}', '{1,2,3}', E'\\t\"é'"
    )
    server.execute(f"INSERT INTO kinds VALUES (1, {values})")
    server.execute("INSERT INTO kinds VALUES (2)")
    tunnel = store.create_tunnel_of_tables("kinds,spans", "changes")
    server.execute(f"INSERT INTO kinds VALUES (3, {values})")
    server.execute("INSERT INTO kinds VALUES (4)")
    plain = {
        "n": -12.5,
        "free": "1234567890123456789012345678901234567890.5",
        "u": "a0eebc99-9c0b-4ef8-bb6d-6bb9bd380a11",
        "j": '{"a": [1]}',
        "m": "glad",
        "p": 7,
        "d": "1999-12-31",
        "t": "2024-02-29T10:00:00.5Z",
        "local": "1900-01-01T00:00:01",
        "short": "2024-02-29T12:00:00.123",
        "clock": "24:00:00",
        "clock3": "23:59:59.5",
        "f": 1.5,
        "g": "NaN",
        "flags": True,
        "b": "AP8=",
        "tags": ["a", None, 'b " c'],
        "ints": [1, 2, 3],
        "text": '\t"é',
    }
    debezium = plain | {
        "n": base64.b64encode((-12500).to_bytes(2, "big", signed=True)).decode(),
        "d": 10956,
        "local": -2208988799000000,
        "short": 1709208000123,
        "clock": 86_400_000_000,
        "clock3": 86_399_500,
    }
    for form, expected in ((None, plain), (DEBEZIUM, debezium)):
        opened = tunnel if form is None else tunnel.with_json(form)
        found = []
        for channel in opened.channels():
            changes, _ = read_from(opened, channel.id, channel.committed)
            found += [json.loads(change.row["row"]) for change in changes]
        nothing = dict.fromkeys(plain)
        assert found == [{"id": n, **(expected if n % 2 else nothing)} for n in (1, 2, 3, 4)]


def test_unchanged_large_values_are_an_error_or_the_placeholder_of_debezium(
    store: Store, server: psycopg.Connection[Any]
) -> None:
    server.execute("ALTER TABLE items ALTER name SET STORAGE EXTERNAL")
    server.execute("INSERT INTO items VALUES (1, 1, repeat('x', 10000))")
    tunnel = store.create_tunnel_of_tables("public.*", "changes", "Stream")
    channel, start = only_channel(tunnel), tunnel.channels()[0].committed
    server.execute("UPDATE items SET line = 2")
    with pytest.raises(UnsupportedError, match="unchanged large value of column 'name'"):
        tunnel.read(channel, start, 10)
    page = tunnel.with_json(DEBEZIUM).read(channel, start, 10)
    assert json.loads(page.changes.rows.column("row")[1].as_py())["name"] == "__debezium_unavailable_value"


def test_tables_are_named_by_patterns(store: Store, server: psycopg.Connection[Any]) -> None:
    server.execute("CREATE SCHEMA sales")
    server.execute("CREATE TABLE sales.bills (id bigint PRIMARY KEY)")
    server.execute("CREATE TABLE log (at timestamptz)")
    with pytest.raises(SchemaError, match=r"no primary key.*received:.*log.*!public\.log"):
        store.create_tunnel_of_tables("public.*", "changes")
    tunnel = store.create_tunnel_of_tables("*.*, !public.log, !headrace.*", "changes", "Stream")
    assert tunnel.table.name == "*.*, !public.log, !headrace.*"
    assert store.tunnel("changes", "*.*,!public.log,!headrace.*").id == tunnel.id
    assert [each.id for each in store.tunnels("*.*, !public.log, !headrace.*")] == [tunnel.id]
    published = server.execute("SELECT schemaname || '.' || tablename FROM pg_publication_tables ORDER BY 1").fetchall()
    assert published == [("public.items",), ("public.orders",), ("sales.bills",)]
    with pytest.raises(AlreadyExistsError, match="several tables have a tunnel of this name"):
        store.create_tunnel_of_tables("orders", "changes")
    # A tunnel of one table may have the same name.
    store.create_tunnel("orders", "changes", "Stream")
    with pytest.raises(NotFoundError, match=r"no such table.*public\.x\*"):
        store.create_tunnel_of_tables("x*", "others")
    with pytest.raises(OptionError, match="needs their names"):
        store.create_tunnel_of_tables(["!public.log"], "others")


def test_names_of_a_list_are_whole_names(store: Store, server: psycopg.Connection[Any], url: str) -> None:
    names = ["a,b", "A b", " c ", 'd"e', "f.g", "Orders 2, old"]
    for name in names:
        server.execute(sql.SQL("CREATE TABLE {} (id bigint PRIMARY KEY)").format(sql.Identifier(name)))
    tables = [TableName("public", name).text for name in names]
    tunnel = store.create_tunnel([*tables, "orders"], "changes")
    rows = list[tuple[str, str]]()
    for name in (*names, "orders"):
        server.execute(sql.SQL("INSERT INTO {} VALUES (1)").format(sql.Identifier(name)))
        rows.append((name, '{"id":1}'))
    channel = next(each for each in tunnel.channels() if each.kind is ChannelKind.STREAM)
    found, _ = read_from(tunnel, channel.id, channel.committed)
    assert sorted((each.row["table"], each.row["key"]) for each in found) == sorted(rows)
    # Its own text names the same tables: for readers, for the tables that may join, and for a tunnel created again.
    assert store.tunnel("changes", tunnel.table.name).id == tunnel.id
    assert all(tunnel.table.covers(table, "") for table in tables)
    assert not any(tunnel.table.covers(table, "") for table in ("a", "b", "old", "Orders 2", "c"))
    assert not tunnel.describe().warnings
    without = tunnel.table.without(["a,b"])
    assert without is not None
    rest = store.create_tunnel_of_tables(without, "rest", "Stream")
    assert [rest.table.covers(table, "") for table in tables] == [False, *(True for _ in tables[1:])]
    assert main(["tunnel", "create", "-s", url, "a,b", " c ", "two", "--kind", "Stream"]) == 0
    assert store.tunnel("two").table.name == 'public."a,b", public." c "'
    assert main(["tunnel", "create", "-s", url, "--tables", '"a,b", A b', "text", "--kind", "Stream"]) == 0
    assert store.tunnel("text").table.name == 'public."a,b", public.A b'


def test_the_table_of_such_a_tunnel_is_described_and_has_no_rows_to_read(
    store: Store, server: psycopg.Connection[Any]
) -> None:
    table = store.create_tunnel_of_tables("public.*", "changes").table
    assert table.schema.primary_key == ("schema", "table", "key")
    assert not table.describe().options.pre_images
    server.execute("ALTER TABLE orders REPLICA IDENTITY FULL")
    server.execute("ALTER TABLE items REPLICA IDENTITY FULL")
    assert table.describe().options.pre_images
    with pytest.raises(UnsupportedError, match="only their changes"):
        table.scan()


def test_a_truncation_names_its_table(store: Store, server: psycopg.Connection[Any]) -> None:
    tunnel = store.create_tunnel_of_tables("public.*", "changes", "Stream")
    channel, start = only_channel(tunnel), tunnel.channels()[0].committed
    server.execute("INSERT INTO orders VALUES (1, 1)")
    server.execute("TRUNCATE items")
    page = tunnel.read(channel, start, 10)
    assert page.changes.rows.column("table").to_pylist() == ["orders"]
    with pytest.raises(DataLossError, match="table 'items' was truncated"):
        tunnel.read(channel, page.next, 10)


def test_typed_rows_end_before_a_truncation(store: Store, server: psycopg.Connection[Any]) -> None:
    tunnel = store.create_tunnel(["orders", "items"], "typed", "Stream").typed()
    channel, start = only_channel(tunnel), tunnel.channels()[0].committed
    server.execute("INSERT INTO orders VALUES (1, 1)")
    server.execute("TRUNCATE items")
    server.execute("INSERT INTO orders VALUES (2, 1)")
    page = tunnel.read(channel, start, 10)
    assert [row["id"] for row in page.changes.rows.column("orders").to_pylist()] == [1]
    with pytest.raises(DataLossError, match="table 'items' was truncated"):
        tunnel.read(channel, page.next, 10)


def test_rows_have_the_name_that_their_table_had(store: Store, server: psycopg.Connection[Any], url: str) -> None:
    server.execute("INSERT INTO orders VALUES (1, 1)")
    store.create_tunnel_of_tables("public.*", "changes")
    server.execute("INSERT INTO orders VALUES (2, 1)")
    server.execute("ALTER TABLE orders RENAME TO sales")
    server.execute("INSERT INTO sales VALUES (3, 1)")
    with headrace.open(url) as other:
        found = [(change.key[1], json.loads(change.key[2])["id"]) for change in drain(other.tunnel("changes"))]
    assert found == [("orders", 1), ("orders", 2), ("sales", 3)]


@pytest.mark.parametrize("rows", [1, 2, 3, 7])
def test_pages_and_windows_of_any_size_have_the_same_changes(
    store: Store, server: psycopg.Connection[Any], monkeypatch: pytest.MonkeyPatch, rows: int
) -> None:
    server.execute("ALTER TABLE orders REPLICA IDENTITY FULL")
    tunnel = store.create_tunnel_of_tables("public.*", "changes", "Stream")
    channel, start = only_channel(tunnel), tunnel.channels()[0].committed
    for number in range(20):
        with server.transaction():
            server.execute("INSERT INTO orders SELECT %s + n, 0 FROM generate_series(1, 3) n", (10 * number,))
            server.execute("INSERT INTO items VALUES (%s, 1, 'a'), (%s, 2, 'b')", (number, number))
            server.execute("UPDATE orders SET price = price + 1 WHERE id %% 20 = %s", (number,))
            server.execute("UPDATE items SET line = line + 10 WHERE order_id = %s AND line = 1", (number,))
    whole, _ = read_from(tunnel, channel, start, page_rows=10_000)
    monkeypatch.setattr(log, "WINDOW_BYTES", 500)
    with headrace.open(store.url) as other:
        parts, _ = read_from(other.tunnel("changes"), channel, start, page_rows=rows)
        # Each page from a tunnel that has read nothing before.
        position, alone = start, list[Change]()
        for _ in range(5):
            page = other.tunnel("changes").read(channel, position, rows)
            alone += unpack(page.changes, tunnel.table.schema.primary_key)
            position = page.next
    assert parts == whole
    assert alone == whole[: len(alone)]
    assert len(whole) == 60 + 40 + 40 + 2 * sum(change.op is ChangeOp.PREIMAGE for change in whole)


def test_changes_of_a_dropped_table_are_left_out_with_a_warning(
    store: Store, server: psycopg.Connection[Any], caplog: pytest.LogCaptureFixture
) -> None:
    tunnel = store.create_tunnel_of_tables("public.*", "changes", "Stream")
    channel, start = only_channel(tunnel), tunnel.channels()[0].committed
    assert tunnel.backlog(channel, start).rows == 0
    server.execute("INSERT INTO items VALUES (1, 1, 'x')")
    server.execute("DROP TABLE items")
    # Another table has its name now.
    server.execute("ALTER TABLE orders RENAME TO items")
    server.execute("INSERT INTO items VALUES (1, 1)")
    assert tunnel.backlog(channel, start).rows == 1
    assert [(change.key[1], change.row["row"]) for change in drain(tunnel)] == [("items", '{"id":1,"price":1}')]
    assert "items was dropped" in caplog.text


def test_tunnels_of_one_table_and_of_embedded_stores_have_no_json(store: Store, tmp_path: Any) -> None:
    with headrace.open(tmp_path / "shop", create=True) as embedded:
        embedded.create_table("a", {"id": "long"}, "id")
        tunnel = embedded.create_tunnel(["a"], "changes")
        with pytest.raises(UnsupportedError, match=r"typed rows, and no JSON.*rows=typed"):
            tunnel.with_json(DEBEZIUM)
    with pytest.raises(UnsupportedError, match="rows as JSON are those of several tables"):
        store.create_tunnel("orders", "one", "Stream").with_json(DEBEZIUM)


# -- typed rows -----------------------------------------------------------------------------------------


def typed(tunnel: Tunnel) -> list[dict[str, Any]]:
    return [{name: value for name, value in change.row.items() if value is not None} for change in drain(tunnel)]


def test_typed_rows_have_the_columns_of_their_tables_now(store: Store, server: psycopg.Connection[Any]) -> None:
    server.execute("CREATE SCHEMA sales")
    server.execute("CREATE TABLE sales.log (id uuid PRIMARY KEY, at timestamptz, tags text[], price numeric(6,2))")
    server.execute("INSERT INTO items VALUES (1, 1, 'old')")
    tunnel = store.create_tunnel(["items", "sales.log"], "typed").typed()
    assert list(tunnel.tables) == ["items", "sales.log"]
    server.execute("INSERT INTO sales.log VALUES ('00000000-0000-0000-0000-000000000001', now(), '{a,null}', 2.5)")
    server.execute("ALTER TABLE items ADD COLUMN note text DEFAULT 'none'")
    server.execute("INSERT INTO items VALUES (1, 2, 'new', 'some')")
    base, log_row, item = typed(tunnel)
    assert base == {"_table": "items", "items": {"order_id": 1, "line": 1, "name": "old", "note": "none"}}
    assert log_row["_table"] == "sales.log"
    assert log_row["sales.log"]["tags"] == ["a", None]
    assert str(log_row["sales.log"]["price"]) == "2.50"
    assert item["items"] == {"order_id": 1, "line": 2, "name": "new", "note": "some"}
    assert all(name in str(tunnel.table.schema) for name in ("note", "sales.log"))


@pytest.mark.parametrize(
    ("statement", "problem"),
    [("DROP TABLE orders", "'orders' of the tunnel was dropped"), ("ALTER TABLE orders RENAME TO x", "another name")],
)
def test_typed_rows_of_a_table_that_is_missing_are_an_error(
    store: Store, server: psycopg.Connection[Any], statement: str, problem: str
) -> None:
    tunnel = store.create_tunnel(["orders", "items"], "typed", "Stream").typed()
    channel, start = only_channel(tunnel), tunnel.channels()[0].committed
    server.execute("INSERT INTO items VALUES (1, 1, 'a')")
    server.execute(statement)
    with pytest.raises(NotFoundError, match=problem):
        tunnel.read(channel, start, 10)
    assert any(problem in warning for warning in tunnel.describe().warnings)
    # The same rows as JSON go on.
    assert [change.row["table"] for change in drain(store.tunnel("typed"))] == ["items"]


def test_a_large_value_that_an_update_leaves_is_an_error_in_typed_rows(
    store: Store, server: psycopg.Connection[Any]
) -> None:
    server.execute("ALTER TABLE items ALTER COLUMN name SET STORAGE EXTERNAL")
    tunnel = store.create_tunnel(["orders", "items"], "typed", "Stream").typed()
    server.execute("INSERT INTO items VALUES (1, 1, repeat('x', 10000))")
    server.execute("UPDATE items SET order_id = 1, line = 1 WHERE line = 1")
    with pytest.raises(UnsupportedError, match="unchanged large value of column 'name'"):
        drain(tunnel)


def test_a_tunnel_continues_on_the_slot_of_a_stopped_connector(store: Store, server: psycopg.Connection[Any]) -> None:
    server.execute("CREATE PUBLICATION dbz_publication FOR ALL TABLES")
    server.execute("SELECT pg_create_logical_replication_slot('debezium', 'pgoutput')")
    server.execute("INSERT INTO orders VALUES (1, 1)")
    server.execute("SELECT pg_replication_slot_advance('debezium', pg_current_wal_flush_lsn())")
    with server.transaction():
        server.execute("INSERT INTO orders VALUES (2, 2)")
        server.execute("INSERT INTO items VALUES (2, 1, 'tea')")
    tunnel = store.create_tunnel_of_tables("public.*", "shop", "Stream", slot="debezium", publication="dbz_publication")
    server.execute("INSERT INTO orders VALUES (3, 3)")
    found = drain(tunnel.with_json(DEBEZIUM))
    assert [json.loads(change.row["row"]) for change in found] == [
        {"id": 2, "price": 2},
        {"order_id": 2, "line": 1, "name": "tea"},
        {"id": 3, "price": 3},
    ]
    store.drop_tunnel("shop")
    server.execute("SELECT pg_drop_replication_slot('debezium')")


def test_threads_that_read_the_slot_at_the_same_time_wait_for_each_other(
    store: Store, server: psycopg.Connection[Any]
) -> None:
    tunnel = store.create_tunnel_of_tables("public.*", "changes", "Stream")
    server.execute("INSERT INTO orders SELECT n, n FROM generate_series(1, 20000) n")
    channel, start = only_channel(tunnel), tunnel.channels()[0].committed

    def read(_: int) -> int:
        with headrace.open(store.url) as other:
            return int(other.tunnel("changes").read(channel, start, 100_000).changes.num_rows)

    with ThreadPoolExecutor(4) as threads:
        assert set(threads.map(read, range(12))) == {20000}


def test_the_command_line_names_several_tables(store: Store, capsys: pytest.CaptureFixture[str]) -> None:
    def run(*arguments: str) -> tuple[int, Any]:
        code = main([*arguments, "--json", "-s", store.url])
        shown = capsys.readouterr()
        return code, json.loads(shown.out or shown.err)

    code, created = run("tunnel", "create", "--tables", "orders, items", "changes", "--kind", "Stream")
    assert (code, created["table"]) == (0, "public.orders, public.items")
    assert run("tunnel", "list")[1][0]["table"] == "public.orders, public.items"
    with psycopg.connect(store.url, autocommit=True) as server:
        server.execute("INSERT INTO orders VALUES (1, 2)")
    code, change = run("tunnel", "tail", "changes", "--no-follow")
    assert (change["table"], change["row"], change["_change_type"]) == ("orders", '{"id":1,"price":2}', "insert")
    for wrong in (["orders", "changes", "--tables", "items"], ["changes"], ["--tables", "items", "x", "--start", "0"]):
        assert run("tunnel", "create", *wrong)[0] != 0
