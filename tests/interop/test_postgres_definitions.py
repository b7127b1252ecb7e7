"""A table whose columns change while changes are unread: each value is right, or an error names the column."""

from __future__ import annotations

import json

import pytest

import headrace
from headrace.cli.main import main
from headrace.errors import DataLossError, NotFoundError, SchemaError, UnsupportedError
from headrace.model.tables.changes import ChangeOp
from headrace.ports import Store
from headrace.stores.postgres.schemas import TableLayout
from headrace.stores.postgres.tables.table import PostgresTable
from headrace.stores.postgres.tunnels import stored_tunnels
from headrace.testing.reading import drain, replay, state_of
from tests.interop.own_database import Server
from tests.interop.test_postgres_partitions import accepted

_FILLED = "a default that a rewrite fills in"
_MADE_AGAIN, _TO_TEXT = "an enum that is made again", "an enum that becomes a text"
_SEEN = (_FILLED, _MADE_AGAIN, _TO_TEXT, "wider types", "wider types in text format")
"""The cases that are right only if their definitions are seen in between."""
# Statements after the creation of a tunnel of t, from which nothing was read.
_RIGHT = {
    "a renamed column": ["INSERT INTO t VALUES (2, 'b', 'B')", "ALTER TABLE t RENAME a TO name"],
    "names that change places": [
        "INSERT INTO t VALUES (2, 'b', 'B')",
        "BEGIN; ALTER TABLE t RENAME a TO x; ALTER TABLE t RENAME b TO a; ALTER TABLE t RENAME x TO b; COMMIT",
        "INSERT INTO t VALUES (3, 'c', 'C')",
    ],
    "names that change places and come back": [
        "BEGIN; ALTER TABLE t RENAME a TO x; ALTER TABLE t RENAME b TO a; ALTER TABLE t RENAME x TO b; COMMIT",
        "INSERT INTO t VALUES (2, 'b', 'B')",
        "BEGIN; ALTER TABLE t RENAME a TO x; ALTER TABLE t RENAME b TO a; ALTER TABLE t RENAME x TO b; COMMIT",
    ],
    "a column that is renamed and renamed back": [
        "ALTER TABLE t RENAME a TO name",
        "INSERT INTO t VALUES (2, 'b', 'B')",
        "UPDATE t SET name = 'new' WHERE id = 1",
        "ALTER TABLE t RENAME name TO a",
    ],
    "a renamed key": [
        "INSERT INTO t VALUES (2, 'b', 'B'), (3, 'c', 'C')",
        "DELETE FROM t WHERE id = 3",
        "ALTER TABLE t RENAME id TO number",
        "UPDATE t SET a = 'x' WHERE number = 1",
        "DELETE FROM t WHERE number = 2",
    ],
    "a renamed column beside a new one": [
        "INSERT INTO t VALUES (2, 'b', 'B')",
        "ALTER TABLE t RENAME a TO name",
        "ALTER TABLE t ADD a text",
        "INSERT INTO t VALUES (3, 'c', 'C', 'new')",
    ],
    "a new column whose neighbour is dropped": [
        "INSERT INTO t VALUES (2, 'b', 'B')",
        "ALTER TABLE t ADD c int",
        "INSERT INTO t VALUES (3, 'c', 'C', 3)",
        "ALTER TABLE t DROP a",
        "INSERT INTO t VALUES (4, 'D', 4)",
    ],
    "a new column with a default": [
        "INSERT INTO t VALUES (2, 'b', 'B')",
        "ALTER TABLE t ADD c int NOT NULL DEFAULT 5, ADD d int[] DEFAULT '{1,2}', ADD e timestamptz DEFAULT now()",
        "ALTER TABLE t ALTER c SET DEFAULT 6, ALTER e DROP DEFAULT",
        "INSERT INTO t VALUES (3, 'c', 'C', 7)",
    ],
    _FILLED: [
        "INSERT INTO t VALUES (2, 'b', 'B')",
        "ALTER TABLE t ADD c int NOT NULL DEFAULT 5, ADD d text DEFAULT 'x'",
        "ALTER TABLE t ALTER d DROP DEFAULT",
        "ALTER TABLE t ALTER c TYPE bigint",
        "VACUUM FULL t",
    ],
    "wider types": [
        "ALTER TABLE t ADD s smallint, ADD f real, ADD v varchar(3), ADD n numeric(5,2), ADD c char(3)",
        "INSERT INTO t VALUES (2, 'b', 'B', 7, 0.1, 'abc', 1.5, 'x')",
        "ALTER TABLE t ALTER s TYPE int, ALTER f TYPE float8, ALTER v TYPE text, ALTER n TYPE numeric(9,2),"
        " ALTER c TYPE text",
        "ALTER TABLE t ALTER s TYPE bigint, ALTER n TYPE numeric",
        "INSERT INTO t VALUES (3, 'c', 'C', 5000000000, 0.1, 'abcd', 1.25, 'long')",
    ],
    "wider types in text format": [
        "ALTER TABLE t ADD i inet, ADD f real DEFAULT 0.2, ADD n int",
        "INSERT INTO t VALUES (2, 'b', 'B', '10.0.0.1', 0.1, 7)",
        "ALTER TABLE t ALTER f TYPE float8, ALTER n TYPE bigint",
        "UPDATE t SET n = 8 WHERE id = 2",
    ],
    _MADE_AGAIN: [
        "CREATE TYPE s AS ENUM ('new', 'old'); ALTER TABLE t ADD s s",
        "INSERT INTO t VALUES (2, 'b', 'B', 'old')",
        "BEGIN; ALTER TYPE s RENAME TO s_old; CREATE TYPE s AS ENUM ('new', 'closed', 'old');"
        " ALTER TABLE t ALTER s TYPE s USING s::text::s; DROP TYPE s_old; COMMIT",
        "INSERT INTO t VALUES (3, 'c', 'C', 'closed')",
    ],
    _TO_TEXT: [
        "CREATE TYPE s AS ENUM ('new', 'old'); ALTER TABLE t ADD s s",
        "INSERT INTO t VALUES (2, 'b', 'B', 'old')",
        "ALTER TABLE t ALTER s TYPE text; DROP TYPE s",
        "INSERT INTO t VALUES (3, 'c', 'C', 'any')",
    ],
    "a rewritten table": ["INSERT INTO t VALUES (2, 'b', 'B')", "VACUUM FULL t", "CLUSTER t USING t_pkey"],
    "options of columns": [
        "INSERT INTO t VALUES (2, 'b', 'B')",
        "ALTER TABLE t ALTER a SET NOT NULL, ALTER b SET DEFAULT 'x', ALTER b SET STATISTICS 10",
        "CREATE INDEX ON t (a); ANALYZE t",
    ],
}


