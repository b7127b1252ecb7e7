"""Staged rows, which readers do not see: table ``stage`` of headrace's schema, rows as compressed Arrow IPC streams.

The table is unlogged: staged rows need no log, because a batch that loses them is run again. After a crash of the
server the table is empty, and the receipts of its rows are refused. An id is random: a sequence would also begin again.
"""

from __future__ import annotations

import secrets
from collections.abc import Sequence

import adbc_driver_postgresql.dbapi as adbc
import psycopg
import pyarrow as pa

from headrace.ports import Staged
from headrace.rows.staged_parts import missing
from headrace.stores.shared.staging import BatchKey

STAGE_BYTES = 4 << 20
# Rows that are still staged after this time belong to a job that no longer exists.
ABANDONED = "1 day"
TABLES = """
CREATE TABLE IF NOT EXISTS {schema}.marker (
    job text NOT NULL,
    sink text NOT NULL,
    batch bigint NOT NULL,
    content text NOT NULL,
    published timestamptz NOT NULL DEFAULT clock_timestamp(),
    PRIMARY KEY (job, sink));
CREATE UNLOGGED TABLE IF NOT EXISTS {schema}.stage (
    id bigint PRIMARY KEY,
    job text NOT NULL,
    sink text NOT NULL,
    batch bigint NOT NULL,
    created timestamptz NOT NULL DEFAULT clock_timestamp(),
    rows bigint NOT NULL,
    data bytea NOT NULL
) WITH (autovacuum_vacuum_scale_factor = 0, autovacuum_vacuum_threshold = 20);
ALTER TABLE {schema}.stage ALTER COLUMN data SET STORAGE EXTERNAL;
CREATE INDEX IF NOT EXISTS stage_batch ON {schema}.stage (job, sink, batch);
CREATE INDEX IF NOT EXISTS stage_created ON {schema}.stage (created)
"""
_ID_BITS = 63


def insert(connection: psycopg.Connection, schema: str, key: BatchKey, rows: int, data: pa.Buffer) -> Staged:
    """Stage a number of rows inside the caller's transaction; ``schema`` is the quoted name."""
    receipt = Staged(secrets.randbits(_ID_BITS), rows)
    connection.execute(
        f"INSERT INTO {schema}.stage (id, job, sink, batch, rows, data) VALUES (%s, %s, %s, %s, %s, %b)".encode(),
        (receipt.id, *key, rows, memoryview(data)),
    )
    return receipt


def load(cursor: adbc.Cursor, schema: str, key: BatchKey, receipt: Staged) -> pa.Table:
    """Return the staged rows of a receipt, in the order in which they were staged.

    Raises:
        PublicationError: they do not exist.
    """
    cursor.execute(
        f"SELECT data FROM {schema}.stage WHERE id = $1 AND job = $2 AND sink = $3 AND batch = $4 AND rows = $5",
        (receipt.id, *key, receipt.rows),
    )
    data = cursor.fetch_arrow_table().column(0)
    if len(data) == 0:
        raise missing(
            *key,
            receipt,
            "the server crashed and lost them, or they were discarded, or staged for another batch or sink",
        )
    return pa.ipc.open_stream(data[0].as_buffer()).read_all()


def delete(connection: psycopg.Connection, schema: str, key: BatchKey, staged: Sequence[Staged] | None) -> None:
    """Delete the staged rows of a batch: those of these receipts; all if None."""
    statement = f"DELETE FROM {schema}.stage WHERE job = %s AND sink = %s AND batch = %s"
    if staged is None:
        connection.execute(statement.encode(), key)
    else:
        ids = [receipt.id for receipt in staged]
        connection.execute(f"{statement} AND id = ANY(%s)".encode(), (*key, ids))


def sweep(cursor: adbc.Cursor, schema: str, key: BatchKey) -> None:
    """Delete what a sink has staged up to a batch, and what any sink staged long ago."""
    cursor.execute(
        f"DELETE FROM {schema}.stage WHERE (job = $1 AND sink = $2 AND batch <= $3)"
        f" OR created < clock_timestamp() - interval '{ABANDONED}'",
        key,
    )
