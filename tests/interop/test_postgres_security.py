"""Other roles of a database run no code with the rights of headrace's user.

One database has, in a schema before ``pg_catalog`` in the search path, a copy of each function, operator, type and
relation of the catalog, and operators for pairs of types that the catalog has none for. Each fails when it is used.
"""

from __future__ import annotations

from collections.abc import Iterator

import psycopg
import pyarrow as pa
import pytest

import headrace
from headrace.errors import StoreError
from headrace.model.tables.changes import RowChange
from headrace.ports import Store, Write
from headrace.testing.reading import drain
from tests.postgres_server import USER, PostgresServer, create_database, drop_database

Server = psycopg.Connection[tuple[object, ...]]

# A sequence keeps its value when a transaction fails.
_TRAP = """
CREATE SEQUENCE public.trapped;
CREATE FUNCTION public.trap(what pg_catalog.text) RETURNS pg_catalog.bool LANGUAGE plpgsql AS $$
BEGIN
    PERFORM pg_catalog.nextval('public.trapped');
    RAISE EXCEPTION 'trapped: %', what;
END $$;
"""
_FUNCTIONS = """
DO $do$ DECLARE p record; BEGIN
    FOR p IN
        SELECT f.proname, pg_catalog.oidvectortypes(f.proargtypes) AS arguments,
            pg_catalog.format_type(f.prorettype, NULL) AS result, f.proretset
        FROM pg_catalog.pg_proc f
        WHERE f.pronamespace = 'pg_catalog'::pg_catalog.regnamespace AND f.provariadic = 0
            AND NOT EXISTS (
                SELECT FROM pg_catalog.pg_type y WHERE y.typtype = 'p' AND y.oid = ANY(f.proargtypes::pg_catalog.oid[])
            )
    LOOP
        BEGIN
            EXECUTE pg_catalog.format('CREATE FUNCTION public.%I(%s) RETURNS %s %s LANGUAGE plpgsql AS %L',
                p.proname, p.arguments, CASE p.proretset WHEN true THEN 'SETOF' ELSE '' END, p.result,
                pg_catalog.format('BEGIN PERFORM public.trap(%L); RETURN NULL; END', 'function ' || p.proname));
        EXCEPTION WHEN OTHERS THEN NULL;
        END;
    END LOOP;
END $do$
"""
# Functions of the catalog for any type, for the types with which headrace calls them.
_OF_ANY_TYPE = """
DO $do$ DECLARE f text; t text; BEGIN
    FOREACH t IN ARRAY ARRAY['smallint', 'oid', 'text', 'integer', 'bigint', '"char"', 'name', 'public.citext']
    LOOP
        FOREACH f IN ARRAY ARRAY['unnest', 'array_agg', 'array_ndims'] LOOP
            EXECUTE format('CREATE FUNCTION public.%I(%s[]) RETURNS SETOF %s LANGUAGE plpgsql AS %L', f, t, t,
                format('BEGIN PERFORM public.trap(%L); RETURN; END', f));
        END LOOP;
        FOREACH f IN ARRAY ARRAY['format', 'concat_ws'] LOOP
            EXECUTE format('CREATE FUNCTION public.%I(text, %s) RETURNS text LANGUAGE plpgsql AS %L', f, t,
                format('BEGIN PERFORM public.trap(%L); RETURN ''''; END', f));
        END LOOP;
        FOREACH f IN ARRAY ARRAY['num_nulls', 'to_jsonb', 'count'] LOOP
            EXECUTE format('CREATE FUNCTION public.%I(%s) RETURNS integer LANGUAGE plpgsql AS %L', f, t,
                format('BEGIN PERFORM public.trap(%L); RETURN 0; END', f));
        END LOOP;
    END LOOP;
END $do$
"""
_OPERATORS = """
DO $do$ DECLARE o record; n int := 0; BEGIN
    FOR o IN
        SELECT oprname, format_type(NULLIF(oprleft, 0), NULL) AS l, format_type(oprright, NULL) AS r
        FROM pg_operator WHERE oprnamespace = 'pg_catalog'::regnamespace AND oprright <> 0
        UNION
        SELECT name, l, r FROM unnest(ARRAY['=', '<>', '<', '>', '<=', '>=', '||', '-', '+', '->', '->>', '~~']) name,
            unnest(ARRAY['oid', 'smallint', 'integer', 'bigint', 'text', 'varchar', 'name', '"char"', 'bpchar', 'uuid',
                'regproc', 'regclass', 'bytea', 'public.citext', 'public.mood', 'public.whole', 'numeric']) l,
            unnest(ARRAY['oid', 'smallint', 'integer', 'bigint', 'text', 'varchar', 'name', '"char"', 'bpchar', 'uuid',
                'regproc', 'regclass', 'bytea', 'public.citext', 'public.mood', 'public.whole', 'numeric']) r
    LOOP
        n := n + 1;
        BEGIN
            EXECUTE format('CREATE FUNCTION public.operator_%s(%s) RETURNS bool LANGUAGE plpgsql AS %L', n,
                concat_ws(', ', o.l, o.r),
                format('BEGIN RETURN public.trap(%L); END', format('operator %s (%s, %s)', o.oprname, o.l, o.r)));
            EXECUTE format('CREATE OPERATOR public.%s (%s RIGHTARG = %s, FUNCTION = public.operator_%s)', o.oprname,
                CASE WHEN o.l IS NULL THEN '' ELSE format('LEFTARG = %s,', o.l) END, o.r, n);
        EXCEPTION WHEN OTHERS THEN NULL;
        END;
    END LOOP;
END $do$
"""
_RELATIONS = """
DO $do$ DECLARE c text; BEGIN
    FOR c IN SELECT relname FROM pg_class WHERE relnamespace = 'pg_catalog'::regnamespace AND relkind IN ('r', 'v') LOOP
        EXECUTE format('CREATE VIEW public.%I AS SELECT public.trap(%L)', c, c);
    END LOOP;
    FOREACH c IN ARRAY ARRAY['text', 'oid', 'int2', 'int4', 'int8', 'bytea', 'uuid', 'pg_lsn', 'regclass', 'date',
        'regnamespace', 'regcollation', 'regtype', 'bool', 'timestamptz', 'numeric', 'name'] LOOP
        EXECUTE format('CREATE DOMAIN public.%I AS pg_catalog.%I CHECK (public.trap(%L))', c, c, c);
    END LOOP;
END $do$
"""
_DATABASE = "shadows"
_COLUMNS = {
    "id": "string",
    "n": "long",
    "d": "double",
    "b": "byte",
    "t": "timestamp",
    "day": "date",
    "x": "binary",
    "price": "decimal(10,2)",
    "tags": "array<string>",
}


