"""A query over followed scans that is evaluated as it is written, over the rows that its changes reach.

`split` makes signed rows of the changes of one scan. That is right for what is linear in its rows: filters, items,
joins with static tables. All else is evaluated over the rows before and after a batch that
`headrace.derived.gathering` finds, and the difference is the change of the result. If the query has aggregates that
headrace keeps by group at its end, only the rows below them are evaluated so.
"""

from __future__ import annotations

import re
from collections.abc import Collection, Iterable, Iterator, Mapping
from typing import TYPE_CHECKING

from headrace.derived.aggregate_calls import GENERATORS, is_aggregate_call, is_any_aggregate, is_generator
from headrace.derived.follow.items import Items
from headrace.derived.follow.refusals import NotSplit, refuse_names
from headrace.derived.follow.relations import Select
from headrace.derived.follow.scans import FollowedScan
from headrace.derived.follow.split import FollowedQuery, NamesOf, with_aggregates
from headrace.derived.gathering import constructs
from headrace.derived.gathering.arrangements import Arranged, Gathering
from headrace.derived.gathering.model import QueryModel
from headrace.derived.gathering.orders import refuse_orders
from headrace.derived.gathering.routes import plan_gather, plan_whole
from headrace.derived.gathering.row_keys import key_kind
from headrace.derived.gathering.scopes import Columns, UnclearStructure, read_model
from headrace.derived.used_names import used_names
from headrace.spark.versions import arrow_schema
from headrace.sql_text.lexer import Token, TokenKind
from headrace.sql_text.query_text import SET_OPERATIONS, QueryText, Range, Relation

if TYPE_CHECKING:
    from pyspark.sql.types import StructType

_ENDS = ("OVER", "ORDER", "SORT", "CLUSTER", "DISTRIBUTE", "LIMIT", "OFFSET", "QUALIFY", "LATERAL")
# Their results over exact values are exact, and do not depend on an order.
_EXACT_FUNCTIONS = GENERATORS | frozenset(
    (
        "count", "count_if", "sum", "min", "max", "every", "bool_and", "some", "any", "bool_or", "coalesce", "nvl",
        "ifnull", "nullif", "if", "greatest", "least", "abs", "mod", "pmod", "cast", "date", "upper", "lower", "trim",
        "ltrim", "rtrim", "substring", "substr", "left", "right", "concat", "length", "replace", "extract", "year",
        "quarter", "month", "day", "date_trunc", "trunc", "to_date", "date_add", "date_sub", "datediff", "struct",
        "named_struct", "rank", "dense_rank", "row_number", "decimal", "varchar", "char",
    )
)  # fmt: skip
NO_CALLS = (
    "IN", "EXISTS", "AND", "OR", "NOT", "ON", "USING", "AS", "FROM", "JOIN", "WHERE", "HAVING", "WHEN", "THEN", "ELSE",
    "SELECT", "DISTINCT", "ALL", "UNION", "INTERSECT", "EXCEPT", "OVER", "BY", "LATERAL", "BETWEEN", "CASE", "LIKE",
    "FILTER", "VALUES", "ROLLUP", "CUBE", "SETS",
)  # fmt: skip
"""Words before brackets that call nothing."""
_NOT_IN_FROM = {
    "TABLESAMPLE": "write a condition on a hash of the key: WHERE pmod(hash(id), 10) = 0",
    "WATERMARK": "leave it out: a followed table needs no watermark",
    "STREAM": "write the scan's name only: it is followed anyway",
    "RECURSIVE": "compute it in a batch",
}


def refuse_constructs(text: str) -> None:
    """Raise `SqlError` for a construct that no followed query can have."""
    tokens = QueryText(text, strict=True)
    refuse_names(tokens)
    _refuse_clauses(tokens)


def gathered_query(text: str, scans: Collection[str]) -> FollowedQuery:
    """Return a query as a whole.

    Raises:
        SqlError: the query has a construct that cannot be followed.
    """
    tokens = QueryText(text, strict=True)
    read, others, joins = _tables(tokens, scans)
    whole = tokens.render(0, len(tokens.tokens), [])
    return FollowedQuery(tokens, (0, 0), (), read, others, joins, whole)


def grouped_query(
    text: str, scans: Collection[str], names_of: NamesOf, *, has_subqueries: bool = False
) -> FollowedQuery:
    """Return a query whose aggregates at its end are kept by group.

    Args:
        has_subqueries: whether items and HAVING can have subqueries.

    Raises:
        NotSplit: its groups cannot be kept.
        SqlError: the query has a construct that cannot be followed.
    """
    tokens = QueryText(text, strict=True)
    read, others, joins = _tables(tokens, scans)
    with_range, select = _last_select(tokens, has_subqueries=has_subqueries)
    items = Items(tokens, select, names_of(tokens.render(*with_range), f"FROM {tokens.render(*select.block.source)}"))
    rows_sql, groups = with_aggregates(tokens, with_range, select, items)
    return FollowedQuery(tokens, with_range, (), read, others, joins, rows_sql, groups=groups)


