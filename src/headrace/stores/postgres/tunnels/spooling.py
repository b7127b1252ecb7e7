"""Results of queries that do not fit into memory: Arrow batches in a temporary file that is mapped into memory.

The server ends a query only after its client has received the whole result, and its transaction keeps dead rows of the
whole database until then. So the result is received at once, and not at the pace of its consumer.
"""

from __future__ import annotations

import mmap
import tempfile
from collections.abc import Sequence

import pyarrow as pa

MEMORY_BYTES = 64 << 20
"""What stays in memory of a result."""


def spooled(reader: pa.RecordBatchReader) -> Sequence[pa.RecordBatch]:
    """Return all batches of a reader.

    Those that do not fit into memory are read from a temporary file when they are used. The file has no name; its space
    is free again when the last array over it is deleted.
    """
    batches, size = list[pa.RecordBatch](), 0
    for batch in reader:
        size += batch.nbytes
        if size > MEMORY_BYTES:
            return batches + _in_file(batch, reader)
        batches.append(batch)
    return batches


def _in_file(first: pa.RecordBatch, rest: pa.RecordBatchReader) -> list[pa.RecordBatch]:
    with tempfile.TemporaryFile(prefix="headrace-") as file:
        with pa.ipc.new_file(file, rest.schema) as writer:
            writer.write_batch(first)
            for batch in rest:
                writer.write_batch(batch)
        file.flush()
        mapped = mmap.mmap(file.fileno(), 0, access=mmap.ACCESS_READ)
    stored = pa.ipc.open_file(pa.py_buffer(mapped))
    return [stored.get_batch(number) for number in range(stored.num_record_batches)]
