"""Columns that are dropped, added and rewritten between two looks of a tunnel: right values, or an error."""

from __future__ import annotations

import pytest

from headrace.errors import DataLossError
from headrace.ports import Store
from headrace.testing.reading import drain, read_from, replay, state_of
from tests.interop.own_database import Server
from tests.interop.test_postgres_partitions import accepted


@pytest.mark.parametrize("partitioned", [False, True])
@pytest.mark.parametrize("dropped", [False, True])
@pytest.mark.parametrize(
    ("rewrite", "problem"),
    [
        ("ALTER TABLE t ALTER c TYPE int USING c * 10", "column 'c' was rewritten"),
        ("ALTER TABLE t ALTER n TYPE bigint, ALTER c TYPE int USING c * 10", "column 'c' was rewritten"),
        (
            "ALTER TABLE t ALTER c TYPE int USING c * 10; BEGIN; ALTER TABLE t ALTER c SET STATISTICS 7; ROLLBACK",
            "column 'c' was rewritten",
        ),
        ("ALTER TABLE t ALTER n TYPE bigint", None),
        ("ALTER TABLE t ADD i int GENERATED ALWAYS AS IDENTITY", None),
        ("VACUUM FULL t", None),
        ("CLUSTER t USING t_pkey", None),
    ],
)
def test_values_by_using_are_noticed_beside_a_default_that_the_rewrite_fills_in(
    store: Store, server: Server, rewrite: str, problem: str | None, dropped: bool, partitioned: bool
) -> None:
    server.execute("CREATE TABLE t (id int PRIMARY KEY, n int)" + (" PARTITION BY RANGE (id)" if partitioned else ""))
    if partitioned:
        if ("CLUSTER" in rewrite and server.info.server_version < 150_000) or "IDENTITY" in rewrite:
            return
        server.execute("CREATE TABLE p PARTITION OF t FOR VALUES FROM (0) TO (9)")
    server.execute("INSERT INTO t VALUES (1, 1)")
    server.execute("ALTER TABLE t ADD c int DEFAULT 5")
    tunnel = store.create_tunnel("t", "changes")
    drain(tunnel)
    if dropped:
        server.execute("ALTER TABLE t ALTER c DROP DEFAULT")
        tunnel.describe()
    for statement in rewrite.split("; "):
        server.execute(statement)
    if problem is None:
        assert drain(tunnel) == []
        return
    with pytest.raises(DataLossError, match=problem):
        drain(tunnel)


# It leaves the catalog as two new columns do.
_RENAME = "BEGIN; ALTER TABLE t RENAME {} TO b; ALTER TABLE t ADD c int; COMMIT"


@pytest.mark.parametrize(
    ("changes", "certain"),
    [
        (
            ["ALTER TABLE t DROP a, ADD a text", "INSERT INTO t VALUES (2, 'new')", _RENAME.format("a")],
            False,
        ),
        (
            ["ALTER TABLE t ADD x text", "INSERT INTO t VALUES (2, 'a', 'new')", _RENAME.format("x")],
            True,
        ),
        (["ALTER TABLE t DROP a, ADD b text, ADD c text DEFAULT 'c', ADD d int"], True),
        (["ALTER TABLE t DROP a", "ALTER TABLE t ADD b int"], True),
    ],
)
def test_a_new_name_is_not_taken_for_that_of_a_new_column(
    store: Store, server: Server, changes: list[str], certain: bool
) -> None:
    server.execute("CREATE TABLE t (id int PRIMARY KEY, a text)")
    tunnel = store.create_tunnel("t", "changes")
    server.execute("INSERT INTO t VALUES (1, 'old')")
    for change in changes:
        server.execute(change.encode())
    server.execute("INSERT INTO t VALUES (9)")
    if certain:
        assert replay(drain(tunnel)) == state_of(store.table("t"))
        return
    with pytest.raises(DataLossError, match="not certain"):
        drain(tunnel)


_INSERT = "INSERT INTO t VALUES (2, 2)"


@pytest.mark.parametrize("seen", [False, True])
def test_unread_values_of_a_dropped_column_are_none_of_a_new_one_of_its_name(
    store: Store, server: Server, seen: bool
) -> None:
    server.execute("CREATE TABLE t (id int PRIMARY KEY, a text)")
    tunnel = store.create_tunnel("t", "changes")
    server.execute("INSERT INTO t VALUES (1, 'old')")
    server.execute("ALTER TABLE t DROP a")
    if seen:
        tunnel.describe()
    server.execute("ALTER TABLE t ADD a text DEFAULT 'new'")
    if seen:
        assert replay(drain(tunnel)) == state_of(store.table("t"))
        return
    with pytest.raises(DataLossError, match="it is not certain which columns had the names a; 1 rows"):
        drain(tunnel)
    server.execute("INSERT INTO t VALUES (2, 'b')")
    assert [change.row for change in accepted(tunnel)] == [{"id": 2, "a": "b"}]


