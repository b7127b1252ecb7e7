"""Format ``headrace``: tables, tunnels and queues of any store, with headrace's own option names (docs/options.md)."""

from __future__ import annotations

from collections.abc import Collection, Iterator

import pyarrow as pa

from headrace.batches.feeds.channel_reading import ChannelTask
from headrace.batches.feeds.queue_columns import PARTITION, QUEUE_NAME, ROW_INDEX, AddressColumns
from headrace.batches.sinks.jobs import ANEW, REPLACE
from headrace.errors import OptionError, SchemaError, UnsupportedError
from headrace.formats.format import Format
from headrace.formats.headrace import debezium, read_as
from headrace.formats.headrace.debezium_events import DebeziumShape
from headrace.formats.headrace.location import STORE, add_environment, default_store, find
from headrace.formats.headrace.options import OPTIONS, TYPED
from headrace.formats.old_rows import check_store
from headrace.formats.source import QueueRead, Source, TunnelRead
from headrace.model.tables.change_columns import (
    CHANGE_COLUMNS,
    COMMIT_VERSION,
    TRANSACTION_ID,
    ChangeShape,
    Shape,
    SignedShape,
)
from headrace.model.tables.json_forms import PLAIN
from headrace.model.tables.packed_rows import PACKED, PackedShape
from headrace.model.tables.several_tables import SeveralShape, TunnelMark
from headrace.model.tunnels.losses import refuse_truncations
from headrace.model.tunnels.values import Start, StartKind
from headrace.model.types import type_name
from headrace.ports import Store, Tunnel
from headrace.stores.opening import CheckpointScheme
from headrace.stores.registry import openings

HEADRACE = Format(
    name="headrace",
    options=OPTIONS,
    add_environment=add_environment,
    environment=("HEADRACE_", *(prefix for each in openings() for prefix in each.environment)),
    find=find,
    row_change_option="rowChange",
    channel_limit_options=("maxRowsPerPartition", "maxRowsPerChannel"),
    batch_limit_option="maxRowsPerTrigger",
    tunnel_option="tunnel",
    queue_option="queue",
    consumer_option="consumer",
    key_option="keyColumns",
    bad_rows_option="badRows",
    follows_tables=read_as.asks_for_table,
    checkpoint_scheme=CheckpointScheme("headrace", (STORE,), default_store),
)
TRANSACTIONS, TRUNCATIONS = "includeTransactionId", "truncations"
_ADDRESS = {"_queue": QUEUE_NAME, "_partition": PARTITION, "_row_index": ROW_INDEX}


