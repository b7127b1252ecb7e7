"""GetRange: pages of rows in ascending or descending key order."""

from __future__ import annotations

import time

import numpy as np

from headrace.model.tables.conditions import KeyRange
from headrace.model.tables.schema import Key
from headrace.stores.embedded.for_servers import EmbeddedTable
from headrace_tablestore.endpoint.errors import refused
from headrace_tablestore.endpoint.instances import Instance, staying
from headrace_tablestore.endpoint.rows.keys import range_from, range_of
from headrace_tablestore.endpoint.rows.layout import Layout, layout_of
from headrace_tablestore.endpoint.rows.reading import Selected, Selection
from headrace_tablestore.endpoint.rows.single_rows import check_plain, consumed
from headrace_tablestore.endpoint.rows.versions import SelectedVersions, select_rows
from headrace_tablestore.endpoint.rows.writing import write_units
from headrace_tablestore.wire import table_pb2 as pb
from headrace_tablestore.wire.limits import MAX_PAGE_BYTES, MAX_PAGE_ROWS
from headrace_tablestore.wire.plainbuffer.rows import encode_row
from headrace_tablestore.wire.plainbuffer.values import Row, values_of_key

_FEWEST_ROWS = 16


def get_range(instance: Instance, request: pb.GetRangeRequest) -> pb.GetRangeResponse:
    """Return the next page of a range: at most 5000 rows are read, and at most about 4 MB returned."""
    check_plain(request)
    limit = request.limit if request.HasField("limit") else MAX_PAGE_ROWS
    if limit < 1:
        raise refused("The limit must be greater than 0.")
    table = instance.table(request.table_name)
    schema = table.schema
    backward = request.direction == pb.BACKWARD
    settings = instance.settings.get(request.table_name)
    selection = Selection.of(request, settings, instance.column_names(request.table_name))
    keys = range_of(request.inclusive_start_primary_key, request.exclusive_end_primary_key, schema, backward=backward)
    if keys is None:
        return pb.GetRangeResponse(consumed=consumed(read=1), rows=b"")
    with staying(table, schema):
        block, following = _page(instance, table, layout_of(schema), selection, keys, limit, backward=backward)
    response = pb.GetRangeResponse(consumed=consumed(read=write_units(len(block))), rows=block)
    if following is not None:
        response.next_start_primary_key = encode_row(
            Row(tuple(zip(schema.primary_key, values_of_key(following), strict=True)))
        )
    return response


def _page(
    instance: Instance,
    table: EmbeddedTable,
    layout: Layout,
    selection: Selection,
    keys: KeyRange,
    limit: int,
    *,
    backward: bool,
) -> tuple[bytes, Key | None]:
    """Return the rows of a page, and the first key of the next page; None after the last page."""
    # Without a filter, hardly a row is omitted, so only the requested number is read.
    omits_rows = selection.by_column or selection.filter is not None
    wanted = MAX_PAGE_ROWS if omits_rows else min(limit, MAX_PAGE_ROWS)
    wanted = min(wanted, instance.page_rows.get(table.name, MAX_PAGE_ROWS))
    # One more row has the first key of the next page.
    page = table.page(selection.needed(layout), keys, selection.predicates(layout), limit=wanted + 1, reverse=backward)
    rows = page.rows
    shown = rows.num_rows if page.ended and rows.num_rows <= wanted else max(1, rows.num_rows - 1)
    selected = select_rows(rows.slice(0, shown), layout, selection, time.time_ns() // 1_000_000)
    count, block = _fitting(selected, limit)
    if count < selected.num_rows:
        shown = int(np.flatnonzero(selected.kept)[count])
    if block:
        fitting = int(count * MAX_PAGE_BYTES / len(block))
        instance.page_rows[table.name] = min(MAX_PAGE_ROWS, max(_FEWEST_ROWS, fitting))
    key_names = list(layout.schema.primary_key)
    if shown < rows.num_rows:
        (following,) = rows.select(key_names).slice(shown, 1).to_pylist()
        return block, tuple(following.values())
    if page.ended or page.last is None:
        return block, None
    # The row was so large that the store returned it alone.
    rest = table.page(key_names, range_from(page.last, keys, backward=backward), limit=2, reverse=backward)
    return block, rest.last if rest.rows.num_rows == 2 else None


def _fitting(selected: Selected | SelectedVersions, limit: int) -> tuple[int, bytes]:
    """Return the number of rows of a page, and the page."""
    count = min(limit, selected.num_rows)
    while True:
        block = selected.slice(count).block() if count else b""
        if len(block) <= MAX_PAGE_BYTES or count == 1:
            return count, block
        count = max(1, min(count - 1, int(count * MAX_PAGE_BYTES / len(block) * 0.95)))
