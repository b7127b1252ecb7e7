"""One text, one value: a value of any type is the same wherever headrace shows it, and its text is PostgreSQL's own.

The ways are base data, changes in both formats of a slot, scans, look-ups, writes, and rows as JSON.
"""

from __future__ import annotations

import datetime
import decimal
import json
import re
from collections.abc import Iterator, Mapping, Sequence
from typing import Any, NamedTuple

import psycopg
import pyarrow as pa
import pyarrow.compute as pc
import pytest

import headrace
from headrace.model.tables.json_forms import PLAIN, Decimals, JsonForm
from headrace.ports import Store, Tunnel
from headrace.rows.json_texts import json_texts
from headrace.stores.postgres.tunnels.tunnel import PostgresTunnel
from tests.conformance import serving
from tests.postgres_server import major_version

Server = psycopg.Connection[tuple[Any, ...]]
FORMS = (PLAIN, JsonForm(debezium=True, decimals=Decimals.PRECISE))
_TYPES = """
CREATE EXTENSION citext; CREATE EXTENSION hstore; CREATE EXTENSION ltree;
CREATE SCHEMA shop;
CREATE TYPE mood AS ENUM ('sad', 'ok, "fine"');
CREATE TYPE shop.date AS ENUM ('today', '2024-01-01');
CREATE TYPE shop.int4 AS (a int, b text);
CREATE DOMAIN positive AS int CHECK (VALUE > 0);
CREATE DOMAIN moment AS timestamptz;
CREATE DOMAIN flag AS bool;
CREATE DOMAIN pair AS int[];
CREATE TYPE mixed AS (a int, b text, c timestamptz, d bool);
"""
# Settings that change texts, or what texts mean.
SETTINGS = {
    "DateStyle": "German, DMY",
    "IntervalStyle": "iso_8601",
    "TimeZone": "America/New_York",
    "extra_float_digits": "-3",
    "bytea_output": "escape",
    "xmloption": "document",
    "quote_all_identifiers": "on",
    "standard_conforming_strings": "off",
    "array_nulls": "off",
    "client_encoding": "LATIN1",
    "search_path": "shop",
}


class Kind(NamedTuple):
    """A type, texts of its values, and texts of values that only a key of texts can have; None if it is in no key."""

    type: str
    texts: Sequence[str]
    only_in_key: Sequence[str] | None = ()


