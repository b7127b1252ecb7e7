"""What a tunnel cannot follow exactly, or what would break the statements of others: tables are refused for it.

PostgreSQL refuses an UPDATE or DELETE of a published table whose log would not identify the row. So a table is checked
with all its partitions before it is published, and again when it has changed.
"""

from __future__ import annotations

import shlex
from collections.abc import Sequence
from typing import LiteralString, NamedTuple

from psycopg import sql

from headrace.errors import UnsupportedError
from headrace.model.tables.change_columns import CHANGE_COLUMNS
from headrace.stores.postgres.tunnels.meta_tables import PostgresStatements

_MEMBERS: LiteralString = """
SELECT format('%%I.%%I', n.nspname, r.relname), format('%%I.%%I', o.nspname, m.relname), m.relkind, m.relpersistence,
    m.relreplident, r.relkind = 'p' AND r.relreplident = 'f' AS full_images,
    m.oid <> r.oid AND r.relkind <> 'p' AS child, i.indexrelid IS NOT NULL AS has_key,
    coalesce(i.indimmediate AND i.indisvalid, false) AS usable, m.oid = r.oid AND row_security_active(r.oid) AS hidden,
    quote_ident(current_user), ARRAY(
        SELECT attname::text FROM pg_attribute
        WHERE attrelid = r.oid AND m.oid = r.oid AND attnum > 0 AND NOT attisdropped AND lower(attname) = ANY(%s)
        ORDER BY attnum
    ), (
        SELECT string_agg(format('%%I %%s', a.attname, format_type(a.atttypid, a.atttypmod)), ', ' ORDER BY a.attnum)
        FROM pg_attribute a WHERE a.attrelid = m.oid AND a.attnum = ANY(i.indkey) AND EXISTS (
            WITH RECURSIVE parts AS (
                SELECT a.atttypid AS oid UNION SELECT p.oid FROM parts JOIN pg_type y ON y.oid = parts.oid
                CROSS JOIN LATERAL (
                    SELECT unnest(ARRAY[y.typbasetype, y.typelem])
                    UNION ALL SELECT g.rngsubtype FROM pg_range g WHERE g.rngtypid = y.oid
                    UNION ALL SELECT f.atttypid FROM pg_attribute f WHERE f.attrelid = y.typrelid AND f.attnum > 0
                ) p(oid) WHERE p.oid <> 0
            )
            SELECT FROM parts JOIN pg_type y ON y.oid = parts.oid
            WHERE y.typnamespace = 'pg_catalog'::regnamespace AND starts_with(y.typname::text, 'reg')
        )
    )
FROM pg_class r
JOIN pg_namespace n ON n.oid = r.relnamespace
CROSS JOIN unnest(CASE
    WHEN r.relkind = 'p' THEN ARRAY(SELECT relid::oid FROM pg_partition_tree(r.oid))
    WHEN r.relhassubclass THEN r.oid || ARRAY(SELECT inhrelid FROM pg_inherits WHERE inhparent = r.oid)
    ELSE ARRAY[r.oid]
END) AS t(relid)
JOIN pg_class m ON m.oid = t.relid
JOIN pg_namespace o ON o.oid = m.relnamespace
LEFT JOIN pg_index i ON i.indrelid = m.oid AND i.indisprimary
WHERE r.oid = ANY(%s::oid[]) ORDER BY n.nspname, r.relname, m.oid <> r.oid, m.relname
"""
_PERSISTENCE = {"u": "unlogged", "t": "temporary"}
_IDENTITIES = {"n": "NOTHING", "i": "USING INDEX"}


class Refusal(NamedTuple):
    """Why a table is not followed, and what changes that."""

    problem: str
    received: str
    remedy: str

    @property
    def error(self) -> UnsupportedError:
        return UnsupportedError(self.problem, received=self.received, remedy=self.remedy)

    @property
    def text(self) -> str:
        return f"{self.problem} ({self.received}): {self.remedy}"


class _Member(NamedTuple):
    """A table of a tunnel, a partition of it, or a table that inherits from it; names are quoted."""

    table: str
    name: str
    kind: str
    persistence: str
    identity: str
    full_images: bool
    child: bool
    has_key: bool
    usable: bool
    hidden: bool
    user: str
    clashing: list[str]
    names: str | None


class Inspected(NamedTuple):
    """What tables have that a tunnel cannot follow, and what its readers may miss, in sentences."""

    refusals: list[Refusal]
    warnings: list[str]


