"""Versions of a table's definition, and what a later one means for changes and rows that were read before. No I/O.

The log has no definitions. A Relation message names the columns that a table had at that time, in the order of their
numbers in the catalog, which a column keeps under each name. So the columns of a message are found by the versions that
the tunnel has seen, and then have the names of today.
"""

from __future__ import annotations

import itertools
import json
import math
from collections.abc import Callable, Collection, Iterator, Mapping, Sequence
from typing import NamedTuple

from headrace.wire.pgoutput import types
from headrace.wire.pgoutput.relations import Relation

_TEXTS = frozenset({types.TEXT, types.VARCHAR})
_WIDER = {
    types.INT2: frozenset({types.INT4, types.INT8}),
    types.INT4: frozenset({types.INT8}),
    types.FLOAT4: frozenset({types.FLOAT8}),
    types.TEXT: _TEXTS,
    types.VARCHAR: _TEXTS,
    types.BPCHAR: _TEXTS,
}
# Types whose modifier is a greatest length, or a number of digits after the point.
_TIMETZ, _VARBIT = 1266, 1562
_LIMITED = frozenset({types.VARCHAR, types.BPCHAR, types.TIME, _TIMETZ, types.TIMESTAMP, types.TIMESTAMPTZ, _VARBIT})
_VARHDRSZ = 4
_MOST_SETS = 10_000


class Column(NamedTuple):
    """A column of one version.

    Attributes:
        number: its number in the catalog.
        type: its declared type, with its modifier, and in SQL.
        base: a type with the same format in the log: of a domain its own type, of an enum ``text``.
        row: the transaction that has written its row of the catalog.
        missing: the text of the value that rows have that are older than the column; None for null.
        other: its further attributes in the catalog, and its default with the expression.
        labels: the values of the enums that its type consists of, in their order.
        generated: whether it is computed from other columns.
        fields: the columns of the composite types that its type consists of.
        mixed: whether partitions differ in ``missing``, which is None then.
    """

    number: int
    name: str
    type: int
    modifier: int
    declared: str
    base: int
    row: str
    missing: str | None
    other: str
    labels: Sequence[str]
    generated: bool
    fields: str | None = None
    mixed: bool = False


class Leaf(NamedTuple):
    """A table with rows of a partitioned table.

    Attributes:
        name: its name.
        file: the number of its file, which a TRUNCATE and each rewrite of the table replace.
        links: the transactions and commands that have attached it and the partitions above it.
        logged: whether its changes are in the log.
    """

    name: str
    file: int
    links: str
    logged: bool


class Definition(NamedTuple):
    """A version of a table's definition.

    Attributes:
        name: the name of the table.
        file: the number of its file; 0 for a partitioned table.
        xid: transactions before it were visible or had ended when this version was seen.
        attributes: the number of columns that it has ever had.
        key: the numbers of the columns of its primary key.
        columns: its columns, in the order of their numbers.
        leaves: its partitions by their oids, as texts.
        constraint: the oid of its primary key, which another constraint of the same columns does not have.
        full: whether its changes, or those of a partition, have the old rows, and do not say which columns are the key.
        rewritten: whether it, or a partition, has another file than in the version before.
    """

    name: str
    file: int
    xid: int
    attributes: int
    key: Sequence[int]
    columns: Sequence[Column]
    leaves: Mapping[str, Leaf]
    constraint: int | None = None
    full: bool = False
    rewritten: bool = False

    @classmethod
    def parse(cls, text: str) -> Definition:
        """Return the definition of a JSON text; the inverse of `text`."""
        found = cls(*json.loads(text))
        return found._replace(
            columns=[Column(*each) for each in found.columns],
            leaves={oid: Leaf(*each) for oid, each in found.leaves.items()},
        )

    @property
    def text(self) -> str:
        return json.dumps(self)

    def has_columns_of(self, other: Definition) -> bool:
        """Whether messages of the two versions have the same columns, and rows the same values in newer columns."""
        mine, theirs = (
            [(*each[:4], each.missing, list(each.labels), each.fields, each.mixed) for each in version.columns]
            for version in (self, other)
        )
        return (self.attributes, list(self.key), mine) == (other.attributes, list(other.key), theirs)

    def name_of(self, number: int, default: str) -> str:
        """Return the name of a column by its number, or a default if there is none."""
        return next((column.name for column in self.columns if column.number == number), default)