@pytest.mark.parametrize("seen", [False, True], ids=["unseen", "seen-between"])
@pytest.mark.parametrize("full", [False, True], ids=["key", "old-rows"])
@pytest.mark.parametrize("case", _RIGHT)
def test_unread_values_are_those_of_the_table(store: Store, server: Server, case: str, full: bool, seen: bool) -> None:
    server.execute("CREATE TABLE t (id int PRIMARY KEY, a text, b text)")
    server.execute("INSERT INTO t VALUES (1, 'a', 'A')")
    if full:
        server.execute("ALTER TABLE t REPLICA IDENTITY FULL")
    tunnel = store.create_tunnel("t", "changes")
    for statement in _RIGHT[case]:
        server.execute(statement)
        if seen:
            # Nothing is read.
            tunnel.describe()
    if case in _SEEN and not seen:
        with pytest.raises(DataLossError, match=r"column '[cdfis]'|was not seen in time"):
            drain(tunnel)
        accepted(tunnel)
        return
    changes = drain(tunnel)
    assert replay(changes) == state_of(store.table("t"))
    assert tunnel.describe().warnings == ()


_NOT_CERTAIN = {
    "timestamp to timestamptz": ("timestamp", "'2024-06-01 12:00'", "timestamptz"),
    "number to timestamp": ("bigint", "1700000000", "timestamptz USING to_timestamp(v)"),
    "number to text": ("int", "7", "text"),
    "inet to text": ("inet", "'10.0.0.1'", "text"),
    "interval to text": ("interval", "'1 day'", "text"),
    "a narrower number": ("bigint", "7", "int"),
    "fewer digits": ("numeric(10,4)", "1.2345", "numeric(10,2)"),
    "numbers in arrays": ("int[]", "'{1}'", "text"),
    "fewer digits of seconds in a domain": ("interval", "'1.7 s'", "seconds"),
    "fewer digits in an array of a domain": ("numeric(10,4)[]", "'{1.2345}'", "prices"),
    "a text without its last spaces": ("text", "'a   '", "varchar(2)"),
    "text to uuid": ("text", "'a0eebc99-9c0b-4ef8-bb6d-6bb9bd380a11'", "uuid USING v::uuid"),
}


