"""Rows that a table of PostgreSQL refuses: constraints, types, triggers and rows that need each other."""

from __future__ import annotations

import random
import time
from collections.abc import Iterator, Mapping, Sequence
from concurrent.futures import ThreadPoolExecutor
from typing import Any

import adbc_driver_postgresql.dbapi as adbc
import psycopg
import pyarrow as pa
import pytest

import headrace
from headrace.batches.sinks.bad_rows import bad_rows_of, prepare
from headrace.batches.sinks.batch_writer import BatchWriter
from headrace.batches.sinks.targets import TableTarget
from headrace.errors import PublicationError, UnsupportedError
from headrace.model.tables.changes import RowChange
from headrace.ports import RetriedRows, Store
from headrace.stores.postgres.publication import bad_rows
from headrace.testing.effort import thorough
from tests.conformance import serving

Server = psycopg.Connection[Any]
Rows = Sequence[Mapping[str, Any]]


@pytest.fixture
def store() -> Iterator[Store]:
    with headrace.open(serving.postgres_database()) as opened:
        yield opened


@pytest.fixture
def server(store: Store) -> Iterator[Server]:
    with psycopg.connect(store.url, autocommit=True) as opened:
        yield opened


def publish(store: Store, batch: int, puts: Rows, deletes: Rows = (), table: str = "t", job: str = "job") -> int:
    kept = bad_rows_of(table, "copy")
    targets = [TableTarget(table, change, bad_rows=kept) for change in (RowChange.PUT, RowChange.DELETE)]
    prepare(store, targets[0])
    writer = BatchWriter(store, job, targets)
    staged = [
        writer.stage(batch, target, pa.Table.from_pylist([dict(row) for row in rows]).to_batches() if rows else [])
        for target, rows in zip(targets, (puts, deletes), strict=True)
    ]
    assert writer.publisher.publish(batch, writer.writes(staged))
    return writer.publisher.refused


def bad(server: Server, table: str = "t") -> dict[str, str]:
    """Return the errors of bad rows by their keys."""
    return dict(server.execute(f"SELECT key::json->>'k', error FROM {table}_bad_rows ORDER BY key").fetchall())


def rows(server: Server, columns: str = "k, v") -> list[tuple[Any, ...]]:
    return server.execute(f"SELECT {columns} FROM t ORDER BY k").fetchall()


def test_each_kind_of_refusal_is_kept_by_itself(store: Store, server: Server) -> None:
    server.execute("CREATE TABLE parent (id int PRIMARY KEY)")
    server.execute("CREATE DOMAIN small AS int CHECK (value < 100)")
    server.execute(
        "CREATE TABLE t (k text PRIMARY KEY, v int NOT NULL CHECK (v > 0), u varchar(3) UNIQUE,"
        " p int REFERENCES parent, z timestamp(0), s small, d int UNIQUE DEFERRABLE INITIALLY DEFERRED)"
    )
    server.execute(
        "CREATE FUNCTION no() RETURNS trigger LANGUAGE plpgsql AS"
        " $$BEGIN IF NEW.v = 13 THEN RAISE 'unlucky'; ELSIF NEW.v = 14 THEN RETURN NULL; END IF; RETURN NEW; END$$"
    )
    server.execute("CREATE TRIGGER no BEFORE INSERT OR UPDATE ON t FOR EACH ROW EXECUTE FUNCTION no()")
    server.execute("INSERT INTO t (k, v, u, d) VALUES ('there', 1, 'u', 5)")
    fine = {"v": 1, "u": None, "p": None, "z": None, "s": None, "d": None}
    cases: dict[str, dict[str, Any]] = {
        "check": {"v": -1},
        "null": {"v": None},
        "unique": {"u": "u"},
        "length": {"u": "long"},
        "nul": {"u": "\0"},
        "parent": {"p": 1},
        "domain": {"s": 100},
        "deferred": {"d": 5},
        "raised": {"v": 13},
        "dropped": {"v": 14},
        "good": {},
    }
    assert publish(store, 0, [{"k": key, **fine, **case} for key, case in cases.items()]) == len(cases) - 1
    assert rows(server) == [("good", 1), ("there", 1)]
    assert {key: error.split("; ")[0] for key, error in bad(server).items()} == {
        "check": "rows violate constraint 't_v_check': new row for relation \"t\" violates check constraint"
        ' "t_v_check"',
        "deferred": "rows violate constraint 't_d_key': duplicate key value violates unique constraint \"t_d_key\"",
        "domain": 'PostgreSQL does not accept a value: value for domain small violates check constraint "small_check"',
        "dropped": "table 't' has not taken a row of the write: a rule or a trigger has dropped it",
        "length": "the type of column 'u' would round or shorten a value",
        "nul": "column 'u' cannot hold the value",
        "null": "column 'v' is NOT NULL and has no value",
        "parent": "rows violate constraint 't_p_fkey': insert or update on table \"t\" violates foreign key"
        ' constraint "t_p_fkey"',
        "raised": "a function of the database has raised an error: unlucky",
        "unique": "rows violate constraint 't_u_key': duplicate key value violates unique constraint \"t_u_key\"",
    }
    server.execute("INSERT INTO parent VALUES (1)")
    server.execute("ALTER TABLE t DROP CONSTRAINT t_v_check, ALTER u TYPE text")
    server.execute("DELETE FROM t WHERE k = 'there'")
    assert store.retry_bad_rows("t") == RetriedRows(5, 5, 0)
    assert [key for key, _ in rows(server)] == ["check", "deferred", "good", "length", "parent", "unique"]
    assert list(bad(server)) == ["domain", "dropped", "nul", "null", "raised"]


