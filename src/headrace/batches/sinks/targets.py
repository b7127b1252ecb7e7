"""The tables and queues that a sink writes: `Target` checks columns, stages rows, and describes their publication."""

from __future__ import annotations

from abc import ABC, abstractmethod
from collections.abc import Iterable, Iterator
from dataclasses import dataclass
from typing import Literal

import pyarrow as pa

from headrace.errors import OptionError, SchemaError
from headrace.model.queues.columns import (
    CUMULATIVE_DATA_WEIGHT,
    ROW_INDEX,
    SEQUENCE_NUMBER,
    TABLET_INDEX,
    TIMESTAMP,
    QueueSchema,
)
from headrace.model.tables.alterations import Alteration
from headrace.model.tables.changes import RowChange
from headrace.model.tables.schema import Column, RowSchema
from headrace.model.types import can_hold, type_name
from headrace.ports import Append, BadRows, Publisher, Staged, Store, Write
from headrace.rows import to_arrow

_PARTITION = Column(TABLET_INDEX, pa.int64())
_FILLED_BY_STORE = (ROW_INDEX, SEQUENCE_NUMBER, TIMESTAMP, CUMULATIVE_DATA_WEIGHT)


class Target(ABC):
    """A table or queue of a store, and how rows are written into it. Small and picklable.

    Attributes:
        name: the name of the table or queue.
        is_state: it is headrace's own table with state of the query, whose rows do not count as rows out.
    """

    name: str
    is_state: bool = False

    @abstractmethod
    def check(self, store: Store, columns: pa.Schema) -> None:
        """Raise `SchemaError` unless rows with these columns can be written."""

    @abstractmethod
    def stage_rows(
        self, store: Store, publisher: Publisher, batch: int, rows: Iterable[pa.RecordBatch]
    ) -> list[Staged]:
        """Convert rows into the target's types and stage them; raise `SchemaError` if a value does not fit."""

    @abstractmethod
    def write(self, staged: Iterable[Staged]) -> Write | Append:
        """Return the staged rows and their operation, as `Publisher.publish` takes them."""


@dataclass(frozen=True)
class TableTarget(Target):
    """A table.

    Attributes:
        name: the table's name.
        change: how rows change the table.
        columns: columns that the user has declared, for stores that do not keep a table's schema.
        alteration: changes of the table's columns that are published before the rows.
        bad_rows: where rows go that the table refuses; None if one fails the batch.
    """

    name: str
    change: RowChange = RowChange.PUT
    columns: pa.Schema | None = None
    is_state: bool = False
    alteration: Alteration | None = None
    bad_rows: BadRows | None = None

    def check(self, store: Store, columns: pa.Schema) -> None:
        schema = store.table(self.name, self.columns).schema
        if not schema.appends or self.change not in (RowChange.PUT, RowChange.REPLACE_ALL):
            schema.check_keyed()
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

    def stage_rows(
        self, store: Store, publisher: Publisher, batch: int, rows: Iterable[pa.RecordBatch]
    ) -> list[Staged]:
        columns: Literal["all", "given", "keys"] = "all"
        if self.change is RowChange.UPDATE:
            columns = "given"
        elif self.change is RowChange.DELETE:
            columns = "keys"
        schema = store.table(self.name, self.columns).schema
        if self.alteration is not None:
            schema = self.alteration.applied(schema)

        def converted() -> Iterator[pa.RecordBatch]:
            for part in rows:
                try:
                    yield from to_arrow(part, schema, columns=columns).to_batches()
                except SchemaError:
                    if self.bad_rows is None:
                        raise
                    # The publication finds the rows that the table refuses.
                    yield part

        return publisher.stage(batch, converted(), table=self.name, change=self.change)

    def write(self, staged: Iterable[Staged]) -> Write:
        return Write(self.name, self.change, tuple(staged), self.alteration, self.bad_rows)


@dataclass(frozen=True)
class QueueTarget(Target):
    """A queue.

    Attributes:
        name: the queue's name.
        key: the columns whose values choose the partition of a row; empty if the store chooses.
        replace: trim all existing rows of the queue at publication.
    """

    name: str
    key: tuple[str, ...] = ()
    replace: bool = False

    def check(self, store: Store, columns: pa.Schema) -> None:
        schema = store.queue(self.name).schema
        for name in self.key:
            if name not in columns.names:
                raise SchemaError(
                    "the query does not have a column of the key", received=repr(name), valid=columns.names
                )
        if TABLET_INDEX in columns.names:
            if self.key:
                raise OptionError(
                    f"both the key and the column {TABLET_INDEX!r} choose the partition of a row",
                    remedy=f"leave out one of them: df.drop({TABLET_INDEX!r})",
                )
            check_columns(pa.schema([columns.field(TABLET_INDEX)]), RowSchema((_PARTITION,)), f"queue {self.name!r}")
            columns = columns.remove(columns.get_field_index(TABLET_INDEX))
        for name in columns.names:
            if name in _FILLED_BY_STORE:
                raise SchemaError(
                    f"the store fills column {name!r} of a queue: Spark cannot write it",
                    valid=schema.written.names,
                    remedy=f"df.drop({name!r}), or rename it if the queue has its own column for these values",
                )
        check_columns(columns, schema.written, f"queue {self.name!r}")
        check_complete(columns, schema.written, f"queue {self.name!r}")

    def stage_rows(
        self, store: Store, publisher: Publisher, batch: int, rows: Iterable[pa.RecordBatch]
    ) -> list[Staged]:
        schema = store.queue(self.name).schema
        converted = (part for each in rows for part in _to_queue_rows(each, schema))
        return publisher.stage_append(batch, self.name, converted, key=self.key or None)

    def write(self, staged: Iterable[Staged]) -> Append:
        return Append(self.name, tuple(staged), self.replace)


def _to_queue_rows(rows: pa.RecordBatch, schema: QueueSchema) -> Iterator[pa.RecordBatch]:
    """Yield rows in a queue's types; a column `$tablet_index` of the rows becomes the last column."""
    if TABLET_INDEX not in rows.schema.names:
        yield from to_arrow(rows, schema.written, columns="all").to_batches()
        return
    partitions = rows.column(TABLET_INDEX).cast(pa.int64())
    converted = to_arrow(rows.drop_columns([TABLET_INDEX]), schema.written, columns="all")
    yield from converted.append_column(TABLET_INDEX, partitions).to_batches()


def check_columns(columns: pa.Schema, schema: RowSchema, where: str) -> None:
    """Raise `SchemaError` unless each column is in the schema and can hold the values.

    Args:
        where: the table or queue, for messages.
    """
    for field in columns:
        if field.name not in schema:
            raise SchemaError(
                f"{where} does not have a column of the query",
                received=repr(field.name),
                valid=schema.names,
                remedy=f"select only the columns of {where}, or add this column to it",
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
    """Raise `SchemaError` if a NOT NULL column is missing that the store does not fill."""
    present = set(columns.names)
    for column in schema.columns:
        if not column.nullable and not column.filled and column.name not in present:
            raise SchemaError(
                f"the query has no column {column.name!r}, which is NOT NULL in {where}",
                received=columns.names,
                valid=f"a column {column.name!r} of type {type_name(column.type)}",
            )
