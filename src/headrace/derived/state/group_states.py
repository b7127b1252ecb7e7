"""The results of aggregates by group, from signed rows and kept state.

A task that has all signed rows of its groups merges them with the state of these groups, which it reads from tables of
the store. It gets the results, and the new state rows, which are published in one transaction with the results.

The table *groups* has a row for each group. Its key is a binary of the group's values (`keys.group_keys`). Its columns:

* ``n0``: the number of rows; ``n1``…: the number of rows without null among some arguments;
* ``s0``…: exact sums (`exact_sums.encoded`), ``x0``…: the numbers of NaN, inf and -inf;
* ``d0``…: numbers of distinct values, ``m0``…: first values.

The table *values* has a row for each value of min, max and count(DISTINCT): the key of the group, the number of the
aggregate's values, the value, and the number of rows with it (``n``).
"""

from __future__ import annotations

from collections.abc import Iterable, Iterator, Mapping, Sequence

import numpy as np
import pyarrow as pa

from headrace.derived.own_names import ALIVE, inner_groups, value_column
from headrace.derived.state import state_tables
from headrace.derived.state.aggregates import Aggregate
from headrace.derived.state.exact_sums import ExactSums
from headrace.derived.state.kept_numbers import KeptCount, KeptSum, mismatch
from headrace.derived.state.kept_values import KeptDistinct, KeptExtreme, ValueCounts
from headrace.derived.state.signed_rows import SignedRows, read_rows
from headrace.derived.state.state_tables import (
    COUNT,
    GROUPS,
    KEY,
    NUMBER,
    REMOVED,
    VALUE,
    VALUES,
    StateChange,
    StateColumns,
    StateReads,
    StateRows,
    StateTable,
    ValueTable,
)
from headrace.ports import Table

_OUTPUT_ROWS = 16_384


