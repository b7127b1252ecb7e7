"""The parser of the columns of new tables and queues."""

from __future__ import annotations

import itertools
from collections.abc import Sequence

from headrace.errors import SchemaError
from headrace.sql_text.cursor import Cursor
from headrace.sql_text.lexer import Token, TokenKind

_CLOSING = {"<": ">", "(": ")"}


def has_key(definitions: Sequence[Token]) -> bool:
    """Return whether the definitions of columns have a ``PRIMARY KEY``."""
    return any(one.is_word("PRIMARY") and other.is_word("KEY") for one, other in itertools.pairwise(definitions))


def columns_and_key(cursor: Cursor) -> tuple[dict[str, str], tuple[str, ...]]:
    """Read ``(name type [NOT NULL] [PRIMARY KEY], …, [PRIMARY KEY (name, …)])``.

    Returns:
        The types by name, for `headrace.model.tables.schema.parse_columns`; and the names of the key, empty without
        one.
    """
    cursor.need_symbol("(")
    columns: dict[str, str] = {}
    primary_key: tuple[str, ...] = ()
    while True:
        token = cursor.peek()
        found: tuple[str, ...] = ()
        if cursor.take_words("PRIMARY", "KEY"):
            found = cursor.need_names("a column of the key")
        else:
            name = str(cursor.need_simple_name("a column"))
            if name in columns and token is not None:
                raise cursor.error("the column occurs twice", token, received=name)
            columns[name] = column_type(cursor)
            if cursor.take_words("PRIMARY", "KEY"):
                found = (name,)
        if found and primary_key and token is not None:
            raise cursor.error("there are two primary keys", token, valid="one PRIMARY KEY (name, …)")
        primary_key = primary_key or found
        if cursor.take_symbol(")"):
            return columns, primary_key
        if not cursor.take_symbol(","):
            raise cursor.expected("NOT NULL, a comma or )")


def column_type(cursor: Cursor) -> str:
    """Read and check a type, which can be nested."""
    from headrace.model.types import parse_type

    first = cursor.peek()
    if first is None or first.kind is not TokenKind.WORD:
        raise cursor.expected("the type of the column")
    tokens = [cursor.take()]
    while (token := cursor.peek()) is not None:
        if token.text in _CLOSING:
            tokens += _bracketed(cursor)
        elif first.is_word("INTERVAL") and token.kind is TokenKind.WORD and not token.is_word("NOT"):
            tokens.append(cursor.take())
        else:
            break
    text = _text(tokens)
    try:
        parse_type(text)
    except SchemaError as error:
        raise cursor.error(error.problem, first, received=text, valid=error.valid) from None
    return f"{text} not null" if cursor.take_words("NOT", "NULL") else text


def _bracketed(cursor: Cursor) -> list[Token]:
    """Return the tokens from an opening bracket to its closing bracket, and move past them."""
    opening = cursor.take()
    tokens, open_brackets = [opening], [_CLOSING[opening.text]]
    while open_brackets:
        if cursor.peek() is None:
            raise cursor.error("this bracket is not closed", opening)
        token = cursor.take()
        tokens.append(token)
        if token.text in _CLOSING:
            open_brackets.append(_CLOSING[token.text])
        elif token.text == open_brackets[-1]:
            open_brackets.pop()
    return tokens


def _text(tokens: list[Token]) -> str:
    """Return the text of tokens, without the comments between them."""
    pieces = [tokens[0].text]
    for before, token in itertools.pairwise(tokens):
        pieces.append(token.text if token.start == before.end else f" {token.text}")
    return "".join(pieces)
