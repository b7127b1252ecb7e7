"""Types and schema changes that the test suites of Debezium's and Flink CDC's connectors for PostgreSQL name.

Their own values and expectations are not used: here, changes that are replayed must give the content of the table.
"""

from __future__ import annotations

from contextlib import suppress

import pytest
from psycopg import sql

from headrace.errors import HeadraceError, NotFoundError
from headrace.ports import Store
from headrace.testing.reading import drain, replay, state_of
from tests.interop.own_database import Server
from tests.postgres_server import major_version, needs_version

_DEFINITIONS = """
CREATE EXTENSION hstore;
CREATE EXTENSION citext;
CREATE EXTENSION ltree;
CREATE EXTENSION isn;
CREATE TYPE mood AS ENUM ('sad', 'glad');
CREATE TYPE place AS (street text, number int);
CREATE DOMAIN money2 AS numeric(8,2);
CREATE DOMAIN price AS money2 CHECK (VALUE >= 0);
CREATE DOMAIN flags AS bit varying(8);
CREATE DOMAIN moods AS mood;
"""
_TYPES = {
    "money": ["1234.5", "-0.01", "'92233720368547758.07'::numeric"],
    "bit(1)": ["B'1'", "B'0'"],
    "bit(9)": ["B'101010101'"],
    "bit varying(12)": ["B''", "B'1011'"],
    "flags": ["B'1'"],
    "char": ["'x'", "''"],
    '"char"': ["'x'"],
    "char(4)": ["'ab'"],
    "name": ["'a name'"],
    "citext": ["'MiXed'"],
    "ltree": ["'a.b_c.d'"],
    "isbn13": ["'978-0-393-04002-9'"],
    "hstore": ["''", '\'a=>1, b=>NULL, "c d"=>"e,\\"f"\''],
    "tsvector": ["to_tsvector('simple', 'one two three')"],
    "tsquery": ["'a & b'"],
    "macaddr": ["'08:00:2b:01:02:03'"],
    "macaddr8": ["'08:00:2b:01:02:03:04:05'"],
    "inet": ["'::1/128'", "'192.168.0.1/24'"],
    "cidr": ["'10.0.0.0/8'"],
    "point": ["'(1.5,-2)'"],
    "lseg": ["'[(0,0),(1,1)]'"],
    "box": ["'((1,1),(0,0))'"],
    "path": ["'[(0,0),(1,1)]'"],
    "polygon": ["'((0,0),(1,1),(1,0))'"],
    "circle": ["'<(0,0),2>'"],
    "line": ["'{1,2,3}'"],
    "time": ["'24:00:00'", "'00:00:00.000001'"],
    "time(2)": ["'23:59:59.99'"],
    "timetz": ["'24:00:00+00'", "'13:51:30.123789+02:30'"],
    "interval": ["'1 year 2 months 3 days 4 hours 5.678 seconds'", "'-1 day'"],
    "interval day to second(1)": ["'3 days 04:05:06.7'"],
    "date": ["'1500-02-28'", "'9999-12-31'"],
    "timestamp": ["'1500-02-28 11:11:11.123456'", "'0001-01-01'"],
    "timestamptz": ["'1900-01-01 00:00:00+05:30'"],
    "timestamp(0)": ["'2024-01-01 10:00:00.4'"],
    "numeric": ["'NaN'", "'-0.00'", "'1e-20'", "'Infinity'"],
    "numeric(38,10)": ["'-9999999999999999999999999999.9999999999'"],
    "numeric(3,0)": ["'7'"],
    "numeric(5,-2)": ["'12300'"],
    "real": ["'-0'", "'NaN'", "'Infinity'", "'1.17549435e-38'"],
    "double precision": ["'-0'", "'NaN'", "'-Infinity'", "'5e-324'"],
    "oid": ["4294967295"],
    "xid": ["'7'"],
    "pg_lsn": ["'16/B374D848'"],
    "regclass": ["'pg_class'"],
    "uuid": ["'A0EEBC99-9C0B-4EF8-BB6D-6BB9BD380A11'"],
    "jsonb": ['\'{"b": 1.10, "a": [null, "é"]}\'', "'null'"],
    "mood": ["'sad'"],
    "moods": ["'glad'"],
    "place": ["ROW('a \"b\", c', 7)"],
    "price": ["'1.5'"],
    "int4range": ["'empty'", "'[1,5)'"],
    "tstzrange": ["'[2024-01-01 00:00+00,)'"],
    "int4multirange": ["'{[1,2),[5,7)}'"],
    "mood[]": ["'{sad,NULL,glad}'"],
    "price[]": ["'{1.5,2}'"],
    "money2[]": ["'{1.50}'"],
    "hstore[]": ["ARRAY['a=>1'::hstore]"],
    "citext[]": ["'{A,b}'"],
    "jsonb[]": ["ARRAY['{\"a\": 1}'::jsonb]"],
    "inet[]": ["'{10.0.0.1}'"],
    "time[]": ["'{24:00:00}'"],
    "timetz[]": ["'{13:51:30+02}'"],
    "interval[]": ["'{1 day}'"],
    "numrange[]": ["'{\"[1.5,2]\"}'"],
    "char(2)[]": ["'{a,bc}'"],
    "bool[]": ["'{t,f,NULL}'"],
    "real[]": ["'{1.5,Infinity}'"],
    "timestamptz[]": ["'{2024-01-01 00:00:00+01}'"],
    "place[]": ["ARRAY[ROW('a', 1)::place]"],
    "bit(3)[]": ["'{101}'"],
    "box[]": ["'{(1,1),(0,0);(3,3),(2,2)}'"],
    "int[]": ["'[3:4]={1,2}'"],
    "varchar(5)[]": ['\'{"a,b",""}\''],
}
_SINCE = {"numeric(5,-2)": 15}


