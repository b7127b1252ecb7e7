"""The parser of the statements about queues, consumers and producers."""

from __future__ import annotations

import re

from headrace.sql_text.cursor import Cursor
from headrace.sql_text.script import Name, Statement
from headrace.streaming_sql.language import statements as st
from headrace.streaming_sql.language.column_grammar import columns_and_key
from headrace.streaming_sql.language.forms import Reader, dropped_in_store, plain
from headrace.streaming_sql.providers import QUEUE_PROVIDERS

_WHOLE_NUMBER = re.compile("[1-9][0-9]{0,8}")


def _create_queue(cursor: Cursor) -> Statement:
    if_not_exists = cursor.take_words("IF", "NOT", "EXISTS")
    name = cursor.need_simple_name("the queue")
    start = cursor.peek()
    columns, primary_key = columns_and_key(cursor)
    if primary_key and start is not None:
        raise cursor.error("a queue has no primary key", start, valid="CREATE TABLE for rows with a key")
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


def _describe_queue(cursor: Cursor) -> Statement:
    return st.DescribeQueue(part=cursor.whole, name=cursor.need_store_name("the queue"))


# -- consumers and producers --------------------------------------------------------------------------


def _create_consumer(cursor: Cursor) -> Statement:
    if_not_exists = cursor.take_words("IF", "NOT", "EXISTS")
    name = cursor.need_store_name("the consumer")
    return st.CreateConsumer(part=cursor.whole, name=name, if_not_exists=if_not_exists, options=cursor.options())


def _for_queue(cursor: Cursor) -> Name | None:
    return cursor.need_store_name("the queue") if cursor.take_words("FOR", "QUEUE") else None


def _show_consumers(cursor: Cursor) -> Statement:
    return st.ShowConsumers(part=cursor.whole, queue=_for_queue(cursor))


def _describe_consumer(cursor: Cursor) -> Statement:
    name = cursor.need_store_name("the consumer")
    return st.DescribeConsumer(part=cursor.whole, name=name, queue=_for_queue(cursor))


def _register_consumer(cursor: Cursor) -> Statement:
    name = cursor.need_store_name("the consumer")
    cursor.need_words("FOR", "QUEUE")
    queue = cursor.need_store_name("the queue")
    return st.RegisterConsumer(part=cursor.whole, name=name, queue=queue, vital=cursor.take_words("VITAL"))


def _unregister_consumer(cursor: Cursor) -> Statement:
    name = cursor.need_store_name("the consumer")
    cursor.need_words("FROM", "QUEUE")
    return st.UnregisterConsumer(part=cursor.whole, name=name, queue=cursor.need_store_name("the queue"))


READERS: dict[str, Reader] = {
    "CREATE QUEUE": _create_queue,
    "SHOW QUEUES": plain(st.ShowQueues),
    "DESCRIBE QUEUE": _describe_queue,
    "DESC QUEUE": _describe_queue,
    "DROP QUEUE": dropped_in_store(st.DropQueue, "the queue"),
    "CREATE CONSUMER": _create_consumer,
    "SHOW CONSUMERS": _show_consumers,
    "DESCRIBE CONSUMER": _describe_consumer,
    "DESC CONSUMER": _describe_consumer,
    "DROP CONSUMER": dropped_in_store(st.DropConsumer, "the consumer"),
    "REGISTER CONSUMER": _register_consumer,
    "UNREGISTER CONSUMER": _unregister_consumer,
    "SHOW PRODUCERS": plain(st.ShowProducers),
}
