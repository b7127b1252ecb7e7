"""The SQLite tables of one headrace table: its rows, and the undo rows of its open snapshots.

``t<object id>`` has the rows in the format of `codec`. ``u<object id>`` has, for each open snapshot, the old versions
of the rows that were changed since. The undo rows and the rows without undo rows are the table at the snapshot,
while writers continue.

SQL never contains names of users: columns are named by their positions.
"""

from __future__ import annotations

from collections.abc import Iterable, Iterator, Sequence
from contextlib import contextmanager
from dataclasses import dataclass
from itertools import groupby
from typing import Any

import apsw
import numpy as np
import numpy.typing as npt
import pyarrow as pa

from headrace.model.tables.conditions import KeyRange, Predicate
from headrace.model.tables.schema import Key, TableSchema
from headrace.stores.embedded.tables.codec import Encoded, RowCodec
from headrace.stores.embedded.tables.conditions import Sql, marks, tree_of, where
from headrace.stores.embedded.tables.given_keys import given_keys
from headrace.stores.embedded.tables.keys import array_of_stored, key_of_stored, sql_type
from headrace.support.sqlite.notes import NOTED, execute_noted

PAGE_BYTES = 32 << 20
# SQLite cuts larger concatenated columns off; the page is then read again with fewer rows.
_CUT_BYTES = 64 << 20

# The rows of which the size of a table is estimated.
_SAMPLED = 200

_SQL_TYPES: dict[pa.DataType, str] = {pa.string(): "TEXT", pa.int64(): "INTEGER", pa.binary(): "BLOB"}


@dataclass(frozen=True)
class Rows:
    """Consecutive rows of a table, in key order or in reverse.

    Attributes:
        rows: the requested columns.
        last: the key of the last row; None without rows.
        ended: no rows follow.
    """

    rows: pa.RecordBatch
    last: Key | None
    ended: bool