def test_values_of_all_types_are_the_same_in_base_data_stream_and_table(store: Store, server: Server) -> None:
    server.execute(_DEFINITIONS)
    types = {kind: literals for kind, literals in _TYPES.items() if major_version() >= _SINCE.get(kind, 14)}
    columns = sql.SQL(", ").join(sql.SQL(f"c{number} {kind}") for number, kind in enumerate(types))
    server.execute(sql.SQL("CREATE TABLE kinds (id bigint PRIMARY KEY, {})").format(columns))

    def insert(first: int) -> None:
        for row in range(max(map(len, types.values()))):
            values = ", ".join(literals[row % len(literals)] for literals in types.values())
            server.execute(f"INSERT INTO kinds VALUES ({first + row}, {values})")

    insert(0)
    tunnel = store.create_tunnel("kinds", "changes")
    insert(100)
    server.execute("INSERT INTO kinds (id) VALUES (200)")
    server.execute("UPDATE kinds SET id = id + 1000 WHERE id = 101")
    server.execute("DELETE FROM kinds WHERE id = 1")
    table = store.table("kinds")
    table.set_options(pre_images=True)
    server.execute("UPDATE kinds SET c0 = 7 WHERE id IN (0, 100)")
    server.execute("DELETE FROM kinds WHERE id = 0")
    read = table.scan().read_all()
    assert repr(replay(drain(tunnel))) == repr(state_of(table))
    # What was read can be written. Arrays lose the bounds of their indexes, which JSON does not have either.
    server.execute("CREATE TABLE copies (LIKE kinds INCLUDING ALL)")
    store.table("copies").put(read)
    different = "SELECT count(*) FROM (SELECT to_jsonb(k) FROM kinds k EXCEPT SELECT to_jsonb(c) FROM copies c) d"
    assert server.execute(different).fetchall() == [(0,)]


@pytest.mark.parametrize("other", ["int", "inet"], ids=["in-binary-format", "in-text-format"])
def test_blanks_at_the_end_of_fixed_length_texts_are_no_part_of_keys(store: Store, server: Server, other: str) -> None:
    server.execute(f"CREATE TABLE t (id char(4) PRIMARY KEY, tags char(3)[], n {other})")
    server.execute("INSERT INTO t VALUES ('a'), ('b')")
    tunnel = store.create_tunnel("t", "changes")
    server.execute("INSERT INTO t VALUES ('c', '{x,NULL}')")
    server.execute("UPDATE t SET tags = '{y}' WHERE id = 'a'")
    server.execute("DELETE FROM t WHERE id = 'b'")
    assert replay(drain(tunnel)) == state_of(store.table("t"))
    assert sorted(state_of(store.table("t"))) == [("a",), ("c",)]