class Bound(NamedTuple):
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
        self._versions = versions
        self.first, self.now = versions[0], versions[-1]
        self._bound: dict[Relation, Bound] = {}
        self._current = {column.number: column for column in self.now.columns}
        self.missing, self._unknown = self._newer()

    @property
    def base_types(self) -> Mapping[int, int]:
        """The declared types of all versions → types with the same format in the log."""
        return {column.type: column.base for version in self._versions for column in version.columns}

    def bound(self, relation: Relation) -> Bound:
        """Return the columns of a relation as those of the table now."""
        if relation not in self._bound:
            self._bound[relation] = self._bind(relation)
        return self._bound[relation]

    def changed(self, known: Mapping[int, Column]) -> str | None:
        """Return why values of columns, by their numbers, are not certain in the table now; None if they are."""
        for number, column in self._current.items():
            if number not in known:
                continue
            # In a key, a float is a text, and that of a `real` is no text of a `double precision`.
            text = number in self.now.key and (known[number].base, column.base) == (types.FLOAT4, types.FLOAT8)
            if text or not keeps_values(known[number], column):
                return (
                    f"column {column.name!r} had type {known[number].declared} and has {column.declared} now, in which "
                    "the values are not certain"
                )
        return None

    def newer(self, known: Collection[int]) -> str | None:
        """Return why values of other columns than some, by their numbers, are not certain; None if they are."""
        for number in self._unknown:
            if number not in known:
                name = self._current[number].name
                return f"column {name!r} is newer, and rows before it have values that the log does not have"
        return None

    def _bind(self, relation: Relation) -> Bound:
        numbers = self._numbers(relation)
        if numbers is None:
            names = ", ".join(column.name for column in relation.columns)
            return Bound({}, f"the columns were {names}, in a definition that was not seen in time")
        seen = {column.type: column for version in self._versions for column in version.columns}
        declared = {(c.type, c.modifier): c.declared for version in self._versions for c in version.columns}
        known = {
            number: self._current[number]._replace(
                type=column.type,
                modifier=column.modifier,
                declared=declared.get((column.type, column.modifier), f"number {column.type}"),
                base=seen[column.type].base if column.type in seen else column.type,
                labels=seen[column.type].labels if column.type in seen else (),
            )
            for number, column in zip(numbers, relation.columns, strict=True)
            if number in self._current
        }
        places = {self._current[number].name: place for place, number in enumerate(numbers) if number in self._current}
        newer = self.newer(known)
        if not set(self.now.key) <= known.keys():
            return Bound(places, "rows lack a column of the primary key", newer)
        flagged = {number for number, column in zip(numbers, relation.columns, strict=True) if column.key}
        # Without any, the server refuses updates and deletes.
        if relation.identity != "f" and flagged and flagged != set(self.now.key):
            names = ", ".join(column.name for column in relation.columns if column.key)
            return Bound(places, f"rows were identified by other columns than the primary key: {names}", newer)
        return Bound(places, self.changed(known), newer)

    def _numbers(self, relation: Relation) -> Sequence[int] | None:
        """Return the numbers of the columns of a relation; None if they are not certain."""
        described = [(column.name, column.type, column.modifier) for column in relation.columns]
        for version in reversed(self._versions):
            for columns in _sent(version):
                if [(column.name, column.type, column.modifier) for column in columns] == described:
                    return [column.number for column in columns]
        names = [name for name, _, _ in described]
        found, by_name = set(), set()
        for before, after in zip(self._versions, [*self._versions[1:], self.now], strict=True):
            for first, second in zip(_sent(before), _sent(after), strict=True):
                known = {(column.number, column.name) for column in (*first, *second)}
                for numbers in _between(first, second, range(before.attributes + 1, after.attributes + 1), len(names)):
                    found.add(numbers)
                    if set(zip(numbers, names, strict=True)) <= known:
                        by_name.add(numbers)
        if not found:
            # The publication has left out columns: `publications` has said so, and the reader has accepted it.
            return self._left_out(names)
        return next((each.pop() for each in (found, by_name) if len(each) == 1), None)

    def _left_out(self, names: Sequence[str]) -> Sequence[int] | None:
        """Return the numbers of some columns of all versions by their names."""
        numbers: dict[str, set[int]] = {}
        for version in self._versions:
            for column in version.columns:
                numbers.setdefault(column.name, set()).add(column.number)
        found = [number for name in names for number in numbers.get(name, ())]
        return found if len(found) == len(names) and found == sorted(found) else None

    def _newer(self) -> tuple[Mapping[str, tuple[str, int]], Collection[int]]:
        """Return values of columns, by their names, in rows that are older than they; and the columns without any.

        A value is a text, and the type that it had when it was seen.
        """
        missing: dict[str, tuple[str, int]] = {}
        unknown = set()
        for before, after in zip([None, *self._versions], self._versions, strict=False):
            old = () if before is None else {column.number for column in before.columns}
            for column in after.columns:
                if column.number in old or column.number not in self._current:
                    continue
                if column.missing is not None:
                    missing[self._current[column.number].name] = column.missing, column.base
                elif before is not None and (column.mixed or after.rewritten):
                    # A rewrite fills in the default that the column had when it was added.
                    unknown.add(column.number)
        return missing, unknown


