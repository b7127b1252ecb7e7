"""The start of a mirror: its tunnel, its tables, and the record that says which tunnel fills a table.

The record is a row of table `RECORDS` in the target's store. Its row in `headrace.batches.sinks.jobs` keeps other
jobs from the target, and has the identities of the mirror's tables. A mirror continues from its tunnel's committed
positions, even with a new checkpoint: a change that is read twice gives the same rows. Without that tunnel, rows that
were deleted in the meantime would stay in the target, so the mirror is refused.
"""

from __future__ import annotations

import json
from contextlib import suppress
from dataclasses import dataclass, replace

import pyarrow as pa

from headrace.batches.sinks.bad_rows import clear
from headrace.batches.sinks.feedback import check_no_feedback
from headrace.batches.sinks.jobs import MIRROR, TargetJob, TargetJobs, target_filled, target_replaced
from headrace.derived.mirror.evolution import (
    Evolution,
    SourceColumn,
    difference,
    parse_columns,
    source_columns,
    values_unknown,
)
from headrace.derived.mirror.forms import MirrorTable
from headrace.derived.mirror.history import form_of
from headrace.derived.mirror.state import COLUMNS, MirrorState
from headrace.errors import (
    AlreadyExistsError,
    DataLossError,
    HeadraceError,
    NotFoundError,
    OptionError,
    SchemaError,
    UnsupportedError,
)
from headrace.formats.location import Location, find_table
from headrace.model.own_names import PREFIX
from headrace.model.tables import bad_rows
from headrace.model.tables.schema import Column, TableSchema
from headrace.model.tunnels.values import ChannelKind, Start, StartKind, TunnelKind
from headrace.model.types import can_hold, type_name
from headrace.ports import BadRows, Store, Table, Tunnel

RECORDS = f"{PREFIX}mirrors__"
READER, WORKERS = "reader", "workers"
"""The part of a mirror's definition that says that workers read its tunnel, and not a query of Spark."""
# The part that says that the workers keep bad rows: others then publish no batch.
_BAD_ROWS, _KEPT = "bad rows", "kept"
_AGAIN = "and start the mirror again, in Spark with a new checkpoint location"
_COLUMNS = TableSchema.of(
    {
        "target": "string",
        "source_store": "string",
        "source_table": "string",
        "kind": "string",
        "tunnel": "string",
        "tunnel_name": "string",
        "owns_tunnel": "boolean",
    },
    "target",
)


@dataclass(frozen=True)
class MirrorRecord:
    """The source of a mirror.

    Attributes:
        target: the name of the target table.
        source_store: the identity of the source's store.
        source_table: the name of the source table.
        kind: `MirrorForm.kind`.
        tunnel: the id of the tunnel; None while it is being created.
        tunnel_name: the name of the tunnel.
        owns_tunnel: whether the mirror has created the tunnel.
    """

    target: str
    source_store: str
    source_table: str
    kind: str
    tunnel: str | None
    tunnel_name: str
    owns_tunnel: bool

    def has_source_of(self, other: MirrorRecord) -> bool:
        mine, theirs = (
            (record.target, record.source_store, record.source_table, record.kind) for record in (self, other)
        )
        return mine == theirs