# After the tunnel was created, each statement is its own transaction.
_BY_MERGE = "rows come by MERGE"
_CASES = {
    "a column is added": [
        "INSERT INTO t VALUES (2, 'b', 2)",
        "ALTER TABLE t ADD c text DEFAULT 'x'",
        "INSERT INTO t VALUES (3, 'c', 3, 'y')",
        "UPDATE t SET n = n + 1",
    ],
    "a column is dropped": ["ALTER TABLE t DROP note", "INSERT INTO t VALUES (2, 2)", "UPDATE t SET n = 5"],
    "a column gets a wider type": [
        "INSERT INTO t VALUES (2, 'b', 2)",
        "ALTER TABLE t ALTER n TYPE bigint",
        "UPDATE t SET n = 5000000000",
    ],
    "columns change their places": [
        "INSERT INTO t VALUES (2, 'b', 2)",
        "ALTER TABLE t DROP note, ADD extra text, ADD text text",
        "UPDATE t SET extra = 'e', text = 'n'",
    ],
    "a transaction is rolled back": [
        "INSERT INTO t VALUES (2, 'b', 2)",
        "BEGIN; UPDATE t SET n = 9; ROLLBACK",
        "BEGIN; SAVEPOINT s; DELETE FROM t; ROLLBACK TO s; UPDATE t SET n = 8 WHERE id = 1; COMMIT",
        "BEGIN; SAVEPOINT s; UPDATE t SET note = 's'; RELEASE s; INSERT INTO t VALUES (3, 'c', 3); COMMIT",
    ],
    "a prepared transaction commits after others": [
        "BEGIN; INSERT INTO t VALUES (2, 'b', 2); PREPARE TRANSACTION 'p'",
        "INSERT INTO t VALUES (3, 'c', 3)",
        "COMMIT PREPARED 'p'",
    ],
    "keys change": ["UPDATE t SET id = 5", "INSERT INTO t VALUES (1, 'new', 1)", "UPDATE t SET id = id + 10"],
    "rows swap their keys": [
        "INSERT INTO t VALUES (2, 'b', 2)",
        "BEGIN; UPDATE t SET id = -1 WHERE id = 1; UPDATE t SET id = 1 WHERE id = 2; UPDATE t SET id = 2 WHERE id = -1;"
        " COMMIT",
    ],
    "one row changes often in a transaction": [
        "BEGIN; DELETE FROM t; INSERT INTO t VALUES (1, 'again', 1); UPDATE t SET n = 2; UPDATE t SET n = 3; COMMIT"
    ],
    "a row is inserted and deleted in a transaction": [
        "BEGIN; INSERT INTO t VALUES (2, 'b', 2); DELETE FROM t WHERE id = 2; COMMIT"
    ],
    "messages are between transactions": [
        "SELECT pg_logical_emit_message(false, 'p', 'x')",
        "BEGIN; SELECT pg_logical_emit_message(true, 'p', 'y'); INSERT INTO t VALUES (2, 'b', 2); COMMIT",
        "SELECT pg_logical_emit_message(true, 'p', 'z')",
        "INSERT INTO t VALUES (3, 'c', 3)",
    ],
    "the replica identity changes": [
        "UPDATE t SET n = 2",
        "ALTER TABLE t REPLICA IDENTITY FULL",
        "UPDATE t SET n = 3",
        "ALTER TABLE t REPLICA IDENTITY DEFAULT",
        "UPDATE t SET n = 4",
    ],
    "the primary key has another type": [
        "ALTER TABLE t ALTER id TYPE bigint",
        "INSERT INTO t VALUES (5000000000, 'b')",
    ],
    "an enum gets a value": [
        "CREATE TYPE mood AS ENUM ('sad')",
        "ALTER TABLE t ADD m mood",
        "UPDATE t SET m = 'sad'",
        "ALTER TYPE mood ADD VALUE 'glad'",
        "INSERT INTO t VALUES (2, 'b', 2, 'glad')",
    ],
    "a domain gets another type": [
        "CREATE DOMAIN d AS text",
        "ALTER TABLE t ADD x d",
        "UPDATE t SET x = 'a'",
        "ALTER DOMAIN d ADD CHECK (length(VALUE) < 5)",
        "INSERT INTO t VALUES (2, 'b', 2, 'b')",
    ],
    "another table has a similar name": [
        'CREATE TABLE "T" (id int PRIMARY KEY); CREATE SCHEMA other; CREATE TABLE other.t (id int PRIMARY KEY)',
        "INSERT INTO \"T\" VALUES (7); INSERT INTO other.t VALUES (8); INSERT INTO t VALUES (2, 'b', 2)",
    ],
    "the table is renamed and comes back": [
        "ALTER TABLE t RENAME TO u",
        "INSERT INTO u VALUES (2, 'b', 2)",
        "ALTER TABLE u RENAME TO t",
        "INSERT INTO t VALUES (3, 'c', 3)",
    ],
    "the table is clustered and rewritten": [
        "INSERT INTO t VALUES (2, 'b', 2)",
        "CLUSTER t USING t_pkey",
        "VACUUM FULL t",
        "UPDATE t SET n = 7",
    ],
    "many rows change in one statement": [
        "INSERT INTO t SELECT n, 'x' || n, n FROM generate_series(10, 3000) n",
        "UPDATE t SET n = -n WHERE id % 3 = 0",
        "DELETE FROM t WHERE id % 2 = 0",
    ],
    "rows come by INSERT ON CONFLICT": [
        "INSERT INTO t VALUES (1, 'm', 1), (2, 'm', 2) ON CONFLICT (id) DO UPDATE SET note = EXCLUDED.note",
        "INSERT INTO t VALUES (2, 'c', 0) ON CONFLICT (id) DO UPDATE SET note = EXCLUDED.note",
    ],
    _BY_MERGE: [
        "CREATE TABLE source AS SELECT * FROM (VALUES (1, 'm', 1), (2, 'm', 2)) v (id, note, n)",
        "MERGE INTO t USING source s ON t.id = s.id WHEN MATCHED THEN UPDATE SET note = s.note"
        " WHEN NOT MATCHED THEN INSERT VALUES (s.id, s.note, s.n)",
    ],
    "a trigger changes the written row": [
        "CREATE FUNCTION f() RETURNS trigger LANGUAGE plpgsql AS 'BEGIN NEW.n := 42; RETURN NEW; END'",
        "CREATE TRIGGER before BEFORE INSERT OR UPDATE ON t FOR EACH ROW EXECUTE FUNCTION f()",
        "INSERT INTO t VALUES (2, 'b', 2)",
        "UPDATE t SET note = 'c'",
    ],
    "a foreign key deletes rows": [
        "CREATE TABLE p (id int PRIMARY KEY); INSERT INTO p VALUES (1)",
        "ALTER TABLE t ADD FOREIGN KEY (id) REFERENCES p ON DELETE CASCADE",
        "DELETE FROM p",
    ],
}


