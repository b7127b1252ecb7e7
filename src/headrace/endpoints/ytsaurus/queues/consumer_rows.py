"""Offsets of consumers as the rows of a table, whatever they name.

A consumer of YTsaurus is a table: anybody may write a row for a queue that is not there, of another cluster, or for a
partition that the queue has not. Offsets in partitions that are there stand in ``consumer_offset`` as those of any
other consumer. The rest, and what a row says beyond its offset, stands in ``yt_consumer_row``; when a queue gets the
partition that such a row is about, the row becomes an offset, and when it loses it, a row.
"""

from __future__ import annotations

import time
from collections.abc import Iterable
from typing import NamedTuple

import apsw

from headrace.stores.embedded.queues import stored_queues

DDL = """
CREATE TABLE IF NOT EXISTS yt_consumer_row (consumer INTEGER NOT NULL, cluster TEXT NOT NULL, path TEXT NOT NULL,
    number BLOB NOT NULL, next BLOB NOT NULL, meta BLOB, PRIMARY KEY (consumer, cluster, path, number)) WITHOUT ROWID;
"""
_NO_ROW_INDEX = 1 << 63


class ConsumerRow(NamedTuple):
    """A row: ``number`` and ``offset`` are any unsigned 64-bit numbers, ``meta`` is YSON or nothing."""

    cluster: str
    path: str
    number: int
    offset: int
    meta: bytes | None = None


def rows(connection: apsw.Connection, consumer_id: int, cluster: str) -> list[ConsumerRow]:
    """Return all rows of a consumer, in key order; ``cluster`` is the name of this store as a cluster."""
    beside = {
        (where, path, _number(number)): (_number(offset), meta)
        for where, path, number, offset, meta in connection.execute(
            "SELECT cluster, path, number, next, meta FROM yt_consumer_row WHERE consumer = ?", (consumer_id,)
        )
    }
    offsets = connection.execute(
        "SELECT o.name, c.number, c.next FROM consumer_offset c JOIN object o ON o.id = c.queue WHERE c.consumer = ?",
        (consumer_id,),
    )
    found = []
    for path, number, offset in offsets:
        known, meta = beside.pop((cluster, path, number), (None, None))
        # What was written for another offset says nothing of this one.
        found.append(ConsumerRow(cluster, path, number, offset, meta if known == offset else None))
    found += [ConsumerRow(*key, offset, meta) for key, (offset, meta) in beside.items()]
    return sorted(found, key=lambda row: (row.cluster.encode(), row.path.encode(), row.number))


def offset(
    connection: apsw.Connection, consumer_id: int, cluster: str, path: str, number: int, here: str
) -> int | None:
    """Return one offset, None if there is no row; ``here`` is the name of this store as a cluster."""
    if cluster == here and number < _NO_ROW_INDEX:
        found = connection.execute(
            "SELECT c.next FROM consumer_offset c JOIN object o ON o.id = c.queue"
            " WHERE o.name = ? AND c.consumer = ? AND c.number = ?",
            (path, consumer_id, number),
        ).fetchone()
        if found is not None:
            return int(found[0])
    found = connection.execute(
        "SELECT next FROM yt_consumer_row WHERE consumer = ? AND cluster = ? AND path = ? AND number = ?",
        (consumer_id, cluster, path, _bytes(number)),
    ).fetchone()
    return None if found is None else _number(found[0])


def write(connection: apsw.Connection, consumer_id: int, written: Iterable[ConsumerRow], cluster: str) -> None:
    """Insert or replace rows inside the caller's write transaction, and trim where vital consumers have read."""
    now = time.time()
    touched = set()
    for row in written:
        queue_id = _queue_with(connection, row, cluster)
        kept = queue_id is None or row.meta is not None
        if kept:
            connection.execute(
                "INSERT OR REPLACE INTO yt_consumer_row VALUES (?, ?, ?, ?, ?, ?)",
                (consumer_id, row.cluster, row.path, _bytes(row.number), _bytes(row.offset), row.meta),
            )
        if queue_id is None:
            _delete_offset(connection, consumer_id, row, cluster)
            continue
        if not kept:
            _delete_row(connection, consumer_id, row)
        connection.execute(
            "INSERT OR REPLACE INTO consumer_offset (queue, consumer, number, next, consumed, kept, job)"
            " VALUES (?1, ?2, ?3, ?4, ?5, ?4, NULL)",
            (queue_id, consumer_id, row.number, row.offset, now),
        )
        touched.add(queue_id)
    for queue_id in touched:
        stored_queues.auto_trim(connection, queue_id)


