"""The rows that decide about the changes of a query in a batch, and the difference of its results over them."""

from __future__ import annotations

from collections.abc import Iterable, Iterator, Mapping
from dataclasses import dataclass
from typing import Protocol

import numpy as np
import pyarrow as pa
import pyarrow.compute as pc

from headrace.derived.gathering.between import keys_between
from headrace.derived.gathering.conditions import satisfying
from headrace.derived.gathering.model import Place
from headrace.derived.gathering.routes import GatherPlan, Hop, Need, Route
from headrace.derived.gathering.row_keys import ID, row_bytes, row_keys
from headrace.derived.own_names import SIGN
from headrace.rows.by_position import sort_indices
from headrace.rows.nested import Numbers, one_array

# A lookup of more keys is counted in parts, so that it ends soon after the limit of rows.
_KEYS_AT_ONCE = 4096
# How many rows may be read for each that may be evaluated. A query of one kind of parts reads all lineitems behind a
# changed nation, and leaves out most of them.
_READ_FOR_ONE = 4


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
        return pa.concat_tables([_with_sign(self.removed, -1), _with_sign(self.added, 1)])


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
    """Return the rows of each followed table that decide about the changes of the result; none if nothing changes it.

    Returns None if more than ``most`` of them are not of the batch, or if too many are read to find them.

    Args:
        changes: the changes of the batch, by table. Tables without changes are missing.
        kept: the rows of all followed tables, by table.
    """
    gathering = _Gathering(plan, changes, kept, most)
    try:
        return {table: gathering.views(table) for table in kept} if gathering.run() else {}
    except _TooManyRows:
        return None


