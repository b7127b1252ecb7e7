"""The values of expressions over Arrow columns.

In comparisons null is a value, unlike in SQL: it equals itself and is less than everything else. With
``canonical_null`` comparisons with null are null. An error such as a division by zero counts only in rows that need the
result: AND, OR, IF, CASE and COALESCE exclude the others.
"""

from __future__ import annotations

import functools
from collections.abc import Callable, Iterator, Mapping, Sequence
from contextlib import ExitStack, contextmanager
from dataclasses import dataclass, field
from typing import TypeAlias

import pyarrow as pa
import pyarrow.compute as pc

from headrace_ytsaurus.endpoint.select.nodes import Node, query_error
from headrace_ytsaurus.endpoint.select.numbers import negative, quotient, remainder, shifted
from headrace_ytsaurus.endpoint.select.types import (
    NUMBERS,
    Array,
    Value,
    as_texts,
    check_size,
    check_time,
    common_type,
    constant_string,
    kind,
    string_of,
    text_or_bytes,
)
from headrace_ytsaurus.wire.errors import YtError

_COMPARISONS = {
    "=": pc.equal,
    "!=": pc.not_equal,
    "<": pc.less,
    "<=": pc.less_equal,
    ">": pc.greater,
    ">=": pc.greater_equal,
}
_ARITHMETIC = {"+": pc.add, "-": pc.subtract, "*": pc.multiply}
_DIVISIONS = {"/": quotient, "%": remainder}
_BITS = {"&": pc.bit_wise_and, "|": pc.bit_wise_or, "^": pc.bit_wise_xor}
_SHIFTS = {"<<": pc.shift_left, ">>": pc.shift_right}
_TRUE, _FALSE = pa.scalar(True), pa.scalar(False)
# An alias can use others twice, each of which uses others twice, and so on.
_MAX_ALIASES = 1000

Function: TypeAlias = "Callable[[Expressions, Sequence[Node]], Value]"


