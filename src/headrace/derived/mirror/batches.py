"""The batches of a mirror: the changes of the source as rows of the mirror's tables, whose columns change with it."""

from __future__ import annotations

import logging
from collections.abc import Callable, Collection
from dataclasses import dataclass, field
from typing import TYPE_CHECKING

from headrace.batches.sinks.jobs import TargetJobs, target_taken
from headrace.batches.sinks.targets import TableTarget
from headrace.derived.mirror.evolution import source_columns
from headrace.derived.mirror.forms import MirrorForm, is_newer_source
from headrace.derived.mirror.setup import followed_table
from headrace.derived.mirror.state import MirrorState
from headrace.errors import ClaimLostError
from headrace.formats.location import Location
from headrace.ports import Store
from headrace.spark import kept_stores
from headrace.spark.batch_tasks import BatchContent, BatchTasks, Receipts, StreamBatches, publish_batch

if TYPE_CHECKING:
    from pyspark.sql import DataFrame

# A batch begins again when the source has got other columns meanwhile.
_ATTEMPTS = 5
_log = logging.getLogger("headrace")


@dataclass(frozen=True)
class MirrorRows(BatchContent):
    """The changes of a batch as rows of the mirror's tables.

    Attributes:
        form: what the mirror keeps.
        check_read: raises the error of `newer_source` if the source has got other columns since the batch began.
    """

    rereads_published = False

    form: MirrorForm
    check_read: Callable[[], None]

    @property
    def targets(self) -> tuple[TableTarget, ...]:
        return self.form.targets

    def run(self, batch: DataFrame, tasks: BatchTasks) -> Receipts:
        with tasks.open_store() as target:
            TargetJobs(target).check_whole(self.form.target)
        receipts = tasks.stage_routed(batch, self.form.route)
        self.check_read()
        return receipts


@dataclass
class MirrorBatches(StreamBatches):
    """The function of ``foreachBatch`` of a mirror.

    Attributes:
        state: what the next batch follows.
        source: the location of the source table.
        given: the name or id of a given tunnel; None for the mirror's own.
    """

    state: MirrorState
    source: Location
    given: str | None
    _checked: bool = field(default=False, init=False)
    # The state as of the batch that is being published.
    _next: MirrorState = field(init=False)

    def publish(self, store: Store, job: str, batch: DataFrame, number: int) -> None:
        misfits, relaxed = 0, set[str]()
        while True:
            try:
                self._publish(store, job, batch, number, relaxed)
            except Exception as error:
                if is_newer_source(error) and misfits + 1 < _ATTEMPTS:
                    misfits += 1
                    _log.info("batch %d begins again: its source has got other columns", number)
                elif (column := self._next.relaxed_column(error)) is not None and column not in relaxed:
                    relaxed.add(column)
                    _log.info("batch %d begins again: column %s was null in its source for a time", number, column)
                else:
                    raise
            else:
                return

    def _publish(self, store: Store, job: str, batch: DataFrame, number: int, relaxed: Collection[str]) -> None:
        self._next = self.state
        with kept_stores.lent(self.source.store) as source:
            table = followed_table(source, self.source, self.given)
            state = self._next = self.state.as_of_now(source, table, store, relaxed)
            content = MirrorRows(state.form, lambda: state.check_read(source_columns(*table.numbered_schema())))
            tasks = BatchTasks(self.sink, job, number, content.targets)
            try:
                published = publish_batch(store, tasks, batch, content, check=not self._checked, claim=state.claim)
            except ClaimLostError as error:
                raise target_taken(state.claim.after["target"], state.claim.after["job"], number) from error
        self._checked = True
        # A batch that was published before has not made the changes that the source has had since.
        if published or TargetJobs(store).has_put(state.claim):
            self.state = state.published()
