"""Changes of a queue's partitions that only the YTsaurus endpoint needs."""

from __future__ import annotations

from collections.abc import Iterable, Mapping

import apsw

from headrace.errors import OptionError
from headrace.stores.embedded.for_servers import ROW_INDEX_BITS, stored_queues


def insert(connection: apsw.Connection, queue_id: int, after: int, count: int) -> None:
    """Add empty partitions after a partition, inside the caller's write transaction; later ones get higher numbers."""
    last = stored_queues.add_partitions(connection, queue_id, count) - 1
    moved = last - count - after
    if moved <= 0:
        return
    # The new partitions are the last ones. Negative numbers keep the numbers unique while the two groups are exchanged.
    connection.execute("UPDATE partition SET number = -1 - number WHERE object = ? AND number > ?", (queue_id, after))
    connection.execute(
        "UPDATE partition SET number = CASE WHEN -1 - number > ?2 THEN -1 - number - ?3 ELSE -1 - number + ?4 END"
        " WHERE object = ?1 AND number < 0",
        (queue_id, last - count, moved, count),
    )


def remove_empty(connection: apsw.Connection, queue_id: int, first: int, count: int) -> None:
    """Remove partitions that never had rows, inside the caller's write transaction; later ones get lower numbers.

    Raises:
        OptionError: one of the partitions has had rows.
    """
    used = connection.execute(
        "SELECT number, next FROM partition WHERE object = ? AND number BETWEEN ? AND ? AND next > 0 LIMIT 1",
        (queue_id, first, first + count - 1),
    ).fetchone()
    if used is not None:
        raise OptionError(
            "a partition that has had rows cannot be removed",
            received=f"partition {used[0]} with {used[1]} rows",
            remedy="keep the number of partitions, or create a new queue",
        )
    connection.execute(
        "DELETE FROM partition WHERE object = ? AND number BETWEEN ? AND ?", (queue_id, first, first + count - 1)
    )
    for (number,) in list(
        connection.execute(
            "SELECT number FROM partition WHERE object = ? AND number > ? ORDER BY number", (queue_id, first)
        )
    ):
        connection.execute(
            "UPDATE partition SET number = ? WHERE object = ? AND number = ?", (number - count, queue_id, number)
        )


def set_starts(connection: apsw.Connection, queue_id: int, begins: Mapping[int, tuple[int, int]]) -> None:
    """Set the first row indexes and cumulative weights of partitions, as if rows before them had been trimmed.

    Raises:
        OptionError: a partition has had rows.
    """
    for number, (row, weight) in begins.items():
        changed = connection.execute(
            "UPDATE partition SET first = ?, next = ?, weight = ? WHERE object = ? AND number = ? AND next = 0"
            " RETURNING 1",
            (row, row, weight, queue_id, number),
        ).fetchone()
        if changed is None:
            raise OptionError(
                "the first row index of a partition that has had rows cannot be set",
                received=f"partition {number}",
            )


def set_auto_trimmed(connection: apsw.Connection, queue_id: int, numbers: Iterable[int], *, trimmed: bool) -> None:
    """Start or stop the automatic trimming of partitions."""
    connection.executemany(
        "UPDATE partition SET open = ? WHERE object = ? AND number = ?",
        [(trimmed, queue_id, number) for number in numbers],
    )


def copy(connection: apsw.Connection, source_id: int, target_id: int) -> None:
    """Copy the partitions of a queue to a new one with the same schema, with all rows and their row indexes."""
    found = connection.execute(
        "SELECT s.id, t.id FROM partition s JOIN partition t ON t.number = s.number AND t.object = ?"
        " WHERE s.object = ?",
        (target_id, source_id),
    )
    for source, target in list(found):
        connection.execute(
            "UPDATE partition SET (first, next, small, log_bytes, trimmed, weight) ="
            " (SELECT first, next, small, log_bytes, trimmed, weight FROM partition WHERE id = ?) WHERE id = ?",
            (source, target),
        )
        connection.execute(
            "INSERT INTO chunk (id, n, level, schema, version, ts, commits, data)"
            " SELECT c.id - (?1 << ?3) + (?2 << ?3), c.n, c.level, c.schema, c.version, c.ts, c.commits,"
            " ifnull(b.data, c.data) FROM chunk c LEFT JOIN blob b ON b.id = c.blob"
            " WHERE c.id >= ?1 << ?3 AND c.id < (?1 + 1) << ?3",
            (source, target, ROW_INDEX_BITS),
        )
