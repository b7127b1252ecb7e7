"""`Source`: one use of a format, with its options; and `Read`: the tunnel, queues or table that it reads.

Both know nothing of Spark. Spark pickles them to its workers: they hold options, and no connections.
"""

from __future__ import annotations

from abc import ABC, abstractmethod
from collections.abc import Callable, Collection, Iterator, Mapping, Sequence
from contextlib import suppress
from typing import Any, ClassVar

import pyarrow as pa

from headrace.batches.feeds.channel_reading import ChannelTask, read_channel
from headrace.batches.feeds.feed import Feed
from headrace.batches.feeds.limits import Limits
from headrace.batches.feeds.queue_columns import PARTITION, ROW_INDEX, AddressColumns, QueueShape, common_schema
from headrace.batches.feeds.queue_feed import QueueFeed, check_registered
from headrace.batches.feeds.queue_positions import check_positions, resolve_position
from headrace.batches.feeds.queue_reading import NARROWING, QueueRange, narrowed, plan_tasks, read_rows, rows_left
from headrace.batches.feeds.tunnel_feed import TunnelFeed
from headrace.errors import OptionError, SchemaError, UnsupportedError
from headrace.formats.format import Format
from headrace.formats.location import Location, find_queue
from headrace.model.tables.change_columns import Shape, marked, source_mark
from headrace.model.tables.changes import RowChange
from headrace.model.tables.conditions import KeyRange, Predicate
from headrace.model.tables.schema import TableSchema
from headrace.model.tables.several_tables import TunnelMark, marked_tables
from headrace.model.tunnels.values import Start, StartKind
from headrace.ports import Consumer, Queue, Store, Table, Tunnel
from headrace.rows.conditions import MAX_VALUES
from headrace.rows.to_reader import as_type
from headrace.support.cached import cached_property

ROWS_PER_SPLIT = 500_000
BYTES_PER_SPLIT = 100 << 20
MOST_SPLITS = 1000
_BATCH_OPTIONS = ("maxBytesPerTrigger", "minRowsPerTrigger", "maxTriggerDelay", "retainBatches")


class Read(ABC):
    """A read of one kind.

    Args:
        source: the use of the format, with the options.
    """

    def __init__(self, source: Source) -> None:
        self.source = source

    @abstractmethod
    def schema(self, store: Store) -> pa.Schema:
        """Return the columns of a read without a schema of the user's."""

    @abstractmethod
    def rows(
        self, store: Store, task: Any, columns: pa.Schema, predicates: Sequence[Predicate] = ()
    ) -> Iterator[pa.RecordBatch]:
        """Yield the rows of a task, in these columns.

        Args:
            predicates: the conditions with which the tasks of a batch were planned.
        """

    def check_numbers(
        self, rows: Iterator[pa.RecordBatch], store: Store, numbers: Mapping[str, Mapping[str, int]]
    ) -> Iterator[pa.RecordBatch]:
        """Yield rows of `rows`; then raise `SchemaError` if columns have other numbers than when a query started.

        Args:
            numbers: the numbers of columns then, by the names of the tables of a tunnel, or under an empty name.
        """
        return rows

    def refuse_truncations(
        self, rows: Iterator[pa.RecordBatch], tables: Collection[str] | None
    ) -> Iterator[pa.RecordBatch]:
        """Yield rows of `rows` for a reader that does not follow a TRUNCATE, which the options do not ask for.

        Args:
            tables: the tables whose TRUNCATE the reader does not follow; None for all.

        Raises:
            DataLossError: a row stands for one.
        """
        return rows


class StreamRead(Read):
    """A read of batches, without end."""

    @abstractmethod
    def feed(self, store: Store) -> Feed[Any, Any]:
        """Return the batches."""


