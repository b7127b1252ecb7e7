"""`EmbeddedQueue`: a queue of the embedded store."""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any

import apsw

from headrace.errors import DataLossError, OptionError
from headrace.model.queues.columns import QueueSchema
from headrace.model.queues.validation import Route, changed_options
from headrace.model.queues.values import Bounds, QueueOptions, QueuePage, RowRange
from headrace.ports import Queue, QueueDescription, Rows
from headrace.stores.embedded import catalog, chunks
from headrace.stores.embedded.connection import Database, stamp
from headrace.stores.embedded.queues import stored_queues

# A chunk of at least this size is a page of its own: its rows are not copied.
_ALONE_BYTES = 128 << 10


class EmbeddedQueue(Queue):
    """A queue of the embedded store, by its name. A handle has no other state."""

    def __init__(self, database: Database, name: str) -> None:
        self.name = name
        self._database = database

    def __repr__(self) -> str:
        return f"EmbeddedQueue({self.name!r})"

    @property
    def id(self) -> str:
        with self._database.read() as connection:
            return str(stored_queues.load(connection, self.name).id)

    @property
    def schema(self) -> QueueSchema:
        with self._database.read() as connection:
            return stored_queues.load(connection, self.name).layout.schema

    # -- writing ----------------------------------------------------------------------------------------

    def append(
        self, rows: Rows, *, partition: int | None = None, key: str | Sequence[str] | None = None
    ) -> list[RowRange]:
        prepared = self.prepare(rows, partition=partition, key=key)
        if prepared.num_rows == 0:
            if partition is not None:
                with self._database.read() as connection:
                    stored_queues.stored_partition(connection, self.name, partition)
            return []
        with self._database.write() as connection:
            return self.apply(connection, prepared, *stamp(connection))

    def prepare(
        self, rows: Rows, *, partition: int | None = None, key: str | Sequence[str] | None = None
    ) -> stored_queues.Prepared:
        """Check, type and serialise rows for `apply`, without a lock."""
        with self._database.read() as connection:
            state = stored_queues.load(connection, self.name)
        return stored_queues.prepare(state, rows, Route.of(partition, key))

    def apply(self, connection: apsw.Connection, rows: stored_queues.Prepared, version: int, ts: int) -> list[RowRange]:
        """Append prepared rows inside the caller's write transaction; see `stored_queues.append`."""
        return stored_queues.append(connection, self.name, rows, version, ts)

    # -- reading ----------------------------------------------------------------------------------------

    def bounds(self) -> dict[int, Bounds]:
        with self._database.read() as connection:
            state = stored_queues.load(connection, self.name)
            return {each.number: each.bounds for each in stored_queues.partitions(connection, state)}

    def read(self, partition: int, first_row: int, max_rows: int = 1000, *, until: int | None = None) -> QueuePage:
        if first_row < 0 or max_rows < 1:
            raise OptionError(
                "a page needs a first row index and at least one row",
                received=f"first_row={first_row}, max_rows={max_rows}",
            )
        with self._database.read() as connection:
            partition_id, layout, bounds = stored_queues.stored_partition(connection, self.name, partition)
            if first_row < bounds.lower:
                raise DataLossError(
                    f"rows of queue {self.name!r} were trimmed before they were read",
                    received=f"partition {partition}, rows {first_row} to {bounds.lower - 1}"
                    f" ({bounds.lower - first_row} rows)",
                    remedy=f"read from row {bounds.lower}",
                )
            end = min(bounds.upper, first_row + max_rows)
            if until is not None:
                end = min(end, until)
            page = (
                chunks.page(connection, partition_id, first_row, end, max_rows, _ALONE_BYTES) if first_row < end else []
            )
        if page:
            end = min(end, page[-1].first + page[-1].n)
        return QueuePage(partition, first_row, layout.rows(page, first_row, end))

    def row_at(self, partition: int, timestamp: float) -> int:
        with self._database.read() as connection:
            partition_id = stored_queues.stored_partition(connection, self.name, partition).id
            return chunks.row_at_time(connection, partition_id, round(timestamp * 1e6))

    def commit_time(self, partition: int, row: int) -> float | None:
        with self._database.read() as connection:
            partition_id, _, bounds = stored_queues.stored_partition(connection, self.name, partition)
            if not bounds.lower <= row < bounds.upper:
                return None
            return chunks.time_of_row(connection, partition_id, row) / 1e6

    # -- trimming, partitions, options ------------------------------------------------------------------

    def trim(self, partition: int | None = None, before: int | None = None) -> int:
        with self._database.write() as connection:
            if partition is None and before is None:
                state = stored_queues.load(connection, self.name)
                return stored_queues.trim_consumed(connection, state.id, state.options)
            if partition is None or before is None:
                raise OptionError(
                    "a trim needs both a partition and a row index, or neither",
                    received=f"partition={partition}, before={before}",
                )
            partition_id, _, bounds = stored_queues.stored_partition(connection, self.name, partition)
            if not 0 <= before <= bounds.upper:
                raise OptionError(
                    f"partition {partition} of queue {self.name!r} cannot be trimmed there",
                    received=f"before={before}",
                    valid=f"0 to {bounds.upper}",
                )
            if before <= bounds.lower:
                return 0
            chunks.remove(connection, partition_id, before)
            return before - bounds.lower

    def add_partitions(self, count: int) -> int:
        with self._database.write() as connection:
            return stored_queues.add_partitions(connection, stored_queues.load(connection, self.name).id, count)

    def set_options(self, **changes: Any) -> QueueOptions:
        with self._database.write() as connection:
            state = stored_queues.load(connection, self.name)
            options = changed_options(state.options, changes)
            catalog.set_options(connection, state.id, options)
            return options

    def describe(self) -> QueueDescription:
        with self._database.read() as connection:
            state = stored_queues.load(connection, self.name)
            return QueueDescription(
                name=self.name,
                schema=state.layout.schema,
                options=state.options,
                partitions=tuple(stored_queues.partitions(connection, state)),
                registrations=tuple(stored_queues.registrations(connection, state.id)),
            )
