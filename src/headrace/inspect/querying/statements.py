"""A SELECT as DuckDB parses it: the tables that it names, and the number of rows that it needs of one.

DuckDB's function ``json_serialize_sql`` returns the tree of a statement as JSON.
"""

from __future__ import annotations

import json
from collections.abc import Iterator
from dataclasses import dataclass
from json.scanner import py_make_scanner  # type: ignore[attr-defined]
from typing import TYPE_CHECKING, Any

from headrace.errors import SqlError
from headrace.inspect.querying.names import Name

if TYPE_CHECKING:
    import duckdb

_PLAIN = ("STAR", "COLUMN_REF", "CONSTANT")
_REDUCING = ("where_clause", "group_expressions", "having", "sample", "qualify")


@dataclass(frozen=True)
class Select:
    """A SELECT.

    Attributes:
        tables: the names in FROM clauses, also in subqueries, without those that can only be a common table expression.
        maybe: those of ``tables`` that are also names of common table expressions.
        rows: the number of rows that the statement needs of its only table; None if it is unknown.
    """

    tables: tuple[Name, ...]
    maybe: frozenset[Name]
    rows: int | None


def parse(connection: duckdb.DuckDBPyConnection, sql: str, expected_rows: int | None) -> Select:
    """Return a statement.

    Args:
        expected_rows: the number of rows of the result that are read; None for all.

    Raises:
        SqlError: the text is not one SELECT.
    """
    try:
        sql.encode()
    except UnicodeEncodeError:
        raise SqlError("a statement must be valid Unicode", received=ascii(sql)) from None
    kinds = [statement.type.name for statement in connection.extract_statements(sql)]
    if kinds != ["SELECT"]:
        raise SqlError(
            "a query is one SELECT, and changes nothing",
            received=", ".join(kinds) or "no statement",
            valid="SELECT, WITH … SELECT, FROM …, VALUES, DESCRIBE, SUMMARIZE",
            remedy="`headrace sql` and `headrace run` run other statements",
        )
    ((text,),) = connection.execute("SELECT json_serialize_sql(?::VARCHAR)", [sql]).fetchall()
    tree = _decoded(text)
    if tree["error"]:
        raise SqlError(str(tree["error_message"]))
    (statement,) = tree["statements"]
    tables: dict[Name, None] = {}
    expressions: set[str] = set()
    for node in _nodes(statement):
        if node.get("type") == "BASE_TABLE":
            tables[_name(node)] = None
        elif node.get("type") == "SHOW_REF" and node.get("query") is None:
            raise SqlError(
                "a query shows no list of tables", remedy="use `headrace table list` and `headrace queue list`"
            )
        expressions |= {entry["key"].lower() for entry in node.get("cte_map", {}).get("map", ())}
    maybe = frozenset(name for name in tables if name.schema is None and name.name.lower() in expressions)
    return Select(tuple(tables), maybe, _rows_needed(statement["node"], expected_rows))


def _decoded(text: str) -> Any:
    """Return the value of a JSON text of many levels."""
    try:
        return json.loads(text)
    except RecursionError:
        # C code has a limit of its own in Python 3.12, which a program cannot set. This decoder is in Python.
        decoder = json.JSONDecoder()
        decoder.scan_once = py_make_scanner(decoder)  # type: ignore[attr-defined]
        return decoder.decode(text)


def _nodes(tree: Any) -> Iterator[dict[str, Any]]:
    """Yield all objects in a JSON value."""
    pending = [tree]
    while pending:
        value = pending.pop()
        if isinstance(value, dict):
            yield value
            pending += value.values()
        elif isinstance(value, list):
            pending += value


def _name(table: dict[str, Any]) -> Name:
    schema, name = table["schema_name"], table["table_name"]
    if table["catalog_name"]:
        raise SqlError(
            "the name of a table has too many parts",
            received=".".join((table["catalog_name"], schema, name)),
            valid="table or schema.table",
            remedy="put a name with dots or slashes into double quotes",
        )
    return Name(schema or None, name)


def _rows_needed(node: dict[str, Any], expected: int | None) -> int | None:
    """Return the number of rows that ``SELECT columns FROM table [LIMIT n [OFFSET m]]`` needs; None for others."""
    plain = (
        node["type"] == "SELECT_NODE"
        and node["from_table"]["type"] == "BASE_TABLE"
        and not node["from_table"]["sample"]
        and all(each["class"] in _PLAIN and not each.get("replace_list") for each in node["select_list"])
        and not any(node[part] for part in _REDUCING)
        and not node["cte_map"]["map"]
    )
    if not plain:
        return None
    rows = expected
    for modifier in node["modifiers"]:
        limit, offset = _constant(modifier.get("limit")), _constant(modifier.get("offset") or {"literal": {"text": 0}})
        if modifier.get("limit_type", "ROW_COUNT") != "ROW_COUNT" or limit is None or offset is None:
            return None
        rows = offset + (limit if rows is None else min(rows, limit))
    return rows


def _constant(expression: dict[str, Any] | None) -> int | None:
    """Return the value of a literal; None for other expressions."""
    text = str(((expression or {}).get("literal") or {}).get("text", ""))
    return int(text) if text.isdecimal() else None
