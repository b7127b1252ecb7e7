"""Changes of a table's columns: the statements, and the table after them within their transaction."""

from __future__ import annotations

import dataclasses
from collections.abc import Iterator, Mapping
from dataclasses import dataclass
from typing import TYPE_CHECKING

import pyarrow as pa
from psycopg import sql

from headrace.model.tables.alterations import Alteration
from headrace.model.tables.column_limits import check_columns
from headrace.model.tables.schema import Column
from headrace.stores.postgres.names import check_name
from headrace.stores.postgres.schemas import TableLayout, column_of
from headrace.stores.postgres.tables import stored_tables
from headrace.stores.postgres.unrepresentable import Choices

if TYPE_CHECKING:
    import adbc_driver_postgresql.dbapi as adbc

MAX_COLUMNS, MAX_KEY_COLUMNS = 1600, 32


def statements(table: TableLayout, alteration: Alteration, own: str) -> list[sql.Composed]:
    """Return the statements of an alteration, for one transaction.

    Args:
        own: the schema of headrace's own objects.

    Raises:
        SchemaError: a column does not exist, or cannot have the change.
        UnsupportedError: the table is a view, or PostgreSQL has no type for a column.
    """
    stored_tables.check_table(table)
    check_columns(alteration.applied(table.schema), MAX_COLUMNS, MAX_KEY_COLUMNS)
    steps = [sql.SQL("DROP COLUMN {}").format(sql.Identifier(name)) for name in alteration.dropped]
    steps += _renames(alteration.renamed)
    for name, data_type in alteration.widened.items():
        column, kind = sql.Identifier(name), stored_tables.sql_type(Column(name, data_type), own)
        # An implicit conversion, except for the text of a number.
        using = sql.SQL("USING {}::pg_catalog.text").format(column) if data_type == pa.string() else sql.SQL("")
        steps.append(sql.SQL("ALTER COLUMN {} TYPE {} {}").format(column, kind, using))
    steps += [sql.SQL("ALTER COLUMN {} DROP NOT NULL").format(sql.Identifier(name)) for name in alteration.relaxed]
    for added in alteration.added:
        check_name("column", added.name)
        kind, column = stored_tables.sql_type(added, own), sql.Identifier(added.name)
        value = alteration.values.get(added.name)
        if value is None:
            steps.append(sql.SQL("ADD COLUMN {} {}").format(column, kind))
            continue
        # The server keeps one value for all rows, and writes none of them again.
        default = sql.SQL("ADD COLUMN {} {} DEFAULT {}").format(column, kind, sql.Literal(value))
        steps += [default, sql.SQL("ALTER COLUMN {} DROP DEFAULT").format(column)]
    return [sql.SQL("ALTER TABLE {} {}").format(table.name.sql, step) for step in steps]


def _renames(names: Mapping[str, str]) -> Iterator[sql.Composed]:
    """Yield one rename after the other; names that are still in use are given in a second round."""
    rename = sql.SQL("RENAME COLUMN {} TO {}")
    later = {}
    for number, (name, new) in enumerate(names.items()):
        check_name("column", new)
        between = f"__headrace_{number}" if new in names else new
        yield rename.format(sql.Identifier(name), sql.Identifier(between))
        if between != new:
            later[between] = new
    for name, new in later.items():
        yield rename.format(sql.Identifier(name), sql.Identifier(new))


@dataclass(frozen=True)
class AlteredTable:
    """A table whose columns change in a transaction of ADBC.

    Attributes:
        before: the table before the transaction.
        own: the schema of headrace's own objects.
    """

    before: TableLayout
    alteration: Alteration
    own: str

    def alter(self, cursor: adbc.Cursor, choices: Choices) -> TableLayout:
        """Change the columns, and return the table as it is then."""
        cursor.execute(stored_tables.LOCK_LIMIT.as_string())
        for statement in statements(self.before, self.alteration, self.own):
            cursor.execute(statement.as_string())
        key = tuple(self.alteration.renamed.get(name, name) for name in self.before.primary_key)
        cursor.execute(stored_tables.columns_query(self.before.oid))
        columns = [column_of(row, key, self.own, self.before.name, choices) for row in cursor.fetchall()]
        return dataclasses.replace(self.before, columns=tuple(columns), primary_key=key)
