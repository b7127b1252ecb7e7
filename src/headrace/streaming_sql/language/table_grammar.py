"""The parser of statements that change tables and their rows, and of statements that headrace refuses by name.

They belong to headrace if their table does, which only the catalog knows: other tables get them from Spark.
"""

from __future__ import annotations

import itertools
from collections.abc import Callable
from typing import TypeAlias

from headrace.errors import SqlError
from headrace.sql_text.cursor import Cursor
from headrace.sql_text.lexer import Token
from headrace.sql_text.script import Name, ScriptPart, Statement
from headrace.streaming_sql.language import statements as st
from headrace.streaming_sql.language.column_grammar import column_type, columns_and_key
from headrace.streaming_sql.language.forms import Reader, spark

_OPENING, _CLOSING = ("(", "["), (")", "]")


def _target(cursor: Cursor) -> Name | None:
    """Return the name of the table; None for other forms of Spark, such as ``IDENTIFIER(…)``."""
    following = cursor.peek(1)
    if not cursor.at_name() or (following is not None and following.is_symbol("(")):
        return None
    return cursor.need_name("the table")


_ReaderOfTable: TypeAlias = Callable[[Cursor, Name], Statement]


def _of_table(read: _ReaderOfTable) -> Reader:
    """Return the reader of a statement about a table, from what reads the part after the table."""

    def read_whole(cursor: Cursor) -> Statement:
        target = _target(cursor)
        return spark(cursor) if target is None else read(cursor, target)

    return read_whole


def _alone(kind: type[st.TableStatement]) -> _ReaderOfTable:
    """Return the reader of a statement that ends with its table: longer ones are Spark's."""
    return lambda cursor, target: kind(part=cursor.whole, target=target) if cursor.peek() is None else spark(cursor)


# -- rows ---------------------------------------------------------------------------------------------


def _update(cursor: Cursor, target: Name) -> Statement:
    alias = cursor.take_alias("SET")
    cursor.need_words("SET")
    values: list[tuple[Name, ScriptPart]] = []
    while True:
        column = cursor.need_name("a column")
        cursor.need_symbol("=")
        if cursor.at_words("DEFAULT"):
            raise cursor.expected("a value: columns have no DEFAULT, a column without a value is null")
        values.append((column, _until(cursor, "a value", lambda token: token.is_symbol(",") or token.is_word("WHERE"))))
        if not cursor.take_symbol(","):
            break
    return st.Update(part=cursor.whole, target=target, alias=alias, values=tuple(values), where=_where(cursor))


def _delete(cursor: Cursor, target: Name) -> Statement:
    alias = cursor.take_alias("WHERE")
    return st.Delete(part=cursor.whole, target=target, alias=alias, where=_where(cursor))


def _where(cursor: Cursor) -> ScriptPart | None:
    if not cursor.take_words("WHERE"):
        return None
    return _until(cursor, "a condition", lambda token: False)


def _until(cursor: Cursor, what: str, ends: Callable[[Token], bool]) -> ScriptPart:
    """Read an expression up to a token outside of parentheses, or to the end of the statement."""
    start, last, depth = cursor.start, None, 0
    while (token := cursor.peek()) is not None:
        if depth == 0 and ends(token):
            break
        if depth == 0 and token.is_word("FROM"):
            raise cursor.refused(
                "UPDATE has no FROM", token.start, remedy="write a subquery: SET a = (SELECT … FROM … WHERE …)"
            )
        depth += (token.text in _OPENING) - (token.text in _CLOSING)
        last = cursor.take()
    if last is None:
        raise cursor.expected(what)
    return cursor.part(start, last.end)


def _delete_without_from(cursor: Cursor) -> Statement:
    target = _target(cursor)
    name = "table" if target is None else target.part.text
    raise cursor.refused(
        "DELETE needs FROM before the table", cursor.whole.start, remedy=f"write DELETE FROM {name} WHERE …"
    )


def _upsert(cursor: Cursor) -> Statement:
    raise cursor.refused(
        "there is no such statement",
        cursor.whole.start,
        remedy="INSERT INTO a table with a primary key replaces the rows that have the same keys",
    )


def _merge(cursor: Cursor, target: Name) -> Statement:
    cursor.rest_or_end()
    return st.BatchMerge(part=cursor.whole, target=target)


# -- tables -------------------------------------------------------------------------------------------


def _alter(cursor: Cursor, target: Name) -> Statement:
    columns, if_not_exists, problem = None, False, None
    if cursor.take_words("ADD"):
        named = cursor.take_words("COLUMN") or cursor.take_words("COLUMNS")
        if_not_exists = cursor.take_words("IF", "NOT", "EXISTS")
        if named or cursor.at_symbol("("):
            try:
                columns = _new_columns(cursor)
                cursor.need_end()
            except SqlError as error:
                columns, problem = None, error
    cursor.rest_or_end()
    return st.AlterTable(
        part=cursor.whole, target=target, columns=columns, if_not_exists=if_not_exists, problem=problem
    )


def _new_columns(cursor: Cursor) -> dict[str, str]:
    columns: dict[str, str] = {}
    if cursor.at_symbol("("):
        start = cursor.start
        columns, key = columns_and_key(cursor)
        if key:
            raise cursor.refused("a column of the key cannot be added", start, valid="columns outside of the key")
        return columns
    while True:
        name = str(cursor.need_simple_name("a column"))
        columns[name] = column_type(cursor)
        if not cursor.take_symbol(","):
            return columns
        if cursor.take_words("ADD") and not cursor.take_words("COLUMN"):
            raise cursor.expected("COLUMN")


def _replace(cursor: Cursor) -> Statement:
    # Its columns can follow in parentheses.
    if not cursor.at_name() or cursor.at_words("IDENTIFIER"):
        return spark(cursor)
    target = cursor.need_name("the table")
    provider = next((after.name for word, after in itertools.pairwise(cursor.left()) if word.is_word("USING")), "")
    cursor.rest_or_end()
    return st.ReplaceTable(part=cursor.whole, target=target, provider=provider)


# -- refused ------------------------------------------------------------------------------------------


def _streaming_table(cursor: Cursor) -> Statement:
    raise cursor.refused(
        "a streaming table is written as a table and a stream into it",
        cursor.whole.start,
        remedy="CREATE TABLE t (…, PRIMARY KEY (…)) USING headrace OPTIONS (…); "
        "CREATE STREAM name INSERT INTO t SELECT …",
    )


READERS: dict[str, Reader] = {
    "UPDATE": _of_table(_update),
    "DELETE FROM": _of_table(_delete),
    "DELETE": _delete_without_from,
    "REPLACE INTO": _upsert,
    "UPSERT INTO": _upsert,
    "REPLACE TABLE": _replace,
    "CREATE OR REPLACE TABLE": _replace,
    "TRUNCATE TABLE": _of_table(_alone(st.Truncate)),
    "TRUNCATE": _of_table(_alone(st.Truncate)),
    "MERGE INTO": _of_table(_merge),
    "ALTER TABLE": _of_table(_alter),
    "SHOW CREATE TABLE": _of_table(_alone(st.ShowCreateTable)),
    "CREATE STREAMING TABLE": _streaming_table,
    "CREATE OR REFRESH STREAMING TABLE": _streaming_table,
}
