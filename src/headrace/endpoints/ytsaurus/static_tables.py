"""Static tables: rows as binary YSON, a piece for each write; enough for small data."""

from __future__ import annotations

from collections.abc import Sequence

import apsw

DDL = """
CREATE TABLE IF NOT EXISTS yt_static_rows (node TEXT NOT NULL, number INTEGER NOT NULL, n INTEGER NOT NULL,
    data BLOB NOT NULL, PRIMARY KEY (node, number)) WITHOUT ROWID;
"""


def append(connection: apsw.Connection, node: str, rows: int, data: bytes) -> None:
    """Put rows behind those that are there, inside the caller's write transaction."""
    connection.execute(
        "INSERT INTO yt_static_rows SELECT ?1, ifnull(max(number), -1) + 1, ?2, ?3 FROM yt_static_rows WHERE node = ?1",
        (node, rows, data),
    )


def drop(connection: apsw.Connection, node: str) -> None:
    """Remove all rows, inside the caller's write transaction."""
    connection.execute("DELETE FROM yt_static_rows WHERE node = ?", (node,))


def copy(connection: apsw.Connection, source: str, target: str) -> None:
    """Give a table the rows of another one, inside the caller's write transaction."""
    connection.execute(
        "INSERT INTO yt_static_rows SELECT ?, number, n, data FROM yt_static_rows WHERE node = ?", (target, source)
    )


def pieces(connection: apsw.Connection, node: str) -> Sequence[bytes]:
    """Return the rows, piece by piece."""
    found = connection.execute("SELECT data FROM yt_static_rows WHERE node = ? ORDER BY number", (node,))
    return [bytes(data) for (data,) in found]


def row_count(connection: apsw.Connection, node: str) -> int:
    """Return how many rows there are."""
    ((count,),) = connection.execute("SELECT ifnull(sum(n), 0) FROM yt_static_rows WHERE node = ?", (node,))
    return int(count)


def size(connection: apsw.Connection, node: str) -> int:
    """Return how many bytes the rows take."""
    ((count,),) = connection.execute("SELECT ifnull(sum(length(data)), 0) FROM yt_static_rows WHERE node = ?", (node,))
    return int(count)
