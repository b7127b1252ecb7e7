"""The tables of state of a followed query, and reading them as of the last batch.

All columns are longs and binaries, which every store has. In stores that cannot write a batch in one transaction, each
row also has the batch that wrote it, and its columns before that batch (``was_…``): if the batch runs again, it starts
from these. There, a removed row stays with count 0, and is listed in a separate table, until a later batch has begun;
see `sweep`.
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from typing import Protocol

import numpy as np
import pyarrow as pa
import pyarrow.compute as pc

from headrace.derived.state.kept_numbers import numbers
from headrace.errors import StateMismatchError, UnsupportedError
from headrace.model.tables.changes import RowChange
from headrace.model.tables.conditions import KeyRange
from headrace.model.tables.schema import TableSchema
from headrace.ports import Store, Table
from headrace.rows.nested import Mask, Numbers, one_array

GROUPS, VALUES, REMOVED = "groups", "values", "removed"
KEY, NUMBER, VALUE, COUNT, BATCH = "g", "k", "v", "n", "batch"
_WAS = "was_"
VALUE_KEY = (KEY, NUMBER, VALUE)
# The list of removed rows has an entry of this number for a group, and one of the value's number for a value.
_GROUP_NUMBER, _GROUP_VALUE = -1, b"\x00"
_SWEPT_ROWS = 10_000


@dataclass(frozen=True)
class StateTable:
    """The definition of a table, as `headrace.ports.Store.create_table` takes it.

    Attributes:
        content: what it has, for a person.
    """

    name: str
    columns: pa.Schema
    primary_key: tuple[str, ...]
    content: str


@dataclass(frozen=True)
class StateRows:
    """Rows to put into a table of state, or keys to delete.

    Attributes:
        table: the table's role: a key of `GroupStates.tables`.
        change: PUT or DELETE.
        rows: the rows, or the keys.
    """

    table: str
    change: RowChange
    rows: pa.Table


@dataclass(frozen=True)
class StateColumns:
    """The columns of state of one table.

    Attributes:
        types: the types of the columns.
        keeps_previous: whether rows also have the batch that wrote them and their columns before it.
    """

    types: Mapping[str, pa.DataType]
    keeps_previous: bool

    @property
    def names(self) -> list[str]:
        """The names of all columns besides the key."""
        extra = [BATCH, *(_WAS + name for name in self.types)] if self.keeps_previous else []
        return [*self.types, *extra]

    def schema(self, key: Mapping[str, pa.DataType]) -> pa.Schema:
        """Return the columns of the table."""
        fields = [pa.field(name, data_type, nullable=False) for name, data_type in key.items()]
        fields += [pa.field(name, data_type) for name, data_type in self.types.items()]
        if self.keeps_previous:
            fields.append(pa.field(BATCH, pa.int64()))
            fields += [pa.field(_WAS + name, data_type) for name, data_type in self.types.items()]
        return pa.schema(fields)

    def as_of(self, rows: pa.Table, batch: int) -> dict[str, pa.Array]:
        """Return the columns as they were before a batch.

        Raises:
            StateMismatchError: a later batch has written some row.
        """
        found = {name: one_array(rows.column(name)) for name in self.names}
        if not self.keeps_previous:
            return found
        written = found[BATCH].fill_null(-1)
        latest = pc.max(written).as_py()
        if latest is not None and latest > batch:
            raise StateMismatchError(
                "the state of the query is newer than its checkpoint",
                received=f"batch {batch}; rows of batch {latest}",
                remedy="drop the stream with its state and create it again, or restore the newest checkpoint",
            )
        again = pc.equal(written, batch)
        return {name: pc.if_else(again, found[_WAS + name], found[name]) for name in self.types}


class StateReads(Protocol):
    """The reads of a table of state; see `headrace.ports.Table`."""

    def get_many(self, keys: pa.Table, columns: Sequence[str] | None = None) -> pa.Table: ...

    def first_rows(
        self, ranges: Sequence[KeyRange], columns: Sequence[str] | None = None, *, rows: int = 1
    ) -> pa.Table: ...


@dataclass(frozen=True)
class NoState:
    """A table of state as of a batch that begins without state."""

    columns: pa.Schema

    def get_many(self, keys: pa.Table, columns: Sequence[str] | None = None) -> pa.Table:
        names = self.columns.names if columns is None else columns
        return pa.table({name: pa.nulls(keys.num_rows, self.columns.field(name).type) for name in names})

    def first_rows(
        self, ranges: Sequence[KeyRange], columns: Sequence[str] | None = None, *, rows: int = 1
    ) -> pa.Table:
        return self.get_many(pa.table({"keys": pa.nulls(0)}), columns)


class ValueTable:
    """The counts in a table of values, as of the last batch."""

    def __init__(self, table: StateReads, columns: StateColumns, batch: int) -> None:
        self._table = table
        self._columns = columns
        self._batch = batch

    def counts(self, keys: pa.BinaryArray, number: int, values: pa.BinaryArray) -> Numbers:
        """Return the count of each value of a group; 0 if the value does not exist."""
        given = pa.table({KEY: keys, NUMBER: pa.array(np.full(len(keys), number)), VALUE: values})
        return self._counts(self._table.get_many(given, self._columns.names))

    def first(self, ranges: list[KeyRange], rows: int) -> tuple[pa.BinaryArray, pa.BinaryArray, Numbers]:
        """Return the first values of each range: the keys of their groups, the values, their counts."""
        found = self._table.first_rows(ranges, [KEY, VALUE, *self._columns.names], rows=rows)
        return one_array(found.column(KEY)), one_array(found.column(VALUE)), self._counts(found)

    def _counts(self, found: pa.Table) -> Numbers:
        return numbers(self._columns.as_of(found, self._batch)[COUNT])


def keeps_previous(store: Store) -> bool:
    """Return whether a store's state rows must keep their previous version, because a batch can be partly written."""
    return not store.capabilities.transactions or store.capabilities.rows_at_once is not None


