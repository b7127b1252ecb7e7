"""The interface of a table."""

from __future__ import annotations

from abc import abstractmethod
from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass
from typing import TYPE_CHECKING, Any, TypeAlias

import pyarrow as pa

from headrace.errors import UnsupportedError
from headrace.model.tables.alterations import Alteration
from headrace.model.tables.conditions import KeyRange, Where
from headrace.model.tables.options import TableOptions
from headrace.model.tables.schema import KeyValue, TableSchema
from headrace.model.types import parse_type, type_name
from headrace.ports.arguments import Port, checked_prefixes
from headrace.support import notebooks
from headrace.support.extras import PANDAS, check_extras

if TYPE_CHECKING:
    import pandas

Rows: TypeAlias = "pa.Table | pa.RecordBatch | pandas.DataFrame | Sequence[Mapping[str, Any]] | Mapping[str, Any]"
"""Rows as Arrow, pandas, a list of dicts, or one dict."""


@dataclass(frozen=True)
class Partition:
    """A key range of a table, with its change log.

    ``first`` and ``next`` are row indexes of the log: of the oldest retained change, and of the next new change.
    """

    id: int
    keys: KeyRange
    parents: tuple[int, ...]
    open: bool
    rows: int
    first: int
    next: int
    log_bytes: int


@dataclass(frozen=True)
class TableDescription:
    """The state of a table.

    Attributes:
        rows: the number of rows; None if the store does not report it.
        partitions: the partitions; empty if the store does not report them.
        held_by: the tunnels whose unread changes retention must not remove.
        partition_by: the columns, or functions of columns such as ``bucket[4](id)``, by which a lake divides new files.
    """

    name: str
    schema: TableSchema
    options: TableOptions
    rows: int | None
    partitions: tuple[Partition, ...]
    held_by: tuple[str, ...] = ()
    partition_by: tuple[str, ...] = ()


@dataclass(frozen=True)
class TableSize:
    """The size of a table as its store knows it without reading the table.

    Attributes:
        rows: the number of rows; None if the store does not know it.
        bytes: the bytes of the rows; None if the store does not know them.
        rows_exact, bytes_exact: whether the number is exact; otherwise it is an estimate of the store.
    """

    rows: int | None = None
    bytes: int | None = None
    rows_exact: bool = True
    bytes_exact: bool = True

    def __str__(self) -> str:
        rows = "unknown rows" if self.rows is None else f"{'' if self.rows_exact else 'about '}{self.rows:,} rows"
        size = "" if self.bytes is None else f", {'' if self.bytes_exact else 'about '}{self.bytes:,} bytes"
        return rows + size


@dataclass(frozen=True)
class TrimReport:
    """The number and size of the changes that a trim removed.

    Attributes:
        held_by: the tunnels whose unread changes were kept.
        cut_from: the tunnels that lost unread changes.
    """

    changes: int
    bytes: int
    held_by: tuple[str, ...] = ()
    cut_from: tuple[str, ...] = ()


def _html(described: TableDescription) -> str:
    key = described.schema.primary_key
    held_by = ", ".join(described.held_by) or None
    title = notebooks.facts(
        f"Table {described.name}",
        {"rows": described.rows, "primary key": ", ".join(key), "change log held by": held_by},
    )
    columns = [(column.name, type_name(column.type), column.name in key or None) for column in described.schema.columns]
    return title + notebooks.rows(("column", "type", "key"), columns, len(columns))


