"""Staged rows of a batch: Arrow streams in files of Cypress, one for each receipt, outside of the tables.

The number of a receipt is a part of the file's name; an attribute of the file names its table or queue. Files of
abandoned jobs expire after a month.
"""

from __future__ import annotations

import datetime
import uuid
from collections.abc import Iterable, Sequence
from dataclasses import dataclass

import pyarrow as pa

from headrace.errors import PublicationError
from headrace.ports import Staged
from headrace.rows.rebatching import rebatched
from headrace.rows.staged_parts import missing
from headrace.support import failpoints
from headrace_ytsaurus.store.catalog import Names, node_name
from headrace_ytsaurus.store.connection import YtConnection
from headrace_ytsaurus.store.failures import YtNotFoundError, translated

FILE_BYTES = 64 << 20
_ATTRIBUTES = ("headrace_target", "headrace_rows")
_KEPT = datetime.timedelta(days=30)


@dataclass(frozen=True)
class Staging:
    """The staged rows of one sink of a job."""

    connection: YtConnection
    names: Names
    job: str
    sink: str

    @property
    def _directory(self) -> str:
        return f"{self.names.state}/staged/{node_name(self.job)}/{node_name(self.sink)}"

    def _batch(self, batch: int) -> str:
        return f"{self._directory}/{batch:020}"

    def _file(self, batch: int, receipt: int) -> str:
        return f"{self._batch(batch)}/{receipt:016x}"

    def put(self, batch: int, rows: Iterable[pa.RecordBatch], target: str) -> list[Staged]:
        """Stage rows. If the input fails, nothing is staged.

        Args:
            target: the table or queue of the rows; empty if it is not known.
        """
        staged: list[Staged] = []
        try:
            for part in rebatched(rows, FILE_BYTES, by_bytes=True):
                # First in the list, so that an incomplete file is discarded with the others.
                staged.append(Staged(uuid.uuid4().int >> 66 | 1, part.num_rows))
                self._upload(batch, staged[-1], part, target)
        except BaseException:
            self.discard(batch, [receipt.id for receipt in staged])
            raise
        failpoints.reach("rows-staged")
        return staged

    def _upload(self, batch: int, receipt: Staged, rows: pa.Table, target: str) -> None:
        sink = pa.BufferOutputStream()
        with pa.ipc.new_stream(sink, rows.schema) as writer:
            writer.write_table(rows)
        path = self._file(batch, receipt.id)
        expires = (datetime.datetime.now(datetime.UTC) + _KEPT).strftime("%Y-%m-%dT%H:%M:%S.000000Z")
        attributes = {"headrace_target": target, "headrace_rows": receipt.rows, "expiration_time": expires}
        with translated("stage rows"):
            self.connection.client.create("file", path, recursive=True, attributes=attributes)
        self.connection.write_file(path, sink.getvalue().to_pybytes())

    def check(self, batch: int, wanted: Sequence[tuple[str, Staged]]) -> None:
        """Raise `PublicationError` unless the receipts are staged rows of the batch for these targets."""
        children = self.connection.children(self._batch(batch), _ATTRIBUTES) if wanted else []
        there = {int(name, 16): attributes for name, attributes in children}
        for target, receipt in wanted:
            found = there.get(receipt.id)
            if found is None or found.get("headrace_target", "") not in ("", target):
                raise self._missing(batch, receipt)

    def load(self, batch: int, receipt: Staged) -> pa.Table:
        """Return the rows of a receipt."""

        def read() -> bytes:
            with translated("read staged rows"):
                return bytes(self.connection.open_file(self._file(batch, receipt.id)).read())

        try:
            data = self.connection.repeated(read)
        except YtNotFoundError:
            raise self._missing(batch, receipt) from None
        rows = pa.ipc.open_stream(pa.py_buffer(data)).read_all()
        if rows.num_rows != receipt.rows:
            raise self._missing(batch, receipt)
        return rows

    def _missing(self, batch: int, receipt: Staged) -> PublicationError:
        reason = "its rows were discarded, or staged for another batch, sink or target"
        return missing(self.job, self.sink, batch, receipt, reason)

    def discard(self, batch: int, receipts: Sequence[int] | None = None) -> None:
        """Remove the staged rows of a batch: some receipts, or all."""
        if receipts is None:
            self.connection.remove(self._batch(batch))
        for receipt in receipts or ():
            self.connection.remove(self._file(batch, receipt))

    def sweep(self, batch: int) -> None:
        """Remove the staged rows of batches up to this one."""
        for name, _ in self.connection.children(self._directory, ("type",)):
            if name.isdecimal() and int(name) <= batch:
                self.connection.remove(f"{self._directory}/{name}")
