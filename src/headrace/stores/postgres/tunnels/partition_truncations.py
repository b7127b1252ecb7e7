"""TRUNCATE of partitioned tables: whether their partitions have new files because the whole table was truncated.

The publication of a tunnel gives changes of partitions the name of their table. So the slot sends a TRUNCATE of the
whole table, and none of a partition alone. Beside it, a tunnel has a second publication, which sends each TRUNCATE of
partitions under their own names. It is only read when partitions have got new files, and when there are new ones, which
keep their file if their own transaction truncates them: a TRUNCATE that the two do not send alike is one of single
partitions. A change of types behind it gives all partitions new files.
"""

from __future__ import annotations

import uuid
from collections.abc import Collection
from typing import LiteralString, NamedTuple

from psycopg import sql

from headrace.stores.postgres.names import TableName
from headrace.stores.postgres.tunnels import slot_reads
from headrace.stores.postgres.tunnels.meta_tables import PostgresStatements, TunnelDatabase
from headrace.stores.postgres.tunnels.positions import lsn_text
from headrace.stores.postgres.tunnels.slot_reads import AWAITED
from headrace.wire.pgoutput.messages import WrittenLeaf

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
SELECT (m.lsn - '0/0')::bigint, m.xid::text::bigint, relation::bigint
FROM pg_logical_slot_peek_binary_changes(%(slot)s, NULL, NULL,
    'proto_version', '1', 'publication_names', quote_ident(%(publication)s)) m
CROSS JOIN generate_series(7, length(m.data) - 3, 4) place
JOIN unnest(%(relations)s::oid[]) relation ON oidsend(relation) = substring(m.data FROM place FOR 4)
WHERE get_byte(m.data, 0) = ascii('T')
"""

_MAIN_PUBLICATION: LiteralString = f"""
SELECT t.name, t.slot, t.publication, {AWAITED}
FROM headrace.tunnel t JOIN pg_replication_slots s ON s.slot_name = t.slot AND s.wal_status <> 'lost' WHERE t.id = %s
"""
# A Relation message has a byte, and the oid of the table. It describes a partition again before the first row that
# follows a TRUNCATE, unless the transaction of the TRUNCATE itself has made the file of the partition before.
_EMPTIED: LiteralString = """
WITH message AS (
    SELECT m.place, m.xid::text AS xid, m.data, chr(get_byte(m.data, 0)) AS kind
    FROM pg_logical_slot_peek_binary_changes(%(slot)s, NULL, NULL,
        'proto_version', '1', 'publication_names', quote_ident(%(publication)s))
        WITH ORDINALITY m(lsn, xid, data, place)
    WHERE get_byte(m.data, 0) IN (ascii('R'), ascii('T'))
)
SELECT leaf::bigint FROM unnest(%(leaves)s::oid[]) leaf CROSS JOIN LATERAL (
    SELECT place, xid FROM message WHERE kind = 'R' AND substring(data FROM 2 FOR 4) = oidsend(leaf)
    ORDER BY place DESC LIMIT 1
) written
WHERE EXISTS (
    SELECT FROM message m CROSS JOIN generate_series(7, length(m.data) - 3, 4) byte
    WHERE m.kind = 'T' AND substring(m.data FROM byte FOR 4) = oidsend(%(root)s::oid)
        AND m.place > written.place AND m.xid <> written.xid
)
"""

_TREES: LiteralString = """
SELECT root::bigint, relid::oid::bigint FROM unnest(%s::oid[]) root CROSS JOIN LATERAL pg_partition_tree(root)
"""
_COPY_SLOT: LiteralString = "SELECT pg_copy_logical_replication_slot(%(slot)s, %(copy)s, true)"
_ADVANCE: LiteralString = """
SELECT pg_replication_slot_advance(slot_name, %(start)s::pg_lsn) FROM pg_replication_slots
WHERE slot_name = %(copy)s AND confirmed_flush_lsn < %(start)s::pg_lsn
"""
_DESCRIBED: LiteralString = """
SELECT DISTINCT leaf::bigint FROM pg_logical_slot_peek_binary_changes(%(copy)s, NULL, NULL,
    'proto_version', '1', 'publication_names', quote_ident(%(publication)s)) m
