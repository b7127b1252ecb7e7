"""Ordered dynamic tables as queues of headrace."""

from __future__ import annotations

import functools
import time
from collections.abc import Mapping, Sequence
from typing import Any

import numpy as np
import pyarrow as pa

from headrace.errors import DataLossError, OptionError, StoreError, UnsupportedError
from headrace.model.queues.columns import CUMULATIVE_DATA_WEIGHT, ROW_INDEX, TABLET_INDEX, TIMESTAMP, QueueSchema
from headrace.model.queues.validation import Route, no_partition
from headrace.model.queues.values import Bounds, QueueOptions, QueuePage, RowRange, trim_target
from headrace.model.types import parse_type
from headrace.ports import Queue, QueueDescription, QueuePartition, Registration, Rows
from headrace.rows import to_arrow
from headrace_ytsaurus.store import catalog
from headrace_ytsaurus.store.catalog import Names, Node, check_path_in_queries
from headrace_ytsaurus.store.connection import ROWS_PER_TABLET, YtConnection, as_batch
from headrace_ytsaurus.store.failures import YtNotFoundError, YtUnmountedError, translated
from headrace_ytsaurus.store.queues import registrations, routing
from headrace_ytsaurus.store.queues.options import config_of, options_of
from headrace_ytsaurus.store.schemas import QueueLayout, seconds_of, timestamp_of
from headrace_ytsaurus.wire.types import YtColumn
from headrace_ytsaurus.wire.yson.rows_encoding import encode_rows

_ROW = YtColumn.of(ROW_INDEX, "int64", required=True)
_MOST_PARTITIONS = 1000
_ROWS_LOOKED_AT = 100_000


