"""The tables of a catalog: statements, and what they return.

All functions take a connection of ADBC inside a transaction. Names are complete, because headrace's sessions find names
in ``pg_catalog`` only.
"""

from __future__ import annotations

import json
import uuid
from collections.abc import Iterator, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import pyarrow as pa
from psycopg import sql

from headrace.errors import NotFoundError, UnsupportedError
from headrace.model.tables.schema import TableSchema, parse_columns
from headrace.stores.postgres.for_lakes import Bulk
from headrace_lake.ducklake.columns import LakeColumn, every, parse
from headrace_lake.ducklake.names import DATABASE
from headrace_lake.ducklake.partitions import IDENTITY, FilePartition, PartitionField, Partitioning
from headrace_lake.ducklake.values import inlined_type
from headrace_lake.primary_keys import PRIMARY_KEY, key_text, schema_with_key

VERSION = "1.0"
MAIN = "main"
_TABLES = """
ducklake_metadata(key varchar NOT NULL, value varchar NOT NULL, scope varchar, scope_id bigint)
ducklake_snapshot(snapshot_id bigint PRIMARY KEY, snapshot_time timestamptz, schema_version bigint, next_catalog_id bigint, next_file_id bigint)
ducklake_snapshot_changes(snapshot_id bigint PRIMARY KEY, changes_made varchar, author varchar, commit_message varchar, commit_extra_info varchar)
ducklake_schema(schema_id bigint PRIMARY KEY, schema_uuid uuid, begin_snapshot bigint, end_snapshot bigint, schema_name varchar, path varchar, path_is_relative boolean)
ducklake_table(table_id bigint, table_uuid uuid, begin_snapshot bigint, end_snapshot bigint, schema_id bigint, table_name varchar, path varchar, path_is_relative boolean)
ducklake_view(view_id bigint, view_uuid uuid, begin_snapshot bigint, end_snapshot bigint, schema_id bigint, view_name varchar, dialect varchar, sql varchar, column_aliases varchar)
ducklake_tag(object_id bigint, begin_snapshot bigint, end_snapshot bigint, key varchar, value varchar)
ducklake_column_tag(table_id bigint, column_id bigint, begin_snapshot bigint, end_snapshot bigint, key varchar, value varchar)
ducklake_data_file(data_file_id bigint PRIMARY KEY, table_id bigint, begin_snapshot bigint, end_snapshot bigint, file_order bigint, path varchar, path_is_relative boolean, file_format varchar, record_count bigint, file_size_bytes bigint, footer_size bigint, row_id_start bigint, partition_id bigint, encryption_key varchar, mapping_id bigint, partial_max bigint)
ducklake_file_column_stats(data_file_id bigint, table_id bigint, column_id bigint, column_size_bytes bigint, value_count bigint, null_count bigint, min_value varchar, max_value varchar, contains_nan boolean, extra_stats varchar)
ducklake_file_variant_stats(data_file_id bigint, table_id bigint, column_id bigint, variant_path varchar, shredded_type varchar, column_size_bytes bigint, value_count bigint, null_count bigint, min_value varchar, max_value varchar, contains_nan boolean, extra_stats varchar)
ducklake_delete_file(delete_file_id bigint PRIMARY KEY, table_id bigint, begin_snapshot bigint, end_snapshot bigint, data_file_id bigint, path varchar, path_is_relative boolean, format varchar, delete_count bigint, file_size_bytes bigint, footer_size bigint, encryption_key varchar, partial_max bigint)
ducklake_column(column_id bigint, begin_snapshot bigint, end_snapshot bigint, table_id bigint, column_order bigint, column_name varchar, column_type varchar, initial_default varchar, default_value varchar, nulls_allowed boolean, parent_column bigint, default_value_type varchar, default_value_dialect varchar)
ducklake_table_stats(table_id bigint, record_count bigint, next_row_id bigint, file_size_bytes bigint)
ducklake_table_column_stats(table_id bigint, column_id bigint, contains_null boolean, contains_nan boolean, min_value varchar, max_value varchar, extra_stats varchar)
ducklake_partition_info(partition_id bigint, table_id bigint, begin_snapshot bigint, end_snapshot bigint)
ducklake_partition_column(partition_id bigint, table_id bigint, partition_key_index bigint, column_id bigint, transform varchar)
ducklake_file_partition_value(data_file_id bigint, table_id bigint, partition_key_index bigint, partition_value varchar)
ducklake_files_scheduled_for_deletion(data_file_id bigint, path varchar, path_is_relative boolean, schedule_start timestamptz)
ducklake_inlined_data_tables(table_id bigint, table_name varchar, schema_version bigint)
ducklake_column_mapping(mapping_id bigint, table_id bigint, type varchar)
ducklake_name_mapping(mapping_id bigint, column_id bigint, source_name varchar, target_field_id bigint, parent_column bigint, is_partition boolean)
ducklake_schema_versions(begin_snapshot bigint, schema_version bigint, table_id bigint)
ducklake_macro(schema_id bigint, macro_id bigint, macro_name varchar, begin_snapshot bigint, end_snapshot bigint)
ducklake_macro_impl(macro_id bigint, impl_id bigint, dialect varchar, sql varchar, type varchar)
ducklake_macro_parameters(macro_id bigint, impl_id bigint, column_id bigint, parameter_name varchar, parameter_type varchar, default_value varchar, default_value_type varchar)
ducklake_sort_info(sort_id bigint, table_id bigint, begin_snapshot bigint, end_snapshot bigint)
ducklake_sort_expression(sort_id bigint, table_id bigint, sort_key_index bigint, expression varchar, dialect varchar, sort_direction varchar, null_order varchar)
"""  # noqa: E501
_NOW = sql.SQL("clock_timestamp()")
# The same number in every process: two processes may create a catalog at once.
_LOCK = 0x6865_6164_6C61_6B65


