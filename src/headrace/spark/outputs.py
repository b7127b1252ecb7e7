"""What Spark writes into: tables and queues of a store, checked before the first row and staged by the tasks."""

from __future__ import annotations

from abc import ABC, abstractmethod
from collections.abc import Callable, Iterable, Iterator, Sequence
from dataclasses import dataclass
from typing import TYPE_CHECKING, Literal

import pyarrow as pa

from headrace.errors import OptionError, SchemaError
from headrace.ports import Append, Publisher, Staged, Store, Write
from headrace.queues.columns import (
    CUMULATIVE_DATA_WEIGHT,
    ROW_INDEX,
    SEQUENCE_NUMBER,
    TABLET_INDEX,
    TIMESTAMP,
    QueueSchema,
)
from headrace.rows import to_arrow
from headrace.tables.changes import RowChange
from headrace.tables.schema import Column, RowSchema
from headrace.types import can_hold, type_name

if TYPE_CHECKING:
    from pyspark.sql import DataFrame

    from headrace.formats.options import Settings

ROWS_PER_WRITE = "spark.yt.write.dynBatchSize"
_DEFAULT_ROWS_PER_WRITE = 50_000
_PARTITION = Column(TABLET_INDEX, pa.int64())
_NEVER_GIVEN = (ROW_INDEX, SEQUENCE_NUMBER, TIMESTAMP, CUMULATIVE_DATA_WEIGHT)


@dataclass(frozen=True)
class Output:
    """A table or a queue that a stream writes, and which of the stream's rows go there.

    Attributes:
        table: the table's name; this or ``queue`` must be given.
        queue: the queue's name.
        select: makes this output's rows out of a batch's, which it gets as a DataFrame that is no stream; all of
            them by default.
        row_change: for a table: ``put`` (default) replaces rows by key, ``update`` sets the cells that are not null,
            ``delete`` removes the rows of the given keys.
        key: for a queue: the column or columns by whose values rows are spread over its partitions, see
            `headrace.ports.Queue.append`.

    Raises:
        OptionError: not exactly one of table and queue, an argument that the other kind takes, or a wrong value.
    """

    table: str | None = None
    queue: str | None = None
    select: Callable[[DataFrame], DataFrame] | None = None
    row_change: str | RowChange | None = None
    key: str | Sequence[str] | None = None

    def __post_init__(self) -> None:
        if (self.table is None) == (self.queue is None):
            raise OptionError(
                "an output is one table or one queue",
                received=f"table={self.table!r}, queue={self.queue!r}",
                remedy='headrace.Output(table="…") or headrace.Output(queue="…")',
            )
        if self.table is not None and self.key is not None:
            raise OptionError(
                f"key spreads rows over the partitions of a queue, and {self.table!r} is a table",
                remedy="leave out key: a table's rows find their place by its primary key",
            )
        if self.queue is not None and self.row_change is not None:
            raise OptionError(
                f"row_change is for tables, and rows of queue {self.queue!r} are only appended",
                remedy="leave out row_change",
            )
        if self.row_change is not None:
            RowChange.parse(self.row_change)
        if not all(isinstance(name, str) and name for name in _names(self.key)):
            raise OptionError("key names columns", received=repr(self.key)[:200], valid="a name, or a list of names")

    def target(self, *, complete: bool = False, columns: pa.Schema | None = None) -> Target:
        """Return where the rows go. In complete mode a table is made to hold exactly a batch's rows.

        Args:
            columns: columns of the table that the user knows of.
        """
        if self.queue is not None:
            return QueueTarget(self.queue, _names(self.key))
        assert self.table is not None
        change = RowChange.REPLACE_ALL if complete else RowChange.parse(self.row_change or RowChange.PUT)
        return TableTarget(self.table, change, columns)

    def rows(self, batch: DataFrame) -> DataFrame:
        """Return the rows of a batch that go here."""
        return batch if self.select is None else self.select(batch)


