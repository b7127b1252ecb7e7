"""`HEADRACE`: tables, tunnels and queues of any store, with headrace's own option names (docs/options.md)."""

from __future__ import annotations

from headrace.formats.format import Format
from headrace.formats.headrace.location import STORE, add_environment, default_store, find
from headrace.formats.headrace.options import OPTIONS
from headrace.formats.headrace.read_as import asks_for_table
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
    follows_tables=asks_for_table,
    checkpoint_scheme=CheckpointScheme("headrace", (STORE,), default_store),
)
