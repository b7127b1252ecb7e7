"""The jobs that fill tables: a table beside the targets, the registry, has a row for each followed query and mirror.

The state of a job is right only together with the rows that the job has written. So a target has one job, which begins
with an empty target. No other job writes the target until it has replaced this one. The row has the identities of the
job's tables: a target that was dropped and created again lacks the rows that the state counts.

The publication of each batch checks in its transaction that the row has not changed since the batch began, and puts the
row again. So of two jobs that begin at the same time only one publishes its first batch, and a job whose target was
taken publishes no further batch. In a store without transactions, a job takes the row before its first batch writes
anything.
"""

from __future__ import annotations

import hashlib
import json
import uuid
from collections.abc import Iterable, Mapping
from dataclasses import dataclass, field, replace
from typing import Any

from headrace.errors import (
    AlreadyExistsError,
    ClaimLostError,
    DataLossError,
    HeadraceError,
    NotFoundError,
    OptionError,
    StoreDamagedError,
)
from headrace.model.own_names import PREFIX
from headrace.ports import Claim, Store

_JOBS = f"{PREFIX}followed__"
_STATE = f"{PREFIX}state_"
_COLUMNS = {"target": "string", "job": "string", "content": "string"}
_HASH_LENGTH = 12
# PostgreSQL's limit for names is 63 bytes; a name can have a suffix of 8.
_LONGEST_TARGET = 24
QUERY, MIRROR = "followed query", "mirror"
REPLACE = "CREATE OR REPLACE STREAM … in SQL, follow(…, replace=True) in Python"
ANEW = "use a new checkpoint location and a new tunnel, and set overwrite to true"


def state_name(store: Store, target: str, job: str) -> str:
    """Return the name, or the beginning of the names, of the tables with the state of a job."""
    digest = hashlib.sha256(f"{job}/{target}".encode()).hexdigest()[:_HASH_LENGTH]
    name = target.rpartition("/")[2]
    # A name with a dot or a quote would be in quotes in PostgreSQL, and could not be continued.
    shown = name.encode()[:_LONGEST_TARGET].decode(errors="ignore").replace(".", "_").replace('"', "_")
    return store.beside(target, f"{_STATE}{shown}_{digest}")


@dataclass(frozen=True)
class TargetJob:
    """A job that fills a table.

    Attributes:
        target: the table that the job writes.
        job: Spark's id of the query; of a mirror the id of its tunnel.
        definition: the meaning of the state, by the names of its parts: the query, and the content of static tables.
        state_tables: the names of the tables with the job's state.
        overwrite: the first batch replaces the rows of the target.
        obsolete: tables with the state of earlier jobs, which are to be dropped.
        settings: the settings of Spark, and the variables in the text of the query, by name.
        tables: the identities of the target, of the registry, and of a mirror's further tables, by name.
        kind: `QUERY` or `MIRROR`.
        contents: what the tables of state have, in words, by their names.
        layout: what the job notes about its state tables, as JSON.
        fence: a text that is new each time when a new text of the query is about to be computed, so that a query with
            the old text publishes nothing more.
    """

    target: str
    job: str
    definition: Mapping[str, str]
    state_tables: tuple[str, ...] = ()
    overwrite: bool = False
    obsolete: tuple[str, ...] = ()
    settings: Mapping[str, str] = field(default_factory=dict)
    tables: Mapping[str, str] = field(default_factory=dict)
    kind: str = QUERY
    contents: Mapping[str, str] = field(default_factory=dict)
    layout: Mapping[str, Any] = field(default_factory=dict)
    fence: str = ""


