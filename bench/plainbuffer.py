"""PlainBuffer: pages of rows to and from Arrow, compared with code that works row by row."""

from __future__ import annotations

from collections.abc import Callable
from pathlib import Path
from typing import Any

import pyarrow as pa

from bench.measure import COLUMNS, Ratio, Result, median_of, orders, rate, seconds
from headrace.model.tables.changes import ChangeOp, Changes
from headrace.model.tables.schema import TableSchema
from headrace_tablestore.wire.plainbuffer.decoding import decode_block, decode_records
from headrace_tablestore.wire.plainbuffer.encoding import encode_block, encode_puts, encode_records
from headrace_tablestore.wire.plainbuffer.rows import decode_row, encode_row
from headrace_tablestore.wire.plainbuffer.values import Cell, Row, SequenceInfo

_SCHEMA = TableSchema.of(COLUMNS, ["UserId", "OrderId"])
# The largest page of GetRange, and the page size of the endpoint.
_PAGE_ROWS = 5000
_TIME = 1_700_000_000_000


def _page() -> tuple[pa.RecordBatch, Changes]:
    """Return a page of orders, and the same orders as changes."""
    batch = orders(0, _PAGE_ROWS).combine_chunks().to_batches()[0].cast(_SCHEMA.changes)
    ops = pa.array([int(ChangeOp.INSERT)] * _PAGE_ROWS, type=pa.int8())
    times = pa.array([_TIME * 1000] * _PAGE_ROWS).cast(pa.timestamp("us", tz="UTC"))
    return batch, Changes(batch, ops, pa.array(range(_PAGE_ROWS), type=pa.int64()), times)


def _row(values: dict[str, Any], sequence: SequenceInfo | None = None) -> Row:
    key = tuple((name, values[name]) for name in _SCHEMA.primary_key)
    cells = tuple(Cell(column.name, values[column.name], None, _TIME) for column in _SCHEMA.attributes)
    return Row(key, cells, False, sequence)


def _decoded_row_by_row(records: list[bytes]) -> pa.RecordBatch:
    """Decode row by row, without numpy: values into lists, and lists into Arrow."""
    columns: dict[str, list[Any]] = {name: [] for name in _SCHEMA.names}
    for record in records:
        row = decode_row(record)
        values = dict(row.key)
        for cell in row.cells:
            if cell.op is None:
                values[cell.name] = cell.value
        for name, column in columns.items():
            column.append(values.get(name))
    return pa.RecordBatch.from_pydict(columns, schema=_SCHEMA.changes)


def _timed(pages: int, call: Callable[[], Any]) -> Callable[[], float]:
    def run() -> float:
        return seconds(lambda: [call() for _ in range(pages)])

    return run


def plainbuffer_decode(directory: Path, scale: float) -> Result:
    """Decode records of a tunnel and a block of rows into Arrow."""
    batch, changes = _page()
    _, records = encode_records(changes, _SCHEMA)
    block = encode_block(batch, _SCHEMA, timestamps=_TIME)
    assert decode_records(records, _SCHEMA).rows == _decoded_row_by_row(records) == batch
    pages = max(1, int(50 * scale))
    ours, ours_block, row_by_row = median_of(
        5,
        _timed(pages, lambda: decode_records(records, _SCHEMA)),
        _timed(pages, lambda: decode_block(block, _SCHEMA)),
        _timed(1, lambda: _decoded_row_by_row(records)),
    )
    rows = pages * _PAGE_ROWS
    return Result(
        f"PlainBuffer decode: pages of {_PAGE_ROWS:,} rows, 4 columns, into Arrow",
        {
            "records of a tunnel": rate(rows, ours),
            "a block of rows, as GetRange gives it": rate(rows, ours_block),
            "the same records row by row": rate(_PAGE_ROWS, row_by_row),
        },
        [Ratio("decode / row by row", row_by_row * pages / ours, 5.0)],
    )


def plainbuffer_encode(directory: Path, scale: float) -> Result:
    """Encode rows from Arrow as puts and as records of a tunnel."""
    batch, changes = _page()

    def puts_row_by_row() -> list[bytes]:
        return [encode_row(_row(values)) for values in batch.to_pylist()]

    def records_row_by_row() -> list[bytes]:
        numbered = enumerate(batch.to_pylist())
        return [encode_row(_row(values, SequenceInfo(0, _TIME * 1000, place))) for place, values in numbered]

    assert encode_puts(batch, _SCHEMA, timestamps=_TIME) == puts_row_by_row()
    assert encode_records(changes, _SCHEMA)[1] == records_row_by_row()
    pages = max(1, int(50 * scale))
    puts, records, slow_puts, slow_records = median_of(
        5,
        _timed(pages, lambda: encode_puts(batch, _SCHEMA, timestamps=_TIME)),
        _timed(pages, lambda: encode_records(changes, _SCHEMA)),
        _timed(1, puts_row_by_row),
        _timed(1, records_row_by_row),
    )
    rows = pages * _PAGE_ROWS
    return Result(
        f"PlainBuffer encode: pages of {_PAGE_ROWS:,} rows, 4 columns, from Arrow",
        {
            "puts": rate(rows, puts),
            "records of a tunnel": rate(rows, records),
            "the same puts row by row": rate(_PAGE_ROWS, slow_puts),
            "the same records row by row": rate(_PAGE_ROWS, slow_records),
        },
        [
            Ratio("puts / row by row", slow_puts * pages / puts, 5.0),
            Ratio("records / row by row", slow_records * pages / records, 5.0),
        ],
    )
