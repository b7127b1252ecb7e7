"""Random histories of PostgreSQL tables: a reader of a tunnel has the table in the end, or an error of headrace.

A history is a random table (types, key, partitions, identity), random settings of the role, and random changes of rows
between random changes of the table. A reader reads now and then, also with a new connection, and puts the rows of the
tunnel into a dictionary. Several thousand histories run by

    python -m tests.interop.postgres_histories --first 0 --count 1000
"""

from __future__ import annotations

import argparse
import collections
import random
import sys
import traceback
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any

import psycopg
import pyarrow as pa

import headrace
from headrace.errors import HeadraceError
from headrace.ports import Store, Tunnel
from tests.postgres_server import PROGRAMS, USER, PostgresServer, create_database

Row = dict[str, Any]

# Literals of each type. Keys use the first four.
VALUES: dict[str, tuple[str, ...]] = {
    "smallint": ("1", "-2", "3", "0", "32767"),
    "integer": ("1", "-2", "3", "0", "2147483647"),
    "bigint": ("1", "-2", "3", "0", "9223372036854775807"),
    "text": ("a", "b", "", "ä b", "x'y\"z\\", "{}"),
    "varchar(20)": ("a", "b", "c ", "", "ü"),
    "character(5)": ("a", "b", "c", "", "abcde"),
    "boolean": ("true", "false", "t", "f"),
    "real": ("1.5", "-0", "0.1", "1e-5", "1e20", "NaN"),
    "double precision": ("1.5", "-0", "0.1", "1e-5", "1e300", "16777216", "NaN"),
    "numeric": ("1", "1.0", "-2.50", "0", "NaN", "12345678901234567890.123456789"),
    "numeric(10,2)": ("1", "1.25", "-2.50", "0", "99999999.99"),
    "date": ("2024-01-01", "0044-03-15 BC", "1999-12-31", "2024-02-29", "12000-01-01"),
    "timestamp": ("2024-01-01 10:00:00", "2024-01-01 10:00:00.5", "1582-10-10 00:00:00", "0044-03-15 10:00 BC"),
    "timestamptz": ("2024-01-01 10:00:00+00", "2024-06-01 12:00:00.123456+02", "1900-01-01 00:00+00", "12000-01-01"),
    "time": ("10:00:00", "24:00:00", "00:00:00.5", "23:59:59.999999"),
    "interval": ("1 day", "24:00:00", "-1 mon", "1 year 2 days 03:04:05.6"),
    "uuid": tuple(f"00000000-0000-0000-0000-00000000000{digit}" for digit in range(5)),
    "bytea": ("\\x", "\\x00ff", "\\x61", "\\x0102"),
    "jsonb": ("1", '{"a": 1.0}', "[]", '"x"', "null"),
    "inet": ("10.0.0.1", "10.0.0.0/8", "::1", "fe80::/64"),
    "mood": ("sad", "ok", "happy", "sad"),
    "whole": ("1", "2", "3", "4"),
    '"char"': ("a", "b", "c", ""),
    "oid": ("1", "2", "3000000000", "4"),
    "integer[]": ("{}", "{1,NULL}", "{2}", "{1,2,3}"),
    "text[]": ("{}", "{a,NULL}", '{"a b",""}', "{x}"),
    "int4range": ("[1,5)", "empty", "(,3]", "[2,2]"),
}
# Changes of a type by the statement without USING.
ALTERATIONS = {
    "smallint": ("integer", "bigint", "text", "numeric"),
    "integer": ("bigint", "text", "numeric(10,2)", "smallint"),
    "bigint": ("numeric", "text"),
    "real": ("double precision", "text"),
    "double precision": ("text", "numeric"),
    "numeric": ("text", "double precision"),
    "numeric(10,2)": ("numeric(12,2)", "numeric(12,4)", "numeric", "text"),
    "varchar(20)": ("varchar(40)", "text", "varchar(5)"),
    "text": ("varchar(30)",),
    "character(5)": ("text", "varchar(20)"),
    "date": ("timestamp", "timestamptz", "text"),
    "timestamp": ("timestamptz", "date", "text"),
    "timestamptz": ("timestamp", "text"),
    "mood": ("text",),
    "whole": ("integer", "bigint", "text"),
    "uuid": ("text",),
    "inet": ("text",),
    "boolean": ("text",),
    "integer[]": ("bigint[]", "text[]", "text"),
}
# Settings of the role that change how a session shows or reads values.
SETTINGS = (
    "DateStyle = 'German'",
    "TimeZone = 'America/New_York'",
    "IntervalStyle = 'iso_8601'",
    "bytea_output = 'escape'",
    "extra_float_digits = '-3'",
    "client_encoding = 'LATIN1'",
    "quote_all_identifiers = 'on'",
    "search_path = 'nothing'",
    "default_transaction_isolation = 'serializable'",
    "statement_timeout = '20s'",
)


