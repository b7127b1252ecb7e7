"""The interfaces of queues, consumers and producers."""

from __future__ import annotations

from abc import abstractmethod
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from typing import Any

from headrace.model.queues.columns import QueueSchema
from headrace.model.queues.values import (
    Bounds,
    ConsumerPartition,
    ProducerSession,
    Pushed,
    QueueOptions,
    QueuePage,
    RowRange,
)
from headrace.model.types import type_name
from headrace.ports.arguments import Port
from headrace.ports.tables import Rows
from headrace.support import notebooks


@dataclass(frozen=True)
class QueuePartition:
    """The state of a partition of a queue.

    Attributes:
        weight: the cumulative data weight; None without `$cumulative_data_weight`.
        last_commit: the time of the last commit, in seconds since 1970; None before the first.
    """

    number: int
    bounds: Bounds
    weight: int | None
    last_commit: float | None


@dataclass(frozen=True)
class Registration:
    """The registration of a consumer for a queue. Automatic trimming keeps the unread rows of a ``vital`` consumer."""

    queue: str
    consumer: str
    vital: bool


@dataclass(frozen=True)
class QueueDescription:
    """The state of a queue."""

    name: str
    schema: QueueSchema
    options: QueueOptions
    partitions: tuple[QueuePartition, ...]
    registrations: tuple[Registration, ...]


def _html(described: QueueDescription) -> str:
    total = sum(each.bounds.rows for each in described.partitions)
    consumers = ", ".join(each.consumer for each in described.registrations) or None
    title = notebooks.facts(f"Queue {described.name}", {"rows": total, "consumers": consumers})
    columns = [(column.name, type_name(column.type)) for column in described.schema.columns]
    partitions = [
        (each.number, each.bounds.lower, each.bounds.upper, each.bounds.rows) for each in described.partitions
    ]
    return (
        title
        + notebooks.rows(("column", "type"), columns, len(columns))
        + notebooks.rows(("partition", "first row", "next row", "rows"), partitions, len(partitions))
    )


class Queue(Port):
    """An append-only table. A row's address is (partition number, row index), assigned at commit and never reused.

    Attributes:
        name: the queue's name in its store.

    Examples:
        >>> clicks.append([{"user": "u1", "page": "/"}, {"user": "u2", "page": "/help"}], partition=0)
        [RowRange(partition=0, first=0, next=2)]
        >>> page = clicks.read(0, first_row=1)
        >>> page.rows.to_pylist()
        [{'user': 'u2', 'page': '/help'}]
        >>> clicks.bounds()[0].upper
        2
    """

    name: str

    def _repr_html_(self) -> str | None:
        return notebooks.shown(f"Queue {self.name}", lambda: _html(self.describe()))

    @property
    @abstractmethod
    def id(self) -> str:
        """The identity of the queue. A queue that is dropped and created again gets another id."""

    @property
    def copies(self) -> int:
        """How often this object has found another copy of the queue in place of the former one.

        A query looks again then whether the rows that it has read are there.
        """
        return 0

    @property
    @abstractmethod
    def schema(self) -> QueueSchema:
        """The columns, without `$tablet_index` and `$row_index`."""

    @abstractmethod
    def append(
        self, rows: Rows, *, partition: int | None = None, key: str | Sequence[str] | None = None
    ) -> list[RowRange]:
        """Append rows atomically, in their order within each partition.

        Missing columns become null. The store fills system columns, and does not accept them. Without ``partition`` and
        ``key``, a column `$tablet_index` of the rows is the partition of each row; rows where it is null are balanced.
        Without that column too, all rows are appended to the partition with the fewest appended rows.

        Args:
            partition: the partition of all rows.
            key: the columns whose hash chooses the partition of a row.

        Returns:
            The addresses of the rows: one range for each partition with new rows, by partition number.

        Raises:
            SchemaError: the queue does not have a column, or a column cannot hold a value; nothing is written.
            OptionError: the partition does not exist, or both a partition and a key are set.
        """

    @abstractmethod
    def bounds(self) -> dict[int, Bounds]:
        """Return the bounds of all partitions, by partition number, as one snapshot."""

    @abstractmethod
    def read(self, partition: int, first_row: int, max_rows: int = 1000, *, until: int | None = None) -> QueuePage:
        """Read rows from a row index on, in order. The same row index always returns the same row.

        The page has at most ``max_rows`` rows. It may have fewer, but is empty only if there are no rows.

        Args:
            until: the row index after the last row to return.

        Raises:
            DataLossError: the row is trimmed.
        """

    @abstractmethod
    def row_at(self, partition: int, timestamp: float) -> int:
        """Return the index of the first row committed at or after a time (seconds since 1970), or the end."""

    @abstractmethod
    def commit_time(self, partition: int, row: int) -> float | None:
        """Return the commit time of a row in seconds since 1970; None if the row does not exist."""

    @abstractmethod
    def trim(self, partition: int | None = None, before: int | None = None) -> int:
        """Remove the rows of a partition below a row index; return their number.

        Without arguments, trim all partitions in the way of automatic trimming, even if it is disabled.

        Raises:
            OptionError: ``before`` is after the partition's end.
        """

    @abstractmethod
    def add_partitions(self, count: int) -> int:
        """Add empty partitions at the end; return the new number of partitions."""

    @abstractmethod
    def set_options(self, **changes: Any) -> QueueOptions:
        """Change some of the `QueueOptions`; return all of them."""

    @abstractmethod
    def describe(self) -> QueueDescription:
        """Return the columns, bounds, sizes, options and consumers of the queue, as one snapshot."""