@dataclass(frozen=True)
class InlinedTable:
    """A table with inlined rows. A table of a DuckLake has one for each version of its columns.

    Attributes:
        columns: the names of its columns, without DuckLake's own.
    """

    name: str
    columns: tuple[str, ...]


@dataclass(frozen=True)
class Definition:
    """A table as the catalog has it.

    Attributes:
        schema_version: the version of the catalog for which this is valid.
        path: its directory.
        inlined: the tables with inlined rows, the current one last.
        deletes: the table with deleted rows of files; None if there is none.
        partitioning: how new files are divided; None if they are not.
    """

    name: str
    id: int
    uuid: str
    schema_version: int
    path: Path
    columns: tuple[LakeColumn, ...]
    schema: TableSchema
    inlined: tuple[InlinedTable, ...]
    deletes: str | None
    partitioning: Partitioning | None

    @property
    def fields(self) -> pa.Schema:
        """The columns with the field ids of Parquet."""
        return pa.schema([column.field() for column in self.columns])

    def check_writable(self) -> None:
        """Raise `UnsupportedError` if headrace does not write files as the table divides them."""
        if self.partitioning is not None:
            self.partitioning.check(self.schema)

    def divided(self, rows: pa.Table, beside: pa.Table) -> Iterator[tuple[FilePartition | None, pa.Table]]:
        """Yield the partitions of rows, with the rows of another table that belong to each.

        Args:
            beside: as many rows.
        """
        if self.partitioning is None:
            yield None, beside
        else:
            yield from self.partitioning.divided(rows, beside)

    def file(self, path: str, is_relative: bool) -> Path:
        """Return the path of a file of the table."""
        return self.path / path if is_relative else Path(path)


