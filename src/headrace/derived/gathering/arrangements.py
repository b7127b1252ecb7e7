"""The rows of followed tables in the target's store, as of the last batch, by each key by which a batch reads them.

A store cannot read a table as it was at an earlier batch. So the columns of a followed table that its query uses are
kept in *arrangements*: tables with the key of a lookup, the key of the row, and these columns. They are state of the
query, and change in one transaction with its target.
"""

from __future__ import annotations

import logging
from collections.abc import Iterable, Iterator, Mapping, Sequence
from dataclasses import dataclass, field, replace

import pyarrow as pa
import pyarrow.compute as pc

from headrace.derived.gathering.gather import TableChange, TableViews, difference, gather
from headrace.derived.gathering.model import QueryModel
from headrace.derived.gathering.routes import GatherPlan
from headrace.derived.gathering.row_keys import ID, row_keys
from headrace.derived.own_names import ALIVE, SIGN
from headrace.derived.state.state_tables import StateRows, StateTable
from headrace.model.tables.changes import RowChange
from headrace.model.tables.conditions import KeyRange
from headrace.model.types import parse_type, type_name
from headrace.ports import Table
from headrace.rows.nested import one_array

KEY, _ROW = "k", "r"
MANY_ROWS = 10_000
"""A lookup that finds more rows of one key is expensive."""
_log = logging.getLogger("headrace")
# The lookups, by table of state and columns, that have found many rows of one key.
_warned: set[tuple[str, tuple[str, ...]]] = set()


@dataclass(frozen=True)
class Arranged:
    """The arrangements of a followed table. Small and picklable.

    Attributes:
        name: the name of the scan.
        number: the number of the table, for names of state tables.
        schema: the columns that the query uses, in Spark's Arrow types.
        primary_key: the table's key, all of it among the columns.
        keys: the columns of each lookup; a table without lookups has one arrangement without columns.
        labels: the columns for people, if they are not their names.
    """

    name: str
    number: int
    schema: pa.Schema
    primary_key: tuple[str, ...]
    keys: tuple[tuple[str, ...], ...]
    labels: tuple[str, ...] = ()

    def shown(self, columns: Iterable[str]) -> str:
        """Return columns for people."""
        labels = dict(zip(self.schema.names, self.labels, strict=True)) if self.labels else {}
        return ", ".join(labels.get(name, name) for name in columns)

    @property
    def roles(self) -> dict[str, tuple[str, ...]]:
        """The columns of the lookup of each arrangement, by role."""
        return {self._role(place): columns for place, columns in enumerate(self.keys)}

    def tables(self, prefix: str) -> dict[str, StateTable]:
        """Return the definitions of the arrangements by role."""
        fields = [pa.field(name, pa.binary(), nullable=False) for name in (KEY, _ROW)]
        fields += [
            pa.field(_column(place), parse_type(type_name(field.type))) for place, field in enumerate(self.schema)
        ]
        columns, found = pa.schema(fields), dict[str, StateTable]()
        for place, key in enumerate(self.keys):
            content = f"{self.name} by ({self.shown(key)})" if key else self.name
            found[self._role(place)] = StateTable(prefix + self._role(place), columns, (KEY, _ROW), content)
        return found

    @property
    def role(self) -> str:
        """The role of the first arrangement. All of them have all rows."""
        return self._role(0)

    @property
    def stored_columns(self) -> list[str]:
        """The columns of an arrangement with those of the table, and with the key of the row at the end."""
        return [*(_column(place) for place in range(len(self.schema))), _ROW]

    def _role(self, place: int) -> str:
        return f"t{self.number}_{place}"

    def rows(self, tables: Mapping[str, Table]) -> ArrangedRows:
        """Return the kept rows, from the open state tables by role."""
        return ArrangedRows(self, [tables[self._role(place)] for place in range(len(self.keys))])

    def truncated(self, rows: pa.Table, truncation: pa.Table) -> pa.Table:
        """Return the rows that a TRUNCATE removes.

        Args:
            truncation: its row, with the columns of the table. Values that are not null limit it to some of the rows.
        """
        for name in self.primary_key:
            if (value := truncation.column(name)[0]).is_valid:
                rows = rows.filter(pc.equal(rows.column(name), value))
        return rows

    def after_truncation(self, change: TableChange, truncation: pa.Table) -> TableChange:
        """Return a change after a TRUNCATE without the rows that the TRUNCATE removes."""
        twice = self.truncated(change.removed, truncation).column(ID)
        others = change.removed.filter(pc.invert(pc.is_in(change.removed.column(ID), one_array(twice))))
        return TableChange(others, change.added)

    def with_ids(self, rows: pa.Table) -> pa.Table:
        """Return rows of the table with their keys in column `ID`."""
        return rows.append_column(ID, row_keys(rows, self.primary_key))

    def of_groups(self, groups: pa.Table, tables: Mapping[str, Table] | None) -> TableChange:
        """Return the change of a table with groups of an inner query.

        Args:
            groups: the touched groups, with column `ALIVE`.
            tables: the open state tables by role; None if no groups are kept.
        """
        touched = self.with_ids(groups.select(self.schema.names).cast(self.schema))
        added = touched.filter(groups.column(ALIVE))
        nothing = touched.slice(0, 0)
        parted = dict(difference(nothing if tables is None else self.rows(tables).like(touched), added))
        return TableChange(parted.get(-1, nothing), parted.get(1, nothing))

    def writes(self, change: TableChange) -> Iterator[StateRows]:
        """Yield the rows to put and the keys to delete for a change of the table."""
        for place, columns in enumerate(self.keys):
            removed = self._stored(change.removed, columns).select([KEY, _ROW])
            added = self._stored(change.added, columns)
            # A row that stays under its key is replaced.
            stays = pc.is_in(_both(removed), _both(added))
            yield StateRows(self._role(place), RowChange.DELETE, removed.filter(pc.invert(stays)))
            yield StateRows(self._role(place), RowChange.PUT, added)

    def arranged(self, signed: pa.Table) -> Iterator[tuple[str, pa.Table]]:
        """Yield each arrangement's role, and its rows for signed rows of the table: two columns of its key first."""
        rows = self.with_ids(signed)
        for place, columns in enumerate(self.keys):
            yield self._role(place), self._stored(rows, columns).append_column(SIGN, rows.column(SIGN))

    def _stored(self, rows: pa.Table, columns: Sequence[str]) -> pa.Table:
        names = [_column(place) for place in range(len(self.schema))]
        values = rows.select(self.schema.names).rename_columns(names)
        return values.add_column(0, _ROW, rows.column(ID)).add_column(0, KEY, row_keys(rows, columns))