class GroupStates:
    """Keeps the aggregates of a query by group. Small and picklable.

    Args:
        groups: the columns of the signed rows that group them; empty for one group of all rows.
        aggregates: the aggregates of the query.
        keeps_previous: whether each state row also has its state before the batch that wrote it, for stores that do
            not publish a batch in one transaction.
        inner: the number of the inner query whose groups they are; 0 for those at the end of the query.

    Raises:
        UnsupportedError: an aggregate cannot be kept.
    """

    def __init__(
        self, groups: pa.Schema, aggregates: Sequence[Aggregate], *, keeps_previous: bool, inner: int = 0
    ) -> None:
        self._groups = groups
        self._aggregates = tuple(aggregates)
        arguments = {
            name: kind for each in self._aggregates for name, kind in zip(each.arguments, each.types, strict=True)
        }
        self._arguments = pa.schema(arguments)
        self._rows = KeptCount(0, ())
        self._counts: dict[tuple[str, ...], KeptCount] = {(): self._rows}
        self._sums: dict[str, KeptSum] = {}
        self._values: dict[tuple[str, tuple[str, ...]], KeptDistinct | KeptExtreme] = {}
        for aggregate in self._aggregates:
            self._keep(aggregate)
        kept = [*self._counts.values(), *self._sums.values(), *self._values.values()]
        types = {name: data_type for each in kept for name, data_type in each.columns.items()}
        self._columns = StateColumns(types, keeps_previous)
        self._value_columns = StateColumns({COUNT: pa.int64()}, keeps_previous)
        self._keeps_previous = keeps_previous
        self._of_inner = f"{inner_groups(inner)}: " if inner else ""
        # One batch has the tables of all groups of its query.
        self._groups_table, self._values_table = (f"i{inner}_{role}" if inner else role for role in (GROUPS, VALUES))

    def _keep(self, aggregate: Aggregate) -> None:
        arguments = aggregate.arguments
        self._counts.setdefault(arguments, KeptCount(len(self._counts), arguments))
        if aggregate.kind in ("sum", "avg"):
            self._sums.setdefault(arguments[0], KeptSum(len(self._sums), arguments[0], aggregate.types[0]))
        elif aggregate.kind == "count_distinct":
            self._values.setdefault((aggregate.kind, arguments), KeptDistinct(len(self._values), arguments))
        elif aggregate.kind in ("min", "max"):
            kept = KeptExtreme(len(self._values), arguments[0], aggregate.types[0], greatest=aggregate.kind == "max")
            self._values.setdefault((aggregate.kind, arguments), kept)

    # -- tables -----------------------------------------------------------------------------------------

    def tables(self, prefix: str) -> dict[str, StateTable]:
        """Return the definitions of the tables of state by role. A query that needs no values has no such table.

        Args:
            prefix: the beginning of the tables' names.
        """
        groups, values = self._groups_table, self._values_table
        columns = self._columns.schema({KEY: pa.binary()})
        found = {groups: StateTable(prefix + groups, columns, (KEY,), f"{self._of_inner}groups")}
        if self._values:
            key = {KEY: pa.binary(), NUMBER: pa.int64(), VALUE: pa.binary()}
            columns = self._value_columns.schema(key)
            content = f"{self._of_inner}values of min, max and count(DISTINCT …)"
            found[values] = StateTable(prefix + values, columns, state_tables.VALUE_KEY, content)
        if self._keeps_previous:
            columns = state_tables.REMOVED_COLUMNS
            found[REMOVED] = StateTable(prefix + REMOVED, columns, state_tables.REMOVED_KEY, "removed rows")
        return found

    def sweep(self, tables: Mapping[str, Table], batch: int) -> None:
        """Delete state rows that batches before this one removed. The driver calls it before the batch's tasks.

        Only states with ``keeps_previous`` have such rows.
        """
        if self._keeps_previous:
            state_tables.sweep(tables, {GROUPS: self._rows.name, VALUES: COUNT}, batch)

    # -- merging ----------------------------------------------------------------------------------------

    @property
    def output(self) -> pa.Schema:
        """The columns of `merge`: the groups, `value_column` with the results, and `ALIVE`."""
        results = [pa.field(value_column(index), each.result) for index, each in enumerate(self._aggregates)]
        return pa.schema([*self._groups, *results, pa.field(ALIVE, pa.bool_(), nullable=False)])

    def merge(
        self, tables: Mapping[str, StateReads], batch: int, rows: Iterable[pa.RecordBatch]
    ) -> Iterator[tuple[pa.RecordBatch, list[StateRows]]]:
        """Merge the signed rows of a task into the state of their groups.

        Args:
            tables: the tables of state by role, as of the last published batch.
            batch: the number of the batch.
            rows: all rows of the groups that they touch, in any order: the columns of the groups and the arguments,
                and `SIGN`. Without columns of groups, one task has all rows, and calls this without rows, too.

        Yields:
            One row for each touched group, in columns `output`, and the state rows of these groups. Of groups that are
            not `ALIVE`, no row is left. All rows are yielded or none.

        Raises:
            StateMismatchError: the rows do not fit the state.
            NumericOverflowError: a result does not fit its type.
        """
        signed = read_rows(rows, self._groups, self._arguments)
        if signed is None:
            return
        old = self._columns.as_of(
            tables[self._groups_table].get_many(pa.table({KEY: signed.keys}), self._columns.names), batch
        )
        new: dict[str, pa.Array] = {}
        for count in self._counts.values():
            new |= count.merged(old, signed)
        for total in self._sums.values():
            new |= total.merged(old, signed)
        changed: list[tuple[KeptDistinct | KeptExtreme, ValueCounts]] = []
        for kept in self._values.values():
            states = ValueTable(tables[self._values_table], self._value_columns, batch)
            counts = kept.changed(signed, states)
            new |= kept.merged(old, signed, counts, states)
            changed.append((kept, counts))
        self._check(new)
        sums = {name: total.exact(new) for name, total in self._sums.items()}
        results = pa.table([self._result(each, new, sums) for each in self._aggregates], self._result_names())
        for start in range(0, signed.count, _OUTPUT_ROWS):
            end = min(start + _OUTPUT_ROWS, signed.count)
            yield self._output_rows(signed, results, old, new, changed, batch, start, end)

    def _result_names(self) -> list[str]:
        return [value_column(index) for index in range(len(self._aggregates))]

    def _check(self, state: Mapping[str, pa.Array]) -> None:
        """Raise `StateMismatchError` if parts of the state contradict each other."""
        rows = self._rows.counts(state)
        for count in self._counts.values():
            if (count.counts(state) > rows).any():
                raise mismatch("a group has more values than rows", int((count.counts(state) > rows).sum()))
        for name, total in self._sums.items():
            left = (self._counts[(name,)].counts(state) == 0) & ~total.is_zero(state)
            if left.any():
                raise mismatch("a group without values has a sum", int(left.sum()))
        for (_, arguments), kept in self._values.items():
            kept.check(state, self._counts[arguments].counts(state))

    def _result(self, aggregate: Aggregate, state: Mapping[str, pa.Array], sums: Mapping[str, ExactSums]) -> pa.Array:
        counted = self._counts[aggregate.arguments]
        match aggregate.kind:
            case "count_rows" | "count":
                return state[counted.name].cast(aggregate.result)
            case "sum":
                (name,) = aggregate.arguments
                return self._sums[name].sums(sums[name], state, counted.counts(state), aggregate)
            case "avg":
                (name,) = aggregate.arguments
                return self._sums[name].averages(sums[name], state, counted.counts(state), aggregate)
            case _:
                return self._values[(aggregate.kind, aggregate.arguments)].results(state, aggregate)

    def _output_rows(
        self,
        signed: SignedRows,
        results: pa.Table,
        old: Mapping[str, pa.Array],
        new: Mapping[str, pa.Array],
        changed: Sequence[tuple[KeptDistinct | KeptExtreme, ValueCounts]],
        batch: int,
        start: int,
        end: int,
    ) -> tuple[pa.RecordBatch, list[StateRows]]:
        """Return the results of consecutive groups, and the state rows of these groups."""
        size = end - start
        rows = self._rows.counts(new)[start:end]
        alive = rows > 0 if len(self._groups) else np.ones(size, np.bool_)
        existed = self._rows.counts(old)[start:end] > 0
        part = slice(start, end)
        writes = state_tables.writes(
            self._groups_table,
            self._columns,
            {KEY: signed.keys[part]},
            StateChange(
                {name: old[name][part] for name in new},
                {name: column[part] for name, column in new.items()},
                existed,
                alive,
            ),
            batch,
        )
        for kept, counts in changed:
            first, last = np.searchsorted(counts.groups, [start, end])
            of_groups = slice(first, last)
            before, after = counts.before[of_groups], counts.after[of_groups]
            writes += state_tables.writes(
                self._values_table,
                self._value_columns,
                {
                    KEY: signed.keys.take(pa.array(counts.groups[of_groups])),
                    NUMBER: pa.array(np.full(last - first, kept.number)),
                    VALUE: counts.values[of_groups],
                },
                StateChange({COUNT: pa.array(before)}, {COUNT: pa.array(after)}, before > 0, after > 0),
                batch,
            )
        columns = [*signed.values.slice(start, size).columns, *results.slice(start, size).columns]
        schema = self.output
        arrays = [column.combine_chunks().cast(field.type) for column, field in zip(columns, schema, strict=False)]
        return pa.RecordBatch.from_arrays([*arrays, pa.array(alive)], schema=schema), writes
