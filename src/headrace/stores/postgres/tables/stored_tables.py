"""Tables in the catalog of PostgreSQL: listing, describing, creating and dropping."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from typing import Any, LiteralString

import psycopg
import pyarrow as pa
from psycopg import sql

from headrace.errors import AlreadyExistsError, NotFoundError, UnsupportedError
from headrace.model.own_names import of_users
from headrace.model.tables.options import TableOptions, check_option_names
from headrace.model.tables.schema import Column, TableSchema
from headrace.model.types import type_name
from headrace.stores.postgres.connection import PostgresConnection
from headrace.stores.postgres.names import TableName, check_name
from headrace.stores.postgres.own_tables import create_byte_domain
from headrace.stores.postgres.schemas import BYTE_DOMAIN, RELATIONS, TableLayout, column_of
from headrace.stores.postgres.unrepresentable import NO_CHOICES, Choices

FIXED_OPTIONS = TableOptions(retention_seconds=None)
"""The options of all tables that the write-ahead log has, except for the images of rows before a change."""
# An ALTER or DROP waits for readers, and everything else then waits for it.
LOCK_SECONDS = 10
LOCK_LIMIT = sql.SQL("SET LOCAL lock_timeout = {}").format(sql.Literal(f"{LOCK_SECONDS}s"))
"""Lets the statements of a transaction fail that wait longer for a lock."""
_TYPES_OF_COLUMNS: dict[pa.DataType, str] = {
    pa.bool_(): "boolean",
    pa.int16(): "smallint",
    pa.int32(): "integer",
    pa.int64(): "bigint",
    pa.float32(): "real",
    pa.float64(): "double precision",
    pa.string(): "text",
    pa.binary(): "bytea",
    pa.date32(): "date",
    pa.timestamp("us", tz="UTC"): "timestamp with time zone",
    pa.timestamp("us"): "timestamp without time zone",
}

_TABLES = """
SELECT n.nspname, c.relname
FROM pg_class c JOIN pg_namespace n ON n.oid = c.relnamespace
WHERE c.relkind IN ('r', 'p', 'v', 'm', 'f') AND n.nspname NOT IN ('pg_catalog', 'information_schema', 'pg_toast', %s)
    AND NOT n.nspname LIKE 'pg\\_temp\\_%%' AND NOT n.nspname LIKE 'pg\\_toast\\_temp\\_%%'
"""
# A change of a table or column is a new row of the catalog, with the identifier of its transaction.
_STATE = """
SELECT c.oid::bigint, c.xmin::text, i.indexrelid::bigint,
    (SELECT string_agg(a.xmin::text, ' ' ORDER BY a.attnum) FROM pg_attribute a WHERE a.attrelid = c.oid),
    CASE WHEN c.relkind = 'p' THEN (
        SELECT string_agg(concat_ws(' ', l.oid, l.xmin), ',' ORDER BY l.oid)
        FROM pg_partition_tree(c.oid) t JOIN pg_class l ON l.oid = t.relid
    ) END, c.relhassubclass AND EXISTS (SELECT FROM pg_inherits h WHERE h.inhparent = c.oid)
FROM pg_class c JOIN pg_namespace n ON n.oid = c.relnamespace
LEFT JOIN pg_index i ON i.indrelid = c.oid AND i.indisprimary
WHERE n.nspname = %s AND c.relname = %s AND c.relkind IN ('r', 'p', 'v', 'm', 'f')
"""
_NUMBERS = """
SELECT attname::text, attnum::int FROM pg_attribute WHERE attrelid = %s AND attnum > 0 AND NOT attisdropped
"""
# The counts of the statistics collector are newer than those of ANALYZE, but are lost in a crash of the server.
_STATISTICS = """
SELECT coalesce(sum(coalesce(nullif(pg_stat_get_live_tuples(c.oid), 0), greatest(c.reltuples, 0))), 0)::bigint,
    coalesce(sum(pg_total_relation_size(c.oid)), 0)::bigint