@dataclass(eq=False)
class Expressions:
    """Evaluates expressions over some rows.

    Args:
        columns: the columns by name, in the language's types.
        rows: the number of rows.
        functions: the functions by name.
        aliases: alias → expression. An alias hides a column of the table with the same name.
        computed: groups and aggregates: expression → value. If given, `columns` are those of groups, which aliases do
            not hide.
        canonical_null: comparisons with null are null.
        deadline: the time of `time.monotonic` at which evaluation fails.
    """

    columns: Mapping[str, pa.Array]
    rows: int
    functions: Mapping[str, Function]
    aliases: Mapping[str, Node]
    computed: Mapping[Node, Value] | None = None
    canonical_null: bool = False
    deadline: float = float("inf")
    _resolving: frozenset[str] = frozenset()
    _resolved: int = 0
    _conditions: list[Array] = field(default_factory=list)

    def column(self, node: Node, alias: str = "") -> pa.Array:
        """Return the value of an expression for every row.

        Args:
            alias: the alias of the expression; within the expression this name is a column.
        """
        with self._inside(alias):
            data = self.value(node).data
        check_size(self.rows, data)
        if isinstance(data, pa.Scalar):
            return pa.nulls(self.rows, data.type) if not data.is_valid else pa.repeat(data, self.rows)
        return data

    def mask(self, node: Node) -> pa.BooleanArray:
        """Return the rows in which a condition is true; null counts as false."""
        found = self.column(node)
        if pa.types.is_null(found.type):
            found = found.cast(pa.bool_())
        if found.type != pa.bool_():
            raise query_error(f"A condition is of type {kind(found.type)}, not boolean", source=node.text)
        return found.fill_null(False)

    def value(self, node: Node) -> Value:
        """Return the value of an expression.

        Raises:
            YtError: a type mismatch, an unknown column or function, a division by zero, the deadline has passed.
        """
        check_time(self.deadline)
        if self.computed and (known := self.computed.get(node)) is not None:
            return known
        if node.kind not in _EVALUATORS:
            raise query_error("The query has an expression that is not supported here", source=node.text)
        try:
            return _EVALUATORS[node.kind](self, node)
        except YtError as error:
            error.attributes.setdefault("source", node.text)
            raise
        except pa.ArrowInvalid as error:
            raise query_error(f"Error while evaluating query: {error}", source=node.text) from None
        except (pa.ArrowNotImplementedError, pa.ArrowTypeError):
            raise query_error("Type mismatch in expression", source=node.text) from None

    # -- names and calls --------------------------------------------------------------------------------

    def _named(self, node: Node) -> Value:
        """Return the value of a column or alias. Within its own expression an alias is a column."""
        name = node.value
        hidden = name not in self.aliases or name in self._resolving or node.qualified
        if hidden or (self.computed is not None and name in self.columns):
            if name not in self.columns:
                raise query_error(f"Undefined reference {name!r}", valid=", ".join(self.columns))
            return Value(self.columns[name])
        self._resolved += 1
        if self._resolved > _MAX_ALIASES:
            raise query_error("The query has too many nested aliases")
        with self._inside(name):
            return self.value(self.aliases[name])

    def _aliased(self, node: Node) -> Value:
        with self._inside(node.value):
            return self.value(node.children[0])

    @contextmanager
    def _inside(self, alias: str) -> Iterator[None]:
        before, self._resolving = self._resolving, self._resolving | {alias}
        try:
            yield
        finally:
            self._resolving = before

    def _called(self, node: Node) -> Value:
        function = self.functions.get(node.value)
        if function is None:
            raise query_error(f"Undefined function {node.value!r}", valid=", ".join(sorted(self.functions)))
        return function(self, node.children)

    def _tuple(self, node: Node) -> Value:
        if len(node.children) != 1:
            raise query_error("A tuple can only be compared")
        return self.value(node.children[0])

    # -- logic ------------------------------------------------------------------------------------------

    @contextmanager
    def _only(self, condition: Array) -> Iterator[None]:
        """Count errors only in rows in which a condition, which is never null, is true."""
        self._conditions.append(condition)
        try:
            yield
        finally:
            self._conditions.pop()

    def needed(self) -> Array | None:
        """Return the mask of the rows that need a result; None for all."""
        return functools.reduce(pc.and_, self._conditions) if self._conditions else None

    def _and(self, node: Node) -> Value:
        result = self._boolean(node.children[0])
        for child in node.children[1:]:
            with self._only(pc.coalesce(result, _TRUE)):
                result = pc.and_kleene(result, self._boolean(child))
        return Value(result)

    def _or(self, node: Node) -> Value:
        result = self._boolean(node.children[0])
        for child in node.children[1:]:
            with self._only(pc.invert(pc.coalesce(result, _FALSE))):
                result = pc.or_kleene(result, self._boolean(child))
        return Value(result)

    def _not(self, node: Node) -> Value:
        return Value(pc.invert(self._boolean(node.children[0])))

    def _boolean(self, node: Node) -> Array:
        data = self.value(node).data
        if pa.types.is_null(data.type):
            return data.cast(pa.bool_())
        if data.type != pa.bool_():
            raise query_error(f"Expected a boolean, got {kind(data.type)}")
        return data

    def _case(self, node: Node) -> Value:
        *pairs, default = node.children
        branches: list[tuple[Array, Value]] = []
        with ExitStack() as before:
            for condition, value in zip(pairs[::2], pairs[1::2], strict=True):
                holds = pc.coalesce(self._boolean(condition), _FALSE)
                with self._only(holds):
                    branches.append((holds, self.value(value)))
                before.enter_context(self._only(pc.invert(holds)))
            result = self.value(default)
        for holds, chosen in reversed(branches):
            result = self._chosen(holds, chosen, result)
        return result

    def _chosen(self, condition: Array, one: Value, other: Value) -> Value:
        chosen, instead = common_type(one, other)
        check_size(self.rows, chosen, instead)
        return Value(pc.if_else(condition, chosen, instead))

    # -- comparisons ------------------------------------------------------------------------------------

    def _comparison(self, node: Node) -> Value:
        return Value(self._compared(node.kind, *node.children))

    def _compared(self, operator: str, left: Node, right: Node) -> Array:
        if len(left.elements) != len(right.elements):
            raise query_error("Tuples of different lengths cannot be compared")
        return self._compared_tuples(operator, left.elements, right.elements)

    def _compared_tuples(self, operator: str, lefts: Sequence[Node], rights: Sequence[Node]) -> Array:
        if operator in ("=", "!="):
            joined = pc.and_kleene if operator == "=" else pc.or_kleene
            pairs = zip(lefts, rights, strict=True)
            return functools.reduce(joined, [self._compared_one(operator, *pair) for pair in pairs])
        if len(lefts) == 1:
            return self._compared_one(operator, lefts[0], rights[0])
        before = self._compared_one(operator[0], lefts[0], rights[0])
        same = self._compared_one("=", lefts[0], rights[0])
        return pc.or_kleene(before, pc.and_kleene(same, self._compared_tuples(operator, lefts[1:], rights[1:])))

    def _compared_one(self, operator: str, left_node: Node, right_node: Node) -> Array:
        left, right = common_type(self.value(left_node), self.value(right_node))
        if pa.types.is_null(left.type):
            # Arrow compares only nulls that have a type.
            left, right = left.cast(pa.int64()), right.cast(pa.int64())
        result = _COMPARISONS[operator](left, right)
        if self.canonical_null or not (_has_null(left) or _has_null(right)):
            return result
        # Validity compares as null does: it is false for null, which is less than everything else.
        valid_left, valid_right = pc.is_valid(left), pc.is_valid(right)
        of_nulls = _COMPARISONS[operator](valid_left, valid_right)
        return pc.if_else(pc.and_(valid_left, valid_right), result, of_nulls)

    def _between(self, node: Node) -> Value:
        operand, low, high = (child.elements for child in node.children)

        def side(operator: str, bound: Sequence[Node]) -> Array:
            # A shorter tuple bounds only the first columns.
            return self._compared_tuples(operator, operand[: len(bound)], bound[: len(operand)])

        return Value(pc.and_kleene(side(">=", low), side("<=", high)))

    def _in(self, node: Node) -> Value:
        operand, *values = node.children
        if len(operand.elements) == 1 and all(each.kind == "literal" for each in values):
            first = self.value(operand)
            if not first.literal:
                found = [common_type(first, each.value)[1].as_py() for each in values]
                return Value(pc.is_in(first.data, pa.array(found, first.type)))
        return Value(functools.reduce(pc.or_kleene, [self._compared("=", operand, each) for each in values]))

    def _is_null(self, node: Node) -> Value:
        return Value(pc.is_null(self.value(node.children[0]).data))

    def _like(self, node: Node) -> Value:
        operand, pattern_node = node.children
        pattern = text_or_bytes(constant_string(self.value(pattern_node)))
        text = string_of(self.value(operand))
        # An underscore matches a character, or a byte if the pattern is not UTF-8.
        text = as_texts(text) if isinstance(pattern, str) else text
        return Value(pc.match_like(text, pattern, ignore_case=node.kind == "ilike"))

    # -- computations -----------------------------------------------------------------------------------

    def _arithmetic(self, node: Node) -> Value:
        left, right = (self.value(child) for child in node.children)
        one, other = common_type(left, right)
        literal = left.literal and right.literal
        if pa.types.is_null(one.type):
            return Value(one, literal)
        if one.type not in NUMBERS:
            raise query_error(f"Arithmetic with a {kind(one.type)}")
        if node.kind in _ARITHMETIC:
            return Value(_ARITHMETIC[node.kind](one, other), literal)
        if node.kind == "%" and pa.types.is_floating(one.type):
            raise query_error("The remainder of a division needs whole numbers")
        return Value(_DIVISIONS[node.kind](one, other, self.needed()), literal)

    def _negative(self, node: Node) -> Value:
        operand = self.value(node.children[0])
        if pa.types.is_null(operand.type):
            return operand
        if operand.type not in NUMBERS:
            raise query_error(f"Arithmetic with a {kind(operand.type)}")
        return Value(negative(operand.data), operand.literal)

    def _bits(self, node: Node) -> Value:
        left, right = (self._whole(child) for child in node.children)
        one, other = common_type(left, right)
        literal = left.literal and right.literal
        if node.kind in _SHIFTS:
            return Value(shifted(_SHIFTS[node.kind], one, other, self.needed()), literal)
        return Value(_BITS[node.kind](one, other), literal)

    def _inverted_bits(self, node: Node) -> Value:
        operand = self._whole(node.children[0])
        return Value(pc.bit_wise_not(operand.data), operand.literal)

    def _whole(self, node: Node) -> Value:
        value = self.value(node)
        if pa.types.is_null(value.type):
            return Value(value.data.cast(pa.int64()), literal=True)
        if not pa.types.is_integer(value.type):
            raise query_error("A bitwise operation needs whole numbers")
        return value

    # -- for functions ----------------------------------------------------------------------------------

    def arguments(self, nodes: Sequence[Node], count: int) -> list[Value]:
        """Return the values of a function's arguments."""
        _check_count(nodes, count)
        return [self.value(node) for node in nodes]

    def choose(self, nodes: Sequence[Node]) -> Value:
        """Return ``if(condition, then, else)``, which is null where the condition is."""
        _check_count(nodes, 3)
        condition = self._boolean(nodes[0])
        with self._only(pc.coalesce(condition, _FALSE)):
            then = self.value(nodes[1])
        with self._only(pc.invert(pc.coalesce(condition, _TRUE))):
            other = self.value(nodes[2])
        return self._chosen(condition, then, other)

    def first_not_null(self, nodes: Sequence[Node]) -> Value:
        """Return ``if_null(value, otherwise)`` or ``coalesce(…)``."""
        if not nodes:
            raise query_error("A function got no arguments")
        values: list[Value] = []
        with ExitStack() as before:
            for node in nodes:
                values.append(self.value(node))
                before.enter_context(self._only(pc.is_null(values[-1].data)))
        result = values.pop()
        for value in reversed(values):
            result = self._chosen(pc.is_valid(value.data), value, result)
        return result

    def joined(self, nodes: Sequence[Node]) -> Value:
        """Return the concatenation of strings."""
        if not nodes:
            raise query_error("A function got no arguments")
        parts = [string_of(self.value(node)) for node in nodes]
        check_size(self.rows, *parts)
        return Value(pc.binary_join_element_wise(*parts, b""))


def _check_count(nodes: Sequence[Node], count: int) -> None:
    if len(nodes) != count:
        raise query_error(f"A function got {len(nodes)} arguments instead of {count}")


def _has_null(data: Array) -> bool:
    return not data.is_valid if isinstance(data, pa.Scalar) else data.null_count > 0


_EVALUATORS: dict[str, Callable[[Expressions, Node], Value]] = {
    "literal": lambda _, node: node.value,
    "name": Expressions._named,
    "as": Expressions._aliased,
    "call": Expressions._called,
    "tuple": Expressions._tuple,
    "and": Expressions._and,
    "or": Expressions._or,
    "not": Expressions._not,
    "case": Expressions._case,
    **dict.fromkeys(_COMPARISONS, Expressions._comparison),
    "between": Expressions._between,
    "in": Expressions._in,
    "is null": Expressions._is_null,
    **dict.fromkeys(("like", "ilike"), Expressions._like),
    **dict.fromkeys((*_ARITHMETIC, *_DIVISIONS), Expressions._arithmetic),
    "negative": Expressions._negative,
    **dict.fromkeys((*_BITS, *_SHIFTS), Expressions._bits),
    "~": Expressions._inverted_bits,
    "||": lambda expressions, node: expressions.joined(node.children),
}