def check_keeps_groups(store: Store) -> None:
    """Raise `UnsupportedError` if a store cannot have the tables of groups, whose keys are binary."""
    able = store.capabilities
    if "binary" not in able.key_types or "binary" not in (able.column_types or ("binary",)):
        raise UnsupportedError(
            "the groups of a followed query are kept in tables beside its target, whose keys are binary, and keys of "
            "this store cannot have this type",
            received=store.url,
            valid="an embedded store or a PostgreSQL database",
        )


def open_tables(store: Store, definitions: Mapping[str, StateTable]) -> dict[str, Table]:
    """Return the tables of some definitions, by role.

    Raises:
        NotFoundError: a table does not exist.
    """
    return {role: store.table(each.name, each.columns) for role, each in definitions.items()}


def create_tables(store: Store, definitions: Mapping[str, StateTable]) -> dict[str, Table]:
    """Create the tables that do not exist, and return all, by role.

    No tunnel reads them, so they need no change log.

    Raises:
        SchemaError: a table exists with other columns.
    """
    return {
        role: store.create_table(each.name, each.columns, each.primary_key, exist_ok=True, change_log=False)
        for role, each in definitions.items()
    }


def drop_others(store: Store, prefix: str, definitions: Mapping[str, StateTable]) -> None:
    """Drop the tables that a query with another text has left, whose first batch was not published.

    Args:
        prefix: the beginning of the names of the query's tables.
        definitions: the tables that it wants.
    """
    wanted = {each.name: TableSchema.of(each.columns, each.primary_key) for each in definitions.values()}
    for name in store.tables():
        if name.startswith(prefix) and (name not in wanted or store.table(name).schema != wanted[name]):
            store.drop_table(name, missing_ok=True)


