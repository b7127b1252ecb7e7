"""What signed rows change of each key: its last row, which is put or deleted; its net change."""

from __future__ import annotations

from collections.abc import Iterable, Iterator, Sequence

import numpy as np
import pyarrow as pa
import pyarrow.compute as pc

from headrace.derived.own_names import ORDER, SIGN
from headrace.errors import SchemaError, UnsupportedError
from headrace.rows import by_position
from headrace.rows.by_position import aggregated

PUTS, DELETES = 0, 1
"""The indexes of the targets of a batch with the rows to put and with the keys to delete."""
_WAITING_BYTES = 64 << 20


def last_rows(
    parts: Iterable[pa.RecordBatch], key: Sequence[str], *, waiting_bytes: int = _WAITING_BYTES
) -> Iterator[tuple[int, pa.RecordBatch]]:
    """Yield (`PUTS`, rows to put) and (`DELETES`, keys to delete). Puts come before deletes, and apply before them.

    Besides a part of the rows, only the deleted keys are in memory.

    Args:
        parts: signed rows with the columns `SIGN` and `ORDER`. All rows of a key are here, in their order.
        key: the key columns.
        waiting_bytes: the size of the rows that are reduced at once.

    Raises:
        SchemaError: a key column is null.
        UnsupportedError: one change gives several rows with the same key.
    """
    last = LastRows(key)
    for rows in _pieces(parts, waiting_bytes):
        _check_keys(rows, key)
        yield from last.add(rows)
    yield from last.deletes()


class LastRows:
    """The last row of each key of signed rows, piece by piece. Only the deleted keys are in memory.

    Args:
        key: the key columns.
    """

    def __init__(self, key: Sequence[str]) -> None:
        self._key = list(key)
        self._deleted: pa.Table | None = None

    def add(self, rows: pa.Table) -> Iterator[tuple[int, pa.RecordBatch]]:
        """Yield (`PUTS`, rows to put) of further rows, in their order, with column `SIGN`."""
        # Without deletions before, the last row of a repeated key wins when rows are put.
        if self._deleted is None and (not rows.num_rows or pc.min(rows.column(SIGN)).as_py() > 0):
            yield from ((PUTS, part) for part in _shown(rows).to_batches())
            return
        last = pa.array(by_position.last_rows(rows, self._key))
        stays = pc.greater(rows.column(SIGN).take(last), 0)
        put = rows.take(last.filter(stays))
        yield from ((PUTS, part) for part in _shown(put).to_batches())
        latest = rows.select([*self._key, SIGN]).take(last)
        if self._deleted is not None:
            latest = pa.concat_tables([self._deleted, latest])
            latest = latest.take(pa.array(by_position.last_rows(latest, self._key)))
        self._deleted = latest.filter(pc.less(latest.column(SIGN), 0))

    def deletes(self) -> Iterator[tuple[int, pa.RecordBatch]]:
        """Yield (`DELETES`, keys to delete) after all rows."""
        if self._deleted is not None:
            deleted = self._deleted.select(self._key).combine_chunks()
            yield from ((DELETES, part) for part in deleted.to_batches())


def _pieces(parts: Iterable[pa.RecordBatch], size: int) -> Iterator[pa.Table]:
    """Yield rows in pieces of at least ``size`` bytes, except the last. The rows of a change are in one piece."""
    waiting: list[pa.RecordBatch] = []
    waiting_bytes = 0
    for part in parts:
        if not part.num_rows:
            continue
        if waiting_bytes >= size and part.column(ORDER)[0] != waiting[-1].column(ORDER)[-1]:
            yield pa.Table.from_batches(waiting)
            waiting, waiting_bytes = [], 0
        waiting.append(part)
        waiting_bytes += part.nbytes
    if waiting:
        yield pa.Table.from_batches(waiting)


def _shown(rows: pa.Table) -> pa.Table:
    return rows.drop_columns([name for name in (SIGN, ORDER) if name in rows.column_names])


def _check_keys(rows: pa.Table, key: Sequence[str]) -> None:
    for name in key:
        if rows.column(name).null_count:
            raise null_key(name)
    order = rows.column(ORDER).to_numpy()
    repeated = np.zeros(len(order), np.bool_)
    repeated[1:] = order[1:] == order[:-1]
    if not repeated.any():
        return
    # Rows of one change are neighbours. A join can give several of them, which must have different keys.
    repeated[:-1] |= repeated[1:]
    entering = pc.and_(pa.array(repeated), pc.greater(rows.column(SIGN).combine_chunks(), 0))
    found = rows.select([*key, ORDER]).filter(entering)
    _, (counts,) = by_position.aggregated([found.column(name) for name in (*key, ORDER)], [("count_all", None)])
    several = pc.sum(pc.greater(counts, 1)).as_py()
    if several:
        raise UnsupportedError(
            "the query gives several rows with the same key of the target for one row of a followed table",
            received=f"{several} keys with several rows",
            valid=f"one row for each ({', '.join(key)})",
            remedy="add the key columns of the joined table to the primary key of the target, or GROUP BY the key",
        )


def null_key(column: str) -> SchemaError:
    """Return the error for a null in a key column of the target."""
    return SchemaError(
        f"the query gives null for key column {column!r} of the target",
        remedy=f"replace it: coalesce(…, a value) AS {column}; or leave the rows out: WHERE … IS NOT NULL",
    )


def net_changes(parts: Iterable[pa.RecordBatch], key: Sequence[int]) -> Iterator[pa.RecordBatch]:
    """Yield the row that leaves the table and the row that enters it, of each key. All rows are in memory.

    The result adds up to the same table as all rows. Its rows are in the table before the batch or after it, so a query
    that computes them computes nothing that a query over the table would not.

    Args:
        parts: signed rows, with the sign in the last column. All rows of a key are here, in their order.
        key: the positions of the key columns.
    """
    gathered = [part for part in parts if part.num_rows]
    if not gathered:
        return
    rows = pa.Table.from_batches(gathered)
    places = pa.array(np.arange(rows.num_rows))
    _, (first, last) = aggregated([rows.column(index) for index in key], [("min", places), ("max", places)])
    signs = rows.column(rows.num_columns - 1).to_numpy()
    before, after = first.to_numpy(), last.to_numpy()
    kept = np.concatenate([before[signs[before] < 0], after[signs[after] > 0]])
    yield from rows.take(pa.array(np.sort(kept))).to_batches()