class YtQueue(Queue):
    """An ordered dynamic table; its tablets are the partitions.

    A handle reads the columns once, and the tablets for each call.

    Raises:
        NotFoundError: the queue does not exist.
    """

    def __init__(self, connection: YtConnection, names: Names, name: str) -> None:
        self.name = name
        self._connection = connection
        self._names = names
        self._node: Node | None = self._find()

    def __repr__(self) -> str:
        return f"YtQueue({self.name!r})"

    def _find(self) -> Node:
        return catalog.find(self._connection, self._names, self.name, catalog.QUEUE)

    @property
    def node(self) -> Node:
        """The cached description of the table."""
        if self._node is None:
            self._node = self._find()
        return self._node

    @property
    def path(self) -> str:
        return self._names.path(self.name)

    @property
    def layout(self) -> QueueLayout:
        declared = self.node.attributes.get(catalog.TIMESTAMP_TYPE)
        columns = self.node.columns
        return QueueLayout.of(columns) if declared is None else QueueLayout.of(columns, parse_type(str(declared)))

    @property
    def id(self) -> str:
        return self._find().id

    @property
    def schema(self) -> QueueSchema:
        return self.layout.schema

    # -- appending ----------------------------------------------------------------------------------------

    def append(
        self, rows: Rows, *, partition: int | None = None, key: str | Sequence[str] | None = None
    ) -> list[RowRange]:
        """Append rows; see `headrace.ports.Queue.append`.

        More rows for a partition than a transaction allows (100,000) become visible in parts. The service does not
        return row indexes. They follow from the ends of the partitions; if other writers appended at the same time,
        the rows are searched.

        Raises:
            StoreError: the response to the commit was lost. It is unknown whether the rows were appended, and they are
                not written again.
        """
        self._node = self._find()
        layout, before = self.layout, self._ends(self.node.tablets)
        route = Route.of(partition, key)
        typed = to_arrow(rows, layout.accepted, columns="all")
        routed = routing.routed(typed, route, before)
        parts = routing.in_partitions(routed)
        for first in range(0, max((len(part) for part in parts.values()), default=0), ROWS_PER_TABLET):
            taken = np.sort(np.concatenate([part[first : first + ROWS_PER_TABLET] for part in parts.values()]))
            put = functools.partial(self._put, as_batch(routed.take(pa.array(taken))), layout.written)
            # Only errors after which nothing was committed.
            self._connection.repeated(put, (YtUnmountedError,))
        after = self._ends(len(before)) if parts else before
        return [
            self._range(number, routed.take(pa.array(taken)), before[number], after[number])
            for number, taken in sorted(parts.items())
        ]

    def _put(self, rows: pa.RecordBatch, columns: Sequence[YtColumn]) -> None:
        with self._connection.transaction() as client:
            self._connection.insert(self.path, rows, columns, client=client)

    def _range(self, number: int, mine: pa.Table, first: int, end: int) -> RowRange:
        """Return the range of rows that were appended to a partition between two reads of its end."""
        if end - first != mine.num_rows:
            first = self._position(number, mine, first, end)
        return RowRange(number, first, first + mine.num_rows)

    def _position(self, number: int, mine: pa.Table, first: int, end: int) -> int:
        written = self.schema.written
        names = list(written.names)
        columns = [column for column in self.layout.columns if column.name in written]
        wanted = encode_rows(as_batch(mine.select(names)), columns)
        pages, position = [], first
        while position < end and (page := self.read(number, position, end - position, until=end)).rows.num_rows:
            pages.append(page.rows.select(names))
            position = page.next
        found = as_batch(pa.Table.from_batches(pages)) if pages else None
        for start in range(position - first - mine.num_rows + 1):
            # Compared as bytes: NaN is equal to itself.
            if found is not None and encode_rows(found.slice(start, mine.num_rows), columns) == wanted:
                return first + start
        raise StoreError(
            f"the rows were appended to queue {self.name!r}, but not found",
            remedy="the queue was trimmed at the same time",
        )

    # -- reading ------------------------------------------------------------------------------------------

    def bounds(self) -> dict[int, Bounds]:
        return {number: bounds for number, (bounds, _) in self._tablets().items()}

    def ends_for(self, route: Route, rows: pa.Table) -> list[int]:
        """Return the end of each partition, or zeros if the rows choose their partitions."""
        count = self.node.tablets
        chosen = route != Route() or not rows.column(TABLET_INDEX).null_count
        return [0] * count if chosen else self._ends(count)

    def _ends(self, count: int) -> list[int]:
        return [int(info["total_row_count"]) for info in self._infos(list(range(count)))]

    def _infos(self, numbers: Sequence[int]) -> list[Mapping[str, Any]]:
        """Return the service's description of tablets; wait for tablets that are being moved."""

        def look() -> list[Mapping[str, Any]]:
            with translated(f"look at queue {self.path}"):
                infos: list[Mapping[str, Any]] = self._connection.client.get_tablet_infos(self.path, numbers)["tablets"]
                return infos

        try:
            return self._connection.repeated(look)
        except YtNotFoundError:
            # Raises the error that names the queue and the valid names.
            self._find()
            raise

    def _tablets(self) -> dict[int, tuple[Bounds, Mapping[str, Any]]]:
        """Return the bounds of each partition, and the service's description of its tablet."""
        attributes = self._connection.attributes(self.path, ("tablet_count", "data_weight", "chunk_row_count"))
        if attributes is None or "tablet_count" not in attributes:
            self._find()
            raise StoreError(f"the service does not report the tablets of queue {self.name!r}", received=self.path)
        numbers = list(range(int(attributes["tablet_count"])))
        infos = self._infos(numbers)
        found: dict[int, tuple[Bounds, Mapping[str, Any]]] = {}
        # The service counts only flushed rows; their mean is an estimate for all rows.
        size, rows = int(attributes.get("data_weight") or 0), int(attributes.get("chunk_row_count") or 0)
        for number, info in zip(numbers, infos, strict=True):
            lower, upper = int(info["trimmed_row_count"]), int(info["total_row_count"])
            lower = min(lower, upper)
            found[number] = Bounds(lower, upper, (upper - lower) * size // rows if rows else 0), info
        return found

    def _bounds_of(self, partition: int) -> Bounds:
        bounds = self.bounds()
        if partition not in bounds:
            raise no_partition(partition, len(bounds))
        return bounds[partition]

    def read(self, partition: int, first_row: int, max_rows: int = 1000, *, until: int | None = None) -> QueuePage:
        """Read rows from a row index; see `headrace.ports.Queue.read`.

        If the row was trimmed, the service silently begins at the first existing row. So the row indexes of each page
        are compared with the requested ones.
        """
        layout = self.layout
        most = max_rows if until is None else min(max_rows, until - first_row)
        if partition < 0 or partition >= self.node.tablets:
            # More rows may exist by now.
            self._node = None
            if not 0 <= partition < self.node.tablets:
                raise no_partition(partition, self.node.tablets)
        if most <= 0:
            return QueuePage(partition, first_row, as_batch(layout.schema.arrow.empty_table()))
        try:
            pulled = self._connection.pull(self.path, partition, first_row, most, layout.pulled)
        except YtNotFoundError:
            self._find()
            raise
        indexes = pulled.column(ROW_INDEX).to_numpy()
        if len(indexes) == 0 or indexes[0] != first_row:
            self._check_there(partition, first_row)
        if len(indexes) and (indexes[0] != first_row or not (np.diff(indexes) == 1).all()):
            raise self._lost(partition, first_row, int(indexes[0]))
        return QueuePage(partition, first_row, layout.read(pulled))

    def _check_there(self, partition: int, first_row: int) -> None:
        lower = self._bounds_of(partition).lower
        if first_row < lower:
            raise self._lost(partition, first_row, lower)

    def _lost(self, partition: int, first_row: int, lower: int) -> DataLossError:
        return DataLossError(
            f"rows of queue {self.name!r} are trimmed: partition {partition} begins at row {lower}",
            received=f"row {first_row}",
            remedy="set option failOnDataLoss=false to skip them",
        )

    def row_at(self, partition: int, timestamp: float) -> int:
        bounds = self._bounds_of(partition)
        if TIMESTAMP not in self.schema.names:
            raise UnsupportedError(
                f"queue {self.name!r} does not record the commit times of its rows",
                remedy=f"create it with a column {TIMESTAMP}, or start at earliest, latest, or row indexes",
            )
        # A query reads all rows from the first, and clusters limit their number.
        first = self._first_to_look_at(partition, bounds, timestamp)
        query = (
            f"[$row_index] from {check_path_in_queries(self.path)} where [$tablet_index] = {partition}"
            f" and [$row_index] >= {first} and [$timestamp] >= {timestamp_of(timestamp)}u"
            " order by [$tablet_index], [$row_index] limit 1"
        )
        found = self._connection.select(query, [_ROW])
        return int(found.column(0)[0].as_py()) if found.num_rows else bounds.upper

    def _first_to_look_at(self, partition: int, bounds: Bounds, timestamp: float) -> int:
        """Return a row index shortly before the first row at or after a time: the times of rows hardly decrease."""
        low, high = bounds.lower, bounds.upper
        while high - low > _ROWS_LOOKED_AT:
            middle = (low + high) // 2
            moment = self.commit_time(partition, middle)
            # A trimmed row was older.
            is_late = moment is not None and timestamp_of(moment) >= timestamp_of(timestamp)
            low, high = (low, middle) if is_late else (middle, high)
        return max(bounds.lower, low - _ROWS_LOOKED_AT)

    def commit_time(self, partition: int, row: int) -> float | None:
        """Return the commit time of a row from its `$timestamp`; None if the row does not exist.

        Without that column, only the time of the last row is known.
        """
        if TIMESTAMP in self.schema.names:
            try:
                page = self.read(partition, row, 1)
            except DataLossError:
                return None
            if not page.rows.num_rows:
                return None
            moment: float = page.rows.column(TIMESTAMP)[0].cast(pa.int64()).as_py() / 1e6
            return moment
        tablets = self._tablets()
        if partition not in tablets:
            raise no_partition(partition, len(tablets))
        bounds, info = tablets[partition]
        return _last_write(info) if bounds.lower <= row == bounds.upper - 1 else None

    # -- trimming, partitions, options ------------------------------------------------------------------------

    def trim(self, partition: int | None = None, before: int | None = None) -> int:
        if partition is None or before is None:
            return self._trim_consumed()
        bounds = self._bounds_of(partition)
        if not 0 <= before <= bounds.upper:
            raise OptionError("rows cannot be trimmed after the end", received=before, valid=f"0 to {bounds.upper}")
        return self._trim(partition, bounds, before)

    def _trim(self, partition: int, bounds: Bounds, before: int) -> int:
        if before <= bounds.lower:
            return 0
        with translated(f"trim {self.path}"):
            self._connection.client.trim_rows(self.path, partition, before)
        return before - bounds.lower

    def _trim_consumed(self) -> int:
        options = self._options()
        vital = [
            registrations.offsets(self._connection, consumer, self.path)
            for consumer, is_vital in registrations.of_queue(self._connection, self.path)
            if is_vital
        ]
        if registrations.vital_elsewhere(self._connection, self.path):
            # The offsets of a consumer on another cluster are unknown: it may need every row.
            return 0
        removed = 0
        for number, bounds in self.bounds().items():
            oldest = None
            if options.retained_seconds is not None:
                if TIMESTAMP not in self.schema.names:
                    raise UnsupportedError(
                        f"queue {self.name!r} does not record commit times, so the age of its rows is unknown",
                        remedy=f"create the queue with a column {TIMESTAMP}, or leave trimming to the "
                        "cluster (auto_trim)",
                    )
                oldest = self.row_at(number, time.time() - options.retained_seconds)
            read = [offsets.get(number, 0) for offsets in vital]
            removed += self._trim(number, bounds, trim_target(bounds, read, options.retained_rows, oldest))
        return removed

    def add_partitions(self, count: int) -> int:
        """Add empty partitions. The table is unmounted for a moment and cannot be used then."""
        existing = self._find().tablets
        if count < 1 or existing + count > _MOST_PARTITIONS:
            raise OptionError("a queue has 1 to 1000 partitions", received=f"{count} more than {existing}")
        if count:
            client = self._connection.client
            with translated(f"add partitions to {self.path}"):
                client.unmount_table(self.path, sync=True)
                try:
                    client.reshard_table(self.path, tablet_count=existing + count, sync=True)
                finally:
                    client.mount_table(self.path, sync=True)
        self._node = None
        return existing + count

    def _options(self) -> QueueOptions:
        return options_of(self._connection.attribute(self.path, "auto_trim_config", {}))

    def set_options(self, **changes: Any) -> QueueOptions:
        self._find()
        options, config = config_of(self._options(), changes)
        with translated(f"set options of {self.path}"):
            self._connection.client.set(f"{self.path}/@auto_trim_config", config)
        return options

    def describe(self) -> QueueDescription:
        self._node = self._find()
        registered = registrations.of_queue(self._connection, self.path)
        return QueueDescription(
            name=self.name,
            schema=self.schema,
            options=options_of(self.node.attributes.get("auto_trim_config") or {}),
            partitions=tuple(
                QueuePartition(number, bounds, self._weight(number, bounds), _last_write(info))
                for number, (bounds, info) in self._tablets().items()
            ),
            registrations=tuple(
                Registration(self.name, self._names.name(consumer), vital)
                for consumer, vital in registered
                if not self._names.is_state(consumer)
            ),
        )

    def _weight(self, partition: int, bounds: Bounds) -> int | None:
        """Return the data weight of all rows that a partition has had; None if no row has it."""
        if CUMULATIVE_DATA_WEIGHT not in self.schema.names:
            return None
        if not bounds.rows:
            return None if bounds.upper else 0
        last = self.read(partition, bounds.upper - 1, 1).rows
        return int(last.column(CUMULATIVE_DATA_WEIGHT)[0].as_py()) if last.num_rows else None


def _last_write(info: Mapping[str, Any]) -> float | None:
    return seconds_of(int(info.get("last_write_timestamp") or 0))
