"""The tables of a tunnel in the catalog: their states, which each change replaces, and their definitions."""

from __future__ import annotations

from collections.abc import Collection, Mapping, Sequence
from typing import LiteralString, NamedTuple

from headrace.stores.postgres.names import TableName
from headrace.stores.postgres.tunnels.definitions import CatalogColumn, Definition, Leaf
from headrace.stores.postgres.tunnels.meta_tables import PostgresStatements, TunnelDatabase

# The types of users that columns have, and those that these consist of: the base of a domain, the elements of an array,
# the columns of a composite type, the bounds of a range.
_PARTS: LiteralString = """WITH RECURSIVE parts AS (
        SELECT a.atttypid AS oid FROM pg_attribute a WHERE {columns} AND a.atttypid >= 16384
        UNION SELECT p.oid FROM parts JOIN pg_type y ON y.oid = parts.oid CROSS JOIN LATERAL (
            SELECT unnest(ARRAY[y.typbasetype, y.typelem])
            UNION ALL SELECT r.rngsubtype FROM pg_range r WHERE r.rngtypid = y.oid OR r.rngmultitypid = y.oid
            UNION ALL SELECT f.atttypid FROM pg_attribute f WHERE f.attrelid = y.typrelid AND f.attnum > 0
        ) p(oid) WHERE p.oid >= 16384
    )"""