class MirrorSetup:
    """Prepares the stores of a mirror before its query starts.

    Args:
        source: the store of the source, whose ``location`` has its table.
        target: the store of the target, whose table has a name.
        tunnel: the name or id of an existing tunnel; None to create one.
        tunnel_name: the same, or the name of the tunnel to create.
        history: whether the target keeps all versions of each row.
        evolution: what the mirror does after changes of the source's columns.
        bad_rows: where rows go that the target refuses; None if one fails the batch.
        by_workers: workers read the tunnel, and not a query of Spark.

    Attributes:
        table: the source.
        form: what the mirror keeps, with the columns that the source has now.

    Raises:
        SchemaError: the source has no primary key.
        OptionError: the mirror would write into its source.
        UnsupportedError: the given tunnel has several tables.
    """

    def __init__(
        self,
        source: Store,
        location: Location,
        target: Store,
        name: str,
        *,
        tunnel: str | None,
        tunnel_name: str,
        history: bool,
        evolution: Evolution,
        bad_rows: BadRows | None = None,
        by_workers: bool = False,
    ) -> None:
        self.table = table = followed_table(source, location, tunnel)
        schema, numbers = table.numbered_schema()
        self.form = form = form_of(schema, name, target.capabilities, history=history, bad_rows=bad_rows)
        table.schema.check_keyed()
        self._jobs = TargetJobs(target)
        self._source = source
        self._target = target
        self._evolution = evolution
        self._by_workers = by_workers
        self._columns = source_columns(schema, numbers)
        # The record of the job with the columns that `_columns` follow.
        self._known: TargetJob | None = None
        further = [] if form.bad_rows is None else [form.bad_rows.table]
        check_no_feedback(source, table, target, [*(each.name for each in form.tables), *further], "a mirror")
        self._wanted = MirrorRecord(name, source.id, table.name, form.kind, None, tunnel_name, tunnel is None)

    def prepare(self, record: MirrorRecord | None) -> Tunnel:
        """Create what is missing, and return the tunnel to read.

        Args:
            record: the record of the target, as `record` has returned it.

        Raises:
            AlreadyExistsError: the target has rows that are not from this source, or another job fills it; or the
                tunnel's name is in use.
            DataLossError: the target is a mirror of this source whose tunnel no longer exists, or whose tables were
                dropped.
            SchemaError, UnsupportedError: the target's columns do not fit, and cannot be added, or its rows lack values
                of new columns.
            OptionError: another tunnel fills the target, or workers do, and this is a query of Spark; or the target has
                bad rows, and this mirror keeps none.
        """
        self._check_bad_rows()
        for table in self.form.tables:
            # The record of the job is one batch ahead of a table that lacks a decided batch, with its columns.
            self._target.complete_batches(table.name)
        found = self._found(self.form.tables[0])
        if found is not None and self._is_new(found):
            # An empty table is built as if it did not exist.
            found = None
        if found is None or record is None or record.tunnel is None or not record.has_source_of(self._wanted):
            self._check_replaceable(found, record)
            return self._begin(record)
        self._check_reader()
        self._check_further_tables()
        tunnel = self._tunnel(record.tunnel)
        if tunnel is None:
            if _has_rows(found):
                raise DataLossError(
                    f"the tunnel that fills mirror {self.form.target!r} does not exist any more: rows that were "
                    "deleted since then would stay in the mirror",
                    received=f"tunnel {record.tunnel_name!r} ({record.tunnel}) of table {self.table.name!r}",
                    remedy=f"drop the target table, {_AGAIN}: it copies all rows again",
                )
            return self._begin(record)
        if not self._wanted.owns_tunnel and self._wanted.tunnel_name not in (tunnel.id, tunnel.name):
            raise OptionError(
                f"another tunnel fills mirror {self.form.target!r}",
                received=self._wanted.tunnel_name,
                valid=tunnel.name,
                remedy="leave out the tunnel, or drop the target table first",
            )
        self._check_columns_kept(found)
        if self._target.capabilities.evolves:
            self._check_evolution(tunnel)
        else:
            self._add_columns(found, tunnel)
        return tunnel

    def _check_columns_kept(self, found: Table) -> None:
        """Raise `DataLossError` if the target has rows without a column that the last published batch has written.

        A column that the source has dropped since then is not missed.
        """
        recorded, present = self._recorded(), {each.number for each in self._columns}
        lost = [each.name for each in recorded or () if each.name not in found.schema and each.number in present]
        # Another worker changes both at once.
        if lost and self._recorded() == recorded and _has_rows(found):
            raise DataLossError(
                f"columns of mirror {self.form.target!r} were dropped or renamed: its rows lack their values",
                received=f"no column {', '.join(lost)}",
                remedy=f"rename them back; or drop the target table, {_AGAIN}: it copies all rows again",
            )

    def _check_evolution(self, tunnel: Tunnel) -> None:
        """Check that the first batch can change the mirror's tables as the source has changed since the last one."""
        recorded = self._recorded()
        change = None if recorded is None else difference(recorded, self._columns)
        if recorded is None or not change:
            self._fit_tables()
            return
        self._evolution.check(change, self.table.name, self._target)
        self._evolution.alterations(change, self.form, self._target, tunnel)
        self._columns = recorded

    def _add_columns(self, found: Table, tunnel: Tunnel) -> None:
        """Add new columns to the mirror's tables, in a store that makes no other changes."""
        recorded = self._recorded()
        change = None if recorded is None else difference(recorded, self._columns)
        if change:
            self._evolution.check(change, self.table.name, self._target)
        names = [name for name in self.form.tables[0].schema.names if name not in found.schema]
        if names and _has_rows(found) and (values := tunnel.values_of_new_columns(names)):
            raise values_unknown(found.name, values)
        self._fit_tables()

    def _recorded(self) -> tuple[SourceColumn, ...] | None:
        """Return the columns of the source as of the last published batch."""
        self._known = job = self._jobs.find(self.form.target)
        return None if job is None or COLUMNS not in job.definition else parse_columns(job.definition[COLUMNS])

    def is_beginning(self, record: MirrorRecord | None) -> bool:
        """Return whether this mirror is recorded without its tunnel: another worker may be creating it now.

        Args:
            record: the record of the target, as `record` has returned it.
        """
        if record is None or not record.has_source_of(self._wanted) or record.tunnel is not None:
            return False
        job = self._jobs.find(self.form.target)
        if job is not None and READER in job.definition and self._tunnel(job.job):
            # Two workers have begun at the same time, and the one that failed was the last to write.
            self._save(replace(record, tunnel=job.job))
        return True

    def register(self, tunnel: Tunnel) -> MirrorState:
        """Record the mirror as the job of its target, and return its state.

        Raises:
            OptionError: another job has taken the target since `prepare`, or another worker has changed its columns or
                has bad rows, and this one keeps none.
        """
        definition = {COLUMNS: json.dumps(self._columns)}
        if self._by_workers:
            definition |= {READER: WORKERS} | ({} if self.form.bad_rows is None else {_BAD_ROWS: _KEPT})
        job = TargetJob(self.form.target, tunnel.id, definition, kind=MIRROR)
        claim = self._jobs.register(job, [table.name for table in self.form.tables[1:]], known=self._known)
        if self._by_workers:
            # Another worker can have kept bad rows since `prepare`. With this record it publishes nothing.
            self._check_bad_rows()
        return MirrorState(self.form, tunnel.id, self._evolution, self._columns, claim)

    def _check_reader(self) -> None:
        """Raise `OptionError` if workers have read further than a query of Spark can know."""
        job = self._jobs.find(self.form.target)
        if job is not None and READER in job.definition and not self._by_workers:
            raise OptionError(
                f"workers without Spark fill mirror {self.form.target!r}, and the target has their positions",
                received="a query of Spark",
                remedy="go on with `headrace mirror` or headrace.mirror_worker; or drop the target table, "
                f"{_AGAIN}: it copies all rows again",
            )

    def _check_bad_rows(self) -> None:
        """Raise `OptionError` for bad rows that would be written again after later changes of their keys."""
        if self.form.bad_rows is not None or not self._target.capabilities.bad_rows:
            return
        name = bad_rows.table_name(self.form.target)
        table = find_table(self._target, name)
        if table is not None and bad_rows.has_columns(table.schema) and _has_rows(table):
            raise OptionError(
                "the target has bad rows, which a mirror without option badRows does not remove when their keys change",
                received=f"rows in table {name!r}",
                remedy="give the mirror option badRows=table; or write the rows again by `headrace table retry-rows`, "
                "or delete them",
            )

    # -- the parts of a start -------------------------------------------------------------------------------

    def _is_new(self, found: Table) -> bool:
        """Return whether the target was dropped and created again since its job has begun.

        Raises:
            AlreadyExistsError: a followed query fills the target.
            DataLossError: it was created again, and has rows.
        """
        job = self._jobs.find(self.form.target)
        if job is None:
            return False
        if job.target not in self._jobs.replaced(job):
            if job.kind != MIRROR:
                raise target_filled(job)
            return False
        if _has_rows(found):
            received = f"the {self.form.kind} of {self.table.name!r}"
            raise target_replaced(job.target, received, f"drop the table, {_AGAIN}")
        return True

    def _check_further_tables(self) -> None:
        """Raise `DataLossError` if a table was dropped without which the target cannot be continued."""
        job = self._jobs.find(self.form.target)
        lost = set() if job is None else set(self._jobs.replaced(job))
        lost |= {table.name for table in self.form.tables[1:] if self._found(table) is None}
        if lost:
            raise DataLossError(
                f"table {', '.join(sorted(lost))} was dropped, which has the current version of each row of history "
                f"{self.form.target!r}: versions could not be closed",
                received=f"the {self.form.kind} of {self.table.name!r}",
                remedy=f"restore both tables from a backup; or drop table {self.form.target!r}, too, "
                f"{_AGAIN}, and the history begins again",
            )

    def _found(self, table: MirrorTable) -> Table | None:
        return find_table(self._target, table.name, table.schema.arrow)

    def _begin(self, record: MirrorRecord | None) -> Tunnel:
        """Start from the base data of a tunnel.

        The record is written before the tunnel is created, so a start after a crash knows whose tunnel it finds.
        """
        ours = record is not None and record.owns_tunnel and record.source_store == self._source.id
        if record is not None and ours:
            self._source.drop_tunnel(record.tunnel_name, record.source_table, missing_ok=True)
        wanted = self._wanted
        given = None if wanted.owns_tunnel else self._given_tunnel()
        if given is None and self._tunnel(wanted.tunnel_name) is not None:
            raise AlreadyExistsError(
                "the source has a tunnel with the name of the mirror's own tunnel",
                received=wanted.tunnel_name,
                remedy="give the mirror another name, or drop the tunnel; an unread tunnel can also be given by option "
                "tunnel",
            )
        # Before the record, for which other workers wait: the target may be impossible.
        self._fit(self.form.tables[0])
        self._save(wanted)
        try:
            # State and bad rows of an earlier job. The record has no tunnel yet, so a start after a crash begins here.
            for further in self.form.tables[1:]:
                self._target.drop_table(further.name, missing_ok=True)
            if self.form.bad_rows is not None:
                clear(self._target, self.form.bad_rows)
            self._fit_tables()
            tunnel = given or self._source.create_tunnel(
                self.table.name, wanted.tunnel_name, TunnelKind.BASE_AND_STREAM
            )
        except HeadraceError:
            # Without a tunnel, the next start begins at once. The first error is more important.
            with suppress(HeadraceError):
                if given is not None or self._tunnel(wanted.tunnel_name) is None:
                    self._records().delete({"target": wanted.target})
            raise
        self._save(replace(wanted, tunnel=tunnel.id))
        return tunnel

    def _given_tunnel(self) -> Tunnel:
        """Return the tunnel that the user has named, which no reader may have read."""
        tunnel = self._source.tunnel(self._wanted.tunnel_name, self.table.name)
        if tunnel.kind is not TunnelKind.BASE_AND_STREAM:
            raise OptionError(
                "a mirror needs a tunnel with base data and changes",
                received=f"{tunnel.name}: {tunnel.kind}",
                valid=str(TunnelKind.BASE_AND_STREAM),
            )
        if not _is_unread(tunnel):
            raise OptionError(
                "the base data of the tunnel has been read, at least in part, so a new mirror would miss rows",
                received=tunnel.name,
                remedy="leave out the tunnel: the mirror creates one",
            )
        return tunnel

    def _check_replaceable(self, found: Table | None, record: MirrorRecord | None) -> None:
        if found is None or not _has_rows(found):
            return
        name = self.form.target
        if record is None or record.tunnel is None:
            raise AlreadyExistsError(
                "the target of a new mirror must be empty",
                received=f"table {name!r} has rows",
                remedy="choose another target, or drop the table",
            )
        raise AlreadyExistsError(
            "the target is a mirror of another kind or source",
            received=f"table {name!r}: {record.kind} of {record.source_table!r}",
            valid=f"{self._wanted.kind} of {self._wanted.source_table!r}",
            remedy="choose another target, or drop the table",
        )

    def _fit_tables(self) -> None:
        """Create missing tables, and add missing columns."""
        for wanted in self.form.tables:
            self._fit(wanted)

    def _fit(self, wanted: MirrorTable) -> None:
        found = self._found(wanted)
        if found is None:
            try:
                self._target.create_table(wanted.name, self._fields(wanted), wanted.schema.primary_key)
                return
            except AlreadyExistsError:
                # Another worker has created it, or the name is that of a queue.
                found = self._found(wanted)
                if found is None:
                    raise
        _fit_columns(found, wanted, can_add=self._target.capabilities.add_columns)

    def _fields(self, wanted: MirrorTable) -> pa.Schema:
        if self._target.capabilities.not_null:
            return wanted.schema.arrow
        key = wanted.schema.primary_key
        return pa.schema([field if field.name in key else field.with_nullable(True) for field in wanted.schema.arrow])

    def _tunnel(self, id_or_name: str) -> Tunnel | None:
        try:
            return self._source.tunnel(id_or_name, self.table.name)
        except NotFoundError:
            return None

    # -- the record -----------------------------------------------------------------------------------------

    def _records(self) -> Table:
        name = self._target.beside(self.form.target, RECORDS)
        return self._target.create_table(name, _COLUMNS.arrow, _COLUMNS.primary_key, exist_ok=True)

    def record(self) -> MirrorRecord | None:
        """Return the record of the target."""
        row = self._records().get({"target": self.form.target})
        return None if row is None else MirrorRecord(**row)

    def _save(self, record: MirrorRecord) -> None:
        self._records().put([vars(record)])


