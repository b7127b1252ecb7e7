"""Running a query over the rows of one table: scan, filter, group, sort, cut, select."""

from __future__ import annotations

from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass, replace
from typing import Any, Protocol

import pyarrow as pa
import pyarrow.compute as pc
from sqlglot import exp

from headrace.endpoints.ytsaurus.select.functions import FUNCTIONS
from headrace.endpoints.ytsaurus.select.grammar import FUNCTION_PREFIX, Item, Node, Query, Unsigned, is_own, wrong
from headrace.endpoints.ytsaurus.select.types import Value, check_bytes, check_time, elements, kind, native, shown
from headrace.endpoints.ytsaurus.select.values import Expressions
from headrace.rows.by_position import aggregated
from headrace.rows.conditions import MAX_VALUES
from headrace.tables.conditions import Predicate
from headrace.wire.ytsaurus.types import YtColumn, columns_of, type_parts, untagged

_AGGREGATES = {
    "sum": "sum",
    "min": "min",
    "max": "max",
    "avg": "mean",
    "first": "first",
    "count": "count",
    "cardinality": "count_distinct",
}
_OPERATORS: dict[type[Node], tuple[str, str]] = {
    exp.EQ: ("=", "="),
    exp.LT: ("<", ">"),
    exp.LTE: ("<=", ">="),
    exp.GT: (">", "<"),
    exp.GTE: (">=", "<="),
}


class Source(Protocol):
    """The rows of one table.

    Attributes:
        columns: what can be named in a query, in the order in which ``*`` gives them.
    """

    columns: Sequence[YtColumn]

    def scan(self, names: Sequence[str], conditions: Sequence[Predicate]) -> Iterator[pa.RecordBatch]:
        """Return the rows with those columns, in the table's order.

        Args:
            conditions: what the wanted rows satisfy at least; others may be among those returned.
        """
        ...


@dataclass(frozen=True)
class Limits:
    """How much a query may read and answer.

    Attributes:
        input_rows: rows read at most, ``output_rows`` rows answered at most.
        fail: whether more is an error, or is cut off.
        canonical_null: comparisons with null are null, as in SQL.
        deadline: when the query has taken too long, as of `time.monotonic`.
    """

    input_rows: int = 1_000_000
    output_rows: int = 1_000_000
    fail: bool = True
    canonical_null: bool = False
    deadline: float = float("inf")


def run(query: Query, source: Source, limits: Limits) -> tuple[list[pa.RecordBatch], tuple[YtColumn, ...]]:
    """Return the rows that a query selects, and their columns.

    Raises:
        YtError: the query does not go with the table, or exceeds a limit.
    """
    try:
        return _Run(query, source, limits).result()
    except RecursionError:
        raise wrong("The query has too many expressions inside each other") from None


