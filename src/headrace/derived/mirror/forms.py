"""Mirrors: the changes of a table as rows of other tables. `LatestRows` keeps a copy, `mirror.history` all versions.

All changes of a key in a batch are in one partition of Spark, in commit order: a key belongs to one channel of a tunnel
at a time, and the children of a channel are read in later batches than the channel itself. So a mirror needs no
shuffle.
"""

from __future__ import annotations

from abc import ABC, abstractmethod
from collections.abc import Callable, Iterable, Iterator, Mapping
from dataclasses import dataclass, field
from typing import ClassVar

import numpy as np
import pyarrow as pa
import pyarrow.compute as pc

from headrace.batches.sinks.targets import TableTarget
from headrace.derived.last_rows import last_rows
from headrace.derived.own_names import ORDER, SIGN
from headrace.errors import SchemaError, own_message
from headrace.model.tables.alterations import Alteration
from headrace.model.tables.bad_rows import KEY, stored_keys
from headrace.model.tables.change_columns import CHANGE_COLUMNS, CHANGE_TYPE, TRUNCATE, ChangeShape
from headrace.model.tables.changes import RowChange
from headrace.model.tables.packed_rows import PACKED, unpacked
from headrace.model.tables.schema import TableSchema
from headrace.model.types import type_name
from headrace.ports import BadRows, Store
from headrace.rows.json_objects import typed_keys

_NEWER = "the source of a mirror has got other columns while a batch was read"


@dataclass(frozen=True)
class MirrorTable:
    """A table of a mirror in the target's store."""

    name: str
    schema: TableSchema


@dataclass(frozen=True)
class MirrorForm(ABC):
    """What a mirror keeps of its source. Small and picklable.

    Attributes:
        source: the columns of the source, as the changes of a batch have them.
        target: the name of the target table.
        alterations: the changes of the tables' columns that are published with the rows of the batch, by table.
        bad_rows: where rows go that the target refuses; None if one fails the batch.
    """

    kind: ClassVar[str]
    change_columns: ClassVar[tuple[str, ...]]
    """The change columns that `route` needs, besides the columns of the source."""

    source: TableSchema
    target: str
    alterations: Mapping[str, Alteration] = field(default_factory=dict, kw_only=True)
    bad_rows: BadRows | None = field(default=None, kw_only=True)

    @property
    def columns(self) -> pa.Schema:
        """The columns of changes for `route`: those of a `PackedShape`."""
        columns = ChangeShape(self.source, [*self.source.names, *self.change_columns]).schema
        return columns.append(pa.field(PACKED, pa.binary()))

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

    def rows(self, parts: Iterable[pa.RecordBatch]) -> Iterator[pa.RecordBatch]:
        """Yield the changes of a `PackedShape`, after checking that they have the columns of the source.

        Raises:
            SchemaError: the source has got other columns since the batch began, see `is_newer_source`.
        """
        names = [*self.source.names, *self.change_columns]
        types = {column.name: type_name(column.type) for column in self.source.columns}
        for part in unpacked(parts):
            found = {each.name: type_name(each.type) for each in part.schema if each.name not in CHANGE_COLUMNS.names}
            if found != types:
                raise newer_source(found, self.source.names)
            yield part.select(names)

    def former(self, table: str, name: str) -> str:
        """Return the name that a column of a table has before the batch."""
        alteration = self.alterations.get(table)
        return name if alteration is None else alteration.name_before(name) or name

    def keys_of(self, store: Store, table: MirrorTable) -> Iterator[pa.RecordBatch]:
        """Yield the keys of the rows that a table had before the batch."""
        key = table.schema.primary_key
        stored = store.table(table.name, table.schema.arrow)
        for rows in stored.scan([self.former(table.name, name) for name in key]):
            yield rows.rename_columns(list(key))

    def target_table(self, table: MirrorTable, change: RowChange, *, is_state: bool = False) -> TableTarget:
        """Return a target of a batch."""
        alteration, schema = self.alterations.get(table.name), table.schema.arrow
        return TableTarget(table.name, change, schema, is_state=is_state, alteration=alteration, bad_rows=self.bad_rows)


def newer_source(received: Iterable[str], valid: Iterable[str]) -> SchemaError:
    """Return the error for a source that has got other columns since a batch began; see `is_newer_source`."""
    return SchemaError(_NEWER, received=", ".join(received), valid=valid)


def is_newer_source(error: BaseException) -> bool:
    """Return whether an error is that of `newer_source`, or of a job of Spark that had it."""
    text = str(error)
    return (own_message(text) or text).startswith(_NEWER)


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
        (table,) = self.tables
        return self.target_table(table, RowChange.PUT), self.target_table(table, RowChange.DELETE)

    def route(self, store: Store, parts: Iterator[pa.RecordBatch]) -> Iterator[tuple[int, pa.RecordBatch]]:
        changes = with_deletes(self.rows(parts), lambda: self._keys(store))
        # No shuffle: the rows are in their order.
        yield from last_rows(_signed(changes, self.source), self.source.primary_key)

    def _keys(self, store: Store) -> Iterator[pa.RecordBatch]:
        """Yield the keys that the target and its bad rows had before the batch."""
        yield from self.keys_of(store, self.tables[0])
        if self.bad_rows is not None:
            stored = store.table(self.bad_rows.table).scan([KEY, "row"]).read_all()
            keys = stored_keys(stored.to_pylist(), self.source)
            yield from typed_keys(keys, self.source)[0].to_batches()


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
