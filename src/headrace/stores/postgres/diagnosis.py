"""Checks of a PostgreSQL server and of the rights of a user, for `headrace doctor`.

The statements of a finding grant what is missing and no more: a superuser who runs them gives the user no other right.
"""

from __future__ import annotations

import re
from collections.abc import Callable, Iterator, Sequence
from typing import NamedTuple

from psycopg import sql
from psycopg.rows import class_row

from headrace.errors import HeadraceError
from headrace.model.findings import Finding, Status
from headrace.ports import Tunnel
from headrace.stores.postgres.schemas import TableLayout
from headrace.stores.postgres.tables import stored_tables
from headrace.stores.postgres.tunnels import followable, publications, slots, tunnel_options
from headrace.stores.postgres.tunnels.meta_tables import PostgresStatements, TunnelDatabase
from headrace.stores.postgres.tunnels.publications import PublishedTable

OLDEST, NEWEST = 14, 18
_SCARCE_TEMPORARY_BYTES = 1 << 30
_OWN_PUBLICATION = re.compile(r"headrace_[0-9a-f]{32}")
_FACTS = """
SELECT current_setting('server_version') AS version, current_setting('server_version_num')::int / 10000 AS major,
    current_setting('wal_level') AS wal_level, pg_is_in_recovery() AS standby,
    (SELECT count(*) FROM pg_replication_slots) AS slots, current_setting('max_replication_slots')::int AS max_slots,
    current_setting('max_wal_senders')::int AS senders,
    (SELECT setting::bigint << 20 FROM pg_settings WHERE name = 'max_slot_wal_keep_size') AS kept,
    (SELECT setting::bigint << 10 FROM pg_settings WHERE name = 'temp_file_limit') AS temporary_bytes,
    coalesce((SELECT setting::bigint FROM pg_settings WHERE name = 'idle_replication_slot_timeout'), 0) AS slot_timeout,
    current_user::text AS role, current_database()::text AS database,
    r.rolsuper OR r.rolreplication OR coalesce(
        (SELECT pg_has_role(m.oid, 'USAGE') FROM pg_roles m WHERE m.rolname = 'rds_replication'), false
    ) AS replication,
    EXISTS (SELECT FROM pg_roles WHERE rolname = 'rds_replication') AS on_rds,
    has_database_privilege(current_database(), 'CREATE') AS can_create,
    has_database_privilege(current_database(), 'TEMPORARY') AS can_stage,
    n.oid IS NOT NULL AS has_schema,
    coalesce(has_schema_privilege(n.oid, 'USAGE') AND has_schema_privilege(n.oid, 'CREATE'), false) AS can_use_schema,
    coalesce((
        SELECT bool_and(
            has_table_privilege(c.oid, 'SELECT') AND has_table_privilege(c.oid, 'INSERT')
            AND has_table_privilege(c.oid, 'UPDATE') AND has_table_privilege(c.oid, 'DELETE')
        )
        FROM pg_class c WHERE c.relnamespace = n.oid AND c.relkind = 'r'
    ), true) AS can_use_tables
FROM pg_roles r LEFT JOIN pg_namespace n ON n.nspname = %s
WHERE r.rolname = current_user
"""
_RIGHTS = """
SELECT has_schema_privilege(c.relnamespace, 'USAGE') AS usage, has_table_privilege(c.oid, 'SELECT') AS readable,
    pg_has_role(c.relowner, 'USAGE') AS owned,
    ARRAY(
        SELECT DISTINCT t.pubname::text FROM pg_publication_tables t JOIN pg_namespace n ON n.nspname = t.schemaname
        WHERE n.oid = c.relnamespace AND t.tablename = c.relname
    ) AS published_by
FROM pg_class c WHERE c.oid = %s
"""


class _Facts(NamedTuple):
    """The server, the user and the database; sizes in bytes, -1 for no limit; ``slot_timeout`` in seconds."""

    version: str
    major: int
    wal_level: str
    standby: bool
    slots: int
    max_slots: int
    senders: int
    kept: int
    temporary_bytes: int
    slot_timeout: int
    role: str
    database: str
    replication: bool
    on_rds: bool
    can_create: bool
    can_stage: bool
    has_schema: bool
    can_use_schema: bool
    can_use_tables: bool


class _Rights(NamedTuple):
    """The rights of the user on a table, and the publications that have it."""

    usage: bool
    readable: bool
    owned: bool
    published_by: list[str]


def diagnose(database: TunnelDatabase, tunnels: Callable[[], Sequence[Tunnel]], table: str | None) -> list[Finding]:
    """Return the findings about the server and the user's rights: for tunnels, and for writes by streams.

    Args:
        tunnels: returns the tunnels of the database.
        table: the name of a table that should be followed.
    """
    try:
        facts = database.run(lambda statements: _facts(statements, database.schema))
        findings = [*_server(facts), *_user(facts, database.schema)]
        if table is None:
            findings.append(_publications(facts))
        else:
            findings += _table(database, facts, table)
        if facts.has_schema and facts.can_use_schema and facts.can_use_tables:
            findings += _tunnels(tunnels())
    except HeadraceError as error:
        return [Finding("PostgreSQL", Status.FAIL, error.problem, error.remedy or str(error))]
    return findings


