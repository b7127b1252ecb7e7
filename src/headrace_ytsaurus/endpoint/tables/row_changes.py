"""Changes of rows: a command checks and converts its rows to a `Change`, which a commit applies.

There is a class for each kind of table, and one for locks. Commands make changes of tables and queues without the
store's writer lock. A tablet transaction keeps them until it is committed.
"""

from __future__ import annotations

from abc import ABC, abstractmethod
from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass, field
from typing import TypeAlias

import apsw
import numpy as np
import pyarrow as pa

from headrace.model.queues.columns import TABLET_INDEX
from headrace.model.tables.changes import RowChange
from headrace.stores.embedded.for_servers import (
    Database,
    EmbeddedQueue,
    EmbeddedTable,
    Prepared,
    catalog,
    stored_queues,
)
from headrace_ytsaurus.endpoint.cypress.node import Node
from headrace_ytsaurus.endpoint.queues import consumer_rows, producer_rows
from headrace_ytsaurus.endpoint.queues.consumer_rows import ConsumerRow
from headrace_ytsaurus.endpoint.queues.producer_rows import SessionRow
from headrace_ytsaurus.endpoint.tables import state as table_state
from headrace_ytsaurus.endpoint.tables.aggregates import combined, functions_of, with_unique_keys
from headrace_ytsaurus.endpoint.tables.row_locks import Locked
from headrace_ytsaurus.endpoint.tables.state import MOUNTED, Table
from headrace_ytsaurus.wire.errors import Code, YtError

Partition: TypeAlias = tuple[str, str, int]
"""A partition of a queue in the rows of a consumer: cluster, path, number."""
# In place of a tablet's number: the store chooses the tablet.
_UNCHOSEN = -(1 << 63)
_HASHES = 1 << 62


@dataclass(frozen=True)
class Commit:
    """A write transaction of the store that applies changes.

    Attributes:
        version: the version of the commit; ``ts`` is its timestamp (µs since 1970).
        cluster: the name of this cluster.
        tables: the states of tables in this transaction, each loaded once.
    """

    connection: apsw.Connection
    version: int
    ts: int
    cluster: str
    tables: dict[Node, Table] = field(default_factory=dict)

    def table(self, node: Node) -> Table:
        """Return the state of a table now: a client may have unmounted it since the command."""
        if node not in self.tables:
            self.tables[node] = table_state.load(self.connection, node)
        return self.tables[node]

    def object_id(self, table: Table) -> int:
        """Return the id of the object with the rows of a table."""
        kind = table.object_kind
        assert kind is not None
        return catalog.find(self.connection, table.name, kind)


@dataclass(frozen=True)
class Change(ABC):
    """Checked and typed rows to write to one table.

    Attributes:
        size: number of a tablet → number of rows to change in it.
        locked: rows that other transactions must not have changed; None for a queue, which has no locks.
    """

    table: Table
    size: Mapping[int, int]
    locked: Locked | None

    def check(self, commit: Commit) -> None:
        """Check that the table exists, and what the command has read, before any change of the commit is applied.

        Raises:
            YtError: the table was removed; 1700, another process has advanced the consumer.
        """
        commit.table(self.table.node)

    @abstractmethod
    def apply(self, commit: Commit) -> None:
        """Write the rows to the store.

        Raises:
            YtError: 1702, a tablet is not mounted.
        """


@dataclass(frozen=True)
class TableChange(Change):
    """A change of a sorted table.

    Attributes:
        handle: the table in the store, which reads its schema again only if that has changed.
        aggregates: aggregating column → function that combines its values with existing ones.
    """

    handle: EmbeddedTable
    prepared: Prepared
    aggregates: Mapping[str, str]

    @classmethod
    def of(
        cls,
        database: Database,
        table: Table,
        kind: RowChange,
        rows: pa.RecordBatch,
        *,
        keep_nulls: bool = False,
        aggregate: bool = False,
    ) -> TableChange:
        """Return a change.

        Args:
            rows: rows of the table's schema: all columns for PUT, the key and the columns to set for UPDATE, the key
                for DELETE.
            keep_nulls: set columns to null where the rows have null (UPDATE only).
        """
        stored = table.schema.layout.to_stored(rows)
        handle = EmbeddedTable(database, table.name)
        prepared = handle.prepare(kind, stored, keep_nulls=keep_nulls)
        locked = Locked(table.schema.layout.hashes(stored))
        aggregates = functions_of(table.schema) if aggregate else {}
        return cls(table, _size(table, rows), locked, handle, prepared, aggregates)

    def apply(self, commit: Commit) -> None:
        commit.table(self.table.node).require_mounted()
        for part in self._aggregated(commit) if self.aggregates else [self.prepared]:
            self.handle.apply(commit.connection, part.change, part, commit.version, commit.ts)

    def _aggregated(self, commit: Commit) -> Iterator[Prepared]:
        """Yield rows with aggregating columns combined with existing values, each time with different keys."""
        handle, prepared = self.handle, self.prepared
        for rows in with_unique_keys(prepared.rows, self.table.schema.layout):
            _, old, exist = handle.fetch(commit.connection, rows)
            new = combined(self.aggregates, old, exist, rows)
            yield handle.prepare(prepared.change, new, keep_nulls=prepared.keep_nulls)