@pytest.mark.parametrize("case", _NOT_CERTAIN)
def test_a_value_that_is_not_certain_in_a_new_type_is_an_error_that_names_the_column(
    store: Store, server: Server, case: str
) -> None:
    old, value, new = _NOT_CERTAIN[case]
    server.execute("CREATE DOMAIN seconds AS interval(0); CREATE DOMAIN prices AS numeric(10,2)[]")
    server.execute(f"CREATE TABLE t (id int PRIMARY KEY, v {old})")
    tunnel = store.create_tunnel("t", "changes", "Stream")
    server.execute("INSERT INTO t VALUES (1, NULL)")
    assert len(drain(tunnel)) == 1
    server.execute(f"INSERT INTO t VALUES (2, {value})")
    server.execute(f"ALTER TABLE t ALTER v TYPE {new}")
    server.execute("INSERT INTO t VALUES (3, NULL)")
    with pytest.raises(DataLossError, match=r"column 'v' got type .* instead of"):
        drain(tunnel)
    # The loss of read rows, and that of unread changes.
    assert [change.key for change in accepted(tunnel)] == [(3,)]
    assert tunnel.describe().warnings == ()


def test_an_uncertain_value_names_its_types_and_its_place_and_those_before_it_are_read(
    store: Store, server: Server
) -> None:
    server.execute("CREATE TABLE t (id int PRIMARY KEY, v timestamp)")
    tunnel = store.create_tunnel("t", "changes", "Stream")
    server.execute("INSERT INTO t VALUES (1, now())")
    server.execute("ALTER TABLE t ALTER v TYPE timestamptz")
    with pytest.raises(
        DataLossError,
        match=r"'v' had type timestamp without time zone and has timestamp with time zone .*; 1 rows in commit version",
    ):
        drain(tunnel)


def test_a_column_that_was_not_seen_and_does_not_exist_any_more_is_left_out(store: Store, server: Server) -> None:
    server.execute("CREATE TABLE t (id int PRIMARY KEY, s text)")
    tunnel = store.create_tunnel("t", "changes", "Stream")
    server.execute("CREATE TYPE s AS ENUM ('new'); ALTER TABLE t ADD x s")
    server.execute("INSERT INTO t VALUES (1, 'a', 'new')")
    server.execute("ALTER TABLE t DROP x; DROP TYPE s")
    server.execute("INSERT INTO t VALUES (2, 'b')")
    assert replay(drain(tunnel)) == state_of(store.table("t"))