def test_rows_that_need_each_other_are_taken_beside_refused_ones(store: Store, server: Server) -> None:
    server.execute("CREATE TABLE t (k int PRIMARY KEY, v int UNIQUE, p int REFERENCES t, CHECK (v <> 0))")
    server.execute("INSERT INTO t VALUES (1, 10), (2, 20)")
    swapped: Rows = [{"k": 1, "v": 20, "p": None}, {"k": 2, "v": 10, "p": None}]
    family: Rows = [{"k": 7, "v": 70, "p": 8}, {"k": 8, "v": 80, "p": None}]
    assert publish(store, 0, [*swapped, {"k": 3, "v": 0, "p": None}, *family]) == 1
    assert rows(server, "k, v, p") == [(1, 20, None), (2, 10, None), (7, 70, 8), (8, 80, None)]
    assert list(bad(server)) == ["3"]


def test_rows_that_need_each_other_are_taken_if_all_others_are_refused(store: Store, server: Server) -> None:
    server.execute("CREATE TABLE t (k int PRIMARY KEY, v int UNIQUE CHECK (v <> 0))")
    server.execute("INSERT INTO t VALUES (1, 10), (2, 20)")
    assert publish(store, 0, [{"k": 1, "v": 20}, {"k": 2, "v": 10}, {"k": 3, "v": 0}]) == 1
    assert rows(server) == [(1, 20), (2, 10)]


def test_many_refused_rows_cost_no_round_trips_of_their_own(
    store: Store, server: Server, monkeypatch: pytest.MonkeyPatch
) -> None:
    server.execute("CREATE TABLE t (k int PRIMARY KEY, v int CHECK (v <> 0), u int UNIQUE)")
    server.execute("INSERT INTO t SELECT -k, 1, k FROM generate_series(1, 5000) k")
    refused = set(range(1, 5000, 70))
    batch = [{"k": k, "v": k % 2 if k in refused else 1, "u": k if k in refused else -k} for k in range(1, 5000)]
    statements: list[str] = []
    execute = adbc.Cursor.execute

    def counted(cursor: adbc.Cursor, operation: str, parameters: Any = None) -> None:
        statements.append(operation)
        execute(cursor, operation, parameters)

    monkeypatch.setattr(adbc.Cursor, "execute", counted)
    assert publish(store, 0, batch) == len(refused)
    assert {int(key) for key in bad(server)} == refused
    assert server.execute("SELECT count(*) FROM t WHERE k > 0").fetchone() == (4999 - len(refused),)
    # Two rounds of attempts: of unique values, several could have been accepted together.
    assert len(statements) < 100


@pytest.mark.parametrize("seed", range(thorough(8)))
def test_the_server_finds_the_rows_that_attempts_from_outside_find(
    store: Store, server: Server, monkeypatch: pytest.MonkeyPatch, seed: int
) -> None:
    chosen = random.Random(seed)
    server.execute(
        "CREATE TABLE t (k int PRIMARY KEY, v int CHECK (v <> 0), u int UNIQUE, s varchar(3), p int REFERENCES t,"
        " d int UNIQUE DEFERRABLE INITIALLY DEFERRED)"
    )
    keys = range(chosen.choice([4, 12, 60]))
    values = [None, *range(1, 3 * len(keys))]

    def row(key: int) -> dict[str, Any]:
        parent = chosen.choice([None, None, None, *keys])
        return {
            "k": key,
            "v": chosen.choice([0, 1, 1, 1, 1]),
            "u": chosen.choice(values),
            "s": chosen.choice(["abc", "abc", "abc", "abcd"]),
            "p": parent,
            "d": chosen.choice(values),
        }

    first, later = ([row(key) for key in keys if chosen.random() < 0.6] for _ in range(2))
    gone = [{"k": key} for key in keys if chosen.random() < 0.2]
    found = []
    for on_server in (True, False):
        if not on_server:
            monkeypatch.setattr(bad_rows, "refused_rows", lambda *arguments: None)
        server.execute("TRUNCATE t")
        server.execute("DROP TABLE IF EXISTS t_bad_rows")
        job = f"job {on_server}"
        publish(store, 0, first, job=job)
        publish(store, 1, later, gone, job=job)
        found.append((rows(server, "*"), bad(server)))
    assert found[0] == found[1]


