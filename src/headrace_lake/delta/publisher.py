"""Publishes the batches of the sinks of jobs into Delta tables: see `headrace_lake.publishing`.

The marker of a table is a pair of ``txn`` actions: the batch, and a hash of its content. The commits are planned by
`headrace_lake.delta.changes`.
"""

from __future__ import annotations

import hashlib
import itertools
from collections.abc import Callable, Iterable, Sequence
from contextlib import suppress
from dataclasses import dataclass, replace

import pyarrow as pa

from headrace.errors import StoreError
from headrace.model.tables.alterations import Alteration
from headrace.model.tables.changes import RowChange
from headrace.model.tables.schema import TableSchema
from headrace.ports import Staged, Write
from headrace.ports.publication import alterations_of
from headrace.rows import to_arrow
from headrace_lake import data_files
from headrace_lake.delta import maintenance
from headrace_lake.delta.actions import Actions
from headrace_lake.delta.changes import Planner
from headrace_lake.delta.commits import commit, repeated
from headrace_lake.delta.snapshot import Snapshot
from headrace_lake.delta.table import DeltaTable
from headrace_lake.home import Home, JobRecord
from headrace_lake.maintenance import has_many_small
from headrace_lake.places import Place
from headrace_lake.publishing import IntentPublisher
from headrace_lake.ready_files import ready_files
from headrace_lake.staging import WHOLE_ROWS, Columns

FindTable = Callable[[str], DeltaTable]


@dataclass(frozen=True)
class _Part:
    """The commit of one table, which is planned."""

    table: DeltaTable
    identity: str
    planner: Planner
    alteration: Alteration | None

    @property
    def name(self) -> str:
        return self.table.name

    def check(self) -> None:
        def attempt(snapshot: Snapshot) -> None:
            self.actions(snapshot)

        repeated(self.table.versions, attempt)

    def abandon(self) -> None:
        self.planner.clean(None)

    def actions(self, snapshot: Snapshot) -> Actions:
        """Check a version, and return the actions for it."""
        _check(snapshot, self.planner)
        if self.alteration is None:
            return self.planner.actions(snapshot)
        altered = snapshot.altered(self.alteration)
        return replace(self.planner.actions(altered), definition=snapshot.changed(altered.schema))


class DeltaPublisher(IntentPublisher[_Part, Snapshot]):
    """Publishes the batches of one sink of a job in a directory of Delta tables, each once.

    Args:
        find: returns a Delta table by its name.
        home: the store of what changes in a transaction.
        own_directory: the store's directory for staged rows.
    """

    def __init__(self, find: FindTable, home: Home, own_directory: Place, job: str, sink: str) -> None:
        super().__init__(home, own_directory, job, sink)
        self._find = find

    def _beside(self, record: JobRecord) -> DeltaPublisher:
        return DeltaPublisher(self._find, self._home, self._own_directory, record.job, record.sink)

    def _snapshot(self, table: str) -> Snapshot:
        return self._find(table).snapshot()

    def _columns(self, snapshot: Snapshot) -> Columns:
        return Columns(snapshot.id, snapshot.schema)

    # -- markers ------------------------------------------------------------------------------------------

    @property
    def _app(self) -> str:
        return f"headrace/{self.job}/{self.sink}"

    @property
    def _content_app(self) -> str:
        return f"{self._app}#content"

    def _marker(self, snapshot: Snapshot) -> tuple[int | None, str]:
        return snapshot.marker(self._app), _text(snapshot.marker(self._content_app))

    def _hash(self, content: str) -> str:
        return _text(_number(content))

    # -- staging ------------------------------------------------------------------------------------------

    def _stage(
        self, batch: int, rows: Iterable[pa.RecordBatch], table: str | None, change: RowChange | None
    ) -> list[Staged]:
        snapshot = None
        if table is not None and change in WHOLE_ROWS:
            snapshot = _writable(self._find(table))
            schema = snapshot.schema
            first = next(rows := iter(rows), None)
            rows = rows if first is None else itertools.chain([first], rows)
            if first is not None and _is_altered(first.schema, schema):
                # The publication changes the columns of the table.
                return self._staging.put(batch, rows, None)
            rows = (part for each in rows for part in to_arrow(each, schema, columns="all").to_batches())
            if snapshot.partition_columns:
                # The driver writes the files, one for each partition.
                snapshot = None
        return self._staging.put(batch, rows, None if snapshot is None else self._columns(snapshot))

    def _commit_part(self, part: _Part, batch: int, content: str, *, marked: bool = True) -> bool:
        done: Actions | None = None
        many = False

        def plan(snapshot: Snapshot) -> Actions | None:
            nonlocal done, many
            # An earlier attempt was certainly not committed.
            done = None
            known, known_content = self._marker(snapshot)
            if marked and known is not None and known >= batch:
                self._check_same(batch, self._hash(content), known, known_content)
                return None
            done = part.actions(snapshot)
            many = has_many_small(snapshot.files)
            return done

        markers = {self._app: batch, self._content_app: _number(content)} if marked else {}
        try:
            version = commit(
                part.table.versions,
                plan,
                markers=markers,
                information={"job": self.job, "sink": self.sink, "batch": batch},
            )
        except Exception:
            part.planner.clean(done)
            raise
        part.planner.clean(done if version is not None else None)
        if many and version is not None:
            # The batch is published: the next one tries again.
            with suppress(StoreError):
                maintenance.merge_small(part.table)
        return version is not None

    # -- writes -------------------------------------------------------------------------------------------

    def _parts(self, batch: int, writes: Sequence[Write], *, decided: bool = False) -> list[_Part]:
        for write in writes:
            self._staging.check(batch, write.staged)
        parts = []
        alterations = alterations_of(writes)
        for name in dict.fromkeys(write.table for write in writes):
            table = self._find(name)
            alteration = alterations.get(name)
            snapshot = _writable(table).altered(alteration)
            mine = [write for write in writes if write.table == name]
            mine = [write for write in mine if write.staged or write.change is RowChange.REPLACE_ALL]
            prefix = f"{data_files.PREFIX}{self._staging.digest}-{batch}-"
            ready = (
                None if snapshot.partition_columns else ready_files(self._staging, batch, mine, self._columns(snapshot))
            )
            planner = Planner(
                ready or [self._staging.write(batch, write, snapshot.schema, decided=decided) for write in mine], prefix
            )
            parts.append(_Part(table, snapshot.id, planner, alteration))
        return parts


def _writable(table: DeltaTable) -> Snapshot:
    """Return the newest version of a table, without column mapping or another feature that headrace does not write."""
    snapshot = table.snapshot()
    snapshot.check_writable(removes=False)
    return snapshot


def _check(snapshot: Snapshot, planner: Planner) -> None:
    """Raise an error if headrace cannot change a table so."""
    if not planner.changes <= {*WHOLE_ROWS}:
        snapshot.schema.check_keyed()
    replaces = RowChange.REPLACE_ALL in planner.changes
    snapshot.check_writable(removes=replaces or bool(snapshot.schema.primary_key))


def _is_altered(fields: pa.Schema, schema: TableSchema) -> bool:
    """Return whether rows have columns that a table does not have, or nulls where it has none."""
    nullable = {column.name: column.nullable for column in schema.columns}
    return any(field.name not in nullable or (field.nullable and not nullable[field.name]) for field in fields)


def _number(content: str) -> int:
    """Return a hash of a batch's content as a version of a transaction; 0 for an unknown content."""
    return int.from_bytes(hashlib.sha256(content.encode()).digest()[:8]) >> 1 if content else 0


def _text(number: int | None) -> str:
    return str(number) if number else ""