_LOST = {
    "values by USING": (["ALTER TABLE t ALTER n TYPE int USING n * 100"], "column 'n' was rewritten"),
    "values by USING, a new name and a new column": (
        ["ALTER TABLE t ALTER n TYPE int USING n * 100; ALTER TABLE t RENAME n TO cents; ALTER TABLE t ADD c text"],
        "column 'cents' was rewritten",
    ),
    "values by USING in a type that needs no new rows": (
        ["ALTER TABLE t ALTER a TYPE varchar USING upper(a)"],
        "column 'a' was rewritten as character varying",
    ),
    "values by USING and NOT NULL": (
        ["ALTER TABLE t ALTER n TYPE int USING coalesce(n, 0), ALTER n SET NOT NULL"],
        "column 'n' was rewritten",
    ),
    "a renamed value of an enum": (["ALTER TYPE mood RENAME VALUE 'sad' TO 'blue'"], "enum of column 'm' were renamed"),
    "values of an enum that change places": (
        [
            "ALTER TYPE mood RENAME VALUE 'sad' TO 'x'; ALTER TYPE mood RENAME VALUE 'glad' TO 'sad';"
            " ALTER TYPE mood RENAME VALUE 'x' TO 'glad'"
        ],
        "enum of column 'm' were renamed",
    ),
    "a renamed value of an enum, for a time": (
        [
            "ALTER TYPE mood RENAME VALUE 'sad' TO 'blue'",
            "ALTER TYPE mood RENAME VALUE 'blue' TO 'sad'",
        ],
        "enum of column 'm' were renamed",
    ),
    "a composite type with another column for a time": (
        ["ALTER TYPE pair ADD ATTRIBUTE y int", "ALTER TYPE pair DROP ATTRIBUTE y"],
        "type public.pair of column 'p' has other columns",
    ),
    "a renamed value within a composite type": (
        ["ALTER TYPE tone RENAME VALUE 'low' TO 'deep'"],
        "enum of column 'p' were renamed: low",
    ),
    "a renamed value within a domain over a domain over an array": (
        ["ALTER TYPE tone RENAME VALUE 'low' TO 'deep'"],
        "enum of column 'd' were renamed: low",
    ),
    "other columns of a composite type": (
        ["ALTER TYPE pair DROP ATTRIBUTE x"],
        "type public.pair of column 'p' has other columns",
    ),
    "an array of an enum that becomes the enum": (
        ["ALTER TABLE t ALTER s TYPE mood USING s[1]"],
        "column 's' got type public.mood instead of",
    ),
    "another key": (["ALTER TABLE t DROP CONSTRAINT t_pkey, ADD PRIMARY KEY (id, n)"], "has another primary key"),
    "names that change places": (
        ["ALTER TABLE t RENAME a TO x; ALTER TABLE t RENAME b TO a; ALTER TABLE t RENAME x TO b"],
        "'a' is the name of another column",
    ),
    "a column that is dropped and added again": (["ALTER TABLE t DROP a, ADD a text"], "'a' is the name of another"),
    "a column that is dropped, and added later": (
        ["ALTER TABLE t DROP a", "ALTER TABLE t ADD a text"],
        "'a' is the name of another",
    ),
}


@pytest.mark.parametrize("noticed", [False, True], ids=["at-once", "noticed-between"])
@pytest.mark.parametrize("case", _LOST)
def test_rows_that_change_without_the_log_are_an_error_until_they_are_accepted(
    store: Store, server: Server, case: str, noticed: bool
) -> None:
    server.execute("CREATE TYPE mood AS ENUM ('sad', 'glad')")
    server.execute("CREATE TYPE tone AS ENUM ('low'); CREATE TYPE pair AS (x int, t tone)")
    server.execute("CREATE DOMAIN tones AS tone[]; CREATE DOMAIN chord AS tones")
    server.execute("CREATE TABLE t (id int PRIMARY KEY, n int NOT NULL DEFAULT 1, a text, b text, m mood)")
    server.execute("ALTER TABLE t ADD s mood[], ADD p pair, ADD d chord")
    server.execute("INSERT INTO t VALUES (1, 1, 'a', 'b', 'sad', '{sad}', '(1,low)', '{low}')")
    tunnel = store.create_tunnel("t", "changes")
    drain(tunnel)
    statements, problem = _LOST[case]
    for statement in statements:
        server.execute(statement)
        if noticed:
            tunnel.describe()
    server.execute("INSERT INTO t (id) VALUES (2)")
    for _ in range(2):
        with pytest.raises(DataLossError, match=problem):
            drain(tunnel)
    assert any(problem in warning for warning in tunnel.describe().warnings)
    assert [change.key[0] for change in accepted(tunnel)] == [2]
    assert tunnel.describe().warnings == ()
    server.execute("ALTER TABLE t ADD later int")
    assert drain(tunnel) == []