def _sent(version: Definition) -> list[Sequence[Column]]:
    """Return the columns that a Relation message of a version can have: with generated columns, and without them."""
    return [version.columns, [column for column in version.columns if not column.generated]]


def _messages(version: Definition) -> set[tuple[tuple[str, int, int], ...]]:
    """Return the columns that Relation messages of a version can have, as the messages describe them."""
    return {tuple((column.name, column.type, column.modifier) for column in columns) for columns in _sent(version)}


def _between(before: Sequence[Column], after: Sequence[Column], new: range, count: int) -> Iterator[tuple[int, ...]]:
    """Yield the sets of columns, of one size, that a table can have had between two versions.

    It had all columns that both versions have. Columns get their numbers one after the other. So if it had a new
    column, it also had those with lower numbers that the second version has.

    Args:
        new: the numbers of the columns that were added between the two; some may have been dropped again.
    """
    old, now = ({column.number for column in columns} for columns in (before, after))
    kept, added = old & now, sorted(now - old)
    for so_far in range(len(added) + 1):
        dropped = [
            *sorted(old - now),
            *(each for each in new if each not in now and (so_far == len(added) or each < added[so_far])),
        ]
        others = count - len(kept) - so_far
        if 0 <= others <= len(dropped) and math.comb(len(dropped), others) <= _MOST_SETS:
            for chosen in itertools.combinations(dropped, others):
                yield tuple(sorted([*kept, *added[:so_far], *chosen]))
        elif 0 <= others <= len(dropped):
            # Too many: two of them say that none is certain.
            yield from ((*range(-count, 0),), (*range(-2 * count, -count),))


def keeps_values(before: Column, after: Column) -> bool:
    """Return whether each value of a column is the same in its new type."""
    if (before.type, before.modifier) == (after.type, after.modifier):
        return True
    if before.labels and before.base == after.base and after.modifier == -1:
        # An enum, or an array of one; other types with enums have formats of their own.
        return set(before.labels) <= set(after.labels) or not after.labels
    if before.labels or after.labels:
        return False
    if before.base == after.base:
        if after.modifier in (-1, before.modifier):
            return True
        if before.modifier == -1:
            # A text that is too long is an error of ALTER TABLE.
            return after.base == types.VARCHAR
        if after.base == types.NUMERIC:
            return _scale(before.modifier) == _scale(after.modifier) and before.modifier <= after.modifier
        return after.base in _LIMITED and before.modifier <= after.modifier
    return after.base in _WIDER.get(before.base, ())


def _scale(modifier: int) -> int:
    return (modifier - _VARHDRSZ) & 0x7FF


