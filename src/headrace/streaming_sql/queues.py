"""The statements about queues."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from typing import Any

from headrace.errors import AlreadyExistsError, NotFoundError, SqlError
from headrace.formats.location import find_queue
from headrace.formats.registry import format_named
from headrace.inspect.uses import check_unused, uses_of_queue
from headrace.options.kinds import boolean, duration, natural
from headrace.streaming_sql.catalog import Catalog, TableDefinition
from headrace.streaming_sql.format_options import OwnOption, check_definition, split_options
from headrace.streaming_sql.language import statements as st
from headrace.streaming_sql.locations import QueueLookup, location_of
from headrace.streaming_sql.providers import QUEUE_PROVIDERS
from headrace.streaming_sql.results import Result
from headrace.streaming_sql.tables import Tables
from headrace.support.instants import instant

# The arguments of `Store.create_queue`, by the names of options.
_OPTIONS: Mapping[str, OwnOption] = {
    "autoTrim": ("auto_trim", boolean),
    "retainedRows": ("retained_rows", natural),
    "retainedSeconds": ("retained_seconds", duration),
}


class Queues:
    """The queues in the workspace's stores, by their names in the catalog or in the store."""

    def __init__(self, catalog: Catalog, tables: Tables) -> None:
        self._catalog = catalog
        self._tables = tables
        self._lookup = QueueLookup(catalog)

    def create(self, statement: st.CreateQueue) -> Result:
        """Create a queue, its store if that does not exist, and its definition in the catalog."""
        name = str(statement.name)
        options, settings = _split_options(statement)
        definition = TableDefinition(name, statement.provider, options)
        check_definition(definition.provider, definition.options, place=f"queue {name}")
        if self._catalog.find_scan(name) is not None:
            raise SqlError(f"{name} is the name of a scan", remedy=f"DROP SCAN {name} first")
        is_new = self._catalog.add_table(definition)
        try:
            message = self._create(statement, definition, settings)
        except Exception:
            if is_new:
                self._catalog.drop_table(name)
            raise
        return Result(message=message)

    def _create(self, statement: st.CreateQueue, definition: TableDefinition, settings: dict[str, Any]) -> str:
        location = location_of(definition)
        queue = str(location.queue or location.table)
        with location.open_store(create=True) as store:
            exists = find_queue(store, queue) is not None
            if exists and not statement.if_not_exists:
                raise AlreadyExistsError(
                    "a queue of this name exists",
                    received=queue,
                    remedy="use CREATE QUEUE IF NOT EXISTS, or define a name for it with CREATE TABLE … USING",
                )
            store.create_queue(
                queue,
                statement.columns,
                partitions=statement.partitions or 1,
                exist_ok=statement.if_not_exists,
                **settings,
            )
        return f"queue {definition.name} {'exists already' if exists else 'created'}"

    def show(self, statement: st.ShowQueues) -> Result:
        """Return one row for each queue of the workspace's stores. ``name`` is its name in the workspace."""
        columns = ("name", "queue", "partitions", "rows", "bytes", "auto_trim", "consumers")
        rows: list[tuple[object, ...]] = []
        for location in self._lookup.stores():
            with location.open_store() as store:
                names = self._names(store.id)
                for queue in store.queues():
                    described = store.queue(queue).describe()
                    bounds = [partition.bounds for partition in described.partitions]
                    rows.append((
                        names.get(queue), queue, len(bounds), sum(each.rows for each in bounds),
                        sum(each.bytes for each in bounds), described.options.auto_trim,
                        ", ".join(registration.consumer for registration in described.registrations),
                    ))  # fmt: skip
        return Result(columns, tuple(rows))

    def _names(self, store_id: str) -> dict[str, str]:
        """Return the names of the workspace for the queues of a store, by their names in the store."""
        names: dict[str, str] = {}
        for table in self._catalog.tables():
            if table.provider.lower() in QUEUE_PROVIDERS:
                location = location_of(table)
                with location.open_store() as store:
                    if store.id == store_id:
                        names[str(location.queue or location.table)] = table.name
        return names

    def describe(self, statement: st.DescribeQueue) -> Result:
        """Return one row for each partition of a queue."""
        columns = ("queue", "partition", "lower", "upper", "rows", "bytes", "weight", "last_commit")
        with self._lookup.queue(statement.name) as (_, queue):
            described = queue.describe()
        rows = tuple(
            (
                described.name, partition.number, partition.bounds.lower, partition.bounds.upper, partition.bounds.rows,
                partition.bounds.bytes, partition.weight, instant(partition.last_commit),
            )
            for partition in described.partitions
        )  # fmt: skip
        return Result(columns, rows)

    def drop(self, statement: st.DropQueue, users: Sequence[str]) -> Result:
        """Remove a queue with its rows, and its definition from the workspace.

        Args:
            users: the scans and streams that use the queue.

        Raises:
            InUseError: there are users or registered consumers, and the statement has no ``CASCADE``.
        """
        try:
            with self._lookup.queue(statement.name) as (store, queue):
                if not statement.cascade:
                    name = queue.name
                    check_unused(f"queue {name}", lambda: [*users], lambda: uses_of_queue(store, name), by="CASCADE")
                store.drop_queue(queue.name)
            message = f"queue {queue.name} dropped with its rows"
        except NotFoundError:
            if not statement.if_exists:
                raise
            message = f"queue {statement.name} does not exist"
        self._tables.drop(str(statement.name))
        return Result(message=message)


def _split_options(statement: st.CreateQueue) -> tuple[dict[str, str], dict[str, Any]]:
    """Return the options of the format, including the queue's name, and the arguments of `Store.create_queue`."""
    of_format, settings = split_options(f"queue {statement.name}", statement.provider, statement.options, _OPTIONS)
    name_option = format_named(statement.provider).queue_option
    if name_option is not None and name_option not in (name.lower() for name in of_format):
        of_format[name_option] = str(statement.name)
    return of_format, settings
