"""Random scenarios: tables, a history and queries; and the shortest one that still fails.

Thousands of queries run over an engine without Spark by

    python -m tests.views.scenarios --first 0 --count 2000 --engine tests.views.rules:Recomputed
"""

from __future__ import annotations

import argparse
import collections
import importlib
import random
import sys
from collections.abc import Callable, Iterator, Mapping, Sequence
from contextlib import suppress
from dataclasses import dataclass, replace
from typing import TypeAlias, TypeVar

import duckdb
import pyarrow as pa

from headrace.errors import HeadraceError
from tests.views.changes import Batch, Changer, apply, apply_to
from tests.views.comparing import difference
from tests.views.grammar import Grammar, random_tables
from tests.views.queries import Query, smaller
from tests.views.rules import Engine, KeptView, View, evaluate
from tests.views.tables import Database, Row, TableDefinition

_EMPTY_ANSWERS = 0.1
_CHANGES = 24
_TRIES = 3_000
T = TypeVar("T")


@dataclass(frozen=True)
class Scenario:
    """Tables, their first rows, what happens to them, and queries over them."""

    tables: Mapping[str, TableDefinition]
    rows: Mapping[str, tuple[Row, ...]]
    batches: tuple[Batch, ...]
    queries: tuple[Query, ...]

    def database(self) -> Database:
        return Database(self.tables, {name: self.tables[name].arrow(rows) for name, rows in self.rows.items()})

    def __str__(self) -> str:
        lines = [f"query: {query}" for query in self.queries]
        read = {name for name in self.tables if any(name in str(query) for query in self.queries)}
        lines += [f"table {name} {dict(self.tables[name].columns)}: {self.rows[name]}" for name in sorted(read)]
        for number, batch in enumerate(self.batches):
            lines += [f"batch {number}: {each.kind} {each.table} {each.rows}" for each in batch if each.table in read]
        return "\n".join(lines)


@dataclass(frozen=True)
class Failure:
    """What went wrong with a query: a kind, which stays the same in a shorter scenario, and a text."""

    kind: str
    text: str


Outcome: TypeAlias = "Failure | str"
"""A failure, or how the query ended."""


class InvalidQuery(Exception):
    """The oracle cannot answer a query."""


