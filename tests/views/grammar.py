"""Random tables, and random queries over them that mean the same to Spark and to DuckDB.

Blocks are nested up to three deep. They have joins of all kinds with and without further conditions, also in brackets
and as a list, IN, NOT IN, EXISTS and scalar subqueries with equalities and inequalities, DISTINCT, set operations,
groups, HAVING, windows, limits and WITH, also in subqueries; stars, hints, and other names for columns. Values are few,
so that they meet: nulls, NaN, -0.0, decimals of two scales, dates.

What would be decided by chance is left out: row numbers and limits are ordered by all columns that the block shows, and
sums have exact results. Doubles are multiples of 1/8; a mean (of kind ``ratio``) is rounded once, and is never added.
"""

from __future__ import annotations

import random
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass, field, replace
from datetime import date
from decimal import Decimal
from typing import Any, TypeAlias

from tests.views.queries import Expression, Item, Join, Query, Relation, Select, SetOperation, With
from tests.views.tables import TableDefinition

Kind: TypeAlias = str
VALUES: Mapping[Kind, Sequence[Any]] = {
    "long": (-1, 0, 1, 2, 3, 4),
    "int": (0, 1, 2, 3),
    "string": ("", "a", "b", "B"),
    "double": (0.0, -0.0, 0.125, 1.0, -2.25, float("nan")),
    "decimal(7,2)": tuple(map(Decimal, ("0.10", "1.00", "2.50", "-1.10"))),
    "decimal(9,4)": tuple(map(Decimal, ("0.1000", "1.0000", "2.5000", "0.0001"))),
    "date": (date(2026, 1, 1), date(2026, 1, 31), date(2024, 2, 29)),
    "boolean": (True, False),
}
_LITERALS: Mapping[Kind, Sequence[str]] = {
    "long": ("0", "1", "3"),
    "int": ("1", "2"),
    "string": ("''", "'a'", "'b'"),
    "double": ("CAST(0 AS DOUBLE)", "CAST(1 AS DOUBLE)", "CAST('NaN' AS DOUBLE)"),
    "decimal(7,2)": ("0.10", "1.0"),
    "decimal(9,4)": ("0.1", "1.00"),
    "date": ("DATE '2026-01-01'", "DATE '2024-02-29'"),
    "boolean": ("TRUE",),
    "ratio": ("CAST(1 AS DOUBLE)",),
}
# Kinds that can be compared. Their keys differ in bytes where their values are equal.
_FAMILIES: Sequence[Sequence[Kind]] = (
    ("long", "int"), ("decimal(7,2)", "decimal(9,4)"), ("double",), ("string",), ("date",), ("boolean",), ("ratio",),
    ("long", "double"), ("int", "decimal(7,2)"),
)  # fmt: skip
_COMPARISONS = ("=", "=", "<>", "<", ">", "<=")
_SETS = ("UNION", "UNION ALL", "UNION ALL", "INTERSECT", "EXCEPT", "INTERSECT ALL", "EXCEPT ALL")
_JOINS = ("JOIN",) * 5 + ("LEFT JOIN",) * 4 + ("RIGHT JOIN", "FULL JOIN", "FULL JOIN", "SEMI JOIN", "ANTI JOIN")


_SQL_TYPES = {**dict(zip(VALUES, VALUES, strict=True)), "long": "bigint", "string": "varchar(10)", "ratio": "double"}


@dataclass(frozen=True)
class Column:
    """A column of a relation, as a text that names it."""

    text: str
    kind: Kind


def random_tables(rng: random.Random) -> dict[str, TableDefinition]:
    """Return two to five tables, ``t1`` and so on, whose values are few."""
    tables = {}
    count = rng.choice((2, 2, 3, 3, 4, 5))
    for number in range(1, count + 1):
        columns = {"id": "long", **({"part": "int"} if rng.random() < 0.3 else {})}
        key = tuple(columns)
        columns["l1"] = "long"
        for kind in rng.sample(list(VALUES), rng.randint(2, 4)):
            columns[f"{kind[0]}{len(columns)}"] = kind
        tables[f"t{number}"] = TableDefinition(
            columns, key, values={name: VALUES[kind] for name, kind in columns.items() if name not in key}
        )
    return tables


