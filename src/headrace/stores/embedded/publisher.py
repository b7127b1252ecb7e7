"""Publication: rows are put aside as Arrow IPC streams, and made visible together with the marker of their batch."""

from __future__ import annotations

import time
from collections.abc import Iterable, Iterator, Sequence

import apsw
import pyarrow as pa

from headrace.errors import PublicationError
from headrace.model import RowChange
from headrace.ports import Publisher, Staged, Write
from headrace.stores.embedded.database import Database, stamp
from headrace.stores.embedded.tables import EmbeddedTable

STAGE_BYTES = 4 << 20
# So much is held in memory before a part of a large input goes to the store in a transaction of its own.
_FLUSH_BYTES = 64 << 20
_APPLY_ROWS = 1_000_000
# Far below the 2 GiB that one Arrow column of text can hold.
_APPLY_BYTES = 256 << 20
_REPLACE_BYTES = 1 << 30
# What nobody published within a day belongs to a job that is gone.
_ABANDONED_SECONDS = 86400.0


class EmbeddedPublisher(Publisher):
    """Publishes the batches of one sink of a job in an embedded store, each exactly once."""

    def __init__(self, database: Database, job: str, sink: str) -> None:
        self._database = database
        self.job = job
        self.sink = sink

    def __repr__(self) -> str:
        return f"EmbeddedPublisher(job={self.job!r}, sink={self.sink!r})"

    def published(self, batch: int) -> bool:
        with self._database.read() as connection:
            return self._is_published(connection, batch)

    def stage(self, batch: int, rows: Iterable[pa.RecordBatch]) -> list[Staged]:
        staged: list[Staged] = []
        waiting: list[tuple[int, bytes]] = []
        try:
            for part in _parts(rows):
                waiting.append(part)
                if sum(len(data) for _, data in waiting) >= _FLUSH_BYTES:
                    staged += self._insert(batch, waiting)
                    waiting = []
            if waiting:
                staged += self._insert(batch, waiting)
        except BaseException:
            if staged:
                self.discard(batch, staged)
            raise
        return staged

    def _insert(self, batch: int, parts: Sequence[tuple[int, bytes]]) -> list[Staged]:
        staged = []
        with self._database.write() as connection:
            for count, data in parts:
                connection.execute(
                    "INSERT INTO stage (job, sink, batch, created, n, data) VALUES (?, ?, ?, ?, ?, ?)",
                    (self.job, self.sink, batch, time.time(), count, data),
                )
                staged.append(Staged(connection.last_insert_rowid(), count))
        return staged

    def publish(self, batch: int, writes: Sequence[Write], *, content: str = "", last: bool = False) -> bool:
        """Publish a batch; see `headrace.ports.Publisher.publish`. All its changes carry one commit version.

        Raises:
            PublicationError: rows that a write names are not staged for this batch; nothing is changed.
        """
        with self._database.write() as connection:
            if self._is_published(connection, batch):
                self._check_same(connection, batch, content)
                return False
            version, ts = stamp(connection)
            for write in writes:
                table = EmbeddedTable(self._database, write.table)
                for rows in self._rows_to_apply(connection, batch, write, table):
                    table.apply(connection, write.change, rows, version, ts)
            now = time.time()
            if not last:
                connection.execute(
                    "INSERT INTO marker (job, sink, batch, content, published) VALUES (?, ?, ?, ?, ?) ON CONFLICT"
                    " DO UPDATE SET batch = excluded.batch, content = excluded.content, published = excluded.published",
                    (self.job, self.sink, batch, content, now),
                )
            connection.execute(
                "DELETE FROM stage WHERE job = ? AND sink = ? AND batch <= ?", (self.job, self.sink, batch)
            )
            connection.execute("DELETE FROM stage WHERE created < ?", (now - _ABANDONED_SECONDS,))
        return True

    def discard(self, batch: int, staged: Sequence[Staged] | None = None) -> None:
        mine = "DELETE FROM stage WHERE job = ? AND sink = ? AND batch = ?"
        with self._database.write() as connection:
            if staged is None:
                connection.execute(mine, (self.job, self.sink, batch))
            else:
                connection.executemany(
                    f"{mine} AND id = ?", [(self.job, self.sink, batch, receipt.id) for receipt in staged]
                )

    def _is_published(self, connection: apsw.Connection, batch: int) -> bool:
        found = connection.execute(
            "SELECT 1 FROM marker WHERE job = ? AND sink = ? AND batch >= ?", (self.job, self.sink, batch)
        )
        return found.fetchone() is not None

    def _check_same(self, connection: apsw.Connection, batch: int, content: str) -> None:
        """Raise `PublicationError` unless a published batch comes again as it was; Spark repeats only the last one."""
        ((last, its_content),) = connection.execute(
            "SELECT batch, content FROM marker WHERE job = ? AND sink = ?", (self.job, self.sink)
        )
        if content and (last != batch or (its_content and its_content != content)):
            raise PublicationError(
                f"batch {batch} of job {self.job} has other rows than the batch {batch} that was published",
                received=f"batch {batch}, after batch {last} was published to {self.sink!r}",
                remedy="the checkpoint went back (files lost in a power cut, or an older copy restored): restore the "
                "newest one, or start the query with a new checkpoint location",
            )

    def _rows_to_apply(
        self, connection: apsw.Connection, batch: int, write: Write, table: EmbeddedTable
    ) -> Iterator[pa.Table]:
        """Yield the rows of a write in pieces that are worth a pass over the table."""
        if write.change is RowChange.REPLACE_ALL:
            parts = [self._load(connection, batch, receipt) for receipt in write.staged]
            if sum(part.nbytes for part in parts) > _REPLACE_BYTES:
                raise PublicationError(
                    "the new content of the table is too large to be replaced at once",
                    valid=f"{_REPLACE_BYTES >> 20} MiB",
                    remedy="write it in update or append mode",
                )
            yield _joined(parts) if parts else table.schema.arrow.empty_table()
            return
        parts, count, size = [], 0, 0
        for receipt in write.staged:
            parts.append(self._load(connection, batch, receipt))
            count += receipt.rows
            size += parts[-1].nbytes
            if count >= _APPLY_ROWS or size >= _APPLY_BYTES:
                yield _joined(parts)
                parts, count, size = [], 0, 0
        if parts:
            yield _joined(parts)

    def _load(self, connection: apsw.Connection, batch: int, receipt: Staged) -> pa.Table:
        found = connection.execute(
            "SELECT data FROM stage WHERE id = ? AND job = ? AND sink = ? AND batch = ?",
            (receipt.id, self.job, self.sink, batch),
        ).fetchone()
        if found is None:
            raise PublicationError(
                f"staged rows of batch {batch} are not there",
                received=f"stage {receipt.id} of job {self.job!r}, sink {self.sink!r} ({receipt.rows} rows)",
                remedy="run the batch again: its rows were discarded, or staged for another batch or sink",
            )
        return pa.ipc.open_stream(pa.py_buffer(found[0])).read_all()


