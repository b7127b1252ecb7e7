"""The columns that format ``headrace`` adds to a queue's rows; `tables.change_columns` has the columns of tunnels."""

from __future__ import annotations

from headrace.batches.feeds.queue_columns import PARTITION, QUEUE_NAME, ROW_INDEX, AddressColumns

_ADDRESS = {"_queue": QUEUE_NAME, "_partition": PARTITION, "_row_index": ROW_INDEX}


def address_columns(*, with_address: bool, path_column: str | None) -> AddressColumns:
    """Return the columns after those of the queue.

    Args:
        with_address: add `_queue`, `_partition` and `_row_index`.
        path_column: the name of a column with the queue's name; None for no such column.
    """
    return AddressColumns({}, (_ADDRESS if with_address else {}) | ({path_column: QUEUE_NAME} if path_column else {}))