def inspect(statements: PostgresStatements, relations: Sequence[int], *, as_columns: bool) -> Inspected:
    """Look at tables, by their oids, with all their partitions.

    Args:
        as_columns: the columns of the table are columns of the changes, as in a tunnel of one table.
    """
    names = CHANGE_COLUMNS.names if as_columns else []
    members = [_Member(*row) for row in statements.execute(_MEMBERS, (names, list(relations))).fetchall()]
    without = [each for each in members if each.full_images and each.kind != "p" and each.identity != "f"]
    return Inspected(
        [found for member in members if (found := _refusal(member)) is not None],
        [
            f"changes of partition {each.name} have no old rows, as those of other partitions have: run "
            f"`headrace table set {shlex.quote(each.table)} pre_images=true`"
            for each in without
        ],
    )


def check(statements: PostgresStatements, relations: Sequence[int], *, as_columns: bool) -> None:
    """Raise `UnsupportedError` if tables cannot be followed; see `inspect`."""
    for found in inspect(statements, relations, as_columns=as_columns).refusals:
        raise found.error


def _refusal(member: _Member) -> Refusal | None:
    name = member.name
    of = f"table {name}" if name == member.table else f"partition {name} of table {member.table}"
    if member.child:
        return Refusal(
            f"table {member.table} has rows of a table that inherits from it, and the log has those by another name",
            f"child table {name}",
            f"ALTER TABLE {name} NO INHERIT {member.table}, or make it a partitioned table; leave "
            f"{member.table} out of a tunnel of several tables",
        )
    if member.clashing:
        column = member.clashing[0]
        return Refusal(
            f"column {column!r} of {of} has the name of a column that changes have",
            f"{', '.join(member.clashing)}; changes have {', '.join(CHANGE_COLUMNS.names)}",
            f"ALTER TABLE {name} RENAME COLUMN {sql.Identifier(column).as_string(None)} TO …, or create a tunnel of "
            "several tables (--tables), whose changes have the rows as JSON",
        )
    if member.kind == "f":
        return Refusal(
            f"{of} is a foreign table, and its changes are not in the log",
            "a foreign partition",
            f"ALTER TABLE … DETACH PARTITION {name}",
        )
    if member.persistence in _PERSISTENCE:
        return Refusal(
            f"{of} is {_PERSISTENCE[member.persistence]}, and its changes are not in the log",
            _PERSISTENCE[member.persistence],
            f"ALTER TABLE {name} SET LOGGED"
            if member.persistence == "u"
            else "copy its rows into a table that is not temporary",
        )
    if member.hidden:
        return Refusal(
            f"row-level security may hide rows of {of} from the user of headrace",
            f"user {member.user}",
            f"ALTER ROLE {member.user} BYPASSRLS; the owner of the table needs only ALTER TABLE {name} NO FORCE ROW "
            "LEVEL SECURITY",
        )
    if member.names is not None:
        return Refusal(
            f"the primary key of {of} has the names of other objects, and an object that is renamed or dropped gives "
            "its rows another key without a change",
            member.names,
            f"ALTER TABLE {member.table} ALTER … TYPE text for these columns",
        )
    if member.kind == "p":
        return _identity(member, of) if member.identity in _IDENTITIES else None
    return _identity(member, of)


def _identity(member: _Member, of: str) -> Refusal | None:
    name = member.name
    if member.identity in _IDENTITIES:
        return Refusal(
            f"the log does not have the primary key of updated and deleted rows of {of}",
            f"REPLICA IDENTITY {_IDENTITIES[member.identity]}",
            f"ALTER TABLE {name} REPLICA IDENTITY DEFAULT (or FULL, for rows before a change)",
        )
    if member.usable:
        return None
    if member.has_key:
        return Refusal(
            f"the primary key of {of} is DEFERRABLE: the log does not identify rows by it, and one statement can give "
            "a key to another row before the first one has lost it",
            "a DEFERRABLE primary key",
            f"in one transaction, drop the constraint and add it without DEFERRABLE: ALTER TABLE {member.table} DROP "
            "CONSTRAINT …, ADD PRIMARY KEY (…)",
        )
    return Refusal(
        f"{of} has no primary key, by which the log identifies rows",
        "no primary key",
        f"ALTER TABLE {name} ADD PRIMARY KEY (…)",
    )
