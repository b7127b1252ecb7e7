"""The writes of a publication: for each target its rows, checked and in the target's types."""

from __future__ import annotations

from collections.abc import Callable, Iterator, Mapping
from dataclasses import dataclass, field
from typing import Any

import numpy as np
import pyarrow as pa
from yt.wrapper import YtClient

from headrace.model.queues.columns import TABLET_INDEX
from headrace.model.queues.validation import Route
from headrace.model.tables.changes import RowChange
from headrace.ports import Append, Staged, Write
from headrace.rows import to_arrow
from headrace.rows.staged_parts import whole_content
from headrace.support.cached import cached_property
from headrace_ytsaurus.store.catalog import Names
from headrace_ytsaurus.store.connection import ROWS_PER_REQUEST, ROWS_PER_TABLET, YtConnection, as_batch, parts
from headrace_ytsaurus.store.failures import YtTooManyRowsError
from headrace_ytsaurus.store.queues import producers
from headrace_ytsaurus.store.queues.queue import YtQueue
from headrace_ytsaurus.store.queues.routing import routed
from headrace_ytsaurus.store.tables.table import YtTable
from headrace_ytsaurus.store.tables.writing import keys_gone, last_of_each_key, write_in_parts
from headrace_ytsaurus.wire.errors import Code

_COLUMNS_OF: dict[RowChange, Any] = {
    RowChange.PUT: "all",
    RowChange.REPLACE_ALL: "all",
    RowChange.UPDATE: "given",
    RowChange.DELETE: "keys",
}


Load = Callable[[Staged], pa.Table]
"""Returns the rows of a receipt."""


@dataclass(frozen=True)
class PlannedTableWrite:
    """Rows for a table; see `of`."""

    table: YtTable
    write: Write
    load: Load = field(repr=False)

    @classmethod
    def of(cls, connection: YtConnection, names: Names, write: Write, load: Load) -> PlannedTableWrite:
        """Return the planned write of a `Write`.

        Raises:
            NotFoundError: the table does not exist.
        """
        return cls(YtTable(connection, names, write.table), write, load)

    @property
    def path(self) -> str:
        return self.table.path

    @property
    def staged_rows(self) -> int:
        return sum(receipt.rows for receipt in self.write.staged)

    def most_rows(self) -> int:
        """Return the most rows that one tablet may get: the tablets of rows are not known."""
        return self.staged_rows

    def pieces(self) -> Iterator[pa.Table]:
        """Yield the rows in the table's types, in their order.

        Raises:
            SchemaError: a row does not fit.
        """
        for receipt in self.write.staged:
            yield to_arrow(self.load(receipt), self.table.schema, columns=_COLUMNS_OF[self.write.change])

    def changes(self) -> Iterator[tuple[RowChange, pa.Table]]:
        """Yield the changes in order; a replacement compares with the current rows of the table."""
        if self.write.change is not RowChange.REPLACE_ALL:
            for piece in self.pieces():
                yield self.write.change, piece
            return
        key = list(self.table.schema.primary_key)
        wanted = last_of_each_key(whole_content(list(self.pieces()), self.table.schema.arrow.empty_table()), key)
        yield RowChange.PUT, wanted
        yield RowChange.DELETE, keys_gone(self.table.scan(key).read_all(), wanted.select(key))

    def apply(self, client: Any) -> None:
        """Write the rows in a transaction.

        Raises:
            YtTooManyRowsError: a transaction cannot have this number of rows.
        """
        rows = 0
        for change, piece in self.changes():
            rows += piece.num_rows
            check_size(rows)
            self.table.apply(client, change, piece)

    def in_parts(self, connection: YtConnection, guard: Callable[[YtClient], None]) -> None:
        """Write the rows, a part in each transaction. The call can be repeated.

        Args:
            guard: is called in each transaction, and raises an error if the rows must no longer be written.
        """
        write_in_parts(connection, self.table.path, self.table.layout, self.changes(), guard=guard)


