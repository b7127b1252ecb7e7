"""`YT`: the option names and columns of SPYT (docs/options.md). Names of tables and queues are paths."""

from __future__ import annotations

from headrace.formats.format import Format, RowsPerWrite
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