FROM pg_class c
WHERE c.oid = %(oid)s OR c.oid IN (SELECT relid FROM pg_partition_tree(%(oid)s) WHERE isleaf)
"""
_TABLE = """
SELECT c.oid, CASE c.relkind WHEN 'p' THEN (
    -- The log has the old rows of a partition by its own replica identity, which a new one does not inherit.
    SELECT bool_and(l.relreplident = 'f')
    FROM pg_partition_tree(c.oid) t JOIN pg_class l ON l.oid = t.relid WHERE t.isleaf OR l.oid = c.oid
) ELSE c.relreplident = 'f' END, c.relkind::text, c.relpersistence = 'p', (
    SELECT array_agg(a.attname::text ORDER BY k.place)
    FROM pg_index i
    CROSS JOIN LATERAL unnest(i.indkey::int2[]) WITH ORDINALITY k(number, place)
    JOIN pg_attribute a ON a.attrelid = c.oid AND a.attnum = k.number
    WHERE i.indrelid = c.oid AND i.indisprimary AND k.place <= i.indnkeyatts
), EXISTS (
    SELECT FROM pg_index i WHERE i.indrelid = c.oid AND i.indisprimary AND i.indimmediate AND NOT i.indisexclusion
), c.relhasrules, (
    SELECT h.inhrelid::regclass::text FROM pg_inherits h WHERE h.inhparent = c.oid AND c.relkind = 'r' LIMIT 1
)
FROM pg_class c JOIN pg_namespace n ON n.oid = c.relnamespace
WHERE n.nspname = %s AND c.relname = %s AND c.relkind IN ('r', 'p', 'v', 'm', 'f')
"""
_TREE = """
SELECT m.nspname::text, l.relname::text
FROM pg_class c JOIN pg_namespace n ON n.oid = c.relnamespace
JOIN pg_class l ON l.oid = c.oid OR l.oid IN (SELECT relid FROM pg_partition_tree(c.oid) WHERE c.relkind = 'p')
JOIN pg_namespace m ON m.oid = l.relnamespace
WHERE n.nspname = %s AND c.relname = %s ORDER BY l.oid <> c.oid, 1, 2
"""
# From PostgreSQL 15 on.
_PUBLICATIONS: LiteralString = """
SELECT p.pubname::text, bool_or(r.prattrs IS NOT NULL), bool_or(EXISTS (
    SELECT FROM regexp_matches(r.prqual::text, ':varattno (\\d+)', 'g') m
    JOIN pg_attribute a ON a.attrelid = r.prrelid AND a.attnum = m[1]::int WHERE a.attname <> ALL(%(key)s)
))
FROM pg_publication_rel r JOIN pg_publication p ON p.oid = r.prpubid
WHERE r.prrelid = %(oid)s OR r.prrelid IN (SELECT relid FROM pg_partition_tree(%(oid)s))
    OR r.prrelid IN (SELECT relid FROM pg_partition_ancestors(%(oid)s))
