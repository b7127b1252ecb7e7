"""Partitions of a followed table that come, go or change: what the log lacks is an error until it is accepted."""

from __future__ import annotations

import threading
from collections.abc import Iterator
from typing import Any

import psycopg
import pytest

import headrace
from headrace.batches.feeds.channel_reading import read_channel
from headrace.batches.feeds.tunnel_feed import TunnelFeed
from headrace.errors import DataLossError, StoreBusyError, UnsupportedError
from headrace.model.tables.changes import ChangeOp
from headrace.model.tunnels.records import INITIAL_BATCH
from headrace.model.tunnels.values import ChannelState, Position, Start, StartKind
from headrace.ports import Store, Tunnel
from headrace.stores.postgres.tunnels import (
    catalog,
    followed,
    partition_truncations,
    retention,
    seen_definitions,
    stored_tunnels,
)
from headrace.stores.postgres.tunnels.log import ChangeLog
from headrace.stores.postgres.tunnels.positions import lsn_of, parse_lsn
from headrace.stores.postgres.tunnels.seen_definitions import SeenDefinitions
from headrace.stores.postgres.tunnels.tunnel import PostgresTunnel
from headrace.testing.reading import Change, drain, read_from, replay, state_of, unpack
from headrace.wire.pgoutput.messages import Relation, Transaction, WrittenLeaf
from tests.conformance import serving

Server = psycopg.Connection[Any]


@pytest.fixture
def server(request: pytest.FixtureRequest) -> Iterator[Server]:
    url = serving.postgres_database(f"p{abs(hash(request.node.nodeid)):x}")
    with psycopg.connect(url, user="postgres", autocommit=True) as connection:
        connection.execute("CREATE TABLE p (id int PRIMARY KEY, n int) PARTITION BY RANGE (id)")
        for low in (0, 10, 20):
            connection.execute(f"CREATE TABLE p{low} PARTITION OF p FOR VALUES FROM ({low}) TO ({low + 10})")
        connection.execute("INSERT INTO p VALUES (1, 1), (11, 1), (21, 1)")
        connection.execute(f"COMMENT ON TABLE p IS '{url}'")
        yield connection


@pytest.fixture
def store(server: Server) -> Iterator[Store]:
    ((url,),) = server.execute("SELECT obj_description('p'::regclass)").fetchall()
    with headrace.open(url) as opened:
        yield opened
        for tunnel in opened.tunnels():
            opened.drop_tunnel(tunnel.id)


def accepted(tunnel: Tunnel) -> list[Change]:
    """Read a batch with failOnDataLoss=false."""
    feed = TunnelFeed(tunnel)
    batch, found = INITIAL_BATCH, list[Change]()
    while (following := feed.latest(batch)) != batch:
        for task in feed.tasks(batch, following):
            for changes in read_channel(tunnel, task.batch, task.plan, fail_on_data_loss=False):
                found += unpack(changes, tunnel.table.schema.primary_key)
        batch = following
    feed.commit(batch)
    return found


