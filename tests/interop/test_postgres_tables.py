"""Tables of PostgreSQL that others define and change: triggers, constraints, identities, new columns."""

from __future__ import annotations

from collections.abc import Iterator
from concurrent.futures import ThreadPoolExecutor

import psycopg
import pyarrow as pa
import pytest
from psycopg import sql

import headrace
from headrace.errors import AlreadyExistsError, NotFoundError, RowsNotWrittenError, SchemaError
from headrace.model.tables.conditions import KeyRange, Predicate
from headrace.ports import Store
from headrace.stores.postgres.tables.conditions import where
from headrace.stores.postgres.tables.table import PostgresTable
from headrace.testing.queue_reading import wait_until
from tests.conformance import serving


@pytest.fixture
def store() -> Iterator[Store]:
    with headrace.open(serving.postgres_database()) as opened:
        yield opened


@pytest.fixture
def session(store: Store) -> Iterator[psycopg.Connection]:
    with psycopg.connect(store.url, autocommit=True) as opened:
        yield opened


def test_two_sessions_that_create_one_table_get_a_table_and_an_error(store: Store, session: psycopg.Connection) -> None:
    with ThreadPoolExecutor() as threads:
        with session.transaction():
            session.execute("CREATE TABLE t (id bigint PRIMARY KEY)")
            other = threads.submit(store.create_table, "t", {"id": "long"}, "id")
            wait_until(lambda: session.execute("SELECT FROM pg_locks WHERE NOT granted").rowcount == 1)
        with pytest.raises(AlreadyExistsError, match="'t'"):
            other.result(30)
    assert store.create_table("t", {"id": "long"}, "id", exist_ok=True).schema.names == ("id",)


def test_changes_of_a_table_by_others_are_noticed(store: Store, session: psycopg.Connection) -> None:
    session.execute("CREATE TABLE t (id int PRIMARY KEY, n int)")
    table = store.table("t")
    table.put({"id": 1, "n": 1})
    session.execute("ALTER TABLE t ADD COLUMN made text DEFAULT 'old'")
    assert table.get({"id": 1}) == {"id": 1, "n": 1, "made": "old"}
    table.put({"id": 1, "n": 2})
    assert table.get({"id": 1}) == {"id": 1, "n": 2, "made": None}
    session.execute("ALTER TABLE t ALTER n TYPE bigint")
    table.put({"id": 1, "n": 2**40})
    assert table.get({"id": 1}, ["n"]) == {"n": 2**40}
    session.execute("ALTER TABLE t RENAME n TO number")
    assert table.schema.names == ("id", "number", "made")
    session.execute("ALTER TABLE t ALTER number SET NOT NULL")
    with pytest.raises(SchemaError, match="number"):
        table.put({"id": 1})
    session.execute("ALTER TABLE t DROP COLUMN made")
    with pytest.raises(SchemaError, match="made"):
        table.scan(["made"])
    session.execute("ALTER TABLE t DROP CONSTRAINT t_pkey")
    assert table.scan().read_all().to_pylist() == [{"id": 1, "number": 2**40}]
    with pytest.raises(SchemaError, match=r"no primary key.*ADD PRIMARY KEY"):
        table.put({"id": 1, "number": 1})
    session.execute("ALTER TABLE t ADD PRIMARY KEY (number)")
    assert table.get({"number": 2**40}) == {"id": 1, "number": 2**40}
    session.execute("DROP TABLE t")
    with pytest.raises(NotFoundError):
        table.scan()
    session.execute("CREATE TABLE t (id text PRIMARY KEY)")
    table.put({"id": "new"})
    assert table.scan().read_all().to_pylist() == [{"id": "new"}]


def test_the_replica_identity_is_the_option_pre_images(store: Store, session: psycopg.Connection) -> None:
    def identity() -> str:
        row = session.execute("SELECT relreplident FROM pg_class WHERE relname = 't'").fetchone()
        assert row is not None
        return str(row[0])

    table = store.create_table("t", {"id": "long", "n": "long"}, "id", pre_images=True)
    assert (identity(), table.describe().options.pre_images) == ("f", True)
    assert table.set_options(pre_images=False).pre_images is False
    assert identity() == "d"
    session.execute("ALTER TABLE t REPLICA IDENTITY FULL")
    assert table.describe().options.pre_images is True


def test_columns_are_added_to_a_table_with_rows(store: Store, session: psycopg.Connection) -> None:
    session.execute('CREATE TABLE t (id uuid PRIMARY KEY, "Name" varchar(5))')
    session.execute("INSERT INTO t VALUES ('11111111-2222-3333-4444-555555555555', 'a')")
    table = store.table("t")
    table.add_columns({"small": "byte", "Price €": "decimal(10,2)", "tags": "array<string>"})
    (row,) = table.scan().read_all().to_pylist()
    assert row == {"id": row["id"], "Name": "a", "small": None, "Price €": None, "tags": None}
    table.update({"id": row["id"], "tags": ["x"], "small": -128})
    assert table.get({"id": row["id"]}, ["Name", "small", "tags"]) == {"Name": "a", "small": -128, "tags": ["x"]}