_OF_TABLE: LiteralString = _PARTS.replace("{columns}", "a.attrelid = c.oid")
_OF_COLUMN: LiteralString = _PARTS.replace(" FROM pg_attribute a WHERE {columns} AND", " WHERE")
# A change of a table, column, partition or type is a new row of the catalog, with the identifier of its transaction.
# ANALYZE and VACUUM write into existing rows.
_STATE: LiteralString = f"""md5(concat_ws(' ', c.xmin, c.relfilenode, i.indexrelid,
    (SELECT string_agg(a.xmin::text, ' ' ORDER BY a.attnum) FROM pg_attribute a WHERE a.attrelid = c.oid),
    ({_OF_TABLE} SELECT concat_ws(' ',
        (SELECT string_agg(e.xmin::text, ' ' ORDER BY e.oid) FROM parts JOIN pg_enum e ON e.enumtypid = parts.oid),
        (SELECT string_agg(f.xmin::text, ' ' ORDER BY f.attrelid, f.attnum) FROM parts
            JOIN pg_type y ON y.oid = parts.oid JOIN pg_attribute f ON f.attrelid = y.typrelid AND f.attnum > 0)
    )),
    CASE WHEN c.relhassubclass THEN (
        SELECT md5(string_agg(concat_ws(' ', l.oid, l.xmin, l.relfilenode, h.xmin, k.indexrelid), ',' ORDER BY l.oid))
        FROM pg_inherits h JOIN pg_class l ON l.oid = h.inhrelid
        LEFT JOIN pg_index k ON k.indrelid = l.oid AND k.indisprimary
        WHERE l.oid = ANY(ARRAY(
            SELECT relid::oid FROM pg_partition_tree(c.oid)
            UNION ALL SELECT inhrelid FROM pg_inherits WHERE inhparent = c.oid
        ))
    ) END
))"""
_STATES: LiteralString = f"""
SELECT c.oid::bigint, n.nspname::text, c.relname::text, (
    SELECT array_agg(a.attname::text ORDER BY a.attnum) FROM pg_attribute a
    WHERE a.attrelid = c.oid AND a.attnum > 0 AND NOT a.attisdropped
), {_STATE}
FROM pg_class c
JOIN pg_namespace n ON n.oid = c.relnamespace
LEFT JOIN pg_index i ON i.indrelid = c.oid AND i.indisprimary
WHERE c.oid = ANY(%s::oid[]) ORDER BY c.oid
"""
_DEFINITIONS: LiteralString = f"""
SELECT c.oid::bigint, {_STATE}, format('%%I.%%I', n.nspname, c.relname), c.relfilenode::bigint,
    pg_snapshot_xmin(pg_current_snapshot())::text::bigint, c.relnatts, ARRAY(
    SELECT k.number::int FROM unnest(i.indkey::int2[]) WITH ORDINALITY k(number, place)
    WHERE k.place <= i.indnkeyatts ORDER BY k.place
), (
    SELECT json_agg(json_build_array(
        a.attnum, a.attname, a.atttypid::bigint, a.atttypmod, format_type(a.atttypid, a.atttypmod), a.atttypid::bigint,
        a.xmin::text,
        -- A partitioned table has no rows of its own: its partitions, which got the column with it, have the value.
        coalesce((a.attmissingval::text::text[])[1], CASE WHEN m.texts = 1 THEN m.text END),
        md5(concat_ws(' ', a.attnotnull, a.attidentity, a.attstorage, a.attoptions, a.attacl, a.attgenerated,
            -- ALTER TYPE makes a new default of the same expression.
            (SELECT concat(d.oid, pg_get_expr(d.adbin, d.adrelid)) FROM pg_attrdef d
                WHERE d.adrelid = c.oid AND d.adnum = a.attnum))),
        ARRAY({_OF_COLUMN}
            SELECT e.enumlabel FROM parts JOIN pg_enum e ON e.enumtypid = parts.oid
            ORDER BY e.enumtypid, e.enumsortorder
        ), a.attgenerated <> '', ({_OF_COLUMN}
            SELECT string_agg(concat_ws(' ', f.attrelid, f.attnum, f.atttypid, f.atttypmod), ','
                ORDER BY f.attrelid, f.attnum)
            FROM parts JOIN pg_type w ON w.oid = parts.oid
            JOIN pg_attribute f ON f.attrelid = w.typrelid AND f.attnum > 0
        ), m.texts > 1, ({_OF_COLUMN}
            SELECT coalesce(json_object_agg(e.oid, e.xmin::text), '{{}}')
            FROM parts JOIN pg_enum e ON e.enumtypid = parts.oid
        ),
        a.xmin = c.xmin AND k.known AND k.command BETWEEN k.of_table AND k.latest,
        -- VACUUM FULL, CLUSTER and a new column write it after the row of the index. ALTER TYPE begins with it, and
        -- writes that of its column later. In a crash of the server, and on a standby, all commands are 0.
        c.relkind <> 'p' AND a.xmin = x.xmin AND k.known AND x.xmax::text = '0' AND x.cmin::text <> '0'
            AND (k.command = 0 OR k.command > x.cmin::text::bigint),
        ({_OF_COLUMN} SELECT coalesce(max(w.typtypmod), -1) FROM parts JOIN pg_type w ON w.oid = parts.oid),
        a.xmin = c.xmin AND k.known AND k.command < k.of_table
    ) ORDER BY a.attnum)
    FROM pg_attribute a CROSS JOIN LATERAL (
        SELECT min((b.attmissingval::text::text[])[1]) AS text,
            count(DISTINCT (b.attmissingval::text::text[])[1]) AS texts
        FROM pg_partition_tree(CASE WHEN c.relkind = 'p' THEN c.oid END) t
        JOIN pg_attribute b ON b.attrelid = t.relid AND b.attname = a.attname
    ) m CROSS JOIN LATERAL (
        -- ADD COLUMN writes the row of the table with that of the column, which gets a default two commands later.
        -- A change that was rolled back has replaced the command.
        SELECT a.cmin::text::bigint AS command, c.cmin::text::bigint AS of_table,
            c.cmin::text::bigint + CASE WHEN a.atthasdef THEN 2 ELSE 0 END AS latest,
            a.xmax::text = '0' AND c.xmax::text = '0' AS known
    ) k
    WHERE a.attrelid = c.oid AND a.attnum > 0 AND NOT a.attisdropped
), CASE WHEN c.relkind = 'p' THEN (
    SELECT json_object_agg(l.oid, json_build_array(
        format('%%I.%%I', m.nspname, l.relname), l.relfilenode::bigint, (
            SELECT string_agg(h.xmin::text, ' ' ORDER BY h.inhrelid)
            FROM pg_partition_ancestors(l.oid) p JOIN pg_inherits h ON h.inhrelid = p.relid
            WHERE h.inhrelid <> c.oid AND h.inhrelid IN (SELECT relid FROM pg_partition_tree(c.oid))
        ), l.relpersistence = 'p'
    ))
    FROM pg_partition_tree(c.oid) t JOIN pg_class l ON l.oid = t.relid JOIN pg_namespace m ON m.oid = l.relnamespace
    WHERE t.isleaf AND l.relkind <> 'p'
) END, (SELECT k.oid::bigint FROM pg_constraint k WHERE k.conrelid = c.oid AND k.contype = 'p'), (
    SELECT bool_or(l.relreplident = 'f') FROM pg_class l
    WHERE l.oid = c.oid OR l.oid IN (SELECT relid FROM pg_partition_tree(c.oid))
), pg_current_wal_insert_lsn() - '0/0', (
    SELECT coalesce(json_object_agg(a.attnum, a.xmin::text), '{{}}') FROM pg_attribute a
    WHERE a.attrelid = c.oid AND a.attisdropped
)
FROM pg_class c
JOIN pg_namespace n ON n.oid = c.relnamespace
LEFT JOIN pg_index i ON i.indrelid = c.oid AND i.indisprimary
LEFT JOIN pg_class x ON x.oid = i.indexrelid
WHERE c.oid = ANY(%s::oid[]) ORDER BY c.oid
"""
# A partition that was created as one is empty then. Otherwise, rows are older than its youngest link, or were written
# by the same transaction before it. In a crash of the server and on a standby, all commands of a transaction are 0.
_ATTACHED: LiteralString = """
SELECT h.xmin::text, greatest(h.cmin::text::bigint, 1),
    h.xmin::text = a.xmin::text AND h.cmin::text <> '0' AND h.cmin::text::bigint - a.cmin::text::bigint <= 2,
    has_table_privilege(%(leaf)s::oid, 'SELECT') AND NOT row_security_active(%(leaf)s::oid)
FROM pg_partition_ancestors(%(leaf)s::oid) p
JOIN pg_inherits h ON h.inhrelid = p.relid
JOIN pg_attribute a ON a.attrelid = h.inhrelid AND a.attnum = -1
WHERE p.relid <> %(root)s::oid AND p.relid IN (SELECT relid FROM pg_partition_tree(%(root)s::oid))
ORDER BY age(h.xmin), h.cmin::text::bigint DESC LIMIT 1
"""
# Rows of the catalog that are older than the catalog_xmin of a slot were there at its begin. What a table or type was
# created with has no older form.
_NEWER: LiteralString = f"""
SELECT c.oid::bigint FROM pg_class c
JOIN pg_attribute o ON o.attrelid = c.oid AND o.attnum = -1
JOIN pg_replication_slots s ON s.slot_name = %s
WHERE c.oid = ANY(%s::oid[]) AND EXISTS (
    SELECT FROM (
        SELECT a.xmin, o.xmin FROM pg_attribute a WHERE a.attrelid = c.oid AND a.attnum > 0
        UNION ALL SELECT k.xmin, o.xmin FROM pg_constraint k WHERE k.conrelid = c.oid AND k.contype = 'p'
        UNION ALL SELECT h.xmin, p.xmin FROM pg_partition_tree(c.oid) t JOIN pg_inherits h ON h.inhrelid = t.relid
            JOIN pg_attribute p ON p.attrelid = t.relid AND p.attnum = -1 WHERE t.relid <> c.oid
        UNION ALL ({_OF_TABLE} SELECT e.xmin, y.xmin FROM parts
            JOIN pg_type y ON y.oid = parts.oid JOIN pg_enum e ON e.enumtypid = y.oid)
        UNION ALL ({_OF_TABLE} SELECT f.xmin, y.xmin FROM parts
            JOIN pg_type y ON y.oid = parts.oid JOIN pg_attribute f ON f.attrelid = y.typrelid AND f.attnum > 0)
    ) r(row, created)
    WHERE r.row::text <> r.created::text AND age(r.row) BETWEEN 0 AND age(s.catalog_xmin)
)
"""
_BASE_TYPES: LiteralString = """
WITH RECURSIVE based AS (
    SELECT atttypid AS declared, atttypid AS type FROM pg_attribute
    WHERE attrelid = ANY(%s) AND attnum > 0 AND NOT attisdropped
    UNION
    SELECT b.declared, y.typbasetype FROM based b JOIN pg_type y ON y.oid = b.type WHERE y.typtype = 'd'
), elements AS (
    SELECT b.declared, y.typelem AS type FROM based b JOIN pg_type y ON y.oid = b.type
    WHERE y.oid = (SELECT e.typarray FROM pg_type e WHERE e.oid = y.typelem)
    UNION
    SELECT e.declared, y.typbasetype FROM elements e JOIN pg_type y ON y.oid = e.type WHERE y.typtype = 'd'
)
SELECT b.declared, CASE
    WHEN y.typtype = 'e' THEN 'text'::regtype::oid
    WHEN e.typtype = 'e' THEN 'text[]'::regtype::oid
    WHEN e.typarray <> 0 THEN e.typarray
    ELSE b.type END
FROM based b JOIN pg_type y ON y.oid = b.type
LEFT JOIN (elements l JOIN pg_type e ON e.oid = l.type AND e.typtype <> 'd') ON l.declared = b.declared
WHERE y.typtype <> 'd'
"""