GROUP BY p.pubname ORDER BY 1
"""
_LISTS_VERSION = 150_000
# Each step goes from a domain to its type, or from an array to its elements, as deep as the types of headrace are.
_COLUMNS = """
WITH RECURSIVE based AS (
    SELECT attnum, atttypid AS type, atttypmod AS modifier, atttypid AS whole, atttypid AS named,
        false AS is_array, 0 AS depth
    FROM pg_attribute WHERE attrelid = %(oid)s AND attnum > 0 AND NOT attisdropped
    UNION ALL
    SELECT b.attnum, CASE y.typtype WHEN 'd' THEN y.typbasetype ELSE y.typelem END,
        CASE WHEN y.typtype = 'd' AND b.modifier = -1 THEN y.typtypmod ELSE b.modifier END,
        CASE WHEN y.typtype = 'd' AND NOT b.is_array THEN y.typbasetype ELSE b.whole END,
        CASE y.typtype WHEN 'd' THEN b.named ELSE y.typelem END,
        b.is_array OR y.typtype <> 'd', b.depth + 1
    FROM based b JOIN pg_type y ON y.oid = b.type
    WHERE y.typtype = 'd' OR y.typcategory = 'A' AND y.oid = (SELECT e.typarray FROM pg_type e WHERE e.oid = y.typelem)
        AND NOT b.is_array
)
SELECT a.attname, a.attnotnull, a.attgenerated::text, a.attidentity::text, a.atthasdef AND a.attgenerated = '',
    ARRAY[dn.nspname::text, d.typname::text],
    CASE WHEN y.typnamespace = 'pg_catalog'::regnamespace THEN y.typname ELSE format_type(y.oid, -1) END,
    b.is_array, b.modifier,
    format_type(b.whole, -1), format_type(b.whole, b.modifier),
    a.attcollation IN ('pg_catalog."C"'::regcollation, 'pg_catalog."POSIX"'::regcollation)
    OR a.attcollation = 'pg_catalog."default"'::regcollation AND (
        SELECT o.datcollate IN ('C', 'POSIX') AND COALESCE(to_jsonb(o) ->> 'datlocprovider', 'c') = 'c'
        FROM pg_database o WHERE o.datname = current_database()
    ), (
        -- The equality of the primary key: of extensions' types, it is in the schema of the extension. Other indexes
        -- than B-trees have another operator by this number: of ranges WITHOUT OVERLAPS, the one that overlaps.
        SELECT ARRAY[m.nspname::text, e.oprname::text]
        FROM pg_index i
        CROSS JOIN LATERAL unnest(i.indkey::int2[]) WITH ORDINALITY k(number, place)
        JOIN pg_opclass c ON c.oid = i.indclass[k.place - 1]
            AND c.opcmethod = (SELECT oid FROM pg_am WHERE amname = 'btree')
        JOIN pg_amop p ON p.amopfamily = c.opcfamily AND p.amoplefttype = c.opcintype
            AND p.amoprighttype = c.opcintype AND p.amopstrategy = 3
        JOIN pg_operator e ON e.oid = p.amopopr
        JOIN pg_namespace m ON m.oid = e.oprnamespace
        WHERE i.indrelid = a.attrelid AND i.indisprimary AND k.number = a.attnum
    ), (
        SELECT ARRAY[m.nspname::text, o.collname::text]
        FROM pg_collation o JOIN pg_namespace m ON m.oid = o.collnamespace
        WHERE o.oid = a.attcollation AND NOT o.collisdeterministic
    )
FROM (SELECT DISTINCT ON (attnum) * FROM based ORDER BY attnum, depth DESC) b
JOIN pg_attribute a ON a.attrelid = %(oid)s AND a.attnum = b.attnum
JOIN pg_type d ON d.oid = b.named
JOIN pg_namespace dn ON dn.oid = d.typnamespace
JOIN pg_type y ON y.oid = b.type
ORDER BY a.attnum
"""

_OVERLAP = """
SELECT FROM unnest(%(relations)s::oid[]) AS own
WHERE own = %(other)s OR own IN (SELECT pg_partition_ancestors(%(other)s::oid))
    OR %(other)s::oid IN (SELECT pg_partition_ancestors(own))
