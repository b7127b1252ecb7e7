"""`Source`: the store, table, tunnel or queues that one use of a format reads or writes. It knows nothing of Spark."""

from __future__ import annotations

from abc import ABC, abstractmethod
from collections.abc import Callable, Mapping, Sequence
from dataclasses import replace
from typing import TYPE_CHECKING, Any, ClassVar

from headrace.batches.feeds.limits import Limits
from headrace.errors import OptionError, UnsupportedError
from headrace.formats.format import Format
from headrace.formats.location import Location, find_queue
from headrace.model.tables.changes import RowChange
from headrace.model.tunnels.values import Start
from headrace.support.cached import cached_property

if TYPE_CHECKING:
    import pyarrow as pa

    from headrace.batches.feeds.queue_columns import AddressColumns, QueueShape
    from headrace.model.tables.change_columns import Shape
    from headrace.model.tables.conditions import KeyRange
    from headrace.ports import Consumer, Queue, Store, Table, Tunnel

ROWS_PER_SPLIT = 500_000
BYTES_PER_SPLIT = 100 << 20
MOST_SPLITS = 1000


class Source(ABC):
    """One use of a format, with its options. Readers and writers of all formats work on it.

    Spark pickles a source to its workers: it holds options, and no connections.

    Args:
        options: the options, with checked names. The environment's store, access key and token are added.

    Raises:
        OptionError: the text of an option is not valid.
    """

    format: ClassVar[Format]

    def __init__(self, options: Mapping[str, str]) -> None:
        self.options = self.format.with_environment(options)
        self.settings = self.format.settings(self.options).check()
        self._store_url: str | None = None

    def __getstate__(self) -> dict[str, Any]:
        from headrace.stores.registry import absolute

        try:
            store_url = absolute(self.location.store.url)
        except OptionError:
            # No option names the store: each use says so.
            store_url = None
        return {"options": self.options, "store_url": store_url}

    def __setstate__(self, state: dict[str, Any]) -> None:
        self.options = state["options"]
        # A worker has another working directory.
        self._store_url = state["store_url"]
        self.settings = self.format.settings(self.options)

    @abstractmethod
    def table_columns(self, table: Table) -> pa.Schema:
        """Return the columns of a batch read of a table, if the user gives no schema."""

    @abstractmethod
    def splits(self, table: Table) -> list[KeyRange]:
        """Return the key ranges that the tasks of a batch read of a table read."""

    def shape(self, tunnel: Tunnel, wanted: Sequence[str] | None) -> Shape:
        """Return the rows of a tunnel's stream.

        Args:
            wanted: the names of the columns of the rows, in order; None for all.
        """
        raise self._without_tunnels()

    def queue_names(self) -> tuple[str, ...]:
        """Return the names that the options give as names of queues."""
        return ()

    def address_columns(self) -> AddressColumns:
        """Return the additional columns of a queue's rows."""
        from headrace.batches.feeds.queue_columns import AddressColumns

        return AddressColumns({}, {})

    def has_json_composites(self) -> bool:
        """Return whether composite columns are read as binary columns that hold JSON."""
        return False

    def check_batch_read(self) -> None:  # noqa: B027
        """Raise `OptionError` if the options are not valid for a batch read."""

    def check_stream_read(self) -> None:
        """Raise `OptionError` if the options are not valid for a stream read."""
        if self.format.needs_consumer and self.format.consumer_option is not None:
            self.settings.need(self.format.consumer_option, " for a stream")

    @cached_property
    def location(self) -> Location:
        found = self.format.find(self.settings)
        if self._store_url is None:
            return found
        return replace(found, store=replace(found.store, url=self._store_url))

    def open_store(self) -> Store:
        return self.location.open_store()

    def open_table(self, store: Store) -> Table:
        """Return the table that the options name; raise `NotFoundError` if there is none."""
        return self.location.open_table(store)

    def open_tunnel(self, store: Store) -> Tunnel:
        return store.tunnel(self.tunnel_name(), self.location.table, self.location.columns)

    def open_checked_tunnel(self, store: Store) -> Tunnel:
        """Return the tunnel that the options name, after checking that its rows are what the options ask for.

        Raises:
            OptionError: the tunnel or its table does not have them.
            UnsupportedError: the store does not have them.
        """
        return self.open_tunnel(store)

    def open_sink(self, store: Store) -> Table | Queue:
        """Return the table or queue to write to; raise `NotFoundError` if there is none."""
        return self.location.open(store)

    def open_queues(self, store: Store) -> list[Queue]:
        """Return the queues to read; none if the options name a table or a tunnel."""
        if not self.format.has_queues:
            return []
        names, name = self.queue_names(), self.location.table
        if not names and name is not None and not self.names_tunnel():
            # Only queues have consumers.
            queue = store.queue(name) if self.consumer_name() is not None else find_queue(store, name)
            return [] if queue is None else [queue]
        return [store.queue(name) for name in names]

    def open_consumer(self, store: Store) -> Consumer | None:
        """Return the consumer that the options name; None if they name none."""
        name = self.consumer_name()
        return None if name is None else store.consumer(name)

    def names_tunnel(self) -> bool:
        """Return whether the options name a tunnel."""
        return self._option(self.format.tunnel_option) is not None

    def tunnel_name(self) -> str:
        """Return the tunnel's name or id.

        Raises:
            OptionError: no option names it.
            UnsupportedError: the format reads no tunnels.
        """
        if self.format.tunnel_option is None:
            raise self._without_tunnels()
        return self.settings.need(self.format.tunnel_option, " for a stream")

    def tunnel_start(self) -> Start:
        """Return where a new query starts to read the tunnel.

        Raises:
            OptionError: the option has row indexes.
        """
        start = self.settings.get("startingPosition")
        if not isinstance(start, Start):
            raise OptionError(
                "option startingPosition has row indexes, which a tunnel does not have",
                valid="committed, earliest, latest or a timestamp",
            )
        return start

    def consumer_name(self) -> str | None:
        """Return the name of the consumer; None if no option names one."""
        name: str | None = self._option(self.format.consumer_option)
        return name

    def row_change(self) -> RowChange:
        """Return how rows are written into a table."""
        change: RowChange = self.settings.get(self.format.row_change_option)
        return change

    def key_columns(self) -> tuple[str, ...] | None:
        """Return the columns whose values choose the partition of a sink queue; None if the store chooses."""
        columns: tuple[str, ...] | None = self._option(self.format.key_option)
        return columns

    def rows_per_write(self, spark_setting: Callable[[str], str | None]) -> int | None:
        """Return the maximum number of rows of one write to the store; None for no limit.

        Args:
            spark_setting: returns the text of a Spark setting; None if it is not set.

        Raises:
            OptionError: the option or the setting is not a positive whole number.
        """
        limit = self.format.rows_per_write
        return None if limit is None else limit.read(self.settings, spark_setting)

    def limits(self) -> Limits:
        """Return the limits of the batches of a stream read."""
        return Limits(
            rows_per_channel=self.settings.first(self.format.channel_limit_options),
            rows_per_batch=self.settings.get(self.format.batch_limit_option),
            bytes_per_batch=self.settings.get("maxBytesPerTrigger"),
            min_rows=self.settings.get("minRowsPerTrigger"),
            max_delay=self.settings.get("maxTriggerDelay"),
        )

    def schema(self) -> pa.Schema:
        """Return the columns of a read without a schema of the user's.

        Spark asks with the same call for streams and batches. Options that name a tunnel are for a stream.
        """
        with self.open_store() as store:
            queues = self.open_queues(store)
            if queues:
                return self.queue_shape(queues, None).schema
            if self.names_tunnel():
                from headrace.model.tables.change_columns import marked, source_mark

                tunnel = self.open_checked_tunnel(store)
                mark = source_mark(store.id, tunnel.table.identity() or tunnel.table.name)
                return marked(self.shape(tunnel, None).schema, tunnel.table.schema.primary_key, mark)
            return self.table_columns(self.open_table(store))

    def reads_queues(self) -> bool:
        """Return whether the options name queues."""
        if not self.format.has_queues:
            return False
        with self.open_store() as store:
            return bool(self.open_queues(store))

    def queue_shape(self, queues: Sequence[Queue], wanted: pa.Schema | None) -> QueueShape:
        """Return the rows of queues; ``wanted`` are the columns of the rows, None for all."""
        from headrace.batches.feeds.queue_columns import QueueShape, common_schema

        return QueueShape(
            common_schema(queues).arrow, self.address_columns(), opaque=self.has_json_composites(), wanted=wanted
        )

    def _option(self, name: str | None) -> Any:
        """Return the value of an option that the format may not have; None if it is not set or empty."""
        return (self.settings.get(name) or None) if name is not None else None

    def _without_tunnels(self) -> UnsupportedError:
        return UnsupportedError(
            f"format {self.format.name} reads queues as streams", remedy="read the tunnel with format headrace"
        )


def nullable(schema: pa.Schema) -> pa.Schema:
    """Return a schema with every field nullable, as all columns of a Spark data source are."""
    import pyarrow as pa

    return pa.schema([pa.field(field.name, field.type) for field in schema])


def splits(table: Table, count: int | None, *, most: int = MOST_SPLITS, size: int = BYTES_PER_SPLIT) -> list[KeyRange]:
    """Return key ranges of a table, one for each task of a batch read.

    Args:
        count: the number of ranges. None: by the number of rows if the store knows it, and by bytes otherwise.
        most: the most ranges if ``count`` is None.
        size: bytes of a range.
    """
    if count is not None:
        return table.splits(count)
    rows = table.describe().rows
    if rows is None:
        return table.splits(most, size=size)
    return table.splits(min(most, 1 + rows // ROWS_PER_SPLIT))
