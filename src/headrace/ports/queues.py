"""What queues, consumers and producers of a store can do."""

from __future__ import annotations

from abc import abstractmethod
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from typing import Any

from headrace.ports.arguments import Port
from headrace.ports.tables import Rows
from headrace.queues.columns import QueueSchema
from headrace.queues.values import Bounds, ConsumerPartition, ProducerSession, Pushed, QueueOptions, QueuePage, RowRange


@dataclass(frozen=True)
class QueuePartition:
    """A partition of a queue as it stands. ``weight`` is cumulative, None without `$cumulative_data_weight`.

    ``last_commit`` is when a row was last committed, in seconds since 1970; None before the first.
    """

    number: int
    bounds: Bounds
    weight: int | None
    last_commit: float | None


@dataclass(frozen=True)
class Registration:
    """A consumer that may read a queue; a ``vital`` one keeps unread rows from automatic trimming."""

    queue: str
    consumer: str
    vital: bool


@dataclass(frozen=True)
class QueueDescription:
    """A queue as it stands."""

    name: str
    schema: QueueSchema
    options: QueueOptions
    partitions: tuple[QueuePartition, ...]
    registrations: tuple[Registration, ...]


class Queue(Port):
    """An append-only table; a row's address is (partition number, row index), given at commit and never reused."""

    name: str

    @property
    @abstractmethod
    def id(self) -> str:
        """Tells this queue from any other, one of the same name included that is made when this one is dropped."""

    @property
    @abstractmethod
    def schema(self) -> QueueSchema: ...

    @abstractmethod
    def append(
        self, rows: Rows, *, partition: int | None = None, key: str | Sequence[str] | None = None
    ) -> list[RowRange]:
        """Append rows in one commit; all become visible at once, in their order within each partition.

        Rows go to a given ``partition``; or, by the hash of their ``key`` columns, all rows of one key to one
        partition; or where the rows' own column `$tablet_index` says (null: balanced); or else, all of them, to
        the partition that has had the fewest rows. Columns left out become null; system columns are filled by the
        store and are not accepted.

        Returns:
            Where the rows are now: one range for each partition that got some, by partition number.

        Raises:
            SchemaError: a column that the queue has not, or a value that its column cannot hold; nothing is written.
            OptionError: no such partition, or both a partition and a key.
        """

    @abstractmethod
    def bounds(self) -> dict[int, Bounds]:
        """Return, for every partition number from 0, which rows are there, as of one moment."""

    @abstractmethod
    def read(self, partition: int, first_row: int, max_rows: int = 1000, *, until: int | None = None) -> QueuePage:
        """Read rows from a row index on, in order. The same row index always gives the same row.

        The page may be shorter than ``max_rows`` (at least one row where there is one), never longer, holds no row
        from index ``until`` on, and is empty only where there is nothing.

        Raises:
            DataLossError: the row is trimmed.
        """

    @abstractmethod
    def row_at(self, partition: int, timestamp: float) -> int:
        """Return the index of the first row committed at or after a time (seconds since 1970), or the end."""

    @abstractmethod
    def commit_time(self, partition: int, row: int) -> float | None:
        """Return when a row was committed (seconds since 1970); None if it is not there."""

    @abstractmethod
    def trim(self, partition: int | None = None, before: int | None = None) -> int:
        """Remove the rows of a partition below a row index; return how many went. Never brings rows back.

        Without arguments, trims all partitions as automatic trimming would do now, whether it is on or not.

        Raises:
            OptionError: ``before`` lies behind the partition's end.
        """

    @abstractmethod
    def add_partitions(self, count: int) -> int:
        """Add empty partitions at the end; return how many there are now."""

    @abstractmethod
    def set_options(self, **changes: Any) -> QueueOptions:
        """Change some of the `QueueOptions`; return all of them."""

    @abstractmethod
    def describe(self) -> QueueDescription: ...


class Consumer(Port):
    """Named read offsets over the partitions of queues: the index of the first unread row of each."""

    name: str

    @abstractmethod
    def offsets(self, queue: str) -> dict[int, int]:
        """Return the offset in every partition of a queue; 0 where nothing was ever consumed."""

    @abstractmethod
    def advance(
        self,
        queue: str,
        offsets: Mapping[int, int],
        expected: Mapping[int, int] | None = None,
        *,
        or_published: bool = False,
    ) -> None:
        """Set offsets of a queue's partitions, all or none.

        Args:
            offsets: the new offset by partition; may lie anywhere, also behind the queue's end or further back.
            expected: what the offsets must be now, for some or all of these partitions; unchecked where absent.
            or_published: an offset that a publication has brought to its new place already is no conflict.

        Raises:
            OffsetConflictError: an offset is not the expected one; nothing is changed.
            OptionError: no such partition, or an offset below 0.
            NotFoundError: the consumer is not registered for the queue.
        """

    @abstractmethod
    def registrations(self) -> list[Registration]: ...

    @abstractmethod
    def status(self, queue: str) -> list[ConsumerPartition]:
        """Return how far the consumer is in each partition of a queue."""


class Producer(Port):
    """Sessions of writers outside Spark: each row is taken once, however often it is pushed."""

    name: str

    @abstractmethod
    def open_session(self, queue: str, session: str, *, user_meta: Any = None) -> ProducerSession:
        """Begin or take over a session: a new one has epoch 0 and sequence number -1, an old one its next epoch.

        Whoever held the session before cannot push any more. ``user_meta`` (anything JSON can hold) replaces what is
        kept with the session, unless it is None.
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
        """Append the rows whose sequence number is above the session's last one, and record the new last one.

        Numbers are ``sequence_number`` for the first row and one more for each next, or stand in the rows' own int64
        column `$sequence_number`, strictly rising; gaps are allowed. Partitions are chosen as in `Queue.append`.

        Raises:
            SessionEpochError: somebody has opened the session since (or the epoch was never given out).
            SequenceNumberError: no numbers, two sources of numbers, or numbers that do not rise; nothing is written.
        """

    @abstractmethod
    def remove_session(self, queue: str, session: str) -> None:
        """Forget a session; opening it again begins at epoch 0."""

    @abstractmethod
    def sessions(self, queue: str | None = None) -> list[ProducerSession]: ...