class _Run:
    def __init__(self, query: Query, source: Source, limits: Limits) -> None:
        self._query = query
        self._source = source
        self._limits = limits
        self._known = {column.name: column for column in source.columns}
        self._parts = self._all_parts()
        self._plain_aliases = {
            name: node
            for name, node in query.aliases.items()
            if not any(_aggregate(each) for each in node.find_all(exp.Anonymous))
        }
        used = dict.fromkeys(column.name for part in self._parts for column in part.find_all(exp.Column))
        names = [column.name for column in source.columns if query.items is None or column.name in used]
        # Something must tell how many rows there are.
        self._names = names or [source.columns[0].name]

    def _all_parts(self) -> list[Node]:
        query = self._query
        parts = [item.node for item in (*(query.items or ()), *(query.group or ()))]
        parts += [node for node in (query.where, query.having) if node is not None]
        return parts + [node for node, _ in query.order]

    def result(self) -> tuple[list[pa.RecordBatch], tuple[YtColumn, ...]]:
        rows = self._rows()
        if self._query.group is not None:
            expressions = self._grouped(rows)
        else:
            for part in self._parts:
                if any(_aggregate(node) for node in part.find_all(exp.Anonymous)):
                    raise wrong("Misuse of an aggregate function: there is no GROUP BY", source=shown(part))
            if self._query.having is not None:
                raise wrong("HAVING needs GROUP BY")
            expressions = self._expressions(rows)
        return self._selected(rows, expressions)

    # -- rows -------------------------------------------------------------------------------------------

    def _rows(self) -> pa.RecordBatch:
        query = self._query
        wanted = None
        if query.limit is not None and query.group is None and not query.order:
            wanted = query.offset + query.limit
        kept: list[pa.RecordBatch] = []
        read = found = size = 0
        conditions = pushed_down(query)
        if wanted != 0:
            for batch in self._source.scan(self._names, conditions):
                check_time(self._limits.deadline)
                read += batch.num_rows
                if query.where is not None:
                    batch = batch.filter(self._expressions(batch).mask(query.where))
                kept.append(batch)
                found += batch.num_rows
                size += batch.nbytes
                check_bytes(size)
                if wanted is not None and found >= wanted:
                    break
                if read > self._limits.input_rows:
                    if self._limits.fail:
                        raise self._excessive("input", self._limits.input_rows)
                    break
        schema = pa.schema([pa.field(name, self._known[name].type) for name in self._names])
        table = pa.Table.from_batches([pa.RecordBatch.from_arrays(b.columns, schema=schema) for b in kept], schema)
        batches = table.combine_chunks().to_batches()
        return batches[0] if batches else pa.RecordBatch.from_pylist([], schema=schema)

    def _expressions(self, rows: pa.RecordBatch) -> Expressions:
        columns = {
            name: native(column, _yt_name(self._known[name]))
            for name, column in zip(rows.schema.names, rows.columns, strict=True)
        }
        return self._over(columns, rows.num_rows)

    def _over(
        self, columns: Mapping[str, pa.Array], rows: int, computed: Mapping[str, Value] | None = None
    ) -> Expressions:
        """Return expressions over columns of the table, or over groups and what is computed of them."""
        return Expressions(
            columns,
            rows,
            self._query.literals,
            functions=FUNCTIONS,
            # What aggregates is not known before rows are grouped; until then its name is that of a column.
            aliases=self._query.aliases if computed is not None else self._plain_aliases,
            computed=computed,
            canonical_null=self._limits.canonical_null,
            deadline=self._limits.deadline,
        )

    def _alias_of(self, item: Item) -> str:
        return item.name if self._query.aliases.get(item.name) is item.node else ""

    def _excessive(self, what: str, limit: int) -> Exception:
        return wrong(
            f"Query terminated prematurely due to excessive {what}; consider rewriting your query or changing"
            f" {what} limit",
            **{f"{what}_row_limit": limit},
        )

    # -- groups -----------------------------------------------------------------------------------------

    def _grouped(self, rows: pa.RecordBatch) -> Expressions:
        assert self._query.group is not None
        before = self._expressions(rows)
        keys, size = [], 0
        for item in self._query.group:
            keys.append(before.column(item.node, self._alias_of(item)))
            size += keys[-1].nbytes
            check_bytes(size)
        calls: dict[str, tuple[str, pa.Array | None]] = {}
        for part in self._parts:
            for node in part.find_all(exp.Anonymous):
                function = _aggregate(node)
                if function and node.sql() not in calls:
                    calls[node.sql()] = call = self._argument(before, node, function)
                    size += 0 if call[1] is None else call[1].nbytes
                    check_bytes(size)
        try:
            groups, results = aggregated(keys, list(calls.values()))
        except pa.ArrowNotImplementedError:
            raise wrong("Rows cannot be grouped by this, or this cannot be aggregated") from None
        groups = [_one(column) for column in groups]
        computed = {item.node.sql(): Value(group) for item, group in zip(self._query.group, groups, strict=True)}
        for item, group in zip(self._query.group, groups, strict=True):
            if isinstance(item.node, exp.Column) and _renames(item.node, self._query):
                # What is grouped by its alias is known by itself too.
                computed[self._query.aliases[item.node.name].sql()] = Value(group)
        for (sql, (function, _)), result in zip(calls.items(), results, strict=True):
            array = _one(result)
            computed[sql] = Value(array.cast(pa.uint64()) if function == "count_distinct" else array)
        columns = {item.name: group for item, group in zip(self._query.group, groups, strict=True)}
        after = self._over(columns, len(groups[0]), computed)
        if self._query.having is None:
            return after
        mask = after.mask(self._query.having)
        return self._over(
            {name: column.filter(mask) for name, column in columns.items()},
            pc.sum(mask).as_py() or 0,
            {sql: Value(_filtered(value.data, mask)) for sql, value in computed.items()},
        )

    def _argument(self, before: Expressions, node: Node, function: str) -> tuple[str, pa.Array | None]:
        if function == "count" and [type(each) for each in node.expressions] in ([], [exp.Star]):
            return "count_all", None
        (value,) = before.arguments(node.expressions, 1)
        column = before.column(node.expressions[0])
        if function in ("sum", "mean") and kind(value.type) not in ("int64", "uint64", "double"):
            raise wrong(f"An aggregate function got a {kind(value.type)}", source=shown(node))
        # Arrow has no groups of nulls without a type.
        return function, column.cast(pa.string()) if pa.types.is_null(column.type) else column

    # -- the answer -------------------------------------------------------------------------------------

    def _selected(
        self, rows: pa.RecordBatch, expressions: Expressions
    ) -> tuple[list[pa.RecordBatch], tuple[YtColumn, ...]]:
        query = self._query
        if query.items is None and query.group is not None:
            raise wrong("Error while parsing query: * cannot be used with GROUP BY")
        items = query.items or tuple(Item(exp.column(name, quoted=True), name) for name in self._names)
        plain = set(self._names) if query.group is None else set()
        arrays, columns, size = [], [], 0
        for item in items:
            if isinstance(item.node, exp.Column) and item.node.name in plain and not _renames(item.node, query):
                arrays.append(rows.column(item.node.name))
                columns.append(_renamed(self._known[item.node.name], item.name))
            else:
                array, column = _answered(expressions.column(item.node, self._alias_of(item)), item)
                arrays.append(array)
                columns.append(column)
            size += arrays[-1].nbytes
            check_bytes(size)
        order = self._order(expressions)
        if order is not None:
            arrays = [array.take(order) for array in arrays]
        schema = pa.schema([pa.field(column.name, column.type) for column in columns])
        batch = pa.RecordBatch.from_arrays(arrays, schema=schema).slice(query.offset, query.limit)
        if batch.num_rows > self._limits.output_rows:
            if self._limits.fail:
                raise self._excessive("output", self._limits.output_rows)
            batch = batch.slice(0, self._limits.output_rows)
        return [batch], tuple(columns)

    def _order(self, expressions: Expressions) -> pa.Array | None:
        """Return the places of the rows in their order: sorted by the last column first, as every step is stable."""
        order = None
        for node, descending in reversed(self._query.order):
            keys = expressions.column(node)
            if kind(keys.type) == "any":
                raise wrong("Rows cannot be sorted by this", source=shown(node))
            keys = keys if order is None else keys.take(order)
            step = pc.array_sort_indices(keys, order="descending" if descending else "ascending")
            if not descending:
                # Null comes first, and what is sorted once stays so among equals.
                step = step.take(pc.array_sort_indices(keys.take(step).is_valid()))
            order = step if order is None else order.take(step)
        return order