class TargetJobs:
    """The jobs of all targets in a store."""

    def __init__(self, store: Store) -> None:
        self._store = store

    def find(self, target: str) -> TargetJob | None:
        """Return the job of a target."""
        row = self._row(target)
        return None if row is None else _job_of(row)

    def own(self, wanted: TargetJob) -> TargetJob | None:
        """Return the record of a job that has begun; None if its target has none, or that of another job."""
        known = self.find(wanted.target) if wanted.job else None
        return known if known is not None and known.job == wanted.job else None

    def check(self, wanted: TargetJob) -> None:
        """Check whether a followed query can start or continue, without changing the store.

        Args:
            wanted: the job; its ``job`` is empty if it has no checkpoint yet.

        Raises:
            OptionError, DataLossError: see `begin`.
        """
        known = self.find(wanted.target)
        if known is not None and known.job == wanted.job:
            self._check_same(known, wanted)
            lost = [name for name in known.state_tables if self._identity(name) is None]
            # Without transactions, the record precedes the state of the first batch.
            if lost and self._store.capabilities.transactions:
                raise DataLossError(
                    f"the state of this query was dropped: {', '.join(lost)}",
                    received=f"the checkpoint of query {wanted.job}, which follows a table into {wanted.target!r}",
                    remedy=f"to compute the target again, {ANEW}",
                )
        elif not wanted.job:
            self._check_free(known, wanted)

    def begin(self, wanted: TargetJob, batch: int) -> tuple[TargetJob, Claim]:
        """Return the job of a target, before each of its batches, and the claim for the publication of the batch.

        With batch 0, the job can take the target.

        Raises:
            OptionError: the target has rows, and the job does not overwrite them; another job has taken the target; or
                the definition or a setting of the job has changed.
            DataLossError: the target was dropped and created again.
            AlreadyExistsError: a mirror fills the target, or a job under another of its names.
        """
        row = self._row(wanted.target)
        known = None if row is None else _job_of(row)
        if known is not None and known.job == wanted.job:
            tables = self._check_same(known, wanted)
            self.drop(known.obsolete)
            # A record that was restored with its tables becomes complete.
            now = replace(
                known,
                obsolete=(),
                settings=wanted.settings,
                tables=tables,
                contents=wanted.contents,
                layout=wanted.layout,
                fence="",
            )
            return known, self._claim(row, now)
        if batch:
            raise target_taken(wanted.target, wanted.job, batch)
        self._check_free(known, wanted)
        obsolete = () if known is None else (*known.obsolete, *known.state_tables)
        begun = replace(
            wanted,
            obsolete=tuple(name for name in obsolete if name not in wanted.state_tables),
            tables=self._registered(wanted.target),
        )
        claim = self._claim(row, begun)
        if self._store.capabilities.transactions:
            return begun, claim
        self._take(claim)
        return begun, self._claim(claim.after)

    def fence(self, known: TargetJob, tables: Iterable[str] = ()) -> TargetJob:
        """Change the record of a query, so that its running batch is not published; return the record.

        Args:
            tables: the new tables of state. They are obsolete unless the new text is published.

        Raises:
            OptionError: another job has taken the target, or the query has published a batch in the meantime.
        """
        row = self._row(known.target)
        if row is None or _job_of(row) != known:
            raise target_taken(known.target, known.job, 0)
        fenced = replace(known, fence=uuid.uuid4().hex, obsolete=(*known.obsolete, *tables))
        try:
            # The job itself has published its batches 0 and later.
            publisher = self._store.publisher(f"{known.job}-{fenced.fence}")
            publisher.publish(0, [], claim=self._claim(row, fenced), last=True)
        except ClaimLostError:
            raise target_taken(known.target, known.job, 0) from None
        return fenced

    def succeed(self, fenced: TargetJob, wanted: TargetJob) -> tuple[TargetJob, Claim]:
        """Return the record of the new text of a query, and the claim that replaces its record by it.

        Args:
            fenced: the record as `fence` returned it.
            wanted: the job with the new text.
        """
        obsolete = (*fenced.obsolete, *fenced.state_tables)
        now = replace(
            wanted,
            obsolete=tuple(name for name in obsolete if name not in wanted.state_tables),
            tables=self._registered(wanted.target),
        )
        return now, Claim(self._registry_of(now.target), _row_of(fenced), _row_of(now))

    def register(self, job: TargetJob, tables: Iterable[str] = (), *, known: TargetJob | None = None) -> Claim:
        """Record a mirror as the job of its target, and return the claim of its publications.

        Args:
            tables: its tables besides the target.
            known: the record on which the definition of the job depends; None if it depends on none.

        Raises:
            OptionError: another job has taken the target at the same time, or the record is no longer the known one.
            AlreadyExistsError: another job fills the target, under another of its names.
        """
        alias = self._under_other_name(job.target)
        if alias is not None:
            raise target_filled(alias)
        row = self._row(job.target)
        if known is not None and (row is None or _job_of(row) != known):
            raise target_taken(job.target, job.job, 0)
        wanted = replace(job, tables=self._registered(job.target, tables))
        claim = self._claim(row, wanted)
        if claim.before != claim.after:
            self._take(claim)
            self.drop(() if row is None else _job_of(row).state_tables)
        return self._claim(claim.after)

    def redefined(self, claim: Claim, definition: Mapping[str, str]) -> Claim:
        """Return the claim that gives parts of a job's definition other values, after a claim that was published."""
        known = _job_of(claim.after)
        job = replace(known, definition={**known.definition, **definition})
        return Claim(claim.table, claim.after, _row_of(job))

    def replaced(self, job: TargetJob) -> list[str]:
        """Return the tables of a job that were dropped, or dropped and created again, since the job recorded them."""
        return self._replaced(job, self._identities(job.target, job.tables))

    def _replaced(self, job: TargetJob, now: Mapping[str, str]) -> list[str]:
        registry = self._registry_of(job.target)
        # In a copy of the store, and after a table was restored from a dump, all identities are new.
        if job.tables.get(registry) != now.get(registry):
            return []
        return [name for name, identity in job.tables.items() if now.get(name) != identity]

    def check_other(self, target: str, writer: str) -> None:
        """Check that a target has no job, before another writer of rows by key writes it.

        Raises:
            OptionError: it has one.
        """
        known = self.find(target) or self._under_other_name(target)
        if known is not None and known.target not in self.replaced(known):
            raise OptionError(
                f"a {known.kind} fills table {target!r}, and {writer} would change rows that it relies on",
                received=f"the target of {writer}",
                remedy=f"choose another target; if you no longer need the {known.kind}, drop the table and create it "
                "again",
            )

    def check_whole(self, target: str) -> None:
        """Raise `DataLossError` if a table of the target's job was dropped, or dropped and created again."""
        job = self.find(target)
        lost = [] if job is None else self.replaced(job)
        if job is not None and lost:
            raise target_replaced(", ".join(lost), f"the {job.kind} into {target!r}", "start it again, which says how")

    def is_lost(self, claim: Claim) -> bool:
        """Return whether another job has taken the target since a job received its claim."""
        return self._row(claim.after["target"]) not in (claim.before, claim.after)

    def has_put(self, claim: Claim) -> bool:
        """Return whether a publication with a claim is the last one of its target."""
        return self._row(claim.after["target"]) == claim.after

    def drop(self, tables: Iterable[str]) -> None:
        """Drop tables of state: the obsolete ones of a job, or those of a job whose target another job has taken."""
        for name in tables:
            self._store.drop_table(name, missing_ok=True)

    def _under_other_name(self, target: str) -> TargetJob | None:
        """Return the job of the same table whose row has another name of it, such as one with its schema."""
        identity = self._identity(target)
        try:
            registry = self._store.table(self._registry_of(target), _COLUMNS)
        except NotFoundError:
            return None
        jobs = map(_job_of, registry.scan().read_all().to_pylist())
        same = (job for job in jobs if job.target != target and identity and job.tables.get(job.target) == identity)
        return next((job for job in same if job.target not in self.replaced(job)), None)

    def _registry_of(self, target: str) -> str:
        """Return the name of the table with the jobs of targets in the directory or schema of this one."""
        return self._store.beside(target, _JOBS)

    def _row(self, target: str) -> dict[str, Any] | None:
        try:
            return self._store.table(self._registry_of(target), _COLUMNS).get({"target": target})
        except NotFoundError:
            return None

    def _claim(self, row: Mapping[str, str] | None, job: TargetJob | None = None) -> Claim:
        """Return the claim that replaces a row with that of a job; without a job, with the same row."""
        after = row if job is None or (row is not None and job == _job_of(row)) else _row_of(job)
        assert after is not None
        return Claim(self._registry_of(after["target"]), row, after)

    def _take(self, claim: Claim) -> None:
        """Put the row of a claim."""
        job = claim.after["job"]
        publisher = self._store.publisher(job)
        try:
            if self._store.capabilities.transactions:
                publisher.publish(0, [], claim=claim, last=True)
            else:
                publisher.take(claim)
        except ClaimLostError:
            raise target_taken(claim.after["target"], job, 0) from None

    # -- the identities of tables ---------------------------------------------------------------------------

    def _registered(self, target: str, further: Iterable[str] = ()) -> dict[str, str]:
        """Create the registry if it does not exist, and return the identities of a job's tables."""
        self._store.create_table(self._registry_of(target), _COLUMNS, "target", exist_ok=True)
        return self._identities(target, further)

    def _identities(self, target: str, further: Iterable[str] = ()) -> dict[str, str]:
        names = dict.fromkeys((target, self._registry_of(target), *further))
        return {name: identity for name in names if (identity := self._identity(name))}

    def _identity(self, table: str) -> str | None:
        try:
            return self._store.table(table).identity()
        except NotFoundError:
            return None

    # -- checks ---------------------------------------------------------------------------------------------

    def _check_same(self, known: TargetJob, wanted: TargetJob) -> dict[str, str]:
        """Check that a job is the same as before, and return the identities of its tables."""
        _check_definition(known, wanted)
        now = self._identities(wanted.target, known.tables)
        if self._replaced(known, now):
            raise target_replaced(wanted.target, f"the checkpoint of query {wanted.job}", ANEW)
        return now

    def _check_free(self, known: TargetJob | None, wanted: TargetJob) -> None:
        alias = self._under_other_name(wanted.target)
        if alias is not None:
            raise target_filled(alias)
        if wanted.overwrite:
            return
        if known is not None:
            if not self._store.capabilities.transactions:
                # Its first batch can be running, and its tasks write into the target.
                raise target_taken(wanted.target, wanted.job, 0)
            if known.kind == MIRROR and wanted.target not in self.replaced(known):
                raise target_filled(known)
        table = self._store.table(wanted.target)
        if not any(part.num_rows for part in table.scan([table.schema.primary_key[0]], batch_rows=1)):
            return
        raise OptionError(
            f"a query with a new checkpoint needs an empty target, and table {wanted.target!r} has rows",
            remedy="set overwrite to true to replace its rows in the first batch, delete its rows, or use the "
            "checkpoint of the query that wrote them",
        )


