"""Automatic trimming of queues, in addition to the store's own trimming on appends and reads.

The offsets of a vital consumer are unknown if it was removed, is on another cluster, or is not mounted. Then nothing is
trimmed until they are known, or the registration is deleted.
"""

from __future__ import annotations

import apsw

from headrace.errors import HeadraceError
from headrace.stores.embedded.for_servers import Database, stored_queues
from headrace_ytsaurus.endpoint.context import Context
from headrace_ytsaurus.endpoint.queues import registration_rows
from headrace_ytsaurus.endpoint.queues.registration_rows import RegistrationKey
from headrace_ytsaurus.endpoint.tables import state as table_state
from headrace_ytsaurus.endpoint.tables.state import UNMOUNTED

# In place of a vital consumer with unknown offsets. It has no offsets, so it prevents trimming.
_UNKNOWN = -1


def update_trimming(context: Context, *names: str) -> None:
    """Update the trimming of queues after they or their consumers have changed, and trim them.

    Args:
        names: paths of queues and consumers, which need not exist.
    """
    own_cluster = context.cluster.name
    with context.database.write() as connection:
        vital = [row.key for row in registration_rows.rows(connection, own_cluster) if row.vital]
        vital = [key for key in vital if key.queue_cluster == own_cluster]
        for name in {*names, *(key.queue for key in vital if key.consumer in names)}:
            found = connection.execute("SELECT id FROM object WHERE name = ? AND kind = 'queue'", (name,)).fetchone()
            if found is None:
                continue
            if all(_has_known_offsets(context, connection, key) for key in vital if key.queue == name):
                connection.execute("DELETE FROM registration WHERE queue = ? AND consumer = ?", (found[0], _UNKNOWN))
            else:
                connection.execute("INSERT OR REPLACE INTO registration VALUES (?, ?, 1)", (found[0], _UNKNOWN))
            stored_queues.auto_trim(connection, found[0])


def _has_known_offsets(context: Context, connection: apsw.Connection, key: RegistrationKey) -> bool:
    """Return whether the offsets of a consumer are known."""
    consumer = connection.execute(
        "SELECT 1 FROM object WHERE name = ? AND kind = 'consumer'", (key.consumer,)
    ).fetchone()
    if key.consumer_cluster != context.cluster.name or consumer is None:
        return False
    try:
        table = table_state.load(connection, context.cypress.find(key.consumer))
    except HeadraceError:
        # Another process has created it in the store, without a node.
        return True
    return all(tablet.state != UNMOUNTED for tablet in table.tablets)


def trim_old_rows(database: Database) -> None:
    """Trim old rows of queues without appends or reads."""
    found = database.query(
        "SELECT id FROM object WHERE kind = 'queue' AND json_extract(options, '$.auto_trim')"
        " AND json_extract(options, '$.retained_seconds') IS NOT NULL"
    )
    for (queue_id,) in found:
        with database.write() as connection:
            if connection.execute("SELECT 1 FROM object WHERE id = ?", (queue_id,)).fetchone():
                stored_queues.auto_trim(connection, queue_id)
