"""Cases of tables of PostgreSQL that followers must have right or refuse: docs/postgres-cases.md is their table.

They are the faults that trials of headrace found, and the subjects of Materialize's tests of its source for PostgreSQL.
A copy is kept as a mirror keeps it: from base data and changes, and columns by their numbers.

    python -m tests.interop.postgres_cases docs/postgres-cases.md
"""

from __future__ import annotations

import re
import sys
from collections.abc import Mapping
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import psycopg
from psycopg import sql

import headrace
from headrace.errors import HeadraceError
from headrace.model.tables.changes import DELETES, ChangeOp
from headrace.ports import Store
from headrace.testing.reading import Change, drain, state_of
from tests.conformance import serving

FOLLOWED = "followed"
_LONGEST = 170
Row = dict[str, Any]
_PAGE = """# Cases of PostgreSQL

Each case is a table, changes of it after its base data was read, and what a mirror has in the end: the rows of the table
(*{followed}*), or an error whose beginning is shown. A test runs the cases and compares this page with their results;
`python -m tests.interop.postgres_cases docs/postgres-cases.md` writes it. [PostgreSQL](postgres.md) and
[tunnels](postgres-tunnels.md) have the rules behind them.

| subject | changes | result |
|---|---|---|
"""


@dataclass(frozen=True)
class Case:
    """One case.

    Attributes:
        subject: what it is about.
        columns: the definition of table `t`; the rows of its base data.
        statements: the changes.
        more: statements before the tunnel is created.
    """

    subject: str
    columns: str
    rows: str
    statements: str
    more: str = ""