def _job_of(row: Mapping[str, Any]) -> TargetJob:
    target = row["target"]
    try:
        content = json.loads(row["content"])
        return TargetJob(
            target,
            row["job"],
            dict(content["definition"]),
            tuple(content["state_tables"]),
            bool(content["overwrite"]),
            tuple(content["obsolete"]),
            dict(content["settings"]),
            dict(content["tables"]),
            content["kind"],
            dict(content.get("contents", {})),
            dict(content.get("layout", {})),
            str(content.get("fence", "")),
        )
    except (ValueError, KeyError, TypeError) as error:
        raise StoreDamagedError(f"the row of {target!r} in table {_JOBS!r} is invalid", received=str(error)) from None


def _row_of(job: TargetJob) -> dict[str, str]:
    content = {
        "definition": dict(job.definition),
        "state_tables": job.state_tables,
        "overwrite": job.overwrite,
        "obsolete": job.obsolete,
        "settings": dict(job.settings),
        "tables": dict(job.tables),
        "kind": job.kind,
        "contents": dict(job.contents),
        "layout": dict(job.layout),
        "fence": job.fence,
    }
    return {"target": job.target, "job": job.job, "content": json.dumps(content)}


def is_changed(known: TargetJob, wanted: TargetJob) -> bool:
    """Return whether the definition or a setting of a job differs from its record."""
    try:
        _check_definition(known, wanted)
    except OptionError:
        return True
    return False


