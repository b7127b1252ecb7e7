"""Types of PostgreSQL in users' own tables: each value is read and written as it is, or refused with its column."""

from __future__ import annotations

import datetime
from collections.abc import Iterator
from decimal import Decimal
from typing import Any

import psycopg
import pyarrow as pa
import pytest

import headrace
from headrace.errors import NotFoundError, RowsNotWrittenError, SchemaError, StoreError, UnsupportedError
from headrace.model.tables.conditions import KeyRange
from headrace.ports import Store
from headrace.stores.postgres.tables.conditions import where
from headrace.stores.postgres.tables.table import PostgresTable
from tests.conformance import serving
from tests.postgres_server import needs_version

pytestmark = pytest.mark.usefixtures("few_rows")
UTC = datetime.UTC
# The type in SQL, the type in headrace, and texts of values with their values in headrace.
TYPES: list[tuple[str, str, dict[str, Any]]] = [
    ("smallint", "short", {"-32768": -32768}),
    ("int", "int", {"2147483647": 2147483647}),
    ("bigint", "long", {"-9223372036854775808": -(2**63)}),
    ("oid", "long", {"4294967295": 2**32 - 1}),
    ("numeric(10,2)", "decimal(10,2)", {"12345678.90": Decimal("12345678.90")}),
    ("numeric", "string", {"1.10": "1.10", "1e50": "1" + "0" * 50, "NaN": "NaN"}),
    ("numeric(50,2)", "string", {"1" * 40: "1" * 40 + ".00"}),
    ("real", "float", {"0.5": 0.5}),
    ("double precision", "double", {"0.1": 0.1, "Infinity": float("inf")}),
    ("boolean", "boolean", {"true": True}),
    ("text", "string", {"é🙂": "é🙂"}),
    ("varchar(3)", "string", {"abc": "abc"}),
    ("bytea", "binary", {"\\x00ff": b"\0\xff"}),
    ("date", "date", {"0001-01-01": datetime.date.min}),
    ("timestamptz", "timestamp", {"2026-01-01 12:00:00.000001+02": datetime.datetime(2026, 1, 1, 10, 0, 0, 1, UTC)}),
    ("timestamp", "timestamp_ntz", {"2026-01-01 12:00:00": datetime.datetime(2026, 1, 1, 12)}),
    ("time", "string", {"12:00:01": "12:00:01"}),
    ("interval", "string", {"1 mon 2 days": "1 mon 2 days"}),
    ("uuid", "string", {"11111111-2222-3333-4444-555555555555": "11111111-2222-3333-4444-555555555555"}),
    ("json", "string", {'{"a":  1}': '{"a":  1}'}),
    ("jsonb", "string", {'{"a":  1}': '{"a": 1}'}),
    ("inet", "string", {"10.0.0.1/8": "10.0.0.1/8"}),
    ("int4range", "string", {"[1,5)": "[1,5)"}),
    ("mood", "string", {"sad": "sad"}),
    ("positive", "int", {"7": 7}),
    ("int[]", "array<int>", {"{1,NULL}": [1, None]}),
    ("text[]", "array<string>", {'{a,"b,c"}': ["a", "b,c"]}),
    ("numeric(5,2)[]", "array<decimal(5,2)>", {"{1.25,NULL}": [Decimal("1.25"), None]}),
    ("char(3)", "string", {"ab": "ab"}),
    ("bit(3)", "string", {"101": "101"}),
    ("bit varying(5)", "string", {"1011": "1011"}),
    ("time(3)", "string", {"12:00:01.123": "12:00:01.123"}),
    ("numeric(50,2)[]", "array<string>", {"{1.25,NULL}": ["1.25", None]}),
    ("date[]", "array<date>", {"{2026-01-01,NULL}": [datetime.date(2026, 1, 1), None], "{}": []}),
    ("timestamp(3)[]", "array<timestamp_ntz>", {'{"2026-01-01 12:00:00"}': [datetime.datetime(2026, 1, 1, 12)]}),
    ("bytea[]", "array<binary>", {'{"\\\\x00ff"}': [b"\0\xff"]}),
    ("positive[]", "array<int>", {"{7,8}": [7, 8]}),
    ("pair", "array<int>", {"{7,8}": [7, 8]}),
    ("uuid[]", "array<string>", {"{11111111-2222-3333-4444-555555555555}": ["11111111-2222-3333-4444-555555555555"]}),
]


