"""The readers of statements of common forms, and what they have in common."""

from __future__ import annotations

from collections.abc import Callable
from typing import TypeAlias

from headrace.sql_text.cursor import Cursor
from headrace.sql_text.script import Statement
from headrace.streaming_sql.language import statements as st

Reader: TypeAlias = Callable[[Cursor], Statement]
"""Reads a statement after its first words."""


def spark(cursor: Cursor) -> st.SparkStatement:
    """Leave the statement to Spark."""
    return st.SparkStatement(part=cursor.whole)


def plain(kind: type[Statement]) -> Reader:
    """Return the reader of a statement without further words."""
    return lambda cursor: kind(part=cursor.whole)


def named(kind: type[st.NamedStatement], what: str) -> Reader:
    """Return the reader of a statement that ends with the name of something; ``what`` is it, for messages."""
    return lambda cursor: kind(part=cursor.whole, name=cursor.need_simple_name(what))


def dropped(kind: type[st.DropStatement], what: str) -> Reader:
    """Return the reader of ``[IF EXISTS] name``."""
    return lambda cursor: kind(part=cursor.whole, if_exists=_exists(cursor), name=cursor.need_simple_name(what))


def dropped_in_store(kind: type[st.CascadingDrop], what: str) -> Reader:
    """Return the reader of ``[IF EXISTS] name [CASCADE]``, with a name inside a store."""

    def read(cursor: Cursor) -> Statement:
        if_exists, name = _exists(cursor), cursor.need_store_name(what)
        return kind(part=cursor.whole, if_exists=if_exists, name=name, cascade=cursor.take_words("CASCADE"))

    return read


def _exists(cursor: Cursor) -> bool:
    return cursor.take_words("IF", "EXISTS")