@pytest.mark.parametrize(
    ("alter", "problem"),
    [
        ("DROP CONSTRAINT t_pkey, ADD PRIMARY KEY (id, region)", "has another primary key"),
        ("REPLICA IDENTITY USING INDEX t_region_key", "does not have the primary key of updated and deleted rows"),
        ("REPLICA IDENTITY NOTHING", "REPLICA IDENTITY NOTHING"),
    ],
)
def test_rows_that_were_identified_otherwise_are_an_error(
    store: Store, server: Server, alter: str, problem: str
) -> None:
    server.execute("CREATE TABLE t (id int PRIMARY KEY, region int NOT NULL UNIQUE)")
    server.execute("INSERT INTO t VALUES (1, 1), (2, 2)")
    tunnel = store.create_tunnel("t", "changes")
    server.execute("DELETE FROM t WHERE id = 2")
    server.execute(f"ALTER TABLE t {alter}")
    with pytest.raises(headrace.errors.HeadraceError, match=problem):
        drain(tunnel)
    if "IDENTITY" not in alter:
        return
    if "INDEX" in alter:
        server.execute("DELETE FROM t WHERE id = 1")
    server.execute("ALTER TABLE public.t REPLICA IDENTITY DEFAULT")
    if "INDEX" in alter:
        with pytest.raises(DataLossError, match="identified by other columns than the primary key: region"):
            drain(tunnel)
        assert [change.key for change in accepted(tunnel)] == [(2,)]
    else:
        assert replay(drain(tunnel)) == state_of(store.table("t"))


@pytest.mark.parametrize("several", [False, True], ids=["one", "several"])
def test_a_key_that_is_dropped_and_made_again_is_the_same_key(store: Store, server: Server, several: bool) -> None:
    server.execute("CREATE TABLE t (id int PRIMARY KEY, n int)")
    create = store.create_tunnel_of_tables if several else store.create_tunnel
    tunnel = create("public.t" if several else "t", "changes")
    assert drain(tunnel) == []
    server.execute("ALTER TABLE t DROP CONSTRAINT t_pkey; INSERT INTO t VALUES (1, 1)")
    with pytest.raises(UnsupportedError, match="has no primary key"):
        drain(tunnel)
    server.execute("ALTER TABLE t ADD PRIMARY KEY (id); UPDATE t SET n = 2; INSERT INTO t VALUES (2, 3)")
    assert len(drain(tunnel)) == 3
    assert tunnel.describe().warnings == ()
    server.execute("ALTER TABLE t DROP CONSTRAINT t_pkey, ALTER n SET NOT NULL")
    with pytest.raises(UnsupportedError, match="has no primary key"):
        drain(tunnel)
    server.execute("ALTER TABLE t ADD PRIMARY KEY (n)")
    with pytest.raises(DataLossError, match=r"received: table public\.t: the table has another primary key;"):
        drain(tunnel)