def _column(place: int) -> str:
    return f"c{place}"


def _both(rows: pa.Table) -> pa.Array:
    """Return the two keys of each row as one: the first one has its length in front."""
    keys = one_array(rows.column(KEY))
    lengths = pc.binary_length(keys).cast(pa.string()).cast(pa.binary())
    return pc.binary_join_element_wise(lengths, keys, one_array(rows.column(_ROW)), pa.scalar(b":", pa.binary()))


@dataclass(frozen=True)
class ArrangedRows:
    """The kept rows of a followed table; see `headrace.derived.gathering.gather.KeptRows`."""

    arranged: Arranged
    tables: Sequence[Table]

    @property
    def schema(self) -> pa.Schema:
        return self.arranged.schema.append(pa.field(ID, pa.binary()))

    def of_keys(self, columns: tuple[str, ...], keys: pa.BinaryArray) -> pa.Table:
        table = self.tables[self.arranged.keys.index(columns)]
        if columns == self.arranged.primary_key:
            found = table.get_many(pa.table({KEY: keys, _ROW: keys}), self.arranged.stored_columns)
            return self._read(found.filter(pc.is_valid(found.column(_ROW))))
        found = self._read(table.get_by_prefix(pa.table({KEY: keys}), self.arranged.stored_columns))
        if found.num_rows >= MANY_ROWS:
            self._warn_of_many(columns, found)
        return found

    def _warn_of_many(self, columns: tuple[str, ...], found: pa.Table) -> None:
        """Warn once in this process if many rows have one key: each change with this key reads all of them."""
        lookup = (self.tables[0].name, columns)
        largest = pc.max(row_keys(found, columns).value_counts().field("counts")).as_py()
        if largest >= MANY_ROWS and lookup not in _warned:
            _warned.add(lookup)
            by = self.arranged.shown(columns)
            _log.warning("a batch has read %d rows of %s with one key (%s)", largest, self.arranged.name, by)

    def between(self, column: str, low: bytes, high: bytes, most: int) -> pa.Table | None:
        table = self.tables[self.arranged.keys.index((column,))]
        # A bound with a further byte is behind all rows with the key: keys of values of fixed width are of one length.
        return self._scanned(table, most, KeyRange((low,), (high + b"\0",)))

    def like(self, rows: pa.Table) -> pa.Table:
        """Return the kept rows with the keys of some rows, which have all columns of the primary key."""
        at, key = next(each for each in enumerate(self.arranged.keys) if set(each[1]) <= set(self.arranged.primary_key))
        keys = pa.table({KEY: row_keys(rows, key), _ROW: row_keys(rows, self.arranged.primary_key)})
        found = self.tables[at].get_many(keys, self.arranged.stored_columns)
        return self._read(found.filter(pc.is_valid(found.column(_ROW))))

    def all(self, most: int) -> pa.Table | None:
        return self._scanned(self.tables[0], most)

    def _scanned(self, table: Table, most: int, keys: KeyRange | None = None) -> pa.Table | None:
        with table.scan(self.arranged.stored_columns, keys=keys, limit=most + 1) as rows:
            found = self._read(pa.Table.from_batches(rows, rows.schema))
        return found if found.num_rows <= most else None

    def _read(self, rows: pa.Table) -> pa.Table:
        return rows.rename_columns(self.schema.names).cast(self.schema)


