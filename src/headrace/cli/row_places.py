"""The place of a row in a file: lines and columns for error messages."""

from __future__ import annotations

import contextlib
import csv
import io
import re
from collections.abc import Iterator, Sequence

import pyarrow as pa

from headrace.cli.file_formats import STANDARD, InputFile, open_input
from headrace.tables.schema import RowSchema
from headrace.types import type_name

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


def csv_header(source: InputFile) -> Sequence[str]:
    """Return the names of the columns; nothing if the first line is too long."""
    text = source.beginning(_HEADER_BYTES).decode("utf-8-sig", "replace")
    with contextlib.suppress(csv.Error, StopIteration):
        return next(row for row in csv.reader(io.StringIO(text, newline="")) if row)
    return ()


def csv_error(error: pa.ArrowInvalid, path: str, header: Sequence[str], schema: RowSchema) -> RowError:
    """Return the error of Arrow's reader with the line and the name of the column."""
    found = _CSV_ERROR.search(str(error))
    if found is None:
        return RowError(str(error))
    # The header is row 1.
    place = place_of_row(path, "csv", int(found["row"]) - 2)
    number = None if found["column"] is None else int(found["column"])
    if number is None or number >= len(header):
        return RowError(f"{place}: {found['text']}")
    name = header[number]
    kind = f" for {type_name(schema.column(name).type)}" if name in schema else ""
    return RowError(f"{place}, column {name!r}{kind}: {_CONVERSION.sub('', found['text'])}")


def place_of_row(path: str, file_format: str, row: int) -> str:
    """Return the line of a row in a text file, or its number from 1 if the lines cannot be counted.

    Args:
        row: the index of the row, from 0, without the header.
    """
    if path != STANDARD and file_format in ("csv", "jsonl"):
        lines = _csv_lines if file_format == "csv" else _lines
        with contextlib.suppress(csv.Error, UnicodeDecodeError, OSError), open_input(path) as source:
            for index, line in enumerate(lines(source)):
                if index == row:
                    return f"line {line}"
    return f"row {row + 1}"


def _csv_lines(source: InputFile) -> Iterator[int]:
    """Yield the first line of each row. A value in quotes can have several lines; empty lines are no rows."""
    reader = csv.reader(io.TextIOWrapper(source.file, "utf-8-sig", "replace", newline=""))
    first = 1
    header = True
    for row in reader:
        if row and not header:
            yield first
        header = header and not row
        first = reader.line_num + 1


def _lines(source: InputFile) -> Iterator[int]:
    return (number for number, line in enumerate(source.file, start=1) if line.strip())