PLAIN = "id int PRIMARY KEY, v text, n int"
TWO = "(1, 'a', 1), (2, 'b', 2)"
CASES = (
    Case("replica identity default", PLAIN, TWO, "UPDATE t SET n = 5 WHERE id = 1; DELETE FROM t WHERE id = 2"),
    Case("replica identity full", PLAIN, TWO, "UPDATE t SET id = 9 WHERE id = 1", "ALTER TABLE t REPLICA IDENTITY FULL"),
    Case("replica identity nothing", PLAIN, TWO, "SELECT 1", "ALTER TABLE t REPLICA IDENTITY NOTHING"),
    Case("identity changed while changes are unread", PLAIN, TWO, "ALTER TABLE t REPLICA IDENTITY NOTHING"),
    Case("no primary key", "id int", "(1)", "SELECT 1"),
    Case("a dropped primary key", PLAIN, TWO, "ALTER TABLE t DROP CONSTRAINT t_pkey; INSERT INTO t VALUES (3)"),
    Case("another primary key", PLAIN, TWO, "ALTER TABLE t DROP CONSTRAINT t_pkey, ADD PRIMARY KEY (id, n)"),
    Case("deferrable primary key", "id int PRIMARY KEY DEFERRABLE", "(1)", "SELECT 1"),
    Case("key of a time", "at timestamptz PRIMARY KEY, n int", "('2024-01-01', 1)", "UPDATE t SET n = 2"),
    Case("key of a float", "f float8 PRIMARY KEY, n int", "(1e-5, 1), (1e20, 2)", "UPDATE t SET n = 2; DELETE FROM t WHERE f > 1"),
    Case("key of a boolean", "b boolean PRIMARY KEY, i interval", "(true, '1 day')", "UPDATE t SET i = '2 days'"),
    Case("key of an array", "a int[] PRIMARY KEY", "('{1,2}')", "DELETE FROM t; INSERT INTO t VALUES ('{3}')"),
    Case("texts of a citext key", "c citext PRIMARY KEY, n int", "('abc', 1)", "UPDATE t SET c = 'ABC'", "CREATE EXTENSION citext"),
    Case("key of more than 2 kB", "k text PRIMARY KEY, n int", "((SELECT string_agg(md5(i::text), '') FROM generate_series(1, 80) i), 1)", "UPDATE t SET n = 2; UPDATE t SET k = 'short'"),
    Case("TRUNCATE", PLAIN, TWO, "TRUNCATE t; INSERT INTO t VALUES (3, 'c', 3)"),
    Case("large values (TOAST) that do not change", PLAIN, "(1, repeat(md5('x'), 9000), 1)", "UPDATE t SET n = 2", "ALTER TABLE t REPLICA IDENTITY FULL; ALTER TABLE t ALTER v SET STORAGE EXTERNAL"),
    Case("the same without old rows", PLAIN, "(1, repeat(md5('x'), 9000), 1)", "UPDATE t SET n = 2", "ALTER TABLE t ALTER v SET STORAGE EXTERNAL"),
    Case("an added column", PLAIN, TWO, "ALTER TABLE t ADD c int; INSERT INTO t VALUES (3, 'c', 3, 3)"),
    Case("an added column with a default", PLAIN, TWO, "ALTER TABLE t ADD c int NOT NULL DEFAULT 5; DELETE FROM t WHERE id = 1"),
    Case("a default of its own for each row", PLAIN, TWO, "ALTER TABLE t ADD c uuid DEFAULT gen_random_uuid(); INSERT INTO t VALUES (3)"),
    Case("a dropped column", PLAIN, TWO, "ALTER TABLE t DROP v; UPDATE t SET n = 7"),
    Case("a column that was dropped and added again", PLAIN, TWO, "ALTER TABLE t DROP v; ALTER TABLE t ADD v text; UPDATE t SET n = 7"),
    Case("a renamed column", PLAIN, TWO, "INSERT INTO t VALUES (3, 'c', 3); ALTER TABLE t RENAME v TO w; INSERT INTO t VALUES (4, 'd', 4)"),
    Case("a renamed column and VACUUM FULL", PLAIN, TWO, "ALTER TABLE t RENAME v TO w; VACUUM FULL t"),
    Case("a renamed key column", PLAIN, TWO, "DELETE FROM t WHERE id = 1; ALTER TABLE t RENAME id TO k; UPDATE t SET n = 8"),
    Case("two columns that exchange their names", PLAIN, TWO, "ALTER TABLE t RENAME v TO x; ALTER TABLE t RENAME n TO v; ALTER TABLE t RENAME x TO n"),
    Case("int to bigint", PLAIN, TWO, "UPDATE t SET n = 3; ALTER TABLE t ALTER n TYPE bigint; UPDATE t SET n = 2::bigint ^ 40"),
    Case("real to double precision", "id int PRIMARY KEY, r real", "(1, 0.1)", "ALTER TABLE t ALTER r TYPE float8; INSERT INTO t VALUES (2, 0.1)"),
    Case("varchar to text", "id int PRIMARY KEY, v varchar(3)", "(1, 'a')", "ALTER TABLE t ALTER v TYPE text; UPDATE t SET v = 'longer'"),
    Case("more digits of numeric", "id int PRIMARY KEY, p numeric(4,2)", "(1, 1.50)", "ALTER TABLE t ALTER p TYPE numeric(9,2); UPDATE t SET p = 1234567.25"),
    Case("numeric to double precision", "id int PRIMARY KEY, p numeric(4,2)", "(1, 1.50)", "UPDATE t SET p = 2; ALTER TABLE t ALTER p TYPE float8"),
    Case("timestamp to timestamptz", "id int PRIMARY KEY, at timestamp", "(1, '2024-01-01')", "UPDATE t SET at = '2024-07-01'; ALTER TABLE t ALTER at TYPE timestamptz"),
    Case("bigint to int", "id int PRIMARY KEY, n bigint", "(1, 1)", "UPDATE t SET n = 2; ALTER TABLE t ALTER n TYPE int"),
    Case("int to text", PLAIN, TWO, "UPDATE t SET n = 2; ALTER TABLE t ALTER n TYPE text"),
    Case("a type with USING that changes values", "id int PRIMARY KEY, p numeric(6,2)", "(1, 1.50)", "UPDATE t SET p = 2; ALTER TABLE t ALTER p TYPE numeric(9,2) USING p * 100"),
    Case("an enum that is replaced by another one", "id int PRIMARY KEY, m mood", "(1, 'sad')", "UPDATE t SET m = 'ok'; CREATE TYPE mood2 AS ENUM ('sad', 'ok', 'new'); ALTER TABLE t ALTER m TYPE mood2 USING m::text::mood2", "mood"),
    Case("a new value of an enum", "id int PRIMARY KEY, m mood", "(1, 'sad')", "ALTER TYPE mood ADD VALUE 'glad'; UPDATE t SET m = 'glad'", "mood"),
    Case("a renamed value of an enum", "id int PRIMARY KEY, m mood", "(1, 'sad')", "ALTER TYPE mood RENAME VALUE 'sad' TO 'blue'", "mood"),
    Case("NOT NULL that is set and dropped", PLAIN, TWO, "ALTER TABLE t ALTER n SET NOT NULL; ALTER TABLE t ALTER n DROP NOT NULL; UPDATE t SET n = NULL"),
    Case("another default", PLAIN, TWO, "ALTER TABLE t ALTER n SET DEFAULT 9; INSERT INTO t (id) VALUES (3)"),
    Case("a generated column", "id int PRIMARY KEY, n int, d int GENERATED ALWAYS AS (n * 2) STORED", "(1, 1)", "UPDATE t SET n = 2"),
    Case("VACUUM FULL and an index", PLAIN, TWO, "VACUUM FULL t; CREATE INDEX ON t (n); UPDATE t SET n = 3"),
    Case("a renamed table", PLAIN, TWO, "ALTER TABLE t RENAME TO u"),
    Case("a table that gets another schema", PLAIN, TWO, "CREATE SCHEMA s; ALTER TABLE t SET SCHEMA s"),
    Case("two tables that exchange their names", PLAIN, TWO, "CREATE TABLE x (LIKE t INCLUDING ALL); ALTER TABLE t RENAME TO y; ALTER TABLE x RENAME TO t"),
    Case("a table that is dropped and created again", PLAIN, TWO, "DROP TABLE t; CREATE TABLE t (id int PRIMARY KEY, v text, n int)"),
    Case("an unlogged table", PLAIN, TWO, "SELECT 1", "ALTER TABLE t SET UNLOGGED"),
    Case("a table that becomes unlogged", PLAIN, TWO, "ALTER PUBLICATION {publication} DROP TABLE t; ALTER TABLE t SET UNLOGGED"),
    Case("inherited tables", PLAIN, TWO, "SELECT 1", "CREATE TABLE child () INHERITS (t)"),
    Case("a table that gets an heir", PLAIN, TWO, "CREATE TABLE child () INHERITS (t); INSERT INTO child VALUES (7)"),
    Case("row-level security for another user", PLAIN, TWO, "UPDATE t SET n = 3", "ALTER TABLE t ENABLE ROW LEVEL SECURITY"),
    Case("a changed publication", PLAIN, TWO, "ALTER PUBLICATION {publication} SET (publish = 'insert'); DELETE FROM t"),
    Case("a table that leaves its publication", PLAIN, TWO, "ALTER PUBLICATION {publication} DROP TABLE t; DELETE FROM t"),
    Case("a table that leaves its publication and comes back", PLAIN, TWO, "ALTER PUBLICATION {publication} DROP TABLE t; DELETE FROM t; ALTER PUBLICATION {publication} ADD TABLE t"),
    Case("a table of another publication, too", PLAIN, TWO, "CREATE PUBLICATION other FOR TABLE t WITH (publish = 'insert'); DELETE FROM t; DROP PUBLICATION other"),
    Case("a dropped publication", PLAIN, TWO, "DROP PUBLICATION {publication}; DELETE FROM t"),
    Case("a dropped slot", PLAIN, TWO, "SELECT pg_drop_replication_slot('{slot}'); DELETE FROM t"),
    Case("a slot that others advance", PLAIN, TWO, "DELETE FROM t; SELECT pg_replication_slot_advance('{slot}', pg_current_wal_lsn())"),
    Case("a new partition", "partitions", "(1, 1), (11, 1)", "CREATE TABLE t2 PARTITION OF t FOR VALUES FROM (20) TO (30); INSERT INTO t VALUES (21, 1)"),
    Case("a row that moves to another partition", "partitions", "(1, 1)", "UPDATE t SET id = 11"),
    Case("a dropped partition", "partitions", "(1, 1), (11, 1)", "DROP TABLE t1"),
    Case("a detached partition", "partitions", "(1, 1), (11, 1)", "ALTER TABLE t DETACH PARTITION t1"),
    Case("a partition that is created, written and dropped", "partitions", "(1, 1)", "CREATE TABLE t2 PARTITION OF t FOR VALUES FROM (20) TO (30); INSERT INTO t VALUES (21, 1); DROP TABLE t2"),
    Case("a partition that is created and dropped without rows", "partitions", "(1, 1)", "CREATE TABLE t2 PARTITION OF t FOR VALUES FROM (20) TO (30); DROP TABLE t2"),
    Case("a partition that is attached with rows", "partitions", "(1, 1)", "CREATE TABLE x (LIKE t INCLUDING ALL); INSERT INTO x VALUES (25, 1); ALTER TABLE t ATTACH PARTITION x FOR VALUES FROM (20) TO (30)"),
    Case("TRUNCATE of a partitioned table", "partitions", "(1, 1), (11, 1)", "BEGIN; INSERT INTO t VALUES (2, 1); TRUNCATE t; INSERT INTO t VALUES (3, 3); COMMIT"),
    Case("TRUNCATE of a partition", "partitions", "(1, 1), (11, 1)", "TRUNCATE t1"),
    Case("infinite times", "id int PRIMARY KEY, d date", "(1, '2024-01-01')", "UPDATE t SET d = 'infinity'"),
    Case("NaN in numeric(p,s)", "id int PRIMARY KEY, p numeric(6,2)", "(1, 1)", "UPDATE t SET p = 'NaN'"),
    Case("arrays of arrays", "id int PRIMARY KEY, a int[]", "(1, '{1}')", "UPDATE t SET a = '{{1,2},{3,4}}'"),
    Case("inet[]", "id int PRIMARY KEY, a inet[]", "(1, '{10.0.0.1}')", "UPDATE t SET a = '{::1}'"),
    Case("geometric types, hstore, money", "id int PRIMARY KEY, p point, h hstore, m money", "(1, '(1,2)', 'a=>1', 5)", "UPDATE t SET m = 6", "CREATE EXTENSION hstore"),
    Case("oid and its arrays", "id int PRIMARY KEY, o oid, a oid[]", "(1, 4294967295, '{4294967295}')", "UPDATE t SET a = a || 7::oid"),
    Case('"char"', 'id int PRIMARY KEY, c "char"', "(1, '')", "INSERT INTO t SELECT 2, c FROM t"),
    Case("domains and composite types", "id int PRIMARY KEY, w whole, p place", "(1, 1, '(a,1)')", "UPDATE t SET w = 2", "domain"),
    Case("names in quotes and Unicode", 'id int PRIMARY KEY, "Ä ""x" text', "(1, 'ü')", "UPDATE t SET \"Ä \"\"x\" = 'ß'"),
    Case("savepoints and a rolled back transaction", PLAIN, TWO, "BEGIN; DELETE FROM t; ROLLBACK; BEGIN; SAVEPOINT s; DELETE FROM t; ROLLBACK TO s; UPDATE t SET n = 4; COMMIT"),
    Case("keys that exchange their rows", PLAIN, TWO, "BEGIN; UPDATE t SET id = 3 WHERE id = 1; UPDATE t SET id = 1 WHERE id = 2; UPDATE t SET id = 2 WHERE id = 3; COMMIT"),
)  # fmt: skip
_TYPES = {
    "mood": "CREATE TYPE mood AS ENUM ('sad', 'ok')",
    "domain": "CREATE DOMAIN whole AS int CHECK (VALUE > 0); CREATE TYPE place AS (street text, number int)",
}
_PARTITIONS = """
CREATE TABLE t (id int PRIMARY KEY, n int) PARTITION BY RANGE (id);
CREATE TABLE t0 PARTITION OF t FOR VALUES FROM (0) TO (10);
CREATE TABLE t1 PARTITION OF t FOR VALUES FROM (10) TO (20)
"""


