"""Two sorted streams of rows compared batch by batch, in the memory of one batch of each.

`differences` compares the next rows of both streams. Usually their keys are equal; then Arrow compares whole columns.
Otherwise it takes all rows of both batches up to the smaller of the two last keys, and matches their keys.
No code runs for each row, except in nested columns that differ.
"""

from __future__ import annotations

from collections.abc import Iterable, Iterator, Mapping, Sequence
from dataclasses import dataclass, field

import numpy as np
import pyarrow as pa
import pyarrow.compute as pc

from headrace.errors import StoreError
from headrace.inspect.comparing.canonical import canonical
from headrace.model.tables.schema import Key
from headrace.rows.differing import unequal


@dataclass(frozen=True)
class Differences:
    """The differing rows of a part of two tables, each in the order of the keys.

    Attributes:
        only_a: rows whose keys only the first table has.
        only_b: rows whose keys only the second table has.
        changed_a: the rows of the first table that differ from the row of the same key.
        changed_b: these rows in the second table.
        changed_columns: by column, whether it differs in each of these rows; only columns with a difference.
    """

    only_a: pa.RecordBatch
    only_b: pa.RecordBatch
    changed_a: pa.RecordBatch
    changed_b: pa.RecordBatch
    changed_columns: Mapping[str, np.ndarray]


def differences(
    a: Iterable[pa.RecordBatch], b: Iterable[pa.RecordBatch], key: Sequence[str], attributes: Sequence[str]
) -> Iterator[Differences]:
    """Yield the differences of two streams of rows in key order, part by part; nothing for parts that are equal.

    Args:
        a: batches with the columns of the key and the attributes.
        b: batches with the same columns, of comparable types.
        key: the key columns, in key order.
        attributes: the other columns to compare.

    Raises:
        StoreError: the rows of a stream are not in key order.
    """
    left, right = _Stream(iter(a), key, attributes), _Stream(iter(b), key, attributes)
    while True:
        left.fill()
        right.fill()
        if left.ended and right.ended:
            return
        found = _equal_keys(left, right) or _matched(left, right)
        if (part := _compared(left, right, found, attributes)) is not None:
            yield part
        left.advance(found.rows_a)
        right.advance(found.rows_b)


@dataclass
class _Stream:
    """A stream of rows with one batch of it, and that batch in canonical form."""

    batches: Iterator[pa.RecordBatch]
    key: Sequence[str]
    attributes: Sequence[str]
    rows: pa.RecordBatch | None = None
    keys: list[pa.Array] = field(default_factory=list)
    values: dict[str, pa.Array] = field(default_factory=dict)
    _ascends: bool = False
    _last: Key | None = None

    @property
    def ended(self) -> bool:
        return self.rows is None

    @property
    def count(self) -> int:
        """The number of rows of the batch that are not compared yet."""
        return 0 if self.rows is None else self.rows.num_rows

    def fill(self) -> None:
        """Read the next batch if all rows of the previous one are compared."""
        if self.count:
            return
        self.rows, self.keys, self.values, self._ascends = None, [], {}, False
        for batch in self.batches:
            if not batch.num_rows:
                continue
            self.rows = batch
            self.keys = [canonical(batch.column(name)) for name in self.key]
            self.values = {name: canonical(batch.column(name)) for name in self.attributes}
            if self._last is not None and self.key_at(0) <= self._last:
                raise _not_sorted(self.key)
            self._last = self.key_at(batch.num_rows - 1)
            return

    def key_at(self, index: int) -> Key:
        """Return a key, with texts as bytes."""
        return tuple(column[index].as_py() for column in self.keys)

    def check_order(self) -> None:
        """Check once for each batch that its keys ascend; `fill` checks the order of the batches."""
        if self.count < 2 or self._ascends:
            return
        ascends = pa.scalar(False)
        # The last key column decides only where all columns before it are equal, so begin with it.
        for column in reversed(self.keys):
            before, after = column.slice(0, len(column) - 1), column.slice(1)
            ascends = pc.or_(pc.less(before, after), pc.and_(pc.equal(before, after), ascends))
        self._ascends = pc.all(ascends).as_py()
        if not self._ascends:
            raise _not_sorted(self.key)

    def rows_up_to(self, key: Key) -> int:
        """Return the number of rows whose keys are at most ``key``, by binary search."""
        low, high = 0, self.count
        while low < high:
            middle = (low + high) // 2
            if self.key_at(middle) <= key:
                low = middle + 1
            else:
                high = middle
        return low

    def advance(self, count: int) -> None:
        if self.rows is not None:
            self.rows = self.rows.slice(count)
            self.keys = [column.slice(count) for column in self.keys]
            self.values = {name: column.slice(count) for name, column in self.values.items()}