def _facts(statements: PostgresStatements, schema: str) -> _Facts:
    with statements.connection.cursor(row_factory=class_row(_Facts)) as cursor:
        row = cursor.execute(_FACTS, (schema,)).fetchone()
    assert row is not None
    return row


# -- the server -----------------------------------------------------------------------------------------


def _server(facts: _Facts) -> Iterator[Finding]:
    name = "PostgreSQL: version"
    if facts.major < OLDEST:
        yield Finding(name, Status.FAIL, facts.version, f"upgrade the server to PostgreSQL {OLDEST} or later")
    elif facts.major > NEWEST:
        yield Finding(name, Status.WARN, facts.version, f"headrace is tested with PostgreSQL {OLDEST} to {NEWEST}")
    else:
        yield Finding(name, Status.OK, facts.version)
    if facts.standby:
        yield Finding("PostgreSQL: standby", Status.FAIL, "the server is read-only", "connect to the primary server")
    yield _checked(
        "wal_level",
        "" if facts.wal_level == "logical" else f"{facts.wal_level}: the server has no logical replication slots",
        facts.wal_level,
        "set it, and restart the server" + ("; on Amazon RDS, set rds.logical_replication = 1" if facts.on_rds else ""),
        "ALTER SYSTEM SET wal_level = 'logical';",
    )
    in_use = f"{facts.slots} of {facts.max_slots} in use"
    yield _checked(
        "replication slots",
        "" if facts.slots < facts.max_slots else in_use,
        in_use,
        "drop a slot that is no longer needed; or set it, and restart the server",
        f"ALTER SYSTEM SET max_replication_slots = {facts.max_slots + 10};",
    )
    yield Finding("PostgreSQL: WAL senders", Status.OK, f"{facts.senders}; headrace reads slots by SQL and needs none")
    yield _kept_log(facts)
    if facts.slot_timeout > 0:
        yield Finding(
            "PostgreSQL: idle slots",
            Status.WARN,
            f"idle_replication_slot_timeout = {facts.slot_timeout} s",
            "a query that is stopped for longer loses its tunnel",
        )
    if 0 <= facts.temporary_bytes < _SCARCE_TEMPORARY_BYTES:
        yield Finding(
            "PostgreSQL: temporary files",
            Status.WARN,
            f"temp_file_limit = {tunnel_options.megabytes(facts.temporary_bytes)}",
            "a read of a slot keeps its result in temporary files: allow a few GB",
        )


def _kept_log(facts: _Facts) -> Finding:
    name = "PostgreSQL: kept log"
    if facts.kept < 0:
        return Finding(
            name,
            Status.WARN,
            "max_slot_wal_keep_size = -1: a tunnel without a reader fills the disk of the server",
            "ALTER SYSTEM SET max_slot_wal_keep_size = '…GB', as much as the disk allows; SELECT pg_reload_conf()",
        )
    return Finding(name, Status.OK, f"up to {tunnel_options.megabytes(facts.kept)} for a tunnel without a reader")


# -- the user -------------------------------------------------------------------------------------------


def _user(facts: _Facts, schema: str) -> Iterator[Finding]:
    role = _quoted(facts.role)
    yield _checked(
        "attribute REPLICATION",
        "" if facts.replication else f"user {facts.role} may not use replication slots",
        f"user {facts.role} may use replication slots",
        "a superuser runs the statement",
        f"GRANT rds_replication TO {role};" if facts.on_rds else f"ALTER ROLE {role} REPLICATION;",
    )
    yield _own_schema(facts, schema)
    yield _checked(
        "temporary tables",
        "" if facts.can_stage else f"user {facts.role} may not create them; writes need them",
        "allowed, as writes need them",
        "the owner of the database runs the statement",
        f"GRANT TEMPORARY ON DATABASE {_quoted(facts.database)} TO {role};",
    )


def _own_schema(facts: _Facts, schema: str) -> Finding:
    name, role, quoted = f"schema {schema}", _quoted(facts.role), _quoted(schema)
    if not facts.has_schema:
        return _checked(
            name,
            "" if facts.can_create else f"it does not exist, and user {facts.role} may not create it",
            "headrace creates it when it needs it",
            "a superuser runs the statement, or give option schema the name of another schema",
            f"CREATE SCHEMA {quoted} AUTHORIZATION {role};",
        )
    statements = []
    if not facts.can_use_schema:
        statements.append(f"GRANT USAGE, CREATE ON SCHEMA {quoted} TO {role};")
    if not facts.can_use_tables:
        statements.append(f"GRANT SELECT, INSERT, UPDATE, DELETE ON ALL TABLES IN SCHEMA {quoted} TO {role};")
    return _checked(
        name,
        f"user {facts.role} may not use headrace's own tables" if statements else "",
        "headrace may use it",
        "the owner of the schema runs the statement",
        *statements,
    )