class RowLock(Change):
    """Locks on rows of a sorted table."""

    @classmethod
    def of(cls, table: Table, keys: pa.RecordBatch, *, exclusive: bool) -> RowLock:
        """Return locks.

        Args:
            exclusive: lock the rows like a change. Otherwise other transactions can lock them too, but not change them.
        """
        hashes = table.schema.layout.hashes(table.schema.layout.to_stored(keys))
        return cls(table, _size(table, keys), Locked(hashes) if exclusive else Locked(read=hashes))

    def apply(self, commit: Commit) -> None:
        commit.table(self.table.node).require_mounted()


@dataclass(frozen=True)
class QueueChange(Change):
    """Rows to append to a queue."""

    prepared: stored_queues.Prepared

    @classmethod
    def of(cls, database: Database, table: Table, rows: pa.RecordBatch) -> QueueChange:
        """Return rows to append; an optional column `$tablet_index` selects the tablet."""
        size = {_UNCHOSEN: rows.num_rows}
        if TABLET_INDEX in rows.schema.names:
            indexes = rows.column(TABLET_INDEX).fill_null(_UNCHOSEN).to_numpy()
            numbers, counts = np.unique(indexes, return_counts=True)
            size = dict(zip(numbers.tolist(), counts.tolist(), strict=True))
            for number in size:
                if number != _UNCHOSEN:
                    table.tablet(number)
            if set(size) <= {_UNCHOSEN}:
                rows = rows.drop_columns([TABLET_INDEX])
        return cls(table, size, None, EmbeddedQueue(database, table.name).prepare(rows))

    def apply(self, commit: Commit) -> None:
        """Append rows to the tablets that they name, other rows to one mounted tablet."""
        table = commit.table(self.table.node)
        chosen = [number for number in self.size if number != _UNCHOSEN]
        for number in chosen:
            table.tablet(number)
            table.require_mounted(number)
        rows: stored_queues.Prepared | pa.Table = self.prepared
        partition = None
        if _UNCHOSEN in self.size and table.state != MOUNTED:
            mounted = [number for number, tablet in enumerate(table.tablets) if tablet.state == MOUNTED]
            if chosen or not mounted:
                # If some rows name a tablet, one tablet cannot be chosen for all rows together.
                table.require_mounted()
            upper = stored_queues.load(commit.connection, table.name).upper
            partition = min(mounted, key=upper.__getitem__)
            rows = self.prepared.rows.drop_columns([TABLET_INDEX])
        stored_queues.append(commit.connection, table.name, rows, commit.version, commit.ts, partition=partition)


@dataclass(frozen=True)
class ConsumerChange(Change):
    """Rows of a consumer to write or delete.

    Attributes:
        delete: the rows are deleted.
        seen: partition → offset at the time of the command. If an offset has changed since, another process has
            advanced the consumer.
    """

    rows: Sequence[ConsumerRow]
    delete: bool
    seen: Mapping[Partition, int | None]

    @classmethod
    def of(
        cls,
        table: Table,
        rows: Sequence[ConsumerRow],
        *,
        delete: bool = False,
        seen: Mapping[Partition, int | None] | None = None,
    ) -> ConsumerChange:
        """Return a change."""
        return cls(table, {0: len(rows)}, _locked(*(row[:3] for row in rows)), rows, delete, seen or {})

    def check(self, commit: Commit) -> None:
        super().check(commit)
        object_id = commit.object_id(self.table)
        for partition, offset in self.seen.items():
            if consumer_rows.offset(commit.connection, object_id, *partition, commit.cluster) != offset:
                raise YtError(
                    Code.TABLET_LOCK_CONFLICT,
                    f"Row lock conflict in {self.table.name}: another client has advanced the consumer",
                    remedy="begin a new transaction and try again",
                    attributes={"path": self.table.name},
                )

    def apply(self, commit: Commit) -> None:
        commit.table(self.table.node).require_mounted()
        write = consumer_rows.delete if self.delete else consumer_rows.write
        write(commit.connection, commit.object_id(self.table), self.rows, commit.cluster)


@dataclass(frozen=True)
class SessionChange(Change):
    """A producer's session to write or delete."""

    row: SessionRow
    delete: bool

    @classmethod
    def of(cls, table: Table, row: SessionRow, *, delete: bool = False) -> SessionChange:
        """Return a change."""
        return cls(table, {0: 1}, _locked((row.queue, row.session)), row, delete)

    def apply(self, commit: Commit) -> None:
        commit.table(self.table.node).require_mounted()
        if self.delete:
            producer_rows.delete(commit.connection, commit.object_id(self.table), self.row.queue, self.row.session)
        else:
            producer_rows.write(commit.connection, commit.object_id(self.table), self.row)


def _size(table: Table, rows: pa.RecordBatch) -> Mapping[int, int]:
    # This assumes that keys are distributed evenly among the tablets.
    return {0: rows.num_rows // len(table.tablets)}


def _locked(*keys: tuple[str | int, ...]) -> Locked:
    return Locked(np.array([hash(key) % _HASHES for key in keys], dtype=np.int64))
