"""Values that are kept for groups one by one, with the number of rows that have them: for min, max, count(DISTINCT).

The table of values has a row for each value of each group, in the order of the values. What a query shows of them, the
first value or their number, is a column of the group's row.
"""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass

import numpy as np
import pyarrow as pa
import pyarrow.compute as pc

from headrace.derived.state.aggregates import Aggregate
from headrace.derived.state.kept_numbers import State, added, check_counts, mismatch, numbers, present
from headrace.derived.state.keys import group_keys, normalized, ordered_values, restored_values
from headrace.derived.state.signed_rows import SignedRows, column_of
from headrace.derived.state.state_tables import ValueTable
from headrace.model.tables.conditions import KeyRange
from headrace.rows.by_position import aggregated, sort_indices
from headrace.rows.nested import Mask, Numbers, is_valid, one_array

# Values that are read of a group to find its new first value; more are read if all of them were removed.
_FIRST_READ = 4
_MOST_READ = 4096


@dataclass(frozen=True)
class ValueCounts:
    """The values of groups that a batch changes.

    Attributes:
        groups: the number of the group of each value.
        values: the values as binaries; the pairs are distinct, and sorted.
        before: the number of rows with the value before the batch; ``after``: after it.
    """

    groups: Numbers
    values: pa.BinaryArray
    before: Numbers
    after: Numbers


class KeptValues:
    """The values of some arguments.

    Args:
        number: the number of this object's values in the table of values.
        arguments: the columns of the rows.
    """

    columns: Mapping[str, pa.DataType]

    def __init__(self, number: int, arguments: tuple[str, ...]) -> None:
        self.number = number
        self.arguments = arguments

    def changed(self, rows: SignedRows, states: ValueTable) -> ValueCounts:
        """Return the values that the rows add or remove.

        Raises:
            StateMismatchError: a value is removed more often than it was added.
        """
        used = present(rows, self.arguments)
        groups, signs, values = rows.groups, rows.signs, self._encoded(rows, used)
        if not used.all():
            groups, signs = groups[used], signs[used]
        (group_numbers, distinct), (changes,) = aggregated(
            [pa.array(groups), values], [("sum", pa.array(signs, pa.int64()))]
        )
        changed = pa.table({"group": group_numbers, "value": distinct, "change": changes})
        changed = changed.filter(pc.not_equal(changes, 0))
        changed = changed.take(sort_indices(changed, ["group", "value"])).combine_chunks()
        numbers_of_groups = one_array(changed.column("group")).to_numpy()
        distinct = one_array(changed.column("value"))
        before = states.counts(rows.keys.take(pa.array(numbers_of_groups)), self.number, distinct)
        after = before + one_array(changed.column("change")).to_numpy()
        check_counts(after)
        return ValueCounts(numbers_of_groups, distinct, before, after)

    def _encoded(self, rows: SignedRows, used: Mask) -> pa.BinaryArray:
        raise NotImplementedError


class KeptDistinct(KeptValues):
    """The number of distinct values of some arguments."""

    def __init__(self, number: int, arguments: tuple[str, ...]) -> None:
        super().__init__(number, arguments)
        self.name = f"d{number}"
        self.columns = {self.name: pa.int64()}

    def _encoded(self, rows: SignedRows, used: Mask) -> pa.BinaryArray:
        columns = [normalized(column_of(rows, name)).filter(pa.array(used)) for name in self.arguments]
        return group_keys(columns, int(used.sum()))

    def merged(self, old: State, rows: SignedRows, counts: ValueCounts, states: ValueTable) -> dict[str, pa.Array]:
        """Return the state after the rows."""
        change = (counts.after > 0).astype(np.int64) - (counts.before > 0)
        found = numbers(old[self.name]) + added(counts.groups, change, rows.count)
        check_counts(found)
        return {self.name: pa.array(found)}

    def check(self, state: State, counts: Numbers) -> None:
        """Raise `StateMismatchError` unless exactly the groups with rows have values."""
        _check_same(numbers(state[self.name]) > 0, counts > 0)

    def results(self, state: State, aggregate: Aggregate) -> pa.Array:
        return state[self.name].cast(aggregate.result)