_MADE = "CREATE TABLE p30 (LIKE p INCLUDING ALL); INSERT INTO p30 VALUES (31, 1)"
_ATTACH = "ALTER TABLE p ATTACH PARTITION p30 FOR VALUES FROM (30) TO (40)"
_NEW = "CREATE TABLE p30 PARTITION OF p FOR VALUES FROM (30) TO (40)"
_LOST = {
    "attached with rows": ([_MADE, _ATTACH], "p30 was attached with rows"),
    "made with rows and attached in one transaction": ([f"BEGIN; {_MADE}; {_ATTACH}; COMMIT"], "p30 was attached with"),
    "detached": (["ALTER TABLE p DETACH PARTITION p10"], "p10 was detached or dropped"),
    "dropped": (["DROP TABLE p10"], "p10 was detached or dropped"),
    "truncated": (["TRUNCATE p10"], "p10 was truncated"),
    "truncated and filled": (["TRUNCATE p10", "INSERT INTO p VALUES (12, 1)", "ANALYZE"], "p10 was truncated"),
    "truncated by their names": (["TRUNCATE p0, p10, p20"], "p10 was truncated"),
    "truncated before a type becomes wider": (
        ["TRUNCATE p10", "INSERT INTO p VALUES (12, 1)", "ALTER TABLE p ALTER n TYPE bigint"],
        "p10 was truncated",
    ),
    "truncated between two types that become wider": (
        [
            "ALTER TABLE p ADD v varchar(4); ALTER TABLE p ALTER n TYPE bigint",
            "TRUNCATE p10",
            "ALTER TABLE p ALTER v TYPE text; ALTER TABLE p DROP v",
        ],
        "p10 was truncated",
    ),
    "truncated before the table": (["TRUNCATE p10", "TRUNCATE p"], "p10 was truncated"),
    "truncated after the table": (["TRUNCATE p", "INSERT INTO p VALUES (12, 1)", "TRUNCATE p10"], "p10 was truncated"),
    "truncated after the table in its transaction": (
        ["BEGIN; TRUNCATE p; INSERT INTO p VALUES (12, 1); TRUNCATE p10; COMMIT"],
        "p10 was truncated",
    ),
    "new and truncated": (
        [_NEW, "INSERT INTO p VALUES (31, 1)", "TRUNCATE p30", "INSERT INTO p VALUES (32, 1)", "VACUUM FULL p30"],
        "p30 was truncated",
    ),
    "new and truncated in one transaction": (
        [f"BEGIN; {_NEW}; INSERT INTO p VALUES (31, 1); TRUNCATE p30; COMMIT"],
        "p30 was truncated",
    ),
    "truncated in a savepoint": (["BEGIN; SAVEPOINT s; TRUNCATE p; RELEASE s; COMMIT"], "p10 was truncated"),
    "truncated without the second publication": (
        [
            "DO $$ BEGIN EXECUTE format('ALTER PUBLICATION %I SET (publish = ''truncate'')',"
            " (SELECT pubname FROM pg_publication WHERE pubname LIKE '%partitions')); END $$",
            "TRUNCATE p",
        ],
        "p10 was truncated",
    ),
    "detached for a time": (
        [
            "ALTER TABLE p DETACH PARTITION p10",
            "UPDATE p10 SET n = 7",
            "ALTER TABLE p ATTACH PARTITION p10 FOR VALUES FROM (10) TO (20)",
        ],
        "p10 was detached and attached again",
    ),
    "unlogged for a time": (
        ["ALTER TABLE p10 SET UNLOGGED", "INSERT INTO p VALUES (12, 1)", "ALTER TABLE p10 SET LOGGED"],
        "p10 was",
    ),
}


@pytest.mark.parametrize("case", _LOST)
def test_rows_that_the_log_lacks_are_an_error_until_they_are_accepted(store: Store, server: Server, case: str) -> None:
    tunnel = store.create_tunnel("p", "changes")
    before = drain(tunnel)
    statements, problem = _LOST[case]
    for statement in statements:
        server.execute(statement)
    server.execute("INSERT INTO p VALUES (2, 2)")
    for _ in range(2):
        with pytest.raises(DataLossError, match=problem):
            drain(tunnel)
    assert any(problem in warning for warning in tunnel.describe().warnings)
    with headrace.open(store.url) as other, pytest.raises(DataLossError, match=problem):
        drain(other.tunnel("changes"))
    after = accepted(tunnel)
    assert replay(before + after)[2,] == {"id": 2, "n": 2}
    server.execute("INSERT INTO p VALUES (3, 3)")
    assert [change.key for change in drain(tunnel)] == [(3,)]
    assert tunnel.describe().warnings == ()


def test_a_truncate_that_was_accepted_is_no_error_of_a_later_change_of_types(store: Store, server: Server) -> None:
    tunnel = store.create_tunnel("p", "changes")
    drain(tunnel)
    server.execute("TRUNCATE p10")
    assert accepted(tunnel) == []
    server.execute("ALTER TABLE p ALTER n TYPE bigint; INSERT INTO p VALUES (12, 1)")
    assert [change.key for change in drain(tunnel)] == [(12,)]