"""
_ROOT = """
SELECT n.nspname::text, c.relname::text FROM pg_class c JOIN pg_namespace n ON n.oid = c.relnamespace
WHERE c.oid = (SELECT coalesce(pg_partition_root(oid), oid) FROM pg_class WHERE oid = %s)
"""


def names(connection: psycopg.Connection, schema: str) -> list[str]:
    """Return the sorted names of the users' tables.

    Args:
        schema: the schema of headrace's own tables.
    """
    return sorted(TableName(*row).text for row in connection.execute(_TABLES, [schema]))


def state(connection: PostgresConnection, name: TableName) -> tuple[Any, ...] | None:
    """Return a value that every change of a table's columns, key or options replaces; None if there is no table.

    One read of a few rows of the catalog, where `layout` takes milliseconds.
    """
    if "\0" in name.schema + name.table:
        return None
    return connection.ask(lambda session: session.execute(_STATE, [name.schema, name.table]).fetchone())


def columns_query(oid: int) -> LiteralString:
    """Return the query for the columns of a table, of which `column_of` reads each row."""
    return _COLUMNS.replace("%(oid)s", str(int(oid)))


def layout(connection: psycopg.Connection, name: str, schema: str, choices: Choices) -> TableLayout:
    """Return a table as the catalog has it.

    Args:
        schema: the schema of headrace's own objects.
        choices: the option ``unrepresentable``.

    Raises:
        NotFoundError: there is no such table or view.
    """
    parsed = TableName.parse(name)
    row = connection.execute(_TABLE, [parsed.schema, parsed.table]).fetchone() if "\0" not in name else None
    if row is None:
        raise NotFoundError("no such table", received=repr(parsed.text), valid=of_users(names(connection, schema)))
    oid, pre_images, kind, logged, key, arbiter, rules, child = row
    primary_key = tuple(key or ())
    rows = connection.execute(columns_query(oid))
    columns = tuple(column_of(row, primary_key, schema, parsed, choices) for row in rows)
    numbers: dict[str, int] = dict(connection.execute(_NUMBERS, [oid]).fetchall())
    return TableLayout(parsed, oid, columns, primary_key, pre_images, kind, logged, arbiter, rules, child, numbers)


def overlap(connection: psycopg.Connection, relations: Sequence[int], other: int) -> bool:
    """Return whether a table is one of some, a partition of one, or has one of them as a partition."""
    row = connection.execute(_OVERLAP, {"relations": list(relations), "other": other}).fetchone()
    return row is not None


def root(connection: psycopg.Connection, oid: int) -> TableName | None:
    """Return the name of a table, and of a partition that of its partitioned table; None if it does not exist."""
    row = connection.execute(_ROOT, [oid]).fetchone()
    return None if row is None else TableName(*row)


def statistics(connection: psycopg.Connection, table: TableLayout) -> tuple[int, int]:
    """Return the estimated rows of a table, and its bytes on disk; of a partitioned table those of its partitions."""
    found = connection.execute(_STATISTICS, {"oid": table.oid}).fetchone()
    assert found is not None
    return int(found[0]), int(found[1])


def create(
    connection: psycopg.Connection, name: str, schema: TableSchema, options: Mapping[str, Any], own: str
) -> None:
    """Create a table.

    Args:
        own: the schema of headrace's own objects.

    Raises:
        AlreadyExistsError: the name is in use.
        UnsupportedError: PostgreSQL cannot have such a table.
    """
    parsed = TableName.of_new(name)
    _check_options(options)
    definitions = [_definition(column, own) for column in schema.columns]
    definitions = [
        sql.SQL('{} COLLATE "C"').format(each)
        if column.name in schema.primary_key and column.type == pa.string()
        else each
        for each, column in zip(definitions, schema.columns, strict=True)
    ]
    create_types(connection, schema.columns, own)
    key = sql.SQL(", ").join(map(sql.Identifier, schema.primary_key))
    statement = sql.SQL("CREATE TABLE {} ({}, PRIMARY KEY ({}))").format(
        parsed.sql, sql.SQL(", ").join(definitions), key
    )
    try:
        connection.execute(statement)
    except psycopg.errors.UniqueViolation:
        # Another session creates the table at the same time: the server notices it in its catalog.
        raise AlreadyExistsError("the name is in use", received=repr(name)) from None
    if options.get("pre_images"):
        _identify(connection, parsed, True)


def add_columns(connection: psycopg.Connection, table: TableLayout, columns: tuple[Column, ...], own: str) -> None:
    """Add attribute columns, which are null in existing rows."""
    check_table(table)
    create_types(connection, columns, own)
    added = sql.SQL(", ").join(sql.SQL("ADD COLUMN {}").format(_definition(column, own)) for column in columns)
    limit_lock_wait(connection)
    connection.execute(sql.SQL("ALTER TABLE {} {}").format(table.name.sql, added))


def drop(connection: psycopg.Connection, name: str, schema: str) -> None:
    """Drop a table.

    Raises:
        NotFoundError: it does not exist.
        UnsupportedError: it is a view, or another relation that is only read.
    """
    check_table(layout(connection, name, schema, NO_CHOICES))
    limit_lock_wait(connection)
    connection.execute(sql.SQL("DROP TABLE {}").format(TableName.parse(name).sql))


def check_table(table: TableLayout) -> None:
    """Raise `UnsupportedError` if a table is a view, or another relation that is only read."""
    if table.kind in RELATIONS:
        raise UnsupportedError(
            f"{table.name.text!r} is {RELATIONS[table.kind]}, which headrace only reads",
            remedy="change or drop it by SQL in PostgreSQL",
        )


def set_pre_images(connection: psycopg.Connection, table: TableLayout, wanted: bool) -> None:
    """Let changes contain the whole row before each change, or its key only; of a table with all its partitions."""
    check_table(table)
    _check_publications(connection, table, wanted)
    _identify(connection, table.name, wanted)


def _check_publications(connection: psycopg.Connection, table: TableLayout, wanted: bool) -> None:
    """Check that no publication would make the server refuse updates and deletes.

    A list of columns needs the identity of rows in it, and a filter of rows needs its columns in the identity.
    """
    if connection.info.server_version < _LISTS_VERSION:
        return
    rows = connection.execute(_PUBLICATIONS, {"oid": table.oid, "key": list(table.primary_key)}).fetchall()
    refusing = [name for name, listed, filtered in rows if (listed if wanted else filtered)]
    if refusing:
        raise UnsupportedError(
            f"with this option the server would refuse updates and deletes of table {table.name.text!r}",
            received=f"pre_images={wanted}; publications with "
            f"{'a list of columns' if wanted else 'a filter of rows by other columns than the key'}: "
            f"{', '.join(refusing)}",
            remedy="drop the tunnel of the publication, or the publication",
        )


def _identify(connection: psycopg.Connection, name: TableName, wanted: bool) -> None:
    limit_lock_wait(connection)
    identity = sql.SQL("FULL" if wanted else "DEFAULT")
    for names in connection.execute(_TREE, [name.schema, name.table]).fetchall():
        connection.execute(sql.SQL("ALTER TABLE {} REPLICA IDENTITY {}").format(TableName(*names).sql, identity))


def check_changes(changes: Mapping[str, Any]) -> bool | None:
    """Check changes of `TableOptions`; return the new value of ``pre_images``, or None if it does not change."""
    _check_options(changes)
    pre_images: bool | None = changes.get("pre_images")
    return pre_images


def _definition(column: Column, own: str) -> sql.Composable:
    check_name("column", column.name)
    kind = sql_type(column, own)
    return sql.SQL("{} {}{}").format(sql.Identifier(column.name), kind, sql.SQL("" if column.nullable else " NOT NULL"))


def create_types(connection: psycopg.Connection, columns: Sequence[Column], own: str) -> None:
    """Create the domain of bytes, if columns need it and it does not exist."""
    if any(pa.int8() in (column.type, getattr(column.type, "value_type", None)) for column in columns):
        create_byte_domain(connection, own)


def limit_lock_wait(connection: psycopg.Connection) -> None:
    """Let the statements of a transaction fail that wait long for a lock, behind which all other users wait."""
    connection.execute(LOCK_LIMIT)


def _check_options(options: Mapping[str, Any]) -> None:
    check_option_names(options)
    for name, value in options.items():
        if name == "pre_images":
            if not isinstance(value, bool):
                raise UnsupportedError("option pre_images is True or False", received=repr(value))
        elif name == "change_log" and value is False:
            # A table that needs no log has one, too.
            continue
        elif value not in (getattr(FIXED_OPTIONS, name), getattr(TableOptions(), name)):
            raise UnsupportedError(
                f"tables of PostgreSQL cannot have option {name}",
                received=repr(value),
                valid=repr(getattr(FIXED_OPTIONS, name)),
            )


def sql_type(column: Column, schema: str) -> sql.Composable:
    """Return the type of PostgreSQL for a new column.

    Args:
        schema: the schema of headrace's own objects, which has the domain of bytes.

    Raises:
        UnsupportedError: PostgreSQL has no type for the values.
    """
    if pa.types.is_list(column.type) and not pa.types.is_nested(column.type.value_type):
        if not column.type.value_field.nullable:
            raise _no_type(column, "elements of arrays may be null in PostgreSQL: leave out NOT NULL")
        return sql.SQL("{}[]").format(_simple_sql_type(Column(column.name, column.type.value_type), schema))
    return _simple_sql_type(column, schema)


def _simple_sql_type(column: Column, schema: str) -> sql.Composable:
    if pa.types.is_decimal(column.type):
        return sql.SQL(f"numeric({column.type.precision},{column.type.scale})")
    if column.type == pa.int8():
        return sql.Identifier(schema, BYTE_DOMAIN)
    if column.type not in _TYPES_OF_COLUMNS:
        raise _no_type(column, "use a string, for example with JSON")
    return sql.SQL(_TYPES_OF_COLUMNS[column.type])


def _no_type(column: Column, remedy: str) -> UnsupportedError:
    return UnsupportedError(
        f"PostgreSQL has no type for column {column.name!r}", received=type_name(column.type), remedy=remedy
    )
