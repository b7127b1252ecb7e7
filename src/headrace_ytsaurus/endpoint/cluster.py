"""A cluster: an embedded store with Cypress, and the background tasks."""

from __future__ import annotations

import fcntl
import logging
import os
import threading
import time
from collections.abc import Callable, Mapping
from pathlib import Path

import pyarrow as pa

from headrace.errors import OptionError
from headrace.stores.embedded.for_servers import EmbeddedStore
from headrace_ytsaurus.endpoint.commands import COMMANDS
from headrace_ytsaurus.endpoint.context import Command, Context
from headrace_ytsaurus.endpoint.cypress.attributes import ACCOUNT as ACCOUNT_OF_ALL
from headrace_ytsaurus.endpoint.cypress.basic_types import (
    ACCOUNT,
    GROUP,
    MAP_NODE,
    TABLET_CELL,
    TRANSACTION_MAP,
    USER,
)
from headrace_ytsaurus.endpoint.cypress.cypress import Cypress
from headrace_ytsaurus.endpoint.cypress.expiration import Uses, remove_expired
from headrace_ytsaurus.endpoint.cypress.node_types import NodeType
from headrace_ytsaurus.endpoint.cypress.objects import TRANSACTIONS
from headrace_ytsaurus.endpoint.cypress.operations import make_node, release_node
from headrace_ytsaurus.endpoint.dispatcher import delete_old_answers
from headrace_ytsaurus.endpoint.formats import YSON
from headrace_ytsaurus.endpoint.queues import consumer_rows, registration_rows
from headrace_ytsaurus.endpoint.queues.trimming import trim_old_rows
from headrace_ytsaurus.endpoint.storage import static_rows as static_tables
from headrace_ytsaurus.endpoint.storage.file_contents import Contents
from headrace_ytsaurus.endpoint.storage.tree import Tree
from headrace_ytsaurus.endpoint.tables import state as table_state
from headrace_ytsaurus.endpoint.tables.nodes import REGISTRATIONS_PATH, REGISTRATIONS_SCHEMA, TABLE
from headrace_ytsaurus.endpoint.tables.past_states import PastStates
from headrace_ytsaurus.endpoint.tables.state import MOUNTED, Table, TableKind, new_tablets
from headrace_ytsaurus.endpoint.tables.tablet_transactions import TabletTransactions
from headrace_ytsaurus.endpoint.transactions.locks import Locks
from headrace_ytsaurus.endpoint.transactions.transactions import Transactions
from headrace_ytsaurus.wire.paths import parse_path

DEFAULT_NAME = "primary"
SYSTEM_USER = "root"
_LOCK_FILE = "ytsaurus.lock"
_TICK_SECONDS = 0.05
_DIRECTORIES = (
    "home",
    "sys",
    "tmp",
    *(f"sys/{name}" for name in ("accounts", "groups", "queue_agents", "tablet_cells", "users")),
)
# Nodes of every cluster, parents first.
_NODES: Mapping[str, NodeType] = {
    **{f"//{name}": MAP_NODE for name in _DIRECTORIES},
    TRANSACTIONS: TRANSACTION_MAP,
    **{f"//sys/accounts/{name}": ACCOUNT for name in (ACCOUNT_OF_ALL, "sys", "tmp")},
    **{f"//sys/groups/{name}": GROUP for name in ("everyone", "superusers", "users")},
    **{f"//sys/users/{name}": USER for name in ("guest", SYSTEM_USER)},
}
_log = logging.getLogger("headrace")


