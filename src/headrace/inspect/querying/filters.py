"""Filters of pyarrow as conditions of headrace.

DuckDB passes comparisons to a dataset as an expression of pyarrow, which has no methods to look inside. Its pickled
form has: an Arrow file whose schema metadata lists the nodes of the expression in depth-first order, and whose columns
are the literals. Nodes that this module does not know lead to fewer conditions, never to wrong ones, because the caller
also applies the whole expression to the rows.
"""

from __future__ import annotations

import ctypes
from collections import deque
from collections.abc import Iterator
from dataclasses import dataclass
from typing import Any, TypeAlias

import pyarrow as pa
import pyarrow.dataset as ds

from headrace.model.tables.conditions import Predicate

_OPERATORS = {"equal": "=", "not_equal": "!=", "less": "<", "less_equal": "<=", "greater": ">", "greater_equal": ">="}
_MIRRORED = {"=": "=", "!=": "!=", "<": ">", "<=": ">=", ">": "<", ">=": "<="}
_CONJUNCTIONS = ("and", "and_kleene")


@dataclass(frozen=True)
class _Field:
    name: str


@dataclass(frozen=True)
class _Literal:
    value: Any


@dataclass(frozen=True)
class _Call:
    function: str
    arguments: tuple[_Node, ...]
    options: Any = None


_Node: TypeAlias = "_Field | _Literal | _Call | None"


def conditions(expression: ds.Expression | None) -> tuple[Predicate, ...]:
    """Return conditions that each row with a true expression satisfies; they need not imply the expression."""
    return () if expression is None else tuple(_conjunction(_tree(expression)))


def columns_of(expression: ds.Expression | None) -> set[str]:
    """Return the names of the columns in an expression."""
    return set() if expression is None else set(_fields(_tree(expression)))


def _conjunction(node: _Node) -> Iterator[Predicate]:
    if not isinstance(node, _Call):
        return
    if node.function in _CONJUNCTIONS:
        for argument in node.arguments:
            yield from _conjunction(argument)
        return
    match node:
        case _Call("if_else", (_Call("is_valid"), condition, _Literal(None))):
            # Null where the column is null: DuckDB's form of IN.
            yield from _conjunction(condition)
        case _Call("is_valid", (_Field(name),)):
            yield Predicate(name, "is not null")
        case _Call("is_null", (_Field(name),)):
            yield Predicate(name, "is null")
        case _Call("is_in", (_Field(name),), {"value_set": list(values)}):
            yield Predicate(name, "in", tuple(values))
        case _Call(function, (_Field(name), _Literal(value))) if function in _OPERATORS:
            yield Predicate(name, _OPERATORS[function], value)
        case _Call(function, (_Literal(value), _Field(name))) if function in _OPERATORS:
            yield Predicate(name, _MIRRORED[_OPERATORS[function]], value)


def _fields(node: _Node) -> Iterator[str]:
    if isinstance(node, _Field):
        yield node.name
    elif isinstance(node, _Call):
        for argument in node.arguments:
            yield from _fields(argument)


def _tree(expression: ds.Expression) -> _Node:
    (serialized,) = expression.__reduce__()[1]
    with pa.ipc.open_file(serialized) as reader:
        literals = reader.get_batch(0)
    return _node(deque(_metadata(literals.schema)), literals)


def _node(tokens: deque[tuple[str, str]], literals: pa.RecordBatch) -> _Node:
    """Return the node at the first token, and remove its tokens."""
    kind, value = tokens.popleft()
    match kind:
        case "literal":
            return _Literal(literals.column(int(value))[0].as_py())
        case "field_ref":
            return _Field(value)
        case "nested_field_ref":
            # A field inside a struct. Stores have no conditions on it, but its column must be read.
            return _Call("field", tuple(_node(tokens, literals) for _ in range(int(value)))[:1])
        case "call":
            arguments: list[_Node] = []
            options = None
            while tokens[0][0] != "end":
                if tokens[0][0] == "options":
                    options = literals.column(int(tokens.popleft()[1]))[0].as_py()
                else:
                    arguments.append(_node(tokens, literals))
            tokens.popleft()
            return _Call(value, tuple(arguments), options)
    return None


class _ArrowSchema(ctypes.Structure):
    """The beginning of the struct ``ArrowSchema`` of Arrow's C data interface."""

    _fields_ = (("format", ctypes.c_char_p), ("name", ctypes.c_char_p), ("metadata", ctypes.c_void_p))


def _metadata(schema: pa.Schema) -> Iterator[tuple[str, str]]:
    """Yield the metadata of a schema in order. `pyarrow.Schema.metadata` has each key once only."""
    capsule = schema.__arrow_c_schema__()
    pointer = ctypes.pythonapi.PyCapsule_GetPointer
    pointer.restype, pointer.argtypes = ctypes.c_void_p, [ctypes.py_object, ctypes.c_char_p]
    at = _ArrowSchema.from_address(pointer(capsule, b"arrow_schema")).metadata or 0
    pairs = _int32(at) if at else 0
    at += 4
    for _ in range(pairs):
        texts = []
        for _ in range(2):
            texts.append(ctypes.string_at(at + 4, _int32(at)).decode())
            at += 4 + _int32(at)
        yield texts[0], texts[1]
    # The capsule owns the memory until here.
    del capsule


def _int32(address: int) -> int:
    return ctypes.c_int32.from_address(address).value
