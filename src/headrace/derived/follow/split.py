"""A query over followed scans, split into the part for signed rows and the part for groups.

A followed scan gives rows with a sign: +1 for a row that is now in the table, -1 for one that no longer is. The query's
text is split into

- *rows SQL*: FROM, JOIN and WHERE as written. Its columns are the group expressions, the arguments of aggregates, the
  sign and the order; without aggregates, the items as written, the sign and the order;
- the aggregates, which headrace keeps from signed rows;
- *result SQL*: the items and HAVING as written, over one row for each group. Its columns are the group expressions, the
  values of the aggregates, `ALIVE` and `STATE`.

`headrace.derived.own_names` has the names of these columns, which no column of a user can have.

The split is of text, because Spark Connect gives no access to plans. Spark analyses the original text first, and says
which names are the same column (`Names`). In a valid query each name outside of aggregates is a group expression, a
part of one, or the alias of another item; what is none of these stays in the result SQL, where Spark does not find it.
`headrace.derived.follow.settings` lists what is read from the text, and the settings that this assumes.
"""

from __future__ import annotations

from collections.abc import Callable, Collection, Sequence
from dataclasses import dataclass

from headrace.derived.aggregate_calls import is_aggregate_call
from headrace.derived.follow.items import AggregateCall, Items, Names
from headrace.derived.follow.refusals import NotSplit, check_of_one_row, refuse_names
from headrace.derived.follow.relations import QueryRelations, Select
from headrace.derived.own_names import (
    ALIVE,
    GROUPS_VIEW,
    KEEP,
    ORDER,
    SIGN,
    STATE,
    argument_column,
    group_column,
    output_column,
    value_column,
)
from headrace.sql_text.lexer import TokenKind, quote_name, string_value
from headrace.sql_text.query_text import QueryText

NamesOf = Callable[[str, str], Names]
"""Returns what Spark says about the names of a SELECT, of its WITH clause and its FROM clause as written."""


@dataclass(frozen=True)
class ResultItem:
    """An output column of a query with aggregates.

    Attributes:
        name: its name; None if Spark generates one.
        group: the group expression of which it is a plain copy, or, for a window, its start or end.
        as_text: whether it is that copy as text, ``CAST(… AS STRING)``.
        always: whether groups without a row in the result have its value too: for copies of groups, and literals.
    """

    name: str | None
    group: str | None
    always: bool
    as_text: bool = False


@dataclass(frozen=True)
class Grouping:
    """The part of a query for groups.

    Attributes:
        names: the columns of the group expressions; empty for one group of all rows.
        aggregates: the aggregates, in the order of their value columns.
        items: the output columns.
        result_sql: a query over the view `GROUPS_VIEW`, whose columns are the output columns by position, `KEEP`:
            whether the group has a row in the result, and `STATE` as it is. The output columns of groups that have no
            row are null, except copies of groups and constants.
        copied: the column of the view that each output column is, if the result SQL only copies columns and leaves no
            group out; else None.
        types_sql: a query whose columns have the types of the groups and values of the view.
        shown: the items as SQL over the columns of the view.
        having: the condition of HAVING, likewise; None without.
        texts: the group expressions and aggregates as written, for people.
    """

    names: tuple[str, ...]
    aggregates: tuple[AggregateCall, ...]
    items: tuple[ResultItem, ...]
    result_sql: str
    copied: tuple[str, ...] | None
    types_sql: str
    shown: tuple[str, ...]
    having: str | None
    texts: tuple[str, ...]

    def select(self, names: Sequence[str], table: str) -> str:
        """Return the query over a table with the columns of the view, and a row for each group.

        Args:
            names: the names of the output columns.
        """
        items = ", ".join(f"{text} AS {quote_name(name)}" for text, name in zip(self.shown, names, strict=True))
        return f"SELECT {items} FROM {table}" + ("" if self.having is None else f" WHERE {self.having}")