class KeptExtreme(KeptValues):
    """The least or greatest value of an argument.

    Values of max are kept in reverse order, so that both are the first value of their group.
    """

    def __init__(self, number: int, argument: str, data_type: pa.DataType, *, greatest: bool) -> None:
        super().__init__(number, (argument,))
        self.name = f"m{number}"
        self.columns = {self.name: pa.binary()}
        self._type = data_type
        self._greatest = greatest

    def _encoded(self, rows: SignedRows, used: Mask) -> pa.BinaryArray:
        column = column_of(rows, self.arguments[0])
        return ordered_values(column.filter(pa.array(used)), descending=self._greatest)

    def merged(self, old: State, rows: SignedRows, counts: ValueCounts, states: ValueTable) -> dict[str, pa.Array]:
        """Return the state after the rows.

        The first value of a group changes if a smaller value is added, or if it is removed itself. Only then the next
        value is read from the table.
        """
        first = old[self.name]
        same = pc.equal(counts.values, first.take(pa.array(counts.groups))).fill_null(False)
        removed = counts.after == 0
        lost = np.zeros(rows.count, np.bool_)
        lost[counts.groups[removed & same.to_numpy(zero_copy_only=False)]] = True
        if lost.any():
            following = self._next_values(first, lost, rows, counts, states)
            first = pc.if_else(pa.array(lost), following, first)
        return {self.name: _lesser(first, _first_of_groups(counts, rows.count))}

    def _next_values(
        self, first: pa.BinaryArray, lost: Mask, rows: SignedRows, counts: ValueCounts, states: ValueTable
    ) -> pa.BinaryArray:
        """Return the first value after a removed one that the batch does not remove, for the groups that lost one."""
        found = pa.nulls(rows.count, pa.binary())
        removed = _pairs(counts.groups, counts.values).filter(pa.array(counts.after == 0))
        open_groups, after, limit = np.flatnonzero(lost), first, _FIRST_READ
        while len(open_groups):
            keys = rows.keys.take(pa.array(open_groups))
            bounds = after.take(pa.array(open_groups))
            ranges = [
                KeyRange((key, self.number, value + b"\x00"), (key, self.number + 1))
                for key, value in zip(keys.to_pylist(), bounds.to_pylist(), strict=True)
            ]
            of_groups, values, before = states.first(ranges, limit)
            groups = open_groups[pc.index_in(of_groups, keys).to_numpy()]
            kept = (before > 0) & ~pc.is_in(_pairs(groups, values), removed).to_numpy(zero_copy_only=False)
            found = _replaced(found, values.filter(pa.array(kept)), _first_places(groups[kept], rows.count))
            after = _replaced(after, values, _last_places(groups, rows.count))
            sizes = np.bincount(groups, minlength=rows.count)[open_groups]
            missing = ~is_valid(found.take(pa.array(open_groups)))
            open_groups = open_groups[missing & (sizes == limit)]
            limit = min(limit * 4, _MOST_READ)
        return found

    def check(self, state: State, counts: Numbers) -> None:
        """Raise `StateMismatchError` unless exactly the groups with rows have a first value."""
        _check_same(is_valid(state[self.name]), counts > 0)

    def results(self, state: State, aggregate: Aggregate) -> pa.Array:
        return restored_values(state[self.name], self._type, descending=self._greatest).cast(aggregate.result)


def _check_same(with_values: Mask, with_rows: Mask) -> None:
    if (with_values != with_rows).any():
        raise mismatch("a group has values without rows, or rows without values", int((with_values != with_rows).sum()))


def _first_of_groups(counts: ValueCounts, count: int) -> pa.BinaryArray:
    """Return the first value of each group that exists after the batch, among those that it changes."""
    alive = counts.after > 0
    groups, values = counts.groups[alive], counts.values.filter(pa.array(alive))
    return _replaced(pa.nulls(count, pa.binary()), values, _first_places(groups, count))


def _first_places(groups: Numbers, count: int) -> Numbers:
    """Return the index of the first value of each group, or -1."""
    places = np.full(count, -1, np.int64)
    # Of several values for one place, numpy keeps the last one.
    places[groups[::-1]] = np.arange(len(groups))[::-1]
    return places


def _last_places(groups: Numbers, count: int) -> Numbers:
    """Return the index of the last value of each group, or -1."""
    places = np.full(count, -1, np.int64)
    places[groups] = np.arange(len(groups))
    return places


def _replaced(column: pa.BinaryArray, values: pa.BinaryArray, places: Numbers) -> pa.BinaryArray:
    """Return a column with the values of some places; the others, of place -1, are kept."""
    return pc.if_else(pa.array(places >= 0), values.take(pa.array(places, mask=places < 0)), column)


def _lesser(left: pa.BinaryArray, right: pa.BinaryArray) -> pa.BinaryArray:
    """Return the lesser of two binaries; null is greater than all."""
    use_right = pc.or_kleene(pc.less(right, left), pc.and_(left.is_null(), right.is_valid())).fill_null(False)
    return pc.if_else(use_right, right, left)


def _pairs(groups: Numbers, values: pa.BinaryArray) -> pa.BinaryArray:
    """Return a binary for each pair of a group and a value."""
    numbers_of_groups = pa.FixedSizeBinaryArray.from_buffers(
        pa.binary(8), len(groups), [None, pa.py_buffer(np.ascontiguousarray(groups))]
    )
    return pc.binary_join_element_wise(numbers_of_groups.cast(pa.binary()), values, pa.scalar(b"", pa.binary()))
