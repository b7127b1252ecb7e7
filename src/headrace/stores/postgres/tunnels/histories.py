"""The columns of changes and rows that were read before, as those of the table now. No I/O.

The log has no definitions. A Relation message names the columns that a table had at that time, in the order of their
numbers in the catalog, which a column keeps under each name. So the columns of a message are found by the versions that
the tunnel has seen before and after it, and then have the names of today. If columns of two numbers can have been the
same column of a message, the message is not certain: a name says nothing, because a column can get that of another one.
"""

from __future__ import annotations

import itertools
import math
from collections.abc import Collection, Iterator, Mapping, Sequence
from typing import NamedTuple

import numpy as np

from headrace.stores.postgres.tunnels.definitions import CatalogColumn, Definition, keeps_values
from headrace.wire.pgoutput import types
from headrace.wire.pgoutput.cells import Integers, Mask
from headrace.wire.pgoutput.messages import Images, Relation

_MOST_SETS = 10_000
# Ids of transactions have 32 bits, and begin again after the last one.
_XIDS = 1 << 32
_NONE = np.array([], np.int64)


class Binding(NamedTuple):
    """The columns of a Relation message as those of the table now.

    Attributes:
        places: the current name of a column → its place in the message; without columns that were dropped.
        problem: why the values of the message are not certain as values of the table now; None if they are.
        newer: why values of newer columns are not certain for rows of the message; None if they are.
    """

    places: Mapping[str, int]
    problem: str | None = None
    newer: str | None = None


