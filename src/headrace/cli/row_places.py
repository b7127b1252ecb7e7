"""The place of a row in a file: lines and columns for error messages."""

from __future__ import annotations

import contextlib
import csv
import io
import re
from collections.abc import Iterator, Sequence
from typing import BinaryIO, NamedTuple

import pyarrow as pa

from headrace.cli.file_formats import STANDARD, InputFile, open_input
from headrace.model.tables.schema import RowSchema
from headrace.model.types import type_name

SEPARATORS = (",", ";", "\t", "|")
"""The characters that separate values of CSV files. The first one is the default."""
_HEADER_BYTES = 1 << 16
_CSV_ERROR = re.compile(
    r"(?:In CSV column #(?P<column>\d+): )?(?:CSV parse error: )?Row #(?P<row>\d+): (?P<text>.*)", re.DOTALL
)
_CONVERSION = re.compile(r"CSV conversion error to [^:]*: ")


class RowError(ValueError):
    """A row of a file does not fit its table.

    Attributes:
        row: its index in a batch, from 0.
    """

    def __init__(self, text: str, row: int = 0) -> None:
        super().__init__(text)
        self.row = row


class CsvHeader(NamedTuple):
    """The first line of a CSV file.

    Attributes:
        names: the names of the columns; nothing if the line is too long.
        separator: the character between values.
    """

    names: Sequence[str]
    separator: str


def csv_header(source: InputFile) -> CsvHeader:
    """Return the header of a CSV file. The separator is the most frequent one of `SEPARATORS` in it."""
    text = source.beginning(_HEADER_BYTES).decode("utf-8-sig", "replace")
    names: dict[str, Sequence[str]] = {}
    for separator in SEPARATORS:
        with contextlib.suppress(csv.Error, StopIteration):
            rows = csv.reader(io.StringIO(text, newline=""), delimiter=separator)
            names[separator] = next(row for row in rows if row)
    separator = max(names, key=lambda each: len(names[each]), default=SEPARATORS[0])
    return CsvHeader(names.get(separator, ()), separator)


class CsvFile(io.RawIOBase):
    """The contents of a CSV file, whose end can be checked: Arrow takes a quote that is never closed for one value."""

    def __init__(self, file: BinaryIO) -> None:
        self._file = file
        self._last = b""

    def readable(self) -> bool:
        return True

    def read(self, size: int = -1) -> bytes:
        data = self._file.read(size)
        self._last = data.rstrip(b"\r\n")[-1:] or self._last
        return data

    def unclosed(self, last: pa.RecordBatch) -> str | None:
        """Return the last value of the last batch if it begins with a quote that is not closed."""
        value = last.column(-1)[-1].as_py()
        return value if isinstance(value, str) and re.search(r"[\r\n]", value) and self._last != b'"' else None


def csv_error(error: pa.ArrowInvalid, path: str, header: CsvHeader, schema: RowSchema | None) -> RowError:
    """Return the error of Arrow's reader with the line and the name of the column."""
    found = _CSV_ERROR.search(str(error))
    if found is None:
        return RowError(str(error))
    # The header is row 1.
    place = place_of_row(path, "csv", int(found["row"]) - 2)
    number = None if found["column"] is None else int(found["column"])
    if number is None or number >= len(header.names):
        return RowError(f"{place}: {found['text']}")
    name = header.names[number]
    kind = f" for {type_name(schema.column(name).type)}" if schema is not None and name in schema else ""
    return RowError(f"{place}, column {name!r}{kind}: {_CONVERSION.sub('', found['text'])}")


def place_of_row(path: str, file_format: str, row: int) -> str:
    """Return the line of a row in a text file, or its number from 1 if the lines cannot be counted.

    Args:
        row: the index of the row, from 0, without the header.
    """
    if path != STANDARD and file_format in ("csv", "jsonl"):
        with contextlib.suppress(csv.Error, UnicodeDecodeError, OSError), open_input(path) as source:
            lines = _csv_lines(source) if file_format == "csv" else _lines(source)
            for index, line in enumerate(lines):
                if index == row:
                    return f"line {line}"
    return f"row {row + 1}"


def _csv_lines(source: InputFile) -> Iterator[int]:
    """Yield the first line of each row. A value in quotes can have several lines; empty lines are no rows."""
    separator = csv_header(source).separator
    reader = csv.reader(io.TextIOWrapper(source.file, "utf-8-sig", "replace", newline=""), delimiter=separator)
    first = 1
    header = True
    for row in reader:
        if row and not header:
            yield first
        header = header and not row
        first = reader.line_num + 1


def _lines(source: InputFile) -> Iterator[int]:
    return (number for number, line in enumerate(source.file, start=1) if line.strip())