_TIMES = ["2024-01-01 10:00:00", "2024-01-01 10:00:00.5", "1969-12-31 23:59:59.999999", "0044-03-15 10:00:00.25 BC"]
_FAR = ["20000-02-29 10:00:00.5", "4713-01-01 00:00:00 BC", "294246-12-31 23:59:59.999999", "0001-01-01 00:00:00"]
_FAR_YEAR = re.compile(r"BC|^\d{5}")
_ENDLESS = ["infinity", "-infinity", "294276-12-31 23:59:59.999999"]
# Types of which a key can have more values as PostgreSQL's text.
TIMES = [
    Kind("boolean", ["true", "false"]),
    Kind("flag", ["true"]),
    Kind("date", ["2024-01-01", "0044-03-15 BC", "20000-02-29", "4714-11-24 BC", "5874897-12-31"], ["-infinity"]),
    Kind("timestamp", [*_TIMES, *_FAR], _ENDLESS),
    Kind("timestamp(3)", _TIMES[:2], ["infinity"]),
    Kind("timestamptz", [*_TIMES, *_FAR], _ENDLESS),
    Kind("moment", _TIMES, ["infinity"]),
]
# Further types that are read in binary format, as keys and as values.
EXACT = [
    Kind("smallint", ["-32768", "0"]),
    Kind("int", ["2147483647", "-1"]),
    Kind("bigint", ["-9223372036854775808"]),
    Kind("oid", ["4294967295", "1"]),
    Kind("positive", ["7"]),
    Kind("text", ["é🙂", " a ", "", "NULL"]),
    Kind("varchar(9)", ["ab  ", ""]),
    Kind("char(4)", ["ab", "  c", ""]),
    Kind("name", ["someone"]),
    Kind("bytea", ["\\x00ff5c27", "\\x"]),
    Kind("uuid", ["11111111-2222-3333-4444-55555555abcd"]),
    Kind("numeric", ["1.10", "1e50", "NaN", "-0.0000001", "0.00", "-Infinity"]),
    Kind("numeric(10,2)", ["12345678.90", "-0.10"], ["NaN"]),
    Kind("numeric(50,2)", ["1" * 40, "1.5"]),
    Kind("jsonb", ['{"a":  1}', '"b"']),
    Kind("time", ["12:00:01", "24:00:00", "12:00:01.5", "00:00:00"]),
    Kind("time(3)", ["12:00:01.12", "24:00:00"]),
    Kind("mood", ["sad", 'ok, "fine"']),
    Kind("shop.date", ["today", "2024-01-01"]),
    Kind("json", ['{"a":  1}'], None),
    Kind("xml", ['<?xml version="1.0"?><a/>', '<?xml version="1.1" standalone="yes"?><b/>', "<c/>"], None),
]
# Types that are read in binary format as values, and as PostgreSQL's text in keys.
NATIVE = [
    Kind("real", ["1e-05", "1e+06", "1.6777216e+07", "NaN", "Infinity", "-0", "3.4e+38"]),
    Kind("double precision", ["0.1", "1e-05", "0.30000000000000004", "-Infinity", "NaN", "1e+300", "-0"]),
    Kind("int[]", ["{1,NULL}", "{}"], ["[3:4]={7,8}", "{{1,2},{3,4}}"]),
    Kind("text[]", ['{a,"b,c",NULL,"NULL",""}']),
    Kind("bool[]", ["{t,f,NULL}"]),
    Kind("oid[]", ["{4294967295}"]),
    Kind("double precision[]", ["{1e-05,NaN,-Infinity}"]),
    Kind("numeric[]", ["{1.10,NaN}"]),
    Kind("numeric(5,2)[]", ["{1.25,NULL}"]),
    Kind("date[]", ["{2024-01-01,NULL}", '{"0044-03-15 BC"}'], ["{infinity}"]),
    Kind("timestamp(3)[]", ['{"2024-01-01 10:00:00.5"}']),
    Kind("timestamptz[]", ['{"2024-01-01 10:00:00.5+00","20000-01-01 00:00:00+00"}'], ["{infinity}"]),
    Kind("bytea[]", ['{"\\\\x00ff"}']),
    Kind("uuid[]", ["{11111111-2222-3333-4444-55555555abcd}"]),
    Kind("char(3)[]", ['{"ab ","  c"}']),
    Kind("mood[]", ['{sad,"ok, \\"fine\\""}']),
    Kind("shop.date[]", ["{today,2024-01-01}"]),
    Kind("positive[]", ["{7,8}"]),
    Kind("pair", ["{7,8}"]),
    Kind("moment[]", ['{"2024-01-01 10:00:00+00"}']),
    Kind("json[]", ['{"{\\"a\\":  1}"}'], None),
    Kind("xml[]", ['{"<?xml version=\\"1.0\\"?><a/>"}'], None),
]
# Types that are read in text format.
OTHERS = [
    Kind("timetz", ["12:00:01+02"]),
    Kind("interval", ["1 mon 2 days", "-00:00:01.5"]),
    Kind('"char"', ["a", "", *(["\\377"] if major_version() >= 15 else [])]),
    Kind("money", ["$1,234.50", "-$0.01"]),
    Kind("inet", ["10.0.0.1", "10.0.0.1/8", "::1", "fe80::1/64"]),
    Kind("cidr", ["10.0.0.0/8", "10.0.0.1/32", "::/0"]),
    Kind("macaddr", ["08:00:2b:01:02:03"]),
    Kind("bit(3)", ["101"]),
    Kind("bit varying(5)", ["1011", ""]),
    Kind("tsvector", ["'a':1 'b'"]),
    Kind("pg_lsn", ["16/B374D848"]),
    # Refused in a key.
    Kind("regtype", ["integer"], None),
    Kind("oidvector", ["1 4294967295"]),
    Kind("int4range", ["[1,5)", "empty"]),
    Kind("tstzrange", ['["2024-01-01 10:00:00+00",infinity)']),
    Kind("datemultirange", ["{[2024-01-01,2024-01-03)}"]),
    Kind("mixed", ['(1,"a b","2024-01-01 10:00:00+00",t)', "(,,,)"]),
    Kind("shop.int4", ["(1,x)"]),
    Kind("citext", ["Ab", "C"]),
    Kind("hstore", ['"a"=>"1", "b"=>NULL']),
    Kind("ltree", ["a.b.c"]),
    Kind('"char"[]', ['{a,""}']),
    Kind("inet[]", ["{10.0.0.1,10.0.0.1/8,::1}"]),
    Kind("cidr[]", ["{10.0.0.1/32}"]),
    Kind("interval[]", ['{"1 day",01:00:00}']),
    Kind("shop.int4[]", ['{"(1,x)","(2,)"}']),
    Kind("pair[]", ['{"{7,8}","{9}"}']),
    Kind("citext[]", ["{Ab,C}"]),
    Kind("int4range[]", ['{"[1,5)",empty}']),
    Kind("int2vector", ["1 2"], None),
    Kind("point", ["(1,2.5)"], None),
    Kind("box", ["(3,4),(1,2)"], None),
    Kind("jsonpath", ['$."a"'], None),
    Kind("box[]", ["{(3,4),(1,2);(1,1),(0,0)}"], None),
]


