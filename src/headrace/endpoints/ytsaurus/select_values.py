"""Expressions of the query language over Arrow columns.

Values are of the language's own types: int64, uint64, double, boolean, string, or something that can only be selected.
They do not turn into each other by themselves, only a literal fits where its value does. Unlike in SQL, null is a value
in comparisons: it equals itself and is less than everything else; with ``canonical_null`` comparisons are SQL's.
"""

from __future__ import annotations

from collections.abc import Callable, Mapping, Sequence
from typing import Any, NamedTuple, TypeAlias

import pyarrow as pa
import pyarrow.compute as pc
from sqlglot import exp

from headrace.endpoints.ytsaurus.select_grammar import FUNCTION_PREFIX, Node, Unsigned, wrong

Array: TypeAlias = "pa.Array | pa.Scalar"

_NAMES = {pa.int64(): "int64", pa.uint64(): "uint64", pa.float64(): "double", pa.bool_(): "boolean"}
_NUMBERS = (pa.int64(), pa.uint64(), pa.float64())
_COMPARISONS: dict[type[Node], str] = {
    exp.EQ: "equal",
    exp.NEQ: "not_equal",
    exp.LT: "less",
    exp.LTE: "less_equal",
    exp.GT: "greater",
    exp.GTE: "greater_equal",
}
_ARITHMETIC: dict[type[Node], str] = {exp.Add: "add", exp.Sub: "subtract", exp.Mul: "multiply", exp.Div: "divide"}
_BITS: dict[type[Node], str] = {
    exp.BitwiseAnd: "bit_wise_and",
    exp.BitwiseOr: "bit_wise_or",
    exp.BitwiseXor: "bit_wise_xor",
    exp.BitwiseLeftShift: "shift_left",
    exp.BitwiseRightShift: "shift_right",
}


class Value(NamedTuple):
    """A column, or one value for all rows; ``literal`` if its type may follow that of its neighbour."""

    data: Array
    literal: bool = False

    @property
    def type(self) -> pa.DataType:
        return self.data.type