class History:
    """The versions of a table's definition that the tunnel has seen; the last one is the present."""

    def __init__(self, versions: Sequence[Definition]) -> None:
        self.versions = versions
        self.first, self.now = versions[0], versions[-1]
        self._bindings: dict[tuple[Relation, int, int, Collection[int]], Binding] = {}
        self._looks = sorted({lsn for each in versions for lsn in (each.since, each.until) if lsn is not None})
        self._added = frozenset(
            int(column.row)
            for before, after in itertools.pairwise(versions)
            for column in after.columns
            if column.number > before.attributes
        )
        self._current = {column.number: column for column in self.now.columns}
        self.missing, self._unknown = self._newer()

    @property
    def base_types(self) -> Mapping[int, int]:
        """The declared types of all versions → types with the same format in the log."""
        return {column.type: column.base for version in self.versions for column in version.columns}

    def pieces(self, images: Images) -> list[tuple[Images, Binding]]:
        """Return images in pieces, each with its columns: between the changes of a piece, no definition was seen."""
        return [(piece, self.binding(piece.relation, piece.lsns, piece.xids)) for piece in self._pieces(images)]

    def _pieces(self, images: Images) -> list[Images]:
        if len(self.versions) == 1 and not self.first.late:
            return [images]
        cuts = {0, *np.searchsorted(images.lsns, self._looks).tolist(), len(images)}
        for xid in self._added:
            # Behind the last change of a transaction that is older than a new column.
            older = np.flatnonzero(_is_older(images.xids, xid))
            cuts.add(int(older[-1]) + 1 if len(older) else 0)
        places = np.arange(len(images))
        return [images.filter((places >= first) & (places < last)) for first, last in itertools.pairwise(sorted(cuts))]

    def binding(self, relation: Relation, lsns: Integers = _NONE, xids: Integers = _NONE) -> Binding:
        """Return the columns of a relation as those of the table now.

        Args:
            lsns: the LSNs of the commits of its changes, in order; without any, they can be any.
            xids: the ids of their transactions.
        """
        if self.first.late and not (len(lsns) and _is_at(self.first.since, lsns[0])):
            return Binding(
                {}, "the definition may have changed after the begin of the slot, and before the tunnel was created"
            )
        first, last = 0, len(self.versions) - 1
        added: Collection[int] = frozenset()
        if len(lsns):
            first = max((n for n, each in enumerate(self.versions) if _is_at(each.since, lsns[0])), default=0)
            last = min((n for n, each in enumerate(self.versions) if _is_at(lsns[-1] + 1, each.until)), default=last)
            added = frozenset(xid for xid in self._added if not _is_older(xids, xid).any())
        key = relation, first, max(first, last), added
        if key not in self._bindings:
            self._bindings[key] = self._bind(*key)
        return self._bindings[key]

    def changed(self, before: Mapping[int, CatalogColumn]) -> str | None:
        """Return why values of columns, by their numbers, are not certain in the table now; None if they are."""
        for number, column in self._current.items():
            if number not in before:
                continue
            # In a key, a float is a text, and that of a `real` is no text of a `double precision`.
            text = number in self.now.key and (before[number].base, column.base) == (types.FLOAT4, types.FLOAT8)
            if text or not keeps_values(before[number], column):
                return (
                    f"column {column.name!r} had type {before[number].declared} and has {column.declared} now, "
                    "in which the values are not certain"
                )
        return None

    def newer(self, others: Collection[int]) -> str | None:
        """Return why values of other columns than some, by their numbers, are not certain; None if they are."""
        for number in self._unknown:
            if number not in others:
                name = self._current[number].name
                return f"column {name!r} is newer, and rows before it have values that the log does not have"
        return None

    def _bind(self, relation: Relation, first: int, last: int, added: Collection[int]) -> Binding:
        candidates = self._numbers(relation, first, last, added) or self._left_out(
            [column.name for column in relation.columns]
        )
        if len(candidates) != 1:
            names = ", ".join(column.name for column in relation.columns)
            return Binding(
                {},
                f"the columns were {names}, "
                + (
                    f"and {self._unclear(relation, candidates)}"
                    if candidates
                    else "in a definition that was not seen in time"
                ),
            )
        (numbers,) = candidates
        seen = {column.type: column for version in self.versions for column in version.columns}
        declared = {(c.type, c.modifier): c.declared for version in self.versions for c in version.columns}
        present = {
            number: self._current[number]._replace(
                type=column.type,
                modifier=column.modifier,
                declared=declared.get((column.type, column.modifier), f"number {column.type}"),
                base=seen[column.type].base if column.type in seen else column.type,
                labels=seen[column.type].labels if column.type in seen else (),
                of_domain=seen[column.type].of_domain if column.type in seen else -1,
            )
            for number, column in zip(numbers, relation.columns, strict=True)
            if number in self._current
        }
        places = {self._current[number].name: place for place, number in enumerate(numbers) if number in self._current}
        newer = self.newer(present)
        if not set(self.now.key) <= present.keys():
            return Binding(places, "rows lack a column of the primary key", newer)
        flagged = {number for number, column in zip(numbers, relation.columns, strict=True) if column.key}
        # Without any, the server refuses updates and deletes.
        if relation.identity != "f" and flagged and flagged != set(self.now.key):
            names = ", ".join(column.name for column in relation.columns if column.key)
            return Binding(places, f"rows were identified by other columns than the primary key: {names}", newer)
        return Binding(places, self.changed(present), newer)

    def _numbers(self, relation: Relation, first: int, last: int, added: Collection[int]) -> Sequence[Sequence[int]]:
        """Return the numbers that the columns of a relation can have had, from one version to another one.

        Columns that the table does not have any more make no difference.

        Args:
            added: the transactions of new columns that have not begun after those of the changes.
        """
        described = [(column.name, column.type, column.modifier) for column in relation.columns]
        versions = self.versions[first : last + 1]
        if first == last:
            candidates = [tuple(column.number for column in columns) for columns in _sent(versions[0])]
            candidates = [numbers for numbers in candidates if len(numbers) == len(described)]
        else:
            candidates = [each for pair in itertools.pairwise(versions) for each in _possible(*pair, described, added)]
        return list(
            {tuple(n if n in self._current or n < 0 else None for n in each): each for each in candidates}.values()
        )

    def _left_out(self, names: Sequence[str]) -> Sequence[Sequence[int]]:
        """Return the numbers of some columns of all versions by their names.

        The publication has left out columns: `publications` has said so, and the reader has accepted it.
        """
        numbers: dict[str, set[int]] = {}
        for version in self.versions:
            for column in version.columns:
                numbers.setdefault(column.name, set()).add(column.number)
        ordered = [number for name in names for number in numbers.get(name, ())]
        return [ordered] if len(ordered) == len(names) and ordered == sorted(ordered) else []

    def _unclear(self, relation: Relation, candidates: Sequence[Sequence[int]]) -> str:
        """Say which columns of a relation can be two columns each."""
        unclear = [
            column.name for column, *each in zip(relation.columns, *candidates, strict=True) if len(set(each)) > 1
        ]
        return (
            "columns were dropped and added between two looks: it is not certain which columns had the names "
            + ", ".join(unclear)
        )

    def _newer(self) -> tuple[Mapping[str, tuple[str, int]], Collection[int]]:
        """Return values of columns, by their names, in rows that are older than they; and the columns without any.

        A value is a text, and the type that it had when it was seen.
        """
        missing: dict[str, tuple[str, int]] = {}
        unknown = set()
        for before, after in zip([None, *self.versions], self.versions, strict=False):
            old = () if before is None else {column.number for column in before.columns}
            for column in after.columns:
                if column.number in old or column.number not in self._current:
                    continue
                if column.missing is not None:
                    missing[self._current[column.number].name] = column.missing, column.base
                elif before is not None and (column.mixed or after.new_file):
                    # A rewrite fills in the default that the column had when it was added.
                    unknown.add(column.number)
        return missing, unknown


