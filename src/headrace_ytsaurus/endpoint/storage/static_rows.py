"""The rows of static tables: immutable pieces of binary YSON, which versions of tables share as parts.

See `headrace_ytsaurus.endpoint.storage.part_lists`.
"""

from __future__ import annotations

from collections.abc import Iterable

import apsw

from headrace_ytsaurus.endpoint.storage.part_lists import ContentPart

DDL = "CREATE TABLE IF NOT EXISTS yt_static_piece (id INTEGER PRIMARY KEY AUTOINCREMENT, data BLOB NOT NULL)"


def store(connection: apsw.Connection, pieces: Iterable[tuple[int, bytes]]) -> list[ContentPart]:
    """Save pieces in the caller's write transaction, and return them as parts for a version of a table.

    Args:
        pieces: for each, the number of its rows, and the rows.
    """
    parts = []
    for rows, data in pieces:
        connection.execute("INSERT INTO yt_static_piece (data) VALUES (?)", (data,))
        parts.append(ContentPart(connection.last_insert_rowid(), rows, len(data)))
    return parts


def piece(connection: apsw.Connection, part: ContentPart) -> bytes:
    """Return the rows of a piece."""
    ((data,),) = connection.execute("SELECT data FROM yt_static_piece WHERE id = ?", (part.name,))
    return bytes(data)


def drop(connection: apsw.Connection, number: int) -> None:
    """Delete a piece that no version of a table uses."""
    connection.execute("DELETE FROM yt_static_piece WHERE id = ?", (number,))
