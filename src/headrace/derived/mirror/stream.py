"""`mirror`: a streaming query that copies a table, or its history, into a table of another store (docs/sql.md)."""

from __future__ import annotations

import os
from collections.abc import Callable, Mapping
from dataclasses import dataclass, field, replace
from typing import TYPE_CHECKING, Any

from headrace.batches.sinks.jobs import TargetJobs, target_taken
from headrace.derived.mirror.forms import LatestRows, MirrorForm
from headrace.derived.mirror.history import RowVersions, time_type_of
from headrace.derived.mirror.setup import MirrorSetup, check_source
from headrace.errors import ClaimLostError, OptionError
from headrace.formats.location import Location
from headrace.formats.option_checks import check_options, option_texts
from headrace.formats.registry import DEFAULT_FORMAT, format_named, source_of
from headrace.formats.source import Source
from headrace.model.tables.change_columns import ChangeShape
from headrace.model.tables.schema import TableSchema
from headrace.model.tunnels.values import Start, StartKind
from headrace.options.option import SINK, SOURCE
from headrace.ports import Claim, Store
from headrace.spark.batch_tasks import BatchTasks, Receipts, publishing
from headrace.spark.default_checkpoint import given_checkpoint
from headrace.spark.query_start import BatchedStream, BatchFunction
from headrace.spark.stream_arguments import checked_trigger, format_name

if TYPE_CHECKING:
    from pyspark.sql import DataFrame, SparkSession
    from pyspark.sql.streaming.query import StreamingQuery

MAX_ROWS = 1_000_000
"""The maximum number of rows of a batch, unless an option says otherwise: a task can keep its rows in memory."""
_ROW_LIMITS = {name.lower() for name in (DEFAULT_FORMAT.batch_limit_option, *DEFAULT_FORMAT.channel_limit_options)}


@dataclass(frozen=True, kw_only=True)
class Mirror(BatchedStream):
    """A mirror that `start` starts. `mirror` creates it.

    Attributes:
        spark: the session that runs the query.
        source: the location of the source table.
        source_options: the options of format headrace for reading it.
        target_table: the name of the target table.
        history: whether the target keeps all versions of each row.
        tunnel: the name or id of an existing tunnel; None for the mirror's own.
        rows_per_write: the maximum number of rows in one write to the store; None is no limit.
    """

    spark: SparkSession
    source: Location
    source_options: Mapping[str, str] = field(repr=False)
    target_table: str
    history: bool = False
    tunnel: str | None = None
    rows_per_write: int | None = None

    @property
    def tunnel_name(self) -> str:
        """The name of the tunnel that the mirror reads, or the name or id of the given tunnel."""
        return self.tunnel or f"mirror-{self.name or self.target_table}"

    def start(self) -> StreamingQuery:
        """Create the tunnel and the target if they do not exist, add new columns to the target, and start the query.

        Raises:
            NotFoundError: a store or the source does not exist.
            UnsupportedError: the store of the source does not have what a mirror needs, or the store of the target
                cannot add a new column.
            AlreadyExistsError: the target has rows that are not from this source.
            DataLossError: the target is a mirror of this source whose tunnel no longer exists.
            SchemaError: the columns of the target do not fit.
            OptionError: Spark cannot write the checkpoint, or does not accept the trigger.
        """
        with self.source.open_store() as source, self.store.open() as target:
            check_source(source)
            table = self.source.open_table(source)
            form = self._form(table.schema, target)
            setup = MirrorSetup(source, table, target, form, self.tunnel_name, create_tunnel=self.tunnel is None)
            prepared = setup.prepare()
            tunnel, claim = prepared.id, setup.register(prepared)
            address = self.store.of(target)
            kept = "history" if self.history else "rows"
            defined = replace(self, definition=f"the {kept} of {self.source.table} in {source.id}")
        changes = self._changes(form, tunnel)
        location = defined._location(changes, address, [self.target_table])
        publish = publishing(
            address,
            form.targets,
            location,
            _staging(form, self.source),
            stateful=False,
            rows_per_write=self.rows_per_write,
            claim=claim,
            results=2,
        )
        return self._start(changes, "append", location, _of_mirror(publish, claim))

    def _form(self, schema: TableSchema, target: Store) -> MirrorForm:
        if self.history:
            return RowVersions(schema, self.target_table, time_type_of(target.capabilities))
        return LatestRows(schema, self.target_table)

    def _changes(self, form: MirrorForm, tunnel: str) -> DataFrame:
        """Return the changes of the source with the columns that the mirror needs."""
        from pyspark.sql.pandas.types import from_arrow_schema

        fixed = {"preImages": "false", "readAs": "changes", "tunnel": tunnel}
        fixed_names = {name.lower() for name in fixed}
        options = {name: value for name, value in self.source_options.items() if name.lower() not in fixed_names}
        if not _ROW_LIMITS & {name.lower() for name in options}:
            options[DEFAULT_FORMAT.batch_limit_option] = str(MAX_ROWS)
        options |= fixed
        # The columns that the target was prepared for, also if the source has got another one since.
        columns = ChangeShape(form.source, [*form.source.names, *form.change_columns]).schema
        reader = self.spark.readStream.format(DEFAULT_FORMAT.name).options(**options)
        return reader.schema(from_arrow_schema(columns)).load()


