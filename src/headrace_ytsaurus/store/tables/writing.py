"""Writes of a sorted table: puts, updates, deletes, and their transactions."""

from __future__ import annotations

import functools
from collections.abc import Callable, Iterable, Iterator, Sequence
from concurrent.futures import ThreadPoolExecutor
from dataclasses import dataclass
from typing import Any, TypeAlias

import numpy as np
import pyarrow as pa
from yt.wrapper import YtClient

from headrace.model.tables.changes import RowChange
from headrace.rows import check_not_null
from headrace.rows.by_position import compared, last_rows, repeats
from headrace_ytsaurus.store.connection import ROWS_PER_TABLET, YtConnection, encoded
from headrace_ytsaurus.store.schemas import TableLayout

Guard: TypeAlias = Callable[[YtClient], None]


def _no_guard(client: YtClient) -> None:
    """Permit a write without a condition."""


def write_whole(
    connection: YtConnection,
    path: str,
    layout: TableLayout,
    change: RowChange,
    rows: pa.Table,
    *,
    keep_nulls: bool = False,
) -> None:
    """Write typed rows in one transaction if it can contain them, or else in parts, in their order."""
    if rows.num_rows <= ROWS_PER_TABLET:
        requests = list(_requests(rows, change, layout, keep_nulls=keep_nulls))
        if len(requests) == 1:
            # A single request is its own transaction, and the client can repeat it.
            requests[0].send(connection, path)
        elif requests:
            connection.repeated(functools.partial(_send_together, connection, path, requests, _no_guard))
        return
    write_in_parts(connection, path, layout, [(change, rows)], keep_nulls=keep_nulls)


def write_in_parts(
    connection: YtConnection,
    path: str,
    layout: TableLayout,
    changes: Iterable[tuple[RowChange, pa.Table]],
    *,
    keep_nulls: bool = False,
    guard: Guard = _no_guard,
) -> None:
    """Write typed rows in their order, in transactions with as many rows as they can contain.

    Args:
        changes: is consumed in another thread, while the cluster writes the rows before.
        guard: is called in each transaction before rows are written; its errors end the write.
    """
    transactions = _transactions(changes, layout, keep_nulls=keep_nulls)
    with ThreadPoolExecutor(1, "headrace-encode") as pool:
        requests = pool.submit(next, transactions, None).result()
        while requests is not None:
            coming = pool.submit(next, transactions, None)
            connection.repeated(functools.partial(_send_together, connection, path, requests, guard))
            requests = coming.result()
        # The changes may have been read through connections of that thread.
        pool.submit(connection.close)


def _send_together(connection: YtConnection, path: str, requests: Sequence[_Request], guard: Guard) -> None:
    """Send requests in one transaction."""
    with connection.transaction() as client:
        guard(client)
        for request in requests:
            request.send(connection, path, client)


def _transactions(
    changes: Iterable[tuple[RowChange, pa.Table]], layout: TableLayout, *, keep_nulls: bool
) -> Iterator[list[_Request]]:
    """Yield the requests of each transaction."""
    requests: list[_Request] = []
    room = ROWS_PER_TABLET
    for change, rows in changes:
        start = 0
        while start < rows.num_rows:
            part = rows.slice(start, room)
            requests += _requests(part, change, layout, keep_nulls=keep_nulls)
            start += part.num_rows
            room -= part.num_rows
            if not room:
                yield requests
                requests, room = [], ROWS_PER_TABLET
    if requests:
        yield requests


def write(
    connection: YtConnection,
    path: str,
    layout: TableLayout,
    change: RowChange,
    rows: pa.Table,
    *,
    keep_nulls: bool = False,
    client: Any = None,
) -> None:
    """Write typed rows, in the transaction of a client if it is not None.

    Args:
        keep_nulls: whether an update sets cells to null; otherwise the cell of a null is not changed.
    """
    for request in _requests(rows, change, layout, keep_nulls=keep_nulls):
        request.send(connection, path, client)


@dataclass(frozen=True)
class _Request:
    """The body of a request that writes or deletes rows."""

    change: RowChange
    data: bytes

    def send(self, connection: YtConnection, path: str, client: Any = None) -> None:
        if self.change is RowChange.DELETE:
            connection.delete_encoded(path, self.data, client=client)
        else:
            connection.insert_encoded(path, self.data, update=self.change is RowChange.UPDATE, client=client)


def _requests(rows: pa.Table, change: RowChange, layout: TableLayout, *, keep_nulls: bool) -> Iterator[_Request]:
    """Yield the requests of a write, in their order."""
    if change is RowChange.UPDATE and keep_nulls:
        check_not_null(rows, layout.schema)
    for piece in _pieces(rows, change, layout, keep_nulls=keep_nulls):
        yield from (_Request(change, data) for data in encoded(*layout.written(piece)))


def _pieces(rows: pa.Table, change: RowChange, layout: TableLayout, *, keep_nulls: bool) -> Iterator[pa.Table]:
    """Yield parts of rows with the same columns to write, in an order with the same result."""
    if not rows.num_rows:
        return
    if change is not RowChange.UPDATE or keep_nulls:
        yield rows
        return
    key = list(layout.schema.primary_key)
    attributes = [name for name in rows.column_names if name not in key]
    if not any(rows.column(name).null_count for name in attributes):
        yield rows
        return
    given = np.stack([rows.column(name).is_valid().to_numpy() for name in attributes], axis=1)
    _, patterns = np.unique(given, axis=0, return_inverse=True)
    patterns = patterns.reshape(-1)
    for taken in _runs(rows.select(key), patterns):
        names = [name for name, there in zip(attributes, given[taken[0]], strict=True) if there]
        yield rows.take(pa.array(taken)).select([*key, *names])


def _runs(keys: pa.Table, patterns: np.ndarray) -> Iterator[np.ndarray]:
    """Yield the indexes of rows with the same pattern.

    Rows of different keys may be reordered. If a key occurs twice, the order is kept, and runs of rows are returned.
    """
    if not repeats(keys, keys.column_names):
        for pattern in range(int(patterns.max()) + 1):
            yield np.flatnonzero(patterns == pattern)
        return
    breaks = np.flatnonzero(np.diff(patterns)) + 1
    yield from np.split(np.arange(len(patterns)), breaks)


def last_of_each_key(rows: pa.Table, key: list[str]) -> pa.Table:
    """Return the last row of each key, in the order of the rows."""
    return rows.take(pa.array(last_rows(rows, key)))


def keys_gone(here: pa.Table, wanted: pa.Table) -> pa.Table:
    """Return the keys of ``here`` that are not in ``wanted``; both have the key columns only."""
    return here.take(compared(here, wanted, here.column_names).only_left)
