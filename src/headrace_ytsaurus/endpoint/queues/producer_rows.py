"""The sessions of a producer as the rows of a table. Each function runs inside the caller's transaction."""

from __future__ import annotations

from typing import NamedTuple

import apsw

from headrace.stores.embedded.for_servers import catalog


class SessionRow(NamedTuple):
    """A session; ``meta`` is JSON, by default ``null``."""

    queue: str
    session: str
    sequence: int
    epoch: int
    meta: str = "null"


def rows(connection: apsw.Connection, producer_id: int) -> list[SessionRow]:
    """Return all sessions of a producer, in the order of their keys."""
    found = connection.execute(
        "SELECT q.name, s.session, s.sequence, s.epoch, s.meta FROM producer_session s"
        " JOIN object q ON q.id = s.queue WHERE s.producer = ?",
        (producer_id,),
    )
    return sorted((SessionRow(*row) for row in found), key=lambda row: (row.queue.encode(), row.session.encode()))


def find(connection: apsw.Connection, producer_id: int, queue: str, session: str) -> SessionRow | None:
    """Return one session; None if it does not exist."""
    found = connection.execute(
        "SELECT q.name, s.session, s.sequence, s.epoch, s.meta FROM producer_session s"
        " JOIN object q ON q.id = s.queue WHERE s.producer = ? AND q.name = ? AND s.session = ?",
        (producer_id, queue, session),
    ).fetchone()
    return None if found is None else SessionRow(*found)


def write(connection: apsw.Connection, producer_id: int, row: SessionRow) -> None:
    """Insert or replace a session.

    Raises:
        NotFoundError: the queue does not exist.
    """
    queue_id = catalog.find(connection, row.queue, "queue")
    connection.execute(
        "INSERT OR REPLACE INTO producer_session (queue, producer, session, epoch, sequence, meta)"
        " VALUES (?, ?, ?, ?, ?, ?)",
        (queue_id, producer_id, row.session, row.epoch, row.sequence, row.meta),
    )


def delete(connection: apsw.Connection, producer_id: int, queue: str, session: str) -> None:
    """Delete a session; a missing session is not an error."""
    connection.execute(
        "DELETE FROM producer_session WHERE producer = ? AND session = ?"
        " AND queue = (SELECT id FROM object WHERE name = ?)",
        (producer_id, session, queue),
    )
