"""What a store offers to make the batches of a job visible, each at once and once."""

from __future__ import annotations

from abc import abstractmethod
from collections.abc import Iterable, Mapping, Sequence
from dataclasses import dataclass, field

import pyarrow as pa

from headrace.errors import UnsupportedError
from headrace.ports.arguments import Port
from headrace.tables.changes import RowChange


@dataclass(frozen=True)
class Staged:
    """A receipt for rows that are in the store but not visible. Small, and can be pickled."""

    id: int
    rows: int


@dataclass(frozen=True)
class Write:
    """What to do with rows staged with `Publisher.stage` at publication."""

    table: str
    change: RowChange
    staged: tuple[Staged, ...]


@dataclass(frozen=True)
class Append:
    """Rows staged with `Publisher.stage_append`, to be appended to a queue at publication.

    With ``replace``, all rows that the queue has are trimmed first.
    """

    queue: str
    staged: tuple[Staged, ...]
    replace: bool = False


@dataclass(frozen=True)
class Advance:
    """A consumer's progress over a queue, by partition number, made together with a publication.

    The query may read the batch once more, so an offset that its job has brought to its target already is no conflict,
    and automatic trimming keeps the batch's rows, which begin at ``expected``, until the next advance.
    """

    consumer: str
    queue: str
    offsets: Mapping[int, int]
    expected: Mapping[int, int] = field(default_factory=dict)


class Publisher(Port):
    """Makes a job's batches visible in a store, each at once and once.

    ``job`` is the identity of the job (Spark's query id), ``sink`` tells several sinks of one job apart.
    """

    job: str
    sink: str

    @abstractmethod
    def published(self, batch: int) -> bool:
        """Tell whether this batch, or a later one, is published."""

    @abstractmethod
    def stage(
        self,
        batch: int,
        rows: Iterable[pa.RecordBatch],
        *,
        table: str | None = None,
        change: RowChange | None = None,
    ) -> list[Staged]:
        """Put rows aside, invisible to readers, from any process. Nothing is staged when the input fails.

        A store without transactions writes rows into their table there and then, if it is told where they will go;
        the batch's next attempt writes the same rows again.

        Args:
            table: the table of the `Write` that the receipts will be in.
            change: the row change of that `Write`.
        """

    def stage_append(
        self, batch: int, queue: str, rows: Iterable[pa.RecordBatch], *, key: Sequence[str] | None = None
    ) -> list[Staged]:
        """Put rows aside that are to be appended to a queue, in this order. Nothing is staged when the input fails.

        The rows fit the queue's columns already, or have `$tablet_index` besides. ``key``: as in `Queue.append`.

        Raises:
            UnsupportedError: the store has no queues.
        """
        raise UnsupportedError("this store has no queues", received=repr(queue))

    @abstractmethod
    def publish(
        self,
        batch: int,
        writes: Sequence[Write | Append],
        *,
        advances: Sequence[Advance] = (),
        content: str = "",
        last: bool = False,
    ) -> bool:
        """Make staged rows visible in one transaction with the marker; remove what else was staged up to it.

        Returns False, having changed nothing, if the batch is published already.

        Args:
            advances: progress of consumers, part of the same transaction.
            content: tells the batch's content from any other under the same number; unknown if empty.
            last: keep no marker, because the job has this one batch.

        Raises:
            OffsetConflictError: a consumer is not where an advance expects it; nothing is changed.
            PublicationError: staged rows are not there; or the batch, or a later one, is published with
                another content: the job's checkpoint went back.
        """

    @abstractmethod
    def discard(self, batch: int, staged: Sequence[Staged] | None = None) -> None:
        """Remove what was staged for a batch: these receipts, or everything."""
