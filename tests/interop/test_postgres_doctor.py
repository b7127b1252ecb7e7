"""`headrace doctor` on PostgreSQL servers: settings, rights, and the SQL that grants what is missing."""

from __future__ import annotations

import json
from collections.abc import Iterator
from typing import Any

import psycopg
import pytest
from psycopg import sql

import headrace
from headrace.cli.app import App
from headrace.cli.doctor import show
from headrace.cli.main import main
from headrace.errors import StoreError, UnsupportedError
from headrace.model.findings import Finding, Status
from headrace.ports import Store
from headrace.testing.reading import drain
from tests.postgres_server import USER, PostgresServer, create_database, drop_database, major_version, needs_version

Server = psycopg.Connection[Any]
# Characters that a statement must quote.
ROLE = 'o\'brien "shop"'
DATABASE = "Shop db"


@pytest.fixture(scope="module")
def cluster() -> Iterator[PostgresServer]:
    server = PostgresServer.start(max_slot_wal_keep_size="10GB")
    try:
        yield server
    finally:
        server.remove()


@pytest.fixture
def root(cluster: PostgresServer) -> Iterator[Server]:
    """A superuser's connection to a new database with a table of another role."""
    create_database(cluster.port, DATABASE)
    with psycopg.connect(
        host="127.0.0.1", port=cluster.port, user=USER, dbname=DATABASE, autocommit=True
    ) as connection:
        connection.execute(sql.SQL("REVOKE ALL ON DATABASE {} FROM PUBLIC").format(sql.Identifier(DATABASE)))
        connection.execute(sql.SQL("CREATE ROLE {} LOGIN").format(sql.Identifier(ROLE)))
        connection.execute(sql.SQL("GRANT CONNECT ON DATABASE {} TO PUBLIC").format(sql.Identifier(DATABASE)))
        connection.execute("CREATE SCHEMA sales")
        connection.execute("CREATE TABLE sales.orders (id bigint PRIMARY KEY)")
        connection.execute("INSERT INTO sales.orders VALUES (1)")
        yield connection
    drop_database(cluster.port, DATABASE)
    with psycopg.connect(host="127.0.0.1", port=cluster.port, user=USER, dbname="postgres", autocommit=True) as admin:
        admin.execute(sql.SQL("DROP ROLE {}").format(sql.Identifier(ROLE)))


@pytest.fixture
def store(cluster: PostgresServer, root: Server) -> Iterator[Store]:
    with headrace.open(f"postgresql://127.0.0.1:{cluster.port}/{DATABASE}", user=ROLE) as opened:
        yield opened


def failures(findings: list[Finding]) -> dict[str, str]:
    return {each.name.removeprefix("PostgreSQL: "): each.sql for each in findings if each.status is Status.FAIL}


def run(root: Server, findings: list[Finding]) -> None:
    for statement in failures(findings).values():
        root.execute(statement.encode())


def test_the_sql_for_a_user_without_rights_is_enough_for_a_tunnel(store: Store, root: Server) -> None:
    findings = store.diagnose("sales.orders")
    role = '"o\'brien ""shop"""'
    assert failures(findings) == {
        "attribute REPLICATION": f"ALTER ROLE {role} REPLICATION;",
        "schema headrace": f'CREATE SCHEMA "headrace" AUTHORIZATION {role};',
        "temporary tables": f'GRANT TEMPORARY ON DATABASE "Shop db" TO {role};',
        "table sales.orders": f'GRANT USAGE ON SCHEMA "sales" TO {role};\n'
        f'GRANT SELECT ON TABLE "sales"."orders" TO {role};',
        "publication of sales.orders": 'CREATE PUBLICATION "headrace_orders" FOR TABLE "sales"."orders" WITH'
        " (publish_via_partition_root = true);",
    }
    with pytest.raises(StoreError):
        store.create_tunnel("sales.orders", "changes")
    run(root, findings)
    after = store.diagnose("sales.orders")
    assert failures(after) == {}
    (advice,) = [each.found for each in after if "publication of" in each.name]
    assert advice == "create the tunnel with option publication=headrace_orders"
    tunnel = store.create_tunnel("sales.orders", "changes", publication="headrace_orders")
    root.execute("INSERT INTO sales.orders VALUES (2)")
    assert [change.row for change in drain(tunnel)] == [{"id": 1}, {"id": 2}]
    tunnel.commit({})
    assert "the slots of 1 tunnels keep little log" in [each.found for each in store.diagnose()]
    store.drop_tunnel("changes")
    # No more rights than these.
    with pytest.raises(StoreError, match="no right"):
        store.table("sales.orders").put({"id": 3})


@needs_version(18)
def test_the_sql_publishes_generated_columns(store: Store, root: Server) -> None:
    root.execute("ALTER TABLE sales.orders ADD twice bigint GENERATED ALWAYS AS (id * 2) STORED")
    run(root, store.diagnose("sales.orders"))
    tunnel = store.create_tunnel("sales.orders", "changes", publication="headrace_orders")
    root.execute("INSERT INTO sales.orders VALUES (2)")
    assert [change.row for change in drain(tunnel)] == [{"id": 1, "twice": 2}, {"id": 2, "twice": 4}]
    store.drop_tunnel("changes")


