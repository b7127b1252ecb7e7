"""Reading messages of clients, which may be anything."""

from __future__ import annotations

import functools
from dataclasses import dataclass
from typing import Any, TypeVar

from google.protobuf.message import DecodeError, Message

AnyMessage = TypeVar("AnyMessage", bound=Message)


def read_message(kind: type[AnyMessage], data: bytes) -> AnyMessage:
    """Read a message.

    The library itself lets a message pass that lacks a required field, and gives bytes for a text that is not UTF-8.

    Raises:
        DecodeError: it is none, lacks a required field, or a text in it is not UTF-8.
    """
    message = kind.FromString(data)
    if not message.IsInitialized():
        raise DecodeError(f"{kind.__name__} lacks a required field")
    if not _are_texts(message, _places_of(kind.DESCRIPTOR)):
        raise DecodeError(f"{kind.__name__} has a text that is not UTF-8")
    return message


@dataclass(frozen=True)
class _Places:
    """Where a message has texts: fields, and fields whose messages have some; each one or repeated."""

    texts: tuple[tuple[str, bool], ...]
    messages: tuple[tuple[str, bool, _Places], ...]


@functools.cache
def _places_of(descriptor: Any) -> _Places:
    # In version 2 of protobuf's language a field that is not repeated always knows whether it was set.
    fields = [(field, not field.has_presence) for field in descriptor.fields]
    nested = [
        (field.name, repeated, _places_of(field.message_type)) for field, repeated in fields if field.message_type
    ]
    return _Places(
        tuple((field.name, repeated) for field, repeated in fields if field.type == field.TYPE_STRING),
        tuple((name, repeated, inner) for name, repeated, inner in nested if inner.texts or inner.messages),
    )


def _are_texts(message: Message, places: _Places) -> bool:
    for name, repeated in places.texts:
        value = getattr(message, name)
        if not all(isinstance(each, str) for each in (value if repeated else [value])):
            return False
    for name, repeated, inner in places.messages:
        if repeated:
            given = getattr(message, name)
        else:
            given = [getattr(message, name)] if message.HasField(name) else []
        if not all(_are_texts(each, inner) for each in given):
            return False
    return True