class PhysicalTable:
    """The SQLite tables of the headrace table with a given object id, in one version of its schema.

    All methods run inside the caller's transaction, on its connection.
    """

    def __init__(self, object_id: int, schema: TableSchema, schema_version: int) -> None:
        self.object_id = object_id
        self.schema = schema
        self.schema_version = schema_version
        self.codec = RowCodec(schema)
        self._rows, self._undo = _names(object_id)
        self._keys = [f"k{index}" for index in range(len(schema.primary_key))]
        self._key_types = [sql_type(data_type) for data_type in self.codec.key_types]
        self._values = [f"v{index}" for index in range(len(self.codec.variable_attributes))]
        self._columns = [*self._keys, "f", *self._values]
        # Rows that are older than the newest column are padded. In SQLite, || of two binaries is a text.
        width = self.codec.row_width
        self._packed = (
            "f"
            if schema_version == 1
            else f"CASE WHEN length(f) < {width} THEN CAST(f || zeroblob({width} - length(f)) AS BLOB) ELSE f END"
        )

    @property
    def identity(self) -> tuple[int, int]:
        """The object id and the schema version."""
        return self.object_id, self.schema_version

    # -- definition -------------------------------------------------------------------------------------

    def create(self, connection: apsw.Connection) -> None:
        """Create the table of rows, empty."""
        columns = [*self._key_columns(), "f BLOB NOT NULL", *self._value_columns()]
        key = ", ".join(self._keys)
        connection.execute(f"CREATE TABLE {self._rows} ({', '.join(columns)}, PRIMARY KEY ({key})) WITHOUT ROWID")

    def create_undo(self, connection: apsw.Connection) -> None:
        """Create the table of undo rows for a first snapshot, if it does not exist.

        Only tables with a snapshot have one: each connection reads the definitions of all SQLite tables, and takes ten
        times as long for 20,000 of them as for 8,000.
        """
        columns = ["snapshot INTEGER NOT NULL", *self._key_columns(), "present INTEGER NOT NULL", "f BLOB"]
        columns += self._value_columns()
        key = ", ".join(["snapshot", *self._keys])
        connection.execute(
            f"CREATE TABLE IF NOT EXISTS {self._undo} ({', '.join(columns)}, PRIMARY KEY ({key})) WITHOUT ROWID"
        )

    def _key_columns(self) -> list[str]:
        return [f"{key} {sql_type} NOT NULL" for key, sql_type in zip(self._keys, self._key_types, strict=True)]

    def _value_columns(self) -> list[str]:
        return [f"v{index} {kind}" for index, kind in enumerate(self._value_types())]

    def add_columns(self, connection: apsw.Connection, before: PhysicalTable) -> None:
        """Upgrade the tables of an older version of the schema to this one, without rewriting rows."""
        kinds = self._value_types()
        undo = connection.execute("SELECT name FROM sqlite_schema WHERE name = ?", (self._undo,))
        tables = [self._rows, *(name for (name,) in undo)]
        for index in range(len(before._values), len(kinds)):
            for table in tables:
                connection.execute(f"ALTER TABLE {table} ADD COLUMN v{index} {kinds[index]}")

    @contextmanager
    def replaced(self, connection: apsw.Connection) -> Iterator[PhysicalTable]:
        """Put the rows aside, so that a table of another version can be created; drop them at the end."""
        aside = PhysicalTable(self.object_id, self.schema, self.schema_version)
        aside._rows = f"{self._rows}_old"
        connection.execute(f"ALTER TABLE {self._rows} RENAME TO {aside._rows}")
        yield aside
        connection.execute(f"DROP TABLE {aside._rows}")

    def _value_types(self) -> list[str]:
        types = [self.schema.column(name).type for name in self.codec.variable_attributes]
        return [_SQL_TYPES.get(data_type, "BLOB") for data_type in types]

    # -- size -------------------------------------------------------------------------------------------

    def mean_bytes(self, connection: apsw.Connection) -> float:
        """Return the mean number of bytes of the first rows; 0 without rows."""
        lengths = " + ".join(f"ifnull(octet_length({column}), 0)" for column in self._columns)
        columns = ", ".join(self._columns)
        found = connection.execute(f"SELECT avg({lengths}) FROM (SELECT {columns} FROM {self._rows} LIMIT {_SAMPLED})")
        return float(next(iter(found))[0] or 0)

    # -- rows by key ------------------------------------------------------------------------------------

    def fetch(
        self, connection: apsw.Connection, keys: Sequence[Sequence[Any]]
    ) -> tuple[pa.RecordBatch, npt.NDArray[np.bool_]]:
        """Return the rows of some keys, and which of them exist; the values of the others are undefined."""
        attributes = [column.name for column in self.schema.attributes]
        rows, present = self.fetch_attributes(connection, keys, attributes)
        return self._with_keys(rows, keys), present

    def fetch_attributes(
        self, connection: apsw.Connection, keys: Sequence[Sequence[Any]], attributes: Sequence[str]
    ) -> tuple[pa.RecordBatch, npt.NDArray[np.bool_]]:
        """Return some columns outside the key for some keys, and which keys exist; the other rows are nulls."""
        if not len(keys[0]):
            return self.codec.decode(b"", {}, attributes), np.zeros(0, np.bool_)
        try:
            return self._fetch_attributes(connection, keys, attributes)
        except apsw.TooBigError:
            halves = _halves(keys)
            if halves is None:
                raise
        fetched = [self.fetch_attributes(connection, half, attributes) for half in halves]
        return pa.concat_batches([rows for rows, _ in fetched]), np.concatenate([present for _, present in fetched])

    def _fetch_attributes(
        self, connection: apsw.Connection, keys: Sequence[Sequence[Any]], attributes: Sequence[str]
    ) -> tuple[pa.RecordBatch, npt.NDArray[np.bool_]]:
        native = self.codec.blobs(attributes)
        given = given_keys(self._keys, self._key_types, keys)
        # As in pages of rows, SQLite concatenates them.
        parts = ["f IS NOT NULL", f"ifnull({self._packed}, zeroblob({self.codec.row_width}))", *native]
        selected = ", ".join(map(_concatenation, parts))
        ((flags, packed, *values),) = connection.execute(
            f"SELECT {selected} FROM {given.source} LEFT JOIN {self._rows} ON {given.equal}", given.bindings
        )
        blobs = {name: value or b"" for name, value in zip(native, values, strict=True)}
        return self.codec.decode(packed, blobs, attributes), _from_flags(flags)

    def write(self, connection: apsw.Connection, rows: Encoded) -> npt.NDArray[np.bool_]:
        """Insert or replace rows with different keys, best in key order, and return which of them existed."""
        updates = ", ".join(f"{name} = excluded.{name}" for name in ["f", *self._values])
        return execute_noted(
            connection,
            f"INSERT INTO {self._rows} ({', '.join(self._columns)}) VALUES ({marks(self._columns)})"
            f" ON CONFLICT DO UPDATE SET {updates} WHERE {NOTED}",
            [*rows.keys, rows.packed, *rows.values],
        )

    def delete(self, connection: apsw.Connection, keys: Sequence[Sequence[Any]]) -> npt.NDArray[np.bool_]:
        """Delete the rows of some keys, best in their order, and return which of them existed."""
        return execute_noted(connection, f"DELETE FROM {self._rows} WHERE {self._key_equals()} AND {NOTED}", keys)

    def _with_keys(self, attributes: pa.RecordBatch, keys: Sequence[Sequence[Any]]) -> pa.RecordBatch:
        given = dict(zip(self.schema.primary_key, keys, strict=True))
        arrays = [
            array_of_stored(given[column.name], column.type) if column.name in given else attributes.column(column.name)
            for column in self.schema.columns
        ]
        return pa.RecordBatch.from_arrays(arrays, schema=self.schema.arrow)

    def _key_equals(self, first: int = 1) -> str:
        return " AND ".join(f"{key} = ?{index}" for index, key in enumerate(self._keys, start=first))

    # -- pages ------------------------------------------------------------------------------------------

    def read(
        self,
        connection: apsw.Connection,
        columns: Sequence[str],
        keys: KeyRange,
        predicates: Sequence[Predicate] = (),
        after: Key | None = None,
        limit: int = 65536,
        snapshot: int | None = None,
        reverse: bool = False,
    ) -> Rows:
        """Return a page of rows in key order, of at most about `PAGE_BYTES`. A short page need not be the last one.

        Args:
            columns: the columns, in the order of the result.
            keys: the range of keys.
            predicates: conditions that must all hold.
            after: the page begins after this key.
            limit: most rows; large rows make a shorter page.
            snapshot: read the table at this snapshot instead of its current rows.
            reverse: begin with the last row; not possible with ``snapshot`` or ``after``.
        """
        condition = where(self.codec, keys, predicates, after)
        needed = list(dict.fromkeys([*columns, *self.schema.primary_key]))
        count, packed, blobs, ended = self._concatenated(connection, needed, condition, limit, snapshot, reverse)
        rows = self.codec.decode(packed, blobs, needed)
        last = None
        if count:
            last = tuple(rows.column(name)[count - 1].as_py() for name in self.schema.primary_key)
        return Rows(rows.select(list(columns)), last, ended)

    def pages(self, connection: apsw.Connection, columns: Sequence[str]) -> Iterator[Rows]:
        """Yield all current rows in pages; see `read`. Rows of pages that were read can be changed in between."""
        after: Key | None = None
        while True:
            page = self.read(connection, columns, KeyRange(), after=after)
            yield page
            if page.ended:
                return
            after = page.last or after

    def first_rows(
        self, connection: apsw.Connection, columns: Sequence[str], ranges: Iterable[KeyRange], limit: int
    ) -> pa.RecordBatch:
        """Return at most ``limit`` rows of each of many key ranges, in key order, one range after the other."""
        blobs = self.codec.blobs(columns)
        selected = ", ".join([self._packed, *(f"CAST({name} AS BLOB)" for name in blobs)])
        order = ", ".join(self._keys)
        found: list[tuple[Any, ...]] = []
        # One prepared statement for all ranges with bounds of the same length.
        conditions = (where(self.codec, each, ()) for each in ranges)
        for text, group in groupby(conditions, key=lambda condition: condition.text):
            found += connection.executemany(
                f"SELECT {selected} FROM {self._rows} WHERE {text} ORDER BY {order} LIMIT {limit}",
                (condition.bindings for condition in group),
            )
        packed, *values = zip(*found, strict=True) if found else ((), *((),) * len(blobs))
        joined = {name: _joined(column) for name, column in zip(blobs, values, strict=True)}
        return self.codec.decode(b"".join(packed), joined, columns)

    def by_prefix(
        self, connection: apsw.Connection, columns: Sequence[str], prefixes: Sequence[Sequence[Any]]
    ) -> pa.RecordBatch:
        """Return all rows whose key begins with one of some values, in the order of the values.

        Args:
            prefixes: the values of the first columns of the key, as SQLite has them.
        """
        blobs = self.codec.blobs(columns)
        if not len(prefixes[0]):
            return self.codec.decode(b"", {}, columns)
        given = given_keys(self._keys[: len(prefixes)], self._key_types[: len(prefixes)], prefixes)
        selected = ", ".join(map(_concatenation, [self._packed, *blobs]))
        try:
            ((packed, *values),) = connection.execute(
                f"SELECT {selected} FROM {given.source} CROSS JOIN {self._rows} ON {given.equal}", given.bindings
            )
        except apsw.TooBigError:
            halves = _halves(prefixes)
            if halves is None:
                raise
            return pa.concat_batches([self.by_prefix(connection, columns, half) for half in halves])
        joined = {name: value or b"" for name, value in zip(blobs, values, strict=True)}
        return self.codec.decode(packed or b"", joined, columns)

    def count(self, connection: apsw.Connection, keys: KeyRange, predicates: Sequence[Predicate] = ()) -> int:
        """Return the number of rows in a key range that satisfy the predicates."""
        condition = where(self.codec, keys, predicates)
        ((count,),) = connection.execute(
            f"SELECT count(*) FROM {self._rows} WHERE {condition.text}", condition.bindings
        )
        return int(count)

    def key_at(self, connection: apsw.Connection, keys: KeyRange, offset: int) -> Key | None:
        """Return the key at an offset in a range; None if the range has fewer keys."""
        condition = where(self.codec, keys, ())
        order = ", ".join(self._keys)
        for key in connection.execute(
            f"SELECT {order} FROM {self._rows} WHERE {condition.text} ORDER BY {order} LIMIT 1 OFFSET ?",
            (*condition.bindings, offset),
        ):
            return key_of_stored(self.codec.key_types, key)
        return None

    def _concatenated(
        self,
        connection: apsw.Connection,
        columns: Sequence[str],
        condition: Sql,
        limit: int,
        snapshot: int | None,
        reverse: bool,
    ) -> tuple[int, bytes, dict[str, bytes], bool]:
        """Return the number of rows of a page, its parts for `RowCodec.decode`, and whether it is the last page.

        SQLite concatenates the rows; fetching them one by one is many times slower.
        """
        blobs = self.codec.blobs(columns)
        source, bindings = self._source(blobs, condition, snapshot, reverse)
        parts = ", ".join(map(_concatenation, ["f", *blobs]))
        sql = f"SELECT count(*), {parts} FROM ({source})"
        limit = max(1, min(limit, PAGE_BYTES // self.codec.row_width))
        largest = connection.limit(apsw.SQLITE_LIMIT_LENGTH, _CUT_BYTES)
        try:
            ((count, packed, *values),) = connection.execute(sql, (*bindings, limit))
        except apsw.TooBigError:
            connection.limit(apsw.SQLITE_LIMIT_LENGTH, largest)
            limit = self._rows_that_fit(connection, blobs, source, (*bindings, limit))
            ((count, packed, *values),) = connection.execute(sql, (*bindings, limit))
        finally:
            connection.limit(apsw.SQLITE_LIMIT_LENGTH, largest)
        return count, packed or b"", {n: v or b"" for n, v in zip(blobs, values, strict=True)}, count < limit

    def _rows_that_fit(
        self, connection: apsw.Connection, blobs: Iterable[str], source: str, bindings: tuple[Any, ...]
    ) -> int:
        """Return the number of rows of a page of the right size, at least one."""
        # SQLite does not read a value for its length.
        size = tree_of(" + ", ["octet_length(f)", *(f"ifnull(octet_length({name}), 0)" for name in blobs)])
        sizes = np.fromiter(
            (row[0] for row in connection.execute(f"SELECT {size} FROM ({source})", bindings)), np.int64
        )
        return max(1, int(np.searchsorted(np.cumsum(sizes), PAGE_BYTES, side="right")))

    def _source(
        self, blobs: Sequence[str], condition: Sql, snapshot: int | None, reverse: bool
    ) -> tuple[str, tuple[Any, ...]]:
        """Return the SELECT of a page's rows, and its bindings without the limit."""
        order = ", ".join(f"{key} DESC" if reverse else key for key in self._keys)
        if snapshot is None:
            selected = ", ".join([*blobs, f"{self._packed} AS f"])
            return f"SELECT {selected} FROM {self._rows} WHERE {condition.text} ORDER BY {order} LIMIT ?", (
                condition.bindings
            )
        # A union can only be ordered by selected columns.
        selected = ", ".join(dict.fromkeys([*self._keys, *blobs]))
        rows = f"SELECT {selected}, {self._packed} AS f FROM {self._rows}"
        same = " AND ".join(f"{self._undo}.{key} = {self._rows}.{key}" for key in self._keys)
        unchanged = (
            f"{rows} WHERE {condition.text} AND NOT EXISTS (SELECT 1 FROM {self._undo} WHERE snapshot = ? AND {same})"
        )
        overwritten = (
            f"SELECT {selected}, {self._packed} AS f FROM {self._undo}"
            f" WHERE snapshot = ? AND present AND {condition.text}"
        )
        bindings = (*condition.bindings, snapshot, snapshot, *condition.bindings)
        return f"{unchanged} UNION ALL {overwritten} ORDER BY {order} LIMIT ?", bindings

    # -- undo rows --------------------------------------------------------------------------------------

    def preserve(self, connection: apsw.Connection, snapshots: Iterable[int], keys: Sequence[Sequence[Any]]) -> None:
        """Copy the current rows of some keys to the undo rows of open snapshots, before a write changes them."""
        selected = ", ".join(f"?{index}" for index in range(2, len(self._keys) + 2))
        values = ", ".join(["f", *self._values])
        sql = (
            f"INSERT OR IGNORE INTO {self._undo} (snapshot, {', '.join(self._keys)}, present, {values})"
            f" SELECT ?1, {selected}, f IS NOT NULL, {values}"
            f" FROM (SELECT 1) LEFT JOIN {self._rows} ON {self._key_equals(first=2)}"
        )
        for snapshot in snapshots:
            connection.executemany(sql, ((snapshot, *key) for key in zip(*keys, strict=True)))

    def release(self, connection: apsw.Connection, snapshot: int, keys: KeyRange | None = None) -> None:
        """Delete the undo rows of a snapshot, all or those in a key range."""
        condition = where(self.codec, keys or KeyRange(), ())
        connection.execute(
            f"DELETE FROM {self._undo} WHERE snapshot = ? AND {condition.text}", (snapshot, *condition.bindings)
        )


def drop(connection: apsw.Connection, object_id: int) -> None:
    """Remove the SQLite tables of a table."""
    connection.execute(f"DROP TABLE {_names(object_id)[0]}")
    drop_undo(connection, object_id)


def drop_undo(connection: apsw.Connection, object_id: int) -> None:
    """Remove the undo rows of a table without snapshots."""
    connection.execute(f"DROP TABLE IF EXISTS {_names(object_id)[1]}")


def _names(object_id: int) -> tuple[str, str]:
    """Return the names of the SQLite tables for rows and undo rows."""
    return f"t{object_id}", f"u{object_id}"


def _concatenation(value: str) -> str:
    """Return an expression for the concatenated values of all rows, as a binary; null if all are null."""
    return f"CAST(group_concat({value}, '') AS BLOB)"


def _halves(keys: Sequence[Sequence[Any]]) -> list[list[Sequence[Any]]] | None:
    """Return the halves of keys whose rows SQLite cannot concatenate: more than 1 GB. None for a single key."""
    half = len(keys[0]) // 2
    return [[column[part] for column in keys] for part in (slice(half), slice(half, None))] if half else None


def _from_flags(digits: bytes) -> npt.NDArray[np.bool_]:
    """Return conditions that SQLite has concatenated."""
    return np.asarray(np.frombuffer(digits, np.uint8) == ord("1"))


def _joined(values: Sequence[bytes | None]) -> bytes:
    return b"".join(value for value in values if value is not None)