@pytest.fixture(scope="module")
def cluster() -> Iterator[PostgresServer]:
    server = PostgresServer.start()
    try:
        create_database(server.port, _DATABASE)
        with connected(server, _DATABASE) as root:
            # The base types and the domain of the user, and a type whose owner defines its cast to text.
            root.execute(
                "CREATE EXTENSION citext; CREATE TYPE mood AS ENUM ('good'); CREATE DOMAIN whole AS varchar(9)"
            )
            root.execute(_TRAP)
            root.execute(
                "CREATE FUNCTION public.shown(mood) RETURNS text LANGUAGE plpgsql AS"
                " $$BEGIN PERFORM public.trap('cast'); RETURN ''; END$$;"
                "CREATE CAST (mood AS text) WITH FUNCTION public.shown(mood)"
            )
            root.execute(
                "CREATE TABLE kinds (a citext, w whole, m mood, ms mood[], v varchar(5), f real, PRIMARY KEY (a, w));"
                "INSERT INTO kinds VALUES ('A', 'w', 'good', '{good}', 'v', 1);"
                "CREATE TABLE keyed (id smallint PRIMARY KEY, v uuid) PARTITION BY RANGE (id);"
                "CREATE TABLE keyed_1 PARTITION OF keyed DEFAULT; INSERT INTO keyed VALUES (1)"
            )
            root.execute("SET search_path = pg_catalog")
            for statement in (_FUNCTIONS, _OF_ANY_TYPE, _OPERATORS, _RELATIONS):
                root.execute(statement.encode())
            root.execute(f"ALTER ROLE {USER} IN DATABASE {_DATABASE} SET search_path = public, pg_catalog")
        yield server
    finally:
        server.remove()


def connected(server: PostgresServer, database: str, user: str = USER) -> Server:
    return psycopg.connect(host="127.0.0.1", port=server.port, user=user, dbname=database, autocommit=True)


def opened(server: PostgresServer, database: str, user: str = USER) -> Store:
    return headrace.open(f"postgresql://{user}@127.0.0.1:{server.port}/{database}", retry_seconds=2)


@pytest.fixture
def shadowed(cluster: PostgresServer) -> Iterator[Store]:
    """A store whose statements must name nothing that the schema ``public`` has, too."""
    with opened(cluster, _DATABASE) as store:
        yield store
    with connected(cluster, _DATABASE) as root:
        root.execute("SET search_path = pg_catalog")
        assert root.execute("SELECT is_called FROM public.trapped").fetchone() == (False,)


