"""Streams of tunnels and queues: `StreamReader` binds a `headrace.batches.feeds.feed.Feed` to Spark's interface.

One reader exists in Spark's planning process for the life of the query. Its copies in the tasks have no connections.
"""

from __future__ import annotations

import json
from collections.abc import Iterator, Sequence
from dataclasses import dataclass
from typing import TYPE_CHECKING, Any

from pyspark.sql.datasource import InputPartition
from pyspark.sql.types import StructType

from headrace.batches.feeds.feed import FeedPlanner, Offset
from headrace.formats.source import Read, Source, StreamRead
from headrace.model.tables.change_columns import CHANGE_COLUMNS
from headrace.model.tables.conditions import Predicate
from headrace.model.tables.several_tables import TABLE
from headrace.spark.executors import Sent, task_property, task_store
from headrace.spark.garbage_collection import freeze_loaded_modules
from headrace.spark.settings import FOLLOWS_TRUNCATIONS, USED_COLUMNS
from headrace.spark.several_tables import numbers_of
from headrace.spark.versions import PlanningReader, ReadAllAvailable, ReadLimit, ReadMaxRows, arrow_schema
from headrace.stores.registry import StoreAddress

if TYPE_CHECKING:
    import pyarrow as pa

    from headrace.ports import Store

_NO_LIMIT = (1 << 63) - 1


@dataclass
class PlannedTask(InputPartition):
    """A task of a read, as Spark sends it to a worker, with the address of the store that it was planned for."""

    task: Any
    read: Read
    store: StoreAddress

    def rows(self, schema: StructType, predicates: Sequence[Predicate] = ()) -> Iterator[pa.RecordBatch]:
        """Yield the rows, in the worker."""
        with task_store(self.store) as store:
            columns = arrow_schema(schema)
            used = _used_columns(columns)
            rows = self.read.rows(store, self.task, used, predicates)
            if numbers := numbers_of(schema, used.names):
                rows = self.read.check_numbers(rows, store, numbers)
            if used is not columns:
                rows = (_with_unused(part, columns) for part in rows)
            refused = task_property(FOLLOWS_TRUNCATIONS)
            yield from self.read.refuse_truncations(rows, None if refused is None else json.loads(refused))
        freeze_loaded_modules()


def _used_columns(columns: pa.Schema) -> pa.Schema:
    """Return the columns that the query of the task uses; all, if it does not say so, and those of several tables."""
    import pyarrow as pa

    text = task_property(USED_COLUMNS)
    if text is None or TABLE in columns.names:
        return columns
    used = json.loads(text)
    found = pa.schema([each for each in columns if each.name.lower() in used or each.name in CHANGE_COLUMNS.names])
    return columns if len(found) == len(columns) else found


def _with_unused(rows: pa.RecordBatch, columns: pa.Schema) -> pa.RecordBatch:
    import pyarrow as pa

    names = set(rows.schema.names)
    arrays = [rows.column(each.name) if each.name in names else pa.nulls(rows.num_rows, each.type) for each in columns]
    fields = [rows.schema.field(each.name) if each.name in names else each for each in columns]
    return pa.RecordBatch.from_arrays(arrays, schema=pa.schema(fields))


class StreamReader(Sent, PlanningReader):
    """A tunnel or queues as a streaming source. It opens the store once, to choose the read and to plan its batches."""

    def __init__(self, source: Source, schema: StructType) -> None:
        self._source = source
        self._schema = schema
        self._opened: tuple[Store, StreamRead] | None = None
        self._open_planner: FeedPlanner[Any, Any] | None = None

    def _sent_state(self) -> dict[str, Any]:
        return {"_source": self._source, "_schema": self._schema, "_opened": None, "_open_planner": None}

    @property
    def _planner(self) -> FeedPlanner[Any, Any]:
        if self._open_planner is None:
            store = self._source.open_store()
            try:
                read = self._source.stream(store)
                self._open_planner = FeedPlanner(read.feed(store), store)
            except BaseException:
                store.close()
                raise
            self._opened = store, read
        return self._open_planner

    def getDefaultReadLimit(self) -> ReadLimit:
        # Any limit but ReadAllAvailable means that the limits in the options apply.
        return ReadMaxRows(_NO_LIMIT)

    def initialOffset(self) -> Offset:
        return self._planner.initial()

    def latestOffset(self, start: Offset, limit: ReadLimit) -> Offset:
        return self._planner.latest(start, unlimited=isinstance(limit, ReadAllAvailable))

    def prepareForTriggerAvailableNow(self) -> None:
        self._planner.feed.fix_end()

    def next_offset(self, start: Offset) -> Offset:
        # It may be the only batch.
        return self._planner.latest(start, with_start=True)

    def lift_end(self) -> None:
        self._planner.lift_end()

    def reportLatestOffset(self) -> Offset:
        return self._planner.feed.report()

    def partitions(self, start: Offset, end: Offset) -> Sequence[InputPartition]:
        tasks = self._planner.tasks(start, end)
        assert self._opened is not None
        store, read = self._opened
        address = self._source.location.store.of(store)
        return [PlannedTask(task, read, address) for task in tasks]

    def read(self, partition: InputPartition) -> Iterator[pa.RecordBatch]:
        assert isinstance(partition, PlannedTask)
        return partition.rows(self._schema)

    def commit(self, end: Offset) -> None:
        self._planner.commit(end)

    def stop(self) -> None:
        if self._opened is not None:
            self._opened[0].close()
            self._opened = self._open_planner = None
