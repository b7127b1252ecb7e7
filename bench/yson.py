"""Encoding and decoding rows of YTsaurus: binary YSON by numpy and by YTsaurus' client, and the other formats.

The HTTP API returns rows of queues and dynamic tables in YSON, JSON and schemaful DSV only. DSV cannot distinguish null
from an empty string, so it is not used.
"""

from __future__ import annotations

from collections.abc import Callable
from pathlib import Path
from typing import Any

import pyarrow as pa
import yt.yson

from bench.measure import Ratio, Result, median_of, orders, rate, seconds
from headrace_ytsaurus.wire.types import YtColumn
from headrace_ytsaurus.wire.yson.json_rows import encode_json_rows
from headrace_ytsaurus.wire.yson.rows_decoding import decode_rows
from headrace_ytsaurus.wire.yson.rows_encoding import encode_rows

_COLUMNS = [
    YtColumn.of("UserId", "string"),
    YtColumn.of("OrderId", "int64"),
    YtColumn.of("price", "double", required=False),
    YtColumn.of("note", "utf8", required=False),
]
# The rows of one pull, and the largest number of rows of a tablet in a transaction.
_ROWS = 100_000


def _rows() -> pa.RecordBatch:
    """Return orders with two texts, a whole number and a double."""
    table = orders(0, _ROWS).drop_columns("timestamp")
    notes = pa.array([f"Bestellung № {place % 977}" for place in range(_ROWS)])
    batch: pa.RecordBatch = table.append_column("note", notes).combine_chunks().to_batches()[0]
    return batch


def _read_by_client(data: bytes, schema: pa.Schema) -> pa.Table:
    rows = yt.yson.loads(data, yson_type="list_fragment", always_create_attributes=False)
    return pa.Table.from_pylist(list(rows), schema=schema)


def _written_by_client(rows: pa.RecordBatch) -> bytes:
    data: bytes = yt.yson.dumps(rows.to_pylist(), yson_format="binary", yson_type="list_fragment")
    return data


def _timed(times: int, call: Callable[[], Any]) -> Callable[[], float]:
    return lambda: seconds(lambda: [call() for _ in range(times)])


def yson_decode(directory: Path, scale: float) -> Result:
    """Decode the rows of a pull into Arrow."""
    rows = _rows().slice(0, max(1000, int(_ROWS * scale)))
    binary, text = encode_rows(rows, _COLUMNS), encode_rows(rows, _COLUMNS, text=True)
    assert binary == _written_by_client(rows)
    assert decode_rows(binary, _COLUMNS) == rows
    assert _read_by_client(text, rows.schema).to_batches()[0] == rows
    ours, client, client_text = median_of(
        5,
        _timed(3, lambda: decode_rows(binary, _COLUMNS)),
        _timed(1, lambda: _read_by_client(binary, rows.schema)),
        _timed(1, lambda: _read_by_client(text, rows.schema)),
    )
    count = rows.num_rows
    return Result(
        f"YSON decode: {count:,} rows, 4 columns, into Arrow",
        {
            "binary YSON": rate(3 * count, ours),
            "binary YSON by YTsaurus' client with its bindings": rate(count, client),
            "text YSON by the same": rate(count, client_text),
        },
        [Ratio("decode / by YTsaurus' client", 3 * client / ours, 3.0)],
    )


def yson_encode(directory: Path, scale: float) -> Result:
    """Encode rows from Arrow as the body of a write."""
    rows = _rows().slice(0, max(1000, int(_ROWS * scale)))
    ours, text, json_lines, client = median_of(
        5,
        _timed(3, lambda: encode_rows(rows, _COLUMNS)),
        _timed(1, lambda: encode_rows(rows, _COLUMNS, text=True)),
        _timed(1, lambda: encode_json_rows(rows, _COLUMNS)),
        _timed(1, lambda: _written_by_client(rows)),
    )
    count = rows.num_rows
    return Result(
        f"YSON encode: {count:,} rows, 4 columns, from Arrow",
        {
            "binary YSON": rate(3 * count, ours),
            "text YSON": rate(count, text),
            "JSON": rate(count, json_lines),
            "binary YSON by YTsaurus' client with its bindings": rate(count, client),
        },
        [Ratio("encode / by YTsaurus' client", 3 * client / ours, 5.0)],
    )
