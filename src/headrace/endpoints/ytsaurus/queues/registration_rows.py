"""Registrations of consumers as the rows of a table, whatever they name.

In YTsaurus a registration names two paths, perhaps of other clusters, and stays when one of them goes. Those of a queue
and a consumer that are there stand in ``registration`` as all others do; ``yt_registration`` keeps them by their names,
with what only YTsaurus knows.
"""

from __future__ import annotations

import json
from collections.abc import Sequence
from typing import NamedTuple

import apsw

DDL = """
CREATE TABLE IF NOT EXISTS yt_registration (queue_cluster TEXT NOT NULL, queue TEXT NOT NULL,
    consumer_cluster TEXT NOT NULL, consumer TEXT NOT NULL, vital INTEGER NOT NULL, partitions TEXT,
    PRIMARY KEY (queue_cluster, queue, consumer_cluster, consumer)) WITHOUT ROWID;
"""


class RegistrationKey(NamedTuple):
    """Which queue, which consumer."""

    queue_cluster: str
    queue: str
    consumer_cluster: str
    consumer: str


class RegistrationRow(NamedTuple):
    """A registration; ``partitions`` are those that it is for, None for all."""

    key: RegistrationKey
    vital: bool
    partitions: Sequence[int] | None = None


def rows(connection: apsw.Connection, here: str) -> list[RegistrationRow]:
    """Return all registrations, in key order; ``here`` is the name of this store as a cluster."""
    named: dict[RegistrationKey, RegistrationRow] = {}
    for *key, vital, partitions in connection.execute("SELECT * FROM yt_registration"):
        known = RegistrationKey(*key)
        named[known] = RegistrationRow(known, bool(vital), None if partitions is None else json.loads(partitions))
    held: dict[RegistrationKey, RegistrationRow] = {}
    for queue, consumer, vital in connection.execute(
        "SELECT q.name, c.name, r.vital FROM registration r JOIN object q ON q.id = r.queue"
        " JOIN object c ON c.id = r.consumer"
    ):
        known = RegistrationKey(here, queue, here, consumer)
        held[known] = RegistrationRow(known, bool(vital), named[known].partitions if known in named else None)
    # Where both ends are there, ``registration`` alone tells whether it still holds.
    apart = {known: row for known, row in named.items() if _ids(connection, known, here) is None}
    return sorted((apart | held).values(), key=lambda row: row.key)


def is_there(connection: apsw.Connection, key: RegistrationKey, here: str) -> bool:
    """Tell whether there is a registration."""
    ids = _ids(connection, key, here)
    if ids is not None:
        found = connection.execute("SELECT 1 FROM registration WHERE queue = ? AND consumer = ?", ids).fetchone()
    else:
        found = connection.execute(
            "SELECT 1 FROM yt_registration"
            " WHERE queue_cluster = ? AND queue = ? AND consumer_cluster = ? AND consumer = ?",
            key,
        ).fetchone()
    return found is not None


def write(connection: apsw.Connection, row: RegistrationRow, here: str) -> None:
    """Insert or replace a registration inside the caller's write transaction."""
    partitions = None if row.partitions is None else json.dumps(list(row.partitions))
    connection.execute(
        "INSERT OR REPLACE INTO yt_registration VALUES (?, ?, ?, ?, ?, ?)", (*row.key, row.vital, partitions)
    )
    _hold(connection, row.key, here, vital=row.vital)


def delete(connection: apsw.Connection, key: RegistrationKey, here: str) -> None:
    """Delete a registration inside the caller's write transaction, if it is there."""
    connection.execute(
        "DELETE FROM yt_registration WHERE queue_cluster = ? AND queue = ? AND consumer_cluster = ? AND consumer = ?",
        key,
    )
    ids = _ids(connection, key, here)
    if ids is not None:
        connection.execute("DELETE FROM registration WHERE queue = ? AND consumer = ?", ids)


def adopt(connection: apsw.Connection, name: str, here: str) -> None:
    """Let registrations hold that name a new queue or consumer, inside the caller's write transaction."""
    found = connection.execute(
        "SELECT queue_cluster, queue, consumer_cluster, consumer, vital FROM yt_registration"
        " WHERE queue = ?1 OR consumer = ?1",
        (name,),
    )
    for *key, vital in list(found):
        _hold(connection, RegistrationKey(*key), here, vital=bool(vital))


def release(connection: apsw.Connection, object_id: int, here: str) -> None:
    """Keep the registrations of a queue or consumer by its name, before it loses that or goes."""
    connection.execute(
        "INSERT OR IGNORE INTO yt_registration SELECT ?2, q.name, ?2, c.name, r.vital, NULL FROM registration r"
        " JOIN object q ON q.id = r.queue JOIN object c ON c.id = r.consumer WHERE ?1 IN (r.queue, r.consumer)",
        (object_id, here),
    )
    connection.execute("DELETE FROM registration WHERE ?1 IN (queue, consumer)", (object_id,))


def _hold(connection: apsw.Connection, key: RegistrationKey, here: str, *, vital: bool) -> None:
    ids = _ids(connection, key, here)
    if ids is not None:
        connection.execute(
            "INSERT INTO registration (queue, consumer, vital) VALUES (?, ?, ?)"
            " ON CONFLICT DO UPDATE SET vital = excluded.vital",
            (*ids, vital),
        )


def _ids(connection: apsw.Connection, key: RegistrationKey, here: str) -> tuple[int, int] | None:
    """Return the ids of the queue and the consumer, None unless both are there."""
    if (key.queue_cluster, key.consumer_cluster) != (here, here):
        return None
    found = connection.execute(
        "SELECT q.id, c.id FROM object q JOIN object c ON c.name = ? AND c.kind = 'consumer'"
        " WHERE q.name = ? AND q.kind = 'queue'",
        (key.consumer, key.queue),
    ).fetchone()
    return None if found is None else (int(found[0]), int(found[1]))
