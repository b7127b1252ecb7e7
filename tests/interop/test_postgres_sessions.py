"""Settings of sessions: no setting of a role, a database, the environment or a pooler changes an answer or leaks."""

from __future__ import annotations

import datetime
from collections.abc import Iterator, Mapping
from typing import Any

import psycopg
import pytest
from psycopg import sql

import headrace
from headrace.errors import StoreError
from headrace.ports import Store
from headrace.stores.postgres.store import PostgresStore
from tests.conformance import serving
from tests.pgbouncer import needs_pgbouncer, pgbouncer
from tests.postgres_server import USER, major_version

DATABASE, ROLE = "odd_sessions", "odd_role"
_ODD: Mapping[str, str] = {
    "client_encoding": "LATIN1",
    "row_security": "on",
    "bytea_output": "escape",
    "extra_float_digits": "-15",
    "DateStyle": "German, DMY",
    "IntervalStyle": "sql_standard",
    "TimeZone": "America/New_York",
    "quote_all_identifiers": "on",
    "search_path": "nowhere",
    "standard_conforming_strings": "off",
    "escape_string_warning": "off",
    "lc_monetary": "POSIX",
    "xmloption": "document",
    "array_nulls": "off",
    "statement_timeout": "250ms",
    "lock_timeout": "1ms",
    "idle_in_transaction_session_timeout": "250ms",
    "idle_session_timeout": "250ms",
    **({"transaction_timeout": "250ms"} if major_version() >= 17 else {}),
    "default_transaction_isolation": "serializable",
    "default_transaction_read_only": "on",
    "default_transaction_deferrable": "on",
    "transform_null_equals": "on",
    "synchronous_commit": "off",
    "client_min_messages": "info",
    "exit_on_error": "on",
}
# What a user may choose.
_CHOICES = ("row_security", *(name for name in _ODD if name.endswith("_timeout")))
_VIEW = "CREATE VIEW slow AS SELECT id, pg_sleep(0.4)::text AS slept FROM (VALUES (1)) v (id)"
_TABLE = """
CREATE TABLE kinds (id int, at timestamptz, v text, b bytea, d date, ts timestamp, f float8, r real, n numeric,
    i interval, m money, bits bit(3), tags text[], times timestamptz[], u uuid, j jsonb, ok bool,
    PRIMARY KEY (id, at))
"""
_ROWS: list[dict[str, Any]] = [
    {
        "id": number, "at": datetime.datetime(2024, number, 2, 3, 4, 5, 678901, datetime.UTC),
        "v": "café 'a' \\ \"b\" €", "b": b"\x00\xff\\'",
        "d": None if number == 2 else datetime.date(2024, 2, number), "f": 0.1 + 0.2, "r": 0.1,
        "n": "1.10", "i": "1 day 02:03:04", "m": "$1,234.50", "bits": "101", "tags": ["NULL", None, "é"],
        "u": "aaaaaaaa-0000-0000-0000-000000000000", "j": '{"a": 1.10}', "ok": True,
    }
    for number in (1, 2, 3)
]  # fmt: skip


@pytest.fixture(scope="module")
def url() -> Iterator[str]:
    """A database with a table and a role of its own."""
    address = serving.postgres_database(DATABASE)
    with _root(address) as session:
        session.execute("DROP VIEW IF EXISTS slow; DROP TABLE IF EXISTS kinds")
        session.execute(_TABLE)
        session.execute(_VIEW)
        session.execute(
            sql.SQL("DROP ROLE IF EXISTS {0}; CREATE ROLE {0} SUPERUSER LOGIN").format(sql.Identifier(ROLE))
        )
    yield address
    with _root(address) as session:
        session.execute(sql.SQL("ALTER DATABASE {} RESET ALL").format(sql.Identifier(DATABASE)))


@pytest.fixture(scope="module")
def expected(url: str) -> list[Any]:
    with headrace.open(url) as store:
        return _answers(store)


def _root(url: str) -> psycopg.Connection[Any]:
    ordinary = "-c default_transaction_read_only=off -c statement_timeout=0 -c search_path=public"
    return psycopg.connect(url, user=USER, autocommit=True, options=ordinary, client_encoding="utf8")


def _answers(store: Store) -> list[Any]:
    """Write and read a table and its changes, and wait longer than each time-out; return all that was read."""
    table = store.table("kinds")
    table.delete(table.scan(["id", "at"]).read_all())
    table.put(_ROWS)
    tunnel = store.create_tunnel("kinds", "followed")
    table.update([{"id": 1, "at": _ROWS[0]["at"], "v": "né", "b": b"\x80"}])
    table.delete({"id": 3, "at": _ROWS[2]["at"]})
    answers: list[Any] = [table.scan().read_all().to_pylist(), table.schema]
    answers += [table.get({"id": 1, "at": row["at"]}) for row in answers[0]]
    wheres: list[dict[str, Any]] = [{"v": "né"}, {"b": b"\x80"}, {"f": 0.1 + 0.2}, {"at": answers[0][0]["at"]}]
    answers += [table.scan(["id"], where).read_all().to_pylist() for where in wheres]
    answers.append(table.scan(["id"], [("tags", "is not null", None)]).read_all().to_pylist())
    with tunnel.consume(client="test", idle="stop") as batches:
        changes = [row for batch in batches for row in batch.to_arrow().to_pylist()]
    store.drop_tunnel(tunnel.id)
    answers += [{name: value for name, value in row.items() if not name.startswith("_commit")} for row in changes]
    answers.append(store.table("slow").scan().read_all().to_pylist())
    return answers


