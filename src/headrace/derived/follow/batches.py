"""The batches of a followed query: from changes of its scans to changes of its target and of its state.

The driver publishes the changes of the target and of the state in one transaction, so the state is always that of the
published batches.
"""

from __future__ import annotations

import logging
import math
import time
from collections.abc import Collection, Iterable, Mapping
from dataclasses import dataclass, field, replace
from typing import TYPE_CHECKING

from headrace.batches.sinks import batch_figures
from headrace.batches.sinks.jobs import TargetJob, TargetJobs, target_taken, text_replaced
from headrace.batches.sinks.targets import TableTarget
from headrace.derived.follow.batch_content import BatchQuery, FollowedBatch
from headrace.derived.follow.gathered_batches import GatheredBatch
from headrace.derived.follow.gathered_in_tasks import GatheredLoad
from headrace.derived.follow.layouts import StateLayout
from headrace.derived.follow.signed_batches import FollowedGroups, FollowedRows, SignedBatch
from headrace.derived.gathering.arrangements import Gathering
from headrace.derived.state.state_tables import (
    StateTable,
    create_tables,
    drop_others,
    keeps_previous,
    open_tables,
)
from headrace.errors import UnsupportedError
from headrace.model.tunnels.losses import is_truncation
from headrace.spark.batch_tasks import BatchTasks, StreamBatches, publish_batch
from headrace.spark.checkpoint import BatchOffsets

if TYPE_CHECKING:
    from pyspark.sql import DataFrame

    from headrace.ports import Store, Table

_MEASURED_SECONDS = 5.0
_log = logging.getLogger("headrace")


@dataclass
class FollowedBatches(StreamBatches):
    """The function of ``foreachBatch`` of a followed query.

    Attributes:
        query: what a batch computes.
        target: the target.
        job: the job without its tables; its ``job`` is empty if it has no checkpoint yet.
        layout: the tables of state.
    """

    query: BatchQuery
    target: TableTarget
    job: TargetJob
    layout: StateLayout
    _size: tuple[int | None, int | None] = field(default=(None, None), init=False)
    _measured: float = field(default=-math.inf, init=False)

    def publish(self, store: Store, job: str, batch: DataFrame, number: int) -> None:
        """Compute and publish a batch.

        Raises:
            OptionError: the job cannot have the target, see `TargetJobs.begin`; or another job has taken it during
                the batch, which is not published.
        """
        jobs, groups = TargetJobs(store), self.query.groups
        state = self.layout.state(store, self.target.name, job, self.query)
        wanted = job_with_state(replace(self.job, job=job), state, self.layout, self.query.gathering)
        is_new = not number and jobs.own(wanted) is None
        begun, claim = jobs.begin(wanted, number)
        replaces = number == 0 and begun.overwrite
        try:
            if is_new:
                drop_others(store, self.layout.prefix(store, self.target.name, job), state)
            tables = open_tables(store, state) if number else create_tables(store, state)
            if groups is not None:
                groups.states.sweep(tables, number)
            content = batch_of(self.query, self.target, state, first=number == 0, replaces=replaces)
            offsets = BatchOffsets.read(self.sink.checkpoint, number, batch.sparkSession, store=store)

            def publish(content: FollowedBatch) -> None:
                tasks = BatchTasks(self.sink, job, number, content.targets)
                publish_batch(store, tasks, batch, content, check=True, claim=claim, offsets=offsets)

            truncated = offsets.truncates & {scan.table for scan in self.query.scans}
            if truncated and isinstance(content, SignedBatch):
                self._check_begins_anew(store, None)
                content = replace(content, begins_anew=True)
            try:
                publish(content)
            except Exception as error:
                # The TRUNCATE came after the look at the log that has planned the batch.
                if content.begins_anew or not is_truncation(error):
                    raise
                _log.info("batch %d begins with a TRUNCATE, and is computed again without state", number)
                self._check_begins_anew(store, error)
                publish(replace(content, begins_anew=True))
            self._note_state(job, number, tables.values())
        except Exception as error:
            # Besides a lost claim: the other job drops the state of this one, which this batch may be reading.
            if not jobs.is_lost(claim):
                raise
            now = jobs.find(begun.target)
            if now is not None and now.job == begun.job:
                raise text_replaced(begun.target, number) from error
            jobs.drop(begun.state_tables)
            raise target_taken(begun.target, begun.job, number) from error
        jobs.drop(begun.obsolete)

    def _check_begins_anew(self, store: Store, error: Exception | None) -> None:
        """Raise `UnsupportedError` if a batch cannot compute all rows of the target from what is behind a TRUNCATE."""
        scans = [scan.name for scan in self.query.scans]
        if len(scans) > 1:
            received = f"a query over {', '.join(scans)}, whose state does not say which rows are of which table"
        elif self.query.groups is not None and keeps_previous(store):
            received = f"state of groups in {store.url}, which has no transaction over all rows"
        else:
            return
        raise UnsupportedError(
            f"the query into {self.target.name!r} follows a table that was truncated, and cannot follow that",
            received=received,
            remedy="start the query with a new checkpoint location, new tunnels and overwrite; write DELETE FROM in "
            "place of TRUNCATE",
        ) from error

    def _note_state(self, job: str, number: int, tables: Collection[Table]) -> None:
        """Note the size of the state, which the store is asked for after some seconds only."""
        now = time.monotonic()
        if tables and now >= self._measured + _MEASURED_SECONDS:
            sizes = [table.size() for table in tables]
            self._size = _total(each.rows for each in sizes), _total(each.bytes for each in sizes)
            self._measured = now
        batch_figures.note_state(job, number, *self._size)


def _total(numbers: Iterable[int | None]) -> int | None:
    """Return the sum of numbers; None if one of them is unknown."""
    found = list(numbers)
    return None if None in found else sum(each or 0 for each in found)


def job_with_state(
    job: TargetJob, state: Mapping[str, StateTable], layout: StateLayout, gathering: Gathering | None
) -> TargetJob:
    """Return a job with the names, the contents and the layout of its tables of state."""
    contents = {table.name: table.content for table in state.values()}
    recorded = layout.recorded(state, gathering).to_json()
    return replace(job, state_tables=tuple(contents), contents=contents, layout=recorded)


def batch_of(
    query: BatchQuery, target: TableTarget, state: Mapping[str, StateTable], *, first: bool, replaces: bool
) -> FollowedBatch:
    """Return what a batch of a query writes."""
    kind: type[FollowedBatch]
    if query.gathering is not None:
        kind = GatheredLoad if first else GatheredBatch
    else:
        kind = FollowedRows if query.groups is None else FollowedGroups
    return kind(query, target, first, replaces, state)