def target_taken(target: str, job: str, batch: int) -> OptionError:
    """Return the error for a job whose target belongs to another job."""
    if not batch:
        return OptionError(
            f"another query follows a table into {target!r}",
            received=f"the first batch of query {job}",
            remedy="use one target for each query; if you no longer need the other query, set overwrite to true",
        )
    return OptionError(
        f"the state of this query is no longer kept: another query follows a table into {target!r}",
        received=f"batch {batch} of query {job}",
        remedy="use one target for each query; to start again, use a new checkpoint location and overwrite the target",
    )


def text_replaced(target: str, batch: int) -> OptionError:
    """Return the error for a running query while another text of it is computed, or after that."""
    return OptionError(
        f"the query into {target!r} has got another text, and this one publishes nothing more",
        received=f"batch {batch} of the text before",
        remedy="stop this query, and start the one with the new text",
    )


def target_filled(known: TargetJob) -> HeadraceError:
    """Return the error for a new job whose target has a job."""
    return AlreadyExistsError(
        f"a {known.kind} fills table {known.target!r}, and a table can have one such job",
        received=f"the target {known.target!r}",
        remedy=f"choose another target; if you no longer need the {known.kind}, drop the table and create it again",
    )


def target_replaced(target: str, received: str, remedy: str) -> DataLossError:
    """Return the error for a job whose target was dropped and created again."""
    return DataLossError(
        f"table {target!r} was dropped and created again, so it lacks the rows that were written before",
        received=received,
        remedy=f"to compute the target again, {remedy}",
    )