def _parts(rows: Iterable[pa.RecordBatch]) -> Iterator[tuple[int, bytes]]:
    """Yield rows as (number, Arrow IPC stream) of about `STAGE_BYTES`."""
    waiting: list[pa.RecordBatch] = []
    size = 0
    for batch in rows:
        step = max(1, batch.num_rows * STAGE_BYTES // max(1, batch.nbytes))
        for start in range(0, batch.num_rows, step):
            piece = batch.slice(start, step)
            if waiting and piece.schema != waiting[0].schema:
                yield _stream(waiting)
                waiting, size = [], 0
            waiting.append(piece)
            size += piece.nbytes
            if size >= STAGE_BYTES:
                yield _stream(waiting)
                waiting, size = [], 0
    if waiting:
        yield _stream(waiting)


def _stream(batches: Sequence[pa.RecordBatch]) -> tuple[int, bytes]:
    sink = pa.BufferOutputStream()
    with pa.ipc.new_stream(sink, batches[0].schema) as writer:
        for batch in batches:
            writer.write_batch(batch)
    return sum(batch.num_rows for batch in batches), sink.getvalue().to_pybytes()


def _joined(parts: Sequence[pa.Table]) -> pa.Table:
    try:
        return pa.concat_tables(parts, promote_options="default")
    except pa.ArrowInvalid as error:
        raise PublicationError("the staged rows of a batch have different columns", received=str(error)) from error