def result(case: Case, store: Store, server: psycopg.Connection[Any]) -> str:
    """Return `FOLLOWED`, or the problem of the error; assert that the copy is the table otherwise."""
    more = case.more
    if more in _TYPES or more.startswith("CREATE EXTENSION"):
        execute(server, _TYPES.get(more, more))
        more = ""
    execute(server, _PARTITIONS if case.columns == "partitions" else f"CREATE TABLE t ({case.columns})")
    for statement in (f"INSERT INTO t VALUES {case.rows}", more):
        if statement:
            execute(server, statement)
    try:
        tunnel = store.create_tunnel("t", "case").with_truncations()
        numbers = store.table("t").column_numbers() or {}
        copy: dict[tuple[Any, ...], Row] = {}
        apply(copy, drain(tunnel))
        assert list(copy.values()) == list(state_of(store.table("t")).values()), "base data"
        details = tunnel.describe().details
        names = {"slot": details.get("slot"), "publication": f'"{details.get("publication") or details.get("slot")}"'}
        for statement in case.statements.split("; "):
            execute(server, statement.format(**names) if "{p" in statement or "{s" in statement else statement)
        changes = drain(tunnel)
        table = store.table("t")
        now = table.column_numbers() or {}
        former = {number: name for name, number in numbers.items()}
        added = [name for name, number in now.items() if number not in former]
        values = tunnel.values_of_new_columns(added)
        copy = {key: as_of_now(row, now, former, values, table.schema.names) for key, row in copy.items()}
        apply(copy, changes)
        assert copy == state_of(table), f"{case.subject}: {copy} instead of {state_of(table)}"
    except HeadraceError as error:
        problem = error.problem if error.received is None else f"{error.problem}: {error.received}"
        return f"{type(error).__name__}: {problem}"
    return FOLLOWED


