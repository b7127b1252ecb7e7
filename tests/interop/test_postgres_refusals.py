"""Tables that a tunnel cannot follow exactly, or whose statements a publication would break: refused, with a remedy."""

from __future__ import annotations

import pytest
from psycopg import sql

import headrace
from headrace.errors import DataLossError, StoreError, UnsupportedError
from headrace.model.findings import Status
from headrace.ports import Store
from headrace.testing.reading import drain, replay, state_of
from tests.interop.own_database import Server

_TABLE = "CREATE TABLE t (id int PRIMARY KEY, v int)"
_PARTITIONED = f"{_TABLE} PARTITION BY RANGE (id); CREATE TABLE p PARTITION OF t FOR VALUES FROM (0) TO (9)"
# Statements that make table t, its problem, and the remedy of its error.
_REFUSED = {
    "a deferrable key": (
        "CREATE TABLE t (id int CONSTRAINT k PRIMARY KEY DEFERRABLE, v int)",
        "primary key of table public.t is DEFERRABLE",
        "ALTER TABLE public.t DROP CONSTRAINT k, ADD PRIMARY KEY (id)",
    ),
    "a deferrable key with old rows": (
        "CREATE TABLE t (id int CONSTRAINT k PRIMARY KEY DEFERRABLE, v int); ALTER TABLE t REPLICA IDENTITY FULL",
        "primary key of table public.t is DEFERRABLE",
        "ALTER TABLE public.t DROP CONSTRAINT k, ADD PRIMARY KEY (id)",
    ),
    "a child table": (
        f"{_TABLE}; CREATE TABLE child () INHERITS (t)",
        "table public.t has rows of a table that inherits from it.*child table public.child",
        "ALTER TABLE public.child NO INHERIT public.t",
    ),
    "a partition without identity": (
        f"{_PARTITIONED}; ALTER TABLE p REPLICA IDENTITY NOTHING",
        "rows of partition public.p of table public.t.*REPLICA IDENTITY NOTHING",
        "ALTER TABLE public.p REPLICA IDENTITY DEFAULT",
    ),
    "a partition identified by an index": (
        f"{_PARTITIONED}; ALTER TABLE p ALTER v SET NOT NULL; CREATE UNIQUE INDEX i ON p (v);"
        " ALTER TABLE p REPLICA IDENTITY USING INDEX i",
        "rows of partition public.p of table public.t.*REPLICA IDENTITY USING INDEX",
        "ALTER TABLE public.p REPLICA IDENTITY DEFAULT",
    ),
    "an unlogged partition": (
        f"{_PARTITIONED}; ALTER TABLE p SET UNLOGGED",
        "partition public.p of table public.t is unlogged",
        "ALTER TABLE public.p SET LOGGED",
    ),
    "a column of changes": (
        'CREATE TABLE t (id int PRIMARY KEY, v int, "_Commit_Version" int)',
        "column '_Commit_Version' of table public.t has the name of a column that changes have",
        'ALTER TABLE public.t RENAME COLUMN "_Commit_Version" TO version',
    ),
    "a key of names": (
        "CREATE TABLE t (id regclass PRIMARY KEY, v int)",
        "primary key of table public.t has the names of other objects.*id regclass",
        "ALTER TABLE public.t ALTER id TYPE oid",
    ),
    "a key of a domain over names": (
        "CREATE DOMAIN d AS regtype[]; CREATE TABLE t (v int, id d PRIMARY KEY)",
        "primary key of table public.t has the names of other objects.*id public.d",
        "ALTER TABLE public.t ALTER id TYPE text",
    ),
    "an unlogged table": (
        "CREATE UNLOGGED TABLE t (id int PRIMARY KEY, v int)",
        "unlogged",
        "ALTER TABLE t SET LOGGED",
    ),
}


@pytest.mark.parametrize("several", [False, True], ids=["one", "several"])
@pytest.mark.parametrize("case", _REFUSED)
def test_a_table_is_refused_before_anything_is_created_and_followed_after_the_remedy(
    store: Store, server: Server, case: str, several: bool
) -> None:
    definition, problem, remedy = _REFUSED[case]
    server.execute(definition)
    if several and case == "an unlogged table":
        # A pattern leaves such tables out.
        return
    if several and case == "a column of changes":
        store.create_tunnel_of_tables("t", "changes")
        server.execute("INSERT INTO t VALUES (1, 1, 1)")
        assert len(drain(store.tunnel("changes"))) == 1
        return

    def create() -> None:
        if several:
            store.create_tunnel_of_tables("t", "changes")
        else:
            store.create_tunnel("t", "changes")

    with pytest.raises(UnsupportedError, match=problem):
        create()
    assert store.tunnels() == []
    created = "SELECT slot_name FROM pg_replication_slots WHERE database = current_database()"
    assert server.execute(f"{created} UNION SELECT pubname FROM pg_publication").fetchall() == []
    (found,) = [
        each for each in store.diagnose("t") if each.name == "PostgreSQL: changes of t" and each.status is Status.FAIL
    ]
    # The application's statements go on.
    server.execute("INSERT INTO t (id, v) VALUES ('{1}', 1)" if " d " in definition else "INSERT INTO t VALUES (1, 1)")
    server.execute("UPDATE t SET v = 2")
    server.execute(remedy)
    assert remedy.split()[0] in found.remedy
    create()
    server.execute("UPDATE t SET v = 3")
    server.execute("DELETE FROM t")
    if not several:
        assert replay(drain(store.tunnel("changes"))) == state_of(store.table("t"))


