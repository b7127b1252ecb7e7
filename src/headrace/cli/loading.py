"""Rows of files into a table or a queue: the one path of ``load``, ``table put`` and ``queue append``."""

from __future__ import annotations

import contextlib
from collections.abc import Callable, Iterator, Sequence
from dataclasses import dataclass, field
from pathlib import Path
from typing import TYPE_CHECKING

from headrace.cli.file_formats import STANDARD, InputFile, format_of, open_input, reason
from headrace.cli.output import Output
from headrace.cli.row_files import PLAIN, TextRules, rows_of
from headrace.errors import OptionError
from headrace.model.tables.schema import RowSchema
from headrace.rows.rebatching import rebatched

if TYPE_CHECKING:
    import numpy as np
    import pyarrow as pa

_WRITE_BYTES = 16 << 20
"""The rows of one write, in bytes of Arrow: each write is a transaction."""


_MOST_KEYS = 16_000_000
"""The keys of a load that are remembered, 8 bytes each."""


class KeysOfLoad:
    """The keys of written rows, as digests of 64 bits: a row with the key of an earlier one has replaced that row.

    Attributes:
        exact: whether all keys are remembered, so that `repeated` misses no row.
    """

    def __init__(self) -> None:
        self.exact = True
        self._seen: list[np.ndarray] = []
        self._kept = 0
        self._repeated = 0

    def add(self, rows: pa.Table, key: Sequence[str]) -> None:
        """Add written rows; does nothing without a key."""
        from headrace.inspect.comparing.canonical import canonical
        from headrace.inspect.comparing.digests import row_digests

        if not key or not self.exact:
            return
        columns = [canonical(rows.column(name).combine_chunks()) for name in key]
        self._seen.append(row_digests(columns, key))
        self._kept += rows.num_rows
        if self._kept > _MOST_KEYS:
            self._count()
            self.exact = self._kept <= _MOST_KEYS // 2

    @property
    def repeated(self) -> int:
        """The number of rows that replaced another one."""
        self._count()
        return self._repeated

    def _count(self) -> None:
        import numpy as np

        if len(self._seen) > 0:
            different = np.unique(np.concatenate(self._seen))
            self._repeated += self._kept - len(different)
            self._seen, self._kept = [different], len(different)


@dataclass
class Loading:
    """Files that are being loaded.

    Attributes:
        output: shows the progress.
        text: the description of the progress.
        paths: the files, in order.
        schema: the columns of the table or queue.
        file_format: the format of all files; None chooses it for each file.
        rules: how the values of text files are read.
        skip: the number of rows to leave out at the beginning, of all files together.
        opened: the first file, if it is open already.
        key: the primary key of a table whose rows are replaced; empty otherwise.
        rows: the number of rows that are written or skipped.
        keys: the keys of the written rows.
    """

    output: Output
    text: str
    paths: Sequence[str]
    schema: RowSchema
    file_format: str | None = None
    rules: TextRules = PLAIN
    skip: int = 0
    opened: InputFile | None = None
    key: Sequence[str] = ()
    rows: int = field(default=0, init=False)
    keys: KeysOfLoad = field(default_factory=KeysOfLoad, init=False)

    def write(self, write: Callable[[pa.Table], object]) -> int:
        """Write all rows in portions of bounded size; return the number of written rows.

        An error, and an interruption, tell how many rows were written before, and how to go on.
        """
        total = total_bytes(self.paths)
        try:
            with self.output.progress(self.text, total) as show:
                for portion in rebatched(self._batches(show), _WRITE_BYTES, by_bytes=True):
                    left_out = min(portion.num_rows, max(0, self.skip - self.rows))
                    if left_out < portion.num_rows:
                        written = portion.slice(left_out)
                        write(written)
                        self.keys.add(written, self.key)
                    self.rows += portion.num_rows
        except KeyboardInterrupt:
            self.output.warning(self._state())
            raise
        except Exception as error:
            error.add_note(self._state())
            raise
        return self.written

    @property
    def written(self) -> int:
        """The number of rows that are written."""
        return max(0, self.rows - self.skip)

    def replaced_note(self) -> str:
        """Return the end of a message about rows that replaced rows of the same load; nothing without any."""
        if not self.keys.repeated:
            return ""
        least = "" if self.keys.exact else "At least "
        key = ", ".join(self.key)
        return f" {least}{self.keys.repeated} of them replaced rows of the same load, with the same {key}."

    def _state(self) -> str:
        if self.rows <= self.skip:
            return "no row was written"
        return f"rows {self.skip + 1} to {self.rows} were written before; --skip {self.rows} continues after them"

    def _batches(self, show: Callable[[int, int], None]) -> Iterator[pa.RecordBatch]:
        rows = done = 0
        for index, path in enumerate(self.paths):
            opened = self.opened if index == 0 else None
            with open_input(path) if opened is None else contextlib.nullcontext(opened) as source:
                file_format = format_of(path, self.file_format, beginning=source.beginning(8))
                for batch in rows_of(source, file_format, self.schema, self.rules):
                    rows += batch.num_rows
                    yield batch
                    show(rows, done + source.position())
                done += source.size or 0


def total_bytes(paths: Sequence[str]) -> int | None:
    """Return the size of all files; None with standard input.

    Raises:
        OptionError: a file cannot be read.
    """
    if STANDARD in paths:
        return None
    size = 0
    for path in paths:
        try:
            size += Path(path).stat().st_size
        except (OSError, ValueError) as error:
            raise OptionError(f"cannot read the file: {reason(error)}", received=path) from error
    return size
