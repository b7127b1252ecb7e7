"""Queries as values: their text, and smaller queries for the search of a short failing one.

A condition and an item is a text with a place for each of its subqueries. Names of columns are qualified, so a part can
be left out without a change of meaning of the others; a query that needs the part is then invalid.
"""

from __future__ import annotations

from collections.abc import Iterator
from dataclasses import dataclass, fields, is_dataclass, replace
from typing import Any, TypeAlias


@dataclass(frozen=True)
class Expression:
    """A text with ``{}`` in the places of subqueries."""

    text: str
    queries: tuple[Query, ...] = ()

    def __str__(self) -> str:
        return self.text.format(*self.queries)


@dataclass(frozen=True)
class Item:
    """An expression in the select list, with its name; a star has none."""

    expression: Expression
    name: str = ""

    def __str__(self) -> str:
        return f"{self.expression} AS {self.name}" if self.name else str(self.expression)


@dataclass(frozen=True)
class Relation:
    """A table, a query of WITH, or a subquery in FROM, perhaps with names of its columns in brackets.

    Attributes:
        joins: joins with it that are in brackets.
    """

    source: str | Query
    alias: str
    lateral: bool = False
    columns: str = ""
    joins: tuple[Join, ...] = ()

    def __str__(self) -> str:
        source = self.source if isinstance(self.source, str) else f"({self.source})"
        relation = f"{'LATERAL ' if self.lateral else ''}{source} {self.alias}{self.columns}"
        return f"({' '.join(map(str, (relation, *self.joins)))})" if self.joins else relation


@dataclass(frozen=True)
class Join:
    """A join with the relations before it; ``on`` are conjuncts, ``using`` the names of columns instead."""

    kind: str
    relation: Relation
    on: tuple[Expression, ...] = ()
    using: str | None = None

    def __str__(self) -> str:
        using = f" USING ({self.using})" if self.using else ""
        return f"{self.kind} {self.relation}{using}" + (f" ON {_all(self.on)}" if self.on else "")


@dataclass(frozen=True)
class Select:
    """A block.

    Attributes:
        grouping: ``ROLLUP``, ``CUBE`` or ``GROUPING SETS``; plain groups without it.
        order: the texts of ORDER BY, only with a limit.
        hint: the name of a relation to broadcast. DuckDB takes the hint for a comment.
    """

    items: tuple[Item, ...]
    relation: Relation
    joins: tuple[Join, ...] = ()
    where: tuple[Expression, ...] = ()
    group: tuple[Expression, ...] = ()
    having: tuple[Expression, ...] = ()
    distinct: bool = False
    grouping: str | None = None
    order: tuple[str, ...] = ()
    limit: int | None = None
    hint: str | None = None

    def __str__(self) -> str:
        hint = f"/*+ BROADCAST({self.hint}) */ " if self.hint else ""
        distinct = "DISTINCT " if self.distinct else ""
        group = ", ".join(map(str, self.group))
        parts = [
            f"SELECT {hint}{distinct}{', '.join(map(str, self.items))} FROM {self.relation}",
            *map(str, self.joins),
            f"WHERE {_all(self.where)}" if self.where else "",
            f"GROUP BY {self._grouped(group)}" if self.group else "",
            f"HAVING {_all(self.having)}" if self.having else "",
            f"ORDER BY {', '.join(self.order)} LIMIT {self.limit}" if self.limit is not None else "",
        ]
        return " ".join(filter(None, parts))

    def _grouped(self, group: str) -> str:
        if self.grouping == "GROUPING SETS":
            return f"GROUPING SETS (({group}), ({self.group[0]}), ())"
        return f"{self.grouping} ({group})" if self.grouping else group


@dataclass(frozen=True)
class SetOperation:
    """UNION, INTERSECT or EXCEPT of two queries, or with ALL."""

    kind: str
    left: Query
    right: Query

    def __str__(self) -> str:
        return f"(SELECT * FROM ({self.left}) l) {self.kind} (SELECT * FROM ({self.right}) r)"


@dataclass(frozen=True)
class With:
    """A query with a named one, which it may read several times."""

    name: str
    named: Query
    query: Query

    def __str__(self) -> str:
        return f"WITH {self.name} AS ({self.named}) {self.query}"


Query: TypeAlias = Select | SetOperation | With


def smaller(query: Query) -> Iterator[Query]:
    """Yield queries with a part less, those with much less first. Some are invalid."""
    yield from sorted(_inner(query), key=lambda each: len(str(each)))
    yield from _reduced(query)


def _inner(part: Any) -> Iterator[Query]:
    """Yield the queries in a part of a query."""
    for value in _parts(part):
        if isinstance(value, Query):
            yield value
        yield from _inner(value)


def _parts(part: Any) -> list[Any]:
    if isinstance(part, tuple):
        return list(part)
    return [getattr(part, each.name) for each in fields(part)] if is_dataclass(part) else []


def _reduced(part: Any) -> Iterator[Any]:
    """Yield copies of a part of a query in which an optional or repeated part is missing, at any depth."""
    if isinstance(part, tuple):
        for place, value in enumerate(part):
            yield part[:place] + part[place + 1 :]
            for other in _reduced(value):
                yield (*part[:place], other, *part[place + 1 :])
        return
    if isinstance(part, SetOperation):
        yield from (part.left, part.right)
    if isinstance(part, Join) and part.kind != "JOIN":
        yield replace(part, kind="JOIN")
    if isinstance(part, Expression) and (filtered := part.text.find(" FILTER (")) > 0:
        yield replace(part, text=part.text[:filtered])
    if not is_dataclass(part):
        return
    for each in fields(part):
        value = getattr(part, each.name)
        if value is True:
            yield replace(part, **{each.name: False})  # type: ignore[type-var]
        elif each.default is None and value is not None:
            yield replace(part, **{each.name: None})  # type: ignore[type-var]
        elif isinstance(value, tuple) or is_dataclass(value):
            if isinstance(part, Expression):
                # Its subqueries have places in its text.
                for place, query in enumerate(part.queries):
                    for other in _reduced(query):
                        yield replace(part, queries=(*part.queries[:place], other, *part.queries[place + 1 :]))
                continue
            for other in _reduced(value):
                yield replace(part, **{each.name: other})  # type: ignore[type-var]


def _all(conditions: tuple[Expression, ...]) -> str:
    return " AND ".join(f"({each})" if len(conditions) > 1 else str(each) for each in conditions)
