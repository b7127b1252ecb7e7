"""A database as users have it: keys or none, views, partitions, inheritance, foreign tables, extensions, odd names."""

from __future__ import annotations

import json
from collections.abc import Callable, Iterator
from pathlib import Path
from typing import Any

import psycopg
import pyarrow as pa
import pytest

import headrace
from headrace.batches.sinks.targets import TableTarget
from headrace.cli.main import main
from headrace.errors import SchemaError, StoreError, UnsupportedError
from headrace.model.tables.changes import RowChange
from headrace.ports import Store, Write
from headrace.testing.reading import drain, replay, state_of
from headrace.ui.server import UiThread
from tests.conformance import serving
from tests.ui.conftest import Browser

DATABASE = "first_contact"
_TABLES = 300
_SCHEMA = """
CREATE SCHEMA shop; CREATE SCHEMA "Sales.2026"; CREATE SCHEMA many;
CREATE EXTENSION citext; CREATE EXTENSION hstore;
CREATE TABLE orders (id bigint PRIMARY KEY, customer text, gone int, price numeric(10,2), at timestamptz);
INSERT INTO orders VALUES (1, 'Ann', 1, 1.5, '2026-01-01'), (2, 'Ben', 2, 2.5, NULL);
ALTER TABLE orders DROP COLUMN gone;
CREATE TABLE keyless (id int, name text, tags text[], h hstore);
INSERT INTO keyless VALUES (1, 'x', '{a}', 'a=>1'), (1, 'x', '{a}', 'a=>1'), (NULL, NULL, NULL, NULL);
CREATE TABLE five (a int, b int, c int, d int, e timestamptz, v text, PRIMARY KEY (a, b, c, d, e));
INSERT INTO five VALUES (1, 2, 3, 4, '2026-01-01', 'v');
CREATE TABLE deferred (id int PRIMARY KEY DEFERRABLE); INSERT INTO deferred VALUES (1);
CREATE TABLE nothing (); INSERT INTO nothing DEFAULT VALUES;
CREATE UNLOGGED TABLE unlogged (id int PRIMARY KEY); INSERT INTO unlogged VALUES (1);
CREATE TABLE parent (id int PRIMARY KEY, v text); CREATE TABLE child (w int) INHERITS (parent);
INSERT INTO child VALUES (2, 'c', 3);
CREATE TABLE events (id int, day date, PRIMARY KEY (id, day)) PARTITION BY RANGE (day);
CREATE TABLE events_old PARTITION OF events FOR VALUES FROM (MINVALUE) TO ('2026-01-01');
CREATE TABLE events_rest PARTITION OF events DEFAULT;
INSERT INTO events VALUES (1, '2025-01-05'), (2, '2027-01-01');
CREATE TABLE shop.rates (code citext, rate numeric); INSERT INTO shop.rates VALUES ('EUR', 1.10);
-- Functions find names by the search path of the user.
SET search_path = public, shop;
CREATE FUNCTION shop.rate() RETURNS numeric LANGUAGE sql STABLE AS $$ SELECT max(rate) FROM rates $$;
CREATE FUNCTION shop.orders() RETURNS bigint LANGUAGE plpgsql AS $$ BEGIN RETURN (SELECT count(*) FROM orders); END $$;
CREATE VIEW priced AS SELECT id, customer::citext AS customer, price * shop.rate() AS price, shop.orders() AS orders,
    hstore('id', id::text) AS h, ARRAY[customer, NULL] AS tags, NULL AS none FROM orders;
CREATE VIEW shop."Odd View" AS SELECT 1 AS "Größe", 2 AS "a.b", 3 AS "select", 4 AS "with ""quotes"" in it";
CREATE MATERIALIZED VIEW kept AS SELECT * FROM orders;
CREATE MATERIALIZED VIEW empty AS SELECT * FROM orders WITH NO DATA;
CREATE TABLE "Sales.2026"."Order Items" ("Id" int PRIMARY KEY, "Ümlaut" text);
INSERT INTO "Sales.2026"."Order Items" VALUES (1, 'ü');
CREATE TABLE "quote""d" (id int PRIMARY KEY);
"""
_FOREIGN = """
CREATE EXTENSION postgres_fdw;
CREATE SERVER here FOREIGN DATA WRAPPER postgres_fdw OPTIONS (host '127.0.0.1', port '{port}', dbname '{database}');
CREATE USER MAPPING FOR CURRENT_USER SERVER here OPTIONS (user 'postgres');
CREATE FOREIGN TABLE elsewhere (id bigint, customer text) SERVER here OPTIONS (table_name 'orders');
CREATE SERVER away FOREIGN DATA WRAPPER postgres_fdw OPTIONS (host '127.0.0.1', port '1');
CREATE USER MAPPING FOR CURRENT_USER SERVER away OPTIONS (user 'postgres');
CREATE FOREIGN TABLE unreachable (id bigint) SERVER away;
"""