class BatchRead(Read):
    """A read of all rows, once."""

    @abstractmethod
    def evaluates(self, store: Store) -> Callable[[Predicate], bool]:
        """Return a function that returns whether the read applies a condition itself."""

    @abstractmethod
    def tasks(self, store: Store, columns: pa.Schema, predicates: Sequence[Predicate]) -> Sequence[Any]:
        """Return the tasks.

        Args:
            columns: the columns of the rows.
            predicates: conditions that `evaluates` accepts.

        Raises:
            SchemaError: a column does not exist.
        """


class TunnelRead(StreamRead):
    """A read of a tunnel's changes as a stream. Formats say which columns the rows have."""

    @abstractmethod
    def shape(self, tunnel: Tunnel, wanted: pa.Schema | None) -> Shape:
        """Return the rows of the stream.

        Args:
            wanted: the columns of the rows, in order; None for all.
        """

    def open(self, store: Store) -> Tunnel:
        """Return the tunnel that the options name; raise `OptionError` if they name none."""
        source = self.source
        name = source.settings.need(str(source.format.tunnel_option), " for a stream")
        return store.tunnel(name, source.location.table, source.location.columns)

    def open_checked(self, store: Store) -> Tunnel:
        """Return the tunnel, after checking that its rows are those that the options ask for.

        Raises:
            OptionError: the tunnel or its table does not have them.
            UnsupportedError: the store does not have them.
        """
        return self.open(store)

    def check_columns(self, tunnel: Tunnel, task: ChannelTask, wanted: pa.Schema) -> None:
        """Raise `SchemaError` if the table no longer has the columns of a running query, with what has changed."""

    def check_numbers(
        self, rows: Iterator[pa.RecordBatch], store: Store, numbers: Mapping[str, Mapping[str, int]]
    ) -> Iterator[pa.RecordBatch]:
        yield from rows
        # Behind the rows, so that none of them was read after a change of the columns.
        for name, known in numbers.items():
            table = store.table(name) if name else self.open(store).table
            now = table.column_numbers() or {}
            others = [column for column, number in known.items() if now.get(column) != number]
            if others:
                raise SchemaError(
                    f"columns of table {table.name!r} were dropped or renamed, and others may have their names",
                    received=", ".join(others),
                    remedy="start the query again, with a new text if it names columns that do not exist; if a column "
                    "is another one now, with replace, in SQL CREATE OR REPLACE STREAM",
                )

    def start(self) -> Start:
        """Return where a new query starts.

        Raises:
            OptionError: the option has row indexes.
        """
        start = self.source.settings.get("startingPosition")
        if not isinstance(start, Start):
            raise OptionError(
                "option startingPosition has row indexes, which a tunnel does not have",
                valid="committed, earliest, latest or a timestamp",
            )
        return start

    def schema(self, store: Store) -> pa.Schema:
        tunnel = self.open_checked(store)
        schema = self.shape(tunnel, None).schema
        if tunnel.tables:
            tables = {name: store.table(name) for name in tunnel.tables}
            marks = {name: source_mark(store.id, table.identity() or name) for name, table in tables.items()}
            numbers = {name: table.column_numbers() or {} for name, table in tables.items()}
            return marked_tables(schema, marks, numbers, *self.followed(store, tunnel))
        table = tunnel.table
        mark = source_mark(store.id, table.identity() or table.name)
        return marked(schema, table.schema.primary_key, mark, table.column_numbers() or {})

    def followed(self, store: Store, tunnel: Tunnel) -> tuple[TunnelMark | None, str | None]:
        """Return a tunnel of several tables that queries can follow, and the table that the options name."""
        return None, None

    def feed(self, store: Store) -> TunnelFeed:
        return TunnelFeed(
            self.open_checked(store),
            store=store.id,
            start=self.start(),
            limits=self.source.limits(),
            retain_batches=self.source.settings.get("retainBatches"),
        )

    def rows(
        self, store: Store, task: ChannelTask, columns: pa.Schema, predicates: Sequence[Predicate] = ()
    ) -> Iterator[pa.RecordBatch]:
        tunnel = self.open(store)
        try:
            shape = self.shape(tunnel, columns)
        except SchemaError:
            self.check_columns(tunnel, task, columns)
            raise
        if shape.schema.types != columns.types:
            self.check_columns(tunnel, task, columns)
        fail_on_data_loss = self.source.settings.get("failOnDataLoss")
        for changes in read_channel(tunnel, task.batch, task.plan, fail_on_data_loss=fail_on_data_loss):
            yield shape.rows(changes)