class Target(ABC):
    """A table or queue of a store, and how rows go into it. Small, and can be pickled."""

    name: str

    @abstractmethod
    def check(self, store: Store, columns: pa.Schema) -> None:
        """Raise `SchemaError` unless rows with these columns can be written."""

    @abstractmethod
    def stage(self, store: Store, publisher: Publisher, batch: int, rows: Iterable[pa.RecordBatch]) -> list[Staged]:
        """Stage rows in the target's own types, so that a misfit is found here and not at publication."""

    @abstractmethod
    def write(self, staged: Iterable[Staged]) -> Write | Append:
        """Return what publication has to do with the staged rows."""


@dataclass(frozen=True)
class TableTarget(Target):
    """A table, what happens to its rows, and columns of it that the user knows of."""

    name: str
    change: RowChange = RowChange.PUT
    columns: pa.Schema | None = None

    def check(self, store: Store, columns: pa.Schema) -> None:
        schema = store.table(self.name, self.columns).schema
        for name in schema.primary_key:
            if name not in columns.names:
                raise SchemaError(
                    "the query has no column for a key column of the table",
                    received=columns.names,
                    valid=f"a column {name!r}",
                )
        if self.change is RowChange.DELETE:
            columns = pa.schema([columns.field(name) for name in schema.primary_key])
        check_columns(columns, schema, f"table {self.name!r}")
        if self.change in (RowChange.PUT, RowChange.REPLACE_ALL):
            check_complete(columns, schema, f"table {self.name!r}")

    def stage(self, store: Store, publisher: Publisher, batch: int, rows: Iterable[pa.RecordBatch]) -> list[Staged]:
        columns: Literal["all", "given", "keys"] = "all"
        if self.change is RowChange.UPDATE:
            columns = "given"
        elif self.change is RowChange.DELETE:
            columns = "keys"
        schema = store.table(self.name, self.columns).schema
        fitting = (part for given in rows for part in to_arrow(given, schema, columns=columns).to_batches())
        return publisher.stage(batch, fitting, table=self.name, change=self.change)

    def write(self, staged: Iterable[Staged]) -> Write:
        return Write(self.name, self.change, tuple(staged))


@dataclass(frozen=True)
class QueueTarget(Target):
    """A queue, by which columns rows are spread over its partitions, and whether they replace what it holds."""

    name: str
    key: tuple[str, ...] = ()
    replace: bool = False

    def check(self, store: Store, columns: pa.Schema) -> None:
        schema = store.queue(self.name).schema
        for name in self.key:
            if name not in columns.names:
                raise SchemaError(
                    "the query has no column that the key names", received=repr(name), valid=columns.names
                )
        if TABLET_INDEX in columns.names:
            if self.key:
                raise OptionError(
                    f"either the key or the column {TABLET_INDEX!r} says which partition a row goes to",
                    remedy=f"leave out one of them: df.drop({TABLET_INDEX!r})",
                )
            check_columns(pa.schema([columns.field(TABLET_INDEX)]), RowSchema((_PARTITION,)), f"queue {self.name!r}")
            columns = columns.remove(columns.get_field_index(TABLET_INDEX))
        for name in columns.names:
            if name in _NEVER_GIVEN:
                raise SchemaError(
                    f"column {name!r} is the store's own: Spark cannot write it to a queue",
                    valid=schema.written.names,
                    remedy=f"df.drop({name!r}), or rename it if the queue is to have it as a column of its own",
                )
        check_columns(columns, schema.written, f"queue {self.name!r}")
        check_complete(columns, schema.written, f"queue {self.name!r}")

    def stage(self, store: Store, publisher: Publisher, batch: int, rows: Iterable[pa.RecordBatch]) -> list[Staged]:
        schema = store.queue(self.name).schema
        fitting = (part for given in rows for part in _addressed(given, schema))
        return publisher.stage_append(batch, self.name, fitting, key=self.key or None)

    def write(self, staged: Iterable[Staged]) -> Append:
        return Append(self.name, tuple(staged), self.replace)