@pytest.fixture
def store() -> Iterator[Store]:
    with headrace.open(serving.postgres_database()) as opened:
        yield opened


@pytest.fixture
def session(store: Store) -> Iterator[psycopg.Connection]:
    with psycopg.connect(store.url, autocommit=True) as opened:
        opened.execute("CREATE TYPE mood AS ENUM ('sad', 'ok')")
        opened.execute("CREATE DOMAIN positive AS int CHECK (VALUE > 0)")
        opened.execute("CREATE DOMAIN pair AS int[] CHECK (cardinality(VALUE) = 2)")
        yield opened


def test_values_of_every_type_are_read_filtered_and_written(store: Store, session: psycopg.Connection) -> None:
    for number, (sql_type, kind, values) in enumerate(TYPES):
        for name in (f"source_{number}", f"target_{number}"):
            session.execute(f"CREATE TABLE {name} (id int PRIMARY KEY, value {sql_type})")
        for place, text in enumerate(values):
            session.execute(
                f"INSERT INTO source_{number} VALUES (%s, %s::text::{sql_type}), (%s, NULL)", [place, text, -place - 1]
            )
        source, target = store.table(f"source_{number}"), store.table(f"target_{number}")
        assert headrace.model.types.type_name(source.schema.column("value").type) == kind
        rows = source.scan().read_all()
        assert [row["value"] for row in rows.to_pylist() if row["id"] >= 0] == list(values.values()), sql_type
        target.put(rows)
        assert target.scan().read_all() == rows
        texts = [
            session.execute(f"SELECT value::text FROM {name}_{number} ORDER BY id").fetchall()
            for name in ("source", "target")
        ]
        assert texts[0] == texts[1]


@pytest.mark.parametrize("kind", ["date", "timestamp", "timestamptz"])
def test_an_infinite_time_is_an_error_with_its_column(store: Store, session: psycopg.Connection, kind: str) -> None:
    session.execute(f"CREATE TABLE t (id int PRIMARY KEY, until {kind})")
    session.execute("INSERT INTO t VALUES (1, NULL), (2, 'infinity'), (3, '2026-01-01')")
    with pytest.raises(SchemaError, match=r"column 'until'.*infinity"):
        store.table("t").scan().read_all()
    assert store.table("t").scan(["id"]).read_all().num_rows == 3


@pytest.mark.parametrize(
    ("kind", "value"),
    [
        ("date[]", "{2026-01-01,infinity}"),
        ("timestamp[]", "{-infinity,NULL}"),
        ("timestamptz[]", '{"294250-01-01 00:00:00+00"}'),
        ("int[]", "{{1,2},{3,4}}"),
        ("text[]", '{{a},{"b c"}}'),
    ],
)
def test_an_array_that_arrow_cannot_have_is_an_error_with_its_column(
    store: Store, session: psycopg.Connection, kind: str, value: str
) -> None:
    session.execute(f"CREATE TABLE t (id int PRIMARY KEY, many {kind})")
    session.execute("INSERT INTO t VALUES (1, NULL), (2, %s)", [value])
    with pytest.raises(SchemaError, match="column 'many'") as caught:
        store.table("t").scan().read_all()
    assert value in str(caught.value)
    assert store.table("t").get({"id": 1}) == {"id": 1, "many": None}


def test_arrays_of_bytes_round_trip(store: Store) -> None:
    table = store.create_table("t", {"id": "long", "small": "array<byte>"}, "id")
    assert headrace.model.types.type_name(table.schema.column("small").type) == "array<byte>"
    table.put([{"id": 1, "small": [-128, None, 127]}, {"id": 2, "small": []}, {"id": 3}])
    assert [row["small"] for row in table.scan().read_all().to_pylist()] == [[-128, None, 127], [], None]


@pytest.mark.parametrize(
    ("kind", "value"),
    [
        ("numeric(50,2)", "1.234"),
        pytest.param("numeric(5,-2)", "12345", marks=needs_version(15)),
        ("numeric(50,2)[]", ["1.0", "1.234"]),
        ("time(0)", "12:00:01.5"),
        ("interval(0)", "1.5 seconds"),
        ("varchar(3)", "ab    "),
    ],
)
def test_a_text_is_not_rounded_or_shortened(
    store: Store, session: psycopg.Connection, kind: str, value: str | list[str]
) -> None:
    session.execute(f"CREATE TABLE t (id int PRIMARY KEY, n {kind})")
    for write in (store.table("t").put, store.table("t").update):
        with pytest.raises(SchemaError, match=r"column 'n' .*would round or shorten"):
            write({"id": 1, "n": value})
    assert store.table("t").scan([]).read_all().num_rows == 0