class TableState(NamedTuple):
    """A table in the catalog; ``state`` is a text that each change of it replaces."""

    relation: int
    schema: str
    table: str
    columns: Collection[str]
    state: str

    @property
    def name(self) -> TableName:
        return TableName(self.schema, self.table)


def states(statements: PostgresStatements, relations: Sequence[int]) -> list[TableState]:
    """Return the tables that exist: a read of a few rows of the catalog for each."""
    return [TableState(*row) for row in statements.execute(_STATES, (list(relations),)).fetchall()]


def base_types(database: TunnelDatabase, relations: Sequence[int]) -> Mapping[int, int]:
    """Return the declared types of the columns of tables → the oids of types with the same format in the log.

    It is another type only for domains and enums.
    """
    return {int(declared): int(base) for declared, base in database.query(_BASE_TYPES, (list(relations),))}


def definitions(
    statements: PostgresStatements, relations: Sequence[int], base_types: Mapping[int, int]
) -> dict[int, tuple[str, Definition]]:
    """Return the definitions of tables that exist, each with its state.

    Args:
        base_types: the declared types of their columns → types with the same format in the log.
    """
    # Before the snapshot of the next statement; the LSN in its result is later than its snapshot.
    before = statements.first("SELECT pg_current_wal_insert_lsn() - '0/0'")
    by_relation = {}
    rows = statements.execute(_DEFINITIONS, (list(relations),)).fetchall()
    for relation, state, name, file, xid, attributes, key, columns, leaves, constraint, full, lsn, dropped in rows:
        typed = (CatalogColumn(*each) for each in columns or ())
        by_relation[relation] = (
            state,
            Definition(
                name,
                file,
                xid,
                attributes,
                key,
                [column._replace(base=base_types.get(column.type, column.type)) for column in typed],
                {oid: Leaf(*each) for oid, each in (leaves or {}).items()},
                constraint,
                full,
                int(lsn),
                None if before is None else int(before[0]),
                dropped=dropped,
            ),
        )
    return by_relation


