"""Staged rows of a batch: Parquet files below the store's own directory, one for each receipt.

The number of a receipt is the name of its file. A file of rows for a known table is as the table has its data files,
so that publication only gives it a second name.
"""

from __future__ import annotations

import hashlib
import uuid
from collections.abc import Iterable, Sequence
from dataclasses import dataclass
from typing import NamedTuple

import pyarrow as pa

from headrace.errors import StoreError
from headrace.model.tables.changes import RowChange
from headrace.model.tables.schema import TableSchema
from headrace.ports import Staged, Write
from headrace.rows.by_position import last_rows
from headrace.rows.rebatching import rebatched
from headrace.rows.staged_parts import missing
from headrace.support import failpoints
from headrace_lake import data_files
from headrace_lake.folding import TableWrite
from headrace_lake.places import Place, remove_tree

_FILE_BYTES = 128 << 20
_ATTEMPTS = 5
WHOLE_ROWS = (RowChange.PUT, RowChange.REPLACE_ALL)


class Columns(NamedTuple):
    """The columns of a table, for its files.

    Attributes:
        id: the identity of the table.
        fields: the columns with the metadata that files have; None for none.
    """

    id: str
    schema: TableSchema
    fields: pa.Schema | None = None


@dataclass(frozen=True)
class Staging:
    """The staged rows of one sink of a job.

    Attributes:
        directory: the store's own directory.
    """

    directory: Place
    job: str
    sink: str

    @property
    def digest(self) -> str:
        """A text of the sink for names of files."""
        return hashlib.sha256(f"{self.job}\0{self.sink}".encode()).hexdigest()[:16]

    @property
    def _own(self) -> Place:
        return self.directory / "staged" / self.digest

    def path(self, batch: int, receipt: Staged) -> Place:
        """Return the file of a receipt."""
        return self._own / str(batch) / f"{receipt.id:016x}.parquet"

    def put(self, batch: int, rows: Iterable[pa.RecordBatch], table: Columns | None) -> list[Staged]:
        """Stage rows. If the input fails, nothing is staged.

        Args:
            table: the columns of the table whose whole rows these are; None if it is not known.
        """
        staged: list[Staged] = []
        try:
            for part in rebatched(rows, _FILE_BYTES, by_bytes=True):
                receipt = Staged(uuid.uuid4().int >> 66 | 1, part.num_rows)
                self._write(batch, receipt, part, table)
                staged.append(receipt)
        except BaseException:
            self.discard(batch, staged)
            raise
        failpoints.reach("rows-staged")
        return staged

    def _write(self, batch: int, receipt: Staged, part: pa.Table, table: Columns | None) -> None:
        path = self.path(batch, receipt)
        for attempt in range(_ATTEMPTS):
            (self._own / str(batch)).mkdir(parents=True, exist_ok=True)
            try:
                if table is None:
                    data_files.write(path, part)
                else:
                    key = table.schema.primary_key
                    distinct = part.take(pa.array(last_rows(part, key))) if key else part
                    data_files.write_sorted(path, distinct, table.schema, table.id, fields=table.fields)
                return
            except StoreError as error:
                # Another driver of the job has published the batch, and removes the directory of its rows.
                if not isinstance(error.__cause__, FileNotFoundError) or attempt + 1 == _ATTEMPTS:
                    raise

    def check(self, batch: int, receipts: Iterable[Staged]) -> None:
        """Raise `PublicationError` unless the receipts are staged rows of the batch."""
        for receipt in receipts:
            if not self.path(batch, receipt).exists():
                raise missing(
                    self.job, self.sink, batch, receipt, "its rows were discarded, or staged for another batch or sink"
                )

    def load(self, batch: int, receipt: Staged) -> pa.Table:
        """Return the rows of a receipt."""
        with data_files.opened(self.path(batch, receipt)) as opened:
            return data_files.read(opened, opened.schema_arrow)

    def write(self, batch: int, write: Write, schema: TableSchema, *, decided: bool = False) -> TableWrite:
        """Return the rows of a write, in the types of a table; see `TableWrite.of`."""
        return TableWrite.of(write.change, [self.load(batch, each) for each in write.staged], schema, decided=decided)

    def discard(self, batch: int, staged: Sequence[Staged] | None = None) -> None:
        """Remove the staged rows of a batch: some receipts, or all."""
        if staged is None:
            remove_tree(self._own / str(batch))
        for receipt in staged or ():
            self.path(batch, receipt).unlink(missing_ok=True)

    def sweep(self, batch: int) -> None:
        """Remove the staged rows of batches up to this one."""
        if self._own.is_dir():
            for path in self._own.iterdir():
                if path.name.isdecimal() and int(path.name) <= batch:
                    remove_tree(path)
