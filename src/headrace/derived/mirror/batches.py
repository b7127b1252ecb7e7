"""The batches of a mirror: the changes of the source as rows of the mirror's tables, whose columns change with it."""

from __future__ import annotations

import logging
from dataclasses import dataclass, field
from typing import TYPE_CHECKING

from headrace.batches.sinks.jobs import TargetJobs, target_taken
from headrace.batches.sinks.targets import TableTarget
from headrace.derived.mirror.forms import MirrorForm, is_newer_source
from headrace.derived.mirror.setup import followed_table
from headrace.derived.mirror.state import MirrorState
from headrace.errors import ClaimLostError
from headrace.formats.location import Location
from headrace.ports import Store
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
    """

    rereads_published = False

    form: MirrorForm

    @property
    def targets(self) -> tuple[TableTarget, ...]:
        return self.form.targets

    def run(self, batch: DataFrame, tasks: BatchTasks) -> Receipts:
        with tasks.open_store() as target:
            TargetJobs(target).check_whole(self.form.target)
        return tasks.stage_routed(batch, self.form.route)


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

    def publish(self, store: Store, job: str, batch: DataFrame, number: int) -> None:
        for attempt in range(1, _ATTEMPTS + 1):
            with self.source.open_store() as source:
                state = self.state.as_of_now(source, followed_table(source, self.source, self.given), store)
            content = MirrorRows(state.form)
            tasks = BatchTasks(self.sink, job, number, content.targets)
            try:
                publish_batch(store, tasks, batch, content, check=not self._checked, claim=state.claim)
            except ClaimLostError as error:
                raise target_taken(state.claim.after["target"], state.claim.after["job"], number) from error
            except Exception as error:
                if not is_newer_source(error) or attempt == _ATTEMPTS:
                    raise
                _log.info("batch %d begins again: its source has got other columns", number)
                continue
            self._checked, self.state = True, state.published()
            return
