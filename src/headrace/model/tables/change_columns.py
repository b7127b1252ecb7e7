"""Changes as rows, with the change columns of Spark and Delta."""

from __future__ import annotations

import hashlib
from abc import ABC, abstractmethod
from collections.abc import Collection, Iterable, Mapping, Sequence
from functools import cache

import numpy as np
import pyarrow as pa
import pyarrow.compute as pc

from headrace.errors import SchemaError
from headrace.model.tables.changes import ChangeOp, Changes
from headrace.model.tables.schema import TableSchema

CHANGE_TYPE, COMMIT_VERSION, COMMIT_TIMESTAMP = "_change_type", "_commit_version", "_commit_timestamp"
CHANGE_COLUMNS = pa.schema(
    [
        pa.field(CHANGE_TYPE, pa.string()),
        pa.field(COMMIT_VERSION, pa.int64()),
        pa.field(COMMIT_TIMESTAMP, pa.timestamp("us", tz="UTC")),
    ]
)
TRANSACTION_ID = pa.field("_transaction_id", pa.int64())
"""The column with the ids of transactions, which is added if it is asked for."""
ROW_KEY = "headrace.key"
"""In the metadata of a column of `ChangeShape`: its place in the primary key of the table, from 0."""
SIGNED = "headrace.signed"
"""In the metadata of `_change_type` of `SignedShape`: the number of columns of the table's primary key."""
TABLE_COLUMN = "headrace.column"
"""In the metadata of a column of `SignedShape`: its name in the table. Spark passes it on with plain copies only."""
NUMBER = "headrace.number"
"""In the metadata of a column of `SignedShape`: its number in the table, see `headrace.ports.Table.column_numbers`."""
SOURCE = "headrace.source"
"""In the metadata of key columns and of `_change_type` of a stream: the mark of the table whose changes they are."""
TRUNCATE = "truncate"
"""The change type of a row that stands for the delete of all rows of its table."""
_CHANGE_TYPE_OF = {
    ChangeOp.BASE: "insert",
    ChangeOp.INSERT: "insert",
    ChangeOp.UPSERT: "insert",
    ChangeOp.REPLACE: "update_postimage",
    ChangeOp.UPDATE: "update_postimage",
    ChangeOp.DELETE: "delete",
    ChangeOp.DELETE_WITH_ROW: "delete",
    ChangeOp.PREIMAGE: "update_preimage",
    ChangeOp.TRUNCATE: TRUNCATE,
}


def source_mark(store: str, table: str) -> str:
    """Return the mark of a table, from the id of its store and its identity, or its name if the store knows none."""
    return hashlib.sha256(f"{store}\n{table}".encode()).hexdigest()[:32]


def marked(schema: pa.Schema, key: Sequence[str], mark: str, numbers: Mapping[str, int]) -> pa.Schema:
    """Return the columns of a stream of changes with the mark of their table, and signed rows with their numbers."""
    return pa.schema(marked_columns(schema, {CHANGE_TYPE, *key}, mark, numbers), schema.metadata)


def marked_columns(
    columns: Iterable[pa.Field], names: Collection[str], mark: str, numbers: Mapping[str, int]
) -> list[pa.Field]:
    """Return columns with their numbers if they are of signed rows, and some of them with the mark of their table."""
    found = []
    for field in columns:
        added = {SOURCE: mark} if field.name in names else {}
        if TABLE_COLUMN.encode() in (field.metadata or {}) and field.name in numbers:
            added[NUMBER] = str(numbers[field.name])
        found.append(field.with_metadata({**(field.metadata or {}), **added}) if added else field)
    return found


class Shape(ABC):
    """A way to represent changes as rows. ``schema`` is the schema of the rows; every field is nullable."""

    schema: pa.Schema

    @abstractmethod
    def rows(self, changes: Changes) -> pa.RecordBatch:
        """Return the changes as rows of `schema`."""


