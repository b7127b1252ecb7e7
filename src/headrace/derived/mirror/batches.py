"""The batches of a mirror: the changes of the source as rows of the mirror's tables, whose columns change with it."""

from __future__ import annotations

import json
import logging
from dataclasses import dataclass, field, replace
from typing import TYPE_CHECKING

from headrace.batches.sinks.jobs import TargetJobs, target_taken
from headrace.batches.sinks.targets import TableTarget
from headrace.derived.mirror.evolution import Evolution, SourceColumn, difference, source_columns
from headrace.derived.mirror.forms import MirrorForm, is_newer_source
from headrace.derived.mirror.setup import COLUMNS
from headrace.errors import ClaimLostError, SchemaError, UnsupportedError
from headrace.formats.location import Location
from headrace.ports import Claim, Store, Table
from headrace.spark.batch_tasks import BatchContent, BatchTasks, Receipts, StreamBatches, publish_batch

if TYPE_CHECKING:
    from pyspark.sql import DataFrame

# A batch begins again when the source has got other columns meanwhile.
_ATTEMPTS = 5
_log = logging.getLogger("headrace")


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
        form: what the mirror keeps, with the columns of the source at the start.
        source: the location of the source table.
        given: the name or id of a given tunnel; None for the mirror's own.
        tunnel: the id of the tunnel.
        evolution: what happens after changes of the source's columns.
        columns: the columns of the source as of the last published batch.
        claim: the claim of the mirror on its target.
    """

    form: MirrorForm
    source: Location
    given: str | None
    tunnel: str
    evolution: Evolution
    columns: tuple[SourceColumn, ...]
    claim: Claim
    _checked: bool = field(default=False, init=False)

    def publish(self, store: Store, job: str, batch: DataFrame, number: int) -> None:
        for attempt in range(1, _ATTEMPTS + 1):
            form, columns, claim = self._as_of_now(store)
            content = MirrorRows(form)
            tasks = BatchTasks(self.sink, job, number, content.targets)
            try:
                publish_batch(store, tasks, batch, content, check=not self._checked, claim=claim)
            except ClaimLostError as error:
                raise target_taken(claim.after["target"], claim.after["job"], number) from error
            except Exception as error:
                if not is_newer_source(error) or attempt == _ATTEMPTS:
                    raise
                _log.info("batch %d begins again: its source has got other columns", number)
                continue
            self._checked, self.columns = True, columns
            self.claim = Claim(claim.table, claim.after, claim.after)
            return

    def _as_of_now(self, store: Store) -> tuple[MirrorForm, tuple[SourceColumn, ...], Claim]:
        """Return the form of a batch with the source's columns of now, these columns, and its claim.

        Raises:
            SchemaError, UnsupportedError: the mirror does not follow a change.
        """
        with self.source.open_store() as source:
            table = followed_table(source, self.source, self.given)
            schema = table.schema
            schema.check_keyed()
            columns = source_columns(table, schema)
            form = replace(self.form, source=schema)
            if columns == self.columns:
                return form, columns, self.claim
            change = difference(self.columns, columns)
            if change:
                self.evolution.check(change, table.name, store)
                tunnel = source.tunnel(self.tunnel, table.name)
                form = replace(form, alterations=self.evolution.alterations(change, form, store, tunnel))
                if form.alterations and not store.capabilities.evolves:
                    raise SchemaError(
                        "the source of the mirror has other columns, and its target's store changes none in a batch",
                        received=str(change),
                        remedy="start the mirror again: it adds new columns to its target, and reads this batch again",
                    )
                _log.info("the columns of table %s have changed: %s", table.name, change)
        return form, columns, TargetJobs(store).redefined(self.claim, {COLUMNS: json.dumps(columns)})