_TRUNCATED = {
    "by itself": ["TRUNCATE p"],
    "and written": ["TRUNCATE p", "INSERT INTO p VALUES (11, 5), (2, 5)", "UPDATE p SET n = 6 WHERE id = 11"],
    "and written in one transaction": [
        "BEGIN; INSERT INTO p VALUES (3, 1); TRUNCATE p RESTART IDENTITY; INSERT INTO p VALUES (11, 5), (3, 5);"
        "DELETE FROM p WHERE id = 3; COMMIT"
    ],
    "twice": ["BEGIN; TRUNCATE p; INSERT INTO p VALUES (1, 2); TRUNCATE p; COMMIT; INSERT INTO p VALUES (11, 7)"],
    "with a partition and another table": [
        "CREATE TABLE o (id int PRIMARY KEY)",
        "TRUNCATE p10, o, p",
        "INSERT INTO p VALUES (12, 1)",
    ],
    "by another table": [
        "CREATE TABLE q (id int PRIMARY KEY); INSERT INTO q VALUES (1); ALTER TABLE p ADD FOREIGN KEY (n) REFERENCES q",
        "TRUNCATE q CASCADE",
    ],
    "before a type becomes wider": ["TRUNCATE p; INSERT INTO p VALUES (12, 1)", "ALTER TABLE p ALTER n TYPE bigint"],
    "behind a type that becomes wider": ["ALTER TABLE p ALTER n TYPE bigint; TRUNCATE p", "INSERT INTO p VALUES (3)"],
    "with other changes": [
        "TRUNCATE p; INSERT INTO p VALUES (12, 1)",
        "ALTER TABLE p ADD CHECK (n < 100); GRANT SELECT ON p10 TO PUBLIC; ANALYZE p",
    ],
    "with a new partition": [_NEW, "INSERT INTO p VALUES (31, 1)", "TRUNCATE p", "INSERT INTO p VALUES (32, 1)"],
    "with a new partition in one transaction": [
        f"BEGIN; {_NEW}; INSERT INTO p VALUES (31, 1); TRUNCATE p; INSERT INTO p VALUES (32, 1); COMMIT"
    ],
}


@pytest.mark.parametrize("looks", [False, True])
@pytest.mark.parametrize("case", _TRUNCATED)
def test_a_truncate_of_a_partitioned_table_is_followed(store: Store, server: Server, case: str, looks: bool) -> None:
    tunnel = store.create_tunnel("p", "changes").with_truncations()
    changes = drain(tunnel)
    for statement in _TRUNCATED[case]:
        server.execute(statement)
        if looks:
            changes += drain(tunnel)
    changes += drain(tunnel)
    last = max(place for place, change in enumerate(changes) if change.op is ChangeOp.TRUNCATE)
    assert replay(changes[last + 1 :]) == state_of(store.table("p"))
    assert tunnel.describe().warnings == ()
    with headrace.open(store.url) as other:
        server.execute("INSERT INTO p VALUES (9, NULL)")
        assert [change.key for change in drain(other.tunnel("changes"))] == [(9,)]


def test_a_truncate_that_the_catalog_does_not_show_yet_hides_none_before_it(
    store: Store, server: Server, monkeypatch: pytest.MonkeyPatch
) -> None:
    """The slot has a commit some moments before it is visible."""
    tunnel = store.create_tunnel("p", "changes").with_truncations()
    drain(tunnel)
    server.execute("TRUNCATE p")
    (xid,) = server.execute("SELECT xmin::text::bigint FROM pg_class WHERE relname = 'p10'").fetchall()[0]
    found = partition_truncations.of_whole_table

    def with_a_later_one(*arguments: Any) -> set[int]:
        server.execute("TRUNCATE p")
        return found(*arguments)

    monkeypatch.setattr(partition_truncations, "of_whole_table", with_a_later_one)
    monkeypatch.setattr(catalog, "file_xid", lambda *_: xid)
    changes = drain(tunnel)
    assert [change.op for change in changes] == [ChangeOp.TRUNCATE, ChangeOp.TRUNCATE]
    assert tunnel.describe().warnings == ()