@pytest.mark.parametrize(
    ("kind", "text"),
    [
        ("uuid", "11111111-2222-3333-4444-555555555555"),
        ("numeric", "1.10"),
        ("double precision", "0.1"),
        ("mood", "sad"),
        ("int[]", "{1,2}"),
        ("char(4)", "ab"),
        ("text", "b c"),
    ],
)
def test_rows_are_found_by_keys_of_every_type(store: Store, session: psycopg.Connection, kind: str, text: str) -> None:
    session.execute(f"CREATE TABLE t (id {kind} PRIMARY KEY, n int)")
    session.execute("INSERT INTO t VALUES (%s, 1)", [text])
    table = store.table("t")
    assert table.scan(["id"]).read_all().to_pylist() == [{"id": text}]
    table.update({"id": text, "n": 2})
    assert table.get({"id": text}) == {"id": text, "n": 2}
    assert table.get({"id": "nothing"}) is None
    assert table.get_many([{"id": text}], ["n"]).to_pylist() == [{"n": 2}]
    table.delete({"id": text})
    assert table.scan().read_all().num_rows == 0


def test_a_key_without_an_equal_is_an_error_or_a_text(store: Store, session: psycopg.Connection) -> None:
    session.execute("CREATE TABLE t (day date PRIMARY KEY, n int)")
    session.execute("INSERT INTO t VALUES ('infinity', 1), ('2026-01-01', 2)")
    with pytest.raises(SchemaError, match="unrepresentable='day=text'; on"):
        store.table("t").scan().read_all()
    for choice in ("day=text", "t.day=text"):
        with headrace.open(store.url, unrepresentable=choice) as opened:
            table = opened.table("t")
            assert table.scan(["day"]).read_all().to_pylist() == [{"day": "2026-01-01"}, {"day": "infinity"}]
            table.put({"day": "infinity", "n": 3})
            assert table.get({"day": "infinity"}) == {"day": "infinity", "n": 3}


def test_a_range_of_keys_uses_the_index(store: Store, session: psycopg.Connection) -> None:
    session.execute("CREATE TABLE t (day date, no smallint, price numeric(9,2), at timestamptz, n int)")
    session.execute("ALTER TABLE t ADD PRIMARY KEY (day, no, price, at)")
    session.execute("SET enable_seqscan = off; SET enable_bitmapscan = off")
    bound = (datetime.date(2026, 1, 1), 3, Decimal("1.50"), datetime.datetime(2026, 1, 1, tzinfo=datetime.UTC))
    table = store.table("t")
    assert isinstance(table, PostgresTable)
    condition = where(table.layout(), KeyRange(bound), ()).as_string(None)
    plan = session.execute(f"EXPLAIN SELECT * FROM t WHERE {condition} ORDER BY day, no, price, at").fetchall()
    assert [line.split()[:2] for (line,) in plan] == [["Index", "Scan"], ["Index", "Cond:"]], plan


@pytest.mark.parametrize(
    ("kind", "value"), [("text", "a\0b"), ("varchar(3)", "abcd"), ("uuid", "no"), ("mood", "glad"), ("jsonb", "{")]
)
def test_a_text_that_the_type_does_not_have_is_refused(
    store: Store, session: psycopg.Connection, kind: str, value: str
) -> None:
    session.execute(f"CREATE TABLE t (id int PRIMARY KEY, value {kind})")
    with pytest.raises(SchemaError):
        store.table("t").put({"id": 1, "value": value})
    assert store.table("t").scan().read_all().num_rows == 0


def test_a_time_is_not_rounded(store: Store, session: psycopg.Connection) -> None:
    session.execute("CREATE TABLE t (id int PRIMARY KEY, at timestamptz(3))")
    with pytest.raises(SchemaError, match=r"column 'at'.*row 0.*3 digits"):
        store.table("t").put({"id": 1, "at": datetime.datetime(2026, 1, 1, 0, 0, 0, 1, UTC)})


