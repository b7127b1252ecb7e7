"""Statements that change tables of headrace's formats and their rows: UPDATE, DELETE, TRUNCATE, ALTER TABLE, …

Spark evaluates expressions and conditions over a snapshot of the rows. The store then writes all changes in one call,
which is one transaction in stores that have them. Changes of other writers between the two are not seen: an UPDATE sets
only its own columns, and a row that was deleted meanwhile is inserted again.
"""

from __future__ import annotations

import contextlib
from collections.abc import Iterator
from dataclasses import fields
from typing import TYPE_CHECKING

from headrace.batches.sinks.targets import check_columns
from headrace.errors import AlreadyExistsError, SqlError, UnsupportedError
from headrace.model.tables.options import TableOptions
from headrace.model.types import type_name
from headrace.options.names import did_you_mean
from headrace.ports import Table
from headrace.sql_text.lexer import quote_name
from headrace.sql_text.script import Name, ScriptPart
from headrace.streaming_sql.assignment import assigned
from headrace.streaming_sql.catalog import Catalog, TableDefinition
from headrace.streaming_sql.language import statements as st
from headrace.streaming_sql.locations import location_of
from headrace.streaming_sql.new_tables import option_names
from headrace.streaming_sql.providers import is_headrace
from headrace.streaming_sql.results import Result
from headrace.streaming_sql.scripts import table_text
from headrace.streaming_sql.tables import Tables, column_types

if TYPE_CHECKING:
    import pyarrow as pa

    from headrace.model.tables.schema import TableSchema
    from headrace.ports import Queue