def newer_than_slot(statements: PostgresStatements, relations: Sequence[int], slot: str) -> set[int]:
    """Return the tables whose definitions may be newer than the first changes of a slot."""
    return {relation for (relation,) in statements.execute(_NEWER, (slot, list(relations))).fetchall()}


def attached_with_rows(statements: PostgresStatements, root: int, oid: str, leaf: Leaf) -> bool:
    """Return whether a partition has rows from before it was attached; true if the user may not look."""
    link = statements.first(_ATTACHED, {"root": root, "leaf": oid})
    if link is None:
        return False
    xid, command, created, readable = link
    if created:
        return False
    return not readable or _has_row(
        statements, leaf, f"age(t.xmin) > age('{xid}'::xid) OR (t.xmin = '{xid}' AND t.cmin::text::bigint < {command})"
    )


def quoted(statements: PostgresStatements, schema: str, table: str) -> str:
    """Return the name of a table as `Definition` and `Leaf` have it."""
    row = statements.first("SELECT format('%%I.%%I', %s::text, %s::text)", (schema, table))
    assert row is not None
    return str(row[0])


def file_xid(statements: PostgresStatements, oid: str) -> int | None:
    """Return the transaction that has given a partition its file; 32 bits. None if that is not known.

    It is the one that has written the row of its primary key's index in the catalog: each new file of a table gives its
    indexes new ones. Changes of columns, which keep the file, write only the row of the table.
    """
    row = statements.first(
        "SELECT c.xmin::text::bigint FROM pg_index i JOIN pg_class c ON c.oid = i.indexrelid"
        " WHERE i.indrelid = %s::oid AND i.indisprimary",
        (oid,),
    )
    return None if row is None else int(row[0])


def may_be_truncated(statements: PostgresStatements, oid: str, leaf: Leaf, xid: int) -> bool:
    """Return whether a partition with a new file may be without rows that it had.

    VACUUM FULL and CLUSTER keep the transactions that have written rows, and TRUNCATE removes the rows.

    Args:
        xid: rows of transactions before it are older than the former file.
    """
    rights = statements.first(
        "SELECT has_table_privilege(%(leaf)s::oid, 'SELECT') AND NOT row_security_active(%(leaf)s::oid)", {"leaf": oid}
    )
    readable = rights is not None and rights[0]
    return not readable or not _has_row(statements, leaf, f"age(t.xmin) > age('{xid % (1 << 32)}'::xid)")


def _has_row(statements: PostgresStatements, leaf: Leaf, condition: str) -> bool:
    # `name` is quoted by the server.
    cursor = statements.connection.execute(f"SELECT EXISTS (SELECT FROM ONLY {leaf.name} t WHERE {condition})".encode())
    row = cursor.fetchone()
    return row is not None and bool(row[0])
