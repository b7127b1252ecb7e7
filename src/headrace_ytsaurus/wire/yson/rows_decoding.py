"""Decoding of rows in YSON to Arrow: the hot path of reading, and of writes to the endpoint.

Rows are a list fragment of maps. Rows in binary YSON are read in lock-step with numpy: the first item of every row,
then the second, and so on, so the number of steps is the number of items in the longest row. Keys can have any order,
be missing, or be unknown. All other rows (text, white space, null rows, very deep values, broken rows) are read by the
parser of YTsaurus' client, which is a few times slower and reports errors.

The starts of rows are guessed from the start of the first row, and then verified: every row must end where the next one
begins.
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from typing import Any, Final

import numpy as np
import pyarrow as pa

from headrace.errors import SchemaError
from headrace_ytsaurus.wire.types import YtColumn
from headrace_ytsaurus.wire.yson.cells import Cells, read_values
from headrace_ytsaurus.wire.yson.documents import YsonError, has_bindings, load_fragment
from headrace_ytsaurus.wire.yson.message import Effort, Marker, Mask, Message, Places, UnusualError
from headrace_ytsaurus.wire.yson.python_values import as_array

# Rows in one block. The state of a block should fit into the processor's cache.
_BLOCK: Final = 16_384
# For fewer rows the native parser of YTsaurus' client is faster.
_FEW: Final = 256
_NEWLINE: Final = ord("\n")


@dataclass(frozen=True)
class Decoded:
    """Decoded rows, in the order of the message.

    Attributes:
        rows: the requested columns in order, all nullable; missing values are null.
        written: column → which rows have a value, as booleans. A column without an entry has a value, or an explicit
            null, in every row.
        unknown: names of unknown columns.
        absent: which rows are null as a whole, as in answers to lookups; None if there are none.
    """

    rows: pa.RecordBatch
    written: Mapping[str, pa.BooleanArray]
    unknown: frozenset[str]
    absent: pa.BooleanArray | None = None


def decode_rows(data: bytes, columns: Sequence[YtColumn]) -> pa.RecordBatch:
    """Decode rows with the columns in this order; missing values are null, and other columns are ignored.

    Raises:
        YsonError: the bytes are not YSON, or not rows.
        SchemaError: a value does not fit its column; the message names column and row.
    """
    return read_rows(data, columns).rows


def read_rows(data: bytes, columns: Sequence[YtColumn]) -> Decoded:
    """Decode rows, with information on missing values and unknown columns.

    Raises:
        YsonError: the bytes are not YSON, or not rows.
        SchemaError: a value does not fit its column; the message names column and row.
    """
    names = [column.name for column in columns]
    if len(set(names)) < len(names):
        raise SchemaError("a column is requested twice", received=", ".join(names))
    if not data:
        return _decoded(columns, [pa.array([], type=column.type) for column in columns], {}, set(), 0)
    message = Message(data)
    for guess in (_rows_like_the_first, _rows_like_any):
        try:
            starts = guess(message)
            if len(starts) < _FEW and has_bindings():
                break
            return _read_fast(message, starts, columns)
        except UnusualError:
            continue
    return decoded_rows(load_fragment(data), columns)


def _rows_like_the_first(message: Message) -> Places:
    """Guess the starts of rows, if all begin with the same key as the first."""
    begins = message.data[:2]
    if begins != bytes([Marker.MAP, Marker.STRING]):
        raise UnusualError("no row with an item at the beginning")
    _, value = _key_at(message, 1)
    return _starts(message, message.data[:value])


def _rows_like_any(message: Message) -> Places:
    """Guess the starts of rows with any first items."""
    starts = _starts(message, bytes([Marker.MAP]))
    follows = np.isin(message.tags(starts + 1), (Marker.STRING, Marker.MAP_END))
    follows[0] = True
    follows[1:] &= message.tags(starts[1:] - 2 - (message.tags(starts[1:] - 1) == _NEWLINE)) == Marker.MAP_END
    return starts[follows]


def _starts(message: Message, start: bytes) -> Places:
    """Return the positions of a text after the end of a row, and the start."""
    data = message.bytes[: message.size]
    places = np.flatnonzero(data[3:] == Marker.MAP) + 3
    places = places[places + len(start) <= message.size]
    before = data[places - 1]
    after_item = before == Marker.ITEM
    if (lines := (before == _NEWLINE) & (data[places - 2] == Marker.ITEM)).any():
        after_item |= lines
    places = places[after_item]
    if len(start) > 1:
        places = places[message.matches(start, places)]
    return np.concatenate((np.zeros(1, dtype=np.int64), places))


def _key_at(message: Message, at: int) -> tuple[bytes, int]:
    """Return the key at a position, and the position of its value."""
    text, length = message.text_spans(np.array([at + 1]))
    begin, end = int(text[0]), int(text[0] + length[0])
    if end >= message.size or message.data[end] != Marker.KEY:
        raise UnusualError("no key where an item begins")
    return message.data[begin:end], end + 1


def _read_fast(message: Message, starts: Places, columns: Sequence[YtColumn]) -> Decoded:
    """Read rows at the positions.

    Raises:
        UnusualError: there are no rows in binary YSON at the positions.
    """
    limits = np.append(starts[1:], message.size)
    arrays: list[list[pa.Array]] = [[] for _ in columns]
    written: list[list[Mask]] = [[] for _ in columns]
    unknown: set[bytes] = set()
    effort = Effort(message.size)
    for first in range(0, len(starts), _BLOCK):
        block = slice(first, first + _BLOCK)
        cells = [Cells(column, starts[block]) for column in columns]
        ends = _walk(message, starts[block], limits[block], cells, unknown, effort)
        _check_ends(message, ends, limits[block])
        for place, cell in enumerate(cells):
            arrays[place].append(cell.array(message, first))
            written[place].append(cell.written)
    whole = [parts[0] if len(parts) == 1 else pa.concat_arrays(parts) for parts in arrays]
    marks = {column.name: np.concatenate(parts) for column, parts in zip(columns, written, strict=True)}
    return _decoded(columns, whole, marks, unknown, len(starts))


def _walk(
    message: Message, starts: Places, limits: Places, cells: Sequence[Cells], unknown: set[bytes], effort: Effort
) -> Places:
    """Read the items of rows into the cells; return the ends of the rows."""
    by_name = {cell.column.name.encode(): cell for cell in cells}
    _require(message.tags(starts) == Marker.MAP)
    at = starts + 1
    rows: Places | None = None
    while True:
        begin, bounds = (at, limits) if rows is None else (at[rows], limits[rows])
        _require(begin < bounds)
        tags = message.tags(begin)
        more = tags != Marker.MAP_END
        if not more.any():
            return at + 1
        if not more.all():
            rows = np.flatnonzero(more) if rows is None else rows[more]
            begin, bounds, tags = begin[more], bounds[more], tags[more]
        _require(tags == Marker.STRING)
        ends = _read_items(message, rows, begin, bounds, by_name, unknown, effort)
        _require(ends < bounds)
        tags = message.tags(ends)
        separated = tags == Marker.ITEM
        _require(separated | (tags == Marker.MAP_END))
        at[slice(None) if rows is None else rows] = ends + separated


def _read_items(
    message: Message,
    rows: Places | None,
    begin: Places,
    limits: Places,
    by_name: Mapping[bytes, Cells],
    unknown: set[bytes],
    effort: Effort,
) -> Places:
    """Read one item of each row; return the ends of the items."""
    everyone = rows
    ends = np.zeros(len(begin), dtype=np.int64)
    # The remaining rows, with other keys.
    left: Places | None = None
    while True:
        effort.spend()
        name, value = _key_at(message, int(begin[0]))
        item = message.data[int(begin[0]) : value]
        fits = begin + len(item) < limits
        same = fits.copy()
        same[fits] = message.matches(item, begin[fits])
        _require(same[:1])
        if same.all():
            members, others = left, None
        else:
            members, others = np.flatnonzero(same), np.flatnonzero(~same)
            members, others = (members, others) if left is None else (left[members], left[others])
        values = read_values(message, begin[same] + len(item), limits[same], effort)
        if name in by_name:
            # An index of an index: the numbers of these rows.
            which = everyone if members is None else members if everyone is None else everyone[members]
            by_name[name].add(which, values)
        else:
            unknown.add(name)
        ends[slice(None) if members is None else members] = values.ends
        if others is None:
            return ends
        begin, limits, left = begin[~same], limits[~same], others


def _check_ends(message: Message, ends: Places, limits: Places) -> None:
    """Check that only a separator is between the end of a row and the next row."""
    between = limits - ends
    last = message.size == limits[-1]
    if last:
        rest = message.data[int(ends[-1]) : message.size]
        if rest not in (b"", b";", b";\n"):
            raise UnusualError("bytes after the last row")
        ends, between = ends[:-1], between[:-1]
    _require((between == 1) | (between == 2))
    _require(message.tags(ends) == Marker.ITEM)
    _require((between == 1) | (message.tags(ends + 1) == _NEWLINE))


def _require(holds: Mask) -> None:
    if not holds.all():
        raise UnusualError("not the binary YSON of rows")


def decoded_rows(rows: Sequence[Any], columns: Sequence[YtColumn], *, whole_doubles: bool = False) -> Decoded:
    """Convert rows from Python maps; None is a null row.

    Args:
        whole_doubles: accept whole numbers as doubles, as in JSON.

    Raises:
        YsonError: a row is not a map.
        SchemaError: a value does not fit its column; the message names column and row.
    """
    for place, row in enumerate(rows):
        if not (row is None or isinstance(row, Mapping)) or getattr(row, "__dict__", {}).get("attributes"):
            raise YsonError(f"item {place} is not a row", received=f"a {type(row).__name__}", valid="a map, or null")
    present = [row or {} for row in rows]
    arrays, marks = [], {}
    for column in columns:
        name = column.name.encode()
        arrays.append(as_array([row.get(name) for row in present], column, whole_doubles=whole_doubles))
        marks[column.name] = np.fromiter((name in row for row in present), dtype=np.bool_, count=len(rows))
    names = set().union(*present) - {column.name.encode() for column in columns}
    absent = np.fromiter((row is None for row in rows), dtype=np.bool_, count=len(rows))
    return _decoded(columns, arrays, marks, {_plain(name) for name in names}, len(rows), absent)


def _plain(name: Any) -> bytes:
    """Return the key of a map as bytes; `yt.yson` has separate classes for some keys."""
    return name if isinstance(name, bytes) else repr(name).encode()


def _decoded(
    columns: Sequence[YtColumn],
    arrays: Sequence[pa.Array],
    written: Mapping[str, Mask],
    unknown: set[bytes],
    rows: int,
    absent: Mask | None = None,
) -> Decoded:
    schema = pa.schema([pa.field(column.name, column.type) for column in columns])
    if columns:
        batch = pa.RecordBatch.from_arrays(list(arrays), schema=schema)
    else:
        # A batch with this number of rows and no columns.
        batch = pa.RecordBatch.from_struct_array(pa.array([{}] * rows, type=pa.struct([])))
    return Decoded(
        batch,
        {name: pa.array(marks) for name, marks in written.items() if not marks.all()},
        frozenset(name.decode(errors="replace") for name in unknown),
        None if absent is None or not absent.any() else pa.array(absent),
    )
