"""Rows as compressed Arrow IPC streams of about one size, as stores keep them for a time."""

from __future__ import annotations

from collections.abc import Iterable, Iterator

import pyarrow as pa

from headrace.rows.rebatching import rebatched

# The rows are written and read once.
_COMPRESSED = pa.ipc.IpcWriteOptions(compression="lz4")


def pieces(rows: pa.RecordBatch, max_rows: int, max_bytes: int) -> Iterator[pa.RecordBatch]:
    """Cut rows into pieces of at most ``max_rows`` rows and about ``max_bytes`` bytes; a larger row is one piece."""
    step = max(1, min(max_rows, rows.num_rows * max_bytes // max(1, rows.nbytes)))
    for start in range(0, rows.num_rows, step):
        piece = rows.slice(start, step)
        if piece.num_rows > 1 and piece.nbytes >= 2 * max_bytes:
            yield from pieces(piece, max_rows, max_bytes)
        else:
            yield piece


def streams(rows: Iterable[pa.RecordBatch], size: int) -> Iterator[tuple[int, pa.Buffer]]:
    """Yield streams of about ``size`` bytes, each with rows of one schema, and the number of its rows."""
    cut = (piece for batch in rows for piece in pieces(batch, batch.num_rows, size))
    for table in rebatched(cut, size, by_bytes=True):
        yield table.num_rows, stream_of(table)


def stream_of(rows: pa.RecordBatch | pa.Table) -> pa.Buffer:
    """Return rows as a stream."""
    sink = pa.BufferOutputStream()
    with pa.ipc.new_stream(sink, rows.schema, options=_COMPRESSED) as writer:
        writer.write(rows)
    return sink.getvalue()
