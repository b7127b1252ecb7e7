"""What a table of a store can do."""

from __future__ import annotations

from abc import abstractmethod
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from typing import TYPE_CHECKING, Any, TypeAlias

import pyarrow as pa

from headrace.errors import UnsupportedError
from headrace.ports.arguments import Port
from headrace.tables.conditions import KeyRange, Where
from headrace.tables.options import TableOptions
from headrace.tables.schema import KeyValue, TableSchema

if TYPE_CHECKING:
    import pandas

Rows: TypeAlias = "pa.Table | pa.RecordBatch | pandas.DataFrame | Sequence[Mapping[str, Any]] | Mapping[str, Any]"
"""Rows as Arrow, pandas, a list of dicts, or one dict."""


@dataclass(frozen=True)
class Partition:
    """A key range of a table, with its change log.

    ``first`` and ``next`` are log row indexes: the oldest change still kept, and the next to be given.
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
    """A table as it stands; ``held_by`` names the tunnels that keep retention from removing changes.

    ``rows`` is None, and there are no ``partitions``, where the store does not tell.
    """

    name: str
    schema: TableSchema
    options: TableOptions
    rows: int | None
    partitions: tuple[Partition, ...]
    held_by: tuple[str, ...] = ()


@dataclass(frozen=True)
class TrimReport:
    """What a trim removed, and the tunnels that held back or lost changes."""

    changes: int
    bytes: int
    held_by: tuple[str, ...] = ()
    cut_from: tuple[str, ...] = ()


class Table(Port):
    """Rows with a primary key."""

    name: str

    @property
    @abstractmethod
    def schema(self) -> TableSchema:
        """The columns now; other processes may add some."""

    @abstractmethod
    def put(self, rows: Rows) -> int:
        """Write whole rows: insert, or replace the row of that key. Columns left out become null.

        All rows become visible at once, or none. Returns the commit version.
        """

    @abstractmethod
    def update(self, rows: Rows, *, keep_nulls: bool = True) -> int:
        """Set the given columns of rows, inserting rows that are not there; other columns keep their values.

        Args:
            rows: the key columns and at least one other.
            keep_nulls: whether a null is a value to set; otherwise a null leaves the cell as it is.
        """

    @abstractmethod
    def delete(self, keys: Rows) -> int:
        """Remove the rows of these keys; keys that are not there are no change. Other columns are ignored."""

    @abstractmethod
    def get(self, key: Mapping[str, KeyValue], columns: Sequence[str] | None = None) -> dict[str, Any] | None:
        """Return one row as ``{column: value}``, or None."""

    @abstractmethod
    def scan(
        self,
        columns: Sequence[str] | None = None,
        where: Where | None = None,
        *,
        keys: KeyRange | None = None,
        batch_rows: int = 65536,
    ) -> pa.RecordBatchReader:
        """Read rows in key order. One call sees one state of the table, however long it is read.

        Args:
            columns: the columns to return, in this order; all by default. An empty list gives row counts.
            where: conditions on any columns, see `headrace.tables.conditions.parse_where`.
            keys: only keys in this range.
            batch_rows: most rows in a batch.
        """

    @abstractmethod
    def splits(self, count: int, *, size: int | None = None) -> list[KeyRange]:
        """Return at most ``count`` key ranges of about equal size that cover the table without overlap.

        Args:
            size: about how many bytes a range should have, for stores that cut by size; others only look at ``count``.
        """

    def split(self, partition: int | None = None, at: Mapping[str, KeyValue] | None = None) -> tuple[int, int]:
        """Split a partition (the largest by default) at a key (its middle by default); return the two new ids.

        Raises:
            UnsupportedError: see `Capabilities.split_partitions`.
        """
        raise UnsupportedError("this store splits the partitions of its tables itself", received=repr(self.name))

    def merge(self, left: int, right: int) -> int:
        """Merge two open partitions that are neighbours; return the new id.

        Raises:
            UnsupportedError: see `Capabilities.split_partitions`.
        """
        raise UnsupportedError("this store merges the partitions of its tables itself", received=repr(self.name))

    @abstractmethod
    def add_columns(self, columns: Mapping[str, str | pa.DataType]) -> None:
        """Add attribute columns, null in the rows that are there."""

    @abstractmethod
    def set_options(self, **changes: Any) -> TableOptions:
        """Change some of the `TableOptions`; return all of them."""

    @abstractmethod
    def describe(self) -> TableDescription: ...

    @abstractmethod
    def trim(self, *, before: Mapping[int, int] | None = None, cut_tunnels: bool = False) -> TrimReport:
        """Remove old changes now: by the table's retention, or below given log row indexes per partition.

        What a live tunnel still needs stays, unless ``cut_tunnels`` (or the table's own option) says otherwise.
        """
