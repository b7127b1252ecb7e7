"""The path of a batch into tables and queues of a store. All sinks use it: `write_stream`, native sinks, batch writes.

1. Each task *stages* its rows with `BatchWriter.stage`: the rows are converted into the types of their target and kept
   in the store, where readers do not see them. The task returns receipts.
2. The driver *publishes* the batch with `Publisher.publish`: one transaction makes the rows of all receipts visible and
   saves the marker (job, batch id) and the progress of consumers.
3. If the batch fails, the driver removes its staged rows with `Publisher.discard`.

A batch that has a marker can run again: both steps then change nothing.
"""

from __future__ import annotations

import logging
from collections.abc import Iterable, Iterator, Sequence

import pyarrow as pa

from headrace.batches.sinks.targets import TableTarget, Target
from headrace.ports import Append, Staged, Store, Write

_log = logging.getLogger("headrace")


class BatchWriter:
    """Writes the batches of one job into its targets. Cheap to create: each task and each commit creates its own.

    Attributes:
        publisher: the publisher of the job's batches.

    Args:
        store: the store of all targets.
        job: the identity of the job. With the names of the targets it identifies the markers of its batches.
        targets: the tables and queues, which are written in one transaction per batch.
    """

    def __init__(self, store: Store, job: str, targets: Sequence[Target]) -> None:
        self._store = store
        self._targets = tuple(targets)
        self.publisher = store.publisher(job, "+".join(sorted(target.name for target in targets)))

    def writes(self, staged: Sequence[Iterable[Staged]]) -> list[Write | Append]:
        """Return the writes of a batch for `Publisher.publish`.

        Args:
            staged: the receipts of all tasks, for each target in the order of the writer's targets.
        """
        return [target.write(receipts) for target, receipts in zip(self._targets, staged, strict=True)]

    def warn_of_bad_rows(self, batch: int) -> None:
        """Log how many rows the last publication has put into tables of bad rows. Their values are only there."""
        if refused := self.publisher.refused:
            kept = {each.bad_rows.table for each in self._targets if isinstance(each, TableTarget) and each.bad_rows}
            _log.warning("%d rows of batch %d were refused, and are in %s", refused, batch, ", ".join(sorted(kept)))

    def stage(
        self, batch: int, target: Target, rows: Iterable[pa.RecordBatch], rows_per_write: int | None = None
    ) -> list[Staged]:
        """Stage the rows that a task has for one target; all of them or, after an error, none.

        Args:
            batch: the batch id. If the batch is published already, the rows are read and not staged.
            target: one of the writer's targets.
            rows: the rows, in columns as `Target.check` accepts them.
            rows_per_write: the maximum number of rows in one write to the store; None is no limit.

        Returns:
            The receipts, for `writes`.
        """
        if self.publisher.published(batch):
            # Spark's state depends on every row of the batch being read.
            for _ in rows:
                pass
            return []
        filled = (part for part in rows if part.num_rows)
        if rows_per_write is None:
            return target.stage_rows(self._store, self.publisher, batch, filled)
        staged: list[Staged] = []
        try:
            for one_write in _split(filled, rows_per_write):
                staged += target.stage_rows(self._store, self.publisher, batch, one_write)
        except BaseException:
            self.publisher.discard(batch, staged)
            raise
        return staged


def _split(rows: Iterable[pa.RecordBatch], count: int) -> Iterator[list[pa.RecordBatch]]:
    """Yield lists of record batches with exactly ``count`` rows each; the last list may have fewer."""
    one_write: list[pa.RecordBatch] = []
    room = count
    for rest in rows:
        while rest.num_rows:
            taken = rest.slice(0, room)
            one_write.append(taken)
            room -= taken.num_rows
            rest = rest.slice(taken.num_rows)
            if not room:
                yield one_write
                one_write, room = [], count
    if one_write:
        yield one_write