@pytest.mark.parametrize(
    ("kind", "first", "data_type"),
    [
        ("date", -2_440_588, pa.date32()),
        ("timestamp", -210_866_803_200_000_000, pa.timestamp("us")),
        ("timestamptz", -210_866_803_200_000_000, pa.timestamp("us", tz="UTC")),
        ("date[]", -2_440_588, pa.list_(pa.date32())),
    ],
)
def test_a_year_that_postgresql_does_not_have_is_refused(
    store: Store, session: psycopg.Connection, kind: str, first: int, data_type: pa.DataType
) -> None:
    session.execute(f"CREATE TABLE t (id int PRIMARY KEY, at {kind})")
    for value, valid in ((first, True), (first - 1, False)):
        numbers = pa.array([[value]] if pa.types.is_list(data_type) else [value])
        plain = pa.int32() if pa.types.is_date(getattr(data_type, "value_type", data_type)) else pa.int64()
        values = numbers.cast(pa.list_(plain) if pa.types.is_list(data_type) else plain).cast(data_type)
        rows = pa.table({"id": pa.array([1], pa.int32()), "at": values})
        if valid:
            store.table("t").put(rows)
            ((text,),) = session.execute("SELECT at::text FROM t").fetchall()
            assert text.strip('{"}').startswith("4714-11-24")
        else:
            with pytest.raises(SchemaError, match=r"column 'at'.*row 0.*4714-11-24 BC"):
                store.table("t").put(rows)


def test_a_violated_constraint_is_named(store: Store, session: psycopg.Connection) -> None:
    session.execute("CREATE TABLE t (id int PRIMARY KEY, n int CONSTRAINT n_is_positive CHECK (n > 0))")
    with pytest.raises(RowsNotWrittenError, match=r"n_is_positive.*Failing row contains"):
        store.table("t").put([{"id": 1, "n": 1}, {"id": 2, "n": -1}])
    assert store.table("t").scan().read_all().num_rows == 0


def test_generated_columns_and_defaults_are_the_servers(store: Store, session: psycopg.Connection) -> None:
    session.execute(
        "CREATE TABLE t (id int PRIMARY KEY, n int, twice int GENERATED ALWAYS AS (n * 2) STORED, "
        "number int GENERATED ALWAYS AS IDENTITY, made int NOT NULL DEFAULT 5)"
    )
    table = store.table("t")
    table.put({"id": 1, "n": 2})
    table.put(table.scan().read_all())
    assert table.get({"id": 1}) == {"id": 1, "n": 2, "twice": 4, "number": 1, "made": 5}
    table.update({"id": 1, "n": 3})
    assert table.get({"id": 1}, ["twice", "made"]) == {"twice": 6, "made": 5}


def test_tables_in_schemas_and_partitions(store: Store, session: psycopg.Connection) -> None:
    session.execute("CREATE SCHEMA sales")
    session.execute("CREATE TABLE sales.orders (id uuid, day date, PRIMARY KEY (id, day)) PARTITION BY RANGE (day)")
    session.execute("CREATE TABLE sales.y26 PARTITION OF sales.orders FOR VALUES FROM ('2026-01-01') TO ('2027-01-01')")
    table = store.table("sales.orders")
    key: dict[str, Any] = {"id": "11111111-2222-3333-4444-555555555555", "day": datetime.date(2026, 5, 1)}
    table.put(key)
    assert table.get(key) == key
    assert table.get_many([key]).to_pylist() == [key]
    assert len(table.splits(4)) >= 1
    assert store.tables() == ["sales.orders", "sales.y26"]
    session.execute("CREATE TABLE keyless (n int)")
    with pytest.raises(SchemaError, match="no primary key"):
        store.table("keyless").put({"n": 1})
    with pytest.raises(NotFoundError):
        store.table("sales.nothing")


def test_types_without_a_place_in_postgresql_are_refused(store: Store) -> None:
    with pytest.raises(UnsupportedError, match="column 'm'"):
        store.create_table("t", {"id": "long", "m": "map<string,long>"}, "id")


def test_a_server_that_is_not_there_is_an_error() -> None:
    store = headrace.open("postgresql://me@127.0.0.1:1/db", password="hush", retry_seconds=0)
    with pytest.raises(StoreError, match=r"no connection to postgresql://me@127.0.0.1:1/db") as caught:
        store.tables()
    assert "hush" not in str(caught.value)