@dataclass(frozen=True)
class FollowedQuery:
    """A query over followed scans.

    Attributes:
        tokens: its text.
        with_: the tokens of its WITH clause.
        selects: the branches of its UNION ALL.
        scans: the followed scans that it names.
        others: the other relations that it names, as written but without quotes.
        has_join: whether a scan is joined, so that one row of it can give several rows, in any order.
        rows_sql: the query for signed rows. It reads views with the names in the text; the views of the scans have the
            columns `SIGN` and `ORDER` after those of the table, and no columns of changes.
        branch_column: the position of the output column with another literal in each branch of UNION ALL; None
            without UNION ALL at the top level. Rows of different branches differ in it only.
        groups: the part for groups; None for a query without aggregates.
    """

    tokens: QueryText
    with_: tuple[int, int]
    selects: tuple[Select, ...]
    scans: tuple[str, ...]
    others: tuple[str, ...]
    has_join: bool
    rows_sql: str
    branch_column: int | None = None
    groups: Grouping | None = None


def split_query(text: str, scans: Collection[str], names_of: NamesOf) -> FollowedQuery:
    """Split a query in Spark SQL.

    Args:
        scans: the names of the followed scans.
        names_of: is called only for a query with aggregates.

    Raises:
        NotSplit: the query has a construct for which signed rows are not enough.
        SqlError: the query has a construct that cannot be followed.
    """
    tokens = QueryText(text, strict=True)
    refuse_names(tokens)
    check_of_one_row(tokens)
    relations = QueryRelations(tokens, scans)
    with_range, branches = relations.query()
    select = branches[0]
    aggregated = len(branches) == 1 and (
        select.block.group is not None or select.block.having is not None or _has_aggregate(tokens, select)
    )
    _check_places_of_aggregates(tokens, select if aggregated else None)
    found = (tuple(branches), tuple(relations.scans), tuple(relations.others), relations.has_join)
    if aggregated:
        from_ = f"FROM {tokens.render(*select.block.source, [])}"
        items = Items(tokens, select, names_of(tokens.render(*with_range, []), from_))
        rows_sql, groups = with_aggregates(tokens, with_range, select, items, carried=(SIGN, ORDER))
        return FollowedQuery(tokens, with_range, *found, rows_sql, groups=groups)
    _check_one_row_of_each(tokens, branches)
    branch_column = None if len(branches) == 1 else _branch_column(tokens, branches)
    return FollowedQuery(tokens, with_range, *found, tokens.render(0, len(tokens.tokens)), branch_column)


