"""PostgreSQL as a target: keys that are equal in their type, unique values that move, constraints, identities."""

from __future__ import annotations

import itertools
from collections.abc import Iterator, Mapping, Sequence
from typing import Any

import psycopg
import pyarrow as pa
import pytest

import headrace
from headrace.errors import RowsNotWrittenError, UnsupportedError
from headrace.model.tables.changes import RowChange
from headrace.ports import Store, Write
from headrace.rows import staged_parts
from headrace.stores.postgres.tables import table as tables
from headrace.stores.postgres.tables.attempts import Care
from headrace.stores.postgres.tables.writing import apply
from tests.conformance import serving
from tests.postgres_server import needs_version

pytestmark = pytest.mark.usefixtures("few_rows")
Rows = Sequence[Mapping[str, Any]]
_jobs = itertools.count()


@pytest.fixture
def store() -> Iterator[Store]:
    with headrace.open(serving.postgres_database()) as opened:
        yield opened


@pytest.fixture
def session(store: Store) -> Iterator[psycopg.Connection]:
    with psycopg.connect(store.url, autocommit=True) as opened:
        yield opened


def publish(store: Store, table: str, put: Rows, deleted: Rows = (), *, change: RowChange = RowChange.PUT) -> None:
    """Publish a batch as a mirror does: puts, and then deletes; each row is staged by itself."""
    publisher = store.publisher(f"job {next(_jobs)}")
    writes = []
    for kind, rows in ((change, put), (RowChange.DELETE, deleted)):
        staged = [
            receipt
            for row in rows
            for receipt in publisher.stage(0, pa.Table.from_pylist([dict(row)]).to_batches(), table=table, change=kind)
        ]
        writes.append(Write(table, kind, tuple(staged)))
    assert publisher.publish(0, writes)


@pytest.mark.parametrize(
    ("kind", "old", "new"),
    [
        ("citext", "abc", "ABC"),
        ("numeric", "1.0", "1.00"),
        ("interval", "1 day", "24:00:00"),
        ("jsonb", "1.0", "1.00"),
        ("double precision", "0", "-0"),
        ("numrange", "[1.0,2)", "[1.00,2)"),
        ("numeric[]", "{1.0}", "{1.00}"),
    ],
)
def test_keys_that_are_equal_in_their_type_are_one_row(
    store: Store, session: psycopg.Connection, kind: str, old: str, new: str
) -> None:
    session.execute("CREATE EXTENSION IF NOT EXISTS citext")
    session.execute(f"CREATE TABLE t (k {kind} PRIMARY KEY, v int)".encode())
    table = store.table("t")
    table.put({"k": old, "v": 1})
    # The source has given the row another form of its key: to the log, that is a delete and an insert.
    publish(store, "t", [{"k": new, "v": 2}], [{"k": old}])
    assert table.scan().read_all().to_pylist() == [{"k": new, "v": 2}]
    assert table.get({"k": new}) == {"k": new, "v": 2}
    # Of two forms of one key, the last counts.
    table.put([{"k": new, "v": 3}, {"k": old, "v": 4}])
    assert table.scan().read_all().to_pylist() == [{"k": old, "v": 4}]
    publish(store, "t", [{"k": old, "v": 5}, {"k": new, "v": 6}])
    publish(store, "t", [{"k": new, "v": 7}, {"k": old, "v": 8}], change=RowChange.REPLACE_ALL)
    assert table.scan().read_all().to_pylist() == [{"k": old, "v": 8}]
    table.update([{"k": old, "v": 9}, {"k": new, "v": 10}])
    assert table.scan().read_all().to_pylist() == [{"k": old, "v": 10}]
    table.delete({"k": new})
    assert table.scan().read_all().num_rows == 0


@pytest.mark.parametrize(
    ("kind", "canonical", "other"),
    [
        ("uuid", "aaaaaaaa-0000-0000-0000-000000000000", "AAAAAAAA-0000-0000-0000-000000000000"),
        ("timetz", "12:00:00+00", "12:00+00"),
        ("char(3)", "a", "a "),
    ],
)
def test_texts_of_one_key_that_the_server_keeps_in_one_form_are_one_row(
    store: Store, session: psycopg.Connection, kind: str, canonical: str, other: str
) -> None:
    session.execute(f"CREATE TABLE t (k {kind} PRIMARY KEY, v int)".encode())
    table = store.table("t")
    table.put([{"k": canonical, "v": 1}, {"k": other, "v": 2}])
    publish(store, "t", [{"k": other, "v": 3}], [{"k": canonical}])
    assert table.scan().read_all().to_pylist() == [{"k": canonical, "v": 3}]