def test_triggers_are_in_effect(store: Store, session: psycopg.Connection) -> None:
    session.execute("CREATE TABLE t (id int PRIMARY KEY, name text, writes int NOT NULL DEFAULT 0)")
    session.execute("CREATE TABLE audit (n serial PRIMARY KEY, operation text, id int)")
    session.execute(
        """
        CREATE FUNCTION count_writes() RETURNS trigger LANGUAGE plpgsql AS $$ BEGIN
            NEW.name := upper(NEW.name); NEW.writes := COALESCE(OLD.writes, 0) + 1; RETURN NEW;
        END $$;
        CREATE FUNCTION note() RETURNS trigger LANGUAGE plpgsql AS $$ BEGIN
            INSERT INTO audit (operation, id) VALUES (TG_OP, COALESCE(NEW.id, OLD.id)); RETURN NULL;
        END $$;
        CREATE TRIGGER counted BEFORE UPDATE ON t FOR EACH ROW EXECUTE FUNCTION count_writes();
        CREATE TRIGGER noted AFTER INSERT OR UPDATE OR DELETE ON t FOR EACH ROW EXECUTE FUNCTION note();
        """
    )
    table = store.table("t")
    table.put({"id": 1, "name": "a"})
    table.put([{"id": 1, "name": "b"}, {"id": 2, "name": "c"}])
    table.update({"id": 1, "name": "d"})
    table.delete([{"id": 2}, {"id": 3}])
    assert table.scan().read_all().to_pylist() == [{"id": 1, "name": "D", "writes": 2}]
    notes = session.execute("SELECT operation, id FROM audit ORDER BY n").fetchall()
    assert notes == [("INSERT", 1), ("UPDATE", 1), ("INSERT", 2), ("UPDATE", 1), ("DELETE", 2)]


def test_a_violated_foreign_key_is_named_with_its_row(store: Store, session: psycopg.Connection) -> None:
    session.execute("CREATE TABLE customers (id int PRIMARY KEY)")
    session.execute(
        "CREATE TABLE orders (id int PRIMARY KEY, customer int CONSTRAINT of_a_customer REFERENCES customers)"
    )
    customers, orders = store.table("customers"), store.table("orders")
    customers.put({"id": 1})
    orders.put({"id": 1, "customer": 1})
    with pytest.raises(RowsNotWrittenError, match=r"of_a_customer.*\(customer\)=\(9\)"):
        orders.put([{"id": 2, "customer": 1}, {"id": 3, "customer": 9}])
    with pytest.raises(RowsNotWrittenError, match=r"of_a_customer.*\(id\)=\(1\)"):
        customers.delete({"id": 1})
    assert orders.scan(["id"]).read_all().to_pylist() == [{"id": 1}]


def test_identities_and_defaults_in_the_key(store: Store, session: psycopg.Connection) -> None:
    session.execute("CREATE TABLE t (id int GENERATED ALWAYS AS IDENTITY PRIMARY KEY, n int)")
    table = store.table("t")
    # A write names its rows by their keys, so it sets them.
    table.put({"id": 7, "n": 1})
    table.update({"id": 7, "n": 2})
    assert table.scan().read_all().to_pylist() == [{"id": 7, "n": 2}]
    with pytest.raises(SchemaError, match="id"):
        table.put({"n": 1})


@pytest.mark.parametrize(
    ("kind", "made"),
    [
        ("uuid", "md5(n::text)::uuid"),
        ('text COLLATE "C.utf8"', "CASE WHEN n % 2 = 0 THEN 'k' ELSE 'K' END || n"),
        ('varchar(9) COLLATE "POSIX"', "CASE WHEN n % 2 = 0 THEN 'k' ELSE 'K' END || n"),
        ("numeric(20,0)", "n"),
        ("int", "n"),
        ("bigint", "n"),
        ("bytea", "int4send(n)"),
    ],
)
def test_lookups_and_ranges_of_users_keys_use_their_index(
    store: Store, session: psycopg.Connection, kind: str, made: str
) -> None:
    session.execute(f"CREATE TABLE t (id {kind} PRIMARY KEY, n int)")
    session.execute(f"INSERT INTO t SELECT {made}, n FROM generate_series(1, 20000) n")
    session.execute("ANALYZE t")
    table = store.table("t")
    assert isinstance(table, PostgresTable)
    layout, ranges = table.layout(), table.splits(100)
    rows = table.scan().read_all()
    keys = rows.column("id").to_pylist()
    assert keys == sorted(keys)
    assert [key for part in ranges for key in table.scan(["id"], keys=part).read_all()["id"].to_pylist()] == keys
    assert max(table.scan([], keys=part).read_all().num_rows for part in ranges) <= 200
    assert table.get({"id": keys[7]}, ["n"]) == {"n": rows["n"][7].as_py()}

    def plan(keys: KeyRange, predicates: list[Predicate]) -> str:
        statement = sql.SQL("EXPLAIN SELECT n FROM t WHERE {}").format(where(layout, keys, predicates))
        return str(session.execute(statement).fetchall())

    assert "Index" in plan(KeyRange(), [Predicate("id", "=", keys[7])])
    if "utf8" not in kind and "numeric" not in kind:
        # The order of texts is that of their bytes, which an index of another collation or type does not have.
        assert "Index" in plan(ranges[3], [])


def test_beginnings_of_keys_are_looked_up_by_the_index_of_a_table_without_statistics(
    store: Store, session: psycopg.Connection
) -> None:
    table = store.create_table("parts", {"part": "long", "id": "long"}, ["part", "id"])
    session.execute("ALTER TABLE parts SET (autovacuum_enabled = off)")
    session.execute("INSERT INTO parts SELECT i % 10000, i FROM generate_series(0, 99999) i")
    found = table.get_by_prefix(pa.table({"part": pa.array(range(100), pa.int64())}))
    assert found.num_rows == 1_000
    store.close()
    read = "SELECT idx_tup_read, seq_tup_read FROM pg_stat_user_indexes JOIN pg_stat_user_tables USING (relid)"
    read += " WHERE pg_stat_user_tables.relname = 'parts'"
    # A session writes its statistics at its end.
    wait_until(lambda: (row := session.execute(read).fetchone()) is not None and row[0] > 0)
    assert session.execute(read).fetchone() == (1_000, 0)