_UNSEEN = {
    "a new column with the former name of another one": (
        ["ALTER TABLE t DROP b", "ALTER TABLE t ADD b int", _INSERT, "ALTER TABLE t RENAME b TO c"],
        "names b",
    ),
    "a new column with the former name of another one, in one transaction": (
        [f"BEGIN; ALTER TABLE t DROP b; ALTER TABLE t ADD b int; {_INSERT}; ALTER TABLE t RENAME b TO c; COMMIT"],
        "names b",
    ),
    "a column with the name of one that was dropped before the tunnel has seen it": (
        ["ALTER TABLE t ADD c int", "INSERT INTO t VALUES (2, 2, 2)", "ALTER TABLE t DROP c, ADD c int"],
        "names c",
    ),
    "a former name of a column that was dropped": (
        [
            "ALTER TABLE t ADD x int",
            "ALTER TABLE t DROP b",
            "INSERT INTO t VALUES (2, 2)",
            "ALTER TABLE t DROP x, ADD x int",
            "INSERT INTO t VALUES (3, 3)",
            "ALTER TABLE t RENAME x TO c",
        ],
        "names x",
    ),
    "a dropped column beside a new one": (
        [_INSERT, "ALTER TABLE t DROP b, ADD c int", "INSERT INTO t VALUES (3, 3)"],
        None,
    ),
    "a dropped column beside a new one that is filled in one transaction": (
        [_INSERT, "BEGIN; ALTER TABLE t DROP b; ALTER TABLE t ADD c int; UPDATE t SET c = id; COMMIT"],
        None,
    ),
    "a column that is filled from one that is dropped": (
        ["BEGIN; ALTER TABLE t ADD c int; UPDATE t SET c = b; ALTER TABLE t DROP b; COMMIT", "DELETE FROM t"],
        None,
    ),
    "a dropped column beside new ones with defaults": (
        [
            _INSERT,
            "BEGIN; ALTER TABLE t DROP b; ALTER TABLE t ADD c int DEFAULT 5; ALTER TABLE t ADD d int; COMMIT",
            "INSERT INTO t VALUES (3, 3)",
        ],
        None,
    ),
}


@pytest.mark.parametrize("case", _UNSEEN)
def test_unseen_columns_are_right_or_an_error_until_the_tunnel_has_seen_them(
    store: Store, server: Server, case: str
) -> None:
    statements, problem = _UNSEEN[case]
    server.execute("CREATE TABLE t (id int PRIMARY KEY, b int)")
    server.execute("INSERT INTO t VALUES (1, 1)")
    tunnel = store.create_tunnel("t", "changes")
    for statement in statements:
        server.execute(statement)
    if problem is None:
        assert replay(drain(tunnel)) == state_of(store.table("t"))
        return
    with pytest.raises(DataLossError, match=f"not certain which columns had the {problem}"):
        drain(tunnel)
    server.execute("INSERT INTO t VALUES (9, 9)")
    found = [change.row for change in accepted(tunnel)]
    table = state_of(store.table("t"))
    assert found[-1] == table[9,]
    assert all(row == table[row["id"],] for row in found if row["id"] != 1)


@pytest.mark.parametrize("several", [False, True])
def test_changes_before_an_accepted_loss_have_no_values_of_another_column(
    store: Store, server: Server, several: bool
) -> None:
    server.execute("CREATE TABLE t (id int PRIMARY KEY, a text)")
    tunnel = store.create_tunnel_of_tables("t", "changes") if several else store.create_tunnel("t", "changes", "Stream")
    server.execute("INSERT INTO t VALUES (1, 'read')")
    drain(tunnel)
    server.execute("INSERT INTO t VALUES (2, 'old')")
    server.execute("ALTER TABLE t DROP a")
    tunnel.describe()
    server.execute("ALTER TABLE t ADD a text")
    server.execute("INSERT INTO t VALUES (3, 'new')")
    with pytest.raises(DataLossError, match="'a' is the name of another column than before"):
        drain(tunnel)
    if several:
        assert tunnel.accept_lost("stream", tunnel.channels()[-1].committed)
        # The values of a change are those of its time.
        assert [change.row["row"] for change in drain(tunnel)] == ['{"id":2}', '{"id":3,"a":"new"}']
    else:
        assert [change.row for change in accepted(tunnel)] == [{"id": 2, "a": None}, {"id": 3, "a": "new"}]


def test_a_reference_to_an_object_is_its_name_at_the_time_of_the_change(store: Store, server: Server) -> None:
    server.execute("CREATE TABLE named (i int); CREATE TABLE t (id int PRIMARY KEY, r regclass)")
    tunnel = store.create_tunnel("t", "changes", "Stream")
    server.execute("INSERT INTO t VALUES (1, 'named')")
    server.execute("ALTER TABLE named RENAME TO other")
    server.execute("INSERT INTO t VALUES (2, 'other')")
    server.execute("DROP TABLE other")
    expected = [{"id": 1, "r": "public.named"}, {"id": 2, "r": "public.other"}]
    (channel,) = tunnel.channels()
    for _ in range(2):
        assert [change.row for change in read_from(tunnel, channel.id, channel.committed)[0]] == expected
