"""Checks of change logs and queues: chunks follow each other without gaps, and can be decoded."""

from __future__ import annotations

import json
from collections.abc import Iterator
from typing import NamedTuple

import apsw
import numpy as np
import pyarrow as pa

from headrace.errors import HeadraceError
from headrace.model.queues.columns import QueueSchema
from headrace.model.tables.schema import TableSchema
from headrace.stores.embedded import chunks
from headrace.stores.embedded.checks.problems import Problem, Repair, orphans
from headrace.stores.embedded.chunks import Chunk
from headrace.stores.embedded.connection import ROW_INDEX_BITS
from headrace.stores.embedded.queues.layout import Layout
from headrace.stores.embedded.schemas import stored_columns
from headrace.stores.embedded.tables.change_log import log_schema


class _Partition(NamedTuple):
    id: int
    object: int
    name: str
    kind: str
    first: int
    next: int
    log_bytes: int

    def __str__(self) -> str:
        return f"the log of partition {self.id} of {self.kind} {self.name!r}"


def logs(connection: apsw.Connection) -> Iterator[Problem]:
    """Check the chunks of each partition: rows without gaps, commits in order, and readable data."""
    ((clock_version, clock_ts),) = connection.execute("SELECT version, ts FROM clock")
    found = list(
        connection.execute(
            "SELECT p.id, o.id, o.name, o.kind, p.first, p.next, p.log_bytes FROM partition p"
            " JOIN object o ON o.id = p.object ORDER BY p.id"
        )
    )
    for partition in [_Partition(*row) for row in found]:
        schemas = _schemas(connection, partition)
        row: int | None = None
        version, size = 0, 0
        for chunk in _chunks(connection, partition.id):
            size += len(chunk.data)
            if row is None and chunk.first > partition.first:
                yield Problem(f"{partition} has no rows {partition.first} to {chunk.first - 1}")
            elif row is not None and chunk.first != row:
                yield Problem(f"{partition} has no rows {row} to {chunk.first - 1}, or has rows twice")
            row = chunk.first + chunk.n
            yield from _commits(partition, chunk, version, (clock_version, clock_ts))
            version = max(version, chunk.version)
            yield from _data(partition, chunk, schemas)
        end = partition.first if row is None else row
        if end != partition.next:
            yield Problem(f"{partition} ends at row {end} instead of {partition.next}")
        if size != partition.log_bytes:
            yield Problem(
                f"{partition} counts {partition.log_bytes} bytes and has {size}",
                (Repair("count its bytes", "UPDATE partition SET log_bytes = ? WHERE id = ?", (size, partition.id)),),
            )


def chunks_without_partition(connection: apsw.Connection) -> Iterator[Problem]:
    """Check that each chunk belongs to a partition."""
    ((count,),) = connection.execute(
        f"SELECT count(*) FROM chunk WHERE id >> {ROW_INDEX_BITS} NOT IN (SELECT id FROM partition)"
    )
    if count:
        yield Problem(f"{count} chunks belong to no partition")


def blobs(connection: apsw.Connection) -> Iterator[Problem]:
    """Check that chunks and staged rows have their bytes, and that all bytes are used."""
    for table in ("chunk", "stage"):
        ((count,),) = connection.execute(
            f"SELECT count(*) FROM {table} WHERE blob IS NOT NULL AND blob NOT IN (SELECT id FROM blob)"
        )
        if count:
            yield Problem(f"the bytes of {count} rows of SQLite table {table} are missing")
    used = "SELECT blob FROM chunk WHERE blob IS NOT NULL UNION ALL SELECT blob FROM stage WHERE blob IS NOT NULL"
    ((twice,),) = connection.execute(f"SELECT count(*) - count(DISTINCT blob) FROM ({used})")
    if twice:
        yield Problem(f"{twice} chunks or staged rows use the bytes of others")
    yield from orphans(connection, "blob", f"id NOT IN ({used})", "binaries that no chunk and no staged rows use")


def _chunks(connection: apsw.Connection, partition: int) -> Iterator[Chunk]:
    """Yield all chunks of a partition; one without its bytes has empty data."""
    low, high = chunks.chunk_ids(partition)
    for fields in connection.execute(f"{chunks.SELECT} WHERE c.id >= ? AND c.id < ? ORDER BY c.id", (low, high)):
        yield Chunk(*fields)


def _commits(partition: _Partition, chunk: Chunk, before: int, clock: tuple[int, int]) -> Iterator[Problem]:
    place = f"{partition}, rows from {chunk.first} on"
    try:
        runs = chunk.runs
    except ValueError:
        yield Problem(f"{place}: the list of commits cannot be read")
        return
    if int(runs[:, 0].sum()) != chunk.n:
        yield Problem(f"{place}: the commits have {int(runs[:, 0].sum())} rows, the chunk has {chunk.n}")
    versions = np.concatenate([[before], runs[:, 1]])
    if (np.diff(versions) < 0).any() or versions[-1] != chunk.version:
        yield Problem(f"{place}: the versions of commits are not in order")
    if chunk.version > clock[0] or chunk.ts > clock[1]:
        yield Problem(f"{place}: commit version {chunk.version} is after the clock of the store, {clock[0]}")


def _data(partition: _Partition, chunk: Chunk, schemas: dict[int, pa.Schema]) -> Iterator[Problem]:
    place = f"{partition}, rows from {chunk.first} on"
    schema = schemas.get(chunk.schema)
    if schema is None:
        yield Problem(f"{place}: version {chunk.schema} of the columns does not exist")
        return
    try:
        batch = chunks.decode_message(schema, chunk.data)
        batch.validate(full=True)
    except (pa.ArrowException, OSError, ValueError) as error:
        yield Problem(f"{place}: the data cannot be read: {str(error)[:200]}")
        return
    if batch.num_rows != chunk.n:
        yield Problem(f"{place}: the data has {batch.num_rows} rows instead of {chunk.n}")


def _schemas(connection: apsw.Connection, partition: _Partition) -> dict[int, pa.Schema]:
    """Return the schemas of the chunks of a table or queue, by version. `catalog` reports those that are damaged."""
    found = {}
    for version, schema, keys in connection.execute(
        "SELECT version, schema, keys FROM object_schema WHERE object = ?", (partition.object,)
    ):
        try:
            columns = stored_columns(schema)
            if partition.kind == "queue":
                found[version] = Layout(QueueSchema(columns)).stored
            else:
                found[version] = log_schema(TableSchema(columns, tuple(json.loads(keys))).arrow)
        except (HeadraceError, ValueError):
            continue
    return found