class QueueRead(StreamRead, BatchRead):
    """A read of queues with the same columns, as a stream or a batch.

    Args:
        names: the names of the queues.
    """

    def __init__(self, source: Source, names: tuple[str, ...]) -> None:
        super().__init__(source)
        self.names = names

    def address_columns(self) -> AddressColumns:
        """Return the columns that the format adds to those of the queues."""
        return AddressColumns({}, {})

    def has_json_composites(self) -> bool:
        """Return whether composite columns are read as binary columns that hold JSON."""
        return False

    def open(self, store: Store) -> list[Queue]:
        return [store.queue(name) for name in self.names]

    def open_consumer(self, store: Store) -> Consumer | None:
        """Return the consumer that the options name; None if they name none."""
        name = self.source.consumer_name()
        return None if name is None else store.consumer(name)

    def shape(self, queues: Sequence[Queue], wanted: pa.Schema | None) -> QueueShape:
        """Return the rows of the read; ``wanted`` are their columns, None for all."""
        return QueueShape(
            common_schema(queues).arrow, self.address_columns(), opaque=self.has_json_composites(), wanted=wanted
        )

    def schema(self, store: Store) -> pa.Schema:
        return self.shape(self.open(store), None).schema

    def feed(self, store: Store) -> QueueFeed:
        settings = self.source.settings
        return QueueFeed(
            store,
            self.open(store),
            self.open_consumer(store),
            start=settings.get("startingPosition"),
            limits=self.source.limits(),
            fail_on_data_loss=settings.get("failOnDataLoss"),
            min_tasks=settings.get("minPartitions"),
        )

    def evaluates(self, store: Store) -> Callable[[Predicate], bool]:
        address = self.address_columns()
        names = address.of(PARTITION) | address.of(ROW_INDEX)
        return lambda predicate: predicate.column in names and predicate.operator in NARROWING

    def tasks(
        self, store: Store, columns: pa.Schema, predicates: Sequence[Predicate]
    ) -> Sequence[tuple[QueueRange, ...]]:
        """Return the tasks that read the rows between two positions; see `BatchRead.tasks`."""
        settings, queues, address = self.source.settings, self.open(store), self.address_columns()
        self.shape(queues, columns)
        for position in ("startingPosition", "endingPosition"):
            check_positions(settings.get(position), self.names)
        consumer = self.open_consumer(store)
        if consumer is not None:
            check_registered(consumer, self.names)
        ranges = [each for queue in queues for each in self._ranges(queue, consumer)]
        for predicate in predicates:
            of_partition = predicate.column in address.of(PARTITION)
            ranges = [narrowed(each, predicate, of_partition=of_partition) for each in ranges]
        count = settings.get("splits") or 1 + sum(each.rows for each in ranges) // ROWS_PER_SPLIT
        return plan_tasks(ranges, None if count == 1 else count)

    def _ranges(self, queue: Queue, consumer: Consumer | None) -> Iterator[QueueRange]:
        """Yield the existing rows of each partition between the two positions of a batch."""
        settings = self.source.settings
        start = settings.get("startingPosition") if settings.is_set("startingPosition") else Start(StartKind.EARLIEST)
        bounds = queue.bounds()
        first = resolve_position(start, queue, bounds, consumer)
        end = resolve_position(settings.get("endingPosition"), queue, bounds, consumer)
        for number in bounds:
            asked = QueueRange(queue.name, number, first[number], max(first[number], end[number]))
            yield rows_left(asked, bounds[number], fail_on_data_loss=settings.get("failOnDataLoss"))

    def rows(
        self, store: Store, task: Sequence[QueueRange], columns: pa.Schema, predicates: Sequence[Predicate] = ()
    ) -> Iterator[pa.RecordBatch]:
        fail_on_data_loss = self.source.settings.get("failOnDataLoss")
        queues = {name: store.queue(name) for name in dict.fromkeys(each.queue for each in task)}
        shape = self.shape(list(queues.values()), columns)
        for each in task:
            for page in read_rows(queues[each.queue], each, fail_on_data_loss=fail_on_data_loss):
                yield shape.rows(each.queue, page)


