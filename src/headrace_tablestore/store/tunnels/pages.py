"""Pages of a channel: the records of one ReadRecords as changes, and the part of them before a bound. Without I/O.

The service reports the operation on a row, not the row before it. So every put is an INSERT, also if it replaced a
row, and set cells are an UPDATE, also if the row did not exist. Both are enough to apply the changes to a table. Rows
of base data have no time; theirs is 0.
"""

from __future__ import annotations

import bisect
import logging
from collections.abc import Sequence
from dataclasses import dataclass, field

import numpy as np
import pyarrow as pa
from google.protobuf.message import DecodeError

from headrace.errors import OptionError
from headrace.model.tables.changes import ChangeOp, Changes
from headrace.model.tables.schema import TableSchema
from headrace.model.tunnels.values import FINISHED, Position
from headrace_tablestore.wire import tunnel_pb2 as pb
from headrace_tablestore.wire.limits import FULL_PAGE_BYTES, FULL_PAGE_ROWS
from headrace_tablestore.wire.plainbuffer.decoding import decode_records
from headrace_tablestore.wire.plainbuffer.rows import decode_row
from headrace_tablestore.wire.plainbuffer.values import CellKind, PlainBufferError
from headrace_tablestore.wire.records import places_of
from headrace_tablestore.wire.tokens import FINISHED_TOKEN, BaseToken, decode_token

_TIMESTAMP = pa.timestamp("us", tz="UTC")
_BEFORE = "before:"
_OPS = np.zeros(8, np.int8)
_OPS[pb.PUT_ROW], _OPS[pb.UPDATE_ROW], _OPS[pb.DELETE_ROW] = ChangeOp.INSERT, ChangeOp.UPDATE, ChangeOp.DELETE
_log = logging.getLogger("headrace")


@dataclass
class RecordPage:
    """The records at a token.

    Attributes:
        base: whether they are base data.
        records: serialised `tunnel_pb2.Record` messages.
        next: the token after them, or `FINISHED_TOKEN`.
        more: whether more records may follow now.
        size: the bytes of all records.
    """

    base: bool
    records: Sequence[bytes]
    next: str
    more: bool
    size: int
    _changes: tuple[TableSchema, Changes] | None = field(default=None, repr=False)

    @classmethod
    def of(cls, token: str, answer: pb.ReadRecordsPage) -> RecordPage:
        """Return the page of a response to a read at a token."""
        base, finished = is_base(token), answer.next_token == FINISHED_TOKEN
        records = list(answer.records)
        size = sum(map(len, records))
        if answer.HasField("may_more_record"):
            more = answer.may_more_record
        else:
            more = len(records) >= FULL_PAGE_ROWS or size >= FULL_PAGE_BYTES
        return cls(
            base,
            records,
            answer.next_token,
            # A scan continues to its end, also after small pages.
            not finished and (base or more) and answer.next_token != token,
            size,
        )

    @property
    def end(self) -> Position:
        """The position after the page."""
        return FINISHED if self.next == FINISHED_TOKEN else Position(self.next)

    def time(self, row: int) -> int:
        """Return the time of a change in µs since 1970; 0 for base data."""
        return _time_of_record(self.records[row])

    def count_up_to(self, timestamp: int) -> int:
        """Return the number of changes up to a time in µs since 1970; changes are in the order of their times."""
        return bisect.bisect_right(self.records, timestamp, key=_time_of_record)

    def changes(self, schema: TableSchema) -> Changes:
        """Return the page as changes with the columns of a table; other columns are omitted."""
        if self._changes is None or self._changes[0] != schema:
            self._changes = schema, changes_of(self.records, schema, base=self.base)
        return self._changes[1]


def changes_of(records: Sequence[bytes], schema: TableSchema, *, base: bool) -> Changes:
    """Return serialised `Record` messages as changes.

    A cell whose value does not fit its column is null and not written. As a removed cell, it would be removed where the
    changes are applied.
    """
    places = places_of(records)
    if places is not None:
        codes = places.actions
        decoded = decode_records(records, schema, (places.offsets, places.lengths))
    else:
        parsed = [_parsed(record) for record in records]
        codes = np.array([record.action_type for record in parsed], np.int8)
        decoded = decode_records([record.record for record in parsed], schema)
    ops = np.full(len(codes), ChangeOp.BASE, np.int8) if base else _OPS[codes]
    kinds = {name: codes.to_numpy(zero_copy_only=False) for name, codes in decoded.kinds.items()}
    for name, codes in kinds.items():
        if (codes == CellKind.MISFIT).any():
            _log.warning("column %s has values of another type than %s; they are null", name, schema.column(name).type)
    written = None
    if (ops == ChangeOp.UPDATE).any():
        written = {
            name: pa.array((codes != CellKind.ABSENT) & (codes != CellKind.MISFIT)) for name, codes in kinds.items()
        }
    return Changes(
        rows=pa.RecordBatch.from_arrays(decoded.rows.columns, schema=schema.changes),
        ops=pa.array(ops),
        versions=decoded.sequence_timestamps,
        timestamps=decoded.sequence_timestamps.view(_TIMESTAMP),
        written=written,
    )


def _time_of_record(record: bytes) -> int:
    sequence = decode_row(_parsed(record).record).sequence
    return 0 if sequence is None else sequence.timestamp


def _parsed(record: bytes) -> pb.Record:
    try:
        return pb.Record.FromString(record)
    except DecodeError:
        raise PlainBufferError("the tunnel returned an invalid record", received=f"{len(record)} bytes") from None


def is_base(token: str) -> bool:
    """Return whether a token is a position in base data."""
    if token == FINISHED_TOKEN:
        return False
    try:
        return isinstance(decode_token(token), BaseToken)
    except OptionError:
        # The format of tokens is not guaranteed.
        return False


# -- bounds by time -----------------------------------------------------------------------------------------


def before(timestamp: int) -> Position:
    """Return the position after all changes up to a time in µs since 1970."""
    return Position(f"{_BEFORE}{timestamp}")


def time_of(position: Position) -> int | None:
    """Return the time of a position from `before`; None for other positions."""
    return int(position.token[len(_BEFORE) :]) if position.token.startswith(_BEFORE) else None