def test_a_session_without_headrace_falls_into_the_traps(cluster: PostgresServer) -> None:
    with connected(cluster, _DATABASE) as root:
        for statement in (
            "SELECT * FROM pg_class",
            "SELECT 'x'::text",
            "SELECT now()",
            "SELECT 1::pg_catalog.int4 = 1::pg_catalog.int2",
        ):
            with pytest.raises(psycopg.errors.RaiseException, match="trapped"):
                root.execute(statement.encode())
        root.execute("SELECT pg_catalog.setval('public.trapped', 1, false)")


def test_names_of_other_schemas_are_not_called_by_tables_and_writes(shadowed: Store) -> None:
    for name in ("made", "target"):
        shadowed.drop_table(name, missing_ok=True)
    made = shadowed.create_table("made", _COLUMNS, "id", pre_images=True)
    rows = [dict.fromkeys(_COLUMNS) | {"id": f"k{number}", "n": number} for number in range(20)]
    rows[0] |= {"d": 1.5, "b": 1, "x": b"x", "tags": ["a", None]}
    made.put(rows)
    made.update([{"id": "k1", "price": 1}])
    made.delete([{"id": "k2"}])
    # The rest are views with the names of the catalog.
    assert [name for name in shadowed.tables() if not name.startswith("pg_")] == ["keyed", "keyed_1", "kinds", "made"]
    made.add_columns({"more": "long"})
    assert made.scan(where=[("n", ">", 3), ("id", "in", ["k4", "k5"])]).read_all().num_rows == 2
    assert made.get_many([{"id": "k0"}]).num_rows == 1
    assert len(made.splits(4)) == 4
    kinds = shadowed.table("kinds")
    kinds.delete([{"a": "one", "w": "w"}])
    kinds.put([{"a": "a", "w": "w", "m": "good", "ms": ["good"], "v": "12345", "f": -0.0}])
    assert kinds.scan().read_all().to_pylist() == [
        {"a": "a", "w": "w", "m": "good", "ms": ["good"], "v": "12345", "f": -0.0}
    ]
    assert kinds.scan(where=[("m", "=", "good"), ("a", "=", "a"), ("v", "starts with", "1")]).read_all().num_rows == 1
    kinds.delete([{"a": "a", "w": "w"}])
    assert kinds.scan().read_all().num_rows == 0
    shadowed.drop_table("made")


def test_names_of_other_schemas_are_not_called_by_tunnels_sinks_files_and_doctor(shadowed: Store) -> None:
    shadowed.create_table("target", _COLUMNS, "id", exist_ok=True)
    for number, change in enumerate((RowChange.PUT, RowChange.REPLACE_ALL, RowChange.DELETE)):
        publisher = shadowed.publisher("job")
        columns = ["id"] if change is RowChange.DELETE else list(_COLUMNS)
        rows = pa.table({name: ["a"] if name == "id" else [None] for name in columns}).to_batches()
        staged = publisher.stage(number, rows)
        assert publisher.publish(number, [Write("target", change, tuple(staged))])
        assert publisher.published(number)
    shadowed.table("kinds").put([{"a": "one", "w": "w", "m": "good", "ms": None, "v": None, "f": None}])
    one = shadowed.create_tunnel("kinds", "one")
    several = shadowed.create_tunnel_of_tables("public.k*", "several")
    shadowed.table("keyed").put([{"id": 2, "v": None}])
    for tunnel in (one, several):
        assert drain(tunnel)
        tunnel.describe()
        client = tunnel.connect(tag="c")
        client.heartbeat([])
        client.close()
    assert {each.name for each in shadowed.tunnels()} == {"one", "several"}
    assert not [finding for finding in shadowed.diagnose("kinds") if "trapped" in str(finding)]
    for tunnel in (one, several):
        shadowed.drop_tunnel(tunnel.id)
    files = shadowed.files()
    files.write("/a/b", b"x" * 10)
    assert [each.path for each in files.list("/a")] == ["/a/b"]
    files.remove("/a", recursive=True)


@pytest.fixture
def guest(cluster: PostgresServer, request: pytest.FixtureRequest) -> Iterator[Server]:
    """The connection of a role that may create schemas in a new database of its own name."""
    create_database(cluster.port, "guested")
    with connected(cluster, "guested") as root:
        root.execute("CREATE ROLE guest LOGIN")
        root.execute("GRANT CREATE ON DATABASE guested TO guest; CREATE TABLE public.t (id bigint PRIMARY KEY)")
        with connected(cluster, "guested", "guest") as connection:
            yield connection
    drop_database(cluster.port, "guested")
    with connected(cluster, "postgres") as root:
        root.execute("DROP ROLE guest")


