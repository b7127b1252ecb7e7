"""Publishes the batches of the sinks of jobs into Delta tables.

1. Tasks stage rows as Parquet files below the store's own directory, which readers do not use: `staging`.
2. The driver plans the commits of all tables: `headrace_lake.delta.changes`.
3. A batch of one table is one commit, with the rows and the marker.
4. A batch of several tables, of headrace's own tables, or with a claim has an *intent* first: one transaction of the
   home with the claim, the rows of headrace's own tables and the intent. Then each table changes in a commit with the
   marker. The next driver, or the next job of a table, completes an intent whose driver has died.

The marker of a table is a pair of ``txn`` actions: the batch, and a hash of its content.
"""

from __future__ import annotations

import hashlib
import itertools
from collections.abc import Callable, Iterable, Mapping, Sequence
from contextlib import suppress
from dataclasses import dataclass, replace

import pyarrow as pa

from headrace.errors import NotFoundError, PublicationError, StoreError, UnsupportedError
from headrace.model.own_names import is_internal
from headrace.model.tables.alterations import Alteration
from headrace.model.tables.changes import RowChange
from headrace.model.tables.schema import TableSchema
from headrace.ports import Advance, Append, Claim, Publisher, Staged, Write
from headrace.ports.publication import alterations_of
from headrace.rows import to_arrow
from headrace.rows.by_position import repeats
from headrace.support import failpoints
from headrace_lake import data_files
from headrace_lake.data_files import MissingFileError
from headrace_lake.delta import maintenance
from headrace_lake.delta.actions import Actions
from headrace_lake.delta.changes import Planner, ReadyFiles, has_keys, read_keys
from headrace_lake.delta.commits import commit
from headrace_lake.delta.home import JOBS, Home, Intent, JobRecord
from headrace_lake.delta.snapshot import Snapshot
from headrace_lake.delta.staging import WHOLE_ROWS, Staging
from headrace_lake.delta.table import DeltaTable
from headrace_lake.folding import TableWrite
from headrace_lake.maintenance import has_many_small
from headrace_lake.places import Place

FindTable = Callable[[str], DeltaTable]


@dataclass(frozen=True)
class _Part:
    """The commit of one table, which is planned."""

    table: DeltaTable
    identity: str
    planner: Planner
    alteration: Alteration | None

    def actions(self, snapshot: Snapshot) -> Actions:
        """Check a version, and return the actions for it."""
        _check(snapshot, self.planner)
        if self.alteration is None:
            return self.planner.actions(snapshot)
        altered = snapshot.altered(self.alteration)
        return replace(self.planner.actions(altered), definition=snapshot.changed(altered.schema))