class Lake:
    """Statements over a catalog.

    Args:
        catalog: the schema of PostgreSQL with the catalog's tables.
    """

    def __init__(self, catalog: str) -> None:
        self.catalog = catalog

    def table(self, name: str) -> sql.Identifier:
        """Return the complete name of a table of the catalog."""
        return sql.Identifier(self.catalog, name)

    def statement(self, text: str, **parts: Any) -> str:
        """Return a statement: ``{c}`` is the catalog's schema, other parts are values or pieces of SQL."""
        composed = {
            name: each if isinstance(each, sql.Composable) else sql.Literal(each) for name, each in parts.items()
        }
        return sql.SQL(text).format(c=sql.Identifier(self.catalog), **composed).as_string(None)

    def run(self, bulk: Bulk, text: str, **parts: Any) -> None:
        """Run a statement."""
        with bulk.cursor() as cursor:
            cursor.execute(self.statement(text, **parts))

    def insert(self, bulk: Bulk, table: str, **values: Any) -> None:
        """Insert a row. Columns without a value are null."""
        self.run(
            bulk,
            "INSERT INTO {c}.{table} ({columns}) VALUES ({values})",
            table=sql.Identifier(table),
            columns=sql.SQL(", ").join(map(sql.Identifier, values)),
            values=sql.SQL(", ").join(
                each if isinstance(each, sql.Composable) else sql.Literal(each) for each in values.values()
            ),
        )

    def rows(self, bulk: Bulk, text: str, **parts: Any) -> list[dict[str, Any]]:
        """Return the rows of a query."""
        found: list[dict[str, Any]] = self.arrow(bulk, text, **parts).to_pylist()
        return found

    def arrow(self, bulk: Bulk, text: str, **parts: Any) -> pa.Table:
        """Return the rows of a query as Arrow."""
        with bulk.cursor() as cursor:
            cursor.execute(self.statement(text, **parts))
            return cursor.fetch_arrow_table()

    def _quoted(self, name: str) -> str:
        """Return the complete name of a table as a text."""
        return self.table(name).as_string(None)

    def _has(self, bulk: Bulk, name: str) -> bool:
        """Return whether the catalog has a table."""
        found = self.rows(bulk, "SELECT to_regclass({name}) IS NOT NULL AS there", name=self._quoted(name))
        return bool(found[0]["there"])

    # -- the catalog --------------------------------------------------------------------------------------

    def exists(self, bulk: Bulk) -> bool:
        """Return whether there is a catalog.

        Raises:
            UnsupportedError: it has another version.
        """
        if not self._has(bulk, "ducklake_metadata"):
            return False
        version = self.setting(bulk, "version")
        if version is not None and version != VERSION:
            raise UnsupportedError("the catalog of this DuckLake has another version", received=version, valid=VERSION)
        if self.setting(bulk, "encrypted") == "true":
            raise UnsupportedError("headrace does not support encrypted DuckLakes")
        return version is not None

    def setting(self, bulk: Bulk, key: str) -> str | None:
        """Return a setting of the whole catalog."""
        found = self.rows(
            bulk, "SELECT value FROM {c}.ducklake_metadata WHERE key = {key} AND coalesce(scope, '') = ''", key=key
        )
        return found[0]["value"] if found else None

    def create(self, bulk: Bulk, data: str, creator: str) -> None:
        """Create the catalog, unless it exists.

        Args:
            data: the directory of the data files, which ends with a slash.
        """
        self.run(bulk, "SELECT pg_advisory_xact_lock({lock})", lock=_LOCK)
        if self.exists(bulk):
            return
        self.run(bulk, "CREATE SCHEMA IF NOT EXISTS {c}")
        for line in _TABLES.strip().splitlines():
            self.run(bulk, "CREATE TABLE IF NOT EXISTS {c}." + line)
        for key, value in (("version", VERSION), ("created_by", creator), ("data_path", data), ("encrypted", "false")):
            self.insert(bulk, "ducklake_metadata", key=key, value=value)
        self.insert(
            bulk,
            "ducklake_snapshot",
            snapshot_id=0,
            snapshot_time=_NOW,
            schema_version=0,
            next_catalog_id=1,
            next_file_id=0,
        )
        self.insert(bulk, "ducklake_snapshot_changes", snapshot_id=0, changes_made=f'created_schema:"{MAIN}"')
        self._create_schema(bulk, 0, 0, MAIN)

    def _create_schema(self, bulk: Bulk, number: int, snapshot: int, name: str) -> None:
        """Create a schema in a snapshot."""
        self.insert(
            bulk,
            "ducklake_schema",
            schema_id=number,
            schema_uuid=str(uuid.uuid4()),
            begin_snapshot=snapshot,
            schema_name=name,
            path=f"{_directory(name)}/",
            path_is_relative=True,
        )

    # -- tables -------------------------------------------------------------------------------------------

    def names(self, bulk: Bulk) -> list[str]:
        """Return the names of all tables."""
        found = self.rows(
            bulk,
            "SELECT s.schema_name, t.table_name FROM {c}.ducklake_table t JOIN {c}.ducklake_schema s USING (schema_id)"
            " WHERE t.end_snapshot IS NULL AND s.end_snapshot IS NULL",
        )
        return [name_of(row["schema_name"], row["table_name"]) for row in found]

    def has_name(self, bulk: Bulk, name: str) -> bool:
        """Return whether a table or a view has a name as DuckDB compares it: without upper and lower case."""
        schema, table = parts_of(name)
        found = self.rows(
            bulk,
            "SELECT s.schema_name, r.name FROM (SELECT schema_id, table_name AS name FROM {c}.ducklake_table"
            " WHERE end_snapshot IS NULL UNION ALL SELECT schema_id, view_name FROM {c}.ducklake_view"
            " WHERE end_snapshot IS NULL) r JOIN {c}.ducklake_schema s USING (schema_id) WHERE s.end_snapshot IS NULL",
        )
        return any(
            (row["schema_name"].lower(), row["name"].lower()) == (schema.lower(), table.lower()) for row in found
        )

    def schema_version(self, bulk: Bulk) -> int:
        """Return the version of all definitions."""
        found = self.rows(bulk, "SELECT schema_version FROM {c}.ducklake_snapshot ORDER BY snapshot_id DESC LIMIT 1")
        return int(found[0]["schema_version"])

    def definition(self, bulk: Bulk, name: str) -> Definition:
        """Return the definition of a table.

        Raises:
            NotFoundError: there is no such table.
            UnsupportedError: headrace does not support what the table has.
        """
        schema, table = parts_of(name)
        found = self.rows(
            bulk,
            "SELECT t.table_id, t.table_uuid::text AS uuid, t.path, t.path_is_relative, s.path AS schema_path,"
            " s.path_is_relative AS schema_is_relative,"
            " (SELECT schema_version FROM {c}.ducklake_snapshot ORDER BY snapshot_id DESC LIMIT 1) AS schema_version,"
            " (SELECT value FROM {c}.ducklake_metadata WHERE key = 'data_path' AND coalesce(scope, '') = '') AS data,"
            " (SELECT value FROM {c}.ducklake_tag g WHERE g.object_id = t.table_id AND g.key = {key}"
            "  AND g.end_snapshot IS NULL LIMIT 1) AS key,"
            " (SELECT json_agg(json_build_array(p.partition_id, f.column_id, f.transform)"
            "  ORDER BY f.partition_key_index)::text FROM {c}.ducklake_partition_info p"
            "  JOIN {c}.ducklake_partition_column f USING (partition_id)"
            "  WHERE p.table_id = t.table_id AND p.end_snapshot IS NULL) AS partitioning"
            " FROM {c}.ducklake_table t JOIN {c}.ducklake_schema s USING (schema_id)"
            " WHERE t.end_snapshot IS NULL AND s.end_snapshot IS NULL AND s.schema_name = {schema}"
            " AND t.table_name = {table}",
            key=PRIMARY_KEY,
            schema=schema,
            table=table,
        )
        if not found:
            raise NotFoundError(
                "no such DuckLake table",
                received=repr(name),
                valid=sorted(self.names(bulk)),
                remedy=f"a table of the database has the prefix {DATABASE}",
            )
        row = found[0]
        columns = parse(
            name,
            self.rows(
                bulk,
                "SELECT column_id, end_snapshot, column_name, column_type, initial_default, nulls_allowed,"
                " parent_column FROM {c}.ducklake_column WHERE table_id = {table} ORDER BY column_order, column_id",
                table=row["table_id"],
            ),
        )
        names = [column.name for column in columns]
        inlined = self.rows(
            bulk,
            "SELECT i.table_name, array_to_json(array_agg(a.attname::text))::text AS columns"
            " FROM {c}.ducklake_inlined_data_tables i"
            " JOIN pg_class r ON r.relname = i.table_name AND r.relnamespace = {namespace}::regnamespace"
            " JOIN pg_attribute a ON a.attrelid = r.oid AND a.attnum > 0 AND NOT a.attisdropped"
            " WHERE i.table_id = {table} GROUP BY i.table_name, i.schema_version ORDER BY i.schema_version",
            table=row["table_id"],
            namespace=sql.Identifier(self.catalog).as_string(None),
        )
        deletes = _deletes_of(row["table_id"])
        return Definition(
            name,
            row["table_id"],
            row["uuid"],
            row["schema_version"],
            _path_of(row),
            columns,
            _schema(name, columns, row["key"]),
            tuple(
                InlinedTable(each["table_name"], tuple(n for n in names if n in set(json.loads(each["columns"]))))
                for each in inlined
            ),
            deletes if self._has(bulk, deletes) else None,
            _partitioning(columns, row["partitioning"]),
        )

    def is_current(self, bulk: Bulk, definition: Definition) -> bool:
        """Return whether a definition of the current version has all tables with inlined rows and deletes.

        DuckDB creates them when it first needs them, without another version.
        """
        found = self.rows(
            bulk,
            "SELECT coalesce((SELECT array_to_json(array_agg(table_name ORDER BY schema_version))::text"
            " FROM {c}.ducklake_inlined_data_tables WHERE table_id = {table}), '[]') AS inlined,"
            " to_regclass({deletes}) IS NOT NULL AS deletes",
            table=definition.id,
            deletes=self._quoted(_deletes_of(definition.id)),
        )
        names = [each.name for each in definition.inlined]
        has_deletes = definition.deletes is not None
        return bool(json.loads(found[0]["inlined"]) == names and found[0]["deletes"] == has_deletes)

    def create_table(
        self, bulk: Bulk, name: str, schema: TableSchema, columns: Sequence[LakeColumn], partitions: Sequence[str]
    ) -> None:
        """Create a table in a snapshot of its own. Its schema is created if it is missing.

        Args:
            partitions: the partition columns.
        """
        lake_schema, table = parts_of(name)
        snapshot = Snapshot.next(self, bulk)
        found = self.rows(
            bulk,
            "SELECT schema_id FROM {c}.ducklake_schema WHERE schema_name = {name} AND end_snapshot IS NULL",
            name=lake_schema,
        )
        made = []
        if found:
            schema_id = found[0]["schema_id"]
        else:
            schema_id = snapshot.new_id()
            self._create_schema(bulk, schema_id, snapshot.id, lake_schema)
            made.append(f"created_schema:{_quoted(lake_schema)}")
        table_id = snapshot.new_id()
        snapshot.schema_version += 1
        self.insert(
            bulk,
            "ducklake_table",
            table_id=table_id,
            table_uuid=str(uuid.uuid4()),
            begin_snapshot=snapshot.id,
            schema_id=schema_id,
            table_name=table,
            path=f"{_directory(table)}/",
            path_is_relative=True,
        )
        if schema.primary_key:
            self.insert(
                bulk,
                "ducklake_tag",
                object_id=table_id,
                begin_snapshot=snapshot.id,
                key=PRIMARY_KEY,
                value=key_text(schema),
            )
        if partitions:
            self._add_partitioning(bulk, snapshot, table_id, [c.id for n in partitions for c in columns if c.name == n])
        self.add_columns(bulk, snapshot, table_id, columns, columns)
        made.append(f"created_table:{_quoted(lake_schema)}.{_quoted(table)}")
        snapshot.finish(bulk, made)

    def _add_partitioning(self, bulk: Bulk, snapshot: Snapshot, table_id: int, columns: Sequence[int]) -> None:
        number = snapshot.new_id()
        self.insert(bulk, "ducklake_partition_info", partition_id=number, table_id=table_id, begin_snapshot=snapshot.id)
        for place, column in enumerate(columns):
            self.insert(
                bulk,
                "ducklake_partition_column",
                partition_id=number,
                table_id=table_id,
                partition_key_index=place,
                column_id=column,
                transform=IDENTITY,
            )

    def add_columns(
        self,
        bulk: Bulk,
        snapshot: Snapshot,
        table_id: int,
        added: Sequence[LakeColumn],
        columns: Sequence[LakeColumn],
    ) -> None:
        """Add columns to a table, in a snapshot with a new version of the definitions.

        Args:
            columns: all columns of the table, with the new ones.
        """
        orders = {column.id: place for place, column in enumerate(every(columns), 1)}
        parents = {inner.id: column.id for column in every(columns) for inner in column.inner}
        for column in every(added):
            self.insert(
                bulk,
                "ducklake_column",
                column_id=column.id,
                begin_snapshot=snapshot.id,
                table_id=table_id,
                column_order=orders[column.id],
                column_name=column.name,
                column_type=column.kind,
                default_value="NULL",
                nulls_allowed=column.nullable,
                parent_column=parents.get(column.id),
                default_value_type="" if column.inner else "literal",
                default_value_dialect="duckdb",
            )
        if any(column.inner for column in columns):
            # headrace does not parse the texts of nested values: DuckDB writes them into files, too.
            self.run(
                bulk,
                "INSERT INTO {c}.ducklake_metadata (key, value, scope, scope_id)"
                " SELECT 'data_inlining_row_limit', '0', 'table', {table}"
                " WHERE NOT EXISTS (SELECT FROM {c}.ducklake_metadata"
                " WHERE key = 'data_inlining_row_limit' AND scope = 'table' AND scope_id = {table})",
                table=table_id,
            )
        name = f"ducklake_inlined_data_{table_id}_{snapshot.schema_version}"
        fields = [
            sql.SQL("{} {}").format(sql.Identifier(column.name), sql.SQL(inlined_type(column))) for column in columns
        ]
        self.run(
            bulk,
            "CREATE TABLE {c}.{name} (row_id bigint, begin_snapshot bigint, end_snapshot bigint, {fields})",
            name=sql.Identifier(name),
            fields=sql.SQL(", ").join(fields),
        )
        self.run(
            bulk,
            "CREATE TABLE IF NOT EXISTS {c}.{name} (file_id bigint, row_id bigint, begin_snapshot bigint)",
            name=sql.Identifier(_deletes_of(table_id)),
        )
        self.insert(
            bulk,
            "ducklake_inlined_data_tables",
            table_id=table_id,
            table_name=name,
            schema_version=snapshot.schema_version,
        )
        self.insert(
            bulk,
            "ducklake_schema_versions",
            begin_snapshot=snapshot.id,
            schema_version=snapshot.schema_version,
            table_id=table_id,
        )

    def drop_table(self, bulk: Bulk, definition: Definition) -> None:
        """Drop a table. Its files are kept for earlier snapshots, as DuckDB keeps them."""
        snapshot = Snapshot.next(self, bulk)
        snapshot.schema_version += 1
        for name, column in (
            ("ducklake_table", "table_id"),
            ("ducklake_column", "table_id"),
            ("ducklake_data_file", "table_id"),
            ("ducklake_delete_file", "table_id"),
            ("ducklake_tag", "object_id"),
            ("ducklake_column_tag", "table_id"),
            ("ducklake_partition_info", "table_id"),
        ):
            self.run(
                bulk,
                "UPDATE {c}.{name} SET end_snapshot = {snapshot} WHERE {column} = {table} AND end_snapshot IS NULL",
                name=sql.Identifier(name),
                column=sql.Identifier(column),
                snapshot=snapshot.id,
                table=definition.id,
            )
        snapshot.finish(bulk, [f"dropped_table:{definition.id}"])