@pytest.mark.parametrize("name", _ODD)
def test_no_setting_of_a_role_changes_an_answer(url: str, expected: list[Any], name: str) -> None:
    role = sql.Identifier(ROLE)
    with _root(url) as session:
        session.execute(sql.SQL("ALTER ROLE {} RESET ALL").format(role))
        session.execute(sql.SQL("ALTER ROLE {} SET {} = {}").format(role, sql.SQL(name), _ODD[name]))
    with headrace.open(url.replace(f"{USER}@", ""), user=ROLE) as store:
        assert _answers(store) == expected


def test_no_setting_of_a_database_or_the_environment_changes_an_answer(
    url: str, expected: list[Any], monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setenv("PGDATESTYLE", "SQL, DMY")
    monkeypatch.setenv("PGTZ", "Asia/Tokyo")
    monkeypatch.setenv("PGCLIENTENCODING", "LATIN1")
    # Time-outs in it are the user's choice.
    named = {name: value.replace(" ", "") for name, value in _ODD.items() if name not in _CHOICES}
    options = " ".join(f"-c {name}={value}" for name, value in named.items())
    monkeypatch.setenv("PGOPTIONS", options)
    with headrace.open(url) as store:
        assert _answers(store) == expected
    monkeypatch.undo()
    _set_database(url)
    with headrace.open(url) as store:
        assert _answers(store) == expected


def _set_database(url: str) -> None:
    with _root(url) as session:
        for name, value in _ODD.items():
            session.execute(
                sql.SQL("ALTER DATABASE {} SET {} = {}").format(sql.Identifier(DATABASE), sql.SQL(name), value)
            )


@needs_pgbouncer
@pytest.mark.parametrize(("mode", "size"), [("session", 3), ("transaction", 2)])
def test_settings_behind_a_pooler_change_no_answer_and_nothing_leaks(
    url: str, expected: list[Any], mode: str, size: int
) -> None:
    _set_database(url)
    with _root(url) as session:
        # The second would also end the sessions that this test looks at.
        for name in ("quote_all_identifiers", "idle_session_timeout"):
            session.execute(sql.SQL("ALTER DATABASE {} RESET {}").format(sql.Identifier(DATABASE), sql.SQL(name)))
    server = int(url.rpartition(":")[2].partition("/")[0])
    with pgbouncer(server, mode, default_pool_size=str(size), server_idle_timeout="600") as port:
        pooled = url.replace(f":{server}/", f":{port}/")
        before = _session(pooled)
        with headrace.open(pooled) as store:
            assert _answers(store) == expected
        # Each session of the pooler.
        assert [_session(pooled) for _ in range(size)] == [before] * size


@needs_pgbouncer
def test_a_setting_that_a_pooler_does_not_let_change_is_refused(url: str) -> None:
    _set_database(url)
    server = int(url.rpartition(":")[2].partition("/")[0])
    with pgbouncer(server, "transaction") as port, headrace.open(url.replace(f":{server}/", f":{port}/")) as store:
        assert "kinds" in store.tables()
        with pytest.raises(StoreError, match=r"behind a pooler.*quote_all_identifiers = on"):
            store.table("kinds").scan().read_all()


def _session(url: str) -> list[Any]:
    """Return the settings, temporary tables, prepared statements and locks of a session of a pooler."""
    with psycopg.connect(url, autocommit=True, prepare_threshold=None) as session:
        return [
            session.execute(
                "SELECT name, setting FROM pg_settings WHERE name <> 'application_name' ORDER BY 1"
            ).fetchall(),
            session.execute("SELECT relname FROM pg_class WHERE relnamespace = pg_my_temp_schema()").fetchall(),
            session.execute("SELECT name FROM pg_prepared_statements").fetchall(),
            session.execute("SELECT objid FROM pg_locks WHERE locktype = 'advisory'").fetchall(),
        ]


def test_time_outs_and_row_security_that_the_user_names_are_kept(url: str) -> None:
    with (
        headrace.open(url, options="-c statement_timeout=100ms", retry_seconds=0) as store,
        pytest.raises(StoreError, match="statement timeout"),
    ):
        store.table("slow").scan().read_all()


def test_a_server_notices_that_a_client_has_disappeared(url: str) -> None:
    names = ("idle", "interval", "count")
    statement = "SELECT " + ", ".join(f"current_setting('tcp_keepalives_{name}')" for name in names)
    with headrace.open(url) as store:
        assert isinstance(store, PostgresStore)
        shown = store.connection.run(lambda session: session.execute(statement.encode()).fetchone())
        assert shown == ("30", "10", "3")