class _Gathering:
    def __init__(
        self, plan: GatherPlan, changes: Mapping[str, TableChange], kept: Mapping[str, KeptRows], most: int
    ) -> None:
        self._plan = plan
        # How many rows can still be evaluated, and read.
        self._left = most
        self._reads = _READ_FOR_ONE * most
        self._changes = changes
        self._kept = kept
        self._whole = set(plan.whole)
        # The rows of each occurrence that can take part in a result which changes, with column `SIGN`.
        self._rows: dict[int, list[pa.Table]] = {number: [] for number in range(len(plan.tables))}
        self._done: dict[Hop, set[bytes]] = {}

    def run(self) -> bool:
        """Find the rows; return whether a change can change the result."""
        plan, found = self._plan, False
        for number, table in enumerate(plan.tables):
            change = None if table is None else self._changes.get(table)
            if change is None:
                continue
            rows = self._narrowed(number, change.signed, plan.needs[number])
            if not rows.num_rows:
                continue
            route = plan.routes[number]
            compared = None if route is None else route.compared
            reached = rows if compared is None else self._between(*compared, change)
            if route is None or reached is None:
                self._whole |= set(self._kept)
                return True
            if compared is not None:
                self._add(number, rows)
            found |= self._follow(route, number if compared is None else compared[0].occurrence, reached)
        for number in range(len(plan.tables)):
            if plan.tables[number] in self._whole:
                self._spread_whole(number)
        grows = found
        while grows:
            grows = False
            for hop in plan.completions:
                if self._rows[hop.start]:
                    rows = self._looked_up(hop, pa.concat_tables(self._rows[hop.start]), plan.needs[hop.end], done=True)
                    grows |= bool(rows.num_rows)
                    self._add(hop.end, rows)
        return found

    def _follow(self, route: Route, start: int, rows: pa.Table) -> bool:
        """Look up what rows of an occurrence reach; return whether they can take part in a result."""
        reached = {start: rows}
        for hop in route.hops:
            found = self._looked_up(hop, reached[hop.start], self._plan.needs[hop.end])
            reached[hop.end] = pa.concat_tables([reached[hop.end], found]) if hop.end in reached else found
        if route.narrows:
            for hop in reversed(route.hops):
                reached[hop.start] = _starts(hop, reached[hop.start], reached[hop.end])
            for hop in route.hops:
                reached[hop.end] = _ends(hop, reached[hop.start], reached[hop.end])
        if not reached[start].num_rows:
            return False
        self._whole |= route.whole
        for number, found in reached.items():
            self._add(number, found)
        return True

    def _spread_whole(self, number: int) -> None:
        """Read the tables as a whole that depend on one which is read as a whole."""
        for hop in self._plan.completions:
            table = self._plan.tables[hop.end]
            if hop.start == number and table is not None and table not in self._whole:
                self._whole.add(table)
                self._spread_whole(hop.end)

    def _add(self, number: int, rows: pa.Table) -> None:
        if rows.num_rows:
            self._take(pc.sum(pc.equal(rows.column(SIGN), 0)).as_py())
            self._rows[number].append(rows)

    def _narrowed(self, number: int, rows: pa.Table, needs: Iterable[Need]) -> pa.Table:
        """Return rows of an occurrence without those that take part in no result, as far as some lookups say."""
        rows = satisfying(rows, self._plan.conditions[number])
        for need in needs:
            rows = _starts(need.hop, rows, self._looked_up(need.hop, rows, need.needs))
        return rows

    def _looked_up(self, hop: Hop, rows: pa.Table, needs: Iterable[Need], *, done: bool = False) -> pa.Table:
        """Return the rows at the end of a lookup, old and added ones, which can take part in a result.

        Args:
            needs: the lookups of rows that they need.
            done: whether to leave out keys for which the lookup was done so.
        """
        table = self._plan.tables[hop.end]
        assert table is not None, "no lookup leads to a static table"
        kept = self._kept[table]
        keys = _keys_of(hop, rows).unique().drop_null()
        if done:
            seen = self._done.setdefault(hop, set())
            keys = keys.filter(pc.invert(pc.is_in(keys, pa.array(sorted(seen), pa.binary()))))
            seen.update(keys.to_pylist())
        # In the order of the keys, the parts are in different places of the store's table.
        keys = keys.sort()
        parts = range(0, len(keys), _KEYS_AT_ONCE)
        found = [self._read(kept.of_keys(hop.columns, keys.slice(first, _KEYS_AT_ONCE))) for first in parts]
        signed = self._signed(table, pa.concat_tables([kept.schema.empty_table(), *found]))
        if len(keys) and (change := self._changes.get(table)) is not None:
            added = change.added.filter(pc.is_in(row_keys(change.added, hop.columns), keys))
            signed = pa.concat_tables([signed, _with_sign(added, 1)])
        return self._narrowed(hop.end, signed, needs) if signed.num_rows else signed

    def _between(self, column: Place, value: Place, change: TableChange) -> pa.Table | None:
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
        found = self._signed(table, self._read(kept.between(column.column, *keys, self._left)))
        if (own := self._changes.get(table)) is not None:
            found = pa.concat_tables([found, _with_sign(own.added, 1)])
        return self._narrowed(column.occurrence, found, self._plan.needs[column.occurrence])

    def _signed(self, table: str, rows: pa.Table) -> pa.Table:
        """Return kept rows of a table with -1 in column `SIGN` for those that the batch removes, and 0 for others."""
        change = self._changes.get(table)
        if change is None:
            return _with_sign(rows, 0)
        removed = pc.is_in(rows.column(ID), one_array(change.removed.column(ID)))
        return rows.append_column(SIGN, pc.if_else(removed, pa.scalar(-1, pa.int8()), pa.scalar(0, pa.int8())))

    def _read(self, rows: pa.Table | None) -> pa.Table:
        """Return rows that were read, if they are not too many."""
        if rows is None or rows.num_rows > self._reads:
            raise _TooManyRows
        self._reads -= rows.num_rows
        return rows

    def _take(self, rows: int) -> None:
        """Count rows that will be evaluated, and are not of the batch."""
        if rows > self._left:
            raise _TooManyRows
        self._left -= rows

    def views(self, table: str) -> TableViews:
        change = self._changes.get(table)
        if table in self._whole:
            rows = self._signed(table, self._read(self._kept[table].all(self._left)))
            self._take(rows.num_rows)
            if change is not None:
                rows = pa.concat_tables([rows, _with_sign(change.added, 1)])
        else:
            parts = (self._rows[number] for number, name in enumerate(self._plan.tables) if name == table)
            nothing = _with_sign(self._kept[table].schema.empty_table(), 0)
            rows = _distinct(pa.concat_tables([nothing, *(each for part in parts for each in part)]))
        return TableViews(rows.take(sort_indices(rows, [ID])), change is not None)


def _with_sign(rows: pa.Table, sign: int) -> pa.Table:
    return rows.append_column(SIGN, pa.repeat(pa.scalar(sign, pa.int8()), rows.num_rows))


def _keys_of(hop: Hop, rows: pa.Table) -> pa.BinaryArray:
    """Return the key with which a lookup begins at each row."""
    return row_keys(rows, [place.column for place in hop.source], nulls=hop.nulls)


def _starts(hop: Hop, rows: pa.Table, found: pa.Table) -> pa.Table:
    """Return the rows for which a lookup has found one of some rows."""
    return rows.filter(pc.is_in(_keys_of(hop, rows), row_keys(found, hop.columns)))


def _ends(hop: Hop, rows: pa.Table, found: pa.Table) -> pa.Table:
    """Return the rows that a lookup has found for some rows."""
    return found.filter(pc.is_in(row_keys(found, hop.columns), _keys_of(hop, rows).drop_null()))


def _distinct(rows: pa.Table) -> pa.Table:
    """Return rows without repetitions: the old row with an id, and the added one."""
    added = pc.greater(rows.column(SIGN), 0)
    parts = []
    for part in (rows.filter(pc.invert(added)), rows.filter(added)):
        codes = one_array(part.column(ID)).dictionary_encode()
        first = np.full(len(codes.dictionary), part.num_rows, np.int64)
        np.minimum.at(first, codes.indices.to_numpy(), np.arange(part.num_rows))
        parts.append(part.take(pa.array(first)))
    return pa.concat_tables(parts)


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
        yield from _with_sign(each, sign).to_batches()
