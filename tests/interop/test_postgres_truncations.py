"""TRUNCATE of followed tables: an entry of the changes for readers that ask for it, an error for others."""

from __future__ import annotations

import json

import pytest

from headrace.errors import DataLossError
from headrace.model.tables.changes import ChangeOp
from headrace.model.tunnels.values import ChannelState
from headrace.ports import Store
from headrace.testing.reading import Change, drain, read_from, unpack
from tests.interop.own_database import Server


def entries(changes: list[Change]) -> list[tuple[str, object]]:
    return [(change.op.name, change.key[0]) for change in changes]


def create(server: Server, rows: int = 0) -> None:
    server.execute("CREATE TABLE t (id int PRIMARY KEY, v text)")
    server.execute("INSERT INTO t SELECT i, 'base' FROM generate_series(1, %s) i", (rows,))


@pytest.mark.parametrize("page_rows", [1, 1000])
def test_a_truncation_is_an_entry_for_its_followers_and_an_error_for_others(
    store: Store, server: Server, page_rows: int
) -> None:
    create(server)
    tunnel = store.create_tunnel("t", "changes", "Stream")
    with server.transaction():
        server.execute("INSERT INTO t VALUES (1, 'a'), (2, 'a'); TRUNCATE t; INSERT INTO t VALUES (2, 'b')")
    server.execute("TRUNCATE t; TRUNCATE t; INSERT INTO t VALUES (3, 'c')")
    expected: list[tuple[str, object]] = [("INSERT", 1), ("INSERT", 2), ("TRUNCATE", None), ("INSERT", 2)]
    expected += [("TRUNCATE", None), ("TRUNCATE", None), ("INSERT", 3)]
    follower, start = tunnel.with_truncations(), tunnel.channels()[0].committed
    found, _ = read_from(follower, "stream", start, page_rows=page_rows)
    assert entries(found) == expected
    assert tunnel.describe().backlog_rows == len(expected)
    seen, position = list[tuple[str, object]](), start
    while True:
        try:
            page = tunnel.read("stream", position, page_rows)
        except DataLossError as error:
            position, lost = tunnel.skip_lost("stream", position)
            seen.append(("TRUNCATE" if "table 't' was truncated" in str(error) else str(error), lost))
            continue
        if not page.changes.num_rows:
            break
        seen, position = seen + entries(unpack(page.changes, ["id"])), page.next
    assert seen == expected
    assert entries(drain(follower, page_rows=page_rows)) == expected
    assert drain(tunnel) == []


def test_a_truncation_that_base_data_has_is_left_out(store: Store, server: Server) -> None:
    create(server, 60_000)
    tunnel = store.create_tunnel("t", "changes", base_channels=3).with_truncations()
    server.execute("TRUNCATE t; INSERT INTO t VALUES (1, 'new')")
    assert entries(drain(tunnel)) == [("BASE", 1)]
    server.execute("TRUNCATE t")
    assert entries(drain(tunnel)) == [("TRUNCATE", None)]


def test_a_truncation_while_base_data_is_read_is_an_error(store: Store, server: Server) -> None:
    create(server, 60_000)
    tunnel = store.create_tunnel("t", "changes", base_channels=3).with_truncations()
    first = next(each for each in tunnel.channels() if each.state is ChannelState.OPEN)
    read_from(tunnel, first.id, first.committed, page_rows=100_000)
    server.execute("TRUNCATE t; INSERT INTO t VALUES (1, 'new')")
    with pytest.raises(DataLossError, match="while its base data was read"):
        drain(tunnel)


def test_a_truncation_of_several_tables_names_each_of_them(store: Store, server: Server) -> None:
    create(server)
    server.execute("CREATE TABLE u (id int PRIMARY KEY); CREATE TABLE other (id int PRIMARY KEY)")
    tunnel = store.create_tunnel_of_tables(["public.t", "public.u"], "both", "Stream")
    server.execute("INSERT INTO t VALUES (1, 'a'); INSERT INTO u VALUES (1); TRUNCATE u, t, other")
    server.execute("INSERT INTO u VALUES (2)")
    found = [(change.op, change.row["table"], change.row["key"]) for change in drain(tunnel.with_truncations())]
    assert [(op, name, json.loads(key)) for op, name, key in found[:2]] == [
        (ChangeOp.INSERT, name, {"id": 1}) for name in "tu"
    ]
    assert sorted(found[2:4]) == [(ChangeOp.TRUNCATE, name, None) for name in "tu"]
    assert found[4][:2] == (ChangeOp.INSERT, "u")
    server.execute("TRUNCATE u")
    with pytest.raises(DataLossError, match="table 'u' was truncated"):
        drain(tunnel)
