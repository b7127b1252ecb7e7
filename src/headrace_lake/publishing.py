"""Publishes the batches of the sinks of jobs into lake tables that each change in a commit of their own.

1. Tasks stage rows as Parquet files below the store's own directory, which readers do not use: `staging`.
2. The driver plans the commits of all tables.
3. A batch of one table is one commit, with the rows and the marker.
4. A batch of several tables, of headrace's own tables, or with a claim has an *intent* first: one transaction of the
   home with the claim, the rows of headrace's own tables and the intent. Then each table changes in a commit with the
   marker. The next driver, or the next job of a table, completes an intent whose driver has died.

A format says how a table has its marker, and how it commits: see the abstract methods.
"""

from __future__ import annotations

from abc import abstractmethod
from collections.abc import Iterable, Mapping, Sequence
from dataclasses import replace
from typing import Generic, Protocol, Self, TypeVar

import pyarrow as pa

from headrace.errors import DataLossError, NotFoundError, PublicationError, UnsupportedError
from headrace.model.own_names import is_internal
from headrace.model.tables.alterations import Alteration
from headrace.model.tables.changes import RowChange
from headrace.model.tables.schema import TableSchema
from headrace.ports import Advance, Append, Claim, Publisher, Staged, Store, Write
from headrace.support import failpoints
from headrace_lake.data_files import MissingFileError
from headrace_lake.home import JOBS, Home, Intent, JobRecord
from headrace_lake.places import Place
from headrace_lake.staging import Columns, Staging


class Part(Protocol):
    """The commit of one table, which is planned."""

    @property
    def name(self) -> str:
        """The name of the table."""

    @property
    def identity(self) -> str:
        """The identity of the table."""

    def check(self) -> None:
        """Raise an error if the newest version cannot be changed so."""

    def abandon(self) -> None:
        """Delete the files of a commit that another driver makes."""


AnyPart = TypeVar("AnyPart", bound=Part)
AnyVersion = TypeVar("AnyVersion")


