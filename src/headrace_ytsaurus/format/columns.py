"""The columns that format ``yt`` adds to a queue's rows, with SPYT's names."""

from __future__ import annotations

from headrace.batches.feeds.queue_columns import PARTITION, QUEUE_NAME, ROW_INDEX, AddressColumns

TABLET_COLUMN, ROW_COLUMN = "__spyt_streaming_src_tablet_index", "__spyt_streaming_src_row_index"
_SERVICE = {TABLET_COLUMN: PARTITION, ROW_COLUMN: ROW_INDEX}


def address_columns(*, with_service_columns: bool, path_column: str | None) -> AddressColumns:
    """Return the columns before and after those of the queue.

    Args:
        with_service_columns: add the partition and the row index before the queue's columns.
        path_column: the name of a column with the queue's path, after the queue's columns; None for no such column.
    """
    return AddressColumns(_SERVICE if with_service_columns else {}, {path_column: QUEUE_NAME} if path_column else {})
