"""The execution of a query over the rows of one table: scan, filter, group, sort, cut, select."""

from __future__ import annotations

from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass, replace
from typing import Protocol

import pyarrow as pa
import pyarrow.compute as pc

from headrace.model.tables.conditions import Predicate
from headrace.rows.by_position import aggregated
from headrace_ytsaurus.endpoint.select.expressions import Expressions
from headrace_ytsaurus.endpoint.select.functions import FUNCTIONS
from headrace_ytsaurus.endpoint.select.nodes import Item, Node, Query, query_error
from headrace_ytsaurus.endpoint.select.pushdown import pushed_down
from headrace_ytsaurus.endpoint.select.types import NUMBERS, Value, check_bytes, check_time, kind, native
from headrace_ytsaurus.wire.types import YtColumn, columns_of, type_parts, untagged

_AGGREGATES = {
    "sum": "sum",
    "min": "min",
    "max": "max",
    "avg": "mean",
    "first": "first",
    "count": "count",
    "cardinality": "count_distinct",
}


class RowSource(Protocol):
    """The rows of one table.

    Attributes:
        columns: the columns, in the order of ``*``.
    """

    columns: Sequence[YtColumn]

    def scan(self, names: Sequence[str], conditions: Sequence[Predicate]) -> Iterator[pa.RecordBatch]:
        """Return some columns of the rows, in the table's order.

        Args:
            conditions: what the wanted rows satisfy; rows that do not satisfy them can be among the result.
        """
        ...


@dataclass(frozen=True)
class Limits:
    """The limits of a query.

    Attributes:
        input_rows: the maximum of rows to read.
        output_rows: the maximum of rows to return.
        fail: whether more rows are an error; if not, the result is incomplete.
        canonical_null: comparisons with null are null, as in SQL.
        deadline: the time of `time.monotonic` at which the query fails.
    """

    input_rows: int = 1_000_000
    output_rows: int = 1_000_000
    fail: bool = True
    canonical_null: bool = False
    deadline: float = float("inf")


def run(query: Query, source: RowSource, limits: Limits) -> tuple[list[pa.RecordBatch], tuple[YtColumn, ...]]:
    """Return the rows of a query, and their columns.

    Raises:
        YtError: the query does not fit the table, or exceeds a limit.
    """
    try:
        return _Run(query, source, limits).result()
    except RecursionError:
        raise query_error("The query has too many nested expressions") from None