@dataclass
class Column:
    """A column as the history knows it; types that were altered have no more values of their own.

    Attributes:
        retyped: whether its type was altered since the last read. Values by a USING in the same time are not noticed
            in some types (docs/postgres.md), so the history has none.
    """

    name: str
    type: str
    key: bool = False
    retyped: bool = False


@dataclass
class History:
    """One history, by its seed."""

    seed: int
    database: str
    port: int
    log: list[str] = field(default_factory=list)
    columns: list[Column] = field(default_factory=list)
    state: dict[tuple[Any, ...], Row] = field(default_factory=dict)
    refused: HeadraceError | None = None

    def __post_init__(self) -> None:
        self.random = random.Random(self.seed)
        self.table = f"t{self.seed}"
        self.partitioned = self.random.random() < 0.2
        self.partitions = 0
        self.has_read = False
        self.role = f"r{self.seed}"

    # -- statements -----------------------------------------------------------------------------------

    def run(self, statement: str) -> bool:
        """Run statements in one transaction; return whether the server accepts them."""
        try:
            with self.connection.transaction():
                self.connection.execute(statement.encode())
        except psycopg.Error:
            return False
        self.log.append(statement)
        return True

    def create(self) -> None:
        types = list(VALUES)
        keys = self.random.choice((1, 1, 1, 2, 3))
        self.columns = [Column(f"k{number}", self.random.choice(types), True) for number in range(keys)]
        self.columns += [Column(f"c{number}", self.random.choice(types)) for number in range(self.random.randrange(5))]
        self.random.shuffle(self.columns)
        if self.partitioned:
            self.columns[0:0] = [Column("part", "integer", True)]
        defined = ", ".join(f"{column.name} {column.type}" for column in self.columns)
        key = ", ".join(column.name for column in self.columns if column.key)
        deferrable = " DEFERRABLE" if self.random.random() < 0.03 else ""
        by = " PARTITION BY LIST (part)" if self.partitioned else ""
        if not self.run(f"CREATE TABLE {self.table} ({defined}, PRIMARY KEY ({key}){deferrable}){by}"):
            raise AssertionError("the table cannot be created")
        if self.partitioned:
            for _ in range(2):
                self.add_partition()
        if self.random.random() < 0.5:
            self.run(f"ALTER TABLE {self.table} REPLICA IDENTITY FULL")
            for number in range(self.partitions):
                self.run(f"ALTER TABLE {self.table}_{number} REPLICA IDENTITY FULL")

    def literal(self, column: Column) -> str:
        values = VALUES.get(column.type, ("1", "2"))
        if column.name == "part":
            return f"'{self.random.randrange(max(1, self.partitions))}'"
        if not column.key and self.random.random() < 0.2:
            return "NULL"
        value = self.random.choice(values[:4] if column.key else values)
        return "'" + value.replace("'", "''") + "'"

    def change_rows(self) -> None:
        """Run a transaction with changes of rows."""
        statements = []
        for _ in range(self.random.choice((1, 1, 2, 4))):
            keys = [column for column in self.columns if column.key]
            chosen = " AND ".join(f"{column.name} = {self.literal(column)}::{column.type}" for column in keys)
            kind = self.random.random()
            if kind < 0.55:
                names = ", ".join(column.name for column in self.columns)
                values = ", ".join(self.literal(column) for column in self.columns)
                statements.append(f"INSERT INTO {self.table} ({names}) VALUES ({values}) ON CONFLICT DO NOTHING")
            elif kind < 0.85:
                moved = self.random.random() < 0.2
                cells = [column for column in self.columns if moved or not column.key]
                if cells:
                    column = self.random.choice(cells)
                    where = "" if self.random.random() < 0.1 else f" WHERE {chosen}"
                    statements.append(f"UPDATE {self.table} SET {column.name} = {self.literal(column)}{where}")
            else:
                statements.append(f"DELETE FROM {self.table} WHERE {chosen}")
        if statements:
            self.run("; ".join(statements))

    def add_partition(self) -> None:
        self.run(f"CREATE TABLE {self.table}_{self.partitions} PARTITION OF {self.table} "
                 f"FOR VALUES IN ({self.partitions})")  # fmt: skip
        self.partitions += 1

    # -- changes of the table --------------------------------------------------------------------------

    def rename(self) -> None:
        column = self.random.choice([each for each in self.columns if each.name != "part"])
        new = self.random.choice([f"n{len(self.log)}", *(each.name for each in self.columns)])
        other = next((each for each in self.columns if each.name == new), None)
        rename = f"ALTER TABLE {self.table} RENAME"
        if other is None or other is column or other.name == "part":
            new = f"n{len(self.log)}"
            if self.run(f"{rename} {column.name} TO {new}"):
                self.renamed({column.name: new})
                column.name = new
        elif self.run(f"{rename} {column.name} TO w; {rename} {new} TO {column.name}; {rename} w TO {new}"):
            self.renamed({column.name: new, new: column.name})
            column.name, other.name = new, column.name

    def renamed(self, names: dict[str, str]) -> None:
        self.state = {
            key: {names.get(name, name): value for name, value in row.items()} for key, row in self.state.items()
        }

    def rename_and_back(self) -> None:
        column = self.random.choice([each for each in self.columns if each.name != "part"])
        if self.run(f"ALTER TABLE {self.table} RENAME {column.name} TO away"):
            name, column.name = column.name, "away"
            self.change_rows()
            self.run(f"ALTER TABLE {self.table} RENAME away TO {name}")
            column.name = name

    def add_column(self) -> None:
        column = Column(f"a{len(self.log)}", self.random.choice(list(VALUES)))
        default = self.random.random() < 0.6
        value = self.literal(column)
        if self.run(
            f"ALTER TABLE {self.table} ADD {column.name} {column.type}{f' DEFAULT {value}' if default else ''}"
        ):
            self.columns.append(column)
            found = None
            if default and value != "NULL" and self.state:
                # As headrace shows the value of the rows that exist.
                self.fill(column.name)
                return
            for row in self.state.values():
                row[column.name] = found

    def fill(self, name: str) -> None:
        with self.opened() as store:
            rows = rows_of(store.table(self.table).scan(columns=[name]).read_all())
        for row in self.state.values():
            row[name] = rows[0][name] if rows else None

    def add_volatile_column(self) -> None:
        if self.state:
            # Nothing in the log says which values the rows got that were read before.
            return
        column = Column(f"v{len(self.log)}", "double precision")
        if self.run(f"ALTER TABLE {self.table} ADD {column.name} double precision DEFAULT random()"):
            self.columns.append(column)

    def drop_column(self) -> None:
        columns = [each for each in self.columns if not each.key]
        if columns:
            column = self.random.choice(columns)
            if self.run(f"ALTER TABLE {self.table} DROP {column.name}"):
                self.columns.remove(column)
                for row in self.state.values():
                    row.pop(column.name, None)

    def alter_type(self) -> None:
        if self.has_read:
            # The rows that were read have values of the old type.
            return
        columns = [each for each in self.columns if each.type in ALTERATIONS and each.name != "part"]
        if columns:
            column = self.random.choice(columns)
            new = self.random.choice(ALTERATIONS[column.type])
            zone = self.random.choice(("", "SET LOCAL TimeZone = 'America/New_York'; "))
            if self.run(f"{zone}ALTER TABLE {self.table} ALTER {column.name} TYPE {new}"):
                column.type, column.retyped = new, True

    def alter_using(self) -> None:
        types = ("integer", "bigint", "numeric(10,2)", "text")
        columns = [each for each in self.columns if each.type in types and not each.retyped]
        if columns:
            column = self.random.choice(columns)
            changed = "upper({0})" if column.type == "text" else "{0} * 2 + 1"
            using = changed.format(column.name)
            self.run(f"ALTER TABLE {self.table} ALTER {column.name} TYPE {column.type} USING {using}")

    def change_identity(self) -> None:
        self.run(f"ALTER TABLE {self.table} REPLICA IDENTITY {self.random.choice(('FULL', 'DEFAULT', 'NOTHING'))}")

    def change_key(self) -> None:
        others = [each for each in self.columns if not each.key and each.type in ("integer", "text", "uuid")]
        if others and not self.partitioned:
            column = self.random.choice(others)
            keys = ", ".join([each.name for each in self.columns if each.key] + [column.name])
            drop = f"ALTER TABLE {self.table} DROP CONSTRAINT {self.table}_pkey"
            if self.run(f"{drop}; ALTER TABLE {self.table} ADD PRIMARY KEY ({keys})"):
                column.key = True

    def change_partitions(self) -> None:
        if not self.partitioned:
            return
        number = self.random.randrange(max(1, self.partitions))
        self.random.choice(
            (
                self.add_partition,
                lambda: self.run(f"ALTER TABLE {self.table} DETACH PARTITION {self.table}_{number}"),
                lambda: self.run(f"DROP TABLE {self.table}_{number}"),
                lambda: self.run(f"TRUNCATE {self.table}_{number}"),
            )
        )()

    def inherit(self) -> None:
        if not self.partitioned:
            self.run(f"CREATE TABLE {self.table}_child () INHERITS ({self.table})")
            self.run(f"INSERT INTO {self.table}_child SELECT * FROM {self.table} LIMIT 1")

    def recreate_enum(self) -> None:
        if self.has_read:
            return
        moods = [each for each in self.columns if each.type == "mood"]
        if moods:
            column = self.random.choice(moods)
            new = f"mood{self.seed}_{len(self.log)}"
            self.run(
                f"CREATE TYPE {new} AS ENUM ('happy', 'ok', 'new', 'sad');"
                f"ALTER TABLE {self.table} ALTER {column.name} TYPE {new} USING {column.name}::text::{new}"
            )
            VALUES.setdefault(new, VALUES["mood"])
            column.type = new

    def rewrite(self) -> None:
        try:
            self.connection.execute(f"VACUUM FULL {self.table}".encode())
        except psycopg.Error:
            return

    CHANGES = (
        (6, rename), (3, rename_and_back), (6, add_column), (1, add_volatile_column), (4, drop_column), (6, alter_type),
        (1, alter_using), (2, change_identity), (1, change_key), (3, change_partitions), (1, inherit),
        (2, recreate_enum), (1, rewrite),
    )  # fmt: skip

    # -- reading ----------------------------------------------------------------------------------------

    def opened(self) -> Store:
        url = f"postgresql://{self.role}@127.0.0.1:{self.port}/{self.database}"
        return headrace.open(url, retry_seconds=5)

    def read(self, tunnel: Tunnel) -> None:
        """Put the changes that a tunnel has into the state."""
        self.has_read = True
        for column in self.columns:
            column.retyped = False
        for batch in tunnel.consume(client="reader", idle="stop", batch_rows=self.random.choice((1, 3, 1000))):
            key = tunnel.table.schema.primary_key
            for row in rows_of(batch.to_arrow()):
                kind = row["_change_type"]
                found = tuple(row[name] for name in key)
                if kind == "delete":
                    self.state.pop(found, None)
                elif kind != "update_preimage":
                    self.state[found] = {name: value for name, value in row.items() if not name.startswith("_")}

    def play(self) -> None:
        """Run the history, and compare at its end."""
        self.connection = psycopg.connect(
            host="127.0.0.1", port=self.port, user=USER, dbname=self.database, autocommit=True
        )
        with self.connection:
            self.run(f"CREATE ROLE {self.role} LOGIN SUPERUSER")
            if self.random.random() < 0.5:
                for setting in self.random.sample(SETTINGS, self.random.randrange(1, 4)):
                    self.run(f"ALTER ROLE {self.role} SET {setting}")
            self.create()
            for _ in range(self.random.randrange(12)):
                self.change_rows()
            name = f"tunnel{self.seed}"
            store: Store | None = None
            try:
                store = self.opened()
                tunnel = store.create_tunnel(self.table, name)
                for _ in range(self.random.randrange(1, 10)):
                    for _ in range(self.random.randrange(6)):
                        self.change_rows()
                    if self.random.random() < 0.4:
                        self.read(tunnel)
                    if self.random.random() < 0.3:
                        weights, changes = zip(*self.CHANGES, strict=True)
                        (change,) = self.random.choices(changes, weights)
                        change(self)
                    if self.random.random() < 0.3:
                        # The next tunnel of one store has the definitions that this one has seen.
                        if self.random.random() < 0.5:
                            store.close()
                            store = self.opened()
                        tunnel = store.tunnel(name, self.table)
                self.read(tunnel)
                self.compare(store)
            except HeadraceError as error:
                self.refused = error
            finally:
                if store is not None:
                    self.clean(store, name)

    def compare(self, store: Store) -> None:
        table = store.table(self.table)
        key = table.schema.primary_key
        rows = {tuple(row[name] for name in key): row for row in rows_of(table.scan().read_all())}
        got = {tuple(row.get(name) for name in key): row for row in self.state.values()}
        if not same(got, rows):
            wrong = [key for key in sorted({*got, *rows}, key=repr) if not same(got.get(key), rows.get(key))]
            shown = "\n".join(
                f"  {each!r}: read {got.get(each)!r}, PostgreSQL {rows.get(each)!r}" for each in wrong[:5]
            )
            raise AssertionError(f"seed {self.seed}: the reader has another table\n{shown}")

    def clean(self, store: Store, tunnel: str) -> None:
        try:
            store.drop_tunnel(tunnel, missing_ok=True)
        finally:
            store.close()
            self.run(f"DROP TABLE IF EXISTS {self.table} CASCADE")