def _sent(version: Definition) -> list[Sequence[CatalogColumn]]:
    """Return the columns that a Relation message of a version can have: with generated columns, and without them."""
    return [version.columns, [column for column in version.columns if not column.generated]]


def _is_at(lsn: int | None, at: int | None) -> bool:
    """Return whether an LSN is known, and another one is there or later."""
    return lsn is not None and at is not None and lsn <= at


def _is_older(xids: Integers, than: int) -> Mask:
    """Return which ids are those of transactions that have begun before another one."""
    return np.asarray((xids - than) % _XIDS >= _XIDS // 2)


def _possible(
    before: Definition, after: Definition, described: Sequence[tuple[str, int, int]], added: Collection[int]
) -> Iterator[tuple[int, ...]]:
    """Yield the numbers that some columns can have had between two versions; see `History._numbers`."""
    rows = {column.number: column.row for column in before.columns}
    names: dict[int, set[tuple[str, int, int]]] = {}
    # The names and types of columns as long as they were there.
    constant = {}
    newer = set()
    new = range(before.attributes + 1, after.attributes + 1)
    present = {column.number for column in after.columns}
    dropped = {after.dropped.get(str(number)) for number in (*rows, *new) if number not in present}
    for column in (*before.columns, *after.columns):
        names.setdefault(column.number, set()).add((column.name, column.type, column.modifier))
    for column in after.columns:
        # An earlier name would have been one beside those of the columns that the same transaction has dropped.
        fresh = column.fresh or (column.earlier and dropped == {column.row})
        if rows[column.number] == column.row if column.number in rows else fresh:
            constant[column.number] = names[column.number]
        if column.number not in rows and int(column.row) in added:
            newer.add(column.number)
    for then, now in zip(_sent(before), _sent(after), strict=True):
        for numbers in _between(then, now, new, len(described)):
            pairs = list(zip(numbers, described, strict=True))
            if any(number in constant and column not in constant[number] for number, column in pairs):
                continue
            # A transaction that has not begun before that of a new column has the column, unless it has changed the
            # table while the other one waited for it. Then its column with this name also had an unseen name.
            renamed = any(number in names and column not in names[number] for number, column in pairs)
            if not (renamed and newer - set(numbers)):
                yield numbers


def _between(
    before: Sequence[CatalogColumn], after: Sequence[CatalogColumn], new: range, count: int
) -> Iterator[tuple[int, ...]]:
    """Yield the sets of columns, of one size, that a table can have had between two versions.

    It had all columns that both versions have. Columns get their numbers one after the other. So if it had a new
    column, it also had those with lower numbers that the second version has.

    Args:
        new: the numbers of the columns that were added between the two; some may have been dropped again.
    """
    old, now = ({column.number for column in columns} for columns in (before, after))
    common, added = old & now, sorted(now - old)
    for so_far in range(len(added) + 1):
        dropped = [
            *sorted(old - now),
            *(each for each in new if each not in now and (so_far == len(added) or each < added[so_far])),
        ]
        others = count - len(common) - so_far
        if 0 <= others <= len(dropped) and math.comb(len(dropped), others) <= _MOST_SETS:
            for chosen in itertools.combinations(dropped, others):
                yield tuple(sorted([*common, *added[:so_far], *chosen]))
        elif 0 <= others <= len(dropped):
            # Too many: two of them say that none is certain.
            yield from ((*range(-count, 0),), (*range(-2 * count, -count),))
