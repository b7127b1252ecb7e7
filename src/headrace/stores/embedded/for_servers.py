"""The contract of the embedded store with servers that keep their data in it, such as the endpoints.

A server has one store for itself, and does several changes of tables, queues and tunnels in one transaction of its
database. It imports the parts of the store from here, and uses nothing else of it: `tests/unit/test_layers.py` has the
functions.
"""

from __future__ import annotations

from headrace.stores.embedded import catalog, chunks
from headrace.stores.embedded.catalog import ObjectKind
from headrace.stores.embedded.connection import ROW_INDEX_BITS, Database, stamp
from headrace.stores.embedded.queues import stored_queues
from headrace.stores.embedded.queues.layout import SYSTEM_COLUMN_WEIGHT, Layout
from headrace.stores.embedded.queues.queue import EmbeddedQueue
from headrace.stores.embedded.store import EmbeddedStore
from headrace.stores.embedded.tables import stored_tables
from headrace.stores.embedded.tables.table import EmbeddedTable
from headrace.stores.embedded.tables.writing import Prepared
from headrace.stores.embedded.tunnels import stored_tunnels
from headrace.stores.embedded.tunnels.positions import key_of, key_position, row_of, row_position
from headrace.stores.embedded.tunnels.tunnel import EmbeddedTunnel

__all__ = [
    "ROW_INDEX_BITS",
    "SYSTEM_COLUMN_WEIGHT",
    "Database",
    "EmbeddedQueue",
    "EmbeddedStore",
    "EmbeddedTable",
    "EmbeddedTunnel",
    "Layout",
    "ObjectKind",
    "Prepared",
    "catalog",
    "chunks",
    "key_of",
    "key_position",
    "row_of",
    "row_position",
    "stamp",
    "stored_queues",
    "stored_tables",
    "stored_tunnels",
]