def test_the_owner_of_a_table_needs_fewer_rights(store: Store, root: Server) -> None:
    run(root, [each for each in store.diagnose() if "publications" not in each.name])
    root.execute(sql.SQL("ALTER TABLE sales.orders OWNER TO {}").format(sql.Identifier(ROLE)))
    root.execute(sql.SQL("GRANT USAGE ON SCHEMA sales TO {}").format(sql.Identifier(ROLE)))
    findings = store.diagnose("sales.orders")
    grant = 'GRANT CREATE ON DATABASE "Shop db" TO "o\'brien ""shop""";'
    assert failures(findings) == {"publication of sales.orders": grant}
    assert failures(store.diagnose()) == {"publications": grant}
    run(root, findings)
    assert failures(store.diagnose("sales.orders")) == failures(store.diagnose()) == {}
    tunnel = store.create_tunnel("sales.orders", "changes")
    assert len(drain(tunnel)) == 1
    store.drop_tunnel("changes")


def test_the_schema_of_another_user_can_be_shared(store: Store, root: Server, cluster: PostgresServer) -> None:
    with headrace.open(f"postgresql://{USER}@127.0.0.1:{cluster.port}/{DATABASE}") as others:
        others.create_tunnel("sales.orders", "others", "BaseData")
    run(root, store.diagnose("sales.orders"))
    assert failures(store.diagnose("sales.orders")) == {}
    tunnel = store.create_tunnel("sales.orders", "changes", publication="headrace_orders")
    assert len(drain(tunnel)) == 1
    store.drop_tunnel("changes")


def test_tables_that_no_tunnel_can_follow_are_findings(store: Store, root: Server) -> None:
    root.execute("CREATE TABLE public.keyless (a int)")
    root.execute("CREATE TABLE public.silent (a int PRIMARY KEY)")
    root.execute("ALTER TABLE public.silent REPLICA IDENTITY NOTHING")
    problems = {
        "table keyless": "no primary key",
        "changes of silent": "the log does not have",
        "table none": "no such table",
    }
    for name, problem in problems.items():
        (found,) = [each for each in store.diagnose(name.split()[-1]) if each.name == f"PostgreSQL: {name}"]
        assert (found.status, problem in found.found) == (Status.FAIL, True)
        assert found.remedy


def test_a_superuser_has_all_rights_and_the_command_says_so(
    root: Server, cluster: PostgresServer, capsys: pytest.CaptureFixture[str]
) -> None:
    command = ["doctor", "--table", "sales.orders", "-s", f"postgresql://{USER}@127.0.0.1:{cluster.port}/Shop%20db"]
    main([*command, "--json"])
    record = json.loads(capsys.readouterr().out)
    mine = [each for each in record["findings"] if each["name"].startswith("PostgreSQL")]
    assert len(mine) > 8
    assert {each["status"] for each in mine} == {"ok"}
    assert record["sql"] == []


def test_the_settings_of_a_server_are_checked(capsys: pytest.CaptureFixture[str]) -> None:
    times_out = major_version() >= 18
    timeout = {"idle_replication_slot_timeout": "60"} if times_out else {}
    server = PostgresServer.start(wal_level="replica", max_replication_slots="1", temp_file_limit="100MB", **timeout)
    try:
        url = f"postgresql://{USER}@127.0.0.1:{server.port}/postgres"
        with psycopg.connect(url, autocommit=True) as root:
            root.execute("SELECT pg_create_physical_replication_slot('taken')")
        with headrace.open(url) as store:
            findings = store.diagnose()
        assert failures(findings) == {
            "wal_level": "ALTER SYSTEM SET wal_level = 'logical';",
            "replication slots": "ALTER SYSTEM SET max_replication_slots = 11;",
        }
        warned = {each.name.removeprefix("PostgreSQL: "): each.found for each in findings if each.status is Status.WARN}
        assert "max_slot_wal_keep_size = -1" in warned["kept log"]
        assert warned.get("idle slots") == ("idle_replication_slot_timeout = 60 s" if times_out else None)
        assert warned["temporary files"] == "temp_file_limit = 100 MB"
        show(App(), findings)
        text = capsys.readouterr().out
        assert "SQL that grants what is missing:\n\nALTER SYSTEM SET wal_level = 'logical';" in text
    finally:
        server.remove()


def test_an_unreachable_server_is_a_finding(capsys: pytest.CaptureFixture[str]) -> None:
    with headrace.open("postgresql://127.0.0.1:1/none", retry_seconds=0) as store:
        (finding,) = store.diagnose()
    assert (finding.status, "no connection" in finding.found) == (Status.FAIL, True)


def test_stores_without_checks_of_tables_say_so() -> None:
    with headrace.open("yt://127.0.0.1:1") as store, pytest.raises(UnsupportedError, match="doctor checks no tables"):
        store.diagnose("orders")
