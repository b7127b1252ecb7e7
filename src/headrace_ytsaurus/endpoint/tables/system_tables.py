"""The endpoint's own tables in the store, and the table of registrations in Cypress."""

from __future__ import annotations

from headrace_ytsaurus.endpoint.context import Context
from headrace_ytsaurus.endpoint.cypress.operations import make_node
from headrace_ytsaurus.endpoint.queues import consumer_rows, registration_rows
from headrace_ytsaurus.endpoint.storage import static_rows as static_tables
from headrace_ytsaurus.endpoint.storage.tree import Facet
from headrace_ytsaurus.endpoint.tables import state as table_state
from headrace_ytsaurus.endpoint.tables.nodes import REGISTRATIONS_PATH, REGISTRATIONS_SCHEMA, TABLE
from headrace_ytsaurus.endpoint.tables.state import MOUNTED, Table, TableKind, new_tablets


def make_tables(context: Context) -> None:
    """Create missing tables when a cluster starts."""
    cypress = context.cypress
    with context.database.write() as connection:
        for statement in (table_state.DDL, static_tables.DDL, consumer_rows.DDL, registration_rows.DDL):
            connection.execute(statement)
        directory, _, name = REGISTRATIONS_PATH.rpartition("/")
        parent = cypress.find(directory)
        node = cypress.child(parent, name)
        if node is None:
            node = make_node(context, parent, name, TABLE, {})
            table = Table(node, TableKind.REGISTRATIONS, REGISTRATIONS_SCHEMA, new_tablets(1, MOUNTED))
            table_state.save(connection, table)
        if cypress.content(node) is not None:
            # An earlier version has created it as a static table; its rows are not in the node.
            for facet in (Facet.CONTENT, Facet.PARTS):
                cypress.tree.put(node.chain[0], node.id, facet, "", None)