def followed_table(store: Store, source: Location, tunnel: str | None) -> Table:
    """Return the table that a mirror copies: a given tunnel may have a part of its table.

    Raises:
        UnsupportedError: the given tunnel has several tables.
    """
    if tunnel is None:
        return source.open_table(store)
    given = store.tunnel(tunnel, source.table, source.columns)
    # With JSON rows, the tunnel is one of a table with the patterns of its tables as its name.
    if given.whole_transactions and (given.tables or given.table.name != source.table):
        raise UnsupportedError(
            "a mirror or a history reads a tunnel of its table alone",
            received=f"tunnel {given.name} of {given.table.name}",
            remedy="leave out option tunnel, which creates one; or follow a scan of it: INSERT INTO … SELECT *",
        )
    return given.table


def check_source(store: Store) -> None:
    """Raise `UnsupportedError` unless a store logs changes with whole rows."""
    if not store.capabilities.tunnels:
        raise UnsupportedError(
            "tables of this store keep no changes, so they cannot be mirrored",
            received=store.url,
            remedy="let writers append to a queue, and write it into the target with headrace.write_stream",
        )
    if not store.capabilities.whole_rows:
        raise UnsupportedError(
            "an update in the log of this store has only the cells that were set, and rows can have columns that the "
            "table does not declare: a mirror could miss values",
            received=store.url,
            remedy='write the changes with headrace.write_stream(…, row_change="update")',
        )


