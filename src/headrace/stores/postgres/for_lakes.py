"""The contract of PostgreSQL databases with lake tables whose catalog is in one.

Such a store reads and writes its catalog in transactions of the database's store, and publishes with its publisher. It
imports the parts of the store from here, and uses nothing else of it.
"""

from __future__ import annotations

from headrace.stores.postgres.connection import Bulk, PostgresConnection
from headrace.stores.postgres.opening import open_store
from headrace.stores.postgres.publication.publisher import PostgresPublisher
from headrace.stores.postgres.session import Server
from headrace.stores.postgres.store import PostgresStore
from headrace.stores.postgres.tables.statements import STAGE, STAGED, Given
from headrace.stores.postgres.tables.writing import stage

__all__ = [
    "STAGE",
    "STAGED",
    "Bulk",
    "Given",
    "PostgresConnection",
    "PostgresPublisher",
    "PostgresStore",
    "Server",
    "open_store",
    "stage",
]