def pushed_down(query: Query) -> list[Predicate]:
    """Return conditions of a column and literals that hold for every row wanted, of those that AND joins.

    They are true under both meanings of null, if the column is never null.
    """
    if query.where is None:
        return []
    found: list[Predicate] = []
    waiting = [query.where]
    while waiting:
        node = waiting.pop()
        if isinstance(node, exp.Paren):
            waiting.append(node.this)
        elif isinstance(node, exp.And):
            waiting += [node.this, node.expression]
        elif isinstance(node, exp.Between):
            found += _bound(exp.GTE, node.this, node.args["low"], query)
            found += _bound(exp.LTE, node.this, node.args["high"], query)
        elif isinstance(node, exp.In) and len(elements(node.this)) == 1 and node.expressions:
            column, values = elements(node.this)[0], [_constant(each, query) for each in node.expressions]
            if _is_column(column, query) and len(values) <= MAX_VALUES and all(known for known, _ in values):
                found.append(Predicate(column.name, "in", tuple(value for _, value in values)))
        elif type(node) in _OPERATORS:
            found += _bound(type(node), node.this, node.expression, query)
    return found


def _bound(operator: type[Node], left: Node, right: Node, query: Query) -> list[Predicate]:
    lefts, rights = elements(left), elements(right)
    if len(lefts) > 1 and operator is not exp.EQ:
        # Of a comparison of tuples, the first parts tell this much.
        operator = exp.LTE if operator in (exp.LT, exp.LTE) else exp.GTE
        lefts, rights = lefts[:1], rights[:1]
    found = []
    for one, other in zip(lefts, rights, strict=False):
        for column, constant, name in ((one, other, 0), (other, one, 1)):
            known, value = _constant(constant, query)
            if _is_column(column, query) and known:
                found.append(Predicate(column.name, _OPERATORS[operator][name], value))
    return found


def _is_column(node: Node, query: Query) -> bool:
    """Tell whether a node is a column of the table."""
    return isinstance(node, exp.Column) and not _renames(node, query)


def _renames(node: exp.Column, query: Query) -> bool:
    """Tell whether a name is an alias."""
    return node.name in query.aliases and not is_own(node)


def _constant(node: Node, query: Query) -> tuple[bool, Any]:
    """Return whether a node is a literal that is not null, and its value."""
    negative = isinstance(node, exp.Neg)
    inner = node.this if negative else node
    if not isinstance(inner, exp.Placeholder):
        return False, None
    value = query.literals[inner.name]
    if isinstance(value, bool) or not isinstance(value, int | str | bytes):
        return False, None
    if isinstance(value, str | bytes):
        return not negative, str(value) if isinstance(value, str) else bytes(value)
    if negative and isinstance(value, Unsigned):
        return False, None
    return True, -int(value) if negative else int(value)


def _aggregate(node: Node) -> str | None:
    return _AGGREGATES.get(str(node.this).removeprefix(FUNCTION_PREFIX).lower())


def _answered(array: pa.Array, item: Item) -> tuple[pa.Array, YtColumn]:
    """Return a computed column in the type in which it is answered."""
    name = "string" if pa.types.is_null(array.type) else kind(array.type)
    if name == "any":
        raise wrong("This cannot be computed with", source=shown(item.node))
    (column,) = columns_of([{"name": item.name, "type": name}])
    return array.cast(column.of_bytes.type), column.of_bytes


def _renamed(column: YtColumn, name: str) -> YtColumn:
    return replace(column, name=name)


def _yt_name(column: YtColumn) -> str:
    """Return the name of a column's YTsaurus type without what is around it."""
    return type_parts(untagged(column.yt))[0]


def _one(column: pa.ChunkedArray) -> pa.Array:
    array = column.combine_chunks()
    return array if isinstance(array, pa.Array) else pa.concat_arrays(array.chunks)


def _filtered(data: Any, mask: pa.BooleanArray) -> Any:
    return data if isinstance(data, pa.Scalar) else data.filter(mask)