@dataclass
class Snapshot:
    """The snapshot that a transaction adds. Its row excludes other writers until the transaction ends.

    Attributes:
        schema_version: the version of the definitions.
        next_catalog_id: the number of the next schema, table or view.
        next_file_id: the number of the next file.
    """

    lake: Lake
    id: int
    schema_version: int
    next_catalog_id: int
    next_file_id: int

    @classmethod
    def next(cls, lake: Lake, bulk: Bulk) -> Snapshot:
        """Take the next snapshot; wait for a writer that has it.

        All that the transaction reads afterwards is of the snapshot before: no other one can be committed.
        """
        while True:
            found = lake.rows(
                bulk,
                "INSERT INTO {c}.ducklake_snapshot (snapshot_id, snapshot_time, schema_version, next_catalog_id,"
                " next_file_id) SELECT snapshot_id + 1, clock_timestamp(), schema_version,"
                " next_catalog_id, next_file_id FROM {c}.ducklake_snapshot ORDER BY snapshot_id DESC LIMIT 1"
                " ON CONFLICT DO NOTHING RETURNING snapshot_id, schema_version, next_catalog_id, next_file_id",
            )
            if found:
                return cls(lake, *found[0].values())

    def new_id(self) -> int:
        """Return the number of a new schema or table."""
        self.next_catalog_id += 1
        return self.next_catalog_id - 1

    def new_file_id(self) -> int:
        """Return the number of a new file."""
        self.next_file_id += 1
        return self.next_file_id - 1

    def finish(self, bulk: Bulk, changes: Sequence[str], information: dict[str, Any] | None = None) -> int:
        """Write what the snapshot has changed, for readers and for writers that look for conflicts.

        Returns:
            The number of the newest snapshot: without a change there is no new one.
        """
        if not changes:
            self.lake.run(bulk, "DELETE FROM {c}.ducklake_snapshot WHERE snapshot_id = {id}", id=self.id)
            return self.id - 1
        self.lake.run(
            bulk,
            "WITH changes AS (INSERT INTO {c}.ducklake_snapshot_changes"
            " (snapshot_id, changes_made, author, commit_extra_info) VALUES ({id}, {made}, 'headrace', {info}))"
            " UPDATE {c}.ducklake_snapshot SET schema_version = {version}, next_catalog_id = {catalog},"
            " next_file_id = {file} WHERE snapshot_id = {id}",
            id=self.id,
            made=",".join(changes),
            info=None if information is None else json.dumps(information),
            version=self.schema_version,
            catalog=self.next_catalog_id,
            file=self.next_file_id,
        )
        return self.id


