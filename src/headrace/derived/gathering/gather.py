"""The rows that decide about the changes of a query in a batch, and the difference of its results over them."""

from __future__ import annotations

from collections.abc import Iterable, Iterator, Mapping, Sequence
from dataclasses import dataclass
from typing import Protocol

import numpy as np
import pyarrow as pa
import pyarrow.compute as pc

from headrace.derived.gathering.between import keys_between
from headrace.derived.gathering.model import Place
from headrace.derived.gathering.routes import GatherPlan, Hop
from headrace.derived.gathering.row_keys import ID, row_bytes, row_keys
from headrace.derived.own_names import SIGN
from headrace.rows.by_position import sort_indices
from headrace.rows.nested import Numbers, one_array

# A lookup of more keys is counted in parts, so that it ends soon after the limit of rows.
_KEYS_AT_ONCE = 4096


@dataclass(frozen=True)
class TableChange:
    """What a batch changes in a table: for each row its old form, its new form, or both. They differ.

    Attributes:
        removed, added: the rows, with their keys in column `ID`.
    """

    removed: pa.Table
    added: pa.Table

    def __bool__(self) -> bool:
        return bool(self.removed.num_rows or self.added.num_rows)

    @property
    def signed(self) -> pa.Table:
        """All rows, with -1 in column `SIGN` for a removed one, and 1 for an added one."""
        sides = ((-1, self.removed), (1, self.added))
        return pa.concat_tables(rows.append_column(SIGN, _repeated(sign, rows.num_rows)) for sign, rows in sides)


class KeptRows(Protocol):
    """The rows of a table as of the last batch, with their keys in column `ID`."""

    @property
    def schema(self) -> pa.Schema:
        """The columns of the rows."""

    def of_keys(self, columns: tuple[str, ...], keys: pa.BinaryArray) -> pa.Table:
        """Return the rows whose `row_keys` for some columns are among ``keys``, which are distinct."""

    def between(self, column: str, low: bytes, high: bytes, most: int) -> pa.Table | None:
        """Return the rows whose `row_keys` for a column are between two, or one of them; None if more than ``most``."""

    def all(self, most: int) -> pa.Table | None:
        """Return all rows; None if they are more than ``most``."""


@dataclass(frozen=True)
class TableViews:
    """The rows of a table over which a query is evaluated.

    Attributes:
        rows: in the order of their keys, so that a function of the order gives the same again. Column `SIGN` is -1 for
            a row that is in the table only before the batch, 1 only after it, 0 before and after it.
        changes: whether some row is not in both.
    """

    rows: pa.Table
    changes: bool


class _TooManyRows(Exception):
    """The changes reach more rows than may be read."""


def gather(
    plan: GatherPlan, changes: Mapping[str, TableChange], kept: Mapping[str, KeptRows], most: int
) -> dict[str, TableViews] | None:
    """Return the rows of each followed table that decide about the changes of the result.

    Returns None if they are more than ``most``.

    Args:
        changes: the changes of the batch, by table. Tables without changes are missing.
        kept: the rows of all followed tables, by table.
    """
    gathering = _Gathering(plan, changes, kept, most)
    try:
        gathering.run()
        return {table: gathering.views(table) for table in kept}
    except _TooManyRows:
        return None


