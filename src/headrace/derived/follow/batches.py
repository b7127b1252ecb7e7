"""The batches of a followed query: from changes of its scans to changes of its target and of its state.

The driver publishes the changes of the target and of the state in one transaction, so the state is always that of the
published batches.
"""

from __future__ import annotations

import math
import time
from collections.abc import Collection, Iterable
from dataclasses import dataclass, field, replace
from typing import TYPE_CHECKING

from headrace.batches.sinks import batch_figures
from headrace.batches.sinks.jobs import TargetJob, TargetJobs, state_name, target_taken
from headrace.batches.sinks.targets import TableTarget
from headrace.derived.follow.batch_content import BatchQuery, FollowedBatch, GroupQuery
from headrace.derived.follow.gathered_batches import GatheredBatch
from headrace.derived.follow.gathered_in_tasks import GatheredLoad
from headrace.derived.follow.signed_batches import FollowedGroups, FollowedRows
from headrace.derived.gathering.arrangements import Gathering
from headrace.derived.state.state_tables import create_tables, open_tables
from headrace.spark.batch_tasks import BatchTasks, StreamBatches, publish_batch

if TYPE_CHECKING:
    from pyspark.sql import DataFrame

    from headrace.ports import Store, Table

_MEASURED_SECONDS = 5.0


@dataclass
class FollowedBatches(StreamBatches):
    """The function of ``foreachBatch`` of a followed query.

    Attributes:
        query: the signed rows of a batch.
        groups: the aggregates of the query; None without.
        gathering: how the rows are found over which the query is evaluated; None if it runs over signed rows.
        target: the target.
        job: the job without its tables; its ``job`` is empty if it has no checkpoint yet.
    """

    query: BatchQuery
    groups: GroupQuery | None
    gathering: Gathering | None
    target: TableTarget
    job: TargetJob
    _size: tuple[int | None, int | None] = field(default=(None, None), init=False)
    _measured: float = field(default=-math.inf, init=False)

    def publish(self, store: Store, job: str, batch: DataFrame, number: int) -> None:
        """Compute and publish a batch.

        Raises:
            OptionError: the job cannot have the target, see `TargetJobs.begin`; or another job has taken it during
                the batch, which is not published.
        """
        jobs, groups, gathering = TargetJobs(store), self.groups, self.gathering
        prefix = f"{state_name(store, self.target.name, job)}_"
        state = {} if groups is None else groups.states.tables(prefix)
        state |= {} if gathering is None else gathering.state(prefix)
        contents = {table.name: table.content for table in state.values()}
        begun, claim = jobs.begin(replace(self.job, job=job, state_tables=tuple(contents), contents=contents), number)
        replaces = number == 0 and begun.overwrite
        try:
            tables = open_tables(store, state) if number else create_tables(store, state)
            if groups is not None:
                groups.states.sweep(tables, number)
            content: FollowedBatch
            if gathering is not None:
                gathered = GatheredBatch if number else GatheredLoad
                content = gathered(self.query, self.target, replaces, state, groups, gathering)
            elif groups is not None:
                content = FollowedGroups(self.query, self.target, replaces, state, groups)
            else:
                content = FollowedRows(self.query, self.target, replaces, state)
            tasks = BatchTasks(self.sink, job, number, content.targets)
            publish_batch(store, tasks, batch, content, check=True, claim=claim)
            self._note_state(job, number, tables.values())
        except Exception as error:
            # Besides a lost claim: the other job drops the state of this one, which this batch may be reading.
            if not jobs.is_lost(claim):
                raise
            jobs.drop(begun.state_tables)
            raise target_taken(begun.target, begun.job, number) from error
        jobs.drop(begun.obsolete)

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
