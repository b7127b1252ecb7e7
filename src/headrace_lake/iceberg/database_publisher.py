"""Publishes the batches of a job into Iceberg tables and the database with their catalog, each in one transaction."""

from __future__ import annotations

from collections.abc import Iterable, Sequence
from contextlib import suppress
from functools import partial
from pathlib import Path

import pyarrow as pa

from headrace.errors import HeadraceError
from headrace.model.own_names import is_internal
from headrace.model.tables.changes import RowChange
from headrace.ports import Advance, Append, Claim, Staged, Write
from headrace.stores.postgres.for_lakes import Bulk, PostgresPublisher
from headrace.support import failpoints
from headrace_lake.database_publishers import CatalogPublisher
from headrace_lake.iceberg.commits import Changes, NewFiles, committed, prepared
from headrace_lake.iceberg.database import DatabaseTables
from headrace_lake.iceberg.maintenance import merge_small
from headrace_lake.iceberg.staged import check_writes, information, planner_of, stage
from headrace_lake.maintenance import has_many_small
from headrace_lake.staging import Staging


class DatabasePublisher(CatalogPublisher):
    """Publishes the batches of one sink of a job, each exactly once.

    Args:
        inner: the publisher of the database, which has the markers and headrace's own tables.
        own_directory: the store's directory for staged rows.
    """

    def __init__(self, tables: DatabaseTables, inner: PostgresPublisher, own_directory: Path) -> None:
        super().__init__(inner)
        self._tables = tables
        self._staging = Staging(own_directory, inner.job, inner.sink)

    def stage(
        self,
        batch: int,
        rows: Iterable[pa.RecordBatch],
        *,
        table: str | None = None,
        change: RowChange | None = None,
    ) -> list[Staged]:
        if table is not None and is_internal(table):
            return self._inner.stage(batch, rows, table=table, change=change)
        return stage(self._staging, self._tables, batch, rows, table, change)

    def discard(self, batch: int, staged: Sequence[Staged] | None = None) -> None:
        self._inner.discard(batch, staged)
        self._staging.discard(batch, staged)

    def publish(
        self,
        batch: int,
        writes: Sequence[Write | Append],
        *,
        advances: Sequence[Advance] = (),
        content: str = "",
        last: bool = False,
        claim: Claim | None = None,
    ) -> bool:
        lake: dict[str, list[Write]] = {}
        others: list[Write | Append] = []
        for write in writes:
            if isinstance(write, Write) and not is_internal(write.table):
                lake.setdefault(write.table, []).append(write)
            else:
                others.append(write)
        files: list[NewFiles] = []
        done: list[Changes] = []
        crowded: list[str] = []

        def change(bulk: Bulk) -> None:
            # Earlier attempts were rolled back.
            done.clear()
            crowded.clear()
            done[:] = self._change(bulk, batch, lake, files, crowded)

        try:
            also = change if lake else None
            published = self._inner.publish(
                batch, others, advances=advances, content=content, last=last, claim=claim, also=also
            )
        finally:
            # The transaction of an attempt that has come to its end may be committed, also after an error.
            kept = Changes([entry for each in done for entry in each.added])
            for each in files:
                each.clean(kept)
        self._staging.sweep(batch)
        for name in crowded if published else ():
            # The batch is published: the next one tries again.
            with suppress(HeadraceError):
                merge_small(partial(self._tables.load, name))
        return published

    def _change(
        self, bulk: Bulk, batch: int, writes: dict[str, list[Write]], files: list[NewFiles], crowded: list[str]
    ) -> list[Changes]:
        """Change the tables, in the order of their names, so that two batches do not wait for each other.

        Args:
            files: gets the new files.
            crowded: gets the names of tables with many small files.
        """
        done = []
        for name, of_table in sorted(writes.items()):
            check_writes(self._staging, batch, of_table)
            if not any(write.staged or write.change is RowChange.REPLACE_ALL for write in of_table):
                continue
            version = self._tables.locked(bulk, name)
            plan = planner_of(self._staging, batch, of_table, version)
            files.append(plan.files)
            changes = prepared(version, plan)
            assert changes is not None
            committed(version, changes, {}, information(self._staging, batch))
            done.append(changes)
            if has_many_small(version.files):
                crowded.append(name)
        failpoints.reach("parts-written")
        return done