@pytest.fixture
def url(request: pytest.FixtureRequest) -> str:
    return serving.postgres_database(f"one_text{abs(hash(request.node.nodeid)):x}")


@pytest.fixture
def server(url: str) -> Iterator[Server]:
    with psycopg.connect(url, user="postgres", autocommit=True, prepare_threshold=None) as connection:
        connection.execute(_TYPES)
        connection.execute("SET TimeZone = 'UTC'")
        yield connection


@pytest.fixture
def store(url: str, server: Server) -> Iterator[Store]:
    with headrace.open(url) as opened:
        yield opened
        for tunnel in opened.tunnels():
            opened.drop_tunnel(tunnel.id)


def known(server: Server, kinds: Sequence[Kind]) -> list[Kind]:
    """Return the types that the server has: xml is a choice of its build."""
    try:
        server.execute("SELECT '<a/>'::xml")
    except psycopg.errors.FeatureNotSupported:
        return [kind for kind in kinds if "xml" not in kind.type]
    return list(kinds)


def changes(tunnel: Tunnel) -> pa.Table:
    """Return all unread rows of a tunnel."""
    return pa.Table.from_batches(batch.to_arrow() for batch in tunnel.consume(client="test", idle="stop"))


def comparable(values: pa.ChunkedArray) -> list[Any]:
    """Return values that can be compared: Python has neither years before 1 or after 9999, nor equal NaNs."""
    if pa.types.is_list(values.type):
        flat = iter(comparable(pc.list_flatten(values)))
        lengths = pc.list_value_length(values).to_pylist()
        return [length if length is None else [next(flat) for _ in range(length)] for length in lengths]
    if pa.types.is_temporal(values.type):
        return list(values.cast(pa.int32() if pa.types.is_date(values.type) else pa.int64()).to_pylist())
    return [repr(value) if isinstance(value, float) else value for value in values.to_pylist()]


def own_texts(server: Server, table: str, column: str, kind: Kind, order: str) -> list[str | None]:
    """Return PostgreSQL's own texts of a column. A cast of xml gives the text as it was written, and not its value."""
    text = f"format('%s', {column})" if "xml" in kind.type else f"{column}::text"
    statement = f"SELECT CASE num_nulls({column}) WHEN 0 THEN {text} END FROM {table} ORDER BY {order}"
    return [text for (text,) in server.execute(statement)]


def create(server: Server, name: str, kinds: Sequence[Kind]) -> None:
    """Create a table with a column of each type, and rows with their values; one row has nulls only."""
    columns = ", ".join(f"c{place} {kind.type}" for place, kind in enumerate(kinds))
    server.execute(f"CREATE TABLE {name} (id int PRIMARY KEY, {columns})")
    values = ", ".join(f"%s::text::{kind.type}" for kind in kinds)
    for row in range(1 + max(len(kind.texts) for kind in kinds)):
        texts = [kind.texts[row] if row < len(kind.texts) else None for kind in kinds]
        server.execute(f"INSERT INTO {name} VALUES ({row}, {values})", texts)