class Cluster:
    """One cluster. Only one cluster, of all processes, can use a directory.

    Args:
        root: the directory of the embedded store, created if it does not exist.
        name: the value of ``//sys/@cluster_name``, and the cluster in paths.

    Raises:
        OptionError: another process serves the directory.
    """

    def __init__(self, root: Path, *, name: str = DEFAULT_NAME) -> None:
        self.name = name
        self.commands: Mapping[str, Command] = COMMANDS
        root.mkdir(parents=True, exist_ok=True)
        self._lock = _lock(root)
        self.store = EmbeddedStore(root, create=True)
        self.database = self.store.database
        tree = Tree(self.database)
        locks = Locks(tree)
        self.transactions = Transactions(tree, locks)
        self.cypress = Cypress(tree, locks, self.transactions)
        self.contents = Contents(tree, self.store.files())
        self.transactions.on_delete = lambda chain, node_id: release_node(self.context(), chain, node_id)
        self.tablet_transactions = TabletTransactions(self.database, name)
        self.past_states = PastStates(self.database)
        self.uses = Uses()
        self._stopping = threading.Event()
        self._make_system_nodes()
        self.cypress.on_use = self.uses.used
        self._make_tables()
        self._worker = threading.Thread(target=self._work, name="headrace-ytsaurus-background", daemon=True)
        self._worker.start()

    def context(self) -> Context:
        """Return a context for work that no client asked for."""
        return Context(self, SYSTEM_USER, time.time_ns() // 1000, YSON, YSON)

    def close(self) -> None:
        """Stop the background tasks and close the store. No request may be running."""
        self._stopping.set()
        self._worker.join()
        self.store.close()
        os.close(self._lock)

    def _make_system_nodes(self) -> None:
        context = self.context()
        with self.database.write():
            self.cypress.make_root(context.now)
            for path, kind in _NODES.items():
                parsed = parse_path(path)
                node = self.cypress.find(parsed.parent)
                child = self.cypress.child(node, parsed.name) or make_node(context, node, parsed.name, kind, {})
                self.cypress.protected.add(child.id)
            cells = self.cypress.find("//sys/tablet_cells")
            if not self.cypress.count(cells):
                make_node(context, cells, None, TABLET_CELL, {})
            self.cypress.keep_attribute(context.now, self.cypress.find("//sys"), "cluster_name", self.name)

    def _make_tables(self) -> None:
        """Create the endpoint's own tables in the store, and the table of registrations in Cypress."""
        context, cypress = self.context(), self.cypress
        with self.database.write() as connection:
            for statement in (table_state.DDL, static_tables.DDL, consumer_rows.DDL, registration_rows.DDL):
                connection.execute(statement)
            directory, _, name = REGISTRATIONS_PATH.rpartition("/")
            parent = cypress.find(directory)
            if cypress.child(parent, name) is None:
                # Without the content of a new table, which would make it a static one.
                node = cypress.insert(context.now, parent, name, TABLE.name, TABLE.object_type)
                table = Table(node, TableKind.REGISTRATIONS, REGISTRATIONS_SCHEMA, new_tablets(1, MOUNTED))
                table_state.save(connection, table)

    def _work(self) -> None:
        due = {task: time.monotonic() + seconds for task, seconds in _PERIODIC.items()}
        while not self._stopping.wait(_TICK_SECONDS):
            for task, moment in due.items():
                if moment > time.monotonic():
                    continue
                try:
                    task(self)
                except Exception as error:
                    # The task runs again later. If the thread ended, the other tasks would end with it.
                    _log.error("background task failed", exc_info=error)
                due[task] = time.monotonic() + _PERIODIC[task]


def _lock(root: Path) -> int:
    descriptor = os.open(root / _LOCK_FILE, os.O_RDWR | os.O_CREAT | os.O_CLOEXEC, 0o644)
    try:
        fcntl.flock(descriptor, fcntl.LOCK_EX | fcntl.LOCK_NB)
    except OSError:
        os.close(descriptor)
        raise OptionError(
            "another process serves this directory as a cluster",
            received=str(root),
            remedy="stop it, or name another directory with --root",
        ) from None
    return descriptor


def sweep(cluster: Cluster) -> None:
    """Delete unused parts of files and static tables, and the answers of old mutations."""
    now = time.time_ns() // 1000
    cluster.contents.sweep(now)
    delete_old_answers(cluster.database, now)


def release_memory(cluster: Cluster) -> None:
    """Return memory of large requests to the operating system."""
    pa.default_memory_pool().release_unused()


_PERIODIC: Mapping[Callable[[Cluster], None], float] = {
    lambda cluster: cluster.transactions.abort_expired(): 0.2,
    # The snapshots of open tablet transactions and of past states keep the database large.
    lambda cluster: cluster.tablet_transactions.abort_expired(): 0.5,
    lambda cluster: remove_expired(cluster.context(), cluster.uses): 0.5,
    lambda cluster: cluster.past_states.expire(): 1.0,
    lambda cluster: trim_old_rows(cluster.database): 5.0,
    release_memory: 5.0,
    sweep: 30.0,
}
"""Task → seconds between the end of one run and the start of the next. One thread runs them all."""