def _of_mirror(publish: BatchFunction, claim: Claim) -> BatchFunction:
    """Return the function of a mirror's batches: when another job has taken the target, its error says so."""

    def publish_batch(batch_df: DataFrame, batch: int) -> None:
        try:
            publish(batch_df, batch)
        except ClaimLostError as error:
            raise target_taken(claim.after["target"], claim.after["job"], batch) from error

    return publish_batch


def _staging(form: MirrorForm, source: Location) -> Callable[[DataFrame, BatchTasks], Receipts]:
    """Return a function that stages the rows of a batch. Spark Connect pickles it."""

    def stage(batch: DataFrame, tasks: BatchTasks) -> Receipts:
        with tasks.open_store() as target:
            TargetJobs(target).check_whole(form.target)
        receipts = tasks.stage_routed(batch, form.route)
        with source.open_store() as store:
            form.check_unchanged(source.open_table(store).schema)
        return receipts

    return stage


def mirror(
    spark: SparkSession,
    *,
    source: str | os.PathLike[str] | None = None,
    table: str | None = None,
    to: str | os.PathLike[str] | None = None,
    to_table: str | None = None,
    checkpoint: str | os.PathLike[str] | None = None,
    history: bool = False,
    tunnel: str | None = None,
    name: str | None = None,
    trigger: Mapping[str, Any] | None = None,
    options: Mapping[str, Any] | None = None,
    to_format: str = "headrace",
    to_options: Mapping[str, Any] | None = None,
) -> Mirror:
    """Keep a copy of a table in another store: its rows, then each change, exactly once where the store permits it.

    The mirror creates its tunnel and the target table, with the columns and the key of the source, if they do not
    exist. A new column of the source stops it with an error before a value is lost; the next start adds the column to
    the target.

    Args:
        spark: the session that runs the query.
        source: the path or URL of the source's store; ``table`` is the table.
        to: the path or URL of the target's store; ``to_table`` is the table, by default the source's name.
        checkpoint: the checkpoint location, as for `write_stream`; a mirror with a name may leave it out.
        history: keep all versions of each row, with `valid_from`, `valid_to` and `is_current`.
        tunnel: an existing tunnel that no reader has read, by name or id; by default the mirror creates one.
        name: the query's name, also of the tunnel: ``mirror-<name>``.
        trigger: as for Spark's ``trigger``.
        options: further options of format headrace for reading streams.
        to_format: the format of ``to_options``: ``headrace``; or ``tablestore`` or ``yt``, with store and table in the
            options of that format.
        to_options: further options of that format for writing streams.

    Returns:
        A `Mirror`; its ``start()`` returns Spark's ``StreamingQuery``.

    Raises:
        OptionError: an option is missing, invalid or unknown, or the target is a queue.
        NotFoundError: the store of the target does not exist.
    """
    to_format = format_name(to_format)
    checkpoint_location = given_checkpoint(checkpoint, name)
    reading = _options(DEFAULT_FORMAT.name, options, {"store": source, "table": table, "tunnel": tunnel}, SOURCE)
    writing = _options(to_format, to_options, {"store": to, "table": to_table}, SINK)
    reading_source, sink = source_of(DEFAULT_FORMAT.name, reading), source_of(to_format, writing)
    if reading_source.location.table is None:
        raise OptionError("a mirror needs the name of its source table", remedy='headrace.mirror(spark, table="…", …)')
    if sink.location.queue:
        raise OptionError("a mirror writes a table, not a queue", received=repr(sink.location.queue))
    _check_complete(reading_source)
    tunnel_option = DEFAULT_FORMAT.tunnel_option
    assert tunnel_option is not None
    return Mirror(
        store=sink.location.store,
        checkpoint=checkpoint_location,
        name=name,
        trigger_options=None if trigger is None else checked_trigger(trigger),
        spark=spark,
        source=reading_source.location,
        source_options=reading,
        target_table=sink.location.table or reading_source.location.table,
        history=history,
        tunnel=reading_source.settings.get(tunnel_option) or None,
        rows_per_write=sink.rows_per_write(lambda setting: spark.conf.get(setting, None)),
    )


def _check_complete(source: Source) -> None:
    """Raise `OptionError` if an option skips changes: the mirror would have other rows than its source."""
    again = "; after a loss, drop the target, and start the mirror with a new tunnel and a new checkpoint location"
    for name, valid, otherwise in (
        ("startingPosition", Start(StartKind.COMMITTED), ""),
        ("failOnDataLoss", True, again),
    ):
        if source.settings.get(name) != valid:
            raise OptionError(
                f"a mirror needs all changes of its source, and option {name} skips some",
                received=source.options.get(name.lower(), "")[:200],
                remedy=f"leave out option {name}{otherwise}",
            )


def _options(format: str, options: Mapping[str, Any] | None, named: Mapping[str, Any], use: str) -> dict[str, str]:
    """Return the options of a format, and the arguments that are options, as texts."""
    given, arguments = option_texts(options, "mirror"), option_texts(named, "mirror")
    check_options(format_named(format), [*given, *arguments], use=use, place=f"mirror with format {format}")
    return given | arguments