def test_a_new_column_with_unknown_values_is_an_error_for_older_rows_only(store: Store, server: Server) -> None:
    server.execute("CREATE TABLE t (id int PRIMARY KEY)")
    server.execute("INSERT INTO t VALUES (1)")
    tunnel = store.create_tunnel("t", "changes")
    drain(tunnel)
    server.execute("ALTER TABLE t ADD r uuid DEFAULT gen_random_uuid()")
    server.execute("INSERT INTO t VALUES (2)")
    assert [change.key for change in drain(tunnel)] == [(2,)]
    server.execute("INSERT INTO t VALUES (3)")
    server.execute("ALTER TABLE t ADD s bigserial")
    server.execute("INSERT INTO t VALUES (4)")
    with pytest.raises(DataLossError, match=r"column 's' is newer, and rows before it have values"):
        drain(tunnel)
    assert [change.key for change in accepted(tunnel)] == [(4,)]
    server.execute("CREATE DOMAIN rank AS int DEFAULT 5 CHECK (VALUE > 0)")
    server.execute("INSERT INTO t VALUES (5)")
    server.execute("ALTER TABLE t ADD d rank")
    with pytest.raises(DataLossError, match=r"column 'd' is newer, and rows before it have values"):
        drain(tunnel)


@pytest.mark.parametrize("patterns", [None, "public.*"])
@pytest.mark.parametrize("change", ["ADD c int DEFAULT 5", "DROP b", "RENAME a TO name"])
def test_a_table_changes_while_its_definition_is_read(
    store: Store, server: Server, monkeypatch: pytest.MonkeyPatch, patterns: str | None, change: str
) -> None:
    monkeypatch.setattr(stored_tunnels, "SMALL_TABLE_ROWS", 0)
    server.execute("CREATE TABLE t (id int PRIMARY KEY, a text, b text)")
    server.execute("INSERT INTO t VALUES (1, 'a', 'b')")
    created = store.create_tunnel_of_tables(patterns, "changes") if patterns else store.create_tunnel("t", "changes")
    tunnel = store.tunnel(created.id)
    base = tunnel.channels()[0]
    server.execute("ALTER TABLE t ADD z int")
    changes, layout = iter([change]), PostgresTable.layout

    def after_a_change(table: PostgresTable) -> TableLayout:
        for each in changes:
            server.execute(f"ALTER TABLE t {each}")
        return layout(table)

    monkeypatch.setattr(PostgresTable, "layout", after_a_change)
    (row,) = tunnel.read(base.id, base.committed, 10).changes.rows.to_pylist()
    assert (row if patterns is None else json.loads(row["row"])) == store.table("t").get({"id": 1})