def rows_of(table: pa.Table) -> list[Row]:
    """Return rows with times as numbers: Python has not all of them."""
    for place, column in enumerate(table.schema):
        number = {pa.date32(): pa.int32()}.get(column.type, pa.int64() if pa.types.is_timestamp(column.type) else None)
        if number is not None:
            table = table.set_column(place, column.name, table.column(place).cast(number))
    rows: list[Row] = table.to_pylist()
    return rows


def same(one: Any, other: Any) -> bool:
    """Return whether two values are the same, also NaN and the sign of zero."""
    return repr(one) == repr(other) if not isinstance(one, dict) else (
        isinstance(other, dict)
        and {repr(key) for key in one} == {repr(key) for key in other}
        and all(same(value, other[key]) if key in other else True for key, value in one.items())
    )  # fmt: skip


def prepared(port: int, database: str) -> None:
    """Create the database of histories, and its types."""
    create_database(port, database)
    with psycopg.connect(host="127.0.0.1", port=port, user=USER, dbname=database, autocommit=True) as connection:
        if connection.execute("SELECT FROM pg_type WHERE typname = 'mood'").rowcount == 0:
            connection.execute("CREATE TYPE mood AS ENUM ('sad', 'ok', 'happy'); CREATE DOMAIN whole AS integer")