def _refuse_clauses(tokens: QueryText) -> None:
    for index, token in enumerate(tokens.tokens):
        remedy = _NOT_IN_FROM.get(token.text.upper()) if token.is_word(*_NOT_IN_FROM) else None
        following = tokens.token(index + 1)
        if remedy is None or following is None or tokens.is_symbol(index - 1, "."):
            continue
        if following.is_name or (token.is_word("TABLESAMPLE") and following.is_symbol("(")):
            raise tokens.error(f"a followed query cannot have {token.text.upper()}", index, remedy=remedy)


def _tables(tokens: QueryText, scans: Collection[str]) -> tuple[tuple[str, ...], tuple[str, ...], bool]:
    """Return the scans and the other tables that a query names, and whether it names several."""
    known = {name.lower(): name for name in scans}
    queries = {each.name for each in tokens.definitions}
    read: list[str] = []
    others: list[str] = []
    count = 0
    for block in tokens.blocks():
        for relation in tokens.all_relations(block):
            if relation.table is None:
                continue
            count += 1
            name = relation.table.lower()
            if name in queries and name in known and len(relation.name) == 1:
                raise tokens.error(
                    f"WITH gives a query the name of a scan: {name}", relation.start, remedy="choose another name"
                )
            if tokens.definition_of(relation) is not None:
                continue
            if tokens.travels_in_time(relation.name_end):
                raise tokens.error("a followed query cannot have time travel", relation.name_end, remedy="leave it out")
            if name in known and len(relation.name) == 1:
                read.append(known[name])
            elif relation.table not in others:
                others.append(relation.table)
    for relation in named_elsewhere(tokens):
        count += 1
        name = ".".join(relation.name)
        if name.lower() in known:
            read.append(known[name.lower()])
        elif tokens.definition_of(relation) is None and name not in others:
            others.append(name)
    return tuple(dict.fromkeys(read)), tuple(others), count > 1


def named_elsewhere(tokens: QueryText) -> Iterator[Relation]:
    """Yield the tables that a query names outside of a FROM clause of SELECT: in pipes, FROM before SELECT, TABLE.

    Raises:
        SqlError: it names several in a list.
    """
    read = {each.start for block in tokens.blocks() for each in tokens.all_relations(block)}
    for index, token in enumerate(tokens.tokens):
        word = index - 1
        if index in read or not tokens.is_word(word, "FROM", "JOIN", "TABLE"):
            continue
        before = (
            word == 0 or tokens.is_symbol(word - 1, "(") or tokens.is_word(word - 1, "ALL", "DISTINCT", *SET_OPERATIONS)
        )
        if tokens.is_word(word, "FROM") and not before:
            # EXTRACT(DAY FROM day)
            continue
        if tokens.is_symbol(index, "(") and not tokens.is_query(index):
            inside = tokens.relations_within(index + 1, tokens.closing[index])
            yield from (each for each in inside if each.table is not None and each.start not in read)
            continue
        if not token.is_name:
            continue
        after = tokens.dotted(index)[1]
        if tokens.is_symbol(after, "(") or (token.is_word("LATERAL") and tokens.is_call(after)):
            # LATERAL (SELECT …), LATERAL explode(…), or another function.
            continue
        comma = next((each for each in tokens.top(after, len(tokens.tokens)) if _ends_relations(tokens, each)), None)
        if comma is not None and tokens.is_symbol(comma, ",") and tokens.is_word(word, "FROM"):
            raise tokens.error("a followed query cannot have a list of tables here", comma, remedy="write CROSS JOIN")
        yield next(tokens.relations(index, len(tokens.tokens)))


def _ends_relations(tokens: QueryText, index: int) -> bool:
    """Return whether a token ends the first relation of FROM, with its joins."""
    return tokens.tokens[index].text in ("|", ")", ",") or tokens.is_word(index, "SELECT")


def _last_select(tokens: QueryText, *, has_subqueries: bool) -> tuple[Range, Select]:
    """Return the range of WITH, and the SELECT at the end of a query, whose aggregates are kept by group.

    Raises:
        NotSplit: there are none, or they cannot be kept.
    """
    first, end = tokens.without_brackets(0, len(tokens.tokens))
    start = next((index for index in tokens.top(first, end) if tokens.is_word(index, "SELECT")), None)
    if start is None or any(tokens.set_operations(start, end)):
        raise NotSplit("a query that does not end with one SELECT")
    block = tokens.block(start, end)
    inside = [*range(start + 1, block.from_[0]), *range(block.where_end, end)]
    if has_subqueries:
        outside = set(tokens.outside_of_queries(start, end))
        inside = [index for index in inside if index in outside]
    if tokens.is_word(start + 1, "DISTINCT") or any(_is_not_kept(tokens, index) for index in inside):
        raise NotSplit("a part of the query that is not kept by group")
    grouped = block.group is not None or block.having is not None
    if not grouped and not any(is_aggregate_call(tokens, index) for index in inside):
        raise NotSplit("a query without groups")
    return (first, start), Select(block, tuple(tokens.item(*each) for each in tokens.split(*block.select)), ())