# -- names and paths ----------------------------------------------------------------------------------------------


def parts_of(name: str) -> tuple[str, str]:
    """Return the schema and the name of a table."""
    schema, dot, table = name.partition(".")
    return (schema, table) if dot else (MAIN, schema)


def name_of(schema: str, table: str) -> str:
    """Return the name of a table in headrace: without the schema, if that is the main one."""
    return table if schema == MAIN else f"{schema}.{table}"


def _deletes_of(table_id: int) -> str:
    """Return the name of the table with deleted rows of files."""
    return f"ducklake_inlined_delete_{table_id}"


def _directory(name: str) -> str:
    """Return the name of a directory: DuckDB takes a UUID for names that paths spell differently."""
    return name if name.isidentifier() and name.isascii() else uuid.uuid4().hex


def _quoted(name: str) -> str:
    return '"' + name.replace('"', '""') + '"'


def _path_of(row: dict[str, Any]) -> Path:
    data = row["data"]
    if "://" in data:
        raise UnsupportedError("the data files of a DuckLake must be in a directory", received=data.partition("?")[0])
    path = Path(data)
    for name, relative in ((row["schema_path"], row["schema_is_relative"]), (row["path"], row["path_is_relative"])):
        path = path / name if relative else Path(name)
    return path


def _partitioning(columns: Sequence[LakeColumn], text: str | None) -> Partitioning | None:
    """Return the partitioning of a table.

    Args:
        text: JSON: for each field the number of the partitioning, that of a column, and the transform.
    """
    if text is None:
        return None
    names = {column.id: column.name for column in columns}
    found = json.loads(text)
    return Partitioning(found[0][0], tuple(PartitionField(names[number], how) for _, number, how in found))


def _schema(name: str, columns: Sequence[LakeColumn], key: str | None) -> TableSchema:
    return schema_with_key(
        parse_columns(pa.schema([column.field(numbered=False) for column in columns])),
        key,
        name=name,
        missing=f"DuckLake table {name!r} has no tag {PRIMARY_KEY}",
        remedy="create the table with headrace, and copy the rows",
        kind="tag",
    )
