"""The offsets of a consumer as the rows of a table.

In YTsaurus a consumer is a table. Clients can write rows for queues that do not exist, for queues of other clusters,
and for partitions that a queue does not have. The embedded store's table ``consumer_offset`` has the offsets in
existing partitions, as for every consumer. Table ``yt_consumer_row`` has all other rows, and the metadata of rows. When
a queue gets a partition, the rows for that partition become offsets; when it loses one, the offsets become rows.
"""

from __future__ import annotations

import time
from collections.abc import Iterable
from typing import NamedTuple

import apsw

from headrace.stores.embedded.for_servers import stored_queues

DDL = """
CREATE TABLE IF NOT EXISTS yt_consumer_row (consumer INTEGER NOT NULL, cluster TEXT NOT NULL, path TEXT NOT NULL,
    number BLOB NOT NULL, next BLOB NOT NULL, meta BLOB, PRIMARY KEY (consumer, cluster, path, number)) WITHOUT ROWID;
"""
_NO_ROW_INDEX = 1 << 63


class ConsumerRow(NamedTuple):
    """A row. ``number`` (of the partition) and ``offset`` are unsigned 64-bit numbers; ``meta`` is YSON or None."""

    cluster: str
    path: str
    number: int
    offset: int
    meta: bytes | None = None


def rows(connection: apsw.Connection, consumer_id: int, own_cluster: str) -> list[ConsumerRow]:
    """Return all rows of a consumer, in key order; ``own_cluster`` is the name of this store as a cluster."""
    stored = {
        (cluster, path, _number(number)): (_number(offset), meta)
        for cluster, path, number, offset, meta in connection.execute(
            "SELECT cluster, path, number, next, meta FROM yt_consumer_row WHERE consumer = ?", (consumer_id,)
        )
    }
    offsets = connection.execute(
        "SELECT o.name, c.number, c.next FROM consumer_offset c JOIN object o ON o.id = c.queue WHERE c.consumer = ?",
        (consumer_id,),
    )
    found = []
    for path, number, offset in offsets:
        known, meta = stored.pop((own_cluster, path, number), (None, None))
        # Metadata that was written with another offset does not belong to this offset.
        found.append(ConsumerRow(own_cluster, path, number, offset, meta if known == offset else None))
    found += [ConsumerRow(*key, offset, meta) for key, (offset, meta) in stored.items()]
    return sorted(found, key=lambda row: (row.cluster.encode(), row.path.encode(), row.number))


def offset(
    connection: apsw.Connection, consumer_id: int, cluster: str, path: str, number: int, own_cluster: str
) -> int | None:
    """Return one offset; None if there is no row."""
    if cluster == own_cluster and number < _NO_ROW_INDEX:
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


def write(connection: apsw.Connection, consumer_id: int, written: Iterable[ConsumerRow], own_cluster: str) -> None:
    """Insert or replace rows inside the caller's write transaction, and trim rows that vital consumers have read."""
    now = time.time()
    touched = set()
    for row in written:
        queue_id = _queue_with(connection, row, own_cluster)
        kept = queue_id is None or row.meta is not None
        if kept:
            connection.execute(
                "INSERT OR REPLACE INTO yt_consumer_row VALUES (?, ?, ?, ?, ?, ?)",
                (consumer_id, row.cluster, row.path, _bytes(row.number), _bytes(row.offset), row.meta),
            )
        if queue_id is None:
            _delete_offset(connection, consumer_id, row, own_cluster)
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


def delete(connection: apsw.Connection, consumer_id: int, deleted: Iterable[ConsumerRow], own_cluster: str) -> None:
    """Delete rows by their keys inside the caller's write transaction."""
    for row in deleted:
        _delete_row(connection, consumer_id, row)
        _delete_offset(connection, consumer_id, row, own_cluster)


def adopt(connection: apsw.Connection, queue_id: int, path: str, own_cluster: str) -> None:
    """Turn rows into offsets if a queue now has their partitions, inside the caller's write transaction."""
    found = connection.execute(
        "SELECT consumer, number, next FROM yt_consumer_row WHERE cluster = ? AND path = ?", (own_cluster, path)
    )
    for consumer_id, number, next_row in list(found):
        row = ConsumerRow(own_cluster, path, _number(number), _number(next_row))
        if _queue_with(connection, row, own_cluster) == queue_id:
            connection.execute(
                "INSERT OR IGNORE INTO consumer_offset (queue, consumer, number, next, consumed, kept)"
                " VALUES (?1, ?2, ?3, ?4, ?5, ?4)",
                (queue_id, consumer_id, row.number, row.offset, time.time()),
            )


def release(connection: apsw.Connection, queue_id: int, path: str, own_cluster: str, first: int = 0) -> None:
    """Turn the offsets in partitions from ``first`` on into rows, before the queue loses them or its name."""
    found = connection.execute(
        "SELECT consumer, number, next FROM consumer_offset WHERE queue = ? AND number >= ?", (queue_id, first)
    )
    for consumer_id, number, next_row in list(found):
        connection.execute(
            "INSERT INTO yt_consumer_row VALUES (?1, ?2, ?3, ?4, ?5, NULL) ON CONFLICT DO UPDATE SET"
            " meta = CASE WHEN next = ?5 THEN meta END, next = ?5",
            (consumer_id, own_cluster, path, _bytes(number), _bytes(next_row)),
        )
    connection.execute("DELETE FROM consumer_offset WHERE queue = ? AND number >= ?", (queue_id, first))


def forget(connection: apsw.Connection, consumer_id: int) -> None:
    """Delete the rows of a consumer that are not offsets, inside the caller's write transaction."""
    connection.execute("DELETE FROM yt_consumer_row WHERE consumer = ?", (consumer_id,))


def _queue_with(connection: apsw.Connection, row: ConsumerRow, own_cluster: str) -> int | None:
    """Return the id of the queue with the partition of a row; None if the row cannot be an offset."""
    if row.cluster != own_cluster or row.number >= _NO_ROW_INDEX or row.offset >= _NO_ROW_INDEX:
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


def _delete_offset(connection: apsw.Connection, consumer_id: int, row: ConsumerRow, own_cluster: str) -> None:
    if row.cluster == own_cluster and row.number < _NO_ROW_INDEX:
        connection.execute(
            "DELETE FROM consumer_offset WHERE consumer = ? AND number = ?"
            " AND queue = (SELECT id FROM object WHERE name = ?)",
            (consumer_id, row.number, row.path),
        )


def _bytes(number: int) -> bytes:
    """Return a number as bytes with the same sort order. The integers of SQLite have 63 bits."""
    return number.to_bytes(8, "big")


def _number(data: bytes) -> int:
    return int.from_bytes(data, "big")