@dataclass(frozen=True)
class PlannedQueueWrite:
    """Rows for a queue; see `of`."""

    queue: YtQueue
    write: Append
    load: Load = field(repr=False)
    given: int | None = None

    @classmethod
    def of(
        cls, connection: YtConnection, names: Names, append: Append, load: Load, unrouted: int | None = None
    ) -> PlannedQueueWrite:
        """Return the planned write of an `Append`.

        Args:
            unrouted: the partition of rows without one; by default the partition that has had the fewest rows.

        Raises:
            NotFoundError: the queue does not exist.
        """
        return cls(YtQueue(connection, names, append.queue), append, load, unrouted)

    @property
    def path(self) -> str:
        return self.queue.path

    @cached_property
    def unrouted(self) -> int:
        """The partition of rows without one."""
        if self.given is not None:
            return self.given
        bounds = self.queue.bounds()
        return min(bounds, key=lambda number: (bounds[number].upper, number))

    def most_rows(self) -> int:
        """Return the largest number of rows for one partition."""
        total = sum(receipt.rows for receipt in self.write.staged)
        partitions = self.queue.node.tablets
        if not ROWS_PER_TABLET < total <= ROWS_PER_TABLET * partitions:
            return total
        counts = np.zeros(partitions, dtype=np.int64)
        for piece in self.pieces():
            counts += np.bincount(piece.column(TABLET_INDEX).to_numpy(), minlength=partitions)
        return int(counts.max())

    def pieces(self) -> Iterator[pa.Table]:
        """Yield the rows in the queue's types, each with its partition, in their order.

        Raises:
            SchemaError: a row does not fit.
            OptionError: the queue no longer has the partition of a row.
        """
        accepted = self.queue.layout.accepted
        for receipt in self.write.staged:
            rows = to_arrow(self.load(receipt), accepted, columns="all")
            ends = [0] * self.queue.node.tablets
            if rows.column(TABLET_INDEX).null_count:
                ends = [int(number != self.unrouted) for number in range(len(ends))]
            yield routed(rows, Route(), ends)

    def append(self, connection: YtConnection, client: Any) -> None:
        """Append all rows in a transaction."""
        for piece in self.pieces():
            connection.insert(self.path, as_batch(piece), self.queue.layout.written, client=client)

    def push(self, connection: YtConnection, producer: str, session: str, first: int) -> int:
        """Append the rows through a session, with sequence numbers from ``first``. A repetition appends no row twice.

        Returns:
            The sequence number after the last one.
        """
        epoch = int(producers.open_session(connection, producer, self.path, session)["epoch"])
        for piece in self.pieces():
            for part in parts(piece, ROWS_PER_REQUEST):
                numbers = np.arange(first, first + part.num_rows)
                producers.push(connection, producer, self.queue, session, epoch, part, numbers)
                first += part.num_rows
        return first


def check_size(rows: int) -> None:
    """Raise `YtTooManyRowsError` if a tablet gets more rows than a transaction allows."""
    if rows > ROWS_PER_TABLET:
        raise YtTooManyRowsError(
            Code.TOO_MANY_ROWS_IN_TRANSACTION, "the batch has too many rows for one transaction", received=rows
        )


PlannedWrite = PlannedTableWrite | PlannedQueueWrite


def describe(write: Write | Append, extra: Mapping[str, Any]) -> dict[str, Any]:
    """Return a write as JSON values; the inverse of `described`."""
    staged = [[receipt.id, receipt.rows] for receipt in write.staged]
    if isinstance(write, Append):
        return {"queue": write.queue, "staged": staged, "replace": write.replace, **extra}
    return {"table": write.table, "change": str(write.change), "staged": staged, **extra}


def described(value: Mapping[str, Any]) -> Write | Append:
    """Return the write of JSON values; the inverse of `describe`."""
    staged = tuple(Staged(int(number), int(rows)) for number, rows in value["staged"])
    if "queue" in value:
        return Append(value["queue"], staged, bool(value["replace"]))
    return Write(value["table"], RowChange(value["change"]), staged)
