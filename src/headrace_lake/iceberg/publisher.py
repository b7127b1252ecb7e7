"""Publishes the batches of the sinks of jobs into Iceberg tables: see `headrace_lake.publishing`.

The marker is a property of the table, with the last batch of a sink and a hash of its content.
"""

from __future__ import annotations

import hashlib
import json
from collections.abc import Iterable, Sequence
from contextlib import suppress
from dataclasses import dataclass

import pyarrow as pa

from headrace.errors import HeadraceError
from headrace.model.tables.changes import RowChange
from headrace.ports import Staged, Write
from headrace_lake.home import Home, JobRecord
from headrace_lake.iceberg.catalog import Tables
from headrace_lake.iceberg.commits import Planner, commit, repeated
from headrace_lake.iceberg.maintenance import merge_small
from headrace_lake.iceberg.staged import check_writes, information, planner_of, stage
from headrace_lake.iceberg.version import Version
from headrace_lake.maintenance import has_many_small
from headrace_lake.places import Place
from headrace_lake.publishing import IntentPublisher
from headrace_lake.staging import Columns


@dataclass(frozen=True)
class _Part:
    """The commit of one table, which is planned."""

    tables: Tables
    name: str
    identity: str
    planner: Planner

    def check(self) -> None:
        def attempt(version: Version) -> None:
            version.check_writable()
            self.planner.plan(version)

        repeated(self.load, attempt)

    def abandon(self) -> None:
        self.planner.files.clean(None)

    def load(self) -> Version:
        """Return the newest version of the table."""
        return self.tables.load(self.name)


class IcebergPublisher(IntentPublisher[_Part, Version]):
    """Publishes the batches of one sink of a job in the tables of a catalog, each once.

    Args:
        home: the store of what changes in a transaction.
        own_directory: the store's directory for staged rows.
    """

    def __init__(self, tables: Tables, home: Home, own_directory: Place, job: str, sink: str) -> None:
        super().__init__(home, own_directory, job, sink)
        self._tables = tables

    def _beside(self, record: JobRecord) -> IcebergPublisher:
        return IcebergPublisher(self._tables, self._home, self._own_directory, record.job, record.sink)

    def _snapshot(self, table: str) -> Version:
        return self._tables.load(table)

    def _columns(self, snapshot: Version) -> Columns:
        return snapshot.columns

    @property
    def _property(self) -> str:
        return f"headrace.marker.{self._staging.digest}"

    def _marker(self, snapshot: Version) -> tuple[int | None, str]:
        text = snapshot.properties.get(self._property)
        if text is None:
            return None, ""
        found = json.loads(text)
        return found["batch"], found["content"]

    def _hash(self, content: str) -> str:
        return hashlib.sha256(content.encode()).hexdigest()[:16] if content else ""

    def _stage(
        self, batch: int, rows: Iterable[pa.RecordBatch], table: str | None, change: RowChange | None
    ) -> list[Staged]:
        return stage(self._staging, self._tables, batch, rows, table, change)

    def _parts(self, batch: int, writes: Sequence[Write], *, decided: bool = False) -> list[_Part]:
        check_writes(self._staging, batch, writes)
        parts = []
        for name in dict.fromkeys(write.table for write in writes):
            version = self._snapshot(name)
            mine = [write for write in writes if write.table == name]
            planner = planner_of(self._staging, batch, mine, version, decided=decided)
            parts.append(_Part(self._tables, name, version.id, planner))
        return parts

    def _commit_part(self, part: _Part, batch: int, content: str, *, marked: bool = True) -> bool:
        checked: Version | None = None

        def check(version: Version) -> bool:
            nonlocal checked
            checked = version
            known, known_content = self._marker(version)
            if marked and known is not None and known >= batch:
                self._check_same(batch, self._hash(content), known, known_content)
                return False
            return True

        marker = json.dumps({"batch": batch, "content": self._hash(content)})
        number = commit(
            part.load,
            part.planner,
            check,
            markers={self._property: marker} if marked else {},
            information=information(self._staging, batch),
        )
        if number is not None and checked is not None:
            # The batch is published: the next one tries again.
            with suppress(HeadraceError):
                if has_many_small(checked.files):
                    merge_small(part.load)
        return number is not None
