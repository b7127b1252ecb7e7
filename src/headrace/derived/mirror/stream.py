"""`mirror`: a streaming query that copies a table, or its history, into a table of another store (docs/sql.md)."""

from __future__ import annotations

import os
from collections.abc import Mapping
from dataclasses import dataclass, field, replace
from typing import TYPE_CHECKING, Any

from headrace.batches.sinks.bad_rows import bad_rows_of, prepare, refuse_history
from headrace.derived.mirror.batches import MirrorBatches
from headrace.derived.mirror.evolution import EVOLVE, LENIENT, Evolution, SchemaChange
from headrace.derived.mirror.evolution import schema_change as parse_schema_change
from headrace.derived.mirror.forms import MirrorForm
from headrace.derived.mirror.setup import MirrorSetup, check_source
from headrace.errors import OptionError
from headrace.formats.location import Location
from headrace.formats.registry import DEFAULT_FORMAT, source_of
from headrace.formats.source import Source
from headrace.model.tunnels.values import Start, StartKind
from headrace.options.option import SOURCE
from headrace.spark.batched_stream import BatchedStream, SinkArguments, given_options, sink_of
from headrace.spark.versions import spark_schema

if TYPE_CHECKING:
    from pyspark.sql import DataFrame, SparkSession
    from pyspark.sql.streaming.query import StreamingQuery

    from headrace.ports import Store

MAX_ROWS = 1_000_000
"""The maximum number of rows of a batch, unless an option says otherwise: a task can keep its rows in memory."""
_ROW_LIMITS = {name.lower() for name in (DEFAULT_FORMAT.batch_limit_option, *DEFAULT_FORMAT.channel_limit_options)}


