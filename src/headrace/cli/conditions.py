"""Keys and conditions on the command line: texts to values of a column's type."""

from __future__ import annotations

import binascii
import re
from collections.abc import Sequence
from typing import Any

import pyarrow as pa

from headrace.cli.row_files import converted
from headrace.errors import OptionError, SchemaError
from headrace.model.tables.conditions import OPERATORS, Predicate
from headrace.model.tables.schema import TableSchema
from headrace.model.types import type_name


def parse_value(text: str, data_type: pa.DataType, column: str) -> Any:
    """Convert a text of the command line to a Python value of a column's type.

    Raises:
        SchemaError: the text is not a value of that type.
    """
    try:
        if pa.types.is_string(data_type):
            return text
        return converted(pa.array([text]), data_type)[0].as_py()
    except (pa.ArrowException, binascii.Error, UnicodeEncodeError) as error:
        # An argument that is not UTF-8 has surrogates.
        example = " such as 2026-01-31T12:00:00Z" if pa.types.is_timestamp(data_type) else ""
        raise SchemaError(
            f"the value for column {column!r} does not fit its type",
            received=repr(text),
            valid=type_name(data_type) + example,
        ) from error


def parse_key(pairs: dict[str, str], schema: TableSchema) -> dict[str, Any]:
    """Convert texts by column name to a key, or to a prefix of one."""
    for name in pairs:
        if name not in schema.primary_key:
            raise SchemaError("not a key column", received=repr(name), valid=schema.primary_key)
    return {name: parse_value(text, schema.column(name).type, name) for name, text in pairs.items()}


def parse_values(pairs: dict[str, str], nulls: Sequence[str], schema: TableSchema) -> dict[str, Any]:
    """Convert texts by column name to the values of columns that are not in the key.

    Args:
        nulls: the names of columns whose value is null.
    """
    attributes = [name for name in schema.names if name not in schema.primary_key]
    for name in (*pairs, *nulls):
        if name not in attributes:
            raise SchemaError("not a column whose value can be set", received=repr(name), valid=attributes)
    if both := sorted(set(pairs) & set(nulls)):
        raise OptionError("a column has two new values", received=both)
    found = {name: parse_value(text, schema.column(name).type, name) for name, text in pairs.items()}
    return found | dict.fromkeys(nulls)


def parse_condition(text: str, schema: TableSchema) -> Predicate:
    """Parse a condition such as ``price > 10``, ``UserId in u1,u2`` or ``price is null``.

    A text can be in single quotes, with inner quotes doubled. It must be quoted if it begins or ends with a space or a
    quote, or contains a comma after ``in``.

    Raises:
        OptionError: the text is not a condition on a column of the table.
        SchemaError: a value does not fit the column's type.
    """
    stripped = text.strip()
    # A column name can be any text, so the longest name that matches is used.
    for name in sorted(schema.names, key=len, reverse=True):
        match = _OPERATOR.fullmatch(stripped[len(name) :]) if stripped.startswith(name) else None
        if match is None:
            continue
        operator = {"==": "=", "<>": "!="}.get(match[1], " ".join(match[1].lower().split()))
        data_type = schema.column(name).type
        if operator in ("is null", "is not null"):
            if match[2]:
                continue
            return Predicate(name, operator)
        if operator == "in":
            parts = [parse_value(_unquoted(part), data_type, name) for part in _ITEM.findall(match[2])]
            return Predicate(name, operator, tuple(parts))
        return Predicate(name, operator, parse_value(_unquoted(match[2]), data_type, name))
    raise OptionError(
        "cannot read the condition",
        received=repr(text),
        valid=f"COLUMN OPERATOR VALUE, with a column of {', '.join(schema.names)} and an operator of "
        + ", ".join(OPERATORS),
    )


_OPERATOR = re.compile(
    r"\s*(<=|>=|==|!=|<>|=|<|>|(?<=\s)(?:is\s+not\s+null|is\s+null|in|starts\s+with)(?!\w))\s*(.*)",
    re.IGNORECASE | re.DOTALL,
)
_ITEM = re.compile(r"\s*('(?:[^']|'')*'|[^,]+)\s*(?:,|$)")


def _unquoted(text: str) -> str:
    text = text.strip()
    if len(text) >= 2 and text[0] == text[-1] == "'":
        return text[1:-1].replace("''", "'")
    return text