def _addressed(rows: pa.RecordBatch, schema: QueueSchema) -> Iterator[pa.RecordBatch]:
    """Yield rows in a queue's types, behind them the partition of each if the rows have it."""
    if TABLET_INDEX not in rows.schema.names:
        yield from to_arrow(rows, schema.written, columns="all").to_batches()
        return
    partitions = rows.column(TABLET_INDEX).cast(pa.int64())
    fitting = to_arrow(rows.drop_columns([TABLET_INDEX]), schema.written, columns="all")
    yield from fitting.append_column(TABLET_INDEX, partitions).to_batches()


def stage(
    store: Store,
    target: Target,
    publisher: Publisher,
    batch: int,
    rows: Iterable[pa.RecordBatch],
    most_rows: int | None = None,
) -> list[Staged]:
    """Stage a task's rows of a batch, at most ``most_rows`` in each write to the store; all of them or none."""
    if publisher.published(batch):
        # A replay: the rows are taken, because Spark's state depends on that, and are not needed.
        for _ in rows:
            pass
        return []
    some = (given for given in rows if given.num_rows)
    if most_rows is None:
        return target.stage(store, publisher, batch, some)
    staged: list[Staged] = []
    try:
        for part in _parts(some, most_rows):
            staged += target.stage(store, publisher, batch, part)
    except BaseException:
        publisher.discard(batch, staged)
        raise
    return staged


def _parts(rows: Iterable[pa.RecordBatch], most_rows: int) -> Iterator[list[pa.RecordBatch]]:
    """Yield rows in lists of exactly ``most_rows`` rows, but for the last."""
    part: list[pa.RecordBatch] = []
    room = most_rows
    for given in rows:
        while given.num_rows:
            taken = given.slice(0, room)
            part.append(taken)
            room -= taken.num_rows
            given = given.slice(taken.num_rows)
            if not room:
                yield part
                part, room = [], most_rows
    if part:
        yield part


def check_columns(columns: pa.Schema, schema: RowSchema, where: str) -> None:
    """Raise `SchemaError` unless each column is in the schema and can hold the values.

    Args:
        where: names the table or queue in messages.
    """
    for field in columns:
        if field.name not in schema:
            raise SchemaError(
                f"the query has a column that {where} lacks",
                received=repr(field.name),
                valid=schema.names,
                remedy=f"select the columns of {where} only, or add this one to it",
            )
        wanted = schema.column(field.name).type
        if not can_hold(wanted, field.type):
            raise SchemaError(
                f"column {field.name!r} has another type than in {where}",
                received=type_name(field.type),
                valid=type_name(wanted),
                remedy=f"CAST({field.name} AS {type_name(wanted)})",
            )


def check_complete(columns: pa.Schema, schema: RowSchema, where: str) -> None:
    """Raise `SchemaError` if a column that must not be null is not there; others become null."""
    given = set(columns.names)
    for column in schema.columns:
        if not column.nullable and column.name not in given:
            raise SchemaError(
                f"the query has no column {column.name!r}, which is NOT NULL in {where}",
                received=columns.names,
                valid=f"a column {column.name!r} of type {type_name(column.type)}",
            )


def rows_per_write(provider: str, settings: Settings, session: str | None) -> int | None:
    """Return how many rows one write to the store may have, None for any number.

    Args:
        provider: the format; only ``yt`` bounds its writes.
        settings: the options of the format, where one may stand that goes before the session's setting.
        session: the text of Spark's setting `ROWS_PER_WRITE`, if it is set.

    Raises:
        OptionError: the option or the setting is not a positive whole number.
    """
    if provider.lower() != "yt":
        return None
    given: int | None = settings.get("dynBatchSize")
    if given is not None:
        return given
    if session is None:
        return _DEFAULT_ROWS_PER_WRITE
    if not session.strip().isdecimal() or int(session) == 0:
        raise OptionError(
            f"the Spark setting {ROWS_PER_WRITE} cannot be read",
            received=repr(session),
            valid="a positive whole number of rows",
        )
    return int(session)


def _names(columns: str | Sequence[str] | None) -> tuple[str, ...]:
    if columns is None:
        return ()
    if isinstance(columns, str):
        return (columns,)
    return tuple(columns) if isinstance(columns, Sequence) else (columns,)