def test_rows_that_a_trigger_changes_are_taken(store: Store, server: Server) -> None:
    server.execute("CREATE TABLE t (k int PRIMARY KEY, v int CHECK (v <> 0))")
    server.execute("INSERT INTO t VALUES (1, 1), (2, 2)")
    server.execute(
        "CREATE FUNCTION twice() RETURNS trigger LANGUAGE plpgsql AS $$BEGIN NEW.v = 2 * NEW.v; RETURN NEW; END$$"
    )
    server.execute("CREATE TRIGGER twice BEFORE INSERT OR UPDATE ON t FOR EACH ROW EXECUTE FUNCTION twice()")
    assert publish(store, 0, [{"k": 1, "v": 5}, {"k": 3, "v": 0}, {"k": 4, "v": 7}], [{"k": 2}]) == 1
    # For an existing row, PostgreSQL runs the trigger for INSERT and for UPDATE.
    assert rows(server) == [(1, 20), (4, 14)]


def test_a_delete_that_is_refused_is_kept_and_made_later(store: Store, server: Server) -> None:
    server.execute("CREATE TABLE t (k int PRIMARY KEY, v int)")
    server.execute("CREATE TABLE child (id int REFERENCES t)")
    server.execute("INSERT INTO t VALUES (1, 1), (2, 2)")
    server.execute("INSERT INTO child VALUES (1)")
    assert publish(store, 0, [{"k": 3, "v": 3}], [{"k": 1}, {"k": 2}]) == 1
    assert rows(server) == [(1, 1), (3, 3)]
    kept = server.execute('SELECT "change", "row", former FROM t_bad_rows').fetchall()
    assert kept == [("delete", '{"k":1}', '{"k":1,"v":1}')]
    server.execute("DELETE FROM child")
    assert store.retry_bad_rows("t") == RetriedRows(1, 0, 0)
    assert rows(server) == [(3, 3)]
    # A refused delete, and then a put of the key.
    server.execute("INSERT INTO child VALUES (3)")
    assert publish(store, 1, [], [{"k": 3}]) == 1
    assert publish(store, 2, [{"k": 3, "v": 4}]) == 0
    assert (rows(server), bad(server)) == ([(3, 4)], {})


def test_keys_of_uuid_are_one_in_each_form(store: Store, server: Server) -> None:
    server.execute("CREATE TABLE t (k uuid PRIMARY KEY, v int NOT NULL)")
    key = "a0eebc99-9c0b-4ef8-bb6d-6bb9bd380a11"
    assert publish(store, 0, [{"k": key, "v": None}, {"k": "no uuid", "v": 1}]) == 2
    assert publish(store, 1, [{"k": key.upper(), "v": 1}]) == 0
    assert list(bad(server)) == ["no uuid"]
    # A put of a key is not deleted by another form of it, also beside a row that is refused.
    server.execute("ALTER TABLE t ADD CHECK (v < 5)")
    other = "b0eebc99-9c0b-4ef8-bb6d-6bb9bd380a11"
    assert publish(store, 2, [{"k": key, "v": 7}, {"k": other, "v": 2}], [{"k": key.upper()}]) == 1
    assert rows(server, "k::text, v") == [(key, 1), (other, 2)]


def test_keys_with_several_forms_are_refused(store: Store, server: Server) -> None:
    server.execute("CREATE TABLE t (k numeric PRIMARY KEY, v int)")
    with pytest.raises(UnsupportedError, match=r"several forms, such as 1\.0 and 1\.00"):
        publish(store, 0, [{"k": "1.0", "v": 1}])


def test_a_batch_of_which_most_rows_are_refused_fails(
    store: Store, server: Server, monkeypatch: pytest.MonkeyPatch
) -> None:
    defaults = bad_rows._write_apart.__kwdefaults__
    assert defaults is not None
    monkeypatch.setitem(defaults, "most", 3)
    server.execute("CREATE TABLE t (k int PRIMARY KEY, v int CHECK (v > 3))")
    with pytest.raises(PublicationError, match="refuses more than 3 rows of a batch"):
        publish(store, 0, [{"k": key, "v": key} for key in range(9)])
    assert (rows(server), bad(server)) == ([], {})


def test_a_stream_and_a_retry_at_the_same_time_keep_the_newer_row(store: Store, server: Server) -> None:
    server.execute("CREATE TABLE t (k int PRIMARY KEY, v int)")
    publish(store, 0, [{"k": 1, "v": 1}])
    server.execute("ALTER TABLE t ADD CHECK (v <> 2)")
    publish(store, 1, [{"k": 1, "v": 2}])
    server.execute("ALTER TABLE t DROP CONSTRAINT t_v_check")
    with psycopg.connect(store.url) as other, ThreadPoolExecutor(1) as pool:
        # What a publication does with a good row of the key, in its order.
        other.execute("DELETE FROM t_bad_rows")
        retried = pool.submit(store.retry_bad_rows, "t")
        while not server.execute("SELECT FROM pg_stat_activity WHERE wait_event_type = 'Lock'").rowcount:
            time.sleep(0.01)
        other.execute("UPDATE t SET v = 5")
        other.commit()
        assert retried.result(30) == RetriedRows(0, 0, 0)
    assert rows(server) == [(1, 5)]
