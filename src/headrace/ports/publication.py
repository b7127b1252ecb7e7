"""The interface for publication: batches of a job become visible atomically and once.

To *stage* rows is to keep them in the store, for a batch, where readers do not see them.
"""

from __future__ import annotations

from abc import abstractmethod
from collections.abc import Iterable, Mapping, Sequence
from dataclasses import dataclass, field
from typing import Any

import pyarrow as pa

from headrace.errors import ClaimLostError, DataLossError, PublicationError, UnsupportedError
from headrace.model.tables.alterations import Alteration
from headrace.model.tables.changes import RowChange
from headrace.ports.arguments import Port


@dataclass(frozen=True)
class Staged:
    """A receipt for staged rows. Small and picklable."""

    id: int
    rows: int


@dataclass(frozen=True)
class BadRows:
    """The table that gets the rows of a write which their table refuses; see `headrace.model.tables.bad_rows`.

    Attributes:
        table: its name.
        stream: the name of the query.
    """

    table: str
    stream: str


@dataclass(frozen=True)
class RetriedRows:
    """What `Store.retry_bad_rows` has done.

    Attributes:
        written: the rows that the table has taken.
        refused: the rows that it has refused again.
        outdated: the rows whose key has another row in the table now than when they were refused.
    """

    written: int
    refused: int
    outdated: int

    def __str__(self) -> str:
        return f"{self.written} rows written, {self.refused} refused again, {self.outdated} outdated"


@dataclass(frozen=True)
class Marker:
    """The last published batch of a sink, and the content that it was published with."""

    batch: int
    content: str


@dataclass(frozen=True)
class Write:
    """Rows that `Publisher.stage` has staged, and their row change, which publication applies to a table.

    Attributes:
        bad_rows: where rows go that the table refuses; None if one fails the publication. Rows with their keys that the
            table takes later remove them. All writes of the table in a publication have the same. Only in stores with
            `Capabilities.bad_rows`, and for PUT and DELETE.
        alteration: changes of the table's columns, which the same transaction makes before all writes of the table. All
            of these have it. Only in stores with `Capabilities.evolves`.
        new: the keys of a put are new, as far as its job knows. A store may insert them in a faster way; a row that
            exists is replaced all the same.
    """

    table: str
    change: RowChange
    staged: tuple[Staged, ...]
    alteration: Alteration | None = None
    bad_rows: BadRows | None = None
    new: bool = False


@dataclass(frozen=True)
class Append:
    """Rows that `Publisher.stage_append` has staged, which publication appends to a queue.

    With ``replace``, publication first trims all existing rows of the queue.
    """

    queue: str
    staged: tuple[Staged, ...]
    replace: bool = False


@dataclass(frozen=True)
class Advance:
    """The progress of a consumer in a queue, by partition number, which is part of a publication.

    The query may read the batch again. Therefore an offset that a publication of the job has already set is not a
    conflict, and automatic trimming keeps the rows of the batch, which start at ``expected``, until the next advance.
    """

    consumer: str
    queue: str
    offsets: Mapping[int, int]
    expected: Mapping[int, int] = field(default_factory=dict)


@dataclass(frozen=True)
class Claim:
    """A row that names the job to which a target belongs. A publication with a claim checks and puts the row.

    All columns of its table are strings.

    Attributes:
        table: the table of the row, one of headrace's own.
        before: the row that must be there; None if no row with the key may be there.
        after: the row that is put.
    """

    table: str
    before: Mapping[str, str] | None
    after: Mapping[str, str]

    def lost(self, found: Mapping[str, Any] | None) -> ClaimLostError:
        """Return the error for a row that is not as the claim expects it."""
        return ClaimLostError(
            f"another job has changed the row of its target in table {self.table!r} since this batch began",
            received=str(found and found.get("job")),
            remedy="only one job may write a target",
        )


def alterations_of(writes: Iterable[Write | Append]) -> dict[str, Alteration]:
    """Return the changes of columns that are part of writes, by table."""
    return {each.table: each.alteration for each in writes if isinstance(each, Write) and each.alteration}


def bad_rows_of(writes: Iterable[Write | Append]) -> dict[str, BadRows]:
    """Return where the bad rows of writes go, by table."""
    return {each.table: each.bad_rows for each in writes if isinstance(each, Write) and each.bad_rows}