@pytest.mark.parametrize(
    ("statement", "problem", "remedy"),
    [
        (
            "CREATE TABLE child () INHERITS (t)",
            "child table public.child",
            "ALTER TABLE public.child NO INHERIT public.t",
        ),
        (
            "ALTER TABLE t RENAME COLUMN v TO _change_type",
            "column '_change_type' of table public.t",
            'ALTER TABLE public.t RENAME COLUMN "_change_type" TO v',
        ),
        (
            "ALTER TABLE t REPLICA IDENTITY NOTHING",
            "REPLICA IDENTITY NOTHING",
            "ALTER TABLE public.t REPLICA IDENTITY DEFAULT",
        ),
        (
            "ALTER TABLE t DROP CONSTRAINT t_pkey, ADD CONSTRAINT t_pkey PRIMARY KEY (id) DEFERRABLE",
            "DEFERRABLE",
            "ALTER TABLE public.t DROP CONSTRAINT t_pkey, ADD PRIMARY KEY (id)",
        ),
    ],
)
def test_a_followed_table_that_becomes_such_a_table_is_an_error_until_it_is_none(
    store: Store, server: Server, statement: str, problem: str, remedy: str
) -> None:
    server.execute(_TABLE)
    tunnel = store.create_tunnel("t", "changes")
    drain(tunnel)
    server.execute(statement)
    server.execute("INSERT INTO t VALUES (1, 1)")
    with pytest.raises(UnsupportedError, match=problem):
        drain(tunnel)
    assert any(problem in warning for warning in tunnel.describe().warnings)
    server.execute(remedy)
    assert tunnel.describe().warnings == ()
    server.execute("UPDATE t SET v = 5")
    assert replay(drain(tunnel)) == state_of(store.table("t"))


def test_a_key_that_was_deferrable_for_a_time_is_an_error_if_changes_have_old_rows(
    store: Store, server: Server
) -> None:
    server.execute(_TABLE)
    server.execute("INSERT INTO t VALUES (1, 1), (2, 2)")
    server.execute("ALTER TABLE t REPLICA IDENTITY FULL")
    tunnel = store.create_tunnel("t", "changes")
    server.execute("REINDEX TABLE CONCURRENTLY t")
    assert replay(drain(tunnel)) == state_of(store.table("t"))
    server.execute("ALTER TABLE t DROP CONSTRAINT t_pkey, ADD CONSTRAINT t_pkey PRIMARY KEY (id) DEFERRABLE")
    server.execute("UPDATE t SET id = id + 1")
    server.execute("ALTER TABLE t DROP CONSTRAINT t_pkey, ADD PRIMARY KEY (id)")
    with pytest.raises(DataLossError, match="the primary key was made again"):
        drain(tunnel)


@pytest.mark.parametrize("forced", [True, False], ids=["owner", "reader"])
def test_hidden_rows_are_an_error(store: Store, server: Server, url: str, forced: bool) -> None:
    role = sql.Identifier(f"hr_rls_{forced}".lower())
    server.execute(sql.SQL("DROP ROLE IF EXISTS {}").format(role))
    server.execute(sql.SQL("CREATE ROLE {} LOGIN REPLICATION").format(role))
    try:
        server.execute(_TABLE)
        server.execute("INSERT INTO t VALUES (1, 1), (2, 2)")
        ((database,),) = server.execute("SELECT current_database()").fetchall()
        server.execute(sql.SQL("GRANT CREATE ON DATABASE {} TO {}").format(sql.Identifier(database), role))
        server.execute("CREATE PUBLICATION all_rows FOR TABLE t")
        if forced:
            server.execute(sql.SQL("ALTER TABLE t OWNER TO {}").format(role))
            server.execute("ALTER TABLE t FORCE ROW LEVEL SECURITY")
        else:
            server.execute(sql.SQL("GRANT SELECT ON t TO {}").format(role))
        server.execute("ALTER TABLE t ENABLE ROW LEVEL SECURITY")
        server.execute("CREATE POLICY part ON t USING (id = 1)")
        user = role.as_string(None).strip('"')
        with headrace.open(url.replace("postgres@", f"{user}@")) as other:
            with pytest.raises(UnsupportedError, match=f"may hide rows of table public.t.*user {user}"):
                other.create_tunnel("t", "changes", publication="all_rows")
            with pytest.raises(StoreError, match=r"ALTER ROLE … BYPASSRLS"):
                other.table("t").scan().read_all()
            findings = [each.found for each in other.diagnose("t") if each.status is Status.FAIL]
            assert any("row-level security" in each for each in findings)
            server.execute(
                "ALTER TABLE public.t NO FORCE ROW LEVEL SECURITY"
                if forced
                else sql.SQL("ALTER ROLE {} BYPASSRLS").format(role)
            )
            tunnel = other.create_tunnel("t", "changes", publication="all_rows")
            assert sorted(replay(drain(tunnel))) == [(1,), (2,)]
            if not forced:
                server.execute(sql.SQL("ALTER ROLE {} NOBYPASSRLS").format(role))
                server.execute("ALTER TABLE t ADD c int")
                with pytest.raises(UnsupportedError, match="may hide rows"):
                    drain(tunnel)
                server.execute(sql.SQL("ALTER ROLE {} BYPASSRLS").format(role))
                assert drain(tunnel) == []
            other.drop_tunnel("changes")
    finally:
        server.execute("DROP TABLE t CASCADE; DROP SCHEMA IF EXISTS headrace CASCADE")
        server.execute(sql.SQL("DROP OWNED BY {role}; DROP ROLE {role}").format(role=role))