def main() -> None:
    parser = argparse.ArgumentParser()
    parser.add_argument("--first", type=int, default=0)
    parser.add_argument("--count", type=int, default=100)
    parser.add_argument("--programs", type=Path, default=PROGRAMS)
    parser.add_argument("--most-failures", type=int, default=10)
    given = parser.parse_args()
    server = PostgresServer.start(given.programs)
    outcomes: collections.Counter[str] = collections.Counter()
    failures = 0
    try:
        prepared(server.port, "histories")
        for seed in range(given.first, given.first + given.count):
            history = History(seed, "histories", server.port)
            try:
                history.play()
                outcomes["equal" if history.refused is None else f"refused: {history.refused.problem[:90]}"] += 1
            except Exception as error:
                failures += 1
                outcomes["FAILED"] += 1
                shown = str(error) if isinstance(error, AssertionError) else traceback.format_exc()[-1500:]
                print(
                    f"--- seed {seed}",
                    shown,
                    ";\n".join(each[:200] for each in history.log[-14:]),
                    sep="\n",
                    flush=True,
                )
                if failures >= given.most_failures:
                    break
    finally:
        server.remove()
    for outcome, count in outcomes.most_common():
        print(f"{count:6d} {outcome}")
    sys.exit(bool(failures))


if __name__ == "__main__":
    main()
