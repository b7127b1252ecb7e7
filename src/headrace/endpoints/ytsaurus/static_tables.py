"""Static tables: rows as binary YSON, in pieces of which one at a time is in memory."""

from __future__ import annotations

from collections.abc import Iterable, Iterator

import apsw

DDL = """
CREATE TABLE IF NOT EXISTS yt_static_rows (node TEXT NOT NULL, number INTEGER NOT NULL, n INTEGER NOT NULL,
    data BLOB NOT NULL, PRIMARY KEY (node, number)) WITHOUT ROWID;
"""


def append(connection: apsw.Connection, node: str, pieces: Iterable[tuple[int, bytes]]) -> None:
    """Put rows behind those that are there, inside the caller's write transaction.

    Args:
        pieces: for each, how many rows it has, and the rows.
    """
    ((number,),) = connection.execute("SELECT ifnull(max(number) + 1, 0) FROM yt_static_rows WHERE node = ?", (node,))
    connection.executemany(
        "INSERT INTO yt_static_rows VALUES (?, ?, ?, ?)",
        ((node, place, rows, data) for place, (rows, data) in enumerate(pieces, start=number)),
    )


def drop(connection: apsw.Connection, node: str) -> None:
    """Remove all rows, inside the caller's write transaction."""
    connection.execute("DELETE FROM yt_static_rows WHERE node = ?", (node,))


def copy(connection: apsw.Connection, source: str, target: str) -> None:
    """Give a table the rows of another one, inside the caller's write transaction."""
    connection.execute(
        "INSERT INTO yt_static_rows SELECT ?, number, n, data FROM yt_static_rows WHERE node = ?", (target, source)
    )


def sizes(connection: apsw.Connection, node: str) -> list[tuple[int, int]]:
    """Return the number of each piece and how many rows it has, in order."""
    return list(connection.execute("SELECT number, n FROM yt_static_rows WHERE node = ? ORDER BY number", (node,)))


def piece(connection: apsw.Connection, node: str, number: int) -> bytes:
    """Return the rows of a piece."""
    query = "SELECT data FROM yt_static_rows WHERE node = ? AND number = ?"
    ((data,),) = connection.execute(query, (node, number))
    return bytes(data)


def pieces(connection: apsw.Connection, node: str) -> Iterator[bytes]:
    """Return all rows, piece by piece; meanwhile the table must stay as it is."""
    for number, _ in sizes(connection, node):
        yield piece(connection, node, number)


def row_count(connection: apsw.Connection, node: str) -> int:
    """Return how many rows there are."""
    ((count,),) = connection.execute("SELECT ifnull(sum(n), 0) FROM yt_static_rows WHERE node = ?", (node,))
    return int(count)


def size(connection: apsw.Connection, node: str) -> int:
    """Return how many bytes the rows take."""
    ((count,),) = connection.execute("SELECT ifnull(sum(length(data)), 0) FROM yt_static_rows WHERE node = ?", (node,))
    return int(count)