class Publisher(Port):
    """Publishes the batches of a job in a store, each atomically and once.

    Attributes:
        job: the identity of the job: Spark's query id.
        sink: distinguishes the sinks of one job.
        refused: the number of rows that the last publication of this object has put into tables of bad rows.
        in_process: this object publishes the rows that it stages for tables, and nothing else does. So a store may keep
            them in memory until `discard`.
    """

    job: str
    sink: str
    refused: int = 0
    in_process: bool = False

    @abstractmethod
    def published(self, batch: int) -> bool:
        """Return whether this batch, or a later one, is published."""

    @abstractmethod
    def last_batch(self) -> int | None:
        """Return the last batch that the job has published to any of its sinks in this store; None if there is none."""

    def marker(self) -> Marker | None:
        """Return the marker of this sink; None before its first batch. Only in stores with `Capabilities.markers`."""
        raise UnsupportedError("markers of this store cannot be read", received=f"job {self.job!r}")

    def check_complete(self, batch: int) -> None:
        """Check that all batches before this one are published. A job that had no sink in this store passes.

        Raises:
            DataLossError: the store is older than the checkpoint.
        """
        last = self.last_batch() if batch else None
        if last is not None and last < batch - 1:
            raise DataLossError(
                "the store is older than the checkpoint, such as a restored copy: it lacks batches that the job has "
                "published",
                received=f"batch {batch} of job {self.job}; the last batch in the store is {last}",
                remedy="restore the newest copy of the store; or restore the checkpoint of the same time, or start "
                "the query with a new checkpoint location",
            )

    def resume(self, batch: int) -> bool:
        """Complete a publication that an earlier attempt has begun and not ended; return whether a batch is published.

        A batch whose rows depend on the rows of its target calls it before it reads them: in a store that publishes a
        large batch in parts, a part of the batch can be visible.
        """
        return self.published(batch)

    @abstractmethod
    def stage(
        self,
        batch: int,
        rows: Iterable[pa.RecordBatch],
        *,
        table: str | None = None,
        change: RowChange | None = None,
    ) -> list[Staged]:
        """Stage rows for a table, in any process. If the input fails, nothing is staged.

        A store without transactions writes the rows into their table immediately, if ``table`` and ``change`` are set
        and the change is not REPLACE_ALL. The next attempt of the batch writes the same rows again. Rows of a batch
        that is published, or older than one, are not written: they would replace newer ones.

        Args:
            table: the table of the `Write` with the receipts.
            change: the row change of that `Write`.
        """

    def stage_append(
        self, batch: int, queue: str, rows: Iterable[pa.RecordBatch], *, key: Sequence[str] | None = None
    ) -> list[Staged]:
        """Stage rows for a queue, in this order. If the input fails, nothing is staged.

        Args:
            rows: rows in the queue's columns and types, optionally with a column `$tablet_index`.
            key: the columns that choose the partition of a row, as in `Queue.append`.

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
        claim: Claim | None = None,
    ) -> bool:
        """Make staged rows visible and save the marker, in one transaction.

        Other rows that this sink staged for batches up to this one are removed.

        Args:
            advances: the progress of consumers, part of the same transaction.
            content: a hash of the batch's content, to detect another batch with the same number; empty if unknown.
            last: save no marker, because the job has no further batch.
            claim: a row that must be as expected. It is put in the same transaction. A store without transactions
                checks it, and then publishes; there, `take` comes before the first batch.

        Returns:
            False if the batch is already published; then nothing is changed.

        Raises:
            ClaimLostError: the row of the claim is not as expected; nothing is changed.
            OffsetConflictError: a consumer does not have the expected offset; nothing is changed.
            PublicationError: staged rows do not exist; or the batch, or a later one, is published with other content,
                because the job's checkpoint is older than the marker.
        """

    def take(self, claim: Claim) -> None:
        """Put the row of a claim if it is as expected, or put already, in a store without transactions.

        Raises:
            ClaimLostError: the row is not as expected, and is unchanged.
            UnsupportedError: the store has transactions: `publish` puts the row.
        """
        raise UnsupportedError("this store takes a claim in the publication of a batch", received=repr(claim.table))

    @abstractmethod
    def discard(self, batch: int, staged: Sequence[Staged] | None = None) -> None:
        """Remove the staged rows of a batch: those of these receipts; all if None."""

    def _check_same(self, batch: int, content: str, last: int, last_content: str) -> None:
        """Check that a published batch is the one that is published again. Spark repeats only the last batch.

        Args:
            content: the hash of the content of ``batch``; empty if unknown.
            last: the last published batch.
            last_content: the hash of its content; empty if unknown.

        Raises:
            PublicationError: the batch has other content now.
        """
        if content and (last != batch or (last_content and last_content != content)):
            raise PublicationError(
                f"batch {batch} of job {self.job} has other rows than the batch {batch} that was published",
                received=f"batch {batch}, after batch {last} was published to {self.sink!r}",
                remedy="the checkpoint is older than the store (files were lost, or an old copy was restored): restore "
                "the newest one, or start the query with a new checkpoint location",
            )