def as_of_now(
    row: Row, now: Mapping[str, int], former: Mapping[int, str], values: Mapping[str, Any], names: tuple[str, ...]
) -> Row:
    """Return a row with the columns of now, as a mirror changes those of its target."""
    return {name: row[former[now[name]]] if now[name] in former else values.get(name) for name in names}


def apply(copy: dict[tuple[Any, ...], Row], changes: list[Change]) -> None:
    for change in changes:
        if change.op is ChangeOp.TRUNCATE:
            copy.clear()
        elif change.op in DELETES:
            copy.pop(change.key, None)
        elif change.op is not ChangeOp.PREIMAGE:
            copy[change.key] = dict(change.row)


def execute(server: psycopg.Connection[Any], statement: str) -> None:
    server.execute(sql.SQL(statement))


# What differs from run to run: names of slots, positions of the log, versions of commits.
_VARYING = re.compile(r"headrace_[0-9a-f]{32}|[0-9A-F]+/[0-9A-F]{5,}|\b\d{7,}\b")


def line(case: Case, found: str) -> str:
    """Return the row of a case in the page."""
    more = "" if case.more in _TYPES or case.more.startswith("CREATE EXTENSION") else case.more
    changed = "; ".join(each for each in (more, case.statements) if each and each != "SELECT 1") or case.columns
    shown = _VARYING.sub("…", found)
    if len(shown) > _LONGEST:
        shown = f"{shown[:_LONGEST].rstrip()}…"
    cells = [each.replace("|", "\\|") for each in (case.subject, f"`{changed}`", shown)]
    return f"| {' | '.join(cells)} |"


def page() -> str:
    """Run all cases, and return the page."""
    lines = []
    url = serving.postgres_database("cases")
    with psycopg.connect(url, autocommit=True) as server:
        for case in CASES:
            execute(server, "DROP SCHEMA IF EXISTS public CASCADE; CREATE SCHEMA public")
            with headrace.open(url) as store:
                lines.append(line(case, result(case, store, server)))
                for tunnel in store.tunnels():
                    store.drop_tunnel(tunnel.id)
    return _PAGE.format(followed=FOLLOWED) + "\n".join(lines) + "\n"


def main() -> None:
    try:
        Path(sys.argv[1]).write_text(page())
    finally:
        serving.stop()


if __name__ == "__main__":
    main()