@dataclass(frozen=True)
class StateChange:
    """The change of some state rows: their columns before and after a batch, and masks of the rows that exist."""

    old: Mapping[str, pa.Array]
    new: Mapping[str, pa.Array]
    existed: Mask
    exist: Mask


def writes(
    role: str, columns: StateColumns, key: Mapping[str, pa.Array], change: StateChange, batch: int
) -> list[StateRows]:
    """Return the rows to put and to delete for a change.

    Args:
        role: the role of the table.
        columns: its columns of state.
        key: the keys of the rows.
        batch: the batch that makes the change.
    """
    gone = pa.array(change.existed & ~change.exist)
    rows = pa.table({**key, **{name: change.new[name] for name in columns.types}})
    if not columns.keeps_previous:
        return [
            StateRows(role, RowChange.PUT, rows.filter(pa.array(change.exist))),
            StateRows(role, RowChange.DELETE, rows.select(list(key)).filter(gone)),
        ]
    rows = rows.append_column(BATCH, _repeated(batch, rows.num_rows))
    for name in columns.types:
        rows = rows.append_column(_WAS + name, change.old[name])
    removed = rows.select(list(key)).filter(gone)
    if role == GROUPS:
        removed = removed.append_column(NUMBER, _repeated(_GROUP_NUMBER, removed.num_rows))
        removed = removed.append_column(VALUE, pa.repeat(pa.scalar(_GROUP_VALUE), removed.num_rows))
    removed = removed.append_column(BATCH, _repeated(batch, removed.num_rows))
    removed = removed.append_column(COUNT, _repeated(0, removed.num_rows))
    return [
        StateRows(role, RowChange.PUT, rows.filter(pa.array(change.exist | change.existed))),
        StateRows(REMOVED, RowChange.PUT, removed.select(REMOVED_COLUMNS.names)),
    ]


def _repeated(value: int, count: int) -> pa.Array:
    return pa.repeat(pa.scalar(value, pa.int64()), count)


REMOVED_KEY = (BATCH, NUMBER, KEY, VALUE)
REMOVED_COLUMNS = pa.schema(
    [
        pa.field(BATCH, pa.int64(), nullable=False),
        pa.field(NUMBER, pa.int64(), nullable=False),
        pa.field(KEY, pa.binary(), nullable=False),
        pa.field(VALUE, pa.binary(), nullable=False),
        # YTsaurus has no tables of only a key.
        pa.field(COUNT, pa.int64()),
    ]
)


def sweep(tables: Mapping[str, Table], counts: Mapping[str, str], batch: int) -> None:
    """Delete the rows that batches before this one have removed.

    The driver calls it before the tasks of the batch. It may run any number of times.

    Args:
        tables: the tables of state by role.
        counts: for the roles of groups and values, the column that is 0 in removed rows.
        batch: the batch that begins. All earlier batches are published.
    """
    with tables[REMOVED].scan(list(REMOVED_KEY), keys=KeyRange(high=(batch,)), batch_rows=_SWEPT_ROWS) as entries:
        for each in entries:
            listed = pa.Table.from_batches([each])
            of_group = pc.equal(listed.column(NUMBER), _GROUP_NUMBER)
            _delete_removed(tables[GROUPS], listed.filter(of_group).select([KEY]), counts[GROUPS], batch)
            if VALUES in tables:
                values = listed.filter(pc.invert(of_group)).select(list(VALUE_KEY))
                _delete_removed(tables[VALUES], values, counts[VALUES], batch)
            tables[REMOVED].delete(listed)


def _delete_removed(table: Table, keys: pa.Table, count: str, batch: int) -> None:
    """Delete the rows of some keys that are still removed: later batches may have added them again."""
    if not keys.num_rows:
        return
    found = table.get_many(keys, [count, BATCH])
    removed = pc.and_(pc.equal(found.column(count), 0), pc.less(found.column(BATCH), batch)).fill_null(False)
    gone = keys.filter(removed)
    if gone.num_rows:
        table.delete(gone)
