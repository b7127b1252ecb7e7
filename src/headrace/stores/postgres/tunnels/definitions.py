"""Versions of a table's definition, and what has happened to rows between two of them. No I/O."""

from __future__ import annotations

import itertools
import json
from collections.abc import Callable, Iterator, Mapping, Sequence
from typing import NamedTuple

from headrace.wire.pgoutput import types

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
# Types of which a plain change to a wider one writes no row again.
_STORED_ALIKE = _LIMITED - {types.BPCHAR} | {types.NUMERIC}
_VARHDRSZ = 4


class CatalogColumn(NamedTuple):
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
        values: the oids of these values of enums → the transactions that have written their rows of the catalog.
        fresh: whether its row of the catalog is the one with which it was added, so it has always had its name.
        filled: whether its row of the catalog is certainly that of a rewrite, which has written ``missing`` into all
            rows.
        of_domain: the modifier within the domains that its type consists of.
        earlier: whether its row of the catalog is that with which it was added, or that of a new name, and a later
            command of the transaction has added another column.
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
    values: Mapping[str, str] = {}
    fresh: bool = False
    filled: bool = False
    of_domain: int = -1
    earlier: bool = False

    @property
    def limit(self) -> int:
        """The modifier of its values: a column of a domain has none of its own."""
        return self.of_domain if self.modifier == -1 else self.modifier


class Leaf(NamedTuple):
    """A table with rows of a partitioned table.

    Attributes:
        name: its name.
        file: the number of its file, which a TRUNCATE and each rewrite of the table replace.
        links: the transactions that have attached it and the partitions above it. In records of earlier releases each
            has its command, too, such as ``752.7``, which the server forgets in a crash.
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
        since: changes that are committed from this LSN on are changes of this version or a later one.
        until: changes that are committed before this LSN are changes of this version or an earlier one.
        late: whether earlier changes than those from ``since`` on may be those of another definition.
        new_file: whether it, or a partition, has another file than in the version before.
        dropped: the numbers of its dropped columns, as texts → the transactions that have dropped them.
        left: the oids of partitions that it had before, as texts → the LSN of the look that has found them missing.
    """

    name: str
    file: int
    xid: int
    attributes: int
    key: Sequence[int]
    columns: Sequence[CatalogColumn]
    leaves: Mapping[str, Leaf]
    constraint: int | None = None
    full: bool = False
    since: int | None = None
    until: int | None = None
    late: bool = False
    new_file: bool = False
    dropped: Mapping[str, str] = {}
    left: Mapping[str, int] = {}

    @classmethod
    def parse(cls, text: str) -> Definition:
        """Return the definition of a JSON text; the inverse of `text`."""
        version = cls(*json.loads(text))
        return version._replace(
            columns=[CatalogColumn(*each) for each in version.columns],
            leaves={oid: Leaf(*each) for oid, each in version.leaves.items()},
        )

    @property
    def text(self) -> str:
        return json.dumps(self)

    def has_columns_of(self, other: Definition) -> bool:
        """Whether the table had the same columns between two versions, and rows the same values in newer columns."""
        mine, theirs = (
            [
                (*each[:4], each.row, each.missing, list(each.labels), each.fields, each.mixed)
                for each in version.columns
            ]
            for version in (self, other)
        )
        return (self.attributes, list(self.key), mine) == (other.attributes, list(other.key), theirs)

    def seen_again(self, now: Definition) -> Definition:
        """Return a version with the columns of this one as one version that was seen at both times."""
        before = {column.number: column for column in self.columns}
        columns = [
            column._replace(
                fresh=column.fresh or before[column.number].fresh,
                earlier=column.earlier or before[column.number].earlier,
            )
            for column in now.columns
        ]
        return now._replace(new_file=self.new_file, since=self.since, late=self.late, columns=columns)

    def accounts_for(self, leaf: int, lsn: int) -> bool:
        """Return whether a partition is one now, or was found missing after a commit at an LSN."""
        return str(leaf) in self.leaves or lsn < self.left.get(str(leaf), 0)

    def left_after(self, lsn: int) -> dict[str, int]:
        """Return the part of ``left`` that matters for commits from an LSN on."""
        return {oid: found for oid, found in self.left.items() if found > lsn}

    @property
    def in_binary(self) -> bool:
        """Whether the decoder reads all columns in binary format."""
        return all(types.in_binary(column.base, in_key=column.number in self.key) for column in self.columns)

    def name_of(self, number: int, default: str) -> str:
        """Return the name of a column by its number, or a default if there is none."""
        return next((column.name for column in self.columns if column.number == number), default)