def _is_not_kept(tokens: QueryText, index: int) -> bool:
    """Return whether a token begins what the groups of a query cannot have: other aggregates, subqueries, orders."""
    return (
        (is_any_aggregate(tokens, index) and not is_aggregate_call(tokens, index))
        or (tokens.is_symbol(index, "(") and tokens.is_query(index))
        or (tokens.is_word(index, *_ENDS) and not tokens.is_symbol(index - 1, "."))
        or tokens.begins_windows(index)
    )


def gathering_of(
    query: FollowedQuery,
    scans: Mapping[str, FollowedScan],
    static: Mapping[str, StructType],
    aggregates: int,
    used: Collection[str] | None,
) -> Gathering:
    """Return which rows the batches of a query read.

    Args:
        static: the columns of the static tables.
        aggregates: the number of aggregations in Spark's plan of the rows SQL.
        used: the names of the columns of scans that are kept; None for all.

    Raises:
        SqlError: the result depends on an order of rows that the query does not determine.
    """
    from pyspark.sql.types import StructType

    tokens = QueryText(query.rows_sql, strict=True)
    columns = {name.lower(): _columns(scans[name].schema, scans[name].key, scans[name].inner) for name in query.scans}
    for name in query.others:
        if name in static:
            columns[name.lower()] = _columns(static[name], (), inner=False, changes=False)
    names = [name.lower() for name in query.scans]
    model: QueryModel | None
    try:
        model = read_model(tokens, columns)
        plan = plan_gather(model)
    except UnclearStructure as unclear:
        model, plan = None, plan_whole(names, constructs.unclear(str(unclear)))
    refuse_orders(tokens, model)
    # An aggregate that the text does not show, such as a user's, would make groups that the model does not have.
    if model is not None and len(model.aggregated) != aggregates:
        model, plan = None, plan_whole(names, constructs.UNKNOWN_AGGREGATE)
    arranged: dict[str, Arranged] = {}
    for number, name in enumerate(query.scans):
        scan = scans[name]
        fields = [
            field
            for field in scan.schema
            if used is None or scan.inner or field.name.lower() in used or field.name in scan.key
        ]
        lookups = plan.lookups.get(name.lower()) or [()]
        arranged[name.lower()] = Arranged(
            scan.label or name, number, arrow_schema(StructType(fields)), scan.key, tuple(lookups), scan.labels
        )
    return Gathering(plan, arranged, model)


def joins_generators_alone(sql: str) -> bool:
    """Return whether each LATERAL of a query is a generator, which makes rows of one row: no subquery."""
    tokens = QueryText(sql, strict=True)
    lateral = (index for index, token in enumerate(tokens.tokens) if token.is_word("LATERAL"))
    return all(tokens.is_word(index + 1, "VIEW") or is_generator(tokens, index + 1) for index in lateral)


def check_exact(query: FollowedQuery, schemas: Iterable[StructType]) -> None:
    """Raise `NotSplit` unless the rows below the groups are the same whenever they are computed again.

    The groups keep what was added, so a row must leave them with the values with which it entered. Spark adds the
    doubles of inner groups and windows in any order, so that the last digits of their sums can differ.
    """
    tokens = QueryText(query.rows_sql, strict=True)
    used = used_names(query.tokens)
    types: dict[str, str] = {}
    for field in (field for schema in schemas for field in schema):
        name, kind = field.name.lower(), field.dataType.simpleString()
        types[name] = f"{types.get(name, '')} {kind}"
        if (used is None or name in used) and re.search("float|double|variant", kind):
            raise NotSplit(f"inner groups of {field.name}, whose sums depend on the order")
    for index, token in enumerate(tokens.tokens):
        called = tokens.is_call(index) and not token.is_word(*NO_CALLS)
        if called and token.name.lower() not in _EXACT_FUNCTIONS and not _is_mean_of_decimals(tokens, index, types):
            raise NotSplit("inner groups of values that may be doubles")
        if token.is_symbol("/") or token.is_word("DOUBLE", "FLOAT", "REAL") or "e" in _number(token).lower():
            raise NotSplit("inner groups of values that may be doubles")


def _is_mean_of_decimals(tokens: QueryText, index: int, types: Mapping[str, str]) -> bool:
    """Return whether a call is the mean of a column that is a decimal in each table. That of longs is a double."""
    if not tokens.is_word(index, "AVG", "MEAN") or not tokens.is_name(index + 2):
        return False
    name, end = tokens.dotted(index + 2)
    kinds = types.get(name[-1].lower(), "").split()
    return end == tokens.closing[index + 1] and bool(kinds) and all(kind.startswith("decimal") for kind in kinds)


def _number(token: Token) -> str:
    return token.text if token.kind is TokenKind.NUMBER else ""


def _columns(schema: StructType, key: tuple[str, ...], inner: bool, *, changes: bool = True) -> Columns:
    kinds = {
        field.name: None if " collate " in field.dataType.simpleString() else key_kind(arrow.type)
        for field, arrow in zip(schema, arrow_schema(schema), strict=True)
    }
    collated = any(" collate " in field.dataType.simpleString() for field in schema)
    return Columns(kinds, key, changes, collated, null_keys=inner)
