"""TRUNCATE of followed tables: an entry of the changes for readers that ask for it, an error for others."""

from __future__ import annotations

import json
import random
from typing import Any

import pytest

from headrace.batches.feeds.limits import Limits
from headrace.batches.feeds.tunnel_feed import TunnelFeed
from headrace.cli.main import main
from headrace.errors import DataLossError
from headrace.model.tables.changes import DELETES, ChangeOp
from headrace.model.tables.several_tables import TABLE
from headrace.model.tunnels.records import INITIAL_BATCH
from headrace.model.tunnels.values import ChannelState
from headrace.ports import Store
from headrace.stores.postgres.tunnels import log
from headrace.testing.effort import thorough
from headrace.testing.reading import Change, drain, read_batch, read_from, unpack
from headrace.ui.recent_changes import recent_changes
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


@pytest.mark.parametrize("together", [False, True])
def test_a_look_at_the_changes_shows_a_truncation_and_those_behind_it(
    store: Store, server: Server, capsys: pytest.CaptureFixture[str], together: bool
) -> None:
    create(server, 1)
    tunnel = store.create_tunnel(["t"] if together else "t", "changes", "Stream")
    server.execute("INSERT INTO t VALUES (2, 'a'); TRUNCATE t; INSERT INTO t VALUES (3, 'c')")
    changes = ["insert", "truncate", "insert"]
    assert main(["tunnel", "tail", "changes", "--no-follow", "-s", store.url, "--json"]) == 0
    shown = [json.loads(line) for line in capsys.readouterr().out.splitlines()]
    assert [each["_change_type"] for each in shown] == changes
    assert [each.get("id") for each in shown] == ([None] * 3 if together else [2, None, 3])
    found = recent_changes(tunnel, rewinds=False)
    assert [row[0] for row in found.rows] == changes


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


def test_typed_rows_have_each_truncation_of_a_transaction_at_its_begin(store: Store, server: Server) -> None:
    create(server)
    server.execute("CREATE TABLE u (id int PRIMARY KEY, t int REFERENCES t)")
    tunnel = store.create_tunnel(["t", "u"], "both", "Stream").with_truncations().typed()
    server.execute("INSERT INTO t VALUES (1, 'a'); INSERT INTO u VALUES (1)")
    with server.transaction():
        server.execute("INSERT INTO u VALUES (2); TRUNCATE u RESTART IDENTITY; INSERT INTO u VALUES (3)")
        server.execute("INSERT INTO t VALUES (4); TRUNCATE t CASCADE; INSERT INTO u VALUES (5)")
    server.execute("BEGIN; TRUNCATE u; ROLLBACK")
    (channel,) = tunnel.channels()
    first = tunnel.read(channel.id, channel.committed, 1000)
    assert rows_of(unpack(first.changes, [])) == [("INSERT", "t", 1), ("INSERT", "u", 1)]
    # Both in one page, also if it is longer than the limit.
    second = tunnel.read(channel.id, first.next, 1)
    found = rows_of(unpack(second.changes, []))
    assert sorted(found) == [("TRUNCATE", "t", None), ("TRUNCATE", "u", None)]
    third = tunnel.read(channel.id, second.next, 1000)
    assert rows_of(unpack(third.changes, [])) == [("INSERT", "u", 5)]
    for name in ("t", "u"):
        with pytest.raises(DataLossError, match="was truncated"):
            store.tunnel("both").typed().read(channel.id, first.next, 1000)
        assert name in str(found)


def rows_of(changes: list[Change]) -> list[tuple[str, str, object]]:
    return [(change.op.name, change.row[TABLE], change.row[change.row[TABLE]]["id"]) for change in changes]


@pytest.mark.parametrize("most", [1, 4, 1000])
def test_batches_of_typed_rows_with_truncations_are_whole_transactions(
    store: Store, server: Server, monkeypatch: pytest.MonkeyPatch, most: int
) -> None:
    chosen = random.Random(most)
    names, statements = ("t", "u"), (
        *["INSERT INTO {0} VALUES ({1}, '{2}') ON CONFLICT (id) DO UPDATE SET v = EXCLUDED.v"] * 5,
        "DELETE FROM {0} WHERE id = {1}",
        "UPDATE {0} SET id = {1} WHERE id = {2} AND NOT EXISTS (SELECT FROM {0} WHERE id = {1})",
        "TRUNCATE {0}",
        "TRUNCATE t, u",
        "SAVEPOINT s; TRUNCATE {0}; INSERT INTO {0} VALUES ({1}, 'never'); ROLLBACK TO s",
    )  # fmt: skip
    create(server, 5)
    server.execute("CREATE TABLE u (LIKE t INCLUDING ALL)")
    monkeypatch.setattr(log, "WINDOW_BYTES", 2000)
    monkeypatch.setattr("headrace.batches.feeds.channel_reading.PAGE_ROWS", 3)
    tunnel = store.create_tunnel(["t", "u"], "both").with_truncations().typed()

    def now() -> dict[str, dict[int, str]]:
        return {name: dict(server.execute(f"SELECT id, v FROM {name}".encode()).fetchall()) for name in names}

    states = [now()]
    copies: dict[str, dict[Any, Any]] = {name: {} for name in names}
    feed, previous, at = TunnelFeed(tunnel, limits=Limits(rows_per_batch=most)), INITIAL_BATCH, 0
    for _ in range(thorough(3)):
        for _ in range(12):
            with server.transaction():
                for _ in range(chosen.randint(1, 6)):
                    text = chosen.choice(statements)
                    server.execute(text.format(chosen.choice(names), chosen.randrange(6), chosen.randrange(6)).encode())
            states.append(now())
        while (batch := feed.latest(previous)) != previous:
            previous, found = batch, read_batch(tunnel, feed.plan(batch))
            begins = [change.op is ChangeOp.TRUNCATE for change in found]
            assert begins == sorted(begins, reverse=True)
            for change in found:
                copy, row = copies[change.row[TABLE]], change.row[change.row[TABLE]]
                if change.op is ChangeOp.TRUNCATE:
                    copy.clear()
                elif change.op in DELETES:
                    del copy[row["id"]]
                else:
                    copy[row["id"]] = row["v"]
            if found[-1].op is not ChangeOp.BASE:
                # One of the states after the last one.
                at += states[at:].index(copies)
            if copies == states[-1]:
                # A repeated task reads the same rows. Later, the slot can have passed them: other databases have log.
                assert read_batch(tunnel, feed.plan(batch)) == found
        assert copies == states[-1]