class HeadraceTunnel(TunnelRead):
    def open(self, store: Store) -> Tunnel:
        settings, tunnel = self.source.settings, super().open(store)
        rows, reads_table = settings.get("rows"), read_as.reads_table(settings)
        # A scan of one table has the table's own columns.
        of_table = reads_table and self.source.location.table is not None
        typed = rows == TYPED or (rows is None and of_table and tunnel.whole_transactions)
        # A query over rows as JSON cannot compute what is left of one table.
        if settings.get(TRUNCATIONS) or (reads_table and (typed or not tunnel.whole_transactions)):
            tunnel = tunnel.with_truncations()
        form = debezium.json_form(settings)
        if form is not None:
            return tunnel.with_json(form)
        if typed:
            return tunnel.typed()
        return tunnel if rows is None else tunnel.with_json(PLAIN)

    def open_checked(self, store: Store) -> Tunnel:
        settings = self.source.settings
        if settings.get(TRANSACTIONS) and not store.capabilities.transaction_ids:
            raise UnsupportedError(
                "this store does not tell the transactions of changes",
                received=f"{TRANSACTIONS}=true",
                remedy=f"leave out the option; changes with the same {COMMIT_VERSION} are of one commit",
            )
        if not read_as.reads_table(settings):
            return self.open(store)
        check_store(store.capabilities)
        tunnel = self.open(store)
        read_as.check_tunnel(tunnel, [store.table(name) for name in tunnel.tables] or [tunnel.table])
        return tunnel

    def followed(self, store: Store, tunnel: Tunnel) -> tuple[TunnelMark | None, str | None]:
        if not read_as.reads_table(self.source.settings):
            return None, None
        mark = TunnelMark(store.id, tunnel.id, tunnel.name, self.source.limits_in_words())
        table = self.source.location.table
        return mark, None if table is None else store.table(table).name

    def check_columns(self, tunnel: Tunnel, task: ChannelTask, wanted: pa.Schema) -> None:
        if tunnel.tables or PACKED in wanted.names or debezium.json_form(self.source.settings) is not None:
            return
        columns, own = tunnel.table.schema, [*CHANGE_COLUMNS.names, TRANSACTION_ID.name]
        lost = [f"{name} does not exist" for name in wanted.names if name not in (*columns.names, *own)]
        now = {name: type_name(columns.column(name).type) for name in wanted.names if name in columns}
        former = {name: type_name(wanted.field(name).type) for name in now}
        lost += [f"{name} is {now[name]}, and was {former[name]}" for name in now if now[name] != former[name]]
        if lost:
            raise SchemaError(
                f"columns of table {tunnel.table.name!r} that a running query reads have changed",
                received=f"{'; '.join(lost)}; seen at {tunnel.shown_position(task.plan.start)}",
                valid=columns.names,
                remedy="undo the change; or start the query again, which reads the columns of now; if its text or its "
                f"state no longer fits, replace a followed query ({REPLACE}), and for another one {ANEW}",
            )

    def refuse_truncations(
        self, rows: Iterator[pa.RecordBatch], tables: Collection[str] | None
    ) -> Iterator[pa.RecordBatch]:
        settings = self.source.settings
        return refuse_truncations(rows, settings.need("tunnel"), tables) if read_as.reads_table(settings) else rows

    def start(self) -> Start:
        # The committed positions may be those of another query, which has read the rows before them.
        return Start(StartKind.BEGINNING) if read_as.reads_table(self.source.settings) else super().start()

    def shape(self, tunnel: Tunnel, wanted: pa.Schema | None) -> Shape:
        table, settings = tunnel.table, self.source.settings
        names = None if wanted is None else wanted.names
        if tunnel.tables:
            return SeveralShape(
                table.schema,
                tunnel.tables,
                wanted,
                pre_images=settings.get("preImages"),
                transactions=settings.get(TRANSACTIONS),
                signed=read_as.reads_table(settings),
            )
        if wanted is not None and PACKED in wanted.names:
            return PackedShape(table.schema, wanted)
        if read_as.reads_table(settings):
            return SignedShape(table.schema, table.name, names)
        if debezium.json_form(settings) is not None:
            return DebeziumShape(
                tunnel.origin,
                settings.get("topicPrefix"),
                names,
                pre_images=settings.get("preImages"),
                tombstones=settings.get("tombstonesOnDelete"),
            )
        return ChangeShape(
            table.schema, names, pre_images=settings.get("preImages"), transactions=settings.get(TRANSACTIONS)
        )


class HeadraceQueues(QueueRead):
    def address_columns(self) -> AddressColumns:
        settings = self.source.settings
        path = settings.get("sourcePathColumn")
        return AddressColumns(
            {}, (_ADDRESS if settings.get("includeRowAddress") else {}) | ({path: QUEUE_NAME} if path else {})
        )


class HeadraceSource(Source):
    format = HEADRACE
    tunnel_read = HeadraceTunnel
    queue_read = HeadraceQueues

    def check_batch_read(self) -> None:
        if self.names_tunnel():
            raise OptionError(
                "a tunnel is read as a stream, and this is a batch read",
                remedy="use spark.readStream, or leave out option tunnel to read the table",
            )

    def check_stream_read(self) -> None:
        super().check_stream_read()
        debezium.check_options(self.settings)
        self._check_rows_of_changes(TRANSACTIONS)
        self._check_rows_of_changes(TRUNCATIONS)
        if read_as.reads_table(self.settings):
            read_as.check_options(self.settings)

    def _check_rows_of_changes(self, option: str) -> None:
        """Raise `OptionError` if an option of changes is given for rows that are none."""
        if not self.settings.get(option):
            return
        others = {"readAs": read_as.reads_table(self.settings), "changeFormat": debezium.json_form(self.settings)}
        for name, excludes in others.items():
            if excludes:
                raise OptionError(
                    f"options {option} and {name} are both set",
                    received=f"{name}={self.settings.get(name)}",
                    valid="one of them",
                )
        if not self.names_tunnel():
            raise OptionError(f"option {option} is for tunnels, and no option names one", valid="option tunnel")

    def queue_names(self) -> tuple[str, ...]:
        queue, queues = self.settings.get("queue"), self.settings.get("queues")
        return queues or ((queue,) if queue else ())
