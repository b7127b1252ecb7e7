"""Format ``yt``: the option names and columns of SPYT (docs/options.md). Names of tables and queues are paths."""

from __future__ import annotations

import pyarrow as pa

from headrace.batches.feeds.queue_columns import PARTITION, QUEUE_NAME, ROW_INDEX, AddressColumns
from headrace.formats.format import Format, RowsPerWrite
from headrace.formats.source import QueueRead, Source, TableRead
from headrace.ports import Table
from headrace.rows.to_reader import opaque_type
from headrace.stores.opening import CheckpointScheme
from headrace_ytsaurus.format.location import (
    PROXY,
    STORE,
    add_environment,
    default_store,
    find,
    replaces_sink,
    store_at,
)
from headrace_ytsaurus.format.options import OPTIONS

YT = Format(
    name="yt",
    options=OPTIONS,
    add_environment=add_environment,
    environment=("HEADRACE_", "YT_"),
    find=find,
    row_change_option="rowChange",
    channel_limit_options=("max_rows_per_partition",),
    batch_limit_option="maxRowsPerTrigger",
    queue_option="path",
    consumer_option="consumer_path",
    needs_consumer=True,
    key_option="keyColumns",
    rows_per_write=RowsPerWrite("dynBatchSize", "spark.yt.write.dynBatchSize", 50_000),
    checkpoint_scheme=CheckpointScheme(
        "yt",
        (PROXY, STORE),
        default_store,
        store_at,
        replaces_sink,
        mistaken_schemes={
            "http": "a cluster of YTsaurus is yt+http://host:port/path",
            "https": "a cluster of YTsaurus is yt+https://host/path",
            "ytsaurus": "a cluster of YTsaurus is yt://proxy/path",
        },
    ),
)
# SPYT's names.
_SERVICE_COLUMNS = {"__spyt_streaming_src_tablet_index": PARTITION, "__spyt_streaming_src_row_index": ROW_INDEX}


class YtQueues(QueueRead):
    def has_json_composites(self) -> bool:
        return _has_json_composites(self.source)

    def address_columns(self) -> AddressColumns:
        settings = self.source.settings
        path = settings.get("source_path_column") or settings.get("sourcePathColumn")
        return AddressColumns(
            _SERVICE_COLUMNS if settings.get("include_service_columns") else {}, {path: QUEUE_NAME} if path else {}
        )


class YtTable(TableRead):
    def columns(self, table: Table) -> pa.Schema:
        columns = super().columns(table)
        if not _has_json_composites(self.source):
            return columns
        return pa.schema([pa.field(field.name, opaque_type(field.type)) for field in columns])


class YtSource(Source):
    format = YT
    queue_read = YtQueues
    table_read = YtTable


def _has_json_composites(source: Source) -> bool:
    return not source.settings.get("parsing_type_v3")