class Expressions:
    """Evaluates expressions over some rows.

    Args:
        columns: the columns by name, already in the language's types.
        rows: how many rows there are.
        literals: the values of the parameters in the tree.
        computed: the values of expressions that are known already, by their SQL: groups and aggregates.
        canonical_null: comparisons with null are null.
    """

    def __init__(
        self,
        columns: Mapping[str, pa.Array],
        rows: int,
        literals: Mapping[str, Any],
        *,
        computed: Mapping[str, Value] | None = None,
        canonical_null: bool = False,
    ) -> None:
        self._columns = columns
        self.rows = rows
        self._literals = literals
        self._computed = computed or {}
        self._canonical_null = canonical_null

    def column(self, node: Node) -> pa.Array:
        """Return an expression's value for every row."""
        data = self.value(node).data
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
            YtError: types that do not go together, an unknown column or function, a division by zero.
        """
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
        if isinstance(node, exp.Placeholder):
            return literal(self._literals[node.name])
        if isinstance(node, exp.Column):
            if node.name not in self._columns:
                raise wrong(f"Undefined reference {node.name!r}", valid=", ".join(self._columns))
            return Value(self._columns[node.name])
        if type(node) in _COMPARISONS:
            return Value(self._compared(type(node), node.this, node.expression))
        if type(node) in _ARITHMETIC or isinstance(node, exp.Mod):
            return self._arithmetic(node)
        if type(node) in _BITS:
            return self._bits(node)
        if isinstance(node, exp.Between):
            return self._between(node)
        if isinstance(node, exp.In):
            return self._in(node)
        if isinstance(node, exp.And | exp.Or):
            joined = pc.and_kleene if isinstance(node, exp.And) else pc.or_kleene
            return Value(joined(self._boolean(node.this), self._boolean(node.expression)))
        if isinstance(node, exp.Not):
            return Value(pc.invert(self._boolean(node.this)))
        if isinstance(node, exp.Neg):
            operand = self.value(node.this)
            negative = pc.negate_checked(operand.data.cast(pa.int64()) if operand.literal else operand.data)
            return Value(negative, operand.literal)
        if isinstance(node, exp.Is):
            return Value(pc.is_null(self.value(node.this).data))
        if isinstance(node, exp.DPipe):
            return Value(pc.binary_join_element_wise(self._string(node.this), self._string(node.expression), ""))
        if isinstance(node, exp.Like | exp.ILike):
            return self._like(node)
        if isinstance(node, exp.Case):
            return self._case(node)
        if isinstance(node, exp.Anonymous):
            name = str(node.this).removeprefix(FUNCTION_PREFIX).lower()
            if name not in FUNCTIONS:
                raise wrong(f"Undefined function {name!r}", valid=", ".join(sorted(FUNCTIONS)))
            return FUNCTIONS[name](self, node.expressions)
        raise wrong("The query has an expression that is not supported here", source=shown(node))

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

    def _between(self, node: Node) -> Value:
        operand = elements(node.this)

        def side(operator: type[Node], bound: Node) -> Array:
            # A shorter tuple bounds only its own columns.
            parts = elements(bound)
            return self._compared_tuples(operator, operand[: len(parts)], parts[: len(operand)])

        return Value(pc.and_kleene(side(exp.GTE, node.args["low"]), side(exp.LTE, node.args["high"])))

    def _in(self, node: Node) -> Value:
        if node.args.get("query") is not None:
            raise wrong("The query has a part that is not supported here: a query inside of IN")
        if not node.expressions:
            raise wrong("Error while parsing query: IN needs a value", source=shown(node))
        operand = elements(node.this)
        if len(operand) == 1 and all(isinstance(each, exp.Placeholder) for each in node.expressions):
            first = self.value(operand[0])
            found = [alike(first, literal(self._literals[each.name]), node)[1] for each in node.expressions]
            data = alike(first, literal(self._literals[node.expressions[0].name]), node)[0]
            return Value(pc.is_in(data, pa.array([each.as_py() for each in found], data.type)))
        result: Array = pa.scalar(False)
        for each in node.expressions:
            result = pc.or_kleene(result, self._compared(exp.EQ, node.this, each))
        return Value(result)

    # -- computing --------------------------------------------------------------------------------------

    def _arithmetic(self, node: Node) -> Value:
        left, right = self.value(node.this), self.value(node.expression)
        one, other = alike(left, right, node)
        if one.type not in _NUMBERS and not pa.types.is_null(one.type):
            raise wrong(f"Arithmetic with a {kind(one.type)}", source=shown(node))
        both = left.literal and right.literal
        if isinstance(node, exp.Mod):
            if pa.types.is_floating(one.type):
                raise wrong("The remainder of a division needs whole numbers", source=shown(node))
            return Value(pc.subtract(one, pc.multiply(pc.divide(one, other), other)), both)
        return Value(pc.call_function(_ARITHMETIC[type(node)], [one, other]), both)

    def _bits(self, node: Node) -> Value:
        left, right = self.value(node.this), self.value(node.expression)
        one, other = alike(left, right, node)
        if not pa.types.is_integer(one.type):
            raise wrong("Bits need whole numbers", source=shown(node))
        return Value(pc.call_function(_BITS[type(node)], [one, other]), left.literal and right.literal)

    def _boolean(self, node: Node) -> Array:
        data = self.value(node).data
        if pa.types.is_null(data.type):
            return data.cast(pa.bool_())
        if data.type != pa.bool_():
            raise wrong(f"Expected a boolean, got {kind(data.type)}", source=shown(node))
        return data

    def _string(self, node: Node) -> Array:
        data = self.value(node).data
        if not is_string(data.type):
            raise wrong(f"Expected a string, got {kind(data.type)}", source=shown(node))
        return data

    def _like(self, node: Node) -> Value:
        pattern = self.value(node.expression).data
        if not isinstance(pattern, pa.Scalar) or not pattern.is_valid:
            raise wrong("LIKE needs a literal", source=shown(node))
        ignore_case = isinstance(node, exp.ILike)
        return Value(pc.match_like(self._string(node.this), pattern.as_py(), ignore_case=ignore_case))

    def _case(self, node: Node) -> Value:
        default = node.args.get("default")
        result = literal(None) if default is None else self.value(default)
        for branch in reversed(node.args["ifs"]):
            if node.this is None:
                condition = self._boolean(branch.this)
            else:
                condition = self._compared_one(exp.EQ, node.this, branch.this)
            chosen, other = alike(self.value(branch.args["true"]), result, node)
            result = Value(pc.if_else(condition, chosen, other))
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
        chosen, other = alike(self.value(nodes[1]), self.value(nodes[2]), nodes[0])
        return Value(pc.if_else(self._boolean(nodes[0]), chosen, other))

    def first_not_null(self, nodes: Sequence[Node]) -> Value:
        """``if_null(value, otherwise)`` and ``coalesce(…)``."""
        if not nodes:
            raise wrong("A function got no arguments")
        result = self.value(nodes[-1])
        for node in reversed(nodes[:-1]):
            one, other = alike(self.value(node), result, node)
            result = Value(pc.if_else(pc.is_valid(one), one, other))
        return result


def literal(value: Any) -> Value:
    """Return a value that stands in a query, or was given for a placeholder."""
    if isinstance(value, bytes):
        try:
            value = value.decode()
        except UnicodeDecodeError:
            raise wrong("A placeholder's string is not UTF-8") from None
    if isinstance(value, Unsigned):
        return Value(pa.scalar(int(value), pa.uint64()))
    if type(value).__name__ == "YsonBoolean":
        return Value(pa.scalar(bool(value)))
    if isinstance(value, bool):
        return Value(pa.scalar(value))
    if isinstance(value, int):
        number = int(value)
        if not -(1 << 63) <= number < 1 << 64:
            raise wrong(f"The number {number} is no int64 and no uint64")
        return Value(pa.scalar(number, pa.int64() if number < 1 << 63 else pa.uint64()), literal=True)
    if isinstance(value, float):
        return Value(pa.scalar(float(value)))
    if isinstance(value, str):
        return Value(pa.scalar(str(value)))
    if value is None or type(value).__name__ == "YsonEntity":
        return Value(pa.scalar(None), literal=True)
    raise wrong(f"A query cannot have a value of type {type(value).__name__}")


def alike(left: Value, right: Value, node: Node) -> tuple[Array, Array]:
    """Return two values in one type.

    Raises:
        YtError: their types differ, and none is a literal that fits the other's.
    """
    if left.type == right.type:
        return left.data, right.data
    if pa.types.is_null(left.type):
        return left.data.cast(right.type), right.data
    if pa.types.is_null(right.type):
        return left.data, right.data.cast(left.type)
    if is_string(left.type) and is_string(right.type):
        return left.data.cast(pa.binary()), right.data.cast(pa.binary())
    numbers = left.type in _NUMBERS and right.type in _NUMBERS
    if right.literal and numbers and (not left.literal or left.type != pa.int64()):
        return left.data, _fitted(right, left.type, node)
    if left.literal and numbers:
        return _fitted(left, right.type, node), right.data
    raise wrong(f"Type mismatch in expression: {kind(left.type)} and {kind(right.type)}", source=shown(node))


def _fitted(value: Value, wanted: pa.DataType, node: Node) -> Array:
    try:
        return value.data.cast(wanted)
    except pa.ArrowInvalid:
        raise wrong(f"The literal is no {kind(wanted)}", source=shown(node)) from None


def elements(node: Node) -> list[Node]:
    """Return the parts of a tuple; anything else is a tuple of one."""
    if isinstance(node, exp.Paren):
        return elements(node.this)
    return list(node.expressions) if isinstance(node, exp.Tuple) else [node]


def is_string(data_type: pa.DataType) -> bool:
    """Tell whether values of a type are strings or bytes."""
    return bool(pa.types.is_string(data_type) or pa.types.is_binary(data_type))


def kind(data_type: pa.DataType) -> str:
    """Return the language's name of a type."""
    return "string" if is_string(data_type) else _NAMES.get(data_type, "any")