class IntentPublisher(Publisher, Generic[AnyPart, AnyVersion]):
    """Publishes the batches of one sink of a job, each once.

    Args:
        home: the store of what changes in a transaction.
        own_directory: the store's directory for staged rows.
    """

    def __init__(self, home: Home, own_directory: Place, job: str, sink: str) -> None:
        self.job = job
        self.sink = sink
        self._home = home
        self._own_directory = own_directory
        self._staging = Staging(own_directory, job, sink)

    def __repr__(self) -> str:
        return f"{type(self).__name__}(job={self.job!r}, sink={self.sink!r})"

    @abstractmethod
    def _beside(self, record: JobRecord) -> Self:
        """Return the publisher of another record."""

    @abstractmethod
    def _snapshot(self, table: str) -> AnyVersion:
        """Return the newest version of a table."""

    @abstractmethod
    def _columns(self, snapshot: AnyVersion) -> Columns:
        """Return the identity and the columns of a version."""

    @abstractmethod
    def _marker(self, snapshot: AnyVersion) -> tuple[int | None, str]:
        """Return the last batch that a version has, and the hash of its content, which is empty if unknown."""

    @abstractmethod
    def _hash(self, content: str) -> str:
        """Return the hash of a content as `_marker` returns it."""

    @abstractmethod
    def _stage(
        self, batch: int, rows: Iterable[pa.RecordBatch], table: str | None, change: RowChange | None
    ) -> list[Staged]:
        """Stage rows for a lake table."""

    @abstractmethod
    def _parts(self, batch: int, writes: Sequence[Write], *, decided: bool = False) -> list[AnyPart]:
        """Check the writes to lake tables; return the commit of each table.

        Args:
            decided: whether an intent has them: then the values of columns that were dropped meanwhile are left out.
        """

    @abstractmethod
    def _commit_part(self, part: AnyPart, batch: int, content: str, *, marked: bool = True) -> bool:
        """Change one table, unless it has the batch; return whether it lacked the batch.

        Args:
            marked: whether the commit has the marker.
        """

    # -- markers ------------------------------------------------------------------------------------------

    def published(self, batch: int) -> bool:
        last, _ = self._last(self._home.record(self.job, self.sink))
        return (last is not None and last >= batch) or self._in_home(batch)

    def last_batch(self) -> int | None:
        store = self._home.find()
        found = [None if store is None else store.publisher(self.job, self.sink).last_batch()]
        found += [self._beside(record)._last(record)[0] for record in self._home.records(self.job)]
        return max((batch for batch in found if batch is not None), default=None)

    def _in_home(self, batch: int) -> bool:
        store = self._home.find()
        return store is not None and store.publisher(self.job, self.sink).published(batch)

    def _last(self, record: JobRecord | None) -> tuple[int | None, str]:
        """Return the last batch that a table has, and the hash of its content, which is empty if unknown."""
        found: tuple[int | None, str] = (None, "")
        for name in record.tables if record is not None else ():
            try:
                marker = self._marker(self._snapshot(name))
            except NotFoundError:
                continue
            if marker[0] is not None and (found[0] is None or marker[0] > found[0]):
                found = marker
        return found

    def _has(self, last: tuple[int | None, str], batch: int, content: str) -> bool:
        """Return whether a table has a batch, by its last one, and check that its content is the same."""
        known, known_content = last
        if known is None or known < batch:
            return False
        self._check_same(batch, self._hash(content), known, known_content)
        return True

    # -- staging, publishing --------------------------------------------------------------------------------

    def stage(
        self,
        batch: int,
        rows: Iterable[pa.RecordBatch],
        *,
        table: str | None = None,
        change: RowChange | None = None,
    ) -> list[Staged]:
        if table is not None and is_internal(table):
            return self._home.store().publisher(self.job, self.sink).stage(batch, rows, table=table, change=change)
        return self._stage(batch, rows, table, change)

    def discard(self, batch: int, staged: Sequence[Staged] | None = None) -> None:
        store = self._home.find()
        if store is not None:
            store.publisher(self.job, self.sink).discard(batch, staged)
        record = self._home.record(self.job, self.sink)
        if staged is None and record is not None and record.intent is not None and record.intent.batch == batch:
            # The batch is decided: the rows are needed until all its tables have them.
            return
        self._staging.discard(batch, staged)

    def resume(self, batch: int) -> bool:
        self._complete(self._home.record(self.job, self.sink))
        return self.published(batch)

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
        record = self._home.record(self.job, self.sink)
        self._complete(record)
        last_batch = self._last(record)
        if self._has(last_batch, batch, content):
            self._staging.sweep(batch)
            return False
        if last_batch[0] is not None and last_batch[0] < batch - 1:
            # The batches between had no rows; or the table was replaced by an older copy while the job runs.
            self.check_complete(batch)
        try:
            return self._publish(record, batch, writes, advances, content, claim, last=last)
        except (MissingFileError, PublicationError):
            # Another driver of the job may have published the batch meanwhile, and removed the staged rows.
            if not self._has(self._last(self._home.record(self.job, self.sink)), batch, content):
                raise
            return False

    def _publish(
        self,
        record: JobRecord | None,
        batch: int,
        writes: Sequence[Write | Append],
        advances: Sequence[Advance],
        content: str,
        claim: Claim | None,
        *,
        last: bool,
    ) -> bool:
        lake, home = _divided(writes, advances)
        if claim is not None and not is_internal(claim.table):
            raise UnsupportedError("a claim is a row of a table of headrace", received=repr(claim.table))
        names = list(dict.fromkeys(write.table for write in lake))
        if len(names) != 1 or home or claim is not None or self._in_home(batch):
            return self._publish_by_intent(record, batch, lake, home, content, claim, last=last)
        if not last:
            self._remember(record, names)
        (part,) = self._parts(batch, lake)
        return self._commit(part, batch, content, marked=not last)

    def _remember(self, record: JobRecord | None, names: Sequence[str]) -> None:
        """Record which tables have the markers of this sink, before the first commit."""
        # A home with records of release 0.1.0 belongs to no lake yet.
        self._home.store()
        if record is None or not set(names) <= set(record.tables):
            tables = tuple(sorted({*names, *(record.tables if record is not None else ())}))
            # An earlier intent is complete.
            self._home.jobs().put(JobRecord(self.job, self.sink, tables).row)

    def _commit(self, part: AnyPart, batch: int, content: str, *, marked: bool = True) -> bool:
        """Change one table, and remove staged rows; return whether it lacked the batch."""
        done = self._commit_part(part, batch, content, marked=marked)
        self._staging.sweep(batch)
        return done

    # -- publications with an intent ------------------------------------------------------------------------

    def _publish_by_intent(
        self,
        known: JobRecord | None,
        batch: int,
        lake: Sequence[Write],
        home: Sequence[Write],
        content: str,
        claim: Claim | None,
        *,
        last: bool,
    ) -> bool:
        parts = self._parts(batch, lake)
        for part in parts:
            # What cannot be written is found before the intent is: such an intent could not be completed.
            part.check()
        intent = Intent(batch, tuple(lake), {part.name: part.identity for part in parts}, content)
        self._home.jobs()
        publisher = self._home.store().publisher(self.job, self.sink)
        tables = {*intent.tables, *(known.tables if known is not None else ())}
        record = JobRecord(self.job, self.sink, tuple(sorted(tables)), intent)
        row = publisher.stage(batch, _batches(record), table=JOBS.name, change=RowChange.PUT)
        decided = publisher.publish(
            batch, [*home, Write(JOBS.name, RowChange.PUT, tuple(row))], content=content, last=last, claim=claim
        )
        if not decided:
            for part in parts:
                part.abandon()
            self._complete(self._home.record(self.job, self.sink))
            return False
        failpoints.reach("intent-written")
        for other in self._home.records():
            # A job whose target this one has taken must not complete its last batch later.
            if (other.job, other.sink) != (self.job, self.sink) and set(intent.tables) & set(other.tables):
                self._beside(other)._complete(other)
        for part in parts:
            self._commit_part(part, batch, content)
        failpoints.reach("parts-written")
        if last:
            self._home.jobs().delete({"job": self.job, "sink": self.sink})
        self._staging.sweep(batch)
        return True

    def _complete(self, record: JobRecord | None) -> None:
        """Write the tables that an intent names and that lack its batch."""
        if record is None or record.intent is None:
            return
        intent = record.intent
        for name, identity in intent.tables.items():
            try:
                snapshot = self._snapshot(name)
            except NotFoundError:
                continue
            known, _ = self._marker(snapshot)
            columns = self._columns(snapshot)
            if columns.id != identity or (known is not None and known >= intent.batch):
                continue
            writes = [
                replace(each, alteration=_remaining(each.alteration, columns.schema))
                for each in intent.writes
                if each.table == name
            ]
            try:
                (part,) = self._parts(intent.batch, writes, decided=True)
            except PublicationError:
                # The rows are removed when all tables have them. Another driver may have written this table meanwhile.
                known, _ = self._marker(self._snapshot(name))
                if known is not None and known >= intent.batch:
                    continue
                raise DataLossError(
                    f"table {name!r} lacks a batch that it has had: it was replaced by an older copy",
                    received=f"batch {intent.batch} of job {self.job}",
                    remedy="restore the newest copy of the table; or drop it, create it again, and start the query "
                    "with a new checkpoint location",
                ) from None
            self._commit_part(part, intent.batch, intent.content)
        self._staging.sweep(intent.batch)