class Consumer(Port):
    """Named read offsets: for each partition of a queue, the index of the first unread row.

    Attributes:
        name: the consumer's name.

    Examples:
        >>> reader = store.consumer("reader")
        >>> reader.offsets("clicks")
        {0: 0, 1: 0}
        >>> reader.advance("clicks", {0: 2}, expected={0: 0})
        >>> reader.offsets("clicks")
        {0: 2, 1: 0}
    """

    name: str

    @abstractmethod
    def offsets(self, queue: str) -> dict[int, int]:
        """Return the offset in each partition of a queue; 0 if the consumer has never been advanced."""

    @abstractmethod
    def advance(
        self,
        queue: str,
        offsets: Mapping[int, int],
        expected: Mapping[int, int] | None = None,
        *,
        or_published: bool = False,
    ) -> None:
        """Set offsets in partitions of a queue, atomically.

        Args:
            offsets: the new offset by partition; any row index, also after the end or before the current offset.
            expected: the expected current offsets, for some or all of these partitions.
            or_published: a new offset that a publication has already set is not a conflict.

        Raises:
            OffsetConflictError: an offset is not the expected one; nothing is changed.
            OptionError: a partition does not exist, or an offset is negative.
            NotFoundError: the consumer is not registered for the queue.
        """

    @abstractmethod
    def registrations(self) -> list[Registration]:
        """Return the queues for which the consumer is registered, and whether it is vital for each."""

    @abstractmethod
    def status(self, queue: str) -> list[ConsumerPartition]:
        """Return the progress of the consumer in each partition of a queue."""


class Producer(Port):
    """Sessions of writers outside Spark: a row that is pushed several times is appended once.

    Attributes:
        name: the producer's name.

    Examples:
        >>> producer = store.create_producer("web")
        >>> session = producer.open_session("clicks", "host-1")
        >>> rows = [{"user": "u1", "page": "/"}, {"user": "u1", "page": "/help"}]
        >>> producer.push(session, rows, sequence_number=0, partition=0)
        Pushed(last_sequence_number=1, skipped_rows=0)
        >>> producer.push(session, rows, sequence_number=0, partition=0).skipped_rows
        2
    """

    name: str

    @abstractmethod
    def open_session(self, queue: str, session: str, *, user_meta: Any = None) -> ProducerSession:
        """Open a session, and end its previous use: pushes with earlier epochs fail from now on.

        A new session has epoch 0 and sequence number -1; an existing session gets the next epoch.

        Args:
            user_meta: a JSON value that replaces the one saved with the session, unless it is None.
        """

    @abstractmethod
    def push(
        self,
        session: ProducerSession,
        rows: Rows,
        *,
        sequence_number: int | None = None,
        partition: int | None = None,
        key: str | Sequence[str] | None = None,
        user_meta: Any = None,
    ) -> Pushed:
        """Append the rows whose sequence number is larger than the session's last one, and save the new last one.

        Partitions are chosen as in `Queue.append`.

        Args:
            sequence_number: the number of the first row; each following row has the next number. Without it, the rows
                have an int64 column `$sequence_number` with strictly increasing numbers; gaps are allowed.

        Raises:
            SessionEpochError: the session was opened again, or the epoch was never assigned.
            SequenceNumberError: numbers are missing, set in both ways, or not increasing; nothing is written.
        """

    @abstractmethod
    def remove_session(self, queue: str, session: str) -> None:
        """Delete a session. If it is opened again, it starts at epoch 0."""

    @abstractmethod
    def sessions(self, queue: str | None = None) -> list[ProducerSession]:
        """Return the sessions over a queue, or over all queues, with their epochs and last sequence numbers."""
