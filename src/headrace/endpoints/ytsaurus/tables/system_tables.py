"""What the table half of a cluster needs when it starts: its own tables in the store, and its system nodes."""

from __future__ import annotations

from typing import TYPE_CHECKING

from headrace.endpoints.ytsaurus.periodic import at_start
from headrace.endpoints.ytsaurus.queues import consumer_rows, registration_rows
from headrace.endpoints.ytsaurus.storage import static_rows as static_tables
from headrace.endpoints.ytsaurus.storage.tree import Facet
from headrace.endpoints.ytsaurus.tables import state as table_state
from headrace.endpoints.ytsaurus.tables.nodes import REGISTRATIONS_PATH, REGISTRATIONS_SCHEMA, TABLE
from headrace.endpoints.ytsaurus.tables.state import MOUNTED, Kind, Table, new_tablets

if TYPE_CHECKING:
    from headrace.endpoints.ytsaurus.cluster import Cluster


@at_start
def make_tables(cluster: Cluster) -> None:
    """Make what is not there yet."""
    context = cluster.context()
    with cluster.database.write() as connection:
        for statement in (table_state.DDL, static_tables.DDL, consumer_rows.DDL, registration_rows.DDL):
            connection.execute(statement)
        directory, _, name = REGISTRATIONS_PATH.rpartition("/")
        parent = cluster.cypress.find(directory)
        node = cluster.cypress.child(parent, name)
        if node is None:
            node = cluster.cypress.make(context, parent, name, TABLE, {})
            table = Table(node, Kind.REGISTRATIONS, REGISTRATIONS_SCHEMA, new_tablets(1, MOUNTED))
            table_state.save(connection, table)
        if cluster.cypress.content(node) is not None:
            # It was made as a static table, and its rows are elsewhere.
            for facet in (Facet.CONTENT, Facet.PARTS):
                cluster.cypress.tree.put(node.chain[0], node.id, facet, "", None)
