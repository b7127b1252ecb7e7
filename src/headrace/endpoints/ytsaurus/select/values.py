"""Expressions of the query language over Arrow columns.

Unlike in SQL, null is a value in comparisons: it equals itself and is less than everything else; with
``canonical_null`` comparisons are SQL's. What AND, OR, IF, CASE and their like do not need of a row is not looked at,
so it cannot be wrong.
"""

from __future__ import annotations

import functools
from collections.abc import Callable, Iterator, Mapping, Sequence
from contextlib import ExitStack, contextmanager
from typing import Any, TypeAlias

import pyarrow as pa
import pyarrow.compute as pc
from sqlglot import exp

from headrace.endpoints.ytsaurus.select.grammar import FUNCTION_PREFIX, RANGE, Node, is_own, wrong
from headrace.endpoints.ytsaurus.select.numbers import negative, quotient, remainder, shifted
from headrace.endpoints.ytsaurus.select.types import (
    NUMBERS,
    Array,
    Value,
    alike,
    as_texts,
    check_size,
    check_time,
    constant_text,
    elements,
    is_string,
    kind,
    literal,
    shown,
    string_of,
    texts,
)

_COMPARISONS: dict[type[Node], str] = {
    exp.EQ: "equal",
    exp.NEQ: "not_equal",
    exp.LT: "less",
    exp.LTE: "less_equal",
    exp.GT: "greater",
    exp.GTE: "greater_equal",
}
_ARITHMETIC: dict[type[Node], str] = {exp.Add: "add", exp.Sub: "subtract", exp.Mul: "multiply"}
_DIVISIONS: dict[type[Node], Callable[[Array, Array, Array | None], Array]] = {exp.Div: quotient, exp.Mod: remainder}
_BITS: dict[type[Node], str] = {
    exp.BitwiseAnd: "bit_wise_and",
    exp.BitwiseOr: "bit_wise_or",
    exp.BitwiseXor: "bit_wise_xor",
}
_SHIFTS: dict[type[Node], str] = {exp.BitwiseLeftShift: "shift_left", exp.BitwiseRightShift: "shift_right"}
_LEAST = -(1 << 63)
_TRUE, _FALSE = pa.scalar(True), pa.scalar(False)
# An alias may be made of others, each of them of others twice, and so on.
_MOST_ALIASES = 1000


Function: TypeAlias = "Callable[[Expressions, Sequence[Node]], Value]"