def _check_definition(known: TargetJob, wanted: TargetJob) -> None:
    received = f"the checkpoint of query {wanted.job}, which follows a table into {wanted.target!r}"
    before, now = known.settings, wanted.settings
    changed = sorted(name for name in before.keys() | now.keys() if before.get(name) != now.get(name))
    if changed:
        raise OptionError(
            "the state of this query was computed with other settings: "
            + "; ".join(f"{name} {_value(before, name)} before, {_value(now, name)} now" for name in changed),
            received=received,
            remedy=f"set them as before: {'; '.join(_statement(name, before) for name in changed)}; or publish "
            f"the result with these: {REPLACE}; or compute the target again: {ANEW}",
        )
    parts = known.definition.keys() | wanted.definition.keys()
    other = sorted(name for name in parts if known.definition.get(name) != wanted.definition.get(name))
    if other:
        raise OptionError(
            f"the state of this query was computed with another {', '.join(other)}",
            received=received,
            remedy=f"restore what has changed; or publish the result of the new query: {REPLACE}; or compute the "
            f"target again: {ANEW}",
        )


def _value(settings: Mapping[str, str], name: str) -> str:
    return f"= {settings[name]}" if name in settings else "not set"


def _statement(name: str, before: Mapping[str, str]) -> str:
    """Return the statement that sets a setting, or a variable of the form ``${name}``, to its value before.

    The setting at the creation of a function begins with ``function name:``.
    """
    if name.startswith("function "):
        return f"create the {name.partition(':')[0]} with this setting"
    plain = name.removeprefix("${").removesuffix("}").rpartition(":")[2]
    return f"SET {plain} = {before[name]}" if name in before else f"RESET {plain}"