JOIN unnest(%(leaves)s::oid[]) leaf ON oidsend(leaf) = substring(m.data FROM 2 FOR 4)
WHERE get_byte(m.data, 0) = ascii('R')
"""


class _Truncation(NamedTuple):
    """A TRUNCATE of a table in the log: its position, its transaction (32 bits), and the oid of the table."""

    lsn: int
    xid: int
    relation: int


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


def of_whole_table(database: TunnelDatabase, tunnel: str, root: int) -> set[int]:
    """Return the transactions in the slot that have truncated a partitioned table.

    None of them if partitions of it were truncated without it, also if that is not known. The slot can have a later
    one than the catalog, which shows a transaction some moments after its commit is in the log.

    Raises:
        StoreBusyError: the slot cannot be read now.
    """
    leaves = database.query("SELECT relid::oid::bigint FROM pg_partition_tree(%s::oid::regclass) WHERE isleaf", (root,))
    of_leaves, of_root = _truncations(database, tunnel, root, [leaf for (leaf,) in leaves])
    return {each.xid for each in of_leaves} if {each.lsn for each in of_leaves} <= of_root else set()


def alone(database: TunnelDatabase, tunnel: str, root: int, leaves: Collection[int], since: int) -> set[int]:
    """Return those of some partitions that were truncated without the whole table in the slot, as far as it is known.

    Args:
        since: the first transaction whose TRUNCATE counts.

    Raises:
        StoreBusyError: the slot cannot be read now.
    """
    of_leaves, of_root = _truncations(database, tunnel, root, leaves)
    # The log has 32 bits of a transaction.
    return {each.relation for each in of_leaves if each.lsn not in of_root and (each.xid - since) % (1 << 32) < 1 << 31}


def emptied(database: TunnelDatabase, tunnel: str, root: int, leaves: Collection[int]) -> set[int]:
    """Return those of some partitions whose rows in the slot a later TRUNCATE of the whole table has deleted.

    Raises:
        StoreBusyError: the slot cannot be read now.
    """
    found = database.query(_MAIN_PUBLICATION, (tunnel,))
    if not found:
        return set()
    ((name, slot, publication, awaited),) = found
    if awaited:
        raise slot_reads.waits(name, awaited)
    given = {"slot": slot, "publication": publication, "root": root, "leaves": list(leaves)}
    return {int(leaf) for (leaf,) in database.query(_EMPTIED, given)}


def left_without_rows(
    database: TunnelDatabase, tunnel: str, leaves: Collection[WrittenLeaf], start: int
) -> set[WrittenLeaf]:
    """Return those of some partitions that are none now, and of which the log has no rows from an LSN on.

    The server describes a partition once in a read of a slot. So a copy of the slot is read, which begins there.

    Raises:
        StoreBusyError: the slot cannot be read now.
    """

    def read(statements: PostgresStatements) -> set[WrittenLeaf]:
        rows = statements.execute(_TREES, (sorted({each.root for each in leaves}),))
        there = {(int(root), int(leaf)) for root, leaf in rows}
        left = {each for each in leaves if (each.root, each.leaf.oid) not in there}
        found = statements.first(_MAIN_PUBLICATION, (tunnel,)) if left else None
        if found is None:
            return set()
        name, slot, publication, awaited = found
        if awaited:
            raise slot_reads.waits(name, awaited)
        oids = sorted({each.leaf.oid for each in left})
        copy = f"headrace_{uuid.uuid4().hex}"
        given = {"slot": slot, "copy": copy, "start": lsn_text(start), "publication": publication, "leaves": oids}
        # A temporary slot ends with its session, and with an error.
        statements.execute(_COPY_SLOT, given)
        statements.execute(_ADVANCE, given)
        described = {int(leaf) for (leaf,) in statements.execute(_DESCRIBED, given)}
        statements.execute("SELECT pg_drop_replication_slot(%(copy)s)", given)
        return {each for each in left if each.leaf.oid not in described}

    return database.run(read)


def _truncations(
    database: TunnelDatabase, tunnel: str, root: int, leaves: Collection[int]
) -> tuple[list[_Truncation], set[int]]:
    """Return the truncations of partitions, and the positions of those of the whole table; none if they are unknown."""
    found = database.query(_PUBLICATIONS, {"tunnel": tunnel, "root": root})
    if not found:
        return [], set()
    ((name, slot, publication, awaited),) = found
    if awaited:
        raise slot_reads.waits(name, awaited)
    given = {"slot": slot, "publication": name_of(publication), "relations": list(leaves)}
    of_leaves = [_Truncation(*map(int, each)) for each in database.query(_TRUNCATIONS, given)]
    if not of_leaves:
        return [], set()
    # After the others, so it has the same ones of the whole table, and perhaps later ones.
    given = {"slot": slot, "publication": publication, "relations": [root]}
    return of_leaves, {int(lsn) for lsn, *_ in database.query(_TRUNCATIONS, given)}
