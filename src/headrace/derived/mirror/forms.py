"""Mirrors: the changes of a table as rows of other tables. `LatestRows` keeps a copy, `mirror.history` all versions.

All changes of a key in a batch are in one partition of Spark, in commit order: a key belongs to one channel of a tunnel
at a time, and the children of a channel are read in later batches than the channel itself. So a mirror needs no
shuffle.
"""

from __future__ import annotations

from abc import ABC, abstractmethod
from collections.abc import Callable, Iterable, Iterator, Sequence
from dataclasses import dataclass
from typing import ClassVar

import numpy as np
import pyarrow as pa
import pyarrow.compute as pc

from headrace.batches.sinks.targets import TableTarget
from headrace.derived.last_rows import last_rows
from headrace.derived.own_names import ORDER, SIGN
from headrace.errors import SchemaError
from headrace.model.tables.change_columns import CHANGE_TYPE, TRUNCATE
from headrace.model.tables.changes import RowChange
from headrace.model.tables.schema import TableSchema
from headrace.model.types import type_name
from headrace.ports import Store


@dataclass(frozen=True)
class MirrorTable:
    """A table of a mirror in the target's store."""

    name: str
    schema: TableSchema


@dataclass(frozen=True)
class MirrorForm(ABC):
    """What a mirror keeps of its source. Small and picklable.

    Attributes:
        source: the columns of the source at the start of the query.
        target: the name of the target table.
    """

    kind: ClassVar[str]
    change_columns: ClassVar[tuple[str, ...]]
    """The change columns that `route` needs, besides the columns of the source."""

    source: TableSchema
    target: str

    @property
    @abstractmethod
    def tables(self) -> tuple[MirrorTable, ...]:
        """The tables of the mirror, the target first."""

    @property
    @abstractmethod
    def targets(self) -> tuple[TableTarget, ...]:
        """The targets of a batch, in the order in which their rows are applied."""

    @abstractmethod
    def route(self, store: Store, parts: Iterator[pa.RecordBatch]) -> Iterable[tuple[int, pa.RecordBatch]]:
        """Yield rows with the indexes of their targets, in a task.

        Args:
            store: the target's store.
            parts: changes in commit order, without pre-images: the source's columns and `change_columns`.
        """

    def check_unchanged(self, current: TableSchema) -> None:
        """Raise `SchemaError` if the source has columns that the query does not read, or a renamed one.

        The driver calls it after the tasks have read a batch, and before the batch is published. A column whose values
        are in the batch was added before, so no value is lost.
        """
        added = [column for column in current.columns if column.name not in self.source]
        if added:
            check_not_renamed(self.source.names, current.names)
            raise SchemaError(
                "the source of the mirror has a new column",
                received=", ".join(f"{column.name} {type_name(column.type)}" for column in added),
                valid=self.source.names,
                remedy="start the mirror again: it adds the column to its target, and reads this batch again",
            )


def check_not_renamed(before: Sequence[str], now: Sequence[str]) -> None:
    """Raise `SchemaError` if a source has lost columns and got others: rows of the target would keep the old ones."""
    lost = [name for name in before if name not in now]
    added = [name for name in now if name not in before]
    if lost and added:
        raise SchemaError(
            "columns of the source were renamed: the values in the target would stay under the old names",
            received=f"{', '.join(added)} instead of {', '.join(lost)}",
            valid=before,
            remedy="drop the target and start the mirror with a new checkpoint location, which copies all rows again; "
            "or, if no row was written since, give the columns their names again",
        )


@dataclass(frozen=True)
class LatestRows(MirrorForm):
    """The current rows: the last change of each key is a put or a delete."""

    kind = "latest rows"
    change_columns = (CHANGE_TYPE,)

    @property
    def tables(self) -> tuple[MirrorTable, ...]:
        return (MirrorTable(self.target, self.source),)

    @property
    def targets(self) -> tuple[TableTarget, ...]:
        columns = self.source.arrow
        return (
            TableTarget(self.target, RowChange.PUT, columns),
            TableTarget(self.target, RowChange.DELETE, columns),
        )

    def route(self, store: Store, parts: Iterator[pa.RecordBatch]) -> Iterator[tuple[int, pa.RecordBatch]]:
        target = self.tables[0]
        changes = with_deletes(parts, lambda: keys_of(store, target))
        # No shuffle: the rows are in their order.
        yield from last_rows(_signed(changes, self.source), self.source.primary_key)


def keys_of(store: Store, table: MirrorTable) -> Iterator[pa.RecordBatch]:
    """Return the keys of the rows that a table had before the batch."""
    yield from store.table(table.name, table.schema.arrow).scan(list(table.schema.primary_key))


def with_deletes(
    parts: Iterable[pa.RecordBatch], keys: Callable[[], Iterable[pa.RecordBatch]]
) -> Iterator[pa.RecordBatch]:
    """Yield changes with the deletes of all rows in place of a TRUNCATE, which is the first change of its batch.

    Args:
        keys: returns the keys of the rows before the batch; of several tables in one, those of all tables.
    """
    for part in parts:
        if not part.num_rows or part.column(CHANGE_TYPE)[0].as_py() != TRUNCATE:
            yield part
            continue
        truncation = part.slice(0, 1)
        for rows in keys():
            # The key columns that the truncation has, such as the name of one of several tables, limit it.
            for name in rows.schema.names:
                if (value := truncation.column(name)[0]).is_valid:
                    rows = rows.filter(pc.equal(rows.column(name), value))
            columns = {name: pa.repeat(truncation.column(name)[0], rows.num_rows) for name in part.schema.names}
            columns |= {name: rows.column(name) for name in rows.schema.names}
            columns[CHANGE_TYPE] = pa.repeat(pa.scalar("delete"), rows.num_rows)
            yield pa.RecordBatch.from_arrays(
                [columns[field.name].cast(field.type) for field in part.schema], schema=part.schema
            )
        yield part.slice(1)


def _signed(parts: Iterable[pa.RecordBatch], source: TableSchema) -> Iterator[pa.RecordBatch]:
    """Yield changes as signed rows."""
    done = 0
    for part in parts:
        signs = pc.if_else(pc.equal(part.column(CHANGE_TYPE), "delete"), -1, 1)
        order = pa.array(np.arange(done, done + part.num_rows))
        done += part.num_rows
        yield pa.RecordBatch.from_arrays(
            [*part.select(source.names).columns, signs, order], names=[*source.names, SIGN, ORDER]
        )
