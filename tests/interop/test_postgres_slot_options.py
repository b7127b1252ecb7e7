"""Slots and publications that others have created or change, and failover slots."""

from __future__ import annotations

import json
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import psycopg
import pytest

import headrace
from headrace.cli.main import main
from headrace.errors import (
    AlreadyExistsError,
    DataLossError,
    NotFoundError,
    OptionError,
    StoreBusyError,
    UnsupportedError,
)
from headrace.model.tunnels.values import TunnelKind
from headrace.ports import Store, Tunnel
from headrace.stores.postgres.tunnels import slots
from headrace.testing.reading import drain, only_channel, read_from, replay, state_of
from tests.conformance import serving
from tests.interop.own_database import Server
from tests.interop.test_postgres_partitions import accepted
from tests.postgres_server import needs_version


@pytest.fixture
def slot(url: str) -> str:
    """The name of a slot; names of slots are those of a whole server."""
    return "slot_" + url.rpartition("/")[2]


@pytest.fixture
def store(url: str, server: Server) -> Iterator[Store]:
    server.execute("CREATE TABLE orders (id text PRIMARY KEY, price bigint)")
    with headrace.open(url) as opened:
        yield opened
        for tunnel in opened.tunnels():
            opened.drop_tunnel(tunnel.id)
        server.execute(
            "SELECT pg_drop_replication_slot(slot_name) FROM pg_replication_slots WHERE database = current_database()"
        )


def left(server: Server) -> list[str]:
    found = server.execute(
        "SELECT slot_name::text FROM pg_replication_slots WHERE database = current_database()"
        " UNION ALL SELECT pubname::text FROM pg_publication ORDER BY 1"
    ).fetchall()
    return [name for (name,) in found]


def create_slot(server: Server, name: str, *, plugin: str = "pgoutput", options: str = "") -> None:
    server.execute(f"SELECT pg_create_logical_replication_slot('{name}', '{plugin}'{options})")


def test_an_existing_slot_and_publication_are_used_and_left(
    store: Store, server: Server, slot: str, capsys: pytest.CaptureFixture[str]
) -> None:
    server.execute('CREATE PUBLICATION "shop, ""all""" FOR ALL TABLES')
    create_slot(server, slot)
    server.execute("INSERT INTO orders VALUES ('a', 1)")
    server.execute("CREATE TABLE other (id int PRIMARY KEY, span int4range)")
    server.execute("INSERT INTO other VALUES (1, '[1,2)')")
    names: dict[str, Any] = {"slot": slot, "publication": 'shop, "all"'}
    tunnel = store.create_tunnel("orders", "changes", "Stream", **names)
    assert [change.key for change in drain(tunnel)] == [("a",)], "from the position of the slot on"
    assert tunnel.describe().details["slot"] == slot
    with pytest.raises(AlreadyExistsError, match="a tunnel reads slot"):
        store.create_tunnel("orders", "more", "Stream", **names)
    assert main(["tunnel", "drop", "changes", "-s", store.url, "--json"]) == 0
    remains = json.loads(capsys.readouterr().out)["remains"]
    assert [slot in remains[0], names["publication"] in remains[1]] == [True, True]
    assert left(server) == sorted(names.values())
    # Base data that is younger than the slot contains its first changes.
    tunnel = store.create_tunnel("orders", "changes", **names)
    server.execute("INSERT INTO orders VALUES ('b', 1)")
    assert [change.key for change in drain(tunnel)] == [("a",), ("b",)]