def keeps_values(before: CatalogColumn, after: CatalogColumn) -> bool:
    """Return whether each value of a column is the same in its new type."""
    if (before.type, before.modifier) == (after.type, after.modifier):
        return True
    if before.labels and before.base == after.base and after.modifier == -1:
        # An enum, or an array of one; other types with enums have formats of their own.
        return set(before.labels) <= set(after.labels) or not after.labels
    if before.labels or after.labels:
        return False
    if before.base == after.base:
        if after.limit in (-1, before.limit):
            return True
        if before.limit == -1:
            return False
        if after.base == types.NUMERIC:
            return _scale(before.limit) == _scale(after.limit) and before.limit <= after.limit
        return after.base in _LIMITED and before.limit <= after.limit
    # A `varchar(n)` cuts spaces at the end of a longer text without an error.
    return after.base in _WIDER.get(before.base, ()) and (before.base != types.TEXT or after.limit == -1)


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
        truncated: returns whether a partition that is new or has a new file may have lost rows.
    """
    before = versions[-1]
    lost = list(_of_columns(before, after, delivered))
    numbers = {column.name: column.number for version in versions if delivered for column in version.columns}
    lost += [
        f"{column.name!r} is the name of another column than before"
        for column in after.columns
        if numbers.get(column.name, column.number) != column.number
    ]
    if list(before.key) != list(after.key):
        lost.append("the table has another primary key")
    elif (
        before.constraint != after.constraint
        and (before.full or after.full)
        and _key_types(before) == _key_types(after)
    ):
        # A change of a type makes the constraint again.
        lost.append("the primary key was made again, and its changes may have rows of equal keys")
    known = bool(lost)
    for oid, leaf in before.leaves.items():
        now = after.leaves.get(oid)
        if now is None:
            lost.append(departure(leaf.name))
        elif _transactions(now.links) != _transactions(leaf.links):
            lost.append(f"partition {now.name} was detached and attached again")
        elif not (leaf.logged and now.logged):
            lost.append(f"partition {now.name} was unlogged")
        elif now.file != leaf.file and not known and truncated(oid, now):
            lost.append(f"partition {now.name} was truncated, or rewritten without an old row")
    for oid, leaf in after.leaves.items():
        if oid in before.leaves:
            continue
        if attached(oid, leaf):
            lost.append(f"partition {leaf.name} was attached with rows")
        elif truncated(oid, leaf):
            lost.append(f"partition {leaf.name} was truncated")
    return lost


def departure(name: str) -> str:
    """Return what has happened to a partition that is none any more."""
    return f"partition {name} was detached or dropped"


def _transactions(links: str) -> list[str]:
    return [each.partition(".")[0] for each in links.split()]


def _key_types(version: Definition) -> list[tuple[int, int, int]]:
    return [(each.number, each.type, each.modifier) for each in version.columns if each.number in version.key]


def _of_columns(before: Definition, after: Definition, delivered: bool) -> Iterator[str]:
    old = {column.number: column for column in before.columns}
    new_file = rewritten(before, after)
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
            elif new_file and _keeps_file(was, column) and not _needs_file(old, after, column.number):
                yield f"column {column.name!r} was rewritten as {column.declared}, and its values may have changed"
        elif renamed := _renamed(was.labels, column.labels):
            yield f"values of the enum of column {column.name!r} were renamed: {', '.join(renamed)}"
        elif any(column.values.get(value, row) != row for value, row in was.values.items()):
            yield f"values of the enum of column {column.name!r} were renamed for a time"
        elif was.fields != column.fields:
            yield f"the type {column.declared} of column {column.name!r} has other columns than before"
        elif new_file and was.row != column.row and not _filled(was, column):
            yield (
                f"column {column.name!r} was rewritten, or changed beside a rewrite of the table, and its values may "
                "have changed"
            )
        elif was.generated and new_file and was.other != column.other:
            yield f"the expression of column {column.name!r} has changed"


def _keeps_file(was: CatalogColumn, now: CatalogColumn) -> bool:
    """Return whether a change of a type leaves the rows as they are stored, if it has no USING."""
    if was.labels or now.labels:
        return False
    return {was.base, now.base} <= _TEXTS or (was.base == now.base and now.base in _STORED_ALIKE)


def _needs_file(old: Mapping[int, CatalogColumn], after: Definition, number: int) -> bool:
    """Return whether other columns than one explain a new file: new ones, and changes of types."""
    return any(
        each.number not in old
        or (
            (old[each.number].type, old[each.number].modifier) != (each.type, each.modifier)
            and not _keeps_file(old[each.number], each)
        )
        for each in after.columns
        if each.number != number
    )


def _renamed(was: Sequence[str], now: Sequence[str]) -> list[str]:
    """Return values of an enum that it does not have in the same order; new ones can be anywhere."""
    left = iter(now)
    unchanged = list(itertools.takewhile(lambda label: label in left, was))
    return sorted(set(was) - set(now)) or list(was[len(unchanged) :])


def _filled(was: CatalogColumn, now: CatalogColumn) -> bool:
    """Return whether a rewrite of the table has written the value of older rows into them."""
    return was.missing is not None and now.missing is None and was.other == now.other and now.filled


def changes_types(before: Definition, after: Definition) -> bool:
    """Return whether columns have other types, for which all partitions may be written again."""
    now = {column.number: column for column in after.columns}
    return any(
        (was.type, was.modifier) != (now[was.number].type, now[was.number].modifier)
        for was in before.columns
        if was.number in now
    )


def rewritten(before: Definition, after: Definition) -> bool:
    """Return whether the table or a partition of it has another file."""
    return before.file != after.file or any(
        oid in after.leaves and after.leaves[oid].file != leaf.file for oid, leaf in before.leaves.items()
    )