@dataclass
class Grammar:
    """Makes queries over tables.

    Args:
        depth: how deep subqueries are nested.
    """

    rng: random.Random
    tables: Mapping[str, TableDefinition]
    depth: int = 3
    _aliases: int = 0
    _named: dict[str, list[Column]] = field(default_factory=dict)

    def query(self) -> Query:
        """Return a query."""
        rng = self.rng
        return self._with(self.depth - 1)[0] if rng.random() < 0.12 else self._query(self.depth)[0]

    # -- queries, with the columns of their answers --------------------------------------------------------------

    def _query(self, depth: int, kinds: Sequence[Kind] | None = None) -> tuple[Query, list[Column]]:
        """Return a query that can be a relation; with ``kinds``, it has columns of these kinds."""
        roll = self.rng.random()
        if depth > 1 and roll < 0.15:
            left, columns = self._query(depth - 1, kinds)
            right, _ = self._query(depth - 1, [column.kind for column in columns])
            return SetOperation(self.rng.choice(_SETS), left, right), columns
        if kinds is None and roll < 0.45:
            return self._groups(depth)
        if kinds is None and roll < 0.57:
            return self._windows(depth)
        return self._rows(depth, kinds)

    def _rows(self, depth: int, kinds: Sequence[Kind] | None) -> tuple[Query, list[Column]]:
        rng = self.rng
        block, scope = self._block(depth)
        if kinds is None:
            kinds = [column.kind for column in rng.choices(scope, k=rng.randint(1, 4))]
        items = [self._item(self._value(kind, scope, depth), number) for number, kind in enumerate(kinds)]
        block = replace(block, items=tuple(items))
        if "string" in kinds and rng.random() < 0.05 and (made := self._generator(scope)) is not None:
            items[list(kinds).index("string")] = self._item(Expression(made), list(kinds).index("string"))
            return replace(block, items=tuple(items)), _columns(kinds)
        if rng.random() < 0.15:
            block = replace(block, distinct=True)
        return self._limited(block, [] if block.distinct else self._keys(scope)), _columns(kinds)

    def _limited(self, block: Select, keys: Sequence[str]) -> Select:
        """Return a block, sometimes with a limit that is ordered by all that the block shows, and by keys."""
        order = [f"{item.expression} DESC NULLS LAST" for item in block.items if not item.expression.queries]
        if self.rng.random() < 0.1 and len(order) == len(block.items):
            if self.rng.random() < 0.3:
                order = [f"{place} DESC NULLS LAST" for place in range(1, len(block.items) + 1)]
            return replace(block, order=(*order, *keys), limit=self.rng.randint(1, 5))
        return block

    def _groups(self, depth: int) -> tuple[Query, list[Column]]:
        rng = self.rng
        block, scope = self._block(depth)
        columns = rng.sample(scope, min(len(scope), rng.choice((0, 1, 1, 1, 2))))
        kinds = [column.kind for column in columns]
        texts = [self._simple(column, scope) for column in columns]
        items = [self._item(Expression(text), number) for number, text in enumerate(texts)]
        calls = [self._aggregate(scope) for _ in range(rng.randint(1, 3))]
        items += [self._item(Expression(call.text), len(texts) + number) for number, call in enumerate(calls)]
        having: tuple[Expression, ...] = ()
        if rng.random() < 0.3:
            call = self._aggregate(scope)
            having = (Expression(f"{call.text} {rng.choice(_COMPARISONS)} {rng.choice(_LITERALS[call.kind])}"),)
            if depth > 1 and rng.random() < 0.3:
                having = (self._compared(call, [], depth),)
        grouping = rng.choice(("ROLLUP", "CUBE", "GROUPING SETS")) if texts and rng.random() < 0.1 else None
        if grouping is not None:
            # Without rows, DuckDB has a total and Spark has none.
            having = (*having, Expression("count(*) > 0"))
        # An expression that is grouped by is written in the same way in both places.
        group = tuple(Expression(text) for text in dict.fromkeys(texts))
        block = replace(block, items=tuple(items), group=group, having=having, grouping=grouping)
        return self._limited(block, []), _columns([*kinds, *(call.kind for call in calls)])

    def _windows(self, depth: int) -> tuple[Query, list[Column]]:
        rng = self.rng
        block, scope = self._block(depth)
        shown = rng.choices(scope, k=rng.randint(1, 3))
        items = [self._item(Expression(column.text), number) for number, column in enumerate(shown)]
        # Rows with the same values in all columns are the same, also without a key.
        last = [f"{column.text} NULLS FIRST" for column in scope] if rng.random() < 0.4 else self._keys(scope)
        order = ", ".join([f"{column.text} {rng.choice(('ASC', 'DESC'))} NULLS FIRST" for column in shown] + last)
        parts = f"PARTITION BY {rng.choice(scope).text}" if rng.random() < 0.85 else ""
        value, sortable = rng.choice(shown), rng.choice(scope)
        calls = [
            Column(f"row_number() OVER ({parts} ORDER BY {order})", "long"),
            Column(f"rank() OVER ({parts} ORDER BY {sortable.text} DESC NULLS LAST)", "long"),
            Column(f"dense_rank() OVER ({parts} ORDER BY {sortable.text} NULLS FIRST)", "long"),
            Column(f"lag({value.text}) OVER ({parts} ORDER BY {order})", value.kind),
            Column(f"count(*) OVER ({parts})", "long"),
            Column(f"max({value.text}) OVER ({parts})", value.kind),
        ]
        numbers = [column for column in scope if column.kind in ("long", "int")]
        if numbers:
            number = rng.choice(numbers).text
            calls.append(Column(f"sum({number}) OVER ({parts} ORDER BY {sortable.text} NULLS FIRST)", "long"))
        call = rng.choice(calls)
        items.append(self._item(Expression(call.text), len(items)))
        columns = _columns([*(column.kind for column in shown), call.kind])
        query: Query = replace(block, items=tuple(items))
        if call.kind == "long" and rng.random() < 0.6:
            # The first of each partition.
            alias = self._alias()
            outer = tuple(self._item(Expression(f"{alias}.{column.text}"), n) for n, column in enumerate(columns))
            first = Expression(f"{alias}.{columns[-1].text} <= {rng.randint(1, 3)}")
            query = Select(outer, Relation(query, alias), where=(first,))
        return query, columns

    # -- a block without items -----------------------------------------------------------------------------------

    def _block(self, depth: int, outer: Sequence[Column] = ()) -> tuple[Select, list[Column]]:
        """Return a block with relations and conditions, and the columns that its items can name."""
        rng = self.rng
        relation, scope = self._relation(depth)
        joins: list[Join] = []
        count = rng.choice((0, 0, 1, 1, 1, 2, 2, 3) if depth > 1 else (0, 0, 1))
        if not count and relation.source in self.tables and rng.random() < 0.4:
            # A name without its relation means the innermost one that has it.
            scope = [replace(column, text=column.text.partition(".")[2]) for column in scope]
        for _ in range(count):
            join, columns = self._join(scope, depth, first=not joins)
            joins.append(join)
            scope = scope + columns
        where = [self._condition(scope, depth) for _ in range(rng.choice((0, 0, 1, 1, 2)))]
        if depth > 1 and rng.random() < 0.05:
            # Only at the end: to DuckDB, a comma binds less tightly than JOIN.
            listed, columns = self._relation(depth)
            joins.append(Join(",", listed))
            where.append(self._equality(scope, columns))
            scope = scope + columns
        where += [self._correlation(scope, outer) for _ in range(rng.choice((1, 1, 1, 2)) if outer else 0)]
        if outer and depth > 1 and rng.random() < 0.15:
            # A subquery in a subquery reaches over two levels.
            where.append(self._subquery([*scope, *outer], depth))
        hint = relation.alias if rng.random() < 0.03 else None
        return Select((), relation, tuple(joins), tuple(where), hint=hint), scope

    def _relation(self, depth: int) -> tuple[Relation, list[Column]]:
        rng, alias = self.rng, self._alias()
        if depth > 1 and rng.random() < 0.2:
            query, columns = self._query(depth - 1) if rng.random() < 0.9 else self._with(depth - 1)
            return Relation(query, alias), _qualified(alias, columns)
        if self._named and rng.random() < 0.6:
            return Relation("w", alias), _qualified(alias, self._named["w"])
        if depth > 1 and rng.random() < 0.05:
            return self._star(alias)
        if depth > 1 and rng.random() < 0.03:
            values = ", ".join(f"({number}, '{text}')" for number, text in ((1, "a"), (3, "b"), (1, "a")))
            name = rng.choice(("l1", "v"))
            columns = [Column(name, "int"), Column("w", "string")]
            return Relation(f"(VALUES {values})", alias, columns=f" ({name}, w)"), _qualified(alias, columns)
        name = rng.choice(list(self.tables))
        columns = self._columns_of(name)
        if rng.random() < 0.04:
            columns = _columns([column.kind for column in columns])
            return Relation(name, alias, columns=_in_brackets(columns)), _qualified(alias, columns)
        relation, scope = Relation(name, alias), _qualified(alias, columns)
        if depth > 1 and rng.random() < 0.06:
            join, columns = self._join(scope, depth - 1, first=True)
            return replace(relation, joins=(join,)), scope + columns
        if rng.random() < 0.05:
            scope = [replace(column, text=column.text.upper()) for column in scope]
        return relation, scope

    def _with(self, depth: int) -> tuple[Query, list[Column]]:
        """Return a query with a named one, whose name can be that of one around it."""
        around = dict(self._named)
        named, self._named["w"] = self._query(depth)
        query, columns = self._query(depth)
        self._named = around
        return With("w", named, query), columns

    def _columns_of(self, table: str) -> list[Column]:
        return [Column(column, kind) for column, kind in self.tables[table].columns.items()]

    def _star(self, alias: str) -> tuple[Relation, list[Column]]:
        """Return all columns of one or two tables, under new names or with those of columns that are joined."""
        rng, left = self.rng, self._alias()
        name = rng.choice(list(self.tables))
        columns = self._columns_of(name)
        block = Select((Item(Expression("*")),), Relation(name, left))
        if rng.random() < 0.3:
            join, _ = self._join(_qualified(left, columns), 1, first=False)
            block = replace(block, items=(Item(Expression(f"{left}.*")),), joins=(join,))
        elif rng.random() < 0.6:
            other, right = rng.choice(list(self.tables)), self._alias()
            kind = rng.choice(("JOIN", "LEFT JOIN", "RIGHT JOIN", "FULL JOIN", "NATURAL JOIN", "NATURAL LEFT JOIN"))
            using = None if kind.startswith("NATURAL") else rng.choice(("id", "l1"))
            join = Join(kind, Relation(other, right), using=using)
            others = self._columns_of(other)
            names = {column.text for column in others}
            merged = [column for column in columns if column.text == using or (using is None and column.text in names)]
            both = {column.text for column in merged}
            # Elsewhere, Spark moves these columns to the front, and DuckDB does not. It finds that two types cannot be
            # compared only with rows.
            if merged == columns[: len(merged)] and all(column in others for column in merged):
                block = replace(block, joins=(join,))
                columns = merged + [column for column in (*columns, *others) if column.text not in both]
        columns = _columns([column.kind for column in columns])
        return Relation(block, alias, columns=_in_brackets(columns)), _qualified(alias, columns)

    def _join(self, scope: Sequence[Column], depth: int, *, first: bool) -> tuple[Join, list[Column]]:
        rng = self.rng
        if depth > 1 and rng.random() < 0.05:
            return self._lateral(scope, depth)
        relation, columns = self._relation(depth)
        kind = rng.choice(_JOINS)
        if rng.random() < 0.04:
            return Join("CROSS JOIN", relation), columns
        if first and rng.random() < 0.2 and relation.source in self.tables and kind not in ("SEMI JOIN", "ANTI JOIN"):
            shared = [name for name in ("id", "l1") if all(_has(side, name) for side in (scope, columns))]
            if shared:
                return Join(kind, relation, using=rng.choice(shared)), columns
        on = [self._equality(scope, columns)]
        if rng.random() < 0.2:
            on.append(self._equality(scope, columns))
        if rng.random() < 0.25:
            on.append(self._comparison([*scope, *columns]))
        if rng.random() < 0.07 and kind in ("JOIN", "LEFT JOIN"):
            on = [self._pair(scope, columns, "{} < {}")]
        if rng.random() < 0.06:
            same, other = on[0], self._comparison([*scope, *columns])
            forms = ("{0} OR {1}", "{1} OR {0} AND {1}", "NOT ({0})", "CASE WHEN {1} THEN {0} ELSE {2} END")
            third = self._equality(scope, columns)
            on = [Expression(rng.choice(forms).format(same.text, other.text, third.text))]
        return Join(kind, relation, tuple(on)), [] if kind in ("SEMI JOIN", "ANTI JOIN") else columns

    def _lateral(self, scope: Sequence[Column], depth: int) -> tuple[Join, list[Column]]:
        """Return a join with an aggregate for each row, or with rows that are made of it."""
        made = self._generator(scope) if self.rng.random() < 0.5 else None
        if made is not None:
            relation, kind = Relation(made, self._alias(), lateral=True, columns=" (c0)"), "string"
        else:
            query, kind = self._scalar(scope, depth)
            relation = Relation(query, self._alias(), lateral=True)
        join = Join(self.rng.choice(("JOIN", "LEFT JOIN")), relation, (Expression("TRUE"),))
        return join, _qualified(relation.alias, _columns([kind]))

    def _generator(self, scope: Sequence[Column]) -> str | None:
        """Return a call that makes rows with a text of a row, if there is a column for it."""
        columns = [column for column in scope if column.kind in ("long", "int", "string")]
        return f"explode(split(CAST({self.rng.choice(columns).text} AS STRING), '1'))" if columns else None

    def _equality(self, scope: Sequence[Column], columns: Sequence[Column]) -> Expression:
        return self._pair(scope, columns, "{} IS NOT DISTINCT FROM {}" if self.rng.random() < 0.08 else "{} = {}")

    def _pair(self, left: Sequence[Column], right: Sequence[Column], form: str) -> Expression:
        """Return a condition with a column of each side, which can be compared."""
        pairs = [
            (one, other)
            for family in _FAMILIES
            for one in left
            if one.kind in family
            for other in right
            if other.kind in family
        ]
        if not pairs:
            return Expression("TRUE")
        one, other = self.rng.choice(pairs)
        if self.rng.random() < 0.5:
            one, other = other, one
        return Expression(form.format(one.text, other.text))

    # -- conditions ----------------------------------------------------------------------------------------------

    def _condition(self, scope: Sequence[Column], depth: int) -> Expression:
        rng = self.rng
        if depth > 1 and rng.random() < 0.4:
            condition = self._subquery(scope, depth)
            if rng.random() < 0.12:
                text = f"({condition.text} OR {self._comparison(scope)})"
                return replace(condition, text=text)
            return condition
        roll = rng.random()
        if roll < 0.15:
            one, other = self._comparison(scope), self._comparison(scope)
            return Expression(f"{one} OR {other}")
        if roll < 0.2:
            return Expression(f"NOT ({self._comparison(scope)})")
        return self._comparison(scope)

    def _comparison(self, scope: Sequence[Column]) -> Expression:
        """Return a condition without a subquery."""
        rng, column = self.rng, self.rng.choice(scope)
        literals = _LITERALS[column.kind]
        roll = rng.random()
        if roll < 0.15:
            return Expression(f"{column.text} IS {rng.choice(('', 'NOT '))}NULL")
        if roll < 0.3:
            return self._pair([column], scope, f"{{}} {rng.choice(_COMPARISONS)} {{}}")
        if roll < 0.4:
            return Expression(f"{column.text} {rng.choice(('', 'NOT '))}IN ({', '.join(literals)})")
        if roll < 0.5:
            low, high = rng.choice(literals), rng.choice(literals)
            return Expression(f"{column.text} BETWEEN {low} AND {high}")
        if roll < 0.6 and column.kind == "string":
            return Expression(f"{column.text} {rng.choice(('', 'NOT '))}LIKE {rng.choice(('a%', '%B', '%'))!r}")
        return Expression(f"{column.text} {rng.choice(_COMPARISONS)} {rng.choice(literals)}")

    def _subquery(self, scope: Sequence[Column], depth: int) -> Expression:
        rng = self.rng
        kind = rng.choice(("in", "not in", "exists", "not exists", "scalar"))
        negation = "NOT " if "not" in kind else ""
        column = rng.choice(scope)
        if kind == "scalar":
            return self._compared(column, scope, depth)
        outer = scope if kind.endswith("exists") or rng.random() < 0.4 else ()
        block, inner = self._block(depth - 1, outer)
        if kind.endswith("exists"):
            block = replace(block, items=(Item(Expression("1"), "c0"),))
            return Expression(f"{negation}EXISTS ({{}})", (block,))
        same = [each for each in inner if each.kind == column.kind]
        chosen = rng.choice(same or [Column(_LITERALS[column.kind][0], column.kind)])
        second = rng.choice([each for each in scope if each.text != column.text] or [column])
        seconds = [each for each in inner if each.kind == second.kind]
        if seconds and not outer and rng.random() < 0.25:
            items = (Item(Expression(chosen.text), "c0"), Item(Expression(rng.choice(seconds).text), "c1"))
            return Expression(f"({column.text}, {second.text}) {negation}IN ({{}})", (replace(block, items=items),))
        block = replace(block, items=(Item(Expression(chosen.text), "c0"),))
        if not outer and same and rng.random() < 0.2:
            having = (Expression(f"count(*) {rng.choice(('>', '='))} 1"),)
            block = replace(block, group=(Expression(chosen.text),), having=having)
        return Expression(f"{column.text} {negation}IN ({{}})", (block,))

    def _compared(self, column: Column, scope: Sequence[Column], depth: int) -> Expression:
        """Return a comparison with a scalar subquery."""
        rng = self.rng
        query, kind = self._scalar(scope if rng.random() < 0.6 else (), depth)
        if not any(kind in family and column.kind in family for family in _FAMILIES):
            column = Column(rng.choice(_LITERALS[kind]), kind)
        return Expression(f"{column.text} {rng.choice(_COMPARISONS)} ({{}})", (query,))

    def _scalar(self, outer: Sequence[Column], depth: int) -> tuple[Query, Kind]:
        block, inner = self._block(depth - 1, outer)
        call = self._aggregate(inner)
        return replace(block, items=(Item(Expression(call.text), "c0"),)), call.kind

    def _correlation(self, inner: Sequence[Column], outer: Sequence[Column]) -> Expression:
        """Return a condition between a column of a subquery and one outside: mostly an equality."""
        form = self.rng.choice(("{} = {}", "{} = {}", "{} = {}", "{} <> {}", "{} < {}"))
        return self._pair(inner, outer, form)

    # -- values --------------------------------------------------------------------------------------------------

    def _value(self, kind: Kind, scope: Sequence[Column], depth: int) -> Expression:
        """Return an expression of a kind."""
        rng = self.rng
        if depth > 1 and kind == "long" and rng.random() < 0.12:
            query, made = self._scalar(scope, depth)
            if made == "long":
                return Expression("coalesce(({}), 0)" if rng.random() < 0.3 else "({})", (query,))
        same = [column for column in scope if column.kind == kind]
        if not same:
            text = rng.choice(_LITERALS[kind])
            return Expression(f"CAST({text} AS {_SQL_TYPES[kind]})")
        return Expression(self._simple(rng.choice(same), scope))

    def _simple(self, column: Column, scope: Sequence[Column]) -> str:
        """Return an expression without a subquery, of the kind of a column."""
        rng = self.rng
        if rng.random() < 0.6:
            return column.text
        same = rng.choice([each for each in scope if each.kind == column.kind])
        forms: list[Callable[[], str]] = [
            lambda: f"coalesce({column.text}, {same.text})",
            lambda: f"CASE WHEN {self._comparison(scope)} THEN {column.text} ELSE {same.text} END",
            lambda: f"CASE WHEN {self._comparison(scope)} THEN {column.text} END",
        ]
        if column.kind in ("long", "double"):
            forms.append(lambda: f"({column.text} + {same.text})")
        if column.kind == "string":
            forms += [lambda: f"upper({column.text})", lambda: f"({column.text} || {same.text})"]
        return rng.choice(forms)()

    def _aggregate(self, scope: Sequence[Column]) -> Column:
        """Return an aggregate of columns."""
        rng, column = self.rng, self.rng.choice(scope)
        text, kind = column.text, column.kind
        calls = [
            ("count(*)", "long"), (f"count({text})", "long"), (f"count(DISTINCT {text})", "long"),
            (f"min({text})", kind), (f"max({text})", kind),
        ]  # fmt: skip
        if kind in ("long", "int"):
            calls += [(f"sum({text})", "long"), (f"sum(DISTINCT {text})", "long"), (f"avg({text})", "ratio")] * 2
            calls.append((f"median({text})", "ratio"))
        elif kind in ("double", "decimal(7,2)", "decimal(9,4)"):
            calls += [(f"sum({text})", kind)] * 3
        elif kind == "boolean":
            calls += [(f"bool_and({text})", kind), (f"bool_or({text})", kind)]
        call, made = rng.choice(calls)
        if rng.random() < 0.12:
            call = f"{call} FILTER (WHERE {self._comparison(scope)})"
        return Column(call, made)

    def _keys(self, scope: Sequence[Column]) -> list[str]:
        """Return the keys of the tables, mostly: after them in an order, equal rows are the same row."""
        keys = {name for table in self.tables.values() for name in table.key}
        texts = [column.text for column in scope if column.text.rpartition(".")[2] in keys]
        return [f"{text} NULLS FIRST" for text in texts] if self.rng.random() < 0.8 else []

    def _item(self, expression: Expression, number: int) -> Item:
        return Item(expression, f"c{number}")

    def _alias(self) -> str:
        self._aliases += 1
        return f"a{self._aliases}"


def _columns(kinds: Sequence[Kind]) -> list[Column]:
    return [Column(f"c{number}", kind) for number, kind in enumerate(kinds)]


def _qualified(alias: str, columns: Sequence[Column]) -> list[Column]:
    return [Column(f"{alias}.{column.text}", column.kind) for column in columns]


def _has(columns: Sequence[Column], name: str) -> bool:
    return any(each.text.endswith(f".{name}") for each in columns)


def _in_brackets(columns: Sequence[Column]) -> str:
    return f" ({', '.join(column.text for column in columns)})"