def shown(node: Node) -> str:
    """Return an expression as text, for messages; literals stand as parameters."""
    return node.sql()[:200].replace(FUNCTION_PREFIX, "")


def native(column: pa.Array, yt_type: str) -> pa.Array:
    """Return a column in the language's types.

    Args:
        yt_type: the name of its YTsaurus type; only what is none of the language's types stays as it is.
    """
    if yt_type.startswith("uint"):
        return column.cast(pa.uint64())
    if pa.types.is_binary(column.type) and yt_type not in ("string", "uuid"):
        # YSON is no string, though it is carried as bytes.
        return column.cast(pa.large_binary())
    if pa.types.is_integer(column.type):
        return column.cast(pa.int64())
    if pa.types.is_floating(column.type):
        return column.cast(pa.float64())
    if pa.types.is_date(column.type):
        return column.cast(pa.int32()).cast(pa.int64() if yt_type.endswith("32") else pa.uint64())
    if pa.types.is_timestamp(column.type):
        return column.cast(pa.int64()).cast(pa.int64() if yt_type.endswith("64") else pa.uint64())
    return column


# -- functions --------------------------------------------------------------------------------------------


def _cast(wanted: pa.DataType) -> Callable[[Expressions, Sequence[Node]], Value]:
    def run(expressions: Expressions, nodes: Sequence[Node]) -> Value:
        (value,) = expressions.arguments(nodes, 1)
        if value.type not in _NUMBERS and not pa.types.is_null(value.type):
            raise wrong(f"A {kind(value.type)} is no number", source=shown(nodes[0]))
        # Whole numbers wrap around, and fractions are cut off, as in C.
        return Value(value.data.cast(wanted, safe=False))

    return run