def test_base_data_beside_an_existing_slot_begins_when_all_commits_are_visible(
    store: Store, server: Server, slot: str, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(slots, "_CREATE_SECONDS", 1)
    server.execute("CREATE PUBLICATION shop FOR TABLE orders")
    create_slot(server, slot)
    with psycopg.connect(store.url) as writer:
        writer.execute("INSERT INTO orders VALUES ('a', 1)")
        with pytest.raises(StoreBusyError, match="open write transactions"):
            store.create_tunnel("orders", "changes", slot=slot, publication="shop")
    assert store.tunnels() == []
    tunnel = store.create_tunnel("orders", "changes", slot=slot, publication="shop")
    assert [change.key for change in drain(tunnel)] == [("a",)]


_SWAP = "ALTER TABLE t RENAME a TO x; ALTER TABLE t RENAME b TO a; ALTER TABLE t RENAME x TO b"


@pytest.mark.parametrize("lagging", [False, True])
@pytest.mark.parametrize("several", [False, True])
@pytest.mark.parametrize(
    "change",
    [
        f"BEGIN; {_SWAP}; COMMIT",
        "ALTER TABLE t DROP a, ADD a text",
        "ALTER TABLE t ALTER n TYPE int USING n * 100",
        "ALTER TYPE mood RENAME VALUE 'sad' TO 'blue'",
        "ALTER TYPE pair RENAME ATTRIBUTE x TO y",
        "ALTER TABLE t DROP CONSTRAINT t_pkey, ADD PRIMARY KEY (id, n)",
    ],
)
def test_changes_of_an_existing_slot_before_a_change_of_the_definition_are_an_error(
    store: Store, server: Server, slot: str, change: str, several: bool, lagging: bool
) -> None:
    server.execute("CREATE TYPE mood AS ENUM ('sad'); CREATE TYPE pair AS (x int)")
    server.execute("CREATE TABLE t (id int PRIMARY KEY, n int DEFAULT 1, b text, m mood, p pair, a text)")
    if lagging:
        # A new slot begins with the catalog_xmin of the oldest one.
        create_slot(server, slot + "_old")
    server.execute("CREATE TABLE alike (id int PRIMARY KEY)")
    server.execute("CREATE PUBLICATION shop FOR ALL TABLES")
    create_slot(server, slot)
    server.execute("INSERT INTO t VALUES (1, 1, 'b', NULL, NULL, 'a')")
    server.execute(change)
    server.execute("INSERT INTO alike VALUES (1)")

    def create(kind: TunnelKind = TunnelKind.STREAM) -> Tunnel:
        return (
            store.create_tunnel_of_tables("public.t", "changes", kind, slot=slot, publication="shop")
            if several
            else store.create_tunnel("t", "changes", kind, slot=slot, publication="shop")
        )

    tunnel = create()
    server.execute("INSERT INTO t (id) VALUES (2)")
    for _ in range(2):
        with pytest.raises(DataLossError, match="may have changed after the begin of the slot"):
            drain(tunnel)
    if not several:
        assert [change.key[0] for change in accepted(tunnel)] == [2]
    store.drop_tunnel("changes")
    # The other remedy. The first changes are in base data.
    tunnel = create(TunnelKind.BASE_AND_STREAM)
    server.execute("INSERT INTO t (id) VALUES (3)")
    found = drain(tunnel)
    assert len(found) == 3
    if not several:
        assert replay(found) == state_of(store.table("t"))
    # A table that was not changed is as before.
    tunnel = store.create_tunnel("alike", "others", "Stream", publication="shop")
    server.execute("INSERT INTO alike VALUES (2)")
    assert [change.key for change in drain(tunnel)] == [(2,)]


def test_a_changed_definition_is_no_error_without_earlier_changes(store: Store, server: Server, slot: str) -> None:
    server.execute("CREATE PUBLICATION shop FOR ALL TABLES")
    create_slot(server, slot)
    server.execute("CREATE TABLE t (id int PRIMARY KEY, a text)")
    server.execute("CREATE TABLE made (id int PRIMARY KEY, a text)")
    server.execute("INSERT INTO made VALUES (1, 'a')")
    server.execute("ALTER TABLE t RENAME a TO b; ALTER TABLE t ADD c int DEFAULT 5")
    tunnel = store.create_tunnel("t", "changes", "Stream", slot=slot, publication="shop")
    server.execute("INSERT INTO t VALUES (1, 'b')")
    assert [change.row for change in drain(tunnel)] == [{"id": 1, "b": "b", "c": 5}]
    store.drop_tunnel("changes")
    tunnel = store.create_tunnel("made", "changes", "Stream", slot=slot, publication="shop")
    assert [change.row for change in drain(tunnel)] == [{"id": 1, "a": "a"}]


def test_an_existing_publication_gets_a_slot_of_its_own(store: Store, server: Server) -> None:
    server.execute("CREATE PUBLICATION shop FOR TABLE orders")
    command = ["tunnel", "create", "orders", "changes", "--publication", "shop", "-s", store.url]
    assert main(command) == 0
    server.execute("INSERT INTO orders VALUES ('a', 1)")
    assert [change.key for change in drain(store.tunnel("changes"))] == [("a",)]
    store.drop_tunnel("changes")
    assert left(server) == ["shop"]


@pytest.mark.parametrize(
    ("definition", "message"),
    [
        pytest.param("FOR TABLE orders (id)", "needs all columns", marks=needs_version(15)),
        pytest.param("FOR TABLE orders WHERE (price > 1)", None, marks=needs_version(15)),
        ("FOR TABLE orders WITH (publish = 'insert, delete')", "leaves out operations: update, truncate"),
        ("FOR TABLE other", "does not have table 'orders'"),
        ("FOR ALL TABLES", None),
        pytest.param("FOR TABLES IN SCHEMA public", None, marks=needs_version(15)),
    ],
)
def test_a_publication_must_have_all_changes(
    store: Store, server: Server, definition: str, message: str | None
) -> None:
    server.execute("CREATE TABLE other (id int PRIMARY KEY)")
    server.execute("ALTER TABLE orders REPLICA IDENTITY FULL")
    server.execute(f"CREATE PUBLICATION shop {definition}")
    if message is None:
        store.create_tunnel("orders", "changes", publication="shop")
        return
    with pytest.raises(UnsupportedError, match=message):
        store.create_tunnel("orders", "changes", publication="shop")
    assert store.tunnels() == []
    assert left(server) == ["shop"]


def test_a_publication_of_partitions_under_their_own_names_is_refused(store: Store, server: Server) -> None:
    server.execute("CREATE TABLE parts (id bigint PRIMARY KEY) PARTITION BY RANGE (id)")
    server.execute("CREATE TABLE parts_low PARTITION OF parts FOR VALUES FROM (0) TO (10)")
    server.execute("CREATE PUBLICATION shop FOR TABLE parts")
    with pytest.raises(UnsupportedError, match="publish_via_partition_root"):
        store.create_tunnel("parts", "changes", publication="shop")
    server.execute("ALTER PUBLICATION shop SET (publish_via_partition_root = true)")
    tunnel = store.create_tunnel("parts", "changes", publication="shop")
    server.execute("INSERT INTO parts VALUES (1)")
    assert [change.key for change in drain(tunnel)] == [(1,)]


def test_a_slot_that_a_tunnel_cannot_read_is_refused(store: Store, server: Server, slot: str) -> None:
    server.execute("CREATE PUBLICATION shop FOR TABLE orders")

    def create(name: str) -> None:
        store.create_tunnel("orders", "changes", "Stream", slot=name, publication="shop")

    create_slot(server, slot + "0")
    store.create_tunnel("orders", "own")
    # Not the slots of other databases and of tunnels.
    with pytest.raises(NotFoundError, match=f"no such replication slot; received: 'none'; valid: {slot}0$"):
        create("none")
    store.drop_tunnel("own")
    with pytest.raises(NotFoundError, match=r"no such publication.*shop"):
        store.create_tunnel("orders", "changes", publication="none")
    create_slot(server, slot, plugin="test_decoding")
    with pytest.raises(UnsupportedError, match="plugin test_decoding"):
        create(slot)
    create_slot(server, slot + "2", options=", false, true")
    with pytest.raises(UnsupportedError, match="two_phase"):
        create(slot + "2")
    create_slot(server, slot + "3", options=", true")
    with pytest.raises((UnsupportedError, StoreBusyError), match=r"temporary|in use"):
        create(slot + "3")
    server.execute("SELECT pg_create_physical_replication_slot(%s)", (slot + "4",))
    try:
        with pytest.raises(UnsupportedError, match="physical"):
            create(slot + "4")
    finally:
        server.execute("SELECT pg_drop_replication_slot(%s)", (slot + "4",))
    with headrace.open(serving.postgres_database("another")) as elsewhere:
        elsewhere.create_table("orders", {"id": "string"}, "id")
        with psycopg.connect(elsewhere.url, autocommit=True) as there:
            there.execute("CREATE PUBLICATION shop FOR TABLE orders")
        create_slot(server, slot + "5")
        with pytest.raises(UnsupportedError, match="a slot of database"):
            elsewhere.create_tunnel("orders", "changes", slot=slot + "5", publication="shop")
        elsewhere.drop_table("orders")
    assert store.tunnels() == []


@pytest.mark.parametrize(
    ("options", "message"),
    [
        ({"slots": "a"}, "unknown option of a tunnel of PostgreSQL.*did you mean slot"),
        ({"slot": "a"}, "needs an existing publication"),
        ({"slot": "a", "publication": "b", "failover": True}, "for a new slot"),
        ({"slot": 1}, "option slot must be a name"),
        ({"failover": "yes"}, "option failover must be True or False"),
    ],
)
def test_options_that_make_no_sense_are_refused(store: Store, options: dict[str, Any], message: str) -> None:
    with pytest.raises(OptionError, match=message):
        store.create_tunnel("orders", "changes", **options)


def test_base_data_has_no_slot(store: Store) -> None:
    with pytest.raises(OptionError, match="BaseData has no slot"):
        store.create_tunnel("orders", "changes", "BaseData", publication="shop")


def test_other_stores_refuse_the_options_by_name(tmp_path: Path) -> None:
    with headrace.open(tmp_path / "shop", create=True) as store:
        store.create_table("orders", {"id": "long"}, "id")
        with pytest.raises(OptionError, match=r"unknown option of a tunnel of this store.*failover"):
            store.create_tunnel("orders", "changes", failover=True)
        assert main(["tunnel", "create", "orders", "changes", "--slot", "a", "-s", store.url]) == 1
        assert store.tunnels() == []


def test_a_failover_slot_is_created_where_the_server_has_them(store: Store, server: Server) -> None:
    if server.info.server_version < 170_000:
        with pytest.raises(UnsupportedError, match="no failover slots"):
            store.create_tunnel("orders", "changes", failover=True)
        assert store.tunnels() == []
        return
    tunnel = store.create_tunnel("orders", "changes", failover=True)
    name = f"headrace_{tunnel.id}"
    query = "SELECT failover FROM pg_replication_slots WHERE slot_name = %s"
    assert server.execute(query, (name,)).fetchone() == (True,)
    assert tunnel.describe().details["failover"] is True


@pytest.mark.parametrize(
    ("change", "undo", "message"),
    [
        ("DROP TABLE orders", "ADD TABLE orders", "does not have table 'orders'"),
        ("SET (publish = 'insert')", "SET (publish = 'insert, update, delete, truncate')", "leaves out operations"),
        pytest.param(
            "SET TABLE orders WHERE (price > 5)", "SET TABLE orders", "filter for the rows", marks=needs_version(15)
        ),
        pytest.param("SET TABLE orders (id)", "SET TABLE orders", "leaves out columns", marks=needs_version(15)),
    ],
)
def test_a_publication_that_others_change_is_a_data_loss_until_it_is_accepted(
    store: Store, server: Server, change: str, undo: str, message: str
) -> None:
    server.execute("ALTER TABLE orders REPLICA IDENTITY FULL")
    tunnel = store.create_tunnel("orders", "changes", "Stream")
    channel, start = only_channel(tunnel), tunnel.channels()[0].committed
    publication = f'"headrace_{tunnel.id}"'
    server.execute("INSERT INTO orders VALUES ('a', 1)")
    server.execute(f"ALTER PUBLICATION {publication} {change}")
    server.execute("INSERT INTO orders VALUES ('b', 1)")
    with pytest.raises(DataLossError, match=f"{message}.*{start.token}"):
        tunnel.read(channel, start, 10)
    server.execute(f"ALTER PUBLICATION {publication} {undo}")
    server.execute("INSERT INTO orders VALUES ('c', 1)")
    with pytest.raises(DataLossError, match="was changed, and may have left out changes"):
        tunnel.read(channel, start, 10)
    # With failOnDataLoss=false, the query goes on with what there is.
    assert tunnel.accept_lost(channel, start)
    found = [change.key for change in read_from(tunnel, channel, start)[0]]
    assert found[0] == ("a",)
    assert found[-1] == ("c",)


def test_a_publication_that_is_dropped_and_created_again_is_a_data_loss(store: Store, server: Server) -> None:
    tunnel = store.create_tunnel("orders", "changes", "Stream")
    channel, start = only_channel(tunnel), tunnel.channels()[0].committed
    publication = f'"headrace_{tunnel.id}"'
    server.execute(f"DROP PUBLICATION {publication}")
    server.execute("INSERT INTO orders VALUES ('lost', 1)")
    server.execute(f"CREATE PUBLICATION {publication} FOR TABLE orders")
    with pytest.raises(DataLossError, match="was changed"):
        tunnel.read(channel, start, 10)


def test_a_publication_may_get_other_tables(store: Store, server: Server) -> None:
    server.execute("CREATE PUBLICATION shop FOR TABLE orders")
    tunnel = store.create_tunnel("orders", "changes", "Stream", publication="shop")
    server.execute("CREATE TABLE other (id int PRIMARY KEY)")
    server.execute("ALTER PUBLICATION shop ADD TABLE other")
    server.execute("INSERT INTO orders VALUES ('a', 1)")
    assert [change.key for change in drain(tunnel)] == [("a",)]


def test_a_generated_column_that_is_added_later_is_not_read_as_null(store: Store, server: Server) -> None:
    tunnel = store.create_tunnel("orders", "changes", "Stream")
    channel, start = only_channel(tunnel), tunnel.channels()[0].committed
    server.execute("ALTER TABLE orders ADD double bigint GENERATED ALWAYS AS (price * 2) STORED")
    server.execute("INSERT INTO orders VALUES ('a', 1)")
    with pytest.raises(DataLossError, match="leaves out columns of table 'orders': double"):
        tunnel.read(channel, start, 10)
