"""Random batches of transactions over tables, and the net rows of a batch.

A batch has puts, updates and deletes over all tables in several transactions: nulls in a tenth of the values, keys of
other tables that do not exist, keys that are deleted and inserted again, rows that come and go within the batch, and
rows that are written as they were.
"""

from __future__ import annotations

import random
from collections import defaultdict, deque
from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass, field
from typing import Any, Literal

import pyarrow as pa

from tests.views.tables import Database, Key, Row, TableDefinition

_NULLS = 0.1
_DANGLING = 0.05
_EVENTS = ("insert", "update", "replace", "delete", "again", "return", "flash", "same")
_OF_LARGE_TABLES = (28, 28, 7, 17, 7, 5, 5, 3)
# Rows of small tables come back more often, because conditions name them.
_OF_SMALL_TABLES = (8, 40, 5, 10, 10, 20, 4, 3)
_SMALL = 50


@dataclass(frozen=True)
class Change:
    """A change of rows of a table.

    Attributes:
        kind: rows are put (inserted or replaced), some of their columns are updated, or they are deleted.
        rows: whole rows to put; the key and the changed columns of an update; the key of a delete.
    """

    kind: Literal["put", "update", "delete"]
    table: str
    rows: tuple[Row, ...]


@dataclass(frozen=True)
class Batch:
    """Transactions between two answers that are compared."""

    transactions: tuple[tuple[Change, ...], ...]

    def __iter__(self) -> Iterator[Change]:
        return (change for transaction in self.transactions for change in transaction)

    def __len__(self) -> int:
        return sum(len(change.rows) for change in self)


@dataclass(frozen=True)
class Delta:
    """The net rows of a table in a batch: at most one removed and one added row of a key, and they differ."""

    removed: pa.Table
    added: pa.Table

    def __bool__(self) -> bool:
        return bool(self.removed.num_rows or self.added.num_rows)


def apply(database: Database, batch: Batch) -> dict[str, Delta]:
    """Apply a batch to the current rows, and return the net rows of each table that it changes."""
    keys: dict[str, dict[Key, None]] = defaultdict(dict)
    for change in batch:
        keys[change.table].update((database.tables[change.table].key_of(row), None) for row in change.rows)
    deltas = {}
    for name, touched in keys.items():
        definition = database.tables[name]
        before = database.existing(name, list(touched))
        after = dict(before)
        for change in batch:
            if change.table == name:
                apply_to(after, change, definition)
        changed = [key for key in touched if repr(before.get(key)) != repr(after.get(key))]
        removed = [before[key] for key in changed if key in before]
        added = [after[key] for key in changed if key in after]
        database.replace(name, [definition.key_of(row) for row in removed], added)
        delta = Delta(definition.arrow(removed), definition.arrow(added))
        if delta:
            deltas[name] = delta
    return deltas


def apply_to(rows: dict[Key, Row], change: Change, definition: TableDefinition) -> None:
    """Apply a change to the rows of its table."""
    for row in change.rows:
        key = definition.key_of(row)
        if change.kind == "put":
            rows[key] = row
        elif change.kind == "delete":
            rows.pop(key, None)
        elif key in rows:
            rows[key] = {**rows[key], **row}