class DeltaPublisher(Publisher):
    """Publishes the batches of one sink of a job in a directory of Delta tables, each once.

    Args:
        find: returns a Delta table by its name.
        home: the store of what changes in a transaction.
        own_directory: the store's directory for staged rows.
    """

    def __init__(self, find: FindTable, home: Home, own_directory: Place, job: str, sink: str) -> None:
        self.job = job
        self.sink = sink
        self._find = find
        self._home = home
        self._own_directory = own_directory
        self._staging = Staging(own_directory, job, sink)

    def __repr__(self) -> str:
        return f"DeltaPublisher(job={self.job!r}, sink={self.sink!r})"

    # -- markers ------------------------------------------------------------------------------------------

    @property
    def _app(self) -> str:
        return f"headrace/{self.job}/{self.sink}"

    @property
    def _content_app(self) -> str:
        return f"{self._app}#content"

    def published(self, batch: int) -> bool:
        last, _ = self._last(self._home.record(self.job, self.sink))
        return (last is not None and last >= batch) or self._in_home(batch)

    def last_batch(self) -> int | None:
        store = self._home.find()
        found = [None if store is None else store.publisher(self.job, self.sink).last_batch()]
        found += [self._beside(record)._last(record)[0] for record in self._home.records(self.job)]
        return max((batch for batch in found if batch is not None), default=None)

    def _beside(self, record: JobRecord) -> DeltaPublisher:
        """Return the publisher of another record."""
        return DeltaPublisher(self._find, self._home, self._own_directory, record.job, record.sink)

    def _in_home(self, batch: int) -> bool:
        store = self._home.find()
        return store is not None and store.publisher(self.job, self.sink).published(batch)

    def _last(self, record: JobRecord | None) -> tuple[int | None, str]:
        """Return the last batch that a table has, and the hash of its content, which is empty if unknown."""
        found: tuple[int | None, str] = (None, "")
        for name in record.tables if record is not None else ():
            try:
                marker = self._marker(self._find(name).snapshot())
            except NotFoundError:
                continue
            if marker[0] is not None and (found[0] is None or marker[0] > found[0]):
                found = marker
        return found

    def _marker(self, snapshot: Snapshot) -> tuple[int | None, str]:
        """Return the last batch that a version has, and the hash of its content."""
        return snapshot.marker(self._app), _text(snapshot.marker(self._content_app))

    # -- staging ------------------------------------------------------------------------------------------

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
        snapshot = None
        if table is not None and change in WHOLE_ROWS:
            snapshot = self._find(table).snapshot()
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
        return self._staging.put(batch, rows, snapshot)

    def discard(self, batch: int, staged: Sequence[Staged] | None = None) -> None:
        store = self._home.find()
        if store is not None:
            store.publisher(self.job, self.sink).discard(batch, staged)
        record = self._home.record(self.job, self.sink)
        if staged is None and record is not None and record.intent is not None and record.intent.batch == batch:
            # The batch is decided: the rows are needed until all its tables have them.
            return
        self._staging.discard(batch, staged)

    # -- publishing ---------------------------------------------------------------------------------------

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
        known, known_content = self._last(record)
        if known is not None and known >= batch:
            self._check_same(batch, _hash(content), known, known_content)
            self._staging.sweep(batch)
            return False
        try:
            return self._publish(record, batch, writes, advances, content, claim, last=last)
        except (MissingFileError, PublicationError):
            # Another driver of the job has published the batch meanwhile, and removed the staged rows.
            if self._last(self._home.record(self.job, self.sink))[0] != batch:
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
        if record is None or not set(names) <= set(record.tables):
            tables = tuple(sorted({*names, *(record.tables if record is not None else ())}))
            # An earlier intent is complete.
            self._home.jobs().put(JobRecord(self.job, self.sink, tables).row)

    def _commit(self, part: _Part, batch: int, content: str, *, marked: bool = True) -> bool:
        """Change one table, and remove staged rows; return whether it lacked the batch."""
        done = self._commit_part(part, batch, content, marked=marked)
        self._staging.sweep(batch)
        return done

    def _commit_part(self, part: _Part, batch: int, content: str, *, marked: bool = True) -> bool:
        done: Actions | None = None
        many = False

        def plan(snapshot: Snapshot) -> Actions | None:
            nonlocal done, many
            # An earlier attempt was certainly not committed.
            done = None
            known, known_content = self._marker(snapshot)
            if marked and known is not None and known >= batch:
                self._check_same(batch, _hash(content), known, known_content)
                return None
            done = part.actions(snapshot)
            many = has_many_small(snapshot.files)
            return done

        markers = {self._app: batch, self._content_app: _number(content)} if marked else {}
        try:
            version = commit(
                part.table.name,
                part.table.directory,
                plan,
                log=part.table.log,
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
            part.actions(part.table.snapshot())
        intent = Intent(batch, tuple(lake), {part.table.name: part.identity for part in parts}, content)
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
                part.planner.clean(None)
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
                snapshot = self._find(name).snapshot()
            except NotFoundError:
                continue
            known, _ = self._marker(snapshot)
            if snapshot.id != identity or (known is not None and known >= intent.batch):
                continue
            writes = [
                replace(each, alteration=_remaining(each.alteration, snapshot.schema))
                for each in intent.writes
                if each.table == name
            ]
            (part,) = self._parts(intent.batch, writes)
            self._commit_part(part, intent.batch, intent.content)
        self._staging.sweep(intent.batch)

    # -- writes -------------------------------------------------------------------------------------------

    def _parts(self, batch: int, writes: Sequence[Write]) -> list[_Part]:
        """Check the writes to Delta tables; return the commit of each table."""
        for write in writes:
            self._staging.check(batch, write.staged)
        parts = []
        alterations = alterations_of(writes)
        for name in dict.fromkeys(write.table for write in writes):
            table = self._find(name)
            alteration = alterations.get(name)
            snapshot = table.snapshot().altered(alteration)
            mine = [write for write in writes if write.table == name]
            mine = [write for write in mine if write.staged or write.change is RowChange.REPLACE_ALL]
            prefix = f"{data_files.PREFIX}{self._staging.digest}-{batch}-"
            ready = self._ready(batch, mine, snapshot)
            planner = Planner(ready or [self._loaded(batch, write, snapshot.schema) for write in mine], prefix)
            parts.append(_Part(table, snapshot.id, planner, alteration))
        return parts

    def _ready(self, batch: int, writes: Sequence[Write], snapshot: Snapshot) -> ReadyFiles | None:
        """Return the staged files of the writes, if the table can have them as they are.

        These are whole rows of a single write, and deletes of other keys.
        """
        whole = [write for write in writes if write.change in WHOLE_ROWS]
        deletes = [write for write in writes if write.change is RowChange.DELETE]
        if len(whole) != 1 or len(whole) + len(deletes) < len(writes):
            return None
        if snapshot.partition_columns:
            return None
        schema = snapshot.schema
        files, keys = (
            [self._staging.path(batch, each) for w in group for each in w.staged] for group in (whole, deletes)
        )
        for path in files:
            with data_files.opened(path) as opened:
                if not data_files.is_sorted(opened, snapshot.id) or not opened.schema_arrow.equals(schema.arrow):
                    return None
        if (len(files) < 2 and not keys) or not schema.primary_key:
            return ReadyFiles(whole[0].change, files)
        if not all(has_keys(path, schema) for path in keys):
            return None
        # A file has different keys, and two files can have the same one.
        found = read_keys([*files, *keys], schema)
        return None if repeats(found, schema.primary_key) else ReadyFiles(whole[0].change, files, found)

    def _loaded(self, batch: int, write: Write, schema: TableSchema) -> TableWrite:
        return TableWrite.of(write.change, [self._staging.load(batch, each) for each in write.staged], schema)


def _check(snapshot: Snapshot, planner: Planner) -> None:
    """Raise an error if headrace cannot change a table so."""
    if not planner.changes <= {*WHOLE_ROWS}:
        snapshot.schema.check_keyed()
    replaces = RowChange.REPLACE_ALL in planner.changes
    snapshot.check_writable(removes=replaces or bool(snapshot.schema.primary_key))


def _remaining(alteration: Alteration | None, schema: TableSchema) -> Alteration | None:
    """Return changes of columns without the new ones that a table has: its job adds them, too, when it starts again."""
    if alteration is None:
        return None
    return replace(alteration, added=[each for each in alteration.added if each.name not in schema]) or None


def _is_altered(fields: pa.Schema, schema: TableSchema) -> bool:
    """Return whether rows have columns that a table does not have, or nulls where it has none."""
    nullable = {column.name: column.nullable for column in schema.columns}
    return any(field.name not in nullable or (field.nullable and not nullable[field.name]) for field in fields)


def _divided(writes: Sequence[Write | Append], advances: Sequence[Advance]) -> tuple[list[Write], list[Write]]:
    """Return the writes to Delta tables, and those to headrace's own tables."""
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


def _number(content: str) -> int:
    """Return a hash of a batch's content as a version of a transaction; 0 for an unknown content."""
    return int.from_bytes(hashlib.sha256(content.encode()).digest()[:8]) >> 1 if content else 0


def _text(number: int | None) -> str:
    return str(number) if number else ""


def _hash(content: str) -> str:
    """Return the hash of a content as `_marker` returns it."""
    return _text(_number(content))