def create_with_key(server: Server, name: str, kinds: Sequence[Kind], further: str) -> list[str]:
    """Create a table whose key has a column of each type, and rows with the values; return the key columns."""
    names = [f"c{place}" for place in range(len(kinds))]
    columns = ", ".join(f"{column} {kind.type}" for column, kind in zip(names, kinds, strict=True))
    server.execute(f"CREATE TABLE {name} ({columns}, v int{further}, PRIMARY KEY ({', '.join(names)}))")
    texts = [[*kind.texts, *(kind.only_in_key or ())] for kind in kinds]
    values = ", ".join(f"%s::text::{kind.type}" for kind in kinds)
    for row in range(max(map(len, texts))):
        server.execute(f"INSERT INTO {name} VALUES ({values}, {row})", [each[row % len(each)] for each in texts])
    return names


def replayed(rows: pa.Table, key: Sequence[str]) -> dict[tuple[Any, ...], dict[str, Any]]:
    """Return the rows of a table after changes, by key."""
    found: dict[tuple[Any, ...], dict[str, Any]] = {}
    for row in rows.to_pylist():
        at = tuple(row[name] for name in key)
        if row["_change_type"] in ("delete", "update_preimage"):
            del found[at]
        else:
            assert row["_change_type"] == "update_postimage" or at not in found
            found[at] = row
    return found


@pytest.mark.parametrize("binary", [True, False])
@pytest.mark.parametrize("settings", [{}, SETTINGS], ids=["", "settings"])
def test_a_value_of_every_type_is_the_same_in_every_way(
    store: Store, server: Server, url: str, *, binary: bool, settings: Mapping[str, str]
) -> None:
    for setting, value in settings.items():
        server.execute(f"ALTER DATABASE {url.rpartition('/')[2]} SET {setting} = '{value}'")
    name = "values_in_binary" if binary else "values_in_text"
    kinds = known(server, [*TIMES, *EXACT, *NATIVE, *(() if binary else OTHERS)])
    create(server, name, kinds)
    server.execute(f"CREATE TABLE copy_of_{name} (LIKE {name} INCLUDING ALL)")
    table, tunnel = store.table(name), store.create_tunnel(name, name)
    assert isinstance(tunnel, PostgresTunnel)
    assert tunnel._fresh().tables.binary == binary
    several = {
        form: store.create_tunnel_of_tables(f"public.{name}", f"{name}_{form.debezium}").with_json(form)
        for form in FORMS
    }
    columns = [f"c{place}" for place in range(len(kinds))]
    server.execute(f"INSERT INTO {name} SELECT id + 100, {', '.join(columns)} FROM {name}")
    rows = changes(tunnel)
    old = pc.less(rows["id"], 100)
    base, stream = rows.filter(old), rows.filter(pc.invert(old))
    scanned = table.scan(where={"id": list(range(100))}).read_all()
    found = table.get_many(scanned.select(["id"]))
    store.table(f"copy_of_{name}").put(stream.select(table.schema.names))
    for column, kind in zip(columns, kinds, strict=True):
        values = comparable(base[column])
        assert values == comparable(stream[column]) == comparable(scanned[column]) == comparable(found[column]), kind
        texts = own_texts(server, name, column, kind, "id")
        assert own_texts(server, f"copy_of_{name}", column, kind, "id") == texts[len(values) :], kind
        if pa.types.is_string(base[column].type):
            assert values + values == texts, kind
    for tables in several.values():
        documents = [json.loads(text) for text in changes(tables)["row"].to_pylist()]
        half = len(documents) // 2
        for document in documents:
            del document["id"]
        assert documents[:half] == documents[half:]