@dataclass
class Changer:
    """Makes random batches for the current rows of a database.

    New rows are mixtures of the values of present rows, so that conditions on words and dates stay true for some.

    Args:
        database: the rows before the next batch.
        seed: the batches depend only on it and on the rows.
        not_null: columns whose values are never null.
        first_key: new keys are greater.
        weights: how often each table changes; by default by the root of its size.
    """

    database: Database
    seed: int
    not_null: frozenset[str] = frozenset()
    weights: Mapping[str, float] = field(default_factory=dict)
    first_key: int = 10_000_000

    def __post_init__(self) -> None:
        self._random = random.Random(self.seed)
        self._deleted: dict[str, deque[Row]] = {name: deque(maxlen=50) for name in self.database.tables}
        self._sizes: dict[str, int] = {}
        self._next: dict[str, int] = dict.fromkeys(self.database.tables, self.first_key)

    def batch(self, changes: int) -> Batch:
        """Return a batch of about this number of changes in one to four transactions."""
        rng = self._random
        names = list(self.database.tables)
        self._sizes = {name: self.database.size(name) for name in names}
        weights = [self.weights.get(name, max(self._sizes[name], 1) ** 0.5) for name in names]
        chosen = rng.choices(names, weights, k=changes)
        present = {name: self._sample(name, 20 + 3 * chosen.count(name)) for name in names}
        steps: list[Change] = []
        for name in chosen:
            steps += self._changes(name, present)
        cuts = sorted(rng.randrange(len(steps) + 1) for _ in range(rng.randrange(4)))
        parts = [steps[first:last] for first, last in zip([0, *cuts], [*cuts, len(steps)], strict=True)]
        return Batch(tuple(tuple(part) for part in parts if part))

    def _sample(self, name: str, count: int) -> list[Row]:
        rows = self.database.sample(name, [self._random.random() for _ in range(count)])
        self._random.shuffle(rows)
        return rows

    def _changes(self, name: str, present: Mapping[str, list[Row]]) -> list[Change]:
        """Return the changes of one random event."""
        rng, rows = self._random, present[name]
        definition = self.database.tables[name]
        event = rng.choices(_EVENTS, _OF_SMALL_TABLES if self._sizes[name] < _SMALL else _OF_LARGE_TABLES)[0]
        if event == "insert" or not rows:
            return [Change("put", name, (self._new(name, present),))]
        if event == "return" and self._deleted[name]:
            # A key that was deleted comes with other values, or as it was.
            old = self._deleted[name].popleft()
            row = (
                old
                if rng.random() < 0.3
                else self._mixed(name, present, {each: old[each] for each in self._fixed(name)})
            )
            return [Change("put", name, (row,))]
        if event == "flash":
            row = self._new(name, present)
            return [Change("put", name, (row,)), self._delete(name, row)]
        row = rng.choice(rows)
        if event == "same":
            return [Change("put", name, (row,))]
        if event == "again":
            # Deleted and inserted in one batch.
            other = self._mixed(name, present, {each: row[each] for each in self._fixed(name)})
            return [self._delete(name, row), Change("put", name, (other,))]
        if event == "delete":
            self._deleted[name].append(row)
            # Stores make a row of an update of one that is not there.
            rows.remove(row)
            return [self._delete(name, row)]
        mixed = self._mixed(name, present, {each: row[each] for each in self._fixed(name)})
        if event == "replace":
            return [Change("put", name, (mixed,))]
        others = [each for each in definition.columns if each not in self._fixed(name)]
        columns = [*definition.key, *rng.sample(others, min(len(others), rng.choice([1, 1, 2, 3])))]
        return [Change("update", name, ({each: mixed[each] for each in columns},))]

    def _fixed(self, name: str) -> Sequence[str]:
        definition = self.database.tables[name]
        return [each for each in definition.columns if each in definition.key or each in definition.fixed]

    def _delete(self, name: str, row: Row) -> Change:
        return Change("delete", name, ({each: row[each] for each in self.database.tables[name].key},))

    def _new(self, name: str, present: Mapping[str, list[Row]]) -> Row:
        """Return a row with a new key; a key of references only may be that of a row, which it replaces."""
        definition = self.database.tables[name]
        number = self._next[name] = self._next[name] + 1
        values: Row = {
            column: self._reference(definition.references[column], present)
            for column in definition.key
            if column in definition.references
        }
        free = [column for column in definition.key if column not in values]
        # The first columns of keys of several columns repeat.
        numbers = [number] if len(free) == 1 else [number // 2, *[number % 3] * (len(free) - 1)]
        values.update(zip(free, numbers, strict=True) if free else ())
        for column in definition.fixed - set(definition.key):
            values[column] = f"{column} {number}"
        return self._mixed(name, present, values)

    def _mixed(self, name: str, present: Mapping[str, list[Row]], values: Row) -> Row:
        """Return a row of given values and, for other columns, values of present rows, other keys, or null."""
        rng, definition = self._random, self.database.tables[name]
        row: Row = {}
        for column in definition.columns:
            if column in values:
                row[column] = values[column]
            elif rng.random() < _NULLS and column not in self.not_null:
                row[column] = None
            elif column in definition.references and rng.random() < 0.5:
                row[column] = self._reference(definition.references[column], present)
            else:
                row[column] = self._value(name, column, present[name])
        return row

    def _value(self, name: str, column: str, rows: Sequence[Row]) -> Any:
        """Return a value of the column, or that of a present row, which is null only if all are."""
        if column in self.database.tables[name].values:
            return self._random.choice(self.database.tables[name].values[column])
        for _ in range(5):
            value = self._random.choice(rows)[column] if rows else None
            if value is not None:
                return value
        return None

    def _reference(self, table: str, present: Mapping[str, list[Row]]) -> Any:
        """Return the first key column of a present row of a table, sometimes of a deleted one."""
        column = self.database.tables[table].key[0]
        deleted = self._deleted[table]
        if (self._random.random() < _DANGLING and deleted) or not present[table]:
            return deleted[-1][column] if deleted else self._next[table]
        return self._random.choice(present[table])[column]