_ESCALATION = """
CREATE FUNCTION headrace.escalate() RETURNS trigger LANGUAGE plpgsql AS
$$BEGIN EXECUTE 'ALTER ROLE guest SUPERUSER'; RETURN NEW; END$$
"""


def uses(store: Store) -> Iterator[object]:
    """Yield calls that need headrace's own objects."""
    yield store.tunnels
    yield lambda: store.create_tunnel("t", "t")
    yield lambda: store.publisher("job").published(1)
    yield lambda: store.files().status("/a")
    yield lambda: store.create_table("bytes", {"id": "long", "b": "byte"}, "id")


@pytest.mark.parametrize(
    "made",
    [
        "CREATE TABLE headrace.tunnel (id text PRIMARY KEY); CREATE TRIGGER escalate BEFORE INSERT ON headrace.tunnel"
        " FOR EACH ROW EXECUTE FUNCTION headrace.escalate()",
        "CREATE TABLE headrace.marker (job text, sink text, batch bigint, content text, published timestamptz);"
        "CREATE TRIGGER escalate BEFORE INSERT ON headrace.marker FOR EACH ROW EXECUTE FUNCTION headrace.escalate()",
        "CREATE DOMAIN headrace.byte AS smallint",
        "",
    ],
)
def test_a_schema_that_another_role_has_made_is_refused(cluster: PostgresServer, guest: Server, made: str) -> None:
    guest.execute("CREATE SCHEMA headrace")
    guest.execute(_ESCALATION)
    guest.execute(made.encode())
    with opened(cluster, "guested") as store:
        for use in uses(store):
            with pytest.raises(StoreError, match=r"schema 'headrace'.*belongs to another role.*owner guest"):
                use()  # type: ignore[operator]
        assert any("belongs to another role" in str(finding) for finding in store.diagnose())
    superuser = guest.execute("SELECT rolsuper FROM pg_roles WHERE rolname = 'guest'").fetchone()
    assert superuser == (False,)


def test_tables_and_triggers_of_others_in_headraces_own_schema_are_refused(
    cluster: PostgresServer, guest: Server
) -> None:
    with opened(cluster, "guested") as store, connected(cluster, "guested") as root:
        assert not store.publisher("job").published(1)
        root.execute("GRANT USAGE, CREATE ON SCHEMA headrace TO guest; GRANT TRIGGER ON headrace.marker TO guest")
        guest.execute(_ESCALATION)
        guest.execute("CREATE TABLE headrace.tunnel (id text PRIMARY KEY)")
        with pytest.raises(StoreError, match=r"table 'tunnel' in schema 'headrace'.*belongs to another role"):
            store.tunnels()
        guest.execute(
            "CREATE TRIGGER escalate BEFORE INSERT ON headrace.marker FOR EACH ROW EXECUTE FUNCTION headrace.escalate()"
        )
    changed = r"table 'marker'.*is not as headrace has created it.*has a trigger"
    with opened(cluster, "guested") as store, pytest.raises(StoreError, match=changed):
        store.publisher("job").published(1)
    superuser = guest.execute("SELECT rolsuper FROM pg_roles WHERE rolname = 'guest'").fetchone()
    assert superuser == (False,)


def test_triggers_of_a_table_find_what_their_functions_name_without_a_schema(
    cluster: PostgresServer, guest: Server
) -> None:
    with connected(cluster, "guested") as root:
        root.execute("CREATE TABLE public.audit (id bigint)")
        root.execute(
            "CREATE FUNCTION public.note() RETURNS trigger LANGUAGE plpgsql AS"
            " $$BEGIN INSERT INTO audit VALUES (NEW.id); RETURN NEW; END$$;"
            "CREATE TRIGGER note AFTER INSERT ON public.t FOR EACH ROW EXECUTE FUNCTION public.note()"
        )
        with opened(cluster, "guested") as store:
            store.table("t").put([{"id": 7}])
            publisher = store.publisher("job")
            staged = publisher.stage(1, pa.table({"id": [8]}).to_batches())
            publisher.publish(1, [Write("t", RowChange.PUT, tuple(staged))])
        assert root.execute("SELECT id FROM public.audit ORDER BY id").fetchall() == [(7,), (8,)]