def test_base_data_that_is_read_later_has_the_columns_of_now(
    store: Store, server: Server, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(stored_tunnels, "SMALL_TABLE_ROWS", 0)
    server.execute("CREATE TABLE t (id int PRIMARY KEY, a text, n int)")
    server.execute("INSERT INTO t SELECT n, 'x' || n, n FROM generate_series(1, 20) n")
    tunnel = store.create_tunnel("t", "changes", base_channels=2)
    first, second = (channel.id for channel in tunnel.channels()[:2])
    begin = tunnel.channels()[0].committed
    tunnel.read(first, begin, 3)
    server.execute("ALTER TABLE t RENAME a TO name")
    server.execute("ALTER TABLE t ADD c int DEFAULT 5")
    tunnel.describe()
    server.execute("ALTER TABLE t ALTER n TYPE bigint")
    server.execute("UPDATE t SET c = 6 WHERE id = 15")
    rest = tunnel.read(first, tunnel.advance(first, begin, 3), 100).changes.rows
    assert rest.column("name")[0].as_py() == "x4"
    assert set(rest.column("c").to_pylist()) == {5}
    assert tunnel.read(second, tunnel.channels()[1].committed, 100).changes.rows.column("c").to_pylist().count(6) == 1
    assert replay(drain(tunnel)) == state_of(store.table("t"))
    server.execute("ALTER TABLE t ADD d text")
    monkeypatch.undo()
    other = store.create_tunnel("t", "others")
    server.execute("ALTER TABLE t ALTER n TYPE text")
    with pytest.raises(DataLossError, match=r"rows of base data cannot be read.*'n' had type bigint"):
        drain(other)
    assert accepted(other) == []


def test_the_rows_of_several_tables_have_their_names_of_that_time_and_keys_the_first_ones(
    store: Store, server: Server
) -> None:
    server.execute("CREATE TABLE t (id int PRIMARY KEY, a text)")
    server.execute("INSERT INTO t VALUES (1, 'a')")
    tunnel = store.create_tunnel_of_tables("public.*", "changes")
    server.execute("INSERT INTO t VALUES (2, 'b')")
    server.execute("ALTER TABLE t RENAME id TO number; ALTER TABLE t RENAME a TO name")
    server.execute("UPDATE t SET name = 'c' WHERE number = 1")
    server.execute("DELETE FROM t WHERE number = 2")
    assert [(change.op, change.key[2], change.row["row"]) for change in drain(tunnel)] == [
        (ChangeOp.BASE, '{"id":1}', '{"id":1,"a":"a"}'),
        (ChangeOp.INSERT, '{"id":2}', '{"id":2,"a":"b"}'),
        (ChangeOp.REPLACE, '{"id":1}', '{"number":1,"name":"c"}'),
        (ChangeOp.DELETE, '{"id":2}', None),
    ]


@pytest.mark.parametrize(
    ("statements", "error", "problem", "remedy"),
    [
        (["DROP TABLE t"], NotFoundError, "was dropped", None),
        (["ALTER TABLE t RENAME TO u"], NotFoundError, "has another name", "ALTER TABLE u RENAME TO t"),
        (
            ["CREATE SCHEMA s", "ALTER TABLE t SET SCHEMA s"],
            NotFoundError,
            "has another name",
            "ALTER TABLE s.t SET SCHEMA public",
        ),
        (["DROP TABLE t", "CREATE TABLE t (id int PRIMARY KEY)"], DataLossError, "is another table", None),
        (
            ["CREATE TABLE u (LIKE t INCLUDING ALL)", "ALTER TABLE t RENAME TO v", "ALTER TABLE u RENAME TO t"],
            DataLossError,
            "is another table",
            "ALTER TABLE t RENAME TO u; ALTER TABLE v RENAME TO t",
        ),
    ],
)
def test_a_table_that_lost_its_name_is_an_error_and_listed(
    store: Store,
    server: Server,
    capsys: pytest.CaptureFixture[str],
    statements: list[str],
    error: type[Exception],
    problem: str,
    remedy: str | None,
) -> None:
    server.execute("CREATE TABLE t (id int PRIMARY KEY)")
    tunnel = store.create_tunnel("t", "changes", "Stream")
    server.execute("INSERT INTO t VALUES (1)")
    (channel,) = tunnel.channels()
    for statement in statements:
        server.execute(statement)
    with pytest.raises(error, match=problem):
        tunnel.read(channel.id, channel.committed, 10)
    assert main(["tunnel", "list", "-s", store.url]) == 0
    assert "changes" in capsys.readouterr().out
    with headrace.open(store.url) as other:
        (listed,) = other.tunnels()
        described = listed.describe()
        assert any(problem in warning for warning in described.warnings)
        assert described.details["slot"]
    if remedy is not None:
        server.execute(remedy)
        assert [change.key for change in drain(tunnel)] == [(1,)]
    else:
        store.drop_tunnel("changes")
        with pytest.raises(NotFoundError):
            store.tunnel("changes")


def test_columns_that_are_new_to_a_reader_are_checked(store: Store, server: Server) -> None:
    server.execute("CREATE TABLE t (id int PRIMARY KEY, a text)")
    tunnel = store.create_tunnel("t", "changes", "Stream")
    server.execute("ALTER TABLE t ADD empty text, ADD filled int DEFAULT 5")
    assert tunnel.values_of_new_columns(["empty", "filled"]) == {"filled": 5}
    tunnel.describe()
    server.execute("ALTER TABLE t ADD other bigserial")
    with pytest.raises(SchemaError, match=r"unknown values.*'other'"):
        tunnel.values_of_new_columns(["other"])