def complete_batches(store: Store, home: Home, table: str) -> None:
    """Write the batches into a table that intents in a home have decided, see `headrace.ports.Store`."""
    for record in home.records():
        if record.intent is not None and table in record.intent.tables:
            store.publisher(record.job, record.sink).resume(record.intent.batch)


def _remaining(alteration: Alteration | None, schema: TableSchema) -> Alteration | None:
    """Return changes of columns without the new ones that a table has: its job adds them, too, when it starts again."""
    if alteration is None:
        return None
    return replace(alteration, added=[each for each in alteration.added if each.name not in schema]) or None


def _divided(writes: Sequence[Write | Append], advances: Sequence[Advance]) -> tuple[list[Write], list[Write]]:
    """Return the writes to lake tables, and those to headrace's own tables."""
    lake: list[Write] = []
    home: list[Write] = []
    for write in writes:
        if isinstance(write, Append):
            raise UnsupportedError("this store has no queues", received=repr(write.queue))
        (home if is_internal(write.table) else lake).append(write)
    if advances:
        raise UnsupportedError("this store has no consumers", received=repr(advances[0].consumer))
    return lake, home


def _batches(record: JobRecord) -> list[pa.RecordBatch]:
    fields: Mapping[str, pa.DataType] = dict.fromkeys(record.row, pa.string())
    return [pa.RecordBatch.from_pylist([record.row], pa.schema(list(fields.items())))]