@pytest.fixture(scope="module")
def url() -> str:
    address = serving.postgres_database(DATABASE)
    with psycopg.connect(address, autocommit=True) as session:
        if session.execute("SELECT FROM pg_namespace WHERE nspname = 'many'").rowcount:
            return address
        session.execute(_SCHEMA.encode())
        for number in range(_TABLES):
            session.execute(f"CREATE TABLE many.t{number} (id int PRIMARY KEY)".encode())
        session.execute(f"ALTER DATABASE {DATABASE} SET search_path = public, shop".encode())
        if session.execute("SELECT FROM pg_available_extensions WHERE name = 'postgres_fdw'").rowcount:
            session.execute(_FOREIGN.format(port=session.info.port, database=DATABASE).encode())
    return address


@pytest.fixture
def store(url: str) -> Iterator[Store]:
    with headrace.open(url) as opened:
        yield opened


@pytest.fixture
def run(url: str, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]) -> Callable[..., Any]:
    monkeypatch.setenv("HEADRACE_STORE", url)

    def run(*arguments: str, fails: bool = False) -> Any:
        """Run a command, and return its JSON: of several lines, a list; of a failure, the message."""
        code = main([*arguments, "--json"])
        captured = capsys.readouterr()
        assert bool(code) == fails, captured
        shown = captured.err if fails else captured.out
        lines = [json.loads(line) for line in shown.splitlines() if line.startswith(("{", "["))]
        return lines[0] if len(lines) == 1 else lines

    return run


def test_everything_that_has_rows_is_listed_described_and_read(store: Store) -> None:
    names = [name for name in store.tables() if not name.startswith("many.")]
    expected = {
        '"Sales.2026".Order Items': (("Id",), True, 1),
        '"quote""d"': (("id",), True, 0),
        "child": ((), False, 1),
        "deferred": (("id",), True, 1),
        "events": (("id", "day"), True, 2),
        "events_old": (("id", "day"), True, 1),
        "events_rest": (("id", "day"), True, 1),
        "five": (("a", "b", "c", "d", "e"), True, 1),
        "keyless": ((), False, 3),
        "kept": ((), False, 2),
        "nothing": ((), False, 1),
        "orders": (("id",), True, 2),
        "parent": (("id",), True, 1),
        "priced": ((), False, 2),
        "shop.Odd View": ((), False, 1),
        "shop.rates": ((), False, 1),
        "unlogged": (("id",), False, 1),
    }
    assert set(names) - {"elsewhere", "unreachable"} == {*expected, "empty"}
    assert len(store.tables()) == len(names) + _TABLES
    for name, (key, logged, rows) in expected.items():
        described = store.table(name).describe()
        found = store.table(name).scan().read_all()
        assert (described.schema.primary_key, described.options.change_log, found.num_rows) == (key, logged, rows), name
        assert found.schema.names == list(described.schema.names)
    if "elsewhere" in names:
        assert store.table("elsewhere").scan(where={"id": 2}).read_all().to_pylist() == [{"id": 2, "customer": "Ben"}]
        with pytest.raises(StoreError, match=r'foreign table.*server "away".*ALTER SERVER'):
            store.table("unreachable").scan().read_all()
    with pytest.raises(StoreError, match="REFRESH MATERIALIZED VIEW"):
        store.table("empty").scan().read_all()


def test_a_view_is_read_with_its_functions_types_and_conditions(store: Store) -> None:
    view = store.table("priced")
    row = {"customer": "Ann", "price": "1.6500", "orders": 2, "h": '"id"=>"1"', "tags": ["Ann", None], "none": None}
    assert view.scan(where={"id": 1}).read_all().to_pylist() == [{"id": 1, **row}]
    conditions: list[tuple[str, str, Any]] = [
        ("customer", "in", ["Ann", "Eve"]),
        ("h", "starts with", '"id"'),
        ("none", "is null", None),
        ("id", "<", 2),
    ]
    assert view.scan(["id"], conditions).read_all().to_pylist() == [{"id": 1}]
    assert view.scan(["id"], limit=1).read_all().num_rows == 1
    assert len(view.splits(4)) == 1


