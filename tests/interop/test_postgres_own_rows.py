"""Jobs whose target a PostgreSQL tunnel follows, or would take in: they are refused before they write anything."""

from __future__ import annotations

import pytest

import headrace
from headrace.batches.sinks.feedback import check_no_feedback
from headrace.errors import OptionError
from headrace.ports import Store
from tests.interop.own_database import Server

COLUMNS = {"id": "long"}


def check(source: Store, tunnel: str, *writes: str, target: Store | None = None) -> None:
    """Check a job that reads a tunnel, and writes tables."""
    opened = source.tunnel(tunnel)
    check_no_feedback(source, opened.table, target or source, writes, "this job", opened.name)


@pytest.mark.parametrize("rows", ["json", "typed"])
def test_patterns_cover_tables_that_do_not_exist_yet(store: Store, server: Server, rows: str) -> None:
    store.create_table("orders", COLUMNS, "id")
    server.execute("CREATE SCHEMA lake")
    tunnel = store.create_tunnel_of_tables("public.*,!public.secret*", "all")
    covers = (tunnel.typed() if rows == "typed" else tunnel).table.covers
    found = {name: covers(name, "") for name in ("copy", "public.copy", "secrets", "lake.copy", "__headrace_jobs__")}
    assert found == {
        "copy": True,
        "public.copy": True,
        "secrets": False,
        "lake.copy": False,
        "__headrace_jobs__": False,
    }


def test_the_error_names_the_tables_and_the_patterns_without_them(store: Store) -> None:
    for name in ("orders", "copy"):
        store.create_table(name, COLUMNS, "id")
    store.create_tunnel_of_tables("public.*", "all")
    with pytest.raises(OptionError) as refused:
        check(store, "all", "copy", "copy_bad_rows")
    assert refused.value.received == "table 'copy', 'copy_bad_rows', and tunnel 'all' of public.*"
    patterns = "public.*, !public.copy, !public.copy_bad_rows"
    assert f"one of {patterns}" in str(refused.value)
    store.create_tunnel_of_tables(patterns, "others")
    check(store, "others", "copy", "copy_bad_rows")


def test_a_member_is_covered_under_each_name(store: Store, server: Server) -> None:
    store.create_table("orders", COLUMNS, "id")
    store.create_tunnel_of_tables("public.orders", "all")
    server.execute("ALTER TABLE orders RENAME TO former")
    store.create_table("other", COLUMNS, "id")
    with pytest.raises(OptionError, match="table 'former', and tunnel 'all'"):
        check(store, "all", "former")
    check(store, "all", "other")


def test_partitions_and_their_table_cover_each_other(store: Store, server: Server) -> None:
    server.execute("CREATE TABLE parts (id bigint PRIMARY KEY) PARTITION BY RANGE (id)")
    server.execute("CREATE TABLE low PARTITION OF parts FOR VALUES FROM (0) TO (10) PARTITION BY RANGE (id)")
    server.execute("CREATE TABLE lowest PARTITION OF low FOR VALUES FROM (0) TO (5)")
    server.execute("CREATE TABLE high PARTITION OF parts FOR VALUES FROM (10) TO (20)")
    store.create_tunnel_of_tables("public.parts", "all")
    for partition in ("parts", "low", "lowest", "high"):
        with pytest.raises(OptionError, match="a table of the tunnel that it reads"):
            check(store, "all", partition)
    one, other = store.table("low"), store.table("high")
    found = {name: one.covers(name, store.table(name).identity()) for name in ("parts", "low", "lowest", "high")}
    assert found == {"parts": True, "low": True, "lowest": True, "high": False}
    assert not other.covers("low", one.identity())
    with pytest.raises(OptionError, match="a mirror puts rows into the table whose changes it reads"):
        headrace.mirror_worker(store, "parts", store, "high", idle="stop").run()


def test_a_mirror_does_not_write_into_its_source_by_its_bad_rows(store: Store) -> None:
    store.create_table("orders", COLUMNS, "id")
    store.create_bad_rows("orders")
    check_no_feedback(store, store.table("orders"), store, ["copy"], "a mirror")
    with pytest.raises(OptionError, match="table 'orders_bad_rows'"):
        check_no_feedback(store, store.table("orders_bad_rows"), store, ["orders", "orders_bad_rows"], "a mirror")


def test_records_in_another_schema_are_covered(store: Store, url: str) -> None:
    store.create_table("orders", COLUMNS, "id")
    tunnels = {"all": "*.*", "public": "public.*,!public.copy", "others": "*.*,!others.*,!public.copy"}
    for name, patterns in tunnels.items():
        store.create_tunnel_of_tables(patterns, name)
    with headrace.open(url, schema="others") as other:
        check(store, "public", "copy", target=other)
        check(store, "others", "copy", target=other)
        with pytest.raises(OptionError, match=r"table 'copy', 'others\.\*'.*, !public\.copy, !others\.\*"):
            check(store, "all", "copy", target=other)