class TableStatements:
    """Runs statements about tables of headrace's formats. `own` tells them from Spark's tables."""

    def __init__(self, catalog: Catalog, tables: Tables) -> None:
        self._catalog = catalog
        self._tables = tables

    def own(self, statement: st.TableStatement) -> TableDefinition | None:
        """Return the definition of a statement's table; None if it is one of Spark's own tables.

        Raises:
            SqlError: the name is that of a scan, or of a definition with a format of Spark.
        """
        name = str(statement.target)
        if isinstance(statement, st.ReplaceTable):
            self._refuse_replacing(name, statement.provider)
        scan = self._catalog.find_scan(name)
        if scan is not None:
            raise SqlError(f"{name} is a scan, which can only be read", remedy=f"name its table, {scan.table}")
        found = self._catalog.find_table(name)
        if found is not None and not is_headrace(found.provider) and not isinstance(statement, st.ShowCreateTable):
            raise SqlError(
                f"table {found.name} can be read and inserted into only: its rows are not in a store of headrace",
                received=f"USING {found.provider}",
                remedy=f"write it anew: INSERT OVERWRITE {found.name} SELECT …",
            )
        return found

    def _refuse_replacing(self, name: str, provider: str) -> None:
        if is_headrace(provider) or self._catalog.find_table(name) is not None:
            raise UnsupportedError(
                f"table {name} cannot be replaced: tunnels and readers rely on its history",
                received="REPLACE TABLE",
                remedy=f"to replace its rows write INSERT OVERWRITE {name} SELECT …; for other columns, DROP TABLE "
                f"{name}, delete it with `headrace table drop`, and CREATE TABLE again",
            )

    # -- rows ---------------------------------------------------------------------------------------------

    def update(self, statement: st.Update, definition: TableDefinition) -> Result:
        with _table_of(definition, "UPDATE") as table:
            schema = table.schema
            chosen = [(self._attribute(name, schema), value) for name, value in statement.values]
            repeated = next((name for name, _ in chosen if [each for each, _ in chosen].count(name) > 1), None)
            if repeated is not None:
                raise SqlError("a column is set twice", received=repeated)
            values = [f"({value.text}) AS {quote_name(name)}" for name, value in chosen]
            rows = self._rows(statement, definition, schema, values)
            if rows.num_rows:
                table.update(rows)
        return Result(message=f"{rows.num_rows} rows of {definition.name} updated")

    def delete(self, statement: st.Delete, definition: TableDefinition) -> Result:
        with _table_of(definition, "DELETE") as table:
            if statement.where is None:
                return self.truncate(statement, definition)
            rows = self._rows(statement, definition, table.schema, [])
            if rows.num_rows:
                table.delete(rows)
        return Result(message=f"{rows.num_rows} rows of {definition.name} deleted")

    def truncate(self, statement: st.Truncate | st.Delete, definition: TableDefinition) -> Result:
        """Delete all rows, in one publication: the rows need not fit into memory."""
        nothing = self._query(f"SELECT * FROM {quote_name(definition.name)} WHERE false")
        self._tables.write(self._tables.spark_sql(nothing), definition, overwrite=True)
        return Result(message=f"all rows of {definition.name} deleted")

    def _rows(
        self, statement: st.Update | st.Delete, definition: TableDefinition, schema: TableSchema, values: list[str]
    ) -> pa.Table:
        """Return the keys of the rows that a statement changes, and values of columns."""
        from headrace.spark.versions import arrow_schema

        alias = quote_name(statement.alias or definition.name)
        columns = ", ".join([*(f"{alias}.{quote_name(name)}" for name in schema.primary_key), *values])
        condition = "" if statement.where is None else f" WHERE {statement.where.text}"
        text = f"SELECT {columns} FROM {quote_name(definition.name)} AS {alias}{condition}"
        frame = self._tables.spark_sql(self._query(text), of_script=False)
        frame = assigned(frame, column_types(definition), definition.name)
        # Without rows, too, as Spark checks the types of an UPDATE.
        check_columns(arrow_schema(frame.schema), schema, f"table {definition.name!r}")
        return frame.toArrow()

    @staticmethod
    def _query(text: str) -> ScriptPart:
        return ScriptPart(text, 0, len(text))

    @staticmethod
    def _attribute(name: Name, schema: TableSchema) -> str:
        """Return the name of a column outside of the key, which can follow the name of its table."""
        given = name.parts[-1]
        found = next((column for column in schema.names if column.lower() == given.lower()), None)
        if found is None:
            remedy = did_you_mean(given, schema.names)
            raise SqlError("no such column", received=given, valid=schema.names, remedy=remedy)
        if found in schema.primary_key:
            raise SqlError(
                "a column of the primary key cannot be set",
                received=found,
                valid=[column.name for column in schema.attributes],
                remedy="INSERT the row with its new key, and DELETE the old one",
            )
        return found

    def merge(self, statement: st.BatchMerge, definition: TableDefinition) -> Result:
        raise UnsupportedError(
            f"MERGE INTO {definition.name} is the body of a stream here",
            remedy=f"CREATE STREAM name MERGE INTO {definition.name} USING scan ON … merges changes as they come; of a "
            "batch of rows, INSERT INTO replaces the rows with the same keys, and UPDATE and DELETE change rows",
        )

    # -- tables -------------------------------------------------------------------------------------------

    def alter(self, statement: st.AlterTable, definition: TableDefinition) -> Result:
        if statement.problem is not None:
            raise statement.problem
        if statement.columns is None:
            raise UnsupportedError(
                f"ALTER TABLE {definition.name} can only add columns",
                valid=f"ALTER TABLE {definition.name} ADD COLUMNS [IF NOT EXISTS] (name type, …)",
                remedy="`headrace table set` changes the options of its change log; for other columns, create another "
                "table and INSERT INTO it the rows of this one",
            )
        with _table_of(definition, "ALTER TABLE") as table:
            known = {name.lower() for name in table.schema.names}
            existing = [name for name in statement.columns if name.lower() in known]
            if existing and not statement.if_not_exists:
                raise AlreadyExistsError(
                    f"table {definition.name} has this column",
                    received=", ".join(existing),
                    remedy="write ADD COLUMN IF NOT EXISTS in a script that runs again",
                )
            added = {name: kind for name, kind in statement.columns.items() if name not in existing}
            if added:
                table.add_columns(added)
        done = f"added {', '.join(added)} to {definition.name}" if added else f"{definition.name} has these columns"
        note = ""
        if added and definition.columns is not None:
            note = f"; its definition lists its columns: define {definition.name} without a list to read the new ones"
        return Result(message=f"{done}{note}")

    def show_create(self, statement: st.ShowCreateTable, definition: TableDefinition) -> Result:
        """Return the statement that creates a table as it is in its store, without secrets."""
        columns, options, divided = definition.columns, dict(definition.options), list[str]()
        if is_headrace(definition.provider):
            location = location_of(definition)
            with location.open_store() as store:
                found = location.open(store)
                if isinstance(found, Table):
                    columns = _columns_text(found.schema)
                    described = found.describe()
                    options |= _changed_options(described.options)
                    # CREATE TABLE has no functions of columns, and says so.
                    names = found.schema.names
                    divided = [quote_name(each) if each in names else each for each in described.partition_by]
        text = table_text(definition.name, columns, definition.provider, options, divided)
        return Result(("createtab_stmt",), ((text,),))


@contextlib.contextmanager
def _table_of(definition: TableDefinition, verb: str) -> Iterator[Table]:
    """Open the table of a definition.

    Raises:
        UnsupportedError: it is a queue.
    """
    location = location_of(definition)
    with location.open_store() as store:
        found: Table | Queue = location.open(store)
        if not isinstance(found, Table):
            raise UnsupportedError(
                f"{definition.name} is a queue, whose rows never change",
                received=verb,
                remedy="`headrace queue trim` removes its oldest rows",
            )
        yield found


def _columns_text(schema: TableSchema) -> str:
    columns = [
        f"{quote_name(column.name)} {type_name(column.type)}"
        + (" NOT NULL" if not column.nullable and column.name not in schema.primary_key else "")
        for column in schema.columns
    ]
    return ", ".join([*columns, f"PRIMARY KEY ({', '.join(map(quote_name, schema.primary_key))})"])


def _changed_options(options: TableOptions) -> dict[str, str]:
    default = TableOptions()
    shown = option_names()
    return {
        shown[each.name]: str(getattr(options, each.name)).lower()
        for each in fields(TableOptions)
        if each.name in shown and getattr(options, each.name) not in (None, getattr(default, each.name))
    }