class _Gathering:
    def __init__(
        self, plan: GatherPlan, changes: Mapping[str, TableChange], kept: Mapping[str, KeptRows], most: int
    ) -> None:
        self._plan = plan
        self._left = most
        self._changes = changes
        self._kept = kept
        self._whole = set(plan.whole)
        self._old: dict[str, list[pa.Table]] = {name: [] for name in kept}
        # The rows that were read for each occurrence, old ones and added ones.
        self._rows: dict[int, list[pa.Table]] = {number: [] for number in range(len(plan.tables))}
        self._done: dict[Hop, set[bytes]] = {}

    def run(self) -> None:
        plan, changes = self._plan, self._changes
        for name, each in changes.items():
            self._old[name].append(each.removed)
        for number, table in enumerate(plan.tables):
            change = None if table is None else changes.get(table)
            if change is None:
                continue
            route = plan.routes[number]
            if route is None:
                self._whole |= set(self._kept)
                return
            self._whole |= route.whole
            self._add(number, change.removed, change.added)
            # The rows of this route only: those of another one can lie beside it.
            reached = {number: [change.removed, change.added]}
            if route.compared is not None:
                rows = self._between(*route.compared, change)
                if rows is None:
                    self._whole |= set(self._kept)
                    return
                start = route.compared[0].occurrence
                reached = {start: rows}
                self._add(start, *rows)
            for hop in route.hops:
                rows = self._looked_up(hop, reached.get(hop.start, []), set())
                reached.setdefault(hop.end, []).extend(rows)
                self._add(hop.end, *rows)
        for number in range(len(plan.tables)):
            if plan.tables[number] in self._whole:
                self._spread_whole(number)
        found = True
        while found:
            found = False
            for hop in plan.completions:
                rows = self._looked_up(hop, self._rows[hop.start], self._done.setdefault(hop, set()))
                found |= any(part.num_rows for part in rows)
                self._add(hop.end, *rows)

    def _spread_whole(self, number: int) -> None:
        """Read the tables as a whole that depend on one which is read as a whole."""
        for hop in self._plan.completions:
            table = self._plan.tables[hop.end]
            if hop.start == number and table is not None and table not in self._whole:
                self._whole.add(table)
                self._spread_whole(hop.end)

    def _add(self, number: int, *rows: pa.Table) -> None:
        self._rows[number] += [part for part in rows if part.num_rows]

    def _looked_up(self, hop: Hop, sources: Sequence[pa.Table], done: set[bytes]) -> list[pa.Table]:
        """Return the rows at the end of a lookup, old and added ones, for keys that are not done."""
        table = self._plan.tables[hop.end]
        assert table is not None, "no lookup leads to a static table"
        columns = tuple(place.column for place in hop.source)
        keys = [row_keys(rows, columns, nulls=hop.nulls) for rows in sources if rows.num_rows]
        if not keys:
            return []
        distinct = pc.unique(pa.chunked_array(keys)).drop_null()
        if done:
            distinct = distinct.filter(pc.invert(pc.is_in(distinct, pa.array(sorted(done), pa.binary()))))
        done.update(distinct.to_pylist())
        if not len(distinct):
            return []
        parts = range(0, len(distinct), _KEYS_AT_ONCE)
        found = pa.concat_tables(
            self._counted(self._kept[table].of_keys(hop.columns, distinct.slice(first, _KEYS_AT_ONCE)))
            for first in parts
        )
        self._old[table].append(found)
        change = self._changes.get(table)
        if change is None or not change.added.num_rows:
            return [found]
        added = change.added.filter(pc.is_in(row_keys(change.added, hop.columns), distinct))
        return [found, added]

    def _between(self, column: Place, value: Place, change: TableChange) -> list[pa.Table] | None:
        """Return rows whose comparison with a value changes; None if they can be any. The value is in one row."""
        table = self._plan.tables[column.occurrence]
        assert table is not None, "a comparison is one with a column of a followed table"
        kept = self._kept[table]
        if not (change.removed.num_rows and change.added.num_rows):
            return None
        old, new = (rows.column(value.column)[0] for rows in (change.removed, change.added))
        keys = keys_between(old, new, kept.schema.field(column.column).type)
        if keys is None:
            return None
        found = self._counted(kept.between(column.column, *keys, self._left))
        self._old[table].append(found)
        own = self._changes.get(table)
        return [found] if own is None else [found, own.added]

    def _counted(self, rows: pa.Table | None) -> pa.Table:
        """Return rows that were read, if they are not too many."""
        if rows is None or rows.num_rows > self._left:
            raise _TooManyRows
        self._left -= rows.num_rows
        return rows

    def views(self, table: str) -> TableViews:
        whole, change = table in self._whole, self._changes.get(table)
        if whole:
            before = self._counted(self._kept[table].all(self._left))
        else:
            before = _distinct(self._old[table], self._kept[table].schema)
        if change is None:
            rows = before.append_column(SIGN, _repeated(0, before.num_rows))
        else:
            removed = pc.is_in(before.column(ID), one_array(change.removed.column(ID)))
            signs = pc.if_else(removed, pa.scalar(-1, pa.int8()), pa.scalar(0, pa.int8()))
            added = change.added.append_column(SIGN, _repeated(1, change.added.num_rows))
            rows = pa.concat_tables([before.append_column(SIGN, signs), added])
        return TableViews(rows.take(sort_indices(rows, [ID])), change is not None)


def _repeated(sign: int, count: int) -> pa.Array:
    return pa.repeat(pa.scalar(sign, pa.int8()), count)


def _distinct(parts: Iterable[pa.Table], schema: pa.Schema) -> pa.Table:
    """Return rows without repetitions."""
    rows = pa.concat_tables([schema.empty_table(), *(part for part in parts if part.num_rows)])
    codes = one_array(rows.column(ID)).dictionary_encode()
    first = np.full(len(codes.dictionary), rows.num_rows, np.int64)
    np.minimum.at(first, codes.indices.to_numpy(), np.arange(rows.num_rows))
    return rows.take(pa.array(first))


def difference(before: pa.Table, after: pa.Table) -> Iterator[tuple[int, pa.Table]]:
    """Yield (-1, rows that are only in ``before``) and (1, rows that are only in ``after``).

    Rows are compared by their bytes, and counted: a row that is twice before and once after is removed once.
    """
    rows = pa.concat_tables([before, after.cast(before.schema)]).combine_chunks()
    if not rows.num_rows:
        return
    codes = row_bytes(rows).dictionary_encode()
    numbers: Numbers = codes.indices.to_numpy()
    size = len(codes.dictionary)
    counts = [np.bincount(part, minlength=size) for part in (numbers[: before.num_rows], numbers[before.num_rows :])]
    surplus = counts[1] - counts[0]
    for sign, start, end in ((-1, 0, before.num_rows), (1, before.num_rows, rows.num_rows)):
        part = numbers[start:end]
        # The place of each row among its equals.
        order = np.argsort(part, kind="stable")
        ordered = part[order]
        firsts = np.flatnonzero(np.r_[True, ordered[1:] != ordered[:-1]]) if len(part) else order
        place = np.empty(len(part), np.int64)
        place[order] = np.arange(len(part)) - np.repeat(firsts, np.diff(np.r_[firsts, len(part)]))
        chosen = np.flatnonzero(place < sign * surplus[part])
        if len(chosen):
            yield sign, rows.take(pa.array(chosen + start))


def by_sign(rows: pa.Table) -> list[pa.Table]:
    """Return the rows with -1 and those with 1 in column `SIGN`, without this column."""
    return [rows.filter(pc.equal(rows.column(SIGN), sign)).drop_columns([SIGN]) for sign in (-1, 1)]


def with_signs(rows: Iterable[tuple[int, pa.Table]]) -> Iterator[pa.RecordBatch]:
    """Yield the rows of each sign with column `SIGN` at the end."""
    for sign, each in rows:
        yield from each.append_column(SIGN, _repeated(sign, each.num_rows)).to_batches()
