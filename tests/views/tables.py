"""Tables as values, and a database of DuckDB with their current rows."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field
from types import TracebackType
from typing import Any, TypeAlias

import duckdb
import pyarrow as pa

from headrace.model.types import parse_type

Row: TypeAlias = dict[str, Any]
Key: TypeAlias = tuple[Any, ...]


@dataclass(frozen=True)
class TableDefinition:
    """A table that views read.

    Attributes:
        columns: the types of the columns, as headrace writes them.
        key: the columns of the primary key.
        references: the columns that name a row of another table, with that table. Rows need not exist there.
        fixed: the columns that a change of a row leaves as they are, and that are never null.
        values: the values that new rows have in some columns; in others they have those of present rows.
    """

    columns: Mapping[str, str]
    key: tuple[str, ...]
    references: Mapping[str, str] = field(default_factory=dict)
    fixed: frozenset[str] = frozenset()
    values: Mapping[str, Sequence[Any]] = field(default_factory=dict)

    @property
    def schema(self) -> pa.Schema:
        return pa.schema([pa.field(name, parse_type(kind)) for name, kind in self.columns.items()])

    def key_of(self, row: Row) -> Key:
        return tuple(row[name] for name in self.key)

    def arrow(self, rows: Sequence[Row]) -> pa.Table:
        return pa.Table.from_pylist(list(rows), self.schema)


def connect() -> duckdb.DuckDBPyConnection:
    """Return a connection with one thread, which knows Spark's ``explode``."""
    duck = duckdb.connect(config={"threads": 1})
    duck.sql("CREATE MACRO explode(list) AS unnest(list)")
    duck.sql("CREATE MACRO explode(list) AS TABLE SELECT unnest(list) AS col")
    return duck


class Database:
    """The current rows of tables, in DuckDB: the oracle.

    It uses one thread, so that samples depend only on the seed.
    """

    def __init__(self, tables: Mapping[str, TableDefinition], rows: Mapping[str, pa.Table]) -> None:
        self.tables = tables
        self._duck = connect()
        self._columns = {name: ", ".join(table.columns) for name, table in tables.items()}
        for name, table in tables.items():
            self._with(rows[name].cast(table.schema), f"CREATE TABLE {name} AS SELECT {self._columns[name]} FROM given")

    def query(self, sql: str) -> pa.Table:
        """Return the answer of a query over the current rows."""
        return self._duck.sql(sql).to_arrow_table()

    def rows(self, table: str) -> pa.Table:
        return self.query(f"SELECT {self._columns[table]} FROM {table}").cast(self.tables[table].schema)

    def size(self, table: str) -> int:
        return int(self.query(f"SELECT count(*) AS n FROM {table}")["n"][0].as_py())

    def sample(self, table: str, places: Sequence[float]) -> list[Row]:
        """Return the rows at places between 0 (the oldest row) and 1 (the newest); places of deleted rows give none."""
        if not places:
            return []
        last = self.query(f"SELECT max(rowid) AS n FROM {table}")["n"][0].as_py()
        numbers = ", ".join({str(int(place * ((last or 0) + 1))) for place in places})
        return self._rows(f"SELECT {self._columns[table]} FROM {table} WHERE rowid IN ({numbers}) ORDER BY rowid")

    def existing(self, table: str, keys: Sequence[Key]) -> dict[Key, Row]:
        """Return the rows that have one of the keys."""
        definition = self.tables[table]
        columns = list(definition.key)
        wanted = pa.Table.from_pylist([dict(zip(columns, key, strict=True)) for key in keys], self._key_schema(table))
        rows = self._with_rows(
            wanted, f"SELECT {self._columns[table]} FROM {table} SEMI JOIN given USING ({', '.join(columns)})"
        )
        return {definition.key_of(row): row for row in rows}

    def replace(self, table: str, removed: Sequence[Key], added: Sequence[Row]) -> None:
        """Delete the rows with some keys, then insert rows."""
        definition = self.tables[table]
        columns = definition.key
        if removed:
            keys = pa.Table.from_pylist(
                [dict(zip(columns, key, strict=True)) for key in removed], self._key_schema(table)
            )
            same = " AND ".join(f"{table}.{name} = given.{name}" for name in columns)
            self._with(keys, f"DELETE FROM {table} USING given WHERE {same}")
        if added:
            self._with(definition.arrow(added), f"INSERT INTO {table} SELECT {self._columns[table]} FROM given")

    def close(self) -> None:
        self._duck.close()

    def __enter__(self) -> Database:
        return self

    def __exit__(
        self, kind: type[BaseException] | None, error: BaseException | None, trace: TracebackType | None
    ) -> None:
        self.close()

    def _key_schema(self, table: str) -> pa.Schema:
        return pa.schema([self.tables[table].schema.field(name) for name in self.tables[table].key])

    def _rows(self, sql: str) -> list[Row]:
        rows: list[Row] = self.query(sql).to_pylist()
        return rows

    def _with(self, given: pa.Table, sql: str) -> None:
        self._duck.register("given", given)
        self._duck.execute(sql)
        self._duck.unregister("given")

    def _with_rows(self, given: pa.Table, sql: str) -> list[Row]:
        self._duck.register("given", given)
        rows = self._rows(sql)
        self._duck.unregister("given")
        return rows