class TableRead(BatchRead):
    """A read of a table's rows. Each task reads a snapshot of one key range; those of several tasks may differ."""

    def open(self, store: Store) -> Table:
        """Return the table that the options name; raise `NotFoundError` if there is none."""
        return self.source.location.open_table(store)

    def columns(self, table: Table) -> pa.Schema:
        """Return the columns of a read of the table."""
        return nullable(table.schema.arrow)

    def splits(self, table: Table) -> list[KeyRange]:
        """Return key ranges of the table, one for each task; by the number of rows if the store knows it."""
        count = self.source.settings.get("splits")
        if count is not None:
            return table.splits(count)
        return splits(table)

    def schema(self, store: Store) -> pa.Schema:
        return self.columns(self.open(store))

    def evaluates(self, store: Store) -> Callable[[Predicate], bool]:
        operators, schema = store.capabilities.predicates, self.open(store).schema
        return lambda predicate: predicate.operator in operators and _can_evaluate(schema, predicate)

    def tasks(self, store: Store, columns: pa.Schema, predicates: Sequence[Predicate]) -> Sequence[KeyRange]:
        table = self.open(store)
        for name in columns.names:
            if name not in table.schema and not self.source.format.missing_columns_are_null:
                raise SchemaError("no such column in the table", received=repr(name), valid=table.schema.names)
        return self.splits(table)

    def rows(
        self, store: Store, task: KeyRange, columns: pa.Schema, predicates: Sequence[Predicate] = ()
    ) -> Iterator[pa.RecordBatch]:
        table = self.open(store)
        schema = table.schema
        stored = [name for name in columns.names if name in schema]
        for batch in table.scan(stored, predicates, keys=task):
            arrays = [
                as_type(batch.column(field.name), field)
                if field.name in schema
                else pa.nulls(batch.num_rows, field.type)
                for field in columns
            ]
            yield pa.RecordBatch.from_arrays(arrays, schema=columns)