@pytest.mark.parametrize(
    ("name", "remedy"),
    [
        ("keyless", 'ALTER TABLE "public"."keyless" ADD PRIMARY KEY'),
        ("kept", "a materialized view"),
        ("priced", "a view"),
    ],
)
def test_what_needs_a_key_is_refused_by_name_with_the_way_out(store: Store, name: str, remedy: str) -> None:
    table = store.table(name)
    row = {table.schema.names[0]: 1}
    publisher = store.publisher("job")
    for work in (
        lambda: table.put(row),
        lambda: table.update(row),
        lambda: table.delete(row),
        lambda: table.get(row),
        lambda: table.get_many([row]),
        lambda: store.create_tunnel(name, "t"),
        lambda: TableTarget(name).check(store, table.schema.arrow),
        lambda: list(TableTarget(name).stage_rows(store, publisher, 0, table.scan())),
    ):
        with pytest.raises(SchemaError) as caught:
            work()
        assert repr(name) in str(caught.value)
        assert remedy in str(caught.value)


def test_a_parent_of_other_tables_is_not_written(store: Store, url: str) -> None:
    parent = store.table("parent")
    row = {"id": 2, "v": "x"}
    publisher = store.publisher("job of the parent")
    staged = tuple(publisher.stage(0, pa.Table.from_pylist([row]).to_batches(), table="parent", change=RowChange.PUT))
    works: list[Callable[[], object]] = [
        lambda: parent.put(row),
        lambda: parent.update(row),
        lambda: parent.delete({"id": 2}),
        lambda: publisher.publish(0, [Write("parent", RowChange.PUT, staged)]),
    ]
    for work in works:
        with pytest.raises(UnsupportedError, match=r"'parent' has rows of a table.*child.*NO INHERIT"):
            work()
    assert parent.scan().read_all().to_pylist() == [{"id": 2, "v": "c"}]
    with psycopg.connect(url, autocommit=True) as session:
        session.execute("ALTER TABLE child NO INHERIT parent")
        try:
            parent.put(row)
            parent.delete({"id": 2})
        finally:
            session.execute("ALTER TABLE child INHERIT parent")


def test_a_tunnel_whose_base_data_cannot_be_read_is_not_created(store: Store, url: str) -> None:
    with psycopg.connect(url, autocommit=True) as session:
        session.execute("CREATE TABLE endless (id int PRIMARY KEY, until date)")
        session.execute("INSERT INTO endless VALUES (1, 'infinity')")
        slots = "SELECT count(*) FROM pg_replication_slots WHERE database = current_database()"
        before = session.execute(slots).fetchone()
        with pytest.raises(SchemaError, match=r"'until'.*unrepresentable"):
            store.create_tunnel("endless", "followed")
        assert store.tunnels("endless") == []
        assert session.execute(slots).fetchone() == before
        session.execute("DROP TABLE endless")


def test_a_key_of_many_columns_is_written_split_and_followed(store: Store) -> None:
    key = [f"k{number}" for number in range(7)]
    columns = {**dict.fromkeys(key, "long"), "v": "string"}
    table = store.create_table("many_keys", columns, key)
    rows: list[dict[str, Any]] = [{**dict.fromkeys(key, 1), "k6": number, "v": "a"} for number in range(1000)]
    table.put(rows)
    tunnel = store.create_tunnel("many_keys", "followed", base_channels=2)
    try:
        table.update({**rows[5], "v": "b"})
        table.delete({name: rows[6][name] for name in key})
        assert [len(each.high or ()) for each in table.splits(2)] == [7, 0]
        assert table.get({name: rows[5][name] for name in key}) == {**rows[5], "v": "b"}
        assert replay(drain(tunnel)) == state_of(table)
    finally:
        store.drop_table("many_keys")
    with pytest.raises(SchemaError, match=r"too many columns.*valid: 1 to 32 columns"):
        store.create_table(
            "most", {f"k{number}": "long" for number in range(33)}, [f"k{number}" for number in range(33)]
        )