class Table(Port):
    """Rows with a primary key.

    Attributes:
        name: the table's name in its store.

    Examples:
        >>> version = orders.put([{"id": "o3", "price": 4.0}])
        >>> version = orders.update({"id": "o1", "price": 12.5})
        >>> version = orders.delete({"id": "o2"})
        >>> orders.scan(where={"id": "o1"}).read_all().to_pylist()
        [{'id': 'o1', 'price': 12.5}]
        >>> [row["id"] for row in orders]
        ['o1', 'o3']
    """

    name: str

    def _repr_html_(self) -> str | None:
        return notebooks.shown(f"Table {self.name}", lambda: _html(self.describe()))

    @property
    @abstractmethod
    def schema(self) -> TableSchema:
        """The current columns; other processes may add columns."""

    @abstractmethod
    def identity(self) -> str:
        """Return the identity of this very table: one that is created again under the name has another.

        In a copy of the store the identities can differ. It is an empty text if the store knows none.
        """

    def covers(self, name: str, identity: str) -> bool:
        """Return whether a write into a table of the same store is a change of this one.

        The table of a tunnel of several also covers those that the tunnel would take in.

        Args:
            name: the name of the other table, which may not exist yet.
            identity: its `identity`; empty if it does not exist, or if the store knows none.
        """
        own = self.identity()
        return own == identity if own and identity else self.name == name

    def without(self, names: Sequence[str]) -> str | None:
        """Return the names of the tables of a tunnel of several, as they are given, without some; None of one table."""
        return None

    @abstractmethod
    def put(self, rows: Rows) -> int:
        """Insert rows, or replace the rows with the same keys, atomically. Missing columns become null.

        Returns:
            The commit version.
        """

    @abstractmethod
    def update(self, rows: Rows, *, keep_nulls: bool = True) -> int:
        """Set some columns of rows; other columns keep their values. Rows that do not exist are inserted.

        To change existing rows only, select them first: ``SELECT`` their keys, or ``UPDATE`` in streaming SQL.

        Args:
            rows: the key columns and at least one other column.
            keep_nulls: whether a null sets the cell to null; otherwise the cell keeps its value.
        """

    @abstractmethod
    def delete(self, keys: Rows) -> int:
        """Remove the rows with these keys. Keys without a row are ignored silently, and other columns, too."""

    @abstractmethod
    def get(self, key: Mapping[str, KeyValue], columns: Sequence[str] | None = None) -> dict[str, Any] | None:
        """Return one row as ``{column: value}``, or None."""

    @abstractmethod
    def get_many(self, keys: Rows, columns: Sequence[str] | None = None) -> pa.Table:
        """Return the rows of many keys.

        Args:
            keys: the keys, of which one can occur several times; other columns are ignored.
            columns: the columns of the result, in this order; all by default.

        Returns:
            One row for each key, in the order of the keys. Where no row exists, all columns are null, also those of
            the key.
        """

    def first_rows(
        self, ranges: Sequence[KeyRange], columns: Sequence[str] | None = None, *, rows: int = 1
    ) -> pa.Table:
        """Return the first rows of each of many key ranges, in key order, one range after the other.

        Args:
            columns: the columns of the result, in this order; all by default.
            rows: the maximum number of rows of each range.
        """
        names = self.schema.names if columns is None else columns
        found: list[pa.RecordBatch] = []
        for each in ranges:
            found += self.scan(names, keys=each, limit=rows)
        return pa.Table.from_batches(found, pa.schema([self.schema.arrow.field(name) for name in names]))

    def get_by_prefix(self, prefixes: pa.Table, columns: Sequence[str] | None = None) -> pa.Table:
        """Return all rows whose key begins with one of some values, in any order.

        Args:
            prefixes: the first columns of the primary key, each combination once.
            columns: the columns of the result, in this order; all by default.
        """
        names = self.schema.names if columns is None else columns
        prefixes = checked_prefixes(prefixes, self.schema)
        found = [part for prefix in prefixes.to_pylist() for part in self.scan(names, prefix)]
        return pa.Table.from_batches(found, pa.schema([self.schema.arrow.field(name) for name in names]))

    @abstractmethod
    def scan(
        self,
        columns: Sequence[str] | None = None,
        where: Where | None = None,
        *,
        keys: KeyRange | None = None,
        limit: int | None = None,
        batch_rows: int = 65536,
        read_ahead: bool = True,
    ) -> pa.RecordBatchReader:
        """Read a snapshot of the rows in key order.

        Args:
            columns: the columns to return, in this order; all by default. With an empty list, batches have
                a number of rows and no columns.
            where: conditions on any columns, see `headrace.model.tables.conditions.parse_where`.
            keys: only keys in this range.
            limit: the maximum number of rows. The store reads little more than these rows.
            batch_rows: the maximum number of rows in a batch.
            read_ahead: whether the store may read rows before they are requested. Without it, a reader that stops early
                has read little more than it returned, and a slow reader may hold a snapshot of the store.
        """

    def to_pandas(
        self, columns: Sequence[str] | None = None, where: Where | None = None, *, limit: int | None = None
    ) -> pandas.DataFrame:
        """Return rows as a DataFrame of pandas, see `scan`.

        Raises:
            MissingDependencyError: pandas (``headrace[pandas]``) is not installed.
        """
        check_extras("DataFrames", PANDAS)
        return self.scan(columns, where, limit=limit).read_all().to_pandas()

    def __iter__(self) -> Iterator[dict[str, Any]]:
        """Yield the rows in key order as ``{column: value}``. `scan` reads large tables faster."""
        for batch in self.scan():
            yield from batch.to_pylist()

    @abstractmethod
    def splits(self, count: int, *, size: int | None = None) -> list[KeyRange]:
        """Return at most ``count`` key ranges of about equal size that cover the table without overlap.

        Args:
            size: the approximate size of a range in bytes, for stores that split by size; others ignore it.
        """

    def split(self, partition: int | None = None, at: Mapping[str, KeyValue] | None = None) -> tuple[int, int]:
        """Split a partition (the largest by default) at a key (its middle by default); return the two new ids.

        Raises:
            UnsupportedError: the store divides its tables itself.
        """
        raise UnsupportedError("this store splits the partitions of its tables itself", received=repr(self.name))

    def merge(self, left: int, right: int) -> int:
        """Merge two adjacent open partitions; return the new id.

        Raises:
            UnsupportedError: the store divides its tables itself.
        """
        raise UnsupportedError("this store merges the partitions of its tables itself", received=repr(self.name))

    @abstractmethod
    def add_columns(self, columns: Mapping[str, str | pa.DataType]) -> None:
        """Add attribute columns, which are null in existing rows."""

    def alter(self, alteration: Alteration) -> None:
        """Make changes of the columns, all or none. The change log shows earlier changes with the new columns.

        Raises:
            SchemaError: a column does not exist, or cannot have the change.
            UnsupportedError: the store cannot make such changes, see `Capabilities.alters`.
        """
        if alteration == Alteration(added=alteration.added):
            alteration.applied(self.schema)
            self.add_columns({column.name: column.type for column in alteration.added})
            return
        raise UnsupportedError(
            "this store cannot drop, rename or widen columns of a table",
            received=repr(self.name),
            remedy="create another table, and INSERT INTO it the rows of this one",
        )

    def drop_columns(self, columns: Sequence[str]) -> None:
        """Remove columns outside the primary key, with their values; see `alter`."""
        self.alter(Alteration(dropped=columns))

    def rename_column(self, column: str, name: str) -> None:
        """Give a column another name, which its rows and earlier changes then have, too; see `alter`."""
        self.alter(Alteration(renamed={column: name}))

    def widen_column(self, column: str, data_type: str | pa.DataType) -> None:
        """Give a column a type that has each value of its type, such as long after int; see `alter`."""
        self.alter(Alteration(widened={column: parse_type(data_type)}))

    def column_numbers(self) -> Mapping[str, int] | None:
        """Return a number of each column, which it keeps under each name, and no other column has, also not later.

        None if the store knows its columns by their names only.
        """
        return None

    def numbered_schema(self) -> tuple[TableSchema, Mapping[str, int]]:
        """Return the schema and `column_numbers` of one moment; the numbers are empty if the store has none."""
        return self.schema, self.column_numbers() or {}

    @abstractmethod
    def set_options(self, **changes: Any) -> TableOptions:
        """Change some of the `TableOptions`; return all of them."""

    def size(self) -> TableSize:
        """Return the numbers of rows and bytes, from counters and statistics of the store."""
        return TableSize(self.describe().rows)

    @abstractmethod
    def describe(self) -> TableDescription:
        """Return the columns, options, number of rows and partitions of the table."""

    @abstractmethod
    def trim(self, *, before: Mapping[int, int] | None = None, cut_tunnels: bool = False) -> TrimReport:
        """Remove old changes now.

        Args:
            before: the first row index of the log to keep, by partition; by default the table's retention decides.
            cut_tunnels: also remove changes that a live tunnel has not read.
        """
