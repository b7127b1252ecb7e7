"""The jobs that follow tables into targets: a table beside the targets has a row for each of them.

The state of a job is right only together with the rows that the job has written. So a target has one job, which begins
with an empty target. No other job writes the target until it has replaced this one.

The publication of each batch checks in its transaction that the row has not changed since the batch began, and puts the
row again. So of two jobs that begin at the same time only one publishes its first batch, and a job whose target was
taken publishes no further batch. In a store without transactions, a job takes the row before its first batch writes
anything.
"""

from __future__ import annotations

import hashlib
import json
import re
from collections.abc import Mapping
from dataclasses import dataclass, replace
from typing import Any

from headrace.errors import ClaimLostError, NotFoundError, OptionError, StoreDamagedError
from headrace.ports import Claim, Store

_JOBS = "__headrace_followed__"
_STATE = "__headrace_state_"
_INTERNAL = "__headrace_"
_COLUMNS = {"target": "string", "job": "string", "content": "string"}
_HASH_LENGTH = 12
# PostgreSQL's limit for names is 63 bytes; a name can have a suffix of 8.
_LONGEST_TARGET = 24


def is_internal(table: str) -> bool:
    """Return whether headrace keeps a table for itself. `headrace table list` does not show it by default."""
    # Before the last part is a directory, or a schema of PostgreSQL.
    return re.split("[/.]", table)[-1].startswith(_INTERNAL)


def state_name(store: Store, target: str, job: str) -> str:
    """Return the name, or the beginning of the names, of the tables with the state of a job."""
    digest = hashlib.sha256(f"{job}/{target}".encode()).hexdigest()[:_HASH_LENGTH]
    name = target.rpartition("/")[2]
    # A name with a dot or a quote would be in quotes in PostgreSQL, and could not be continued.
    shown = name.encode()[:_LONGEST_TARGET].decode(errors="ignore").replace(".", "_").replace('"', "_")
    return store.beside(target, f"{_STATE}{shown}_{digest}")


@dataclass(frozen=True)
class FollowedJob:
    """A job that follows tables into a target.

    Attributes:
        target: the table that the job writes.
        job: Spark's id of the query.
        definition: the meaning of the state, by the names of its parts: the query, and the content of static tables.
        state_tables: the names of the tables with the job's state.
        overwrite: the first batch replaces the rows of the target.
        obsolete: tables with the state of earlier jobs, which are to be dropped.
    """

    target: str
    job: str
    definition: Mapping[str, str]
    state_tables: tuple[str, ...] = ()
    overwrite: bool = False
    obsolete: tuple[str, ...] = ()