def delete(connection: apsw.Connection, consumer_id: int, deleted: Iterable[ConsumerRow], cluster: str) -> None:
    """Delete rows by their keys inside the caller's write transaction."""
    for row in deleted:
        _delete_row(connection, consumer_id, row)
        _delete_offset(connection, consumer_id, row, cluster)


def adopt(connection: apsw.Connection, queue_id: int, path: str, cluster: str) -> None:
    """Let rows become offsets in the partitions that a queue has now, inside the caller's write transaction."""
    found = connection.execute(
        "SELECT consumer, number, next FROM yt_consumer_row WHERE cluster = ? AND path = ?", (cluster, path)
    )
    for consumer_id, number, next_row in list(found):
        row = ConsumerRow(cluster, path, _number(number), _number(next_row))
        if _queue_with(connection, row, cluster) == queue_id:
            connection.execute(
                "INSERT OR IGNORE INTO consumer_offset (queue, consumer, number, next, consumed, kept)"
                " VALUES (?1, ?2, ?3, ?4, ?5, ?4)",
                (queue_id, consumer_id, row.number, row.offset, time.time()),
            )


def release(connection: apsw.Connection, queue_id: int, path: str, cluster: str, first: int = 0) -> None:
    """Keep the offsets in partitions from ``first`` on as rows, before the queue loses them or its name."""
    found = connection.execute(
        "SELECT consumer, number, next FROM consumer_offset WHERE queue = ? AND number >= ?", (queue_id, first)
    )
    for consumer_id, number, next_row in list(found):
        connection.execute(
            "INSERT INTO yt_consumer_row VALUES (?1, ?2, ?3, ?4, ?5, NULL) ON CONFLICT DO UPDATE SET"
            " meta = CASE WHEN next = ?5 THEN meta END, next = ?5",
            (consumer_id, cluster, path, _bytes(number), _bytes(next_row)),
        )
    connection.execute("DELETE FROM consumer_offset WHERE queue = ? AND number >= ?", (queue_id, first))


def forget(connection: apsw.Connection, consumer_id: int) -> None:
    """Remove the rows of a consumer that are no offsets, inside the caller's write transaction."""
    connection.execute("DELETE FROM yt_consumer_row WHERE consumer = ?", (consumer_id,))


def _queue_with(connection: apsw.Connection, row: ConsumerRow, cluster: str) -> int | None:
    """Return the id of the queue that has the partition of a row, if the row can be an offset in it."""
    if row.cluster != cluster or row.number >= _NO_ROW_INDEX or row.offset >= _NO_ROW_INDEX:
        return None
    found = connection.execute(
        "SELECT o.id FROM object o JOIN partition p ON p.object = o.id AND p.number = ?"
        " WHERE o.name = ? AND o.kind = 'queue'",
        (row.number, row.path),
    ).fetchone()
    return None if found is None else int(found[0])


def _delete_row(connection: apsw.Connection, consumer_id: int, row: ConsumerRow) -> None:
    connection.execute(
        "DELETE FROM yt_consumer_row WHERE consumer = ? AND cluster = ? AND path = ? AND number = ?",
        (consumer_id, row.cluster, row.path, _bytes(row.number)),
    )


def _delete_offset(connection: apsw.Connection, consumer_id: int, row: ConsumerRow, cluster: str) -> None:
    if row.cluster == cluster and row.number < _NO_ROW_INDEX:
        connection.execute(
            "DELETE FROM consumer_offset WHERE consumer = ? AND number = ?"
            " AND queue = (SELECT id FROM object WHERE name = ?)",
            (consumer_id, row.number, row.path),
        )


def _bytes(number: int) -> bytes:
    """Return a number in the form that sorts as numbers do; SQLite's own go up to 2^63 only."""
    return number.to_bytes(8, "big")


def _number(data: bytes) -> int:
    return int.from_bytes(data, "big")
