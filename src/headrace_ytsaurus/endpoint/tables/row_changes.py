"""Checked and typed changes of rows, which the commit of a tablet transaction applies."""

from __future__ import annotations

from collections import Counter
from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field

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
from headrace_ytsaurus.endpoint.queues import consumer_rows, producer_rows
from headrace_ytsaurus.endpoint.queues.consumer_rows import ConsumerRow
from headrace_ytsaurus.endpoint.queues.producer_rows import SessionRow
from headrace_ytsaurus.endpoint.tables import state as table_state
from headrace_ytsaurus.endpoint.tables.objects import object_kind
from headrace_ytsaurus.endpoint.tables.row_locks import NO_HASHES, Hashes, Locked, Locks
from headrace_ytsaurus.endpoint.tables.state import MOUNTED, Table
from headrace_ytsaurus.wire.errors import Code, YtError

# In place of a tablet's number: the store chooses the tablet.
_UNCHOSEN = -(1 << 63)
_HASHES = 1 << 62


class SortedChange:
    """A change of rows of a sorted table.

    Args:
        rows: rows of the table's schema: all columns for PUT, the key and the columns to set for UPDATE, the key for
            DELETE.
        keep_nulls: set columns to null where the rows have null (UPDATE only).
        stored: the rows are already rows of the embedded table.

    Attributes:
        stored: the rows as rows of the embedded table.
    """

    def __init__(
        self,
        database: Database,
        table: Table,
        change: RowChange,
        rows: pa.RecordBatch,
        *,
        keep_nulls: bool = False,
        stored: bool = False,
    ) -> None:
        self.table = table.name
        self.change = change
        self.keep_nulls = keep_nulls
        self.stored = rows if stored else table.schema.layout.to_stored(rows)
        self._table = table
        self._handle = EmbeddedTable(database, table.name)
        self._hashes = table.schema.layout.hashes(self.stored)
        self._prepared: Prepared = self._handle.prepare(change, self.stored, keep_nulls=keep_nulls)

    @property
    def size(self) -> Mapping[int, int]:
        # This assumes that keys are distributed evenly among the tablets.
        return {0: len(self._hashes) // len(self._table.tablets)}

    def locks(self, connection: apsw.Connection) -> Locks:
        return {_object(connection, self._table): Locked(self._hashes, NO_HASHES)}

    def require_mounted(self, connection: apsw.Connection) -> None:
        """Raise an error unless the table is mounted now."""
        table_state.load(connection, self._table.node).require_mounted()

    def apply(self, connection: apsw.Connection, version: int, ts: int) -> None:
        self.require_mounted(connection)
        self._handle.apply(connection, self.change, self._prepared, version, ts)


@dataclass(frozen=True)
class LockedRows:
    """Locks on rows of a sorted table, without changes.

    Attributes:
        exclusive: lock the rows like a change. Otherwise other transactions can lock them too, but not change them.
    """

    of: Table
    hashes: Hashes
    exclusive: bool

    @property
    def table(self) -> str:
        return self.of.name

    @property
    def size(self) -> Mapping[int, int]:
        return {0: len(self.hashes) // len(self.of.tablets)}

    def locks(self, connection: apsw.Connection) -> Locks:
        written, read = (self.hashes, NO_HASHES) if self.exclusive else (NO_HASHES, self.hashes)
        return {_object(connection, self.of): Locked(written, read)}

    def apply(self, connection: apsw.Connection, version: int, ts: int) -> None:
        table_state.load(connection, self.of.node).require_mounted()


class QueueAppend:
    """Rows to append to a queue; an optional column `$tablet_index` selects the tablet."""

    def __init__(self, database: Database, table: Table, rows: pa.RecordBatch) -> None:
        self.table = table.name
        self._table = table
        self._handle = EmbeddedQueue(database, table.name)
        self._size = Counter({_UNCHOSEN: rows.num_rows})
        if TABLET_INDEX in rows.schema.names:
            given = rows.column(TABLET_INDEX).fill_null(_UNCHOSEN).to_numpy()
            numbers, counts = np.unique(given, return_counts=True)
            self._size = Counter(dict(zip(numbers.tolist(), counts.tolist(), strict=True)))
            for number in self._size:
                if number != _UNCHOSEN:
                    table.tablet(number)
            if set(self._size) <= {_UNCHOSEN}:
                rows = rows.drop_columns([TABLET_INDEX])
        self._prepared = self._handle.prepare(rows)

    @property
    def size(self) -> Mapping[int, int]:
        return self._size

    def locks(self, connection: apsw.Connection) -> Locks:
        return {}

    def apply(self, connection: apsw.Connection, version: int, ts: int) -> None:
        table = table_state.load(connection, self._table.node)
        chosen = [number for number in self._size if number != _UNCHOSEN]
        for number in chosen:
            table.tablet(number)
            table.require_mounted(number)
        rows: stored_queues.Prepared | pa.Table = self._prepared
        partition = None
        if _UNCHOSEN in self._size and table.state != MOUNTED:
            mounted = [number for number, tablet in enumerate(table.tablets) if tablet.state == MOUNTED]
            if not mounted:
                table.require_mounted()
            if chosen:
                # If some rows name a tablet, one tablet cannot be chosen for all rows together.
                table.require_mounted()
            upper = stored_queues.load(connection, self.table).upper
            partition = min(mounted, key=upper.__getitem__)
            rows = self._prepared.rows.drop_columns([TABLET_INDEX])
        stored_queues.append(connection, self.table, rows, version, ts, partition=partition)


@dataclass(frozen=True)
class ConsumerChange:
    """Rows of a consumer to write or delete.

    Attributes:
        cluster: the name of this cluster.
        seen: key → offset at the time of the command. If an offset has changed since, another process has advanced
            the consumer.
    """

    of: Table
    rows: Sequence[ConsumerRow]
    cluster: str
    delete: bool = False
    seen: Mapping[tuple[str, str, int], int | None] = field(default_factory=dict)

    @property
    def table(self) -> str:
        return self.of.name

    @property
    def size(self) -> Mapping[int, int]:
        return {0: len(self.rows)}

    def locks(self, connection: apsw.Connection) -> Locks:
        consumer = _object(connection, self.of)
        for (cluster, path, number), offset in self.seen.items():
            if consumer_rows.offset(connection, consumer, cluster, path, number, self.cluster) != offset:
                raise YtError(
                    Code.TABLET_LOCK_CONFLICT,
                    f"Row lock conflict in {self.table}: another client has advanced the consumer",
                    remedy="begin a new transaction and try again",
                    attributes={"path": self.table},
                )
        hashes = np.array([hash(row[:3]) % _HASHES for row in self.rows], dtype=np.int64)
        return {consumer: Locked(hashes, NO_HASHES)}

    def apply(self, connection: apsw.Connection, version: int, ts: int) -> None:
        table_state.load(connection, self.of.node).require_mounted()
        change = consumer_rows.delete if self.delete else consumer_rows.write
        change(connection, _object(connection, self.of), self.rows, self.cluster)


@dataclass(frozen=True)
class SessionChange:
    """A producer's session to write or delete."""

    of: Table
    row: SessionRow
    delete: bool = False

    @property
    def table(self) -> str:
        return self.of.name

    @property
    def size(self) -> Mapping[int, int]:
        return {0: 1}

    def locks(self, connection: apsw.Connection) -> Locks:
        hashes = np.array([hash((self.row.queue, self.row.session)) % _HASHES], dtype=np.int64)
        return {_object(connection, self.of): Locked(hashes, NO_HASHES)}

    def apply(self, connection: apsw.Connection, version: int, ts: int) -> None:
        table_state.load(connection, self.of.node).require_mounted()
        producer = _object(connection, self.of)
        if self.delete:
            producer_rows.delete(connection, producer, self.row.queue, self.row.session)
        else:
            producer_rows.write(connection, producer, self.row)


def _object(connection: apsw.Connection, table: Table) -> int:
    """Return the id of the object with the rows of a table."""
    kind = object_kind(table)
    assert kind is not None
    return catalog.find(connection, table.name, kind)