@dataclass(frozen=True)
class Gathering:
    """How the batches of a query find the rows over which they evaluate it. Picklable.

    Attributes:
        plan: the lookups.
        tables: the arrangements of each followed table, by its name in lower case; also of the tables with the groups
            of inner queries.
        model: the structure of the query; None if it is unclear.
        inner: the same for the inner queries whose groups it reads, by the names of their tables, inner ones first.
            They have no arrangements of their own.
        signed_sql: the query for the rows that leave and that enter the result; see `signed_join`.
    """

    plan: GatherPlan
    tables: Mapping[str, Arranged]
    model: QueryModel | None
    inner: Mapping[str, Gathering] = field(default_factory=dict)
    signed_sql: str | None = None

    @property
    def reads_groups(self) -> bool:
        """Whether batches read whole tables, or all rows of groups into which no equality leads."""
        return bool(self.plan.full_reads) or (self.model is not None and self.model.has_groups_by_themselves)

    def over(self, inner: Mapping[str, Gathering]) -> Gathering:
        """Return the gathering of a query with those of its inner queries. Each table has the lookups of all."""
        lookups: dict[str, dict[tuple[str, ...], None]] = {}
        tables: dict[str, Arranged] = {}
        for gathering in (*inner.values(), self):
            for name, each in gathering.tables.items():
                tables[name] = each
                lookups.setdefault(name, {}).update(dict.fromkeys(key for key in each.keys if key))
        for number, (name, each) in enumerate(tables.items()):
            keys = list(lookups[name]) or [()]
            if name in inner and not any(set(key) <= set(each.primary_key) for key in keys):
                # The groups of a batch are read by their keys.
                keys = [each.primary_key, *keys]
            tables[name] = replace(each, number=number, keys=tuple(keys))
        return replace(self, tables=tables, inner={name: replace(each, tables={}) for name, each in inner.items()})

    @property
    def definition(self) -> str:
        """A text that is the same as long as the arrangements are the same."""
        tables = sorted(self.tables.items())
        return "\n".join(f"{name} {each.schema} {each.primary_key} {each.keys}" for name, each in tables)

    def state(self, prefix: str) -> dict[str, StateTable]:
        """Return the definitions of all arrangements by role."""
        return {role: table for each in self.tables.values() for role, table in each.tables(prefix).items()}

    def views(
        self, plan: GatherPlan, changes: Mapping[str, TableChange], tables: Mapping[str, Table], most: int
    ) -> dict[str, TableViews] | None:
        """Return the rows that decide about the changes of a result, by table; None if they are more than ``most``.

        Args:
            plan: the lookups of the query, or of an inner one.
            tables: the open state tables by role.
        """
        kept = {name: each.rows(tables) for name, each in self.tables.items() if name in plan.tables}
        return gather(plan, {name: change for name, change in changes.items() if name in kept}, kept, most)