def _call(name: str, count: int, **options: Any) -> Callable[[Expressions, Sequence[Node]], Value]:
    def run(expressions: Expressions, nodes: Sequence[Node]) -> Value:
        values = expressions.arguments(nodes, count)
        return Value(getattr(pc, name)(*(value.data for value in values), **options))

    return run


def _starts_with(expressions: Expressions, nodes: Sequence[Node]) -> Value:
    prefix, text = expressions.arguments(nodes, 2)
    return Value(pc.starts_with(text.data, _constant(prefix)))


def _contains(expressions: Expressions, nodes: Sequence[Node]) -> Value:
    part, text = expressions.arguments(nodes, 2)
    return Value(pc.match_substring(text.data, _constant(part)))


def _length(expressions: Expressions, nodes: Sequence[Node]) -> Value:
    (text,) = expressions.arguments(nodes, 1)
    return Value(pc.binary_length(text.data).cast(pa.int64()))


def _concat(expressions: Expressions, nodes: Sequence[Node]) -> Value:
    texts = [value.data for value in expressions.arguments(nodes, len(nodes))]
    return Value(pc.binary_join_element_wise(*texts, ""))


def _constant(value: Value) -> Any:
    if not isinstance(value.data, pa.Scalar):
        raise wrong("The first argument of this function must be a literal")
    return value.data.as_py()


def _floor(seconds: int) -> Callable[[Expressions, Sequence[Node]], Value]:
    def run(expressions: Expressions, nodes: Sequence[Node]) -> Value:
        (value,) = expressions.arguments(nodes, 1)
        times = value.data.cast(pa.int64())
        step = pa.scalar(seconds, pa.int64())
        return Value(pc.multiply(pc.divide(times, step), step))

    return run


FUNCTIONS: dict[str, Callable[[Expressions, Sequence[Node]], Value]] = {
    "int64": _cast(pa.int64()),
    "uint64": _cast(pa.uint64()),
    "double": _cast(pa.float64()),
    "is_null": _call("is_null", 1),
    "is_nan": _call("is_nan", 1),
    "if_null": Expressions.first_not_null,
    "coalesce": Expressions.first_not_null,
    "if": Expressions.choose,
    "abs": _call("abs", 1),
    "floor": _call("floor", 1),
    "ceil": _call("ceil", 1),
    "lower": _call("utf8_lower", 1),
    "upper": _call("utf8_upper", 1),
    "length": _length,
    "is_prefix": _starts_with,
    "is_substr": _contains,
    "concat": _concat,
    "timestamp_floor_hour": _floor(3600),
    "timestamp_floor_day": _floor(86400),
}
"""The functions of the language by name; what aggregates is known to `headrace.endpoints.ytsaurus.select_rows`."""