class Source:
    """One use of a format, with its options: what it writes, and which `Read` it is.

    Attributes:
        format: the format.
        table_read: reads a table.
        tunnel_read: reads a tunnel; None if the format reads no tunnels.
        queue_read: reads queues; None if the format has no queues.

    Args:
        options: the options, with checked names. The environment's store, access key and token are added.

    Raises:
        OptionError: the text of an option is not valid.
    """

    format: ClassVar[Format]
    table_read: ClassVar[type[TableRead]] = TableRead
    tunnel_read: ClassVar[type[TunnelRead] | None] = None
    queue_read: ClassVar[type[QueueRead] | None] = None

    def __init__(self, options: Mapping[str, str]) -> None:
        self.options = self.format.with_environment(options)
        self.settings = self.format.settings(self.options).check()

    def __getstate__(self) -> dict[str, Any]:
        state: dict[str, Any] = {"options": self.options}
        # Without a name of the store, each use says so.
        with suppress(OptionError):
            state["location"] = self.location.absolute()
        return state

    def __setstate__(self, state: dict[str, Any]) -> None:
        self.__dict__.update(state)
        self.settings = self.format.settings(self.options)

    def queue_names(self) -> tuple[str, ...]:
        """Return the names that the options give as names of queues."""
        return ()

    def check_batch_read(self) -> None:
        """Raise `OptionError` if the options are not valid for a batch read."""

    def check_stream_read(self) -> None:
        """Raise `OptionError` if the options are not valid for a stream read."""
        if self.format.needs_consumer and self.format.consumer_option is not None:
            self.settings.need(self.format.consumer_option, " for a stream")

    @cached_property
    def location(self) -> Location:
        return self.format.find(self.settings)

    def open_store(self) -> Store:
        return self.location.open_store()

    def names_tunnel(self) -> bool:
        """Return whether the options name a tunnel."""
        return self._option(self.format.tunnel_option) is not None

    def consumer_name(self) -> str | None:
        """Return the name of the consumer; None if no option names one."""
        name: str | None = self._option(self.format.consumer_option)
        return name

    def row_change(self) -> RowChange:
        """Return how rows are written into a table."""
        change: RowChange = self.settings.get(self.format.row_change_option)
        return change

    def keeps_bad_rows(self) -> bool:
        """Return whether rows that a sink table refuses go into a table beside it."""
        return bool(self._option(self.format.bad_rows_option) == "table")

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

    def limits_in_words(self) -> str:
        """Return the options that the user has set and that divide a stream into batches."""
        names = (*self.format.channel_limit_options, self.format.batch_limit_option, *_BATCH_OPTIONS)
        return ", ".join(f"{name}={self.settings.get(name)}" for name in names if self.settings.is_set(name)) or "none"

    def schema(self) -> pa.Schema:
        """Return the columns of a read without a schema of the user's.

        Spark asks with the same call for streams and batches. Options that name a tunnel are for a stream.
        """
        with self.open_store() as store:
            read: Read = self._tunnel() if self.names_tunnel() else self.batch(store)
            return read.schema(store)

    def batch(self, store: Store) -> QueueRead | TableRead:
        """Return what a batch reads."""
        return self._queues(store) or self.table_read(self)

    def stream(self, store: Store) -> StreamRead:
        """Return what a stream reads; raise `UnsupportedError` if the format has no streams of tables."""
        return self._queues(store) or self._tunnel()

    def _queues(self, store: Store) -> QueueRead | None:
        """Return the read of the queues that the options name; None if they name a table or a tunnel."""
        if self.queue_read is None or self.names_tunnel():
            return None
        names, name = self.queue_names(), self.location.table
        # Only queues have consumers.
        if not names and name is not None and (self.consumer_name() is not None or find_queue(store, name)):
            names = (name,)
        return self.queue_read(self, names) if names else None

    def _tunnel(self) -> TunnelRead:
        if self.tunnel_read is None:
            raise UnsupportedError(
                f"format {self.format.name} reads queues as streams", remedy="read the tunnel with format headrace"
            )
        return self.tunnel_read(self)

    def _option(self, name: str | None) -> Any:
        """Return the value of an option that the format may not have; None if it is not set or empty."""
        return (self.settings.get(name) or None) if name is not None else None


def _can_evaluate(schema: TableSchema, predicate: Predicate) -> bool:
    """Return whether a store can evaluate a condition. Composite values cannot be compared."""
    if predicate.column not in schema:
        return False
    if predicate.operator == "in" and len(predicate.value) > MAX_VALUES:
        return False
    only_null = predicate.operator in ("is null", "is not null")
    return only_null or not pa.types.is_nested(schema.column(predicate.column).type)


def nullable(schema: pa.Schema) -> pa.Schema:
    """Return a schema with every field nullable, as all columns of a Spark data source are."""
    return pa.schema([pa.field(field.name, field.type) for field in schema])


def splits(table: Table, *, most: int = MOST_SPLITS, size: int = BYTES_PER_SPLIT) -> list[KeyRange]:
    """Return key ranges of a table, by the number of rows if the store knows it, and by bytes otherwise.

    Args:
        most: the most ranges.
        size: bytes of a range.
    """
    rows = table.describe().rows
    if rows is None:
        return table.splits(most, size=size)
    return table.splits(min(most, 1 + rows // ROWS_PER_SPLIT))
