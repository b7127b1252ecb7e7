"""The parser of the statements about queues, consumers and producers."""

from __future__ import annotations

import itertools
import re
from collections.abc import Callable

from headrace.errors import SchemaError
from headrace.streaming_sql.language import statements as st
from headrace.streaming_sql.language.cursor import Cursor
from headrace.streaming_sql.language.lexer import Token, TokenKind
from headrace.streaming_sql.providers import QUEUE_PROVIDERS

_CLOSING = {"<": ">", "(": ")"}
_WHOLE_NUMBER = re.compile("[1-9][0-9]{0,8}")


def _create_queue(cursor: Cursor) -> st.Statement:
    if_not_exists = cursor.take_words("IF", "NOT", "EXISTS")
    name = cursor.need_simple_name("the queue")
    columns = _columns(cursor)
    provider = QUEUE_PROVIDERS[0]
    if cursor.take_words("USING"):
        token = cursor.peek()
        provider = str(cursor.need_simple_name("the provider"))
        if provider.lower() not in QUEUE_PROVIDERS and token is not None:
            raise cursor.error(
                "this provider has no queues", token, received=provider, valid=" or ".join(QUEUE_PROVIDERS)
            )
    partitions = _whole_number(cursor, "the number of partitions") if cursor.take_words("PARTITIONS") else None
    return st.CreateQueue(
        part=cursor.whole,
        name=name,
        if_not_exists=if_not_exists,
        columns=columns,
        provider=provider,
        partitions=partitions,
        options=cursor.options(),
    )


def _whole_number(cursor: Cursor, what: str) -> int:
    token = cursor.peek()
    if token is None or not _WHOLE_NUMBER.fullmatch(token.text):
        raise cursor.expected(f"{what}, a positive whole number")
    return int(cursor.take().text)


def _columns(cursor: Cursor) -> dict[str, str]:
    """Read ``(name type [NOT NULL], …)``; return the types by name, for `headrace.tables.schema.parse_columns`."""
    cursor.need_symbol("(")
    columns: dict[str, str] = {}
    while True:
        token = cursor.peek()
        name = str(cursor.need_simple_name("a column"))
        if name in columns and token is not None:
            raise cursor.error("the column occurs twice", token, received=name)
        columns[name] = _column_type(cursor)
        if cursor.take_symbol(")"):
            return columns
        if not cursor.take_symbol(","):
            raise cursor.expected("NOT NULL, a comma or )")


def _column_type(cursor: Cursor) -> str:
    """Read and check a type, which can be nested."""
    from headrace.types import parse_type

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


def _show_queues(cursor: Cursor) -> st.Statement:
    return st.ShowQueues(part=cursor.whole)


def _describe_queue(cursor: Cursor) -> st.Statement:
    return st.DescribeQueue(part=cursor.whole, name=cursor.need_store_name("the queue"))


def _drop_queue(cursor: Cursor) -> st.Statement:
    if_exists = cursor.take_words("IF", "EXISTS")
    return st.DropQueue(part=cursor.whole, name=cursor.need_store_name("the queue"), if_exists=if_exists)


# -- consumers and producers --------------------------------------------------------------------------


def _create_consumer(cursor: Cursor) -> st.Statement:
    if_not_exists = cursor.take_words("IF", "NOT", "EXISTS")
    name = cursor.need_store_name("the consumer")
    return st.CreateConsumer(part=cursor.whole, name=name, if_not_exists=if_not_exists, options=cursor.options())


def _for_queue(cursor: Cursor) -> st.Name | None:
    return cursor.need_store_name("the queue") if cursor.take_words("FOR", "QUEUE") else None


def _show_consumers(cursor: Cursor) -> st.Statement:
    return st.ShowConsumers(part=cursor.whole, queue=_for_queue(cursor))


def _describe_consumer(cursor: Cursor) -> st.Statement:
    name = cursor.need_store_name("the consumer")
    return st.DescribeConsumer(part=cursor.whole, name=name, queue=_for_queue(cursor))


def _drop_consumer(cursor: Cursor) -> st.Statement:
    if_exists = cursor.take_words("IF", "EXISTS")
    return st.DropConsumer(part=cursor.whole, name=cursor.need_store_name("the consumer"), if_exists=if_exists)


def _register_consumer(cursor: Cursor) -> st.Statement:
    name = cursor.need_store_name("the consumer")
    cursor.need_words("FOR", "QUEUE")
    queue = cursor.need_store_name("the queue")
    return st.RegisterConsumer(part=cursor.whole, name=name, queue=queue, vital=cursor.take_words("VITAL"))


def _unregister_consumer(cursor: Cursor) -> st.Statement:
    name = cursor.need_store_name("the consumer")
    cursor.need_words("FROM", "QUEUE")
    return st.UnregisterConsumer(part=cursor.whole, name=name, queue=cursor.need_store_name("the queue"))


def _show_producers(cursor: Cursor) -> st.Statement:
    return st.ShowProducers(part=cursor.whole)


READERS: dict[str, Callable[[Cursor], st.Statement]] = {
    "CREATE QUEUE": _create_queue,
    "SHOW QUEUES": _show_queues,
    "DESCRIBE QUEUE": _describe_queue,
    "DESC QUEUE": _describe_queue,
    "DROP QUEUE": _drop_queue,
    "CREATE CONSUMER": _create_consumer,
    "SHOW CONSUMERS": _show_consumers,
    "DESCRIBE CONSUMER": _describe_consumer,
    "DESC CONSUMER": _describe_consumer,
    "DROP CONSUMER": _drop_consumer,
    "REGISTER CONSUMER": _register_consumer,
    "UNREGISTER CONSUMER": _unregister_consumer,
    "SHOW PRODUCERS": _show_producers,
}