class _Run:
    def __init__(self, query: Query, source: RowSource, limits: Limits) -> None:
        self._query = query
        self._source = source
        self._limits = limits
        self._known = {column.name: column for column in source.columns}
        self._plain_aliases = {name: node for name, node in query.aliases.items() if not _aggregates(node)}
        used = {node.value for part in query.nodes for node in part.walk() if node.kind == "name"}
        names = [column.name for column in source.columns if query.items is None or column.name in used]
        # At least one column, for the number of rows.
        self._names = names or [source.columns[0].name]

    def result(self) -> tuple[list[pa.RecordBatch], tuple[YtColumn, ...]]:
        rows = self._rows()
        if self._query.group is not None:
            return self._selected(rows, self._grouped(rows))
        for part in self._query.nodes:
            if _aggregates(part):
                raise query_error("Misuse of an aggregate function: there is no GROUP BY", source=part.text)
        if self._query.having is not None:
            raise query_error("HAVING needs GROUP BY")
        return self._selected(rows, self._expressions(rows))

    # -- rows -------------------------------------------------------------------------------------------

    def _rows(self) -> pa.RecordBatch:
        query = self._query
        wanted = None
        if query.limit is not None and query.group is None and not query.order:
            wanted = query.offset + query.limit
        kept: list[pa.RecordBatch] = []
        read = found = size = 0
        if wanted != 0:
            for batch in self._source.scan(self._names, pushed_down(query)):
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
        self, columns: Mapping[str, pa.Array], rows: int, computed: Mapping[Node, Value] | None = None
    ) -> Expressions:
        """Return expressions over columns of the table, or over groups with their aggregates."""
        return Expressions(
            columns,
            rows,
            functions=FUNCTIONS,
            # Before grouping, the alias of an aggregate is the name of a column.
            aliases=self._query.aliases if computed is not None else self._plain_aliases,
            computed=computed,
            canonical_null=self._limits.canonical_null,
            deadline=self._limits.deadline,
        )

    def _alias_of(self, item: Item) -> str:
        return item.name if self._query.aliases.get(item.name) is item.node else ""

    def _excessive(self, what: str, limit: int) -> Exception:
        return query_error(
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
        calls: dict[Node, tuple[str, pa.Array | None]] = {}
        for node in dict.fromkeys(call for part in self._query.nodes for call in _aggregates(part)):
            function, argument = calls[node] = self._argument(before, node)
            size += 0 if argument is None else argument.nbytes
            check_bytes(size)
        try:
            groups, results = aggregated(keys, list(calls.values()))
        except pa.ArrowNotImplementedError:
            raise query_error("A value of type any cannot be grouped by or aggregated") from None
        groups = [_one(column) for column in groups]
        computed: dict[Node, Value] = {}
        for item, group in zip(self._query.group, groups, strict=True):
            computed[item.node] = Value(group)
            if self._query.is_alias(item.node):
                # The expression of the alias has the same value.
                computed[self._query.aliases[item.node.value]] = Value(group)
        for (node, (function, _)), result in zip(calls.items(), results, strict=True):
            array = _one(result)
            computed[node] = Value(array.cast(pa.uint64()) if function == "count_distinct" else array)
        columns = {item.name: group for item, group in zip(self._query.group, groups, strict=True)}
        after = self._over(columns, len(groups[0]), computed)
        if self._query.having is None:
            return after
        mask = after.mask(self._query.having)
        return self._over(
            {name: column.filter(mask) for name, column in columns.items()},
            pc.sum(mask).as_py() or 0,
            {node: Value(value.data.filter(mask)) for node, value in computed.items()},
        )

    def _argument(self, before: Expressions, node: Node) -> tuple[str, pa.Array | None]:
        """Return Arrow's function for an aggregate, and its argument."""
        function = _AGGREGATES[node.value]
        if function == "count" and [child.kind for child in node.children] in ([], ["all"]):
            return "count_all", None
        (value,) = before.arguments(node.children, 1)
        column = before.column(node.children[0])
        if function in ("sum", "mean") and value.type not in NUMBERS:
            raise query_error(f"An aggregate function got a {kind(value.type)}", source=node.text)
        # Arrow cannot aggregate nulls that have no type.
        return function, column.cast(pa.binary()) if pa.types.is_null(column.type) else column

    # -- the result -------------------------------------------------------------------------------------

    def _selected(
        self, rows: pa.RecordBatch, expressions: Expressions
    ) -> tuple[list[pa.RecordBatch], tuple[YtColumn, ...]]:
        query = self._query
        if query.items is None and query.group is not None:
            raise query_error("Error while parsing query: * cannot be used with GROUP BY")
        items = query.items or tuple(Item(Node("name", value=name, qualified=True), name) for name in self._names)
        plain = set(self._names) if query.group is None else set()
        arrays, columns, size = [], [], 0
        for item in items:
            if query.is_column(item.node) and item.node.value in plain:
                arrays.append(rows.column(item.node.value))
                columns.append(replace(self._known[item.node.value], name=item.name))
            else:
                array, column = _output(expressions.column(item.node, self._alias_of(item)), item)
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
        """Return the indices of the rows in their order; None without ORDER BY."""
        # A stable sort for each expression, the last one first.
        order = None
        for node, descending in reversed(self._query.order):
            keys = expressions.column(node)
            if kind(keys.type) == "any":
                raise query_error("Rows cannot be sorted by a value of type any", source=node.text)
            keys = keys if order is None else keys.take(order)
            step = pc.array_sort_indices(keys, order="descending" if descending else "ascending")
            if not descending:
                # Nulls first; Arrow sorts them last.
                step = step.take(pc.array_sort_indices(keys.take(step).is_valid()))
            order = step if order is None else order.take(step)
        return order


def _aggregates(node: Node) -> list[Node]:
    """Return the calls of aggregate functions within an expression."""
    return [each for each in node.walk() if each.kind == "call" and each.value in _AGGREGATES]


def _output(array: pa.Array, item: Item) -> tuple[pa.Array, YtColumn]:
    """Return a computed column in the type of the result."""
    name = "string" if pa.types.is_null(array.type) else kind(array.type)
    if name == "any":
        raise query_error("A value of type any can only be selected as a column", source=item.node.text)
    (column,) = columns_of([{"name": item.name, "type": name}])
    return array.cast(column.of_bytes.type), column.of_bytes


def _yt_name(column: YtColumn) -> str:
    """Return the name of a column's YTsaurus type, without optional and tagged."""
    return type_parts(untagged(column.yt))[0]


def _one(column: pa.ChunkedArray) -> pa.Array:
    array = column.combine_chunks()
    return array if isinstance(array, pa.Array) else pa.concat_arrays(array.chunks)