def test_a_truncate_after_the_look_of_a_call_is_seen_before_the_slot_advances_behind_it(
    store: Store, server: Server, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(retention, "KEPT_BYTES", 0)
    drain(store.create_tunnel("p", "changes"))
    tunnel = store.tunnel("changes").with_truncations()
    rows, statements = ChangeLog.rows, ["TRUNCATE p; INSERT INTO p VALUES (2, 2)"]

    def after_a_truncate(*arguments: Any) -> Any:
        while statements:
            server.execute(statements.pop())
        return rows(*arguments)

    monkeypatch.setattr(ChangeLog, "rows", after_a_truncate)
    (channel,) = (each for each in tunnel.channels() if each.state is ChannelState.OPEN)
    page = tunnel.read(channel.id, channel.committed, 1000)
    assert page.changes.begin_with_truncation
    tunnel.commit({channel.id: page.next})
    assert parse_lsn(str(tunnel.describe().details["confirmed_flush_lsn"])) >= lsn_of(page.next)
    with headrace.open(store.url) as other:
        assert drain(other.tunnel("changes")) == []


def test_a_truncate_of_a_partitioned_table_that_has_joined_is_followed(store: Store, server: Server) -> None:
    tunnel = store.create_tunnel_of_tables("public.*", "changes").with_truncations()
    drain(tunnel)
    server.execute("CREATE TABLE q (id int PRIMARY KEY) PARTITION BY RANGE (id)")
    server.execute("CREATE TABLE q0 PARTITION OF q DEFAULT")
    server.execute("INSERT INTO q VALUES (1)")
    assert tunnel.take_in_tables() == ["q"]
    drain(tunnel)
    server.execute("TRUNCATE q, p; INSERT INTO p VALUES (2, 2)")
    found = [(change.op, change.row["table"]) for change in drain(tunnel)]
    assert sorted(found[:2]) == [(ChangeOp.TRUNCATE, "p"), (ChangeOp.TRUNCATE, "q")]
    assert found[2:] == [(ChangeOp.INSERT, "p")]
    server.execute("TRUNCATE q0, p")
    with pytest.raises(DataLossError, match="q0 was truncated"):
        drain(tunnel)
    store.drop_tunnel(tunnel.id)
    assert server.execute("SELECT FROM pg_publication").fetchall() == []


_WRITTEN = [_NEW, "INSERT INTO p VALUES (31, 1), (32, 1)"]
_LEFT = {
    "dropped": [*_WRITTEN, "DROP TABLE p30"],
    "detached": [*_WRITTEN, "ALTER TABLE p DETACH PARTITION p30"],
    "renamed and dropped": [*_WRITTEN, "ALTER TABLE p30 RENAME TO other", "DROP TABLE other"],
    "dropped in its transaction": [f"BEGIN; {'; '.join(_WRITTEN)}; DROP TABLE p30; COMMIT"],
    "attached with rows and dropped": [_MADE, _ATTACH, "INSERT INTO p VALUES (32, 1)", "DROP TABLE p30"],
    "written by a row that moved": [_NEW, "UPDATE p SET id = 32 WHERE id = 1", "DROP TABLE p30"],
    "written after a truncate of the table": [
        *_WRITTEN,
        "TRUNCATE p",
        "INSERT INTO p VALUES (33, 1)",
        "ALTER TABLE p DETACH PARTITION p30",
    ],
    "the only partition of a partition": [
        "CREATE TABLE p30 PARTITION OF p FOR VALUES FROM (30) TO (40) PARTITION BY RANGE (id)",
        "CREATE TABLE p31 PARTITION OF p30 DEFAULT",
        "INSERT INTO p VALUES (31, 1)",
        "DROP TABLE p31",
    ],
    "with the partition above it": [
        "CREATE TABLE p30 PARTITION OF p FOR VALUES FROM (30) TO (40) PARTITION BY RANGE (id)",
        "CREATE TABLE p31 PARTITION OF p30 DEFAULT",
        "INSERT INTO p VALUES (31, 1)",
        "ALTER TABLE p DETACH PARTITION p30",
    ],
    "moved to another table": [
        *_WRITTEN,
        "CREATE TABLE q (LIKE p INCLUDING ALL) PARTITION BY RANGE (id)",
        "ALTER TABLE p DETACH PARTITION p30; ALTER TABLE q ATTACH PARTITION p30 DEFAULT",
    ],
}


@pytest.mark.parametrize("case", _LEFT)
def test_a_partition_that_has_left_with_rows_before_a_look_is_an_error_until_it_is_accepted(
    store: Store, server: Server, case: str
) -> None:
    if case.startswith("attached with rows") and server.info.server_version < 150_000:
        # As below: the server sends no row of the partition.
        return
    tunnel = store.create_tunnel("p", "changes").with_truncations()
    drain(tunnel)
    for statement in _LEFT[case]:
        server.execute(statement)
    for _ in range(2):
        with pytest.raises(DataLossError, match=r"partition public\.(p30|p31|other) was detached or dropped"):
            drain(tunnel)
    assert any("the log does not contain it" in warning for warning in tunnel.describe().warnings)
    with headrace.open(store.url) as other, pytest.raises(DataLossError, match="was detached or dropped"):
        drain(other.tunnel("changes"))
    server.execute("INSERT INTO p VALUES (2, 2)")
    assert accepted(tunnel)[-1].key == (2,)
    with headrace.open(store.url) as other:
        assert drain(other.tunnel("changes")) == []
    # Another one, or the same one again.
    server.execute("DROP TABLE IF EXISTS p30, q")
    for statement in [*_WRITTEN, "DROP TABLE p30"]:
        server.execute(statement)
    with pytest.raises(DataLossError, match="p30 was detached or dropped"):
        drain(tunnel)


_BEHIND: dict[str, tuple[list[str], list[int] | None]] = {
    "nothing": (["DROP TABLE p30", "INSERT INTO p VALUES (2, 2)"], [2]),
    "the end of the partition": (["INSERT INTO p VALUES (2, 2)", "ALTER TABLE p DETACH PARTITION p30"], [2]),
    "rows of the partition": (["INSERT INTO p VALUES (33, 1)", "DROP TABLE p30"], None),
    "another place": (
        [
            "CREATE TABLE q (LIKE p INCLUDING ALL) PARTITION BY RANGE (id)",
            "ALTER TABLE p DETACH PARTITION p30; ALTER TABLE q ATTACH PARTITION p30 DEFAULT",
        ],
        [],
    ),
    "a column of another type": (["ALTER TABLE p ALTER n TYPE text", "INSERT INTO p VALUES (34, 'x')"], [34]),
}


@pytest.mark.parametrize("at_end", [False, True])
@pytest.mark.parametrize("case", _BEHIND)
def test_a_reader_that_begins_behind_rows_of_a_partition_needs_only_the_later_ones(
    store: Store, server: Server, case: str, at_end: bool
) -> None:
    statements, expected = _BEHIND[case]
    tunnel = store.create_tunnel("p", "changes", "Stream")
    if case.startswith("a column"):
        server.execute("INSERT INTO p VALUES (2, 1)")
    else:
        for statement in _WRITTEN:
            server.execute(statement)
    ((now, end),) = server.execute("SELECT clock_timestamp(), pg_current_wal_flush_lsn()::text").fetchall()
    for statement in [_NEW] * case.startswith("a column") + statements:
        server.execute(statement)
    start = Position(end) if at_end else tunnel.start_positions(Start(StartKind.TIMESTAMP, now))["stream"]
    for _ in range(2):
        if expected is None:
            with pytest.raises(DataLossError, match="p30 was detached or dropped"):
                read_from(tunnel, "stream", start)
        else:
            found, _ = read_from(tunnel, "stream", start)
            assert [change.key for change in found] == [(key,) for key in expected]
    # The tunnel has them for readers that begin before.
    with pytest.raises(DataLossError, match=r"p30 was detached or dropped|column 'n' had type integer"):
        drain(tunnel)
    assert not server.execute("SELECT FROM pg_replication_slots WHERE temporary").fetchall()


def test_a_position_within_a_transaction_of_a_partition_that_no_look_has_seen_is_saved(
    store: Store, server: Server
) -> None:
    drain(store.create_tunnel("p", "changes"))
    saver, reader = store.tunnel("changes"), store.tunnel("changes")
    saver.describe()
    server.execute(_NEW)
    server.execute("INSERT INTO p SELECT i, 1 FROM generate_series(30, 38) i")
    (channel,) = (each for each in reader.channels() if each.state is ChannelState.OPEN)
    page = reader.read(channel.id, channel.committed, 3)
    assert page.next.skip == 3
    # The save decodes the log while it holds the row of the tunnel. A look at the definitions would wait for it.
    saving = threading.Thread(target=saver.commit, args=({channel.id: page.next},), daemon=True)
    saving.start()
    saving.join(60)
    assert not saving.is_alive()
    assert len(drain(saver)) == 6


def test_a_partition_that_comes_back_and_leaves_again_before_a_look_is_another_error(
    store: Store, server: Server
) -> None:
    tunnel = store.create_tunnel("p", "changes")
    drain(tunnel)
    for number in (31, 32):
        server.execute(_NEW if number == 31 else _ATTACH)
        server.execute("INSERT INTO p VALUES (%s, 1)", (number,))
        server.execute("ALTER TABLE p DETACH PARTITION p30; TRUNCATE p30")
        with pytest.raises(DataLossError, match="p30 was detached or dropped"):
            drain(tunnel)
        assert [change.key for change in accepted(tunnel)] == [(number,)]


_LEFT_WITHOUT_ROWS = {
    "never written": [_NEW, "DROP TABLE p30"],
    "written by a transaction that was rolled back": [
        _NEW,
        "BEGIN; INSERT INTO p VALUES (31, 1); ROLLBACK",
        "DROP TABLE p30",
    ],
    "written and truncated with the table": [*_WRITTEN, "TRUNCATE p", "INSERT INTO p VALUES (12, 1)", "DROP TABLE p30"],
    "attached with rows": [_MADE, _ATTACH, "ALTER TABLE p DETACH PARTITION p30"],
    "written while it was none": [_NEW, "ALTER TABLE p DETACH PARTITION p30", "INSERT INTO p30 VALUES (31, 1)"],
    "written in another table": [
        _NEW,
        "CREATE TABLE q (LIKE p INCLUDING ALL) PARTITION BY RANGE (id)",
        "ALTER TABLE p DETACH PARTITION p30; ALTER TABLE q ATTACH PARTITION p30 DEFAULT",
        "INSERT INTO q VALUES (31, 1)",
    ],
    "renamed": [*_WRITTEN, "ALTER TABLE p30 RENAME TO other"],
    "back again": [_NEW, "ALTER TABLE p DETACH PARTITION p30", _ATTACH, "INSERT INTO p VALUES (31, 1)"],
}


@pytest.mark.parametrize("every", [False, True])
@pytest.mark.parametrize("case", _LEFT_WITHOUT_ROWS)
def test_a_partition_that_has_left_without_rows_is_no_error(
    store: Store, server: Server, case: str, every: bool
) -> None:
    if every and "truncated" in case:
        # Without a second publication, it is not known whether partitions were truncated by themselves.
        return
    options: dict[str, Any] = {}
    if every:
        server.execute("CREATE PUBLICATION every FOR ALL TABLES WITH (publish_via_partition_root = true)")
        options = {"publication": "every"}
    tunnel = store.create_tunnel("p", "changes", **options).with_truncations()
    changes = drain(tunnel)
    for statement in _LEFT_WITHOUT_ROWS[case]:
        server.execute(statement)
    server.execute("INSERT INTO p VALUES (2, 2)")
    changes += drain(tunnel)
    truncations = [place for place, change in enumerate(changes) if change.op is ChangeOp.TRUNCATE]
    assert replay(changes[max(truncations, default=-1) + 1 :]) == state_of(store.table("p"))
    assert tunnel.describe().warnings == ()


def test_a_partition_that_has_left_a_table_for_another_one_of_its_tunnel(store: Store, server: Server) -> None:
    server.execute("CREATE TABLE q (LIKE p INCLUDING ALL) PARTITION BY RANGE (id)")
    for typed in (False, True):
        tunnel = store.create_tunnel(["p", "q"], "typed" if typed else "json", "Stream")
        tunnel = tunnel.typed() if typed else tunnel
        for statement in [*_WRITTEN, "ALTER TABLE p DETACH PARTITION p30; DELETE FROM p30"]:
            server.execute(statement)
        server.execute("ALTER TABLE q ATTACH PARTITION p30 DEFAULT; INSERT INTO q VALUES (31, 1)")
        with pytest.raises(DataLossError, match=r"table public\.p: partition public\.p30 was detached") as error:
            drain(tunnel)
        assert "table public.q" not in str(error.value)
        server.execute("DROP TABLE p30")


def test_a_partition_that_has_left_before_base_data_was_read_is_no_error(
    store: Store, server: Server, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(stored_tunnels, "SMALL_TABLE_ROWS", 0)
    tunnel = store.create_tunnel("p", "changes")
    for statement in [*_WRITTEN, "DROP TABLE p30"]:
        server.execute(statement)
    assert tunnel.describe().warnings == ()
    assert replay(drain(tunnel)) == state_of(store.table("p"))
    assert tunnel.describe().warnings == ()


def test_base_data_has_no_rows_of_a_partition_that_no_look_has_seen(
    store: Store, server: Server, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(stored_tunnels, "SMALL_TABLE_ROWS", 0)
    tunnel = store.create_tunnel("p", "changes")
    read, statements = followed.one_snapshot, [*_WRITTEN, "DROP TABLE p30"]

    def with_a_partition_meanwhile(*arguments: Any) -> Any:
        while len(statements) > 1:
            server.execute(statements.pop(0))
        found = read(*arguments)
        while statements:
            server.execute(statements.pop(0))
        return found

    monkeypatch.setattr(followed, "one_snapshot", with_a_partition_meanwhile)
    assert replay(drain(tunnel)) == state_of(store.table("p"))
    assert statements == []


def test_a_partition_of_a_transaction_that_is_not_visible_yet_is_waited_for(
    store: Store, server: Server, monkeypatch: pytest.MonkeyPatch
) -> None:
    """The slot has a commit some moments before it is visible."""
    tunnel = store.create_tunnel("p", "changes")
    assert isinstance(tunnel, PostgresTunnel)
    ((root,),) = server.execute("SELECT 'p'::regclass::oid::bigint").fetchall()
    seen = SeenDefinitions(tunnel._database, tunnel.id, [root])
    seen.refresh()
    with psycopg.connect(store.url, user="postgres") as other:
        other.execute(_NEW)
        ((oid, xid),) = other.execute("SELECT 'p30'::regclass::oid::bigint, pg_current_xact_id()::xid::text").fetchall()
        written = WrittenLeaf(root, Relation(oid, "public", "p30", "d", ()), Transaction(1 << 62, 0, int(xid)))
        monkeypatch.setattr(seen_definitions, "_VISIBLE_SECONDS", 0.0)
        with pytest.raises(StoreBusyError, match="a transaction that the server does not show"):
            seen.check_leaves([written], 0)
    seen.check_leaves([written], 0)
    assert tunnel.describe().warnings == ()


_RIGHT = {
    "an empty partition": [_NEW],
    "partitions of a partition": [
        "CREATE TABLE p30 PARTITION OF p FOR VALUES FROM (30) TO (40) PARTITION BY RANGE (n)",
        "ALTER TABLE p30 REPLICA IDENTITY DEFAULT",
        "CREATE TABLE p30n PARTITION OF p30 DEFAULT",
    ],
    "a partition that is filled in the same transaction": [f"BEGIN; {_NEW}; INSERT INTO p VALUES (30, 1); COMMIT"],
    "an empty table that is attached": [
        "CREATE TABLE p30 (LIKE p INCLUDING ALL)",
        _ATTACH,
        "INSERT INTO p VALUES (32, 1)",
    ],
    "VACUUM FULL": ["VACUUM FULL p"],
    "CLUSTER": ["CLUSTER p10 USING p10_pkey", "ANALYZE p"],
    "a wider type": ["ALTER TABLE p ALTER n TYPE bigint", "UPDATE p SET n = 5000000000"],
    "a renamed partition": ["ALTER TABLE p10 RENAME TO other"],
    "a partition for a time": [_NEW, "INSERT INTO p VALUES (33, 1)", "DELETE FROM p WHERE id = 33"],
    "a table that was truncated before it is attached": [_MADE, "TRUNCATE p30", _ATTACH],
}


@pytest.mark.parametrize("case", _RIGHT)
def test_partitions_that_change_with_the_log_are_followed(store: Store, server: Server, case: str) -> None:
    if "before it is attached" in case and server.info.server_version < 150_000:
        # The server does not look again whether a table is published of which it has decoded a change.
        return
    if case.startswith("partitions of"):
        server.execute("DROP TABLE p; CREATE TABLE p (id int, n int, PRIMARY KEY (id, n)) PARTITION BY RANGE (id)")
    tunnel = store.create_tunnel("p", "changes")
    changes = drain(tunnel)
    for statement in _RIGHT[case]:
        server.execute(statement)
    if "p30" in str(_RIGHT[case]):
        server.execute("INSERT INTO p VALUES (31, 5)")
    changes += drain(tunnel)
    assert replay(changes) == state_of(store.table("p"))
    assert tunnel.describe().warnings == ()


def test_partitions_with_defaults_of_their_own_do_not_give_older_rows_a_value(store: Store, server: Server) -> None:
    tunnel = store.create_tunnel("p", "changes")
    drain(tunnel)
    server.execute("INSERT INTO p VALUES (3, 1)")
    server.execute("CREATE TABLE p30 (LIKE p INCLUDING ALL); ALTER TABLE p30 ADD c int DEFAULT 1")
    server.execute("ALTER TABLE p ADD c int DEFAULT 5")
    server.execute(_ATTACH)
    with pytest.raises(DataLossError, match=r"column 'c' is newer, and rows before it have values"):
        drain(tunnel)


def test_values_that_a_rewrite_of_partitions_has_given_to_unread_rows_are_an_error(
    store: Store, server: Server
) -> None:
    tunnel = store.create_tunnel("p", "changes")
    drain(tunnel)
    server.execute("INSERT INTO p VALUES (2, 2)")
    server.execute("ALTER TABLE p ADD r float8 DEFAULT random()")
    # A rewrite for a type leaves no old row, too.
    server.execute("ALTER TABLE p ALTER n TYPE bigint")
    with pytest.raises(DataLossError, match="column 'r' is newer"):
        drain(tunnel)


def test_a_partition_that_becomes_unlogged_is_refused_until_it_is_logged(store: Store, server: Server) -> None:
    tunnel = store.create_tunnel("p", "changes")
    drain(tunnel)
    server.execute("ALTER TABLE p10 SET UNLOGGED")
    with pytest.raises(UnsupportedError, match=r"public\.p10 of table public\.p is unlogged"):
        drain(tunnel)
    assert any("p10" in warning for warning in tunnel.describe().warnings)
    server.execute("ALTER TABLE public.p10 SET LOGGED")
    with pytest.raises(DataLossError, match="p10 was unlogged"):
        drain(tunnel)
    assert accepted(tunnel) == []


def test_pre_images_reach_the_partitions_and_a_new_one_is_noticed(store: Store, server: Server) -> None:
    table = store.table("p")
    assert table.set_options(pre_images=True).pre_images
    tunnel = store.create_tunnel("p", "changes", "Stream")
    server.execute("UPDATE p SET n = 2 WHERE id = 11")
    assert [change.op for change in drain(tunnel)] == [ChangeOp.PREIMAGE, ChangeOp.REPLACE]
    server.execute("CREATE TABLE p30 PARTITION OF p FOR VALUES FROM (30) TO (40)")
    assert not table.describe().options.pre_images
    (warning,) = tunnel.describe().warnings
    assert "partition public.p30 have no old rows" in warning
    assert table.set_options(pre_images=True).pre_images
    server.execute("INSERT INTO p VALUES (31, 1)")
    server.execute("UPDATE p SET n = 2 WHERE id = 31")
    assert [change.op for change in drain(tunnel)][-2:] == [ChangeOp.PREIMAGE, ChangeOp.REPLACE]
    assert not table.set_options(pre_images=False).pre_images
    server.execute("DELETE FROM p WHERE id = 1")
    assert [change.op for change in drain(tunnel)] == [ChangeOp.DELETE]
