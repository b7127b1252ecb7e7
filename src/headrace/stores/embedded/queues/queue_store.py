"""The queues, consumers and producers of an embedded store."""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any

import pyarrow as pa

from headrace.errors import SchemaError
from headrace.ports import Consumer, Producer, Queue, Registration, Store
from headrace.queues.columns import QueueSchema
from headrace.queues.validation import changed_options
from headrace.queues.values import QueueOptions
from headrace.stores.embedded import catalog
from headrace.stores.embedded.catalog import Kind
from headrace.stores.embedded.connection import Database
from headrace.stores.embedded.queues import consumers, stored_queues
from headrace.stores.embedded.queues.consumers import EmbeddedConsumer
from headrace.stores.embedded.queues.producers import EmbeddedProducer
from headrace.stores.embedded.queues.queue import EmbeddedQueue


class QueueStore(Store):
    """What a store can do with queues, on one SQLite database."""

    _database: Database

    # -- queues -------------------------------------------------------------------------------------

    def create_queue(
        self,
        name: str,
        columns: Mapping[str, str | pa.DataType] | pa.Schema,
        *,
        partitions: int = 1,
        exist_ok: bool = False,
        **options: Any,
    ) -> Queue:
        catalog.check_name(name, "queue")
        schema = QueueSchema.of(columns)
        settings = changed_options(QueueOptions(), options)
        with self._database.write() as connection:
            taken = catalog.is_taken(connection, name, "queue", exist_ok=exist_ok)
            if not taken:
                stored_queues.create(connection, name, schema, settings, partitions)
        queue = EmbeddedQueue(self._database, name)
        if taken and queue.schema != schema:
            raise SchemaError(
                f"queue {name!r} is there with other columns", received=_shown(schema), valid=_shown(queue.schema)
            )
        return queue

    def queue(self, name: str) -> Queue:
        self._find(name, "queue")
        return EmbeddedQueue(self._database, name)

    def queues(self) -> list[str]:
        return self._names("queue")

    def drop_queue(self, name: str, *, missing_ok: bool = False) -> None:
        with self._database.write() as connection:
            queue_id = catalog.find_to_drop(connection, name, "queue", missing_ok=missing_ok)
            if queue_id is not None:
                stored_queues.drop(connection, queue_id)

    # -- consumers ----------------------------------------------------------------------------------

    def create_consumer(self, name: str, *, exist_ok: bool = False) -> Consumer:
        self._create_named(name, "consumer", exist_ok)
        return EmbeddedConsumer(self._database, name)

    def consumer(self, name: str) -> Consumer:
        self._find(name, "consumer")
        return EmbeddedConsumer(self._database, name)

    def consumers(self) -> list[str]:
        return self._names("consumer")

    def drop_consumer(self, name: str, *, missing_ok: bool = False) -> None:
        self._drop_named(name, "consumer", missing_ok, ("registration", "consumer_offset"))

    def register_consumer(self, queue: str, consumer: str, *, vital: bool = False) -> Registration:
        with self._database.write() as connection:
            return consumers.register(connection, queue, consumer, vital=vital)

    def unregister_consumer(self, queue: str, consumer: str) -> None:
        with self._database.write() as connection:
            consumers.unregister(connection, queue, consumer)

    def registrations(self, queue: str | None = None, consumer: str | None = None) -> list[Registration]:
        with self._database.read() as connection:
            return consumers.registrations(connection, queue=queue, consumer=consumer)

    # -- producers ----------------------------------------------------------------------------------

    def create_producer(self, name: str, *, exist_ok: bool = False) -> Producer:
        self._create_named(name, "producer", exist_ok)
        return EmbeddedProducer(self._database, name)

    def producer(self, name: str) -> Producer:
        self._find(name, "producer")
        return EmbeddedProducer(self._database, name)

    def producers(self) -> list[str]:
        return self._names("producer")

    def drop_producer(self, name: str, *, missing_ok: bool = False) -> None:
        self._drop_named(name, "producer", missing_ok, ("producer_session",))

    # -- names --------------------------------------------------------------------------------------

    def _names(self, kind: Kind) -> list[str]:
        with self._database.read() as connection:
            return catalog.names(connection, kind)

    def _find(self, name: str, kind: Kind) -> int:
        with self._database.read() as connection:
            return catalog.find(connection, name, kind)

    def _create_named(self, name: str, kind: Kind, exist_ok: bool) -> None:
        """Create an object that is nothing but its name."""
        catalog.check_name(name, kind)
        with self._database.write() as connection:
            if not catalog.is_taken(connection, name, kind, exist_ok=exist_ok):
                connection.execute(
                    "INSERT INTO object (name, kind, options, schema_version) VALUES (?, ?, '{}', 0)", (name, kind)
                )

    def _drop_named(self, name: str, kind: Kind, missing_ok: bool, tables: tuple[str, ...]) -> None:
        """Remove an object that is nothing but its name, with its rows in some tables."""
        with self._database.write() as connection:
            object_id = catalog.find_to_drop(connection, name, kind, missing_ok=missing_ok)
            if object_id is not None:
                for table in tables:
                    connection.execute(f"DELETE FROM {table} WHERE {kind} = ?", (object_id,))
                connection.execute("DELETE FROM object WHERE id = ?", (object_id,))


def _shown(schema: QueueSchema) -> str:
    return ", ".join(
        f"{column.name} {column.type}{'' if column.nullable else ' not null'}" for column in schema.columns
    )
