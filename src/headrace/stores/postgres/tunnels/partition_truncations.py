"""TRUNCATE of partitioned tables: whether their partitions have new files because the whole table was truncated.

The publication of a tunnel gives changes of partitions the name of their table. So the slot sends a TRUNCATE of the
whole table, and none of a partition alone. Beside it, a tunnel has a second publication, which sends each TRUNCATE of
partitions under their own names. It is only read when partitions have got new files: a TRUNCATE that the two do not
send alike is one of single partitions.
"""

from __future__ import annotations

from collections.abc import Collection
from typing import LiteralString

from psycopg import sql

from headrace.stores.postgres.names import TableName
from headrace.stores.postgres.tunnels import slot_reads
from headrace.stores.postgres.tunnels.meta_tables import PostgresStatements, TunnelDatabase
from headrace.stores.postgres.tunnels.slot_reads import AWAITED

# The transactions that add tables to the publication of the tunnel add them to this one, too. The rows of a publication
# that was changed or replaced are of other transactions.
_PUBLICATIONS: LiteralString = f"""
SELECT t.name, t.slot, t.publication, {AWAITED}
FROM headrace.tunnel t
JOIN pg_replication_slots s ON s.slot_name = t.slot AND s.wal_status <> 'lost'
JOIN pg_publication p ON p.pubname = t.publication
JOIN pg_publication_rel r ON r.prpubid = p.oid AND r.prrelid = %(root)s
JOIN pg_publication o ON o.pubname = t.publication || '_partitions'
JOIN pg_publication_rel f ON f.prpubid = o.oid AND f.prrelid = %(root)s AND f.xmin = r.xmin
WHERE t.id = %(tunnel)s AND t.own_publication
    AND EXISTS (SELECT FROM pg_publication_rel e WHERE e.prpubid = p.oid AND e.xmin = o.xmin)
"""
# A Truncate message has a byte, the number of tables, flags, and the oids of the tables. A position in the log is the
# same in both publications.
_TRUNCATIONS: LiteralString = """
SELECT (m.lsn - '0/0')::bigint, m.xid::text::bigint
FROM pg_logical_slot_peek_binary_changes(%(slot)s, NULL, NULL,
    'proto_version', '1', 'publication_names', quote_ident(%(publication)s)) m
WHERE get_byte(m.data, 0) = ascii('T') AND EXISTS (
    SELECT FROM generate_series(7, length(m.data) - 3, 4) place
    WHERE substring(m.data FROM place FOR 4) = ANY(ARRAY(SELECT oidsend(each) FROM unnest(%(relations)s::oid[]) each))
) ORDER BY 1
"""


def name_of(publication: str) -> str:
    """Return the name of the second publication of a tunnel."""
    return f"{publication}_partitions"


def add(statements: PostgresStatements, publication: str, tables: Collection[TableName]) -> None:
    """Let the second publication of a tunnel have the partitioned ones of tables, beside its present ones."""
    name = sql.Identifier(name_of(publication))
    for table in tables:
        found = statements.first(
            "SELECT EXISTS (SELECT FROM pg_publication WHERE pubname = %s) FROM pg_class c"
            " JOIN pg_namespace n ON n.oid = c.relnamespace"
            " WHERE n.nspname = %s AND c.relname = %s AND c.relkind = 'p'",
            (name_of(publication), table.schema, table.table),
        )
        if found is not None:
            text = (
                "ALTER PUBLICATION {} ADD TABLE {}"
                if found[0]
                else "CREATE PUBLICATION {} FOR TABLE {} WITH (publish = 'truncate')"
            )
            statements.connection.execute(sql.SQL(text).format(name, table.sql))


def last(database: TunnelDatabase, tunnel: str, root: int) -> int | None:
    """Return the transaction of the last TRUNCATE of a partitioned table in the slot.

    None if there is none, or if partitions of it were truncated without it, also if that is not known.

    Raises:
        StoreBusyError: the slot cannot be read now.
    """
    found = database.query(_PUBLICATIONS, {"tunnel": tunnel, "root": root})
    if not found:
        return None
    ((name, slot, publication, awaited),) = found
    if awaited:
        raise slot_reads.waits(name, awaited)
    leaves = database.query("SELECT relid::oid::bigint FROM pg_partition_tree(%s::oid::regclass) WHERE isleaf", (root,))
    of_leaves = _truncations(database, slot, name_of(publication), [leaf for (leaf,) in leaves])
    # After the others, so it has the same ones of the whole table, and perhaps later ones.
    of_root = _truncations(database, slot, publication, [root])
    return of_leaves[max(of_leaves)] if of_leaves and of_leaves.keys() <= of_root.keys() else None


def _truncations(database: TunnelDatabase, slot: str, publication: str, relations: list[int]) -> dict[int, int]:
    """Return the positions of truncations of tables in the log, and their transactions."""
    given = {"slot": slot, "publication": publication, "relations": relations}
    return {int(lsn): int(xid) for lsn, xid in database.query(_TRUNCATIONS, given)}
