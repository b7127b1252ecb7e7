"""The parser of the statements about materialized views."""

from __future__ import annotations

from functools import partial

from headrace.sql_text.cursor import Cursor
from headrace.sql_text.script import Statement
from headrace.streaming_sql.language import statements as st
from headrace.streaming_sql.language.forms import Reader, dropped, named, plain

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


def _create(cursor: Cursor, *, replace: bool = False) -> st.CreateView:
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


def _explain(cursor: Cursor, *, replace: bool = False) -> Statement:
    return st.ExplainView(part=cursor.whole, view=_create(cursor, replace=replace))


def _refresh(cursor: Cursor) -> Statement:
    raise cursor.refused(
        "a materialized view needs no REFRESH: it changes with each batch of its stream",
        cursor.whole.start,
        remedy="SHOW MATERIALIZED VIEWS shows its lag; START STREAM starts its stream if that has ended",
    )


READERS: dict[str, Reader] = {
    "CREATE MATERIALIZED VIEW": _create,
    "CREATE OR REPLACE MATERIALIZED VIEW": partial(_create, replace=True),
    "CREATE OR REFRESH MATERIALIZED VIEW": partial(_create, replace=True),
    "EXPLAIN CREATE MATERIALIZED VIEW": _explain,
    "EXPLAIN CREATE OR REPLACE MATERIALIZED VIEW": partial(_explain, replace=True),
    "EXPLAIN CREATE OR REFRESH MATERIALIZED VIEW": partial(_explain, replace=True),
    "SHOW MATERIALIZED VIEWS": plain(st.ShowViews),
    "DESCRIBE MATERIALIZED VIEW": named(st.DescribeView, "the view"),
    "DESC MATERIALIZED VIEW": named(st.DescribeView, "the view"),
    "DROP MATERIALIZED VIEW": dropped(st.DropView, "the view"),
    "REFRESH MATERIALIZED VIEW": _refresh,
}
