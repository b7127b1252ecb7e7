"""Publication: one transaction makes staged rows visible, writes the marker of the batch and advances consumers."""

from __future__ import annotations

import time
from collections.abc import Iterable, Iterator, Sequence

import apsw
import pyarrow as pa

from headrace.model.queues.validation import Route
from headrace.model.tables.changes import RowChange
from headrace.ports import Advance, Append, Claim, Marker, Publisher, Staged, Write
from headrace.ports.publication import alterations_of, bad_rows_of
from headrace.rows.staged_parts import in_pieces, whole_content
from headrace.stores.embedded.connection import Database, stamp
from headrace.stores.embedded.publication import bad_rows, staging
from headrace.stores.embedded.publication.staging import StagePart
from headrace.stores.embedded.queues import consumers, stored_queues
from headrace.stores.embedded.tables.table import EmbeddedTable
from headrace.stores.shared.staging import BatchKey, HeldRows
from headrace.support import failpoints

# Rows that are still staged after a day belong to a job that no longer exists.
_ABANDONED_SECONDS = 86400.0


class EmbeddedPublisher(Publisher):
    """Publishes the batches of one sink of a job in an embedded store, each exactly once."""

    def __init__(self, database: Database, job: str, sink: str) -> None:
        self._database = database
        self.job = job
        self.sink = sink
        self._held = HeldRows()

    def __repr__(self) -> str:
        return f"EmbeddedPublisher(job={self.job!r}, sink={self.sink!r})"

    def published(self, batch: int) -> bool:
        with self._database.read() as connection:
            return self._is_published(connection, batch)

    def last_batch(self) -> int | None:
        ((last,),) = self._database.query("SELECT max(batch) FROM marker WHERE job = ?", (self.job,))
        return None if last is None else int(last)

    def marker(self) -> Marker | None:
        with self._database.read() as connection:
            return self._marker(connection)

    def stage(
        self,
        batch: int,
        rows: Iterable[pa.RecordBatch],
        *,
        table: str | None = None,
        change: RowChange | None = None,
    ) -> list[Staged]:
        if self.in_process:
            return self._held.hold(rows)
        return self._stage(batch, staging.table_parts(rows))

    def stage_append(
        self, batch: int, queue: str, rows: Iterable[pa.RecordBatch], *, key: Sequence[str] | None = None
    ) -> list[Staged]:
        with self._database.read() as connection:
            state = stored_queues.load(connection, queue)
        return self._stage(batch, staging.queue_parts(state, rows, Route.of(None, key)))

    def _stage(self, batch: int, parts: Iterable[StagePart]) -> list[Staged]:
        staged: list[Staged] = []
        waiting: list[StagePart] = []
        size = 0
        try:
            for part in parts:
                waiting.append(part)
                size += len(part.data)
                if size >= staging.FLUSH_BYTES:
                    staged += self._insert(batch, waiting)
                    waiting, size = [], 0
            if waiting:
                staged += self._insert(batch, waiting)
        except BaseException:
            if staged:
                self.discard(batch, staged)
            raise
        failpoints.reach("rows-staged")
        return staged

    def _insert(self, batch: int, parts: Iterable[StagePart]) -> list[Staged]:
        with self._database.write() as connection:
            return staging.insert(connection, self._key(batch), parts)

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
        """Publish a batch; see `headrace.ports.Publisher.publish`. All its changes and rows have one commit version.

        An advance is not a conflict if this job has already advanced the consumer to its end.
        """
        with self._database.write() as connection:
            if self._is_published(connection, batch):
                last_marker = self._marker(connection)
                assert last_marker is not None
                self._check_same(batch, content, last_marker.batch, last_marker.content)
                return False
            version, ts = stamp(connection)
            refused = 0
            if claim is not None:
                self._take(connection, claim, version, ts)
            of_tables = bad_rows_of(writes)
            for name, alteration in alterations_of(writes).items():
                table = EmbeddedTable(self._database, name)
                if name in of_tables:
                    bad_rows.alter(connection, table, of_tables[name], alteration, version, ts)
                else:
                    table.alter_in(connection, alteration, version, ts)
            # Appends trim what consumers have read: of a consumer that goes back, as far as it is then.
            for advance in advances:
                consumers.advance(
                    connection, advance.consumer, advance.queue, advance.offsets, advance.expected, job=self.job
                )
            for write in writes:
                if isinstance(write, Append):
                    self._append(connection, batch, write, version, ts)
                    continue
                table = EmbeddedTable(self._database, write.table)
                if write.bad_rows is not None:
                    parts = [self._load(connection, batch, receipt) for receipt in write.staged]
                    refused += bad_rows.apply(connection, table, write, parts, self._key(batch), version, ts)
                    continue
                for rows in self._rows_to_apply(connection, batch, write, table):
                    table.apply(connection, write.change, rows, version, ts)
            failpoints.reach("rows-written")
            now = time.time()
            if not last:
                connection.execute(
                    "INSERT INTO marker (job, sink, batch, content, published) VALUES (?, ?, ?, ?, ?) ON CONFLICT"
                    " DO UPDATE SET batch = excluded.batch, content = excluded.content, published = excluded.published",
                    (self.job, self.sink, batch, content, now),
                )
            failpoints.reach("marker-written")
            staging.delete(connection, "job = ? AND sink = ? AND batch <= ?", self._key(batch))
            staging.delete(connection, "created < ?", (now - _ABANDONED_SECONDS,))
        self.refused = refused
        failpoints.reach("published")
        return True

    def _take(self, connection: apsw.Connection, claim: Claim, version: int, ts: int) -> None:
        table = EmbeddedTable(self._database, claim.table)
        key = {name: claim.after[name] for name in table.schema.primary_key}
        _, rows, exist = table.fetch(connection, [key])
        found = rows.to_pylist()[0] if exist[0] else None
        if found != claim.before:
            raise claim.lost(found)
        if claim.after != claim.before:
            table.apply(connection, RowChange.PUT, [claim.after], version, ts)

    def discard(self, batch: int, staged: Sequence[Staged] | None = None) -> None:
        if self.in_process:
            self._held.clear()
            return
        mine = "job = ? AND sink = ? AND batch = ?"
        with self._database.write() as connection:
            if staged is None:
                staging.delete(connection, mine, self._key(batch))
            for receipt in staged or ():
                staging.delete(connection, f"{mine} AND id = ?", (*self._key(batch), receipt.id))

    def _key(self, batch: int) -> BatchKey:
        return BatchKey(self.job, self.sink, batch)

    def _is_published(self, connection: apsw.Connection, batch: int) -> bool:
        marker = self._marker(connection)
        return marker is not None and marker.batch >= batch

    def _marker(self, connection: apsw.Connection) -> Marker | None:
        row = connection.execute(
            "SELECT batch, content FROM marker WHERE job = ? AND sink = ?", (self.job, self.sink)
        ).fetchone()
        return None if row is None else Marker(*row)

    def _rows_to_apply(
        self, connection: apsw.Connection, batch: int, write: Write, table: EmbeddedTable
    ) -> Iterator[pa.Table]:
        """Return the rows of a write in pieces that are large enough for a pass over the table."""
        parts = (self._load(connection, batch, receipt) for receipt in write.staged)
        if write.change is RowChange.REPLACE_ALL:
            return iter((whole_content(list(parts), table.schema.arrow.empty_table()),))
        return in_pieces(parts)

    def _load(self, connection: apsw.Connection, batch: int, receipt: Staged) -> pa.Table:
        if self.in_process:
            return self._held.load(receipt)
        return staging.load_table_rows(connection, self._key(batch), receipt)

    def _append(self, connection: apsw.Connection, batch: int, append: Append, version: int, ts: int) -> None:
        state = stored_queues.load(connection, append.queue)
        if append.replace:
            stored_queues.trim_all(connection, state)
        for receipt in append.staged:
            part = staging.take_queue_rows(connection, self._key(batch), receipt, state)
            stored_queues.append_parts(connection, state, [part], version, ts)
        stored_queues.auto_trim(connection, state.id)