def with_aggregates(
    tokens: QueryText, with_range: tuple[int, int], select: Select, items: Items, *, carried: Sequence[str] = ()
) -> tuple[str, Grouping]:
    """Return the rows SQL of a query with aggregates, and its part for groups.

    Args:
        carried: the columns that the rows have beside the groups and arguments.
    """
    with_, from_ = tokens.render(*with_range), f"FROM {tokens.render(*select.block.source)}"
    shown: list[str] = []
    results: list[str] = []
    columns: list[str | None] = []
    outputs: list[ResultItem] = []
    for number, item in enumerate(select.items):
        if item.kind == "star":
            raise NotSplit("a star beside aggregates")
        converted = items.converted(item.start, item.end, number)
        columns.append(items.column(converted))
        copy = items.copied(converted)
        always = copy is not None or item.kind == "literal"
        shown.append(converted)
        results.append(converted if always else f"CASE WHEN {KEEP} THEN ({converted}) END")
        group, as_text = (None, False) if copy is None else (group_column(copy[0]), copy[1])
        outputs.append(ResultItem(item.name, group, always, as_text))
    having: str | None = None
    if select.block.having is not None:
        having = items.converted(*select.block.having, len(select.items))
    if not items.groups and not items.aggregates:
        raise NotSplit("HAVING without GROUP BY and aggregates")
    kept = f"coalesce(CASE WHEN {ALIVE} THEN ({having or 'true'}) END, false)"
    # Under the user's names, Spark would resolve a name that is left in an item as the alias of another item.
    listed = ", ".join(f"{text} AS {output_column(number)}" for number, text in enumerate(results))
    groups = [f"{text} AS {group_column(number)}" for number, text in enumerate(items.group_items)]
    arguments = [f"{text} AS {argument_column(number)}" for number, text in enumerate(items.argument_items)]
    rows_sql = f"{with_} SELECT {', '.join((*groups, *arguments, *carried)) or '1'} {from_}".lstrip()
    group_names = tuple(map(group_column, range(len(groups))))
    calls = [f"{call.sql} AS {value_column(number)}" for number, call in enumerate(items.aggregates)]
    types = f"SELECT {', '.join((*group_names, *calls))} FROM ({rows_sql})"
    return rows_sql, Grouping(
        names=group_names,
        aggregates=tuple(items.aggregates),
        items=tuple(outputs),
        result_sql=f"SELECT {listed}, {KEEP}, {STATE} FROM (SELECT *, {kept} AS {KEEP} FROM {GROUPS_VIEW})",
        copied=None if select.block.having is not None or None in columns else tuple(map(str, columns)),
        types_sql=types + (f" GROUP BY {', '.join(group_names)}" if group_names else ""),
        shown=tuple(shown),
        having=having,
        texts=(*(" ".join(text.split()) for text in items.group_items), *(call.text for call in items.aggregates)),
    )


def _has_aggregate(tokens: QueryText, select: Select) -> bool:
    return any(is_aggregate_call(tokens, index) for item in select.items for index in range(item.start, item.end))


def _check_places_of_aggregates(tokens: QueryText, select: Select | None) -> None:
    """Raise `NotSplit` for an aggregate that is not in the select list or HAVING of the query with aggregates."""
    ranges = [] if select is None else [(item.start, item.end) for item in select.items]
    if select is not None:
        ranges += [each for each in (select.block.having, select.block.group) if each is not None]
    for index in range(len(tokens.tokens)):
        if is_aggregate_call(tokens, index) and not any(start <= index < end for start, end in ranges):
            raise NotSplit(f"{tokens.tokens[index].text} in a subquery, a branch of UNION ALL, FROM or WHERE")


def _check_one_row_of_each(tokens: QueryText, branches: Sequence[Select]) -> None:
    """Raise `NotSplit` where a query without aggregates makes several rows with one key of a row."""
    for index in range(len(tokens.tokens)):
        if tokens.is_call(index) and tokens.is_word(index, "WINDOW") and not tokens.is_symbol(index - 1, "."):
            raise NotSplit("window(…) without GROUP BY, which can make several rows of one")
    waiting = [relation for branch in branches for relation in branch.relations]
    while waiting:
        relation = waiting.pop()
        if len(relation.query) > 1:
            raise NotSplit("UNION ALL inside of FROM without aggregates")
        waiting += [inner for select in relation.query for inner in select.relations]


def _branch_column(tokens: QueryText, branches: Sequence[Select]) -> int:
    """Return the position of the output column that has another literal in each branch."""
    columns = min(len(branch.items) for branch in branches)
    if not any(item.kind == "star" for branch in branches for item in branch.items):
        for column in range(columns):
            values = [_literal(tokens, branch, column) for branch in branches]
            if None not in values and len({type(value) for value in values}) == 1 and len(set(values)) == len(values):
                return column
    raise NotSplit("UNION ALL without a literal that tells its branches apart")


def _literal(tokens: QueryText, branch: Select, column: int) -> str | int | None:
    item = branch.items[column]
    if item.kind != "literal":
        return None
    token = tokens.tokens[item.start]
    if token.kind is TokenKind.NUMBER:
        return int(token.text) if token.text.isdecimal() else None
    try:
        return string_value(token)
    except ValueError:
        return None
