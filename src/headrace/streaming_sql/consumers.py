"""The statements about consumers, and ``SHOW PRODUCERS``."""

from __future__ import annotations

from collections.abc import Mapping

from headrace.errors import AlreadyExistsError, NotFoundError
from headrace.inspect.uses import check_unused, uses_of_consumer
from headrace.model.tunnels.lag import Lag
from headrace.options.names import check_names
from headrace.options.secrets import resolved
from headrace.ports import Consumer
from headrace.streaming_sql.catalog import Catalog
from headrace.streaming_sql.language import statements as st
from headrace.streaming_sql.locations import QueueLookup, store_at
from headrace.streaming_sql.results import Result


class Consumers:
    """The consumers in the workspace's stores."""

    def __init__(self, catalog: Catalog) -> None:
        self._lookup = QueueLookup(catalog)

    def create(self, statement: st.CreateConsumer) -> Result:
        """Create a consumer in the store of the options, or in the only store of the workspace."""
        name = str(statement.name)
        url = _store_option(statement.options, f"consumer {name}")
        location = self._lookup.only_store() if url is None else store_at(url)
        with location.open_store() as store:
            exists = name in store.consumers()
            if exists and not statement.if_not_exists:
                raise AlreadyExistsError(
                    "a consumer of this name exists", received=name, remedy="use CREATE CONSUMER IF NOT EXISTS"
                )
            store.create_consumer(name, exist_ok=statement.if_not_exists)
        return Result(message=f"consumer {name} {'exists already' if exists else 'created'}")

    def register(self, statement: st.RegisterConsumer) -> Result:
        """Register a consumer for a queue of the same store, or change whether it is vital."""
        with self._lookup.queue(statement.queue) as (store, queue):
            store.register_consumer(queue.name, str(statement.name), vital=statement.vital)
        how = "as vital " if statement.vital else ""
        return Result(message=f"consumer {statement.name} registered {how}for queue {statement.queue}")

    def unregister(self, statement: st.UnregisterConsumer) -> Result:
        """Remove a registration. The offsets stay."""
        with self._lookup.queue(statement.queue) as (store, queue):
            store.unregister_consumer(queue.name, str(statement.name))
        return Result(message=f"consumer {statement.name} is no longer registered for queue {statement.queue}")

    def show(self, statement: st.ShowConsumers) -> Result:
        """Return one row for each registration. Without a queue, also one for each consumer without registrations."""
        columns = ("name", "queue", "vital", "unread_rows", "lag_seconds")
        rows: list[tuple[object, ...]] = []
        if statement.queue is not None:
            with self._lookup.queue(statement.queue) as (store, queue):
                for name in store.consumers():
                    rows += _registrations(store.consumer(name), queue.name)
            return Result(columns, tuple(rows))
        for location in self._lookup.stores():
            with location.open_store() as store:
                for name in store.consumers():
                    rows += _registrations(store.consumer(name)) or [(name, None, None, None, None)]
        return Result(columns, tuple(rows))

    def describe(self, statement: st.DescribeConsumer) -> Result:
        """Return one row for each partition of the consumer's queues, or of one queue."""
        columns = (
            "consumer", "queue", "partition", "offset", "lower", "upper", "disposition", "unread_rows", "lag_seconds",
        )  # fmt: skip
        with self._lookup.consumer(statement.name, statement.queue) as (_, consumer):
            if statement.queue is None:
                queues = [registration.queue for registration in consumer.registrations()]
            else:
                with self._lookup.queue(statement.queue) as (_, queue):
                    queues = [queue.name]
            rows = tuple(
                (
                    consumer.name, queue_name, at.partition, at.offset, at.bounds.lower, at.bounds.upper,
                    str(at.disposition), at.unread_rows, at.lag_seconds,
                )
                for queue_name in queues
                for at in consumer.status(queue_name)
            )  # fmt: skip
        return Result(columns, rows)

    def drop(self, statement: st.DropConsumer) -> Result:
        """Remove a consumer with its offsets, and with ``CASCADE`` its registrations.

        Raises:
            InUseError: it is registered for a queue, and the statement has no ``CASCADE``.
        """
        try:
            with self._lookup.consumer(statement.name) as (store, consumer):
                if not statement.cascade:
                    name = consumer.name
                    check_unused(f"consumer {name}", lambda: uses_of_consumer(store, name), by="CASCADE")
                store.drop_consumer(consumer.name)
        except NotFoundError:
            if not statement.if_exists:
                raise
            return Result(message=f"consumer {statement.name} does not exist")
        return Result(message=f"consumer {statement.name} dropped")

    def show_producers(self, statement: st.ShowProducers) -> Result:
        """Return one row for each session of a producer, and one for each producer without sessions."""
        columns = ("name", "queue", "session", "epoch", "sequence_number")
        rows: list[tuple[object, ...]] = []
        for location in self._lookup.stores():
            with location.open_store() as store:
                for name in store.producers():
                    sessions = store.producer(name).sessions()
                    rows += [
                        (name, session.queue, session.session, session.epoch, session.sequence_number)
                        for session in sessions
                    ] or [(name, None, None, None, None)]
        return Result(columns, tuple(rows))


def _registrations(consumer: Consumer, queue: str | None = None) -> list[tuple[object, ...]]:
    rows: list[tuple[object, ...]] = []
    for registration in consumer.registrations():
        if queue in (None, registration.queue):
            lag = Lag.of_consumer(consumer.status(registration.queue))
            rows.append((consumer.name, registration.queue, registration.vital, lag.rows, lag.seconds))
    return rows


def _store_option(options: Mapping[str, str], where: str) -> str | None:
    """Return the option ``store``, the only valid one; None if it is missing.

    Raises:
        OptionError: another option is set.
    """
    check_names(where, options, ("store",), any_case=True)
    return next(iter(resolved(options, where).values()), None)