@pytest.mark.parametrize("read_between", [False, True], ids=["read-at-the-end", "read-after-each"])
@pytest.mark.parametrize(
    "case", [pytest.param(case, marks=needs_version(15)) if case == _BY_MERGE else case for case in _CASES]
)
def test_replayed_changes_give_the_table(store: Store, server: Server, case: str, read_between: bool) -> None:
    server.execute("CREATE TABLE t (id int PRIMARY KEY, note text, n int)")
    server.execute("INSERT INTO t VALUES (1, 'a', 1)")
    tunnel = store.create_tunnel("t", "changes")
    changes = drain(tunnel)
    for statement in _CASES[case]:
        server.execute(statement)
        # A renamed table cannot be read until it has its name again.
        with suppress(NotFoundError):
            changes += drain(tunnel) if read_between else []
    changes += drain(tunnel)
    table = store.table("t")
    assert replay(changes) == state_of(table)


@pytest.mark.parametrize(
    "name", ['a"b', "a\\b", "a.b", "Ab", "a b", "select", "é🙂", "a_b%c", "a'b;--", "x" * 63], ids=ascii
)
def test_names_of_tables_and_columns_are_quoted(store: Store, server: Server, name: str) -> None:
    table = sql.Identifier(name)
    server.execute(sql.SQL("CREATE TABLE {} ({} int PRIMARY KEY, {} text)").format(table, table, sql.Identifier("Id")))
    (found,) = [each for each in store.tables() if each != "headrace"]
    tunnel = store.create_tunnel(found, "changes")
    server.execute(sql.SQL("INSERT INTO {} VALUES (1, 'a')").format(table))
    store.table(found).put({name: 2, "Id": "b"})
    assert replay(drain(tunnel)) == state_of(store.table(found))
    assert len(state_of(store.table(found))) == 2


@pytest.mark.parametrize(
    ("statement", "problem"),
    [
        ("CREATE TABLE t (n int)", "primary key"),
        ("CREATE TABLE t ()", "primary key"),
        ("CREATE VIEW t AS SELECT 1 AS id", "view|not a table"),
        ("CREATE MATERIALIZED VIEW t AS SELECT 1 AS id", "view|not a table"),
        ("CREATE UNLOGGED TABLE t (id int PRIMARY KEY)", "unlogged"),
    ],
)
def test_what_the_log_does_not_have_is_refused(store: Store, server: Server, statement: str, problem: str) -> None:
    server.execute(statement)
    with pytest.raises(HeadraceError, match=f"(?i){problem}"):
        store.create_tunnel("t", "changes")
    assert store.tunnels() == []
    slots = "SELECT slot_name FROM pg_replication_slots WHERE database = current_database()"
    assert server.execute(f"{slots} UNION SELECT pubname FROM pg_publication").fetchall() == []
