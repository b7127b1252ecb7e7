"""The cluster that an endpoint plays: an embedded store, Cypress in it, and what works in the background."""

from __future__ import annotations

import fcntl
import importlib
import logging
import os
import threading
import time
from collections.abc import Callable
from pathlib import Path
from typing import Any, TypeVar, cast

import pyarrow as pa

from headrace.endpoints.ytsaurus.commands import Context
from headrace.endpoints.ytsaurus.cypress.basic_types import MAP_NODE, TABLET_CELL, TRANSACTION_MAP
from headrace.endpoints.ytsaurus.cypress.content_upgrade import upgrade
from headrace.endpoints.ytsaurus.cypress.cypress import Cypress
from headrace.endpoints.ytsaurus.cypress.objects import TRANSACTIONS
from headrace.endpoints.ytsaurus.dispatcher import Mutations
from headrace.endpoints.ytsaurus.formats import YSON
from headrace.endpoints.ytsaurus.periodic import PERIODIC, STARTING, periodic
from headrace.endpoints.ytsaurus.storage.file_contents import Contents
from headrace.endpoints.ytsaurus.storage.tree import Tree
from headrace.endpoints.ytsaurus.transactions.locks import Locks
from headrace.endpoints.ytsaurus.transactions.transactions import Transactions
from headrace.errors import OptionError
from headrace.stores.embedded.store import EmbeddedStore
from headrace.wire.ytsaurus.paths import parse_path

DEFAULT_NAME = "primary"
SYSTEM_USER = "root"
_LOCK_FILE = "ytsaurus.lock"
_TICK_SECONDS = 0.05
# Modules that make commands, types of nodes and work in the background known by being imported.
_MODULES = (
    "batch_commands",
    "contents.concatenation",
    "cypress.node_commands",
    "cypress.expiration",
    "contents.file_cache_commands",
    "contents.file_commands",
    "cypress.placing_commands",
    "queues.producer_commands",
    "queues.commands",
    "tables.row_commands",
    "select.commands",
    "contents.table_commands",
    "system_commands",
    "tables.system_tables",
    "tables.commands",
    "transactions.commands",
)
_DIRECTORIES = (
    "//home",
    "//sys",
    "//tmp",
    "//sys/accounts",
    "//sys/groups",
    "//sys/queue_agents",
    "//sys/tablet_cells",
    "//sys/users",
    TRANSACTIONS,
)
_log = logging.getLogger("headrace")
Part = TypeVar("Part")


class Cluster:
    """One cluster; the only one of its directory, in this process or any other.

    Args:
        root: the directory of the embedded store, which is made if it is not there.
        name: what ``//sys/@cluster_name`` says, and paths with a cluster.

    Raises:
        OptionError: another process serves the directory.
    """

    def __init__(self, root: Path, *, name: str = DEFAULT_NAME) -> None:
        self.name = name
        root.mkdir(parents=True, exist_ok=True)
        self._lock = _lock(root)
        for module in _MODULES:
            importlib.import_module(f"headrace.endpoints.ytsaurus.{module}")
        self.store = EmbeddedStore(root, create=True)
        self.database = self.store.database
        tree = Tree(self.database)
        locks = Locks(tree)
        self.transactions = Transactions(tree, locks)
        upgrade(tree, self.transactions)
        self.cypress = Cypress(tree, locks, self.transactions)
        self.contents = Contents(tree, self.store.files())
        self.mutations = Mutations(self.database)
        self.transactions.on_gone = lambda chain, node: self.cypress.gone(self.context(), chain, node)
        self._parts: dict[Any, Any] = {}
        self._stopping = threading.Event()
        self._make_system_nodes()
        for start in STARTING:
            start(self)
        self._worker = threading.Thread(target=self._work, name="headrace-ytsaurus-background", daemon=True)
        self._worker.start()

    def context(self) -> Context:
        """Return the context of what the cluster does by itself."""
        return Context(self, SYSTEM_USER, time.time_ns() // 1000, YSON, YSON)

    def part(self, kind: Callable[[Cluster], Part]) -> Part:
        """Return the only object of a class, see `Context.part`."""
        if kind not in self._parts:
            # No lock is held meanwhile: it may wait for the store's writer, which may come here as well.
            self._parts.setdefault(kind, kind(self))
        return cast(Part, self._parts[kind])

    def close(self) -> None:
        """End the work in the background and close the store; no request may be running."""
        self._stopping.set()
        self._worker.join()
        self.store.close()
        os.close(self._lock)

    def _make_system_nodes(self) -> None:
        context = self.context()
        with self.database.write():
            self.cypress.make_root(context.now)
            for path in _DIRECTORIES:
                parsed = parse_path(path)
                node = self.cypress.find(parsed.parent)
                child = self.cypress.child(node, parsed.name)
                kind = TRANSACTION_MAP if path == TRANSACTIONS else MAP_NODE
                child = child or self.cypress.make(context, node, parsed.name, kind, {})
                self.cypress.protected.add(child.id)
            cells = self.cypress.find("//sys/tablet_cells")
            if not self.cypress.count(cells):
                self.cypress.make(context, cells, None, TABLET_CELL, {})
            self.cypress.keep_attribute(context, self.cypress.find("//sys"), "cluster_name", self.name)

    def _work(self) -> None:
        due = {each: time.monotonic() + each.seconds for each in PERIODIC}
        while not self._stopping.wait(_TICK_SECONDS):
            for each, moment in due.items():
                if moment > time.monotonic():
                    continue
                try:
                    each.run(self)
                except Exception as error:
                    # What fails is tried again; a thread that died would stop everything else, too.
                    _log.error("work in the background failed", exc_info=error, extra={"facts": {"work": each.name}})
                due[each] = time.monotonic() + each.seconds


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


@periodic(0.2)
def abort_expired_transactions(cluster: Cluster) -> None:
    """Abort master transactions that were not pinged in time."""
    cluster.transactions.abort_expired()


@periodic(30.0)
def sweep(cluster: Cluster) -> None:
    """Remove what nobody uses any more: parts of files, and answers to old mutations."""
    now = time.time_ns() // 1000
    cluster.contents.sweep(now)
    cluster.mutations.forget_old(now)


@periodic(5.0)
def release_memory(cluster: Cluster) -> None:
    """Give memory back to the system that large requests have left behind."""
    pa.default_memory_pool().release_unused()