class FollowedJobs:
    """The jobs of all targets in a store."""

    def __init__(self, store: Store) -> None:
        self._store = store

    def find(self, target: str) -> FollowedJob | None:
        """Return the job of a target."""
        row = self._row(target)
        return None if row is None else _job_of(row)

    def check(self, wanted: FollowedJob) -> None:
        """Check whether a job can start or continue, without changing the store.

        Args:
            wanted: the job; its ``job`` is empty if it has no checkpoint yet.

        Raises:
            OptionError: see `begin`.
        """
        known = self.find(wanted.target)
        if known is not None and known.job == wanted.job:
            _check_same(known, wanted)
        elif not wanted.job:
            self._check_free(known, wanted)

    def begin(self, wanted: FollowedJob, batch: int) -> tuple[FollowedJob, Claim]:
        """Return the job of a target, before each of its batches, and the claim for the publication of the batch.

        With batch 0, the job can take the target.

        Raises:
            OptionError: the target has rows, and the job does not overwrite them; another job has taken the target; or
                the definition of the job has changed.
        """
        row = self._row(wanted.target)
        known = None if row is None else _job_of(row)
        if known is not None and known.job == wanted.job:
            _check_same(known, wanted)
            self.drop_obsolete(known)
            return known, self._claim(row, replace(known, obsolete=()) if known.obsolete else None)
        if batch:
            raise target_taken(wanted.target, wanted.job, batch)
        self._check_free(known, wanted)
        obsolete = () if known is None else (*known.obsolete, *known.state_tables)
        begun = replace(wanted, obsolete=tuple(name for name in obsolete if name not in wanted.state_tables))
        self._store.create_table(self._table_of(wanted.target), _COLUMNS, "target", exist_ok=True)
        claim = self._claim(row, begun)
        if self._store.capabilities.transactions:
            return begun, claim
        try:
            self._store.publisher(wanted.job).take(claim)
        except ClaimLostError:
            raise target_taken(wanted.target, wanted.job, batch) from None
        return begun, self._claim(claim.after)

    def is_lost(self, claim: Claim) -> bool:
        """Return whether another job has taken the target since a job received its claim."""
        return self._row(claim.after["target"]) not in (claim.before, claim.after)

    def drop_obsolete(self, job: FollowedJob) -> None:
        """Drop the state of the earlier jobs of a target."""
        for name in job.obsolete:
            self._store.drop_table(name, missing_ok=True)

    def abandon(self, job: FollowedJob) -> None:
        """Drop the state of a job whose target another job has taken."""
        for name in job.state_tables:
            self._store.drop_table(name, missing_ok=True)

    def _table_of(self, target: str) -> str:
        """Return the name of the table with the jobs of targets in the directory or schema of this one."""
        return self._store.beside(target, _JOBS)

    def _row(self, target: str) -> dict[str, Any] | None:
        try:
            return self._store.table(self._table_of(target), _COLUMNS).get({"target": target})
        except NotFoundError:
            return None

    def _claim(self, row: Mapping[str, str] | None, job: FollowedJob | None = None) -> Claim:
        """Return the claim that replaces a row with that of a job; without a job, with the same row."""
        after = row if job is None else _row_of(job)
        assert after is not None
        return Claim(self._table_of(after["target"]), row, after)

    def _check_free(self, known: FollowedJob | None, wanted: FollowedJob) -> None:
        if wanted.overwrite:
            return
        if known is not None and not self._store.capabilities.transactions:
            # Its first batch can be running, and its tasks write into the target.
            raise target_taken(wanted.target, wanted.job, 0)
        table = self._store.table(wanted.target)
        if not any(part.num_rows for part in table.scan([table.schema.primary_key[0]], batch_rows=1)):
            return
        raise OptionError(
            f"a query with a new checkpoint needs an empty target, and table {wanted.target!r} has rows",
            remedy="set overwrite to true to replace its rows in the first batch, delete its rows, or use the "
            "checkpoint of the query that wrote them",
        )


def _job_of(row: Mapping[str, Any]) -> FollowedJob:
    target = row["target"]
    try:
        content = json.loads(row["content"])
        return FollowedJob(
            target,
            row["job"],
            dict(content["definition"]),
            tuple(content["state_tables"]),
            bool(content["overwrite"]),
            tuple(content["obsolete"]),
        )
    except (ValueError, KeyError, TypeError) as error:
        raise StoreDamagedError(f"the row of {target!r} in table {_JOBS!r} is invalid", received=str(error)) from None


def _row_of(job: FollowedJob) -> dict[str, str]:
    content = {
        "definition": dict(job.definition),
        "state_tables": job.state_tables,
        "overwrite": job.overwrite,
        "obsolete": job.obsolete,
    }
    return {"target": job.target, "job": job.job, "content": json.dumps(content)}


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


def _check_same(known: FollowedJob, wanted: FollowedJob) -> None:
    before, now = known.definition, wanted.definition
    changed = sorted(name for name in before.keys() | now.keys() if before.get(name) != now.get(name))
    if changed:
        raise OptionError(
            f"the state of this query was computed with another {', '.join(changed)}",
            received=f"the checkpoint of query {wanted.job}, which follows a table into {wanted.target!r}",
            remedy="restore what has changed; or compute the target again: use a new checkpoint location and a new "
            "tunnel, and set overwrite to true",
        )