def losses(
    versions: Sequence[Definition],
    after: Definition,
    *,
    delivered: bool,
    attached: Callable[[str, Leaf], bool],
    truncated: Callable[[str, Leaf], bool],
) -> list[str]:
    """Return what has happened to rows since the last version without a change in the log.

    Args:
        versions: the versions before; one at least.
        delivered: whether rows were read before.
        attached: returns whether a new partition has rows that are older than it.
        truncated: returns whether a partition with a new file may have lost its rows.
    """
    before = versions[-1]
    found = list(_of_columns(before, after, delivered))
    # Unread changes of a version that has the same names do not say which columns they have.
    alike = versions if delivered else [each for each in versions if _messages(each) & _messages(after)]
    numbers = {column.name: column.number for version in alike for column in version.columns}
    found += [
        f"{column.name!r} is the name of another column than before"
        for column in after.columns
        if numbers.get(column.name, column.number) != column.number
    ]
    if list(before.key) != list(after.key):
        found.append("the table has another primary key")
    elif (
        before.constraint != after.constraint
        and (before.full or after.full)
        and _key_types(before) == _key_types(after)
    ):
        # A change of a type makes the constraint again.
        found.append("the primary key was made again, and its changes may have rows of equal keys")
    rewritten = any(change for change in _changed_types(before, after)) or bool(found)
    for oid, leaf in before.leaves.items():
        now = after.leaves.get(oid)
        if now is None:
            found.append(f"partition {leaf.name} was detached or dropped")
        elif now.links != leaf.links:
            found.append(f"partition {now.name} was detached and attached again")
        elif not (leaf.logged and now.logged):
            found.append(f"partition {now.name} was unlogged")
        elif now.file != leaf.file and not rewritten and truncated(oid, now):
            found.append(f"partition {now.name} was truncated, or rewritten without an old row")
    for oid, leaf in after.leaves.items():
        if oid not in before.leaves and attached(oid, leaf):
            found.append(f"partition {leaf.name} was attached with rows")
    return found


def _key_types(version: Definition) -> list[tuple[int, int, int]]:
    return [(each.number, each.type, each.modifier) for each in version.columns if each.number in version.key]


def _of_columns(before: Definition, after: Definition, delivered: bool) -> Iterator[str]:
    old = {column.number: column for column in before.columns}
    rewritten = is_rewritten(before, after)
    for column in after.columns:
        was = old.get(column.number)
        if was is None:
            continue
        if (was.type, was.modifier) != (column.type, column.modifier):
            if delivered and not keeps_values(was, column):
                yield (
                    f"column {column.name!r} got type {column.declared} instead of {was.declared}, and its values may "
                    "have changed"
                )
        elif renamed := _renamed(was.labels, column.labels):
            yield f"values of the enum of column {column.name!r} were renamed: {', '.join(renamed)}"
        elif was.fields != column.fields:
            yield f"the type {column.declared} of column {column.name!r} has other columns than before"
        elif rewritten and was.row != column.row and not _filled(was, column):
            yield f"column {column.name!r} was rewritten, and its values may have changed"
        elif was.generated and rewritten and was.other != column.other:
            yield f"the expression of column {column.name!r} has changed"


def _renamed(was: Sequence[str], now: Sequence[str]) -> list[str]:
    """Return values of an enum that it does not have in the same order; new ones can be anywhere."""
    left = iter(now)
    kept = list(itertools.takewhile(lambda label: label in left, was))
    return sorted(set(was) - set(now)) or list(was[len(kept) :])


def _filled(was: Column, now: Column) -> bool:
    """Return whether a rewrite of the table has written the value of older rows into them."""
    return was.missing is not None and now.missing is None and was.other == now.other


def _changed_types(before: Definition, after: Definition) -> Iterator[bool]:
    now = {column.number: column for column in after.columns}
    for was in before.columns:
        column = now.get(was.number)
        if column is not None:
            yield (was.type, was.modifier) != (column.type, column.modifier)


def is_rewritten(before: Definition, after: Definition) -> bool:
    """Return whether the table or a partition of it has another file."""
    return before.file != after.file or any(
        oid in after.leaves and after.leaves[oid].file != leaf.file for oid, leaf in before.leaves.items()
    )