def _has_rows(table: Table) -> bool:
    with table.scan(list(table.schema.primary_key), batch_rows=1) as reader:
        return any(batch.num_rows for batch in reader)


def _fit_columns(found: Table, wanted: MirrorTable, *, can_add: bool) -> None:
    schema = found.schema
    if schema.primary_key != wanted.schema.primary_key:
        raise SchemaError(
            f"table {wanted.name!r} has another primary key than the mirror",
            received=", ".join(schema.primary_key) or "none",
            valid=", ".join(wanted.schema.primary_key),
            remedy="choose another target, or drop the table",
        )
    missing: list[Column] = []
    for column in wanted.schema.columns:
        if column.name not in schema:
            missing.append(column)
        elif not can_hold(schema.column(column.name).type, column.type):
            raise SchemaError(
                f"column {column.name!r} of table {wanted.name!r} has another type than in the source",
                received=type_name(schema.column(column.name).type),
                valid=type_name(column.type),
                remedy="choose another target, or drop the table",
            )
    if not missing:
        return
    if not can_add:
        raise UnsupportedError(
            f"the source has new columns, and the store of table {wanted.name!r} cannot add columns to a table",
            received=", ".join(f"{column.name} {type_name(column.type)}" for column in missing),
            remedy="add them to the target with the tools of its store, and start the mirror again",
        )
    found.add_columns({column.name: column.type for column in missing})


def _is_unread(tunnel: Tunnel) -> bool:
    """Return whether no row of the base data of a tunnel is processed."""
    try:
        first = tunnel.start_positions(Start(StartKind.BEGINNING))
    except DataLossError:
        return False
    base = [each for each in tunnel.channels() if each.kind is ChannelKind.BASE_DATA]
    return all(each.committed == first[each.id] for each in base)
