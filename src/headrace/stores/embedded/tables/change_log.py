"""The change log of a partition: changes in chunks (see `headrace.stores.embedded.chunks`), addressed by log row index.

A chunk's data has the columns ``_op`` (int8) and ``_written`` (binary, a little-endian bitmap over the attributes;
null means all), then the table's columns as they were in the chunk's schema version.
"""

from __future__ import annotations

import functools
import json
from collections.abc import Sequence
from itertools import groupby

import apsw
import numpy as np
import pyarrow as pa

from headrace.errors import DataLossError
from headrace.model.tables.changes import ChangeOp, Changes
from headrace.model.tables.schema import TableSchema
from headrace.stores.embedded import chunks
from headrace.stores.embedded.schemas import stored_columns
from headrace.stores.embedded.tables.column_numbers import Numbers
from headrace.stores.embedded.tables.merge import bitmaps

_LOG_FIELDS = [pa.field("_op", pa.int8(), nullable=False), pa.field("_written", pa.binary())]
_TIMESTAMP = pa.timestamp("us", tz="UTC")


def append(
    connection: apsw.Connection,
    partition_id: int,
    schema_version: int,
    rows: pa.RecordBatch,
    ops: pa.Int8Array,
    written: pa.BinaryArray | None,
    version: int,
    ts: int,
) -> None:
    """Append the changes of one commit to a partition's log, inside the caller's write transaction.

    Args:
        rows: all columns of the table in the given schema version, in their stored types.
        ops: `ChangeOp` codes, one for each row.
        written: a bitmap of the written attributes for each row; null, or None for all rows, means all attributes.
        version: the version of the commit; ``ts`` is its timestamp in µs since 1970.
    """
    if rows.num_rows == 0:
        return
    if written is None:
        written = pa.nulls(rows.num_rows, pa.binary())
    batch = pa.RecordBatch.from_arrays([ops, written, *rows.columns], schema=log_schema(rows.schema))
    chunks.append(connection, partition_id, chunks.serialise(batch), batch.schema, schema_version, version, ts)


def read(
    connection: apsw.Connection, partition_id: int, first_row: int, max_rows: int, until: int | None = None
) -> tuple[Changes, int]:
    """Read changes from a log row index.

    The page ends with a whole chunk, so it may be longer than ``max_rows``; it holds about 8 MB at most. It does not
    separate a pre-image from its change, unless ``until`` does.

    Args:
        until: the read ends before this row index.

    Returns:
        The changes, with the current columns of the table, and the row index after them.

    Raises:
        DataLossError: rows from ``first_row`` have been removed.
    """
    ((object_id, name, first, next_row, schema_version),) = connection.execute(
        "SELECT o.id, o.name, p.first, p.next, o.schema_version FROM partition p JOIN object o ON o.id = p.object"
        " WHERE p.id = ?",
        (partition_id,),
    )
    if first_row < first:
        raise DataLossError(
            f"changes of table {name!r} were removed before they were read",
            received=f"partition {partition_id}, log rows {first_row} to {first - 1} ({first - first_row} changes)",
            remedy="set option failOnDataLoss=false to continue after them",
        )
    end = next_row if until is None else min(next_row, until)
    page = chunks.page(connection, partition_id, first_row, end, max_rows) if first_row < end else []
    schema = stored_schema(connection, object_id, schema_version)

    def decoded() -> Changes:
        batches: list[pa.RecordBatch] = []
        for version, run in groupby(page, key=lambda chunk: chunk.schema):
            then = schema if version == schema_version else stored_schema(connection, object_id, version)
            found = chunks.decode(log_schema(then.arrow), list(run))
            if version != schema_version:
                former = stored_numbers(connection, object_id, version)
                now = stored_numbers(connection, object_id, schema_version)
                found = [_as_of_now(batch, then, former, schema, now) for batch in found]
            batches += found
        changes = _changes(schema, batches, chunks.commits_of(page))
        skipped = first_row - page[0].first if page else 0
        return changes.slice(skipped, min(changes.num_rows - skipped, max(end - first_row, 0)))

    changes = decoded()
    # A large commit has several chunks, and the end of a chunk may separate a pre-image from its change.
    if 0 < changes.num_rows < end - first_row and changes.ops[-1].as_py() == ChangeOp.PREIMAGE:
        if changes.num_rows == 1:
            page += chunks.page(connection, partition_id, first_row + 1, end, 1)
            changes = decoded()
        changes = changes.slice(0, changes.whole_pairs(changes.num_rows))
    return changes, first_row + changes.num_rows