def _publications(facts: _Facts) -> Finding:
    return _checked(
        "publications",
        "" if facts.can_create else f"user {facts.role} may not create them",
        f"user {facts.role} may publish its own tables; --table checks one",
        "the owner of the database runs the statement; or use --table for a table with a publication of others",
        f"GRANT CREATE ON DATABASE {_quoted(facts.database)} TO {_quoted(facts.role)};",
    )


# -- a table --------------------------------------------------------------------------------------------


def _table(database: TunnelDatabase, facts: _Facts, table: str) -> Iterator[Finding]:
    try:
        layout = database.run(
            lambda statements: stored_tables.layout(
                statements.connection, table, database.schema, database.connection.address.unrepresentable
            )
        )
        layout.schema.check_keyed()
        generated = slots.has_generated(database, layout)
    except HeadraceError as error:
        yield Finding(f"PostgreSQL: table {table}", Status.FAIL, error.problem, error.remedy or str(error))
        return

    def read(statements: PostgresStatements) -> _Rights:
        with statements.connection.cursor(row_factory=class_row(_Rights)) as cursor:
            row = cursor.execute(_RIGHTS, (layout.oid,)).fetchone()
        assert row is not None
        return row

    yield from _changes(database, layout)
    rights = database.run(read)
    role, statements = _quoted(facts.role), []
    if not rights.usage:
        statements.append(f"GRANT USAGE ON SCHEMA {_quoted(layout.name.schema)} TO {role};")
    if not rights.readable:
        statements.append(f"GRANT SELECT ON TABLE {layout.name.sql.as_string()} TO {role};")
    yield _checked(
        f"table {table}",
        f"user {facts.role} may not read it" if statements else "",
        f"user {facts.role} may read it",
        "the owner of the table runs the statement",
        *statements,
    )
    yield _publication(database, facts, rights, layout, generated)


def _changes(database: TunnelDatabase, table: TableLayout) -> Iterator[Finding]:
    name = f"PostgreSQL: changes of {table.name.text}"
    refusals, warnings = database.run(lambda statements: followable.inspect(statements, [table.oid], as_columns=True))
    for refusal in refusals:
        yield Finding(name, Status.FAIL, f"{refusal.problem}: {refusal.received}", refusal.remedy)
    for warning in warnings:
        yield Finding(name, Status.WARN, warning)
    if not refusals and not warnings:
        yield Finding(name, Status.OK, "the log has all of them, with the keys of the rows")


def _publication(
    database: TunnelDatabase, facts: _Facts, rights: _Rights, table: TableLayout, generated: bool
) -> Finding:
    name = f"PostgreSQL: publication of {table.name.text}"
    if rights.owned and facts.can_create:
        return Finding(name, Status.OK, f"user {facts.role} may create it")
    published = PublishedTable.of(table)
    for publication in sorted(rights.published_by):
        if _OWN_PUBLICATION.fullmatch(publication):
            continue
        _, fault = database.run(
            lambda statements, each=publication: publications.inspect(statements, each, [published])  # type: ignore[misc]
        )
        if fault is None:
            return Finding(name, Status.OK, f"create the tunnel with option publication={publication}")
    if rights.owned:
        return Finding(
            name,
            Status.FAIL,
            f"user {facts.role} owns the table, and may not create publications",
            "the owner of the database runs the statement",
            f"GRANT CREATE ON DATABASE {_quoted(facts.database)} TO {_quoted(facts.role)};",
        )
    new = _quoted(f"headrace_{table.name.table}"[:63])
    return Finding(
        name,
        Status.FAIL,
        f"only the owner of the table or a superuser may create one, and user {facts.role} is neither",
        "a superuser runs the statement; then create tunnels with option publication",
        f"CREATE PUBLICATION {new} FOR TABLE {table.name.sql.as_string()} WITH (publish_via_partition_root = true"
        f"{', publish_generated_columns = stored' if generated else ''});",
    )


def _tunnels(tunnels: Sequence[Tunnel]) -> Iterator[Finding]:
    """Yield a finding for each slot of a tunnel that keeps much log, or changes that wait for a reader."""
    kept = warned = 0
    for tunnel in tunnels:
        described = tunnel.describe()
        if "slot" not in described.details:
            continue
        kept += 1
        found = list(described.warnings)
        if described.waits:
            log = tunnel_options.megabytes(int(described.details.get("retained_bytes") or 0))
            found.append(
                f"its oldest unread change is {described.oldest_unread:.0f} s old, and the server keeps {log} of log: "
                "start the query that reads the tunnel, or drop the tunnel"
            )
        warned += bool(found)
        for warning in found:
            yield Finding(f"PostgreSQL: tunnel {described.name} of {described.table}", Status.WARN, warning)
    if kept and not warned:
        yield Finding("PostgreSQL: tunnels", Status.OK, f"the slots of {kept} tunnels keep little log")


def _checked(name: str, problem: str, found: str, remedy: str, *statements: str) -> Finding:
    """Return the finding of a check: ``found``, or a problem with its remedy and the SQL against it."""
    name = f"PostgreSQL: {name}"
    if not problem:
        return Finding(name, Status.OK, found)
    return Finding(name, Status.FAIL, problem, remedy, "\n".join(statements))


def _quoted(name: str) -> str:
    return sql.Identifier(name).as_string()