class Expressions:
    """Evaluates expressions over some rows.

    Args:
        columns: the columns by name, already in the language's types.
        rows: how many rows there are.
        literals: the values of the parameters in the tree.
        functions: what can be called, by name.
        aliases: what names of the query stand for; they hide columns of the table.
        computed: the values of expressions that are known already, by their SQL: groups and aggregates. Where it is
            given, columns are those of groups, which aliases do not hide.
        canonical_null: comparisons with null are null.
        deadline: when it has taken too long, as of `time.monotonic`.
    """

    def __init__(
        self,
        columns: Mapping[str, pa.Array],
        rows: int,
        literals: Mapping[str, Any],
        *,
        functions: Mapping[str, Function],
        aliases: Mapping[str, Node],
        computed: Mapping[str, Value] | None = None,
        canonical_null: bool = False,
        deadline: float = float("inf"),
    ) -> None:
        self._columns = columns
        self.rows = rows
        self._literals = literals
        self._functions = functions
        self._aliases = aliases
        self._computed = computed
        self._canonical_null = canonical_null
        self._deadline = deadline
        self._resolving: frozenset[str] = frozenset()
        self._resolved = 0
        self._conditions: list[Callable[[], Array]] = []

    def column(self, node: Node, name: str = "") -> pa.Array:
        """Return an expression's value for every row; ``name`` is its own alias, which it is not made of."""
        with self._inside(name):
            data = self.value(node).data
        check_size(self.rows, data)
        if isinstance(data, pa.Scalar):
            return pa.nulls(self.rows, data.type) if not data.is_valid else pa.repeat(data, self.rows)
        return data

    def mask(self, node: Node) -> pa.BooleanArray:
        """Return where a condition holds; null does not hold."""
        found = self.column(node)
        if pa.types.is_null(found.type):
            found = found.cast(pa.bool_())
        if found.type != pa.bool_():
            raise wrong(f"A condition is of type {kind(found.type)}, not boolean", source=shown(node))
        return found.fill_null(False)

    def value(self, node: Node) -> Value:
        """Return the value of an expression.

        Raises:
            YtError: types that do not go together, an unknown column or function, a division by zero, the deadline.
        """
        check_time(self._deadline)
        if self._computed and (known := self._computed.get(node.sql())) is not None:
            return known
        try:
            return self._evaluated(node)
        except pa.ArrowInvalid as error:
            raise wrong(f"Error while evaluating query: {error}", source=shown(node)) from None
        except (pa.ArrowNotImplementedError, pa.ArrowTypeError):
            raise wrong("Type mismatch in expression", source=shown(node)) from None

    def _evaluated(self, node: Node) -> Value:
        if isinstance(node, exp.Paren):
            return self.value(node.this)
        if isinstance(node, exp.Alias):
            with self._inside(node.alias):
                return self.value(node.this)
        if isinstance(node, exp.Placeholder):
            return literal(self._literals[node.name])
        if isinstance(node, exp.Column):
            return self._named(node)
        if type(node) in _COMPARISONS:
            return Value(self._compared(type(node), node.this, node.expression))
        if type(node) in _ARITHMETIC or type(node) in _DIVISIONS:
            return self._arithmetic(node)
        if type(node) in _BITS or type(node) in _SHIFTS:
            return self._bits(node)
        if isinstance(node, exp.Between):
            return Value(self._between(node.this, node.args["low"], node.args["high"]))
        if isinstance(node, exp.In):
            return self._in(node)
        if isinstance(node, exp.And | exp.Or):
            return self._logical(node)
        if isinstance(node, exp.Not):
            return Value(pc.invert(self._boolean(node.this)))
        if isinstance(node, exp.Neg):
            return self._negative(node)
        if isinstance(node, exp.BitwiseNot):
            operand = self._whole(node.this)
            return Value(pc.bit_wise_not(operand.data), operand.literal)
        if isinstance(node, exp.Is):
            return Value(pc.is_null(self.value(node.this).data))
        if isinstance(node, exp.DPipe):
            return self.joined([self.value(node.this).data, self.value(node.expression).data])
        if isinstance(node, exp.Like | exp.ILike):
            return self._like(node)
        if isinstance(node, exp.Case):
            return self._case(node)
        if isinstance(node, exp.Anonymous):
            name = str(node.this).removeprefix(FUNCTION_PREFIX).lower()
            if name not in self._functions:
                raise wrong(f"Undefined function {name!r}", valid=", ".join(sorted(self._functions)))
            return self._functions[name](self, node.expressions)
        raise wrong("The query has an expression that is not supported here", source=shown(node))

    def _named(self, node: exp.Column) -> Value:
        """Return the value of a column or of an alias, which inside of itself is no alias."""
        name = node.name
        hidden = name not in self._aliases or name in self._resolving or is_own(node)
        if hidden or (self._computed is not None and name in self._columns):
            if name not in self._columns:
                raise wrong(f"Undefined reference {name!r}", valid=", ".join(self._columns))
            return Value(self._columns[name])
        self._resolved += 1
        if self._resolved > _MOST_ALIASES:
            raise wrong("The query has too many aliases inside each other")
        with self._inside(name):
            return self.value(self._aliases[name])

    @contextmanager
    def _inside(self, alias: str) -> Iterator[None]:
        before, self._resolving = self._resolving, self._resolving | {alias}
        try:
            yield
        finally:
            self._resolving = before

    # -- what is looked at ------------------------------------------------------------------------------

    @contextmanager
    def _only(self, condition: Callable[[], Array]) -> Iterator[None]:
        """Evaluate meanwhile only for rows in which something holds, which is never null."""
        self._conditions.append(condition)
        try:
            yield
        finally:
            self._conditions.pop()

    def needed(self) -> Array | None:
        """Return for which rows expressions are evaluated; None for all."""
        return functools.reduce(pc.and_, [each() for each in self._conditions]) if self._conditions else None

    def _logical(self, node: Node) -> Value:
        is_and = isinstance(node, exp.And)
        left = self._boolean(node.this)
        with self._only(lambda: pc.coalesce(left, _TRUE) if is_and else pc.invert(pc.coalesce(left, _FALSE))):
            right = self._boolean(node.expression)
        return Value(pc.and_kleene(left, right) if is_and else pc.or_kleene(left, right))

    def _chosen(self, condition: Array, one: Value, other: Value, node: Node) -> Value:
        chosen, instead = alike(one, other, node)
        check_size(self.rows, chosen, instead)
        return Value(pc.if_else(condition, chosen, instead))

    # -- comparing --------------------------------------------------------------------------------------

    def _compared(self, operator: type[Node], left: Node, right: Node) -> Array:
        lefts, rights = elements(left), elements(right)
        if len(lefts) == len(rights) == 1:
            return self._compared_one(operator, lefts[0], rights[0])
        if len(lefts) != len(rights):
            raise wrong("Tuples of different lengths cannot be compared", source=shown(left.parent or left))
        return self._compared_tuples(operator, lefts, rights)

    def _compared_tuples(self, operator: type[Node], lefts: Sequence[Node], rights: Sequence[Node]) -> Array:
        if operator in (exp.EQ, exp.NEQ):
            joined = pc.and_kleene if operator is exp.EQ else pc.or_kleene
            result = self._compared_one(operator, lefts[0], rights[0])
            for left, right in zip(lefts[1:], rights[1:], strict=True):
                result = joined(result, self._compared_one(operator, left, right))
            return result
        if len(lefts) == 1:
            return self._compared_one(operator, lefts[0], rights[0])
        strict = exp.LT if operator in (exp.LT, exp.LTE) else exp.GT
        before = self._compared_one(strict, lefts[0], rights[0])
        same = self._compared_one(exp.EQ, lefts[0], rights[0])
        return pc.or_kleene(before, pc.and_kleene(same, self._compared_tuples(operator, lefts[1:], rights[1:])))

    def _compared_one(self, operator: type[Node], left_node: Node, right_node: Node) -> Array:
        left, right = alike(self.value(left_node), self.value(right_node), left_node.parent or left_node)
        if pa.types.is_null(left.type):
            # Arrow compares nulls of a type only.
            left, right = left.cast(pa.int64()), right.cast(pa.int64())
        result = pc.call_function(_COMPARISONS[operator], [left, right])
        return result if self._canonical_null else self._with_null(operator, left, right, result)

    def _with_null(self, operator: type[Node], left: Array, right: Array, result: Array) -> Array:
        no_left, no_right = pc.is_null(left), pc.is_null(right)
        of_nulls: dict[type[Node], Callable[[], Array]] = {
            exp.EQ: lambda: pc.and_(no_left, no_right),
            exp.NEQ: lambda: pc.xor(no_left, no_right),
            exp.LT: lambda: pc.and_not(no_left, no_right),
            exp.LTE: lambda: no_left,
            exp.GT: lambda: pc.and_not(no_right, no_left),
            exp.GTE: lambda: no_right,
        }
        return pc.if_else(pc.or_(no_left, no_right), of_nulls[operator](), result)

    def _between(self, node: Node, low: Node, high: Node) -> Array:
        operand = elements(node)

        def side(operator: type[Node], bound: Node) -> Array:
            # A shorter tuple bounds only its own columns.
            parts = elements(bound)
            return self._compared_tuples(operator, operand[: len(parts)], parts[: len(operand)])

        return pc.and_kleene(side(exp.GTE, low), side(exp.LTE, high))

    def _in(self, node: Node) -> Value:
        if node.args.get("query") is not None:
            raise wrong("The query has a part that is not supported here: a query inside of IN")
        if not node.expressions:
            raise wrong("Error while parsing query: IN needs a value", source=shown(node))
        operand = elements(node.this)
        if len(operand) == 1 and all(isinstance(each, exp.Placeholder) for each in node.expressions):
            first = self.value(operand[0])
            values = [literal(self._literals[each.name]) for each in node.expressions]
            if is_string(first.type) and any(pa.types.is_binary(value.type) for value in values):
                first = Value(first.data.cast(pa.binary()))
            if not first.literal:
                found = [alike(first, value, node)[1].as_py() for value in values]
                return Value(pc.is_in(first.data, pa.array(found, first.type)))
        result: Array = pa.scalar(False)
        for each in node.expressions:
            if isinstance(each, exp.Anonymous) and each.this == RANGE:
                if len(each.expressions) != 2:
                    raise wrong("Error while parsing query: a range of BETWEEN needs two bounds")
                found = self._between(node.this, *each.expressions)
            else:
                found = self._compared(exp.EQ, node.this, each)
            result = pc.or_kleene(result, found)
        return Value(result)

    # -- computing --------------------------------------------------------------------------------------

    def _arithmetic(self, node: Node) -> Value:
        left, right = self.value(node.this), self.value(node.expression)
        one, other = alike(left, right, node)
        both = left.literal and right.literal
        if pa.types.is_null(one.type):
            return Value(one, both)
        if one.type not in NUMBERS:
            raise wrong(f"Arithmetic with a {kind(one.type)}", source=shown(node))
        if type(node) in _ARITHMETIC:
            return Value(pc.call_function(_ARITHMETIC[type(node)], [one, other]), both)
        if isinstance(node, exp.Mod) and pa.types.is_floating(one.type):
            raise wrong("The remainder of a division needs whole numbers", source=shown(node))
        return Value(_DIVISIONS[type(node)](one, other, self.needed()), both)

    def _negative(self, node: Node) -> Value:
        operand = self.value(node.this)
        data = operand.data
        if operand.literal and pa.types.is_uint64(data.type):
            # The least of all numbers: what stands behind its sign is no int64.
            if data.as_py() != -_LEAST:
                raise wrong("The literal is no int64", source=shown(node))
            return Value(pa.scalar(_LEAST, pa.int64()), literal=True)
        if pa.types.is_null(data.type):
            return operand
        if data.type not in NUMBERS:
            raise wrong(f"Arithmetic with a {kind(data.type)}", source=shown(node))
        return Value(negative(data), operand.literal)

    def _bits(self, node: Node) -> Value:
        left, right = self._whole(node.this), self._whole(node.expression)
        one, other = alike(left, right, node)
        both = left.literal and right.literal
        if type(node) in _SHIFTS:
            return Value(shifted(_SHIFTS[type(node)], one, other, self.needed()), both)
        return Value(pc.call_function(_BITS[type(node)], [one, other]), both)

    def _whole(self, node: Node) -> Value:
        value = self.value(node)
        if pa.types.is_null(value.type):
            return Value(value.data.cast(pa.int64()), literal=True)
        if not pa.types.is_integer(value.type):
            raise wrong("Bits need whole numbers", source=shown(node))
        return value

    def _boolean(self, node: Node) -> Array:
        data = self.value(node).data
        if pa.types.is_null(data.type):
            return data.cast(pa.bool_())
        if data.type != pa.bool_():
            raise wrong(f"Expected a boolean, got {kind(data.type)}", source=shown(node))
        return data

    def _like(self, node: Node) -> Value:
        pattern = constant_text(self.value(node.expression), node)
        text = string_of(self.value(node.this), node.this)
        # What stands for a character of a text stands for a byte if the pattern is no text.
        text = as_texts(text) if isinstance(pattern, str) else text.cast(pa.binary())
        return Value(pc.match_like(text, pattern, ignore_case=isinstance(node, exp.ILike)))

    def _case(self, node: Node) -> Value:
        branches: list[tuple[Array, Value]] = []
        default = node.args.get("default")
        with ExitStack() as before:
            for branch in node.args["ifs"]:
                if node.this is None:
                    condition = self._boolean(branch.this)
                else:
                    condition = self._compared_one(exp.EQ, node.this, branch.this)
                holds = pc.coalesce(condition, _FALSE)
                with self._only(functools.partial(lambda where: where, holds)):
                    branches.append((holds, self.value(branch.args["true"])))
                before.enter_context(self._only(functools.partial(pc.invert, holds)))
            result = literal(None) if default is None else self.value(default)
        for holds, value in reversed(branches):
            result = self._chosen(holds, value, result, node)
        return result

    # -- what functions need ----------------------------------------------------------------------------

    def arguments(self, nodes: Sequence[Node], count: int) -> list[Value]:
        """Return the values of a function's arguments."""
        if len(nodes) != count:
            raise wrong(f"A function got {len(nodes)} arguments instead of {count}")
        return [self.value(node) for node in nodes]

    def choose(self, nodes: Sequence[Node]) -> Value:
        """``if(condition, then, else)``."""
        if len(nodes) != 3:
            raise wrong(f"A function got {len(nodes)} arguments instead of 3")
        condition = self._boolean(nodes[0])
        with self._only(lambda: pc.coalesce(condition, _FALSE)):
            then = self.value(nodes[1])
        with self._only(lambda: pc.invert(pc.coalesce(condition, _TRUE))):
            other = self.value(nodes[2])
        return self._chosen(condition, then, other, nodes[0])

    def first_not_null(self, nodes: Sequence[Node]) -> Value:
        """``if_null(value, otherwise)`` and ``coalesce(…)``."""
        if not nodes:
            raise wrong("A function got no arguments")
        values: list[Value] = []
        with ExitStack() as before:
            for node in nodes:
                values.append(self.value(node))
                before.enter_context(self._only(functools.partial(pc.is_null, values[-1].data)))
        result = values.pop()
        for value in reversed(values):
            result = self._chosen(pc.is_valid(value.data), value, result, nodes[0])
        return result

    def joined(self, parts: Sequence[Array]) -> Value:
        """Return strings one after the other."""
        parts = [part.cast(pa.string()) if pa.types.is_null(part.type) else part for part in parts]
        for part in parts:
            if not is_string(part.type):
                raise wrong(f"Expected a string, got {kind(part.type)}")
        check_size(self.rows, *parts)
        same = texts(parts)
        return Value(pc.binary_join_element_wise(*same, pa.scalar("").cast(same[0].type)))