def test_a_key_of_every_type_is_the_same_in_every_way(store: Store, server: Server) -> None:
    with headrace.open(store.url, unrepresentable={f"c{place}": "text" for place in range(4)}) as with_texts:
        for opened, binary, kinds, further in (
            (store, True, [*TIMES, *EXACT], ""),
            (store, False, EXACT, ", pause interval"),
            (store, False, NATIVE, ""),
            (store, False, OTHERS, ""),
            (with_texts, False, TIMES, ""),
        ):
            texts = opened is with_texts or not binary
            keys = [kind for kind in known(server, kinds) if kind.only_in_key is not None]
            for first in range(0, len(keys), 4):
                part = [kind if texts and kinds is not EXACT else _of_python(kind) for kind in keys[first : first + 4]]
                names = create_with_key(server, "keyed", part, further)
                if first % 8 == 0:
                    server.execute("ALTER TABLE keyed REPLICA IDENTITY FULL")
                _check_key(opened, server, part, names, binary=binary)


def _of_python(kind: Kind) -> Kind:
    """Return a type with the values that a key has in its own type: those of Python."""
    return Kind(kind.type, [text for text in kind.texts if not (kind in TIMES and _FAR_YEAR.search(text))])


def _check_key(store: Store, server: Server, kinds: Sequence[Kind], names: Sequence[str], *, binary: bool) -> None:
    table, tunnel = store.table("keyed"), store.create_tunnel("keyed", "keyed")
    several = store.create_tunnel_of_tables("public.keyed", "all_keyed")
    assert isinstance(tunnel, PostgresTunnel)
    assert tunnel._fresh().tables.binary == binary, kinds
    server.execute("UPDATE keyed SET v = v + 100")
    server.execute("DELETE FROM keyed WHERE v = 100")
    own = [own_texts(server, "keyed", column, kind, "v") for column, kind in zip(names, kinds, strict=True)]
    types = [table.schema.column(name).type for name in names]
    expected = {
        tuple(_key_value(text, kind) for text, kind in zip(texts, types, strict=True)): 101 + place
        for place, texts in enumerate(zip(*own, strict=True))
    }
    assert {key: row["v"] for key, row in replayed(changes(tunnel), names).items()} == expected
    documents = {
        tuple(json.loads(key).values()): json.loads(row["row"])
        for (key,), row in replayed(changes(several), ["key"]).items()
    }
    assert {key: row["v"] for key, row in documents.items()} == {
        tuple(map(_json_value, key, types)): v for key, v in expected.items()
    }
    assert all(tuple(row[name] for name in names) == key for key, row in documents.items())
    for key, v in expected.items():
        at = dict(zip(names, key, strict=True))
        assert table.get(at, [*names, "v"]) == {**at, "v": v}
    rows = table.scan().read_all()
    table.delete(rows.select(names))
    table.put(rows)
    assert [own_texts(server, "keyed", column, kind, "v") for column, kind in zip(names, kinds, strict=True)] == own
    store.drop_table("keyed")
    store.drop_tunnel(several.id)


def test_a_large_key_that_an_update_does_not_change(store: Store, server: Server) -> None:
    server.execute("CREATE TABLE pages (url text PRIMARY KEY, body text, v int)")
    server.execute("ALTER TABLE pages ALTER url SET STORAGE EXTERNAL, ALTER body SET STORAGE EXTERNAL")
    tunnel = store.create_tunnel("pages", "pages")
    long = "x" * 2500
    server.execute("INSERT INTO pages VALUES (%s, 'text', 1)", [long])
    server.execute("UPDATE pages SET v = 2")
    server.execute("UPDATE pages SET url = url || 'y', v = 3")
    server.execute("DELETE FROM pages")
    rows = [(row["_change_type"], row["url"], row["v"]) for row in changes(tunnel).to_pylist()]
    assert rows == [
        ("insert", long, 1),
        ("update_postimage", long, 2),
        ("delete", long, None),
        ("insert", f"{long}y", 3),
        ("delete", f"{long}y", None),
    ]


def _key_value(text: str | None, kind: pa.DataType) -> Any:
    assert text is not None
    if pa.types.is_integer(kind):
        return int(text)
    if pa.types.is_boolean(kind):
        return text == "true"
    if pa.types.is_decimal(kind):
        return decimal.Decimal(text)
    if pa.types.is_temporal(kind):
        return (datetime.date if pa.types.is_date(kind) else datetime.datetime).fromisoformat(text)
    return bytes.fromhex(text[2:]) if kind == pa.binary() else text


def _json_value(value: Any, kind: pa.DataType) -> Any:
    return json.loads(json_texts(pa.array([value], kind), PLAIN)[0].as_py())
