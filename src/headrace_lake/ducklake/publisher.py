"""Publishes the batches of a job into a DuckLake and the database with its catalog, each in one transaction."""

from __future__ import annotations

from collections.abc import Iterable, Sequence
from dataclasses import replace
from functools import partial

import pyarrow as pa

from headrace.model.tables.changes import RowChange
from headrace.ports import Advance, Append, Claim, Staged, Write
from headrace.stores.postgres.for_lakes import Bulk, PostgresPublisher
from headrace_lake.database_publishers import CatalogPublisher
from headrace_lake.ducklake.catalog import Definition
from headrace_lake.ducklake.database import LakeDatabase
from headrace_lake.ducklake.names import in_database
from headrace_lake.ducklake.writing import NewFiles
from headrace_lake.folding import TableWrite


class DuckLakePublisher(CatalogPublisher):
    """Publishes the batches of one sink of a job, each exactly once.

    Args:
        inner: the publisher of the database, which has the markers and the staged rows.
    """

    def __init__(self, database: LakeDatabase, inner: PostgresPublisher) -> None:
        super().__init__(inner)
        self._database = database

    def stage(
        self,
        batch: int,
        rows: Iterable[pa.RecordBatch],
        *,
        table: str | None = None,
        change: RowChange | None = None,
    ) -> list[Staged]:
        return self._inner.stage(batch, rows)

    def discard(self, batch: int, staged: Sequence[Staged] | None = None) -> None:
        self._inner.discard(batch, staged)

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
            own = in_database(write.table) if isinstance(write, Write) else None
            if not isinstance(write, Write):
                others.append(write)
            elif own is not None:
                others.append(replace(write, table=own))
            elif write.staged or write.change is RowChange.REPLACE_ALL:
                lake.setdefault(write.table, []).append(write)
        files = NewFiles()
        crowded: list[str] = []
        information = {"headrace": {"job": self.job, "sink": self.sink, "batch": batch}}

        def change(bulk: Bulk) -> None:
            tables = {name: partial(self._loaded, bulk, batch, found) for name, found in lake.items()}
            _, crowded[:] = self._database.change(bulk, tables, files, information)

        try:
            also = change if lake else None
            published = self._inner.publish(
                batch, others, advances=advances, content=content, last=last, claim=claim, also=also
            )
        finally:
            self._database.clean(files)
        if published:
            self._database.tidy(crowded)
        return published

    def _loaded(self, bulk: Bulk, batch: int, writes: Sequence[Write], definition: Definition) -> list[TableWrite]:
        """Return the writes to a table with their staged rows, in its types."""
        return [
            TableWrite.of(write.change, list(self._inner.staged_rows(bulk, batch, write.staged)), definition.schema)
            for write in writes
        ]
