"""Automatic trimming of queues, as far as the store does not do it by itself whenever rows come or are read.

A vital consumer that is gone, is on another cluster, or is not mounted does not tell how far it has read, so nothing
is trimmed until it does, or is no longer registered.
"""

from __future__ import annotations

from typing import TYPE_CHECKING

import apsw

from headrace.endpoints.ytsaurus.periodic import periodic
from headrace.endpoints.ytsaurus.queues import registration_rows
from headrace.endpoints.ytsaurus.queues.registration_rows import RegistrationKey
from headrace.endpoints.ytsaurus.tables import state as table_state
from headrace.endpoints.ytsaurus.tables.state import UNMOUNTED
from headrace.errors import HeadraceError
from headrace.stores.embedded.queues import stored_queues

if TYPE_CHECKING:
    from headrace.endpoints.ytsaurus.cluster import Cluster
    from headrace.endpoints.ytsaurus.commands import Context

# In the place of a vital consumer: as it has no offsets, it has read nothing.
_NOBODY = -1


def look_again(context: Context, *names: str) -> None:
    """Find out what may be trimmed of queues, after they or their consumers have changed, and trim that.

    Args:
        names: paths of queues and consumers, whether they are there or not.
    """
    here = context.cluster.name
    with context.cluster.database.write() as connection:
        vital = [row.key for row in registration_rows.rows(connection, here) if row.vital]
        vital = [key for key in vital if key.queue_cluster == here]
        for name in {*names, *(key.queue for key in vital if key.consumer in names)}:
            found = connection.execute("SELECT id FROM object WHERE name = ? AND kind = 'queue'", (name,)).fetchone()
            if found is None:
                continue
            if all(_tells(context, connection, key) for key in vital if key.queue == name):
                connection.execute("DELETE FROM registration WHERE queue = ? AND consumer = ?", (found[0], _NOBODY))
            else:
                connection.execute("INSERT OR REPLACE INTO registration VALUES (?, ?, 1)", (found[0], _NOBODY))
            stored_queues.auto_trim(connection, found[0])


def _tells(context: Context, connection: apsw.Connection, key: RegistrationKey) -> bool:
    """Tell whether a consumer can be asked how far it has read."""
    there = connection.execute("SELECT 1 FROM object WHERE name = ? AND kind = 'consumer'", (key.consumer,)).fetchone()
    if key.consumer_cluster != context.cluster.name or there is None:
        return False
    try:
        table = table_state.load(connection, context.cypress.find(key.consumer))
    except HeadraceError:
        # It was made by somebody else who has the store open, and has no node.
        return True
    return all(tablet.state != UNMOUNTED for tablet in table.tablets)


@periodic(5.0)
def trim_old_rows(cluster: Cluster) -> None:
    """Trim queues whose rows have grown old enough, though nobody has appended or read any since."""
    found = cluster.database.query(
        "SELECT id FROM object WHERE kind = 'queue' AND json_extract(options, '$.auto_trim')"
        " AND json_extract(options, '$.retained_seconds') IS NOT NULL"
    )
    for (queue_id,) in found:
        with cluster.database.write() as connection:
            if connection.execute("SELECT 1 FROM object WHERE id = ?", (queue_id,)).fetchone():
                stored_queues.auto_trim(connection, queue_id)