@dataclass(frozen=True)
class _Match:
    """The next rows of two streams whose keys are matched.

    Attributes:
        rows_a: the number of rows of the first stream.
        rows_b: the number of rows of the second stream.
        at_a: the indexes of the rows of the first stream that have a partner; None for all of them, in order.
        at_b: the indexes of their partners.
    """

    rows_a: int
    rows_b: int
    at_a: np.ndarray | None = None
    at_b: np.ndarray | None = None


def _equal_keys(left: _Stream, right: _Stream) -> _Match | None:
    """Return the rows that both batches have, if their keys are equal."""
    count = min(left.count, right.count)
    if not count:
        return None
    for one, other in zip(left.keys, right.keys, strict=True):
        if not one.slice(0, count).equals(other.slice(0, count)):
            return None
    return _Match(count, count)


def _matched(left: _Stream, right: _Stream) -> _Match:
    """Match all keys of both batches up to the smaller of the two last keys."""
    for stream in (left, right):
        stream.check_order()
    if left.ended or right.ended:
        none = np.zeros(0, np.int64)
        return _Match(left.count, right.count, none, none)
    last = min(left.key_at(left.count - 1), right.key_at(right.count - 1))
    rows_a, rows_b = left.rows_up_to(last), right.rows_up_to(last)
    codes = _codes(
        [
            pa.concat_arrays([one.slice(0, rows_a), other.slice(0, rows_b)])
            for one, other in zip(left.keys, right.keys, strict=True)
        ]
    )
    _, at_a, at_b = np.intersect1d(codes[:rows_a], codes[rows_a:], assume_unique=True, return_indices=True)
    # In the order of the keys: the codes have the order of the first occurrence.
    order = np.argsort(at_a)
    return _Match(rows_a, rows_b, at_a[order], at_b[order])


def _codes(columns: Sequence[pa.Array]) -> np.ndarray:
    """Return a number for each key; equal keys have equal numbers."""
    codes = np.zeros(len(columns[0]), np.int64)
    for column in columns:
        encoded = column.dictionary_encode()
        codes = codes * len(encoded.dictionary) + encoded.indices.to_numpy()
        # Small numbers again, so that the next column does not overflow them.
        codes = pa.array(codes).dictionary_encode().indices.to_numpy().astype(np.int64)
    return codes


def _not_sorted(key: Sequence[str]) -> StoreError:
    return StoreError(
        "a table returns its rows in another order than that of its key, so they cannot be compared one by one",
        received=f"key columns {', '.join(key)}",
        remedy="compare the checksums of both tables: headrace table checksum NAME",
    )


def _compared(left: _Stream, right: _Stream, found: _Match, attributes: Sequence[str]) -> Differences | None:
    rows_a, rows_b = found.rows_a, found.rows_b
    matched = rows_a if found.at_a is None else len(found.at_a)
    different: dict[str, np.ndarray] = {}
    if matched:
        for name in attributes:
            one = _taken(left.values[name], rows_a, found.at_a)
            other = _taken(right.values[name], rows_b, found.at_b)
            if not one.equals(other):
                different[name] = unequal(one, other)
    if not different and matched == rows_a == rows_b:
        return None
    changed = np.flatnonzero(np.logical_or.reduce(list(different.values()))) if different else np.zeros(0, np.int64)
    return Differences(
        only_a=_rows(left, _others(found.at_a, rows_a)),
        only_b=_rows(right, _others(found.at_b, rows_b)),
        changed_a=_rows(left, changed if found.at_a is None else found.at_a[changed]),
        changed_b=_rows(right, changed if found.at_b is None else found.at_b[changed]),
        changed_columns={name: flags[changed] for name, flags in different.items()},
    )


def _taken(values: pa.Array, count: int, at: np.ndarray | None) -> pa.Array:
    if at is None or len(at) == count:
        # `at` ascends in both batches, so it contains all rows in order.
        return values.slice(0, count)
    return values.take(at)


def _others(at: np.ndarray | None, count: int) -> np.ndarray:
    """Return the indexes of the rows without a partner."""
    if at is None:
        return np.zeros(0, np.int64)
    others = np.ones(count, np.bool_)
    others[at] = False
    return np.flatnonzero(others)


def _rows(stream: _Stream, at: np.ndarray) -> pa.RecordBatch:
    """Return rows as the store has them. They are copied, so they do not keep the whole batch in memory."""
    if stream.rows is None:
        return pa.RecordBatch.from_pylist([], pa.schema([]))
    return stream.rows.take(pa.array(at))