def test_a_view_is_not_changed(store: Store) -> None:
    view = store.table("priced")
    for work in (
        lambda: view.add_columns({"n": "long"}),
        lambda: view.set_options(pre_images=True),
        lambda: store.drop_table("priced"),
    ):
        with pytest.raises(UnsupportedError, match="'priced' is a view"):
            work()
    with pytest.raises(SchemaError, match=r"no primary key.*child.*keyless.*leave them out: !public\.child,"):
        store.create_tunnel_of_tables(["public.*"], "all")


def test_the_command_line_answers_on_everything(run: Callable[..., Any], tmp_path: Path) -> None:
    listed = run("table", "list")
    assert len(listed) > _TABLES + 15
    assert next(each for each in listed if each["name"] == "keyless")["primary_key"] == []
    assert run("table", "describe", "keyless")["change_log"] is False
    assert run("table", "set", "parent", "pre_images=true")["change_log"] is True
    assert run("table", "head", "orders", "-n", "1")["customer"] == "Ann"
    assert len(run("table", "head", "keyless")) == 3
    assert run("table", "scan", "priced", "--where", "id = 2")["orders"] == 2
    for name, suffix in (("priced", "jsonl"), ("keyless", "parquet"), ("shop.Odd View", "csv")):
        file = tmp_path / f"{suffix}.{suffix}"
        run("export", name, str(file))
        assert file.stat().st_size
    assert run("query", "SELECT count(*) AS n FROM keyless k JOIN orders o ON o.id = k.id")["n"] == 2
    assert run("query", 'SELECT "a.b" FROM "shop.Odd View"')["a.b"] == 2
    rows = tmp_path / "rows.jsonl"
    rows.write_text('{"id": 3, "customer": "Eve", "price": 1.25}\n')
    assert run("load", str(rows), "--table", "orders")["rows"] == 1
    assert run("table", "delete", "orders", "--key", "id=3")
    assert "ADD PRIMARY KEY" in json.dumps(run("load", str(rows), "--table", "keyless", fails=True))


def test_the_doctor_says_what_a_table_lacks(store: Store) -> None:
    for name, remedy in (("keyless", "ADD PRIMARY KEY"), ("priced", "name a table with a primary key")):
        findings = {each.name: each for each in store.diagnose(name)}
        assert remedy in str(findings[f"PostgreSQL: table {name}"].remedy)


def test_the_web_page_shows_everything(store: Store, tmp_path: Path) -> None:
    server = UiThread(store, tmp_path, 0)
    try:
        page = Browser(server.address)
        assert "keyless" in page.get("/tables").text
        for name in ("keyless", "priced", "five", "events", "nothing"):
            assert page.get(f"/table?name={name}").status == 200
            rows = page.get(f"/table/rows?name={name}")
            assert rows.status == 200
        filtered = page.get("/table/rows?name=priced&column=id&operator=%3D&value=2").text
        assert "Ben" in filtered
        assert "Ann" not in filtered
    finally:
        server.stop()


def test_operators_of_other_schemas_are_not_called_by_reads_of_views(url: str) -> None:
    trapped = "RETURNS {} LANGUAGE plpgsql AS $$ BEGIN RAISE 'trapped'; END $$"
    with psycopg.connect(url, autocommit=True) as session:
        session.execute("DROP SCHEMA IF EXISTS trap CASCADE; CREATE SCHEMA trap")
        session.execute("CREATE VIEW trap.v AS SELECT 'a'::varchar AS v, '{a}'::varchar[] AS a, 'a=>1'::hstore AS h")
        for name in (
            "num_nulls(hstore)",
            "format(text, hstore)",
            "array_ndims(varchar[])",
            "array_lower(varchar[], int)",
        ):
            session.execute(f"CREATE FUNCTION trap.{name} {trapped.format('int')}".encode())
        session.execute(f"CREATE FUNCTION trap.compare(varchar, text) {trapped.format('bool')}".encode())
        for operator in ("=", "<", "<=", ">", ">=", "<>"):
            arguments = "(LEFTARG = varchar, RIGHTARG = text, FUNCTION = trap.compare)"
            session.execute(f"CREATE OPERATOR trap.{operator} {arguments}".encode())
    with headrace.open(url, options="-c search_path=trap,public") as store:
        view = store.table("trap.v")
        for operator in ("=", "<=", ">=", "starts with"):
            assert view.scan(where=[("v", operator, "a")]).read_all().num_rows == 1
        assert view.scan(where=[("v", "in", ["a", "b"]), ("v", "!=", "c")]).read_all().num_rows == 1
    with psycopg.connect(url, autocommit=True) as session:
        session.execute("DROP SCHEMA trap CASCADE")