@dataclass(frozen=True, kw_only=True)
class MirrorStream(BatchedStream):
    """A mirror that `start` starts. `mirror` creates it.

    Attributes:
        spark: the session that runs the query.
        source: the location of the source table.
        source_options: the options of format headrace for reading it.
        target_table: the name of the target table.
        history: whether the target keeps all versions of each row.
        tunnel: the name or id of an existing tunnel; None for the mirror's own.
        schema_change: what the mirror does after changes of the source's columns.
        keeps_bad_rows: whether rows that the target refuses go into a table beside it.
    """

    spark: SparkSession
    source: Location
    source_options: Mapping[str, str] = field(repr=False)
    target_table: str
    history: bool = False
    tunnel: str | None = None
    schema_change: SchemaChange = EVOLVE
    keeps_bad_rows: bool = False

    @property
    def tunnel_name(self) -> str:
        """The name of the tunnel that the mirror reads, or the name or id of the given tunnel."""
        return self.tunnel or f"mirror-{self.arguments.name or self.target_table}"

    def start(self) -> StreamingQuery:
        """Create the tunnel and the target if they do not exist, and start the query.

        Raises:
            NotFoundError: a store or the source does not exist.
            UnsupportedError: the store of the source does not have what a mirror needs, or the store of the target
                cannot follow a change of the source's columns.
            AlreadyExistsError: the target has rows that are not from this source.
            DataLossError: the target is a mirror of this source whose tunnel no longer exists.
            SchemaError: the columns of the target do not fit.
            OptionError: Spark cannot write the checkpoint, or does not accept the trigger.
        """
        with self.source.open_store() as source, self.arguments.store.open() as target:
            setup = self._setup(source, target)
            prepared = setup.prepare(setup.record())
            state = setup.register(prepared)
            prepare(target, setup.form.targets[0])
            kept = "history" if self.history else "rows"
            defined = replace(self, definition=f"the {kept} of {self.source.table} in {source.id}")
            changes = self._changes(setup.form, prepared.id)
            sink = defined._located(changes, target, [self.target_table])
        return self._start(changes, "append", MirrorBatches(sink, state, self.source, self.tunnel))

    def check(self) -> None:
        """Raise the errors of `start` that come before it changes a store."""
        with self.source.open_store() as source, self.arguments.store.open() as target:
            self._setup(source, target)

    def _setup(self, source: Store, target: Store) -> MirrorSetup:
        """Return the preparation of both stores, after checking the source."""
        check_source(source)
        return MirrorSetup(
            source,
            self.source,
            target,
            self.target_table,
            tunnel=self.tunnel,
            tunnel_name=self.tunnel_name,
            history=self.history,
            evolution=Evolution(self.schema_change, keeps=self.history or self.schema_change == LENIENT),
            bad_rows=bad_rows_of(self.target_table, self.arguments.name) if self.keeps_bad_rows else None,
        )

    def _changes(self, form: MirrorForm, tunnel: str) -> DataFrame:
        """Return the changes of the source with the columns that the mirror needs."""
        fixed = {"preImages": "false", "readAs": "changes", "truncations": "true", "tunnel": tunnel}
        fixed_names = {name.lower() for name in fixed}
        options = {name: value for name, value in self.source_options.items() if name.lower() not in fixed_names}
        if not _ROW_LIMITS & {name.lower() for name in options}:
            options[DEFAULT_FORMAT.batch_limit_option] = str(MAX_ROWS)
        options |= fixed
        # The columns of the start. Rows of other columns are packed.
        reader = self.spark.readStream.format(DEFAULT_FORMAT.name).options(**options)
        return reader.schema(spark_schema(form.columns)).load()


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
    schema_change: str = EVOLVE,
    name: str | None = None,
    trigger: Mapping[str, Any] | None = None,
    options: Mapping[str, Any] | None = None,
    to_format: str = "headrace",
    to_options: Mapping[str, Any] | None = None,
) -> MirrorStream:
    """Keep a copy of a table in another store: its rows, then each change, exactly once where the store permits it.

    The mirror creates its tunnel and the target table, with the columns and the key of the source, if they do not
    exist. In an embedded store and PostgreSQL, its tables follow changes of the source's columns, in the transaction of
    the rows behind the change. Other stores get new columns at the next start.

    Args:
        spark: the session that runs the query.
        source: the path or URL of the source's store; ``table`` is the table.
        to: the path or URL of the target's store; ``to_table`` is the table, by default the source's name.
        checkpoint: the checkpoint location, as for `write_stream`; a mirror with a name may leave it out.
        history: keep all versions of each row, with `valid_from`, `valid_to` and `is_current`.
        tunnel: an existing tunnel that no reader has read, by name or id; by default the mirror creates one.
        schema_change: after changes of the source's columns, ``evolve`` makes the same changes of a target whose store
            can, ``lenient`` keeps dropped columns, and ``fail`` ends the query with an error.
        name: the query's name, also of the tunnel: ``mirror-<name>``.
        trigger: as for Spark's ``trigger``.
        options: further options of format headrace for reading streams.
        to_format: the format of ``to_options``: ``headrace``; or ``tablestore`` or ``yt``, with store and table in the
            options of that format.
        to_options: further options of that format for writing streams.

    Returns:
        A `MirrorStream`; its ``start()`` returns Spark's ``StreamingQuery``.

    Raises:
        OptionError: an option is missing, invalid or unknown, or the target is a queue.
        NotFoundError: the store of the target does not exist.

    Examples:
        >>> archive = headrace.open("copy", create=True)
        >>> stream = headrace.mirror(
        ...     spark, source="shop", table="orders", to="copy", name="archive", trigger={"availableNow": True}
        ... )
        >>> stream.start().awaitTermination(60)
        True
        >>> archive.table("orders").get({"id": "o1"})
        {'id': 'o1', 'price': 10.0}
    """
    sink = sink_of("mirror", to_format, to_options, store=to, table=to_table)
    arguments = SinkArguments.of(sink, spark, checkpoint=checkpoint, name=name, trigger=trigger)
    reading = given_options("mirror", DEFAULT_FORMAT.name, options, SOURCE, store=source, table=table, tunnel=tunnel)
    reading_source = source_of(DEFAULT_FORMAT.name, reading)
    if reading_source.location.table is None:
        raise OptionError("a mirror needs the name of its source table", remedy='headrace.mirror(spark, table="…", …)')
    if sink.location.queue:
        raise OptionError("a mirror writes a table, not a queue", received=repr(sink.location.queue))
    if history and sink.keeps_bad_rows():
        refuse_history()
    _check_complete(reading_source)
    tunnel_option = DEFAULT_FORMAT.tunnel_option
    assert tunnel_option is not None
    return MirrorStream(
        arguments=arguments,
        spark=spark,
        source=reading_source.location,
        source_options=reading,
        target_table=sink.location.table or reading_source.location.table,
        history=history,
        schema_change=parse_schema_change(schema_change),
        keeps_bad_rows=sink.keeps_bad_rows(),
        tunnel=reading_source.settings.get(tunnel_option) or None,
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
