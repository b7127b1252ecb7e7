"""`TABLESTORE`: the option names and columns of Tablestore's connector (docs/tablestore.md)."""

from __future__ import annotations

from headrace.formats.format import Format
from headrace_tablestore.format.location import add_environment, find
from headrace_tablestore.format.options import OPTIONS

TABLESTORE = Format(
    name="tablestore",
    options=OPTIONS,
    add_environment=add_environment,
    environment=("HEADRACE_",),
    find=find,
    row_change_option="writer.row.change.type",
    channel_limit_options=("maxoffsetsperchannel",),
    batch_limit_option="maxoffsetspertrigger",
    tunnel_option="tunnel.id",
    missing_columns_are_null=True,
    schemes_without_files=("tablestore", "tablestore+http", "tablestore+https"),
)