class ChangeShape(Shape):
    """The table's columns, then `_change_type`, `_commit_version` and `_commit_timestamp`.

    An insert is one row, an update `update_preimage` (in tables with pre-images) and `update_postimage`, a delete one
    row. The contract is that of Spark's `Changelog` and of Delta's change data feed. A TRUNCATE, where it was asked
    for, is a row `truncate` whose key is null. The metadata of the schema names the columns of the primary key, see
    `ROW_KEY`.

    Args:
        table: the table's columns.
        wanted: the names of the columns of the rows, in order; None for all.
        pre_images: include `update_preimage` rows.
        transactions: add `_transaction_id`, which is null in base data.

    Raises:
        SchemaError: the table has a column with the name of a change column, or a wanted column does not exist.
    """

    def __init__(
        self,
        table: TableSchema,
        wanted: Sequence[str] | None = None,
        *,
        pre_images: bool = True,
        transactions: bool = False,
    ) -> None:
        added = CHANGE_COLUMNS.append(TRANSACTION_ID) if transactions else CHANGE_COLUMNS
        clash = sorted(set(table.names) & set(added.names))
        if clash:
            raise SchemaError(
                "the table has a column with the name of a change column",
                received=", ".join(clash),
                remedy="rename the column, or read the table through format tablestore",
            )
        places = {column: {ROW_KEY: str(place)} for place, column in enumerate(table.primary_key)}
        columns = [pa.field(c.name, c.type, metadata=places.get(c.name)) for c in table.columns]
        every = pa.schema([*columns, *added])
        known = set(every.names)
        for name in wanted or ():
            if name not in known:
                raise SchemaError("no such column in the stream", received=repr(name), valid=every.names)
        self.schema = every if wanted is None else pa.schema([every.field(name) for name in wanted])
        self.pre_images = pre_images
        self.transactions = transactions

    def rows(self, changes: Changes) -> pa.RecordBatch:
        changes = changes.with_single_deletes()
        if not self.pre_images:
            changes = changes.without_preimages()
        columns = [self.column(changes, name) for name in self.schema.names]
        return pa.RecordBatch.from_arrays(columns, schema=self.schema)

    def column(self, changes: Changes, name: str) -> pa.Array:
        """Return one column of the rows."""
        if name == CHANGE_TYPE:
            return op_names(changes.ops, _CHANGE_TYPE_OF)
        if name == COMMIT_VERSION:
            return changes.versions
        if name == COMMIT_TIMESTAMP:
            return changes.timestamps
        if name == TRANSACTION_ID.name and self.transactions:
            found = changes.transactions
            return pa.nulls(changes.num_rows, pa.int64()) if found is None else found
        return changes.rows.column(name)


class SignedShape(ChangeShape):
    """The rows of `ChangeShape`, each update and delete with its old row: enough to follow the table's content.

    The schema's metadata says so, see `SIGNED`.

    Args:
        table: the table's columns.
        name: the name of the table, for errors.
        wanted: the names of the columns of the rows, in order; None for all.
    """

    def __init__(self, table: TableSchema, name: str, wanted: Sequence[str] | None = None) -> None:
        super().__init__(table, wanted)
        self._name = name
        added = {CHANGE_TYPE: {SIGNED: str(len(table.primary_key))}}
        added |= {column.name: {TABLE_COLUMN: column.name} for column in table.columns}
        self.schema = pa.schema(
            [field.with_metadata((field.metadata or {}) | added.get(field.name, {})) for field in self.schema]
        )

    def rows(self, changes: Changes) -> pa.RecordBatch:
        """Return the changes as rows; raise `UnsupportedError` if one of them lacks its old row."""
        changes.check_old_rows(self._name)
        return super().rows(changes)


@cache
def _name_table(names: tuple[tuple[int, str], ...]) -> pa.StringArray:
    table: list[str | None] = [None] * (max(code for code, _ in names) + 1)
    for code, name in names:
        table[code] = name
    return pa.array(table, pa.string())


@cache
def _repeated(text: str) -> pa.StringArray:
    return pa.array([text], pa.string()).take(pa.array(np.zeros(65536, np.int8)))


def constant(text: str, count: int) -> pa.StringArray:
    """Return an array of ``count`` times one text. Long runs of one kind of change are common."""
    if count <= 65536:
        return _repeated(text).slice(0, count)
    return pa.array([text], pa.string()).take(pa.array(np.zeros(count, np.int8)))


def op_names(ops: pa.Int8Array, names: dict[ChangeOp, str]) -> pa.StringArray:
    """Return the name of each operation."""
    if len(ops):
        extremes = pc.min_max(ops)
        if extremes["min"] == extremes["max"]:
            return constant(names[ChangeOp(extremes["min"].as_py())], len(ops))
    return _name_table(tuple((int(op), name) for op, name in names.items())).take(ops)
