"""The registrations of consumers as the rows of a table.

In YTsaurus a registration names two paths, also of other clusters, and remains when the queue or the consumer is
removed. Table ``yt_registration`` has all registrations by their names, with their partitions. The embedded store's
table ``registration`` also has each registration whose queue and consumer exist in this store.
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
    """The paths of a queue and a consumer, with their clusters."""

    queue_cluster: str
    queue: str
    consumer_cluster: str
    consumer: str


class RegistrationRow(NamedTuple):
    """A registration. ``partitions`` are the numbers of its partitions; None for all."""

    key: RegistrationKey
    vital: bool
    partitions: Sequence[int] | None = None


def rows(connection: apsw.Connection, own_cluster: str) -> list[RegistrationRow]:
    """Return all registrations, in key order; ``own_cluster`` is the name of this store as a cluster."""
    named: dict[RegistrationKey, RegistrationRow] = {}
    for *key, vital, partitions in connection.execute("SELECT * FROM yt_registration"):
        known = RegistrationKey(*key)
        named[known] = RegistrationRow(known, bool(vital), None if partitions is None else json.loads(partitions))
    existing: dict[RegistrationKey, RegistrationRow] = {}
    for queue, consumer, vital in connection.execute(
        "SELECT q.name, c.name, r.vital FROM registration r JOIN object q ON q.id = r.queue"
        " JOIN object c ON c.id = r.consumer"
    ):
        known = RegistrationKey(own_cluster, queue, own_cluster, consumer)
        existing[known] = RegistrationRow(known, bool(vital), named[known].partitions if known in named else None)
    # If queue and consumer exist, the registration exists only if table ``registration`` has it.
    others = {known: row for known, row in named.items() if _ids(connection, known, own_cluster) is None}
    return sorted((others | existing).values(), key=lambda row: row.key)


def exists(connection: apsw.Connection, key: RegistrationKey, own_cluster: str) -> bool:
    """Return whether a registration exists."""
    ids = _ids(connection, key, own_cluster)
    if ids is not None:
        found = connection.execute("SELECT 1 FROM registration WHERE queue = ? AND consumer = ?", ids).fetchone()
    else:
        found = connection.execute(
            "SELECT 1 FROM yt_registration"
            " WHERE queue_cluster = ? AND queue = ? AND consumer_cluster = ? AND consumer = ?",
            key,
        ).fetchone()
    return found is not None


def write(connection: apsw.Connection, row: RegistrationRow, own_cluster: str) -> None:
    """Insert or replace a registration inside the caller's write transaction."""
    partitions = None if row.partitions is None else json.dumps(list(row.partitions))
    connection.execute(
        "INSERT OR REPLACE INTO yt_registration VALUES (?, ?, ?, ?, ?, ?)", (*row.key, row.vital, partitions)
    )
    _save_if_both_exist(connection, row.key, own_cluster, vital=row.vital)


def delete(connection: apsw.Connection, key: RegistrationKey, own_cluster: str) -> None:
    """Delete a registration inside the caller's write transaction; a missing one is not an error."""
    connection.execute(
        "DELETE FROM yt_registration WHERE queue_cluster = ? AND queue = ? AND consumer_cluster = ? AND consumer = ?",
        key,
    )
    ids = _ids(connection, key, own_cluster)
    if ids is not None:
        connection.execute("DELETE FROM registration WHERE queue = ? AND consumer = ?", ids)


def adopt(connection: apsw.Connection, name: str, own_cluster: str) -> None:
    """Add the registrations of a new queue or consumer to ``registration``, inside the caller's write transaction."""
    found = connection.execute(
        "SELECT queue_cluster, queue, consumer_cluster, consumer, vital FROM yt_registration"
        " WHERE queue = ?1 OR consumer = ?1",
        (name,),
    )
    for *key, vital in list(found):
        _save_if_both_exist(connection, RegistrationKey(*key), own_cluster, vital=bool(vital))


def release(connection: apsw.Connection, object_id: int, own_cluster: str) -> None:
    """Save the registrations of a queue or consumer by its name, before it is renamed or removed."""
    connection.execute(
        "INSERT OR IGNORE INTO yt_registration SELECT ?2, q.name, ?2, c.name, r.vital, NULL FROM registration r"
        " JOIN object q ON q.id = r.queue JOIN object c ON c.id = r.consumer WHERE ?1 IN (r.queue, r.consumer)",
        (object_id, own_cluster),
    )
    connection.execute("DELETE FROM registration WHERE ?1 IN (queue, consumer)", (object_id,))


def _save_if_both_exist(connection: apsw.Connection, key: RegistrationKey, own_cluster: str, *, vital: bool) -> None:
    ids = _ids(connection, key, own_cluster)
    if ids is not None:
        connection.execute(
            "INSERT INTO registration (queue, consumer, vital) VALUES (?, ?, ?)"
            " ON CONFLICT DO UPDATE SET vital = excluded.vital",
            (*ids, vital),
        )


def _ids(connection: apsw.Connection, key: RegistrationKey, own_cluster: str) -> tuple[int, int] | None:
    """Return the ids of the queue and the consumer; None unless both exist in this store."""
    if (key.queue_cluster, key.consumer_cluster) != (own_cluster, own_cluster):
        return None
    found = connection.execute(
        "SELECT q.id, c.id FROM object q JOIN object c ON c.name = ? AND c.kind = 'consumer'"
        " WHERE q.name = ? AND q.kind = 'queue'",
        (key.consumer, key.queue),
    ).fetchone()
    return None if found is None else (int(found[0]), int(found[1]))
