"""The parser of the statements about materialized views."""

from __future__ import annotations

from collections.abc import Callable

from headrace.sql_text.cursor import Cursor
from headrace.sql_text.script import Statement
from headrace.streaming_sql.language import statements as st

# The clauses of other systems, which stand where OPTIONS does.
_CLAUSES = {
    "PARTITIONED": "leave it out; a partitioned table of a lake is the target of CREATE STREAM … INSERT INTO",
    "CLUSTER": "leave it out: a table is in the order of its key",
    "CLUSTERED": "leave it out: a table is in the order of its key",
    "TBLPROPERTIES": "write OPTIONS (name = 'value', …)",
    "SCHEDULE": "leave it out: a view is fresh after each change; OPTIONS (triggerIntervalMs = 60000) makes it rarer",
    "TRIGGER": "leave it out: a view is fresh after each change; OPTIONS (triggerIntervalMs = 60000) makes it rarer",
    "REFRESH": "leave it out: a view is fresh after each change",
    "COMMENT": "write it as a comment of SQL: -- text",
}


def _create(cursor: Cursor, *, replace: bool = False) -> Statement:
    if_not_exists = not replace and cursor.take_words("IF", "NOT", "EXISTS")
    name = cursor.need_simple_name("the view")
    token = cursor.peek()
    if token is not None and token.is_symbol("("):
        raise cursor.refused(
            "a materialized view has no list of columns",
            token.start,
            remedy="name the columns in the query (AS), and the key in OPTIONS (primaryKey = 'a, b')",
        )
    options = cursor.options()
    token = cursor.peek()
    if token is not None and token.is_word(*_CLAUSES):
        raise cursor.refused(
            f"a materialized view cannot have the clause {token.text.upper()}",
            token.start,
            remedy=_CLAUSES[token.text.upper()],
        )
    cursor.need_words("AS")
    return st.CreateView(
        part=cursor.whole,
        name=name,
        if_not_exists=if_not_exists,
        replace=replace,
        options=options,
        query=cursor.query(),
    )


def _replace(cursor: Cursor) -> Statement:
    return _create(cursor, replace=True)


def _show(cursor: Cursor) -> Statement:
    return st.ShowViews(part=cursor.whole)


def _describe(cursor: Cursor) -> Statement:
    return st.DescribeView(part=cursor.whole, name=cursor.need_simple_name("the view"))


def _drop(cursor: Cursor) -> Statement:
    if_exists = cursor.take_words("IF", "EXISTS")
    return st.DropView(part=cursor.whole, name=cursor.need_simple_name("the view"), if_exists=if_exists)


def _refresh(cursor: Cursor) -> Statement:
    raise cursor.refused(
        "a materialized view needs no REFRESH: it changes with each batch of its stream",
        cursor.whole.start,
        remedy="SHOW MATERIALIZED VIEWS shows its lag; START STREAM starts its stream if that has ended",
    )


READERS: dict[str, Callable[[Cursor], Statement]] = {
    "CREATE MATERIALIZED VIEW": _create,
    "CREATE OR REPLACE MATERIALIZED VIEW": _replace,
    "CREATE OR REFRESH MATERIALIZED VIEW": _replace,
    "SHOW MATERIALIZED VIEWS": _show,
    "DESCRIBE MATERIALIZED VIEW": _describe,
    "DESC MATERIALIZED VIEW": _describe,
    "DROP MATERIALIZED VIEW": _drop,
    "REFRESH MATERIALIZED VIEW": _refresh,
}