def test_texts_that_a_collation_takes_for_equal_are_one_row(store: Store, session: psycopg.Connection) -> None:
    try:
        session.execute("CREATE COLLATION ci (provider = icu, locale = 'und-u-ks-level2', deterministic = false)")
    except psycopg.errors.FeatureNotSupported:
        pytest.skip("this server has no ICU")
    session.execute("CREATE TABLE t (k text COLLATE ci PRIMARY KEY, v text COLLATE ci)")
    table = store.table("t")
    table.put([{"k": "abc", "v": "x"}, {"k": "ABC", "v": "y"}])
    publish(store, "t", [{"k": "Abc", "v": "z"}], [{"k": "ABC"}])
    assert table.scan().read_all().to_pylist() == [{"k": "Abc", "v": "z"}]
    publish(store, "t", [{"k": "Abc", "v": "Z"}], change=RowChange.REPLACE_ALL)
    assert table.scan().read_all().to_pylist() == [{"k": "Abc", "v": "Z"}]


def test_the_forms_of_a_key_are_one_row_also_in_several_pieces(
    store: Store, session: psycopg.Connection, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(staged_parts, "APPLY_ROWS", 1)
    session.execute("CREATE TABLE t (k numeric PRIMARY KEY, v int)")
    session.execute("INSERT INTO t VALUES (1.0, 1), (2.0, 1), (3.0, 1)")
    publish(
        store, "t", [{"k": "1.00", "v": 2}, {"k": "2.0", "v": 3}, {"k": "2.00", "v": 4}], [{"k": "1.0"}, {"k": "3"}]
    )
    assert session.execute("SELECT k::text, v FROM t ORDER BY k").fetchall() == [("1.00", 2), ("2.00", 4)]


def test_unique_values_move_between_rows_of_a_batch(
    store: Store, session: psycopg.Connection, monkeypatch: pytest.MonkeyPatch
) -> None:
    session.execute("CREATE TABLE t (id int PRIMARY KEY, u text UNIQUE, parent int REFERENCES t)")
    session.execute("INSERT INTO t VALUES (1, 'a', NULL), (2, 'b', 1), (3, 'c', 2)")

    def stored() -> list[Any]:
        return session.execute("SELECT * FROM t ORDER BY id").fetchall()

    # A new row takes the value of a deleted one, and a row refers to the new one.
    publish(store, "t", [{"id": 4, "u": "a", "parent": None}, {"id": 2, "u": "b", "parent": 4}], [{"id": 1}])
    assert stored() == [(2, "b", 4), (3, "c", 2), (4, "a", None)]
    # Two rows swap their values.
    publish(store, "t", [{"id": 2, "u": "c", "parent": 4}, {"id": 3, "u": "b", "parent": 2}])
    assert stored() == [(2, "c", 4), (3, "b", 2), (4, "a", None)]
    store.table("t").put([{"id": 2, "u": "b", "parent": 4}, {"id": 3, "u": "c", "parent": 2}])
    assert stored() == [(2, "b", 4), (3, "c", 2), (4, "a", None)]
    store.table("t").update([{"id": 2, "u": "c"}, {"id": 3, "u": "b"}, {"id": 5, "u": "e"}])
    assert stored() == [(2, "c", 4), (3, "b", 2), (4, "a", None), (5, "e", None)]
    # A new row takes the value of an existing one, which keeps its other cells.
    publish(store, "t", [{"id": 5, "u": "b"}, {"id": 3, "u": "c"}, {"id": 2, "u": "e"}], change=RowChange.UPDATE)
    store.table("t").update([{"id": 2, "u": "b"}, {"id": 3, "u": "c"}, {"id": 6, "u": "e"}, {"id": 5, "u": None}])
    assert stored() == [(2, "b", 4), (3, "c", 2), (4, "a", None), (5, None, None), (6, "e", None)]
    store.table("t").delete([{"id": 5}, {"id": 6}])
    # In several pieces, whose rows refer to later ones.
    monkeypatch.setattr(staged_parts, "APPLY_ROWS", 1)
    rows = [{"id": 3, "u": "q", "parent": 9}, {"id": 9, "u": "a", "parent": None}, {"id": 2, "u": "c", "parent": 9}]
    publish(store, "t", rows, [{"id": 4}])
    assert stored() == [(2, "c", 9), (3, "q", 9), (9, "a", None)]
    publish(store, "t", [{"id": 9, "u": "c", "parent": None}, {"id": 2, "u": "a"}], change=RowChange.REPLACE_ALL)
    assert stored() == [(2, "a", None), (9, "c", None)]


def test_rows_that_a_foreign_key_would_delete_are_not_replaced_and_the_remedy_works(
    store: Store, session: psycopg.Connection
) -> None:
    session.execute("CREATE TABLE t (id int PRIMARY KEY, u text CONSTRAINT once UNIQUE)")
    session.execute("CREATE TABLE child (t int REFERENCES t ON DELETE CASCADE)")
    session.execute("INSERT INTO t VALUES (1, 'a'), (2, 'b'); INSERT INTO child VALUES (1), (2)")
    swapped = [{"id": 1, "u": "b"}, {"id": 2, "u": "a"}]
    with pytest.raises(
        RowsNotWrittenError, match=r"'once'.*\(u\)=\(b\).*DROP CONSTRAINT once, ADD CONSTRAINT"
    ) as caught:
        publish(store, "t", swapped)
    assert session.execute("SELECT count(*) FROM child").fetchone() == (2,)
    remedy = str(caught.value).partition("at the commit: ")[2]
    session.execute(remedy.replace("(…)", "(u)").encode())
    publish(store, "t", swapped)
    assert session.execute("SELECT id, u FROM t ORDER BY id").fetchall() == [(1, "b"), (2, "a")]
    with pytest.raises(RowsNotWrittenError, match="once"):
        store.table("t").put({"id": 3, "u": "a"})


def test_excluded_values_move_between_rows_of_a_batch(store: Store, session: psycopg.Connection) -> None:
    session.execute("CREATE EXTENSION btree_gist")
    session.execute(
        "CREATE TABLE t (id int PRIMARY KEY, room int, at int4range, EXCLUDE USING gist (room WITH =, at WITH &&))"
    )
    session.execute("INSERT INTO t VALUES (1, 1, '[1,5)'), (2, 1, '[5,9)')")
    publish(store, "t", [{"id": 3, "room": 1, "at": "[2,4)"}], [{"id": 1}])
    publish(store, "t", [{"id": 3, "room": 1, "at": "[5,9)"}, {"id": 2, "room": 1, "at": "[2,4)"}])
    assert session.execute("SELECT id, at::text FROM t ORDER BY id").fetchall() == [(2, "[2,4)"), (3, "[5,9)")]
    with pytest.raises(RowsNotWrittenError, match=r"t_room_at_excl.*\(1, \[2,4\)\)"):
        store.table("t").put({"id": 4, "room": 1, "at": "[1,9)"})


def test_a_table_with_a_deferrable_key_is_a_target(store: Store, session: psycopg.Connection) -> None:
    session.execute("CREATE TABLE t (id int PRIMARY KEY DEFERRABLE, v text UNIQUE, n int NOT NULL DEFAULT 7)")
    table = store.table("t")
    table.put([{"id": 1, "v": "a"}, {"id": 2, "v": "b"}])
    publish(store, "t", [{"id": 1, "v": "A", "n": 1}, {"id": 3, "v": "b", "n": 2}], [{"id": 2}])
    table.update([{"id": 1, "v": "u"}, {"id": 5, "v": "y"}])
    publish(store, "t", [{"id": 1, "v": "y", "n": 3}, {"id": 5, "v": "u", "n": 4}])
    assert session.execute("SELECT * FROM t ORDER BY id").fetchall() == [(1, "y", 3), (3, "b", 2), (5, "u", 4)]
    publish(store, "t", [{"id": 3, "v": "b", "n": 2}], change=RowChange.REPLACE_ALL)
    assert table.scan().read_all().to_pylist() == [{"id": 3, "v": "b", "n": 2}]


def test_a_user_who_may_not_delete_swaps_values_of_a_deferrable_constraint(
    store: Store, session: psycopg.Connection, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(staged_parts, "APPLY_ROWS", 1)
    session.execute("CREATE SCHEMA IF NOT EXISTS headrace")
    session.execute("CREATE TABLE t (id int PRIMARY KEY, v text UNIQUE DEFERRABLE)")
    session.execute("INSERT INTO t VALUES (1, 'a'), (2, 'b')")
    name = f"keeper_{session.info.dbname}"[:60]
    session.execute(f'CREATE ROLE "{name}" LOGIN'.encode())
    try:
        session.execute(f'GRANT SELECT, INSERT, UPDATE ON t TO "{name}"'.encode())
        session.execute(f'GRANT USAGE, CREATE ON SCHEMA headrace TO "{name}"'.encode())
        with headrace.open(store.url.replace(f"//{session.info.user}@", f"//{name}@")) as limited:
            publish(limited, "t", [{"id": 1, "v": "b"}, {"id": 2, "v": "a"}])
    finally:
        session.execute(f'DROP OWNED BY "{name}"'.encode())
        session.execute(f'DROP ROLE "{name}"'.encode())
    assert session.execute("SELECT v FROM t ORDER BY id").fetchall() == [("b",), ("a",)]


@needs_version(18)
def test_a_table_with_a_key_without_overlaps_is_a_target(store: Store, session: psycopg.Connection) -> None:
    session.execute("CREATE EXTENSION btree_gist")
    session.execute("CREATE TABLE t (id int, at int4range, v text, PRIMARY KEY (id, at WITHOUT OVERLAPS))")
    session.execute("INSERT INTO t VALUES (1, '[1,9)', 'a')")
    publish(store, "t", [{"id": 1, "at": f"[{at})", "v": at} for at in ("1,5", "5,9")], [{"id": 1, "at": "[1,9)"}])
    table = store.table("t")
    table.put({"id": 1, "at": "[1,5)", "v": "new"})
    # A range that only overlaps with others is another key.
    table.delete({"id": 1, "at": "[1,3)"})
    assert table.get({"id": 1, "at": "[1,3)"}) is None
    assert table.get_many([{"id": 1, "at": "[1,3)"}]).column("v").null_count == 1
    found = session.execute("SELECT at::text, v FROM t ORDER BY at").fetchall()
    assert found == [("[1,5)", "new"), ("[5,9)", "5,9")]
    with pytest.raises(RowsNotWrittenError, match=r"t_pkey.*\(1, \[1,3\)\)"):
        table.put({"id": 1, "at": "[1,3)", "v": "x"})


def test_only_a_violation_that_can_pass_is_attempted_again(
    store: Store, session: psycopg.Connection, monkeypatch: pytest.MonkeyPatch
) -> None:
    session.execute("CREATE TABLE t (id int PRIMARY KEY, u text UNIQUE, n int CHECK (n > 0), p int REFERENCES t)")
    session.execute("INSERT INTO t VALUES (1, 'a', 1, NULL)")
    attempted: list[Care] = []

    def counted(*arguments: Any, care: Care, **options: Any) -> None:
        attempted.append(care)
        apply(*arguments, care=care, **options)

    monkeypatch.setattr(tables, "apply", counted)
    table = store.table("t")
    for rows, constraint, cares in (
        ([{"id": 2, "n": 0}, {"id": 3}], "t_n_check", [Care.ROW_BY_ROW]),
        ([{"id": 2, "u": "a"}], "t_u_key", [Care.ROW_BY_ROW]),
        ([{"id": 2, "p": 7}, {"id": 3}], "t_p_fkey", [Care.ROW_BY_ROW, Care.TOGETHER]),
        ([{"id": 2, "u": "a"}, {"id": 3}], "t_u_key", [Care.ROW_BY_ROW, Care.REPLACED]),
    ):
        attempted.clear()
        with pytest.raises(RowsNotWrittenError, match=constraint):
            table.put(rows)
        assert attempted == cares


def test_rows_that_a_rule_or_trigger_drops_are_an_error(store: Store, session: psycopg.Connection) -> None:
    session.execute("CREATE TABLE t (id int PRIMARY KEY, v int)")
    session.execute("CREATE TABLE late (id int PRIMARY KEY DEFERRABLE, v int NOT NULL)")
    session.execute(
        """
        CREATE FUNCTION drop_one() RETURNS trigger LANGUAGE plpgsql AS
            $$ BEGIN RETURN CASE WHEN coalesce(NEW.id, OLD.id) = 1 THEN NULL ELSE coalesce(NEW, OLD) END; END $$
        """
    )
    dropping = "BEFORE INSERT OR UPDATE OR DELETE ON {} FOR EACH ROW EXECUTE FUNCTION drop_one()"
    for name in ("t", "late"):
        table = store.table(name)
        table.put([{"id": 1, "v": 1}, {"id": 2, "v": 2}])
        session.execute(f"CREATE TRIGGER dropping {dropping.format(name)}".encode())
        works = (
            lambda table=table: table.put([{"id": 1, "v": 5}, {"id": 3, "v": 3}]),
            lambda table=table: table.update([{"id": 3, "v": 3}, {"id": 1, "v": 5}]),
            lambda table=table: table.delete([{"id": 2}, {"id": 1}]),
            lambda name=name: publish(store, name, [{"id": 3, "v": 3}], [{"id": 1}]),
            lambda name=name: publish(store, name, [{"id": 2, "v": 3}], change=RowChange.REPLACE_ALL),
        )
        for work in works:
            with pytest.raises(
                RowsNotWrittenError, match=rf"'{name}' has not taken.*id = 1; trigger dropping.*DISABLE"
            ):
                work()
        assert table.scan().read_all().to_pylist() == [{"id": 1, "v": 1}, {"id": 2, "v": 2}]
        session.execute(f"DROP TRIGGER dropping ON {name}".encode())
        # A delete of a missing row, and an update that changes nothing, are no dropped rows.
        session.execute(
            f"CREATE TRIGGER same BEFORE UPDATE ON {name} FOR EACH ROW EXECUTE FUNCTION"
            " suppress_redundant_updates_trigger()".encode()
        )
        table.put([{"id": 1, "v": 1}, {"id": 2, "v": 3}])
        table.delete([{"id": 2}, {"id": 9}])
        publish(store, name, [{"id": 1, "v": 1}, {"id": 2, "v": 3}], [{"id": 7}])
        for event, work in (("INSERT", lambda table=table: table.put({"id": 4, "v": 4})), ("DELETE", works[2])):
            session.execute(f"CREATE RULE rewritten AS ON {event} TO {name} DO INSTEAD NOTHING".encode())
            with pytest.raises((RowsNotWrittenError, UnsupportedError), match=r"rule.*DROP RULE"):
                work()
            session.execute(f"DROP RULE rewritten ON {name}".encode())
        assert table.scan().read_all().to_pylist() == [{"id": 1, "v": 1}, {"id": 2, "v": 3}]


def test_a_generated_identity_beside_the_key_follows_or_is_an_error(store: Store, session: psycopg.Connection) -> None:
    session.execute("CREATE TABLE t (id int PRIMARY KEY, n int GENERATED ALWAYS AS IDENTITY, v text)")
    table = store.table("t")
    table.put([{"id": 1, "v": "a"}])
    table.put([{"id": 2, "n": 20, "v": "b"}])
    publish(store, "t", [{"id": 1, "n": 10, "v": "c"}, {"id": 2, "n": 20, "v": "d"}])
    assert session.execute("SELECT * FROM t ORDER BY id").fetchall() == [(1, 10, "c"), (2, 20, "d")]
    table.update({"id": 1, "n": 11})
    assert table.get({"id": 1}) == {"id": 1, "n": 11, "v": "c"}
    # A row of which another one depends is not replaced.
    session.execute("CREATE TABLE child (t int REFERENCES t ON DELETE CASCADE)")
    with pytest.raises(RowsNotWrittenError, match=r"'n'.*ALTER COLUMN n SET GENERATED BY DEFAULT"):
        table.update({"id": 1, "n": 12})
    session.execute("ALTER TABLE t ALTER COLUMN n SET GENERATED BY DEFAULT")
    table.update({"id": 1, "n": 12})
    assert table.get({"id": 1}) == {"id": 1, "n": 12, "v": "c"}


def test_a_missing_partition_and_a_foreign_key_are_errors_with_a_remedy(
    store: Store, session: psycopg.Connection
) -> None:
    session.execute("CREATE TABLE p (id int PRIMARY KEY) PARTITION BY RANGE (id)")
    with pytest.raises(
        RowsNotWrittenError, match=r"public\.p has no partition.*\(id\) = \(1\).*PARTITION OF public\.p"
    ):
        store.table("p").put({"id": 1})
    session.execute('CREATE TABLE "Orders" (id int PRIMARY KEY, p int CONSTRAINT "of P" REFERENCES p)')
    with pytest.raises(RowsNotWrittenError, match=r"of P.*\(p\)=\(1\).*DEFERRABLE") as caught:
        store.table("Orders").put({"id": 1, "p": 1})
    session.execute(str(caught.value).partition("at the commit: ")[2].encode())


def test_deferred_triggers_find_names_as_the_user_does(store: Store, session: psycopg.Connection) -> None:
    database = store.url.rpartition("/")[2]
    session.execute(
        f"""
        CREATE SCHEMA app;
        CREATE TABLE app.noted (id int);
        CREATE TABLE t (id int PRIMARY KEY);
        CREATE FUNCTION app.note() RETURNS trigger LANGUAGE plpgsql AS
            $$ BEGIN INSERT INTO noted VALUES (NEW.id); RETURN NULL; END $$;
        CREATE CONSTRAINT TRIGGER late AFTER INSERT ON t DEFERRABLE INITIALLY DEFERRED
            FOR EACH ROW EXECUTE FUNCTION app.note();
        ALTER DATABASE "{database}" SET search_path = app, public
        """.encode()
    )
    with headrace.open(store.url) as opened:
        opened.table("t").put({"id": 1})
        publish(opened, "t", [{"id": 2}])
    assert session.execute("SELECT id FROM app.noted ORDER BY id").fetchall() == [(1,), (2,)]