def random_scenario(seed: int, *, queries: int = 10, batches: int = 3) -> Scenario:
    """Return a scenario that depends only on the seed. Most of its queries have rows in their first answer."""
    rng = random.Random(seed)
    tables = random_tables(rng)
    with Database(tables, {name: table.arrow([]) for name, table in tables.items()}) as database:
        changer = Changer(database, seed, first_key=-1)
        for _ in range(2):
            apply(database, changer.batch(_CHANGES * len(tables) // 2))
        rows = {name: tuple(database.rows(name).to_pylist()) for name in tables}
        chosen: list[Query] = []
        while len(chosen) < queries:
            query = Grammar(rng, tables).query()
            # A few are invalid: a name without its relation can mean several columns in a subquery, or another one.
            with suppress(duckdb.BinderException, duckdb.ConversionException):
                if database.query(str(query)).num_rows or rng.random() < _EMPTY_ANSWERS:
                    chosen.append(query)
        history = []
        for _ in range(batches):
            history.append(changer.batch(_CHANGES))
            apply(database, history[-1])
    return Scenario(tables, rows, tuple(history), tuple(chosen))


def outcomes(engine: Engine, scenario: Scenario) -> list[Outcome]:
    """Play a scenario, and return the outcome of each of its queries.

    Raises:
        InvalidQuery: the oracle cannot answer a query.
    """
    with scenario.database() as database:
        rows = {name: database.rows(name) for name in database.tables}
        kept: dict[int, KeptView] = {}
        found: dict[int, Outcome] = {}

        def answer(number: int) -> pa.Table:
            try:
                return database.query(str(scenario.queries[number]))
            except duckdb.Error as error:
                raise InvalidQuery(str(error)) from error

        def check(number: int, expected: pa.Table, what: str) -> None:
            differs = difference(kept[number].rows(), expected)
            if differs is not None:
                found[number] = Failure("wrong", f"{what}: {differs}")

        for number, query in enumerate(scenario.queries):
            expected = answer(number)
            with _noted(number, found):
                kept[number] = engine(View(str(query), scenario.tables), rows, evaluate)
                check(number, expected, "first load")
        for place, batch in enumerate(scenario.batches):
            deltas = apply(database, batch)
            for number in kept.keys() - found.keys():
                expected = answer(number)
                with _noted(number, found):
                    kept[number].apply(deltas)
                    check(number, expected, f"batch {place}")
        return [found.get(number, "right") for number in range(len(scenario.queries))]


class _noted:
    """Notes the error of an engine as the outcome of a query."""

    def __init__(self, number: int, found: dict[int, Outcome]) -> None:
        self._number, self._found = number, found

    def __enter__(self) -> None:
        return None

    def __exit__(self, kind: type[BaseException] | None, error: BaseException | None, _: object) -> bool:
        if isinstance(error, HeadraceError):
            self._found[self._number] = f"refused: {error.problem[:80]}"
        elif isinstance(error, Exception):
            self._found[self._number] = Failure(type(error).__name__, str(error)[:2000])
        else:
            return False
        return True


def failure(engine: Engine, scenario: Scenario) -> Failure | None:
    """Return what goes wrong with the only query of a scenario; None if nothing does."""
    try:
        outcome = outcomes(engine, scenario)[0]
    except InvalidQuery:
        return None
    return outcome if isinstance(outcome, Failure) else None


def shortest(engine: Engine, scenario: Scenario) -> Scenario:
    """Return a short scenario in which the only query fails in the same way: shorter by clauses, rows and batches."""
    first = failure(engine, scenario)
    assert first is not None, "the scenario does not fail"
    tries = _TRIES

    def fails(other: Scenario) -> bool:
        nonlocal tries
        tries -= 1
        found = failure(engine, other) if tries > 0 else None
        return found is not None and found.kind == first.kind

    while True:
        before = scenario
        scenario = _first(_by_clauses, scenario, fails)
        for name in scenario.tables:
            rows = _fewer(scenario.rows[name], lambda rows: fails(_with_rows(scenario, name, rows)))  # noqa: B023
            scenario = _with_rows(scenario, name, rows)
        batches = _fewer(scenario.batches, lambda batches: fails(replace(scenario, batches=tuple(batches))))  # noqa: B023
        scenario = replace(scenario, batches=tuple(batches))
        scenario = _first(_by_changes, _first(_by_beginning, scenario, fails), fails)
        if scenario == before or tries <= 0:
            return scenario


def _by_clauses(scenario: Scenario) -> Iterator[Scenario]:
    for query in smaller(scenario.queries[0]):
        yield replace(scenario, queries=(query,))


def _by_beginning(scenario: Scenario) -> Iterator[Scenario]:
    """Yield the scenario that begins after the first batch."""
    if scenario.batches:
        rows = {}
        for name, definition in scenario.tables.items():
            present = {definition.key_of(row): row for row in scenario.rows[name]}
            for change in scenario.batches[0]:
                if change.table == name:
                    apply_to(present, change, definition)
            rows[name] = tuple(present.values())
        yield replace(scenario, rows=rows, batches=scenario.batches[1:])


def _by_changes(scenario: Scenario) -> Iterator[Scenario]:
    """Yield scenarios with a change less. Transactions do not matter to the net rows."""
    for place, batch in enumerate(scenario.batches):
        changes = list(batch)
        for size in (len(changes) // 2, len(changes) // 4, 1):
            for start in range(0, len(changes) if size else 0, max(size, 1)):
                left = Batch((tuple(changes[:start] + changes[start + size :]),))
                yield replace(scenario, batches=(*scenario.batches[:place], left, *scenario.batches[place + 1 :]))


def _with_rows(scenario: Scenario, name: str, rows: Sequence[Row]) -> Scenario:
    return replace(scenario, rows={**scenario.rows, name: tuple(rows)})


def _first(
    shorter: Callable[[Scenario], Iterator[Scenario]], scenario: Scenario, fails: Callable[[Scenario], bool]
) -> Scenario:
    """Return the last of the scenarios that become shorter as long as one fails."""
    while True:
        found = next((each for each in shorter(scenario) if each != scenario and fails(each)), None)
        if found is None:
            return scenario
        scenario = found


def _fewer(values: Sequence[T], fails: Callable[[Sequence[T]], bool]) -> Sequence[T]:
    """Return a part of the values that still fails: leave out halves, quarters, and so on to single values."""
    size = len(values)
    while size:
        start = 0
        while start < len(values):
            rest = [*values[:start], *values[start + size :]]
            if fails(rest):
                values = rest
            else:
                start += size
        size //= 2
    return values


def main() -> int:
    parser = argparse.ArgumentParser()
    parser.add_argument("--first", type=int, default=0, help="the first seed")
    parser.add_argument("--count", type=int, default=100, help="the number of seeds, with ten queries each")
    parser.add_argument("--engine", default="tests.views.rules:Recomputed", help="module:name of the engine")
    parser.add_argument("--most-failures", type=int, default=10)
    given = parser.parse_args()
    module, _, name = given.engine.partition(":")
    engine: Engine = getattr(importlib.import_module(module), name)
    counts: collections.Counter[str] = collections.Counter()
    failures = 0
    for seed in range(given.first, given.first + given.count):
        scenario = random_scenario(seed)
        for query, outcome in zip(scenario.queries, outcomes(engine, scenario), strict=True):
            counts[outcome if isinstance(outcome, str) else f"FAILED: {outcome.kind}"] += 1
            if isinstance(outcome, Failure):
                failures += 1
                short = shortest(engine, replace(scenario, queries=(query,)))
                again = failure(engine, short)
                print(f"--- seed {seed}\n{short}\n{again.text if again else outcome.text}", flush=True)
        if failures >= given.most_failures:
            break
    for each, count in counts.most_common():
        print(f"{count:6} {each}")
    return min(failures, 1)


if __name__ == "__main__":
    sys.exit(main())