def _changes(schema: TableSchema, batches: Sequence[pa.RecordBatch], commits: chunks.Runs) -> Changes:
    """Join decoded batches."""
    columns = [
        _joined([batch.column(index) for batch in batches], field.type)
        for index, field in enumerate(log_schema(schema.arrow))
    ]
    return Changes(
        rows=pa.RecordBatch.from_arrays(columns[2:], schema=schema.changes),
        ops=columns[0],
        versions=pa.array(np.repeat(commits[:, 1], commits[:, 0])),
        timestamps=pa.array(np.repeat(commits[:, 2], commits[:, 0])).view(_TIMESTAMP),
        written=decode_written(columns[1], [column.name for column in schema.attributes]),
    )


def _as_of_now(
    batch: pa.RecordBatch, then: TableSchema, former: Numbers, schema: TableSchema, now: Numbers
) -> pa.RecordBatch:
    """Return a batch of an older version of the table's schema with the columns of the current one."""
    names = dict(zip(former.of_columns, then.names, strict=True))
    found = {column.name: names.get(number) for number, column in zip(now.of_columns, schema.columns, strict=True)}
    columns = [
        pa.nulls(batch.num_rows, column.type)
        if (name := found[column.name]) is None
        else batch.column(name).cast(column.type)
        for column in schema.columns
    ]
    written = batch.column(1)
    masks = decode_written(written, [column.name for column in then.attributes])
    if masks is not None:
        whole = written.is_null().to_numpy(zero_copy_only=False)
        sources = [found[column.name] for column in schema.attributes]
        marks = [whole if name is None else masks[name].to_numpy(zero_copy_only=False) for name in sources]
        written = bitmaps(np.column_stack(marks))
        if written is None:
            written = pa.nulls(batch.num_rows, pa.binary())
    return pa.RecordBatch.from_arrays([batch.column(0), written, *columns], schema=log_schema(schema.nullable()))


def _joined(arrays: list[pa.Array], data_type: pa.DataType) -> pa.Array:
    if len(arrays) == 1:
        return arrays[0]
    return pa.concat_arrays(arrays) if arrays else pa.array([], data_type)


def decode_written(written: pa.BinaryArray, attributes: Sequence[str]) -> dict[str, pa.BooleanArray] | None:
    """Return for each attribute a mask of the rows that wrote it; None if every row wrote all attributes.

    Attributes after the end of a bitmap were added later and were not written.
    """
    if written.null_count == len(written):
        return None
    everything = written.is_null().to_numpy(zero_copy_only=False)
    offsets = np.frombuffer(written.buffers()[1], dtype=np.int32)[written.offset : written.offset + len(written) + 1]
    lengths = np.diff(offsets)
    # One more byte: an index is valid also for an empty bitmap at the end.
    bitmaps = np.frombuffer((written.buffers()[2] or pa.py_buffer(b"")).to_pybytes() + b"\0", dtype=np.uint8)
    result = {}
    for index, name in enumerate(attributes):
        byte, bit = divmod(index, 8)
        there = lengths > byte
        bits = (bitmaps[np.where(there, offsets[:-1] + byte, len(bitmaps) - 1)] >> bit) & 1
        result[name] = pa.array(everything | (there & bits.astype(bool)))
    return result


def log_schema(schema: pa.Schema) -> pa.Schema:
    """Return the columns of a chunk, for the stored columns of its table."""
    return pa.schema([*_LOG_FIELDS, *schema])


def stored_schema(connection: apsw.Connection, object_id: int, version: int) -> TableSchema:
    """Return one version of a table's schema."""
    ((schema, keys),) = connection.execute(
        "SELECT schema, keys FROM object_schema WHERE object = ? AND version = ?", (object_id, version)
    )
    return _parsed_schema(schema, keys)


def stored_numbers(connection: apsw.Connection, object_id: int, version: int) -> Numbers:
    """Return the numbers of the columns in one version of a table's schema."""
    ((schema,),) = connection.execute(
        "SELECT schema FROM object_schema WHERE object = ? AND version = ?", (object_id, version)
    )
    return _parsed_numbers(schema)


@functools.lru_cache(maxsize=256)
def _parsed_numbers(schema: bytes) -> Numbers:
    return Numbers.of(pa.ipc.read_schema(pa.py_buffer(schema)))


@functools.lru_cache(maxsize=256)
def _parsed_schema(schema: bytes, keys: str) -> TableSchema:
    return TableSchema(stored_columns(schema), tuple(json.loads(keys)))
