"""Parsing of messages from clients, which may be any bytes."""

from __future__ import annotations

import functools
from dataclasses import dataclass
from typing import Any, TypeVar

from google.protobuf.message import DecodeError, Message

AnyMessage = TypeVar("AnyMessage", bound=Message)


def read_message(kind: type[AnyMessage], data: bytes) -> AnyMessage:
    """Parse a message.

    The library itself accepts a message without a required field, and returns bytes for a string that is not UTF-8.

    Raises:
        DecodeError: the bytes are not such a message, a required field is missing, or a string is not UTF-8.
    """
    message = kind.FromString(data)
    if not message.IsInitialized():
        raise DecodeError(f"{kind.__name__} lacks a required field")
    if not _are_strings(message, _string_fields(kind.DESCRIPTOR)):
        raise DecodeError(f"{kind.__name__} has a string that is not UTF-8")
    return message


@dataclass(frozen=True)
class _StringFields:
    """The string fields of a message, and its message fields that contain some; each with whether it is repeated."""

    strings: tuple[tuple[str, bool], ...]
    messages: tuple[tuple[str, bool, _StringFields], ...]


@functools.cache
def _string_fields(descriptor: Any) -> _StringFields:
    # In version 2 of protobuf's language, all fields have presence except repeated ones.
    fields = [(field, not field.has_presence) for field in descriptor.fields]
    nested = [
        (field.name, repeated, _string_fields(field.message_type)) for field, repeated in fields if field.message_type
    ]
    return _StringFields(
        tuple((field.name, repeated) for field, repeated in fields if field.type == field.TYPE_STRING),
        tuple((name, repeated, inner) for name, repeated, inner in nested if inner.strings or inner.messages),
    )


def _are_strings(message: Message, fields: _StringFields) -> bool:
    for name, repeated in fields.strings:
        value = getattr(message, name)
        if not all(isinstance(each, str) for each in (value if repeated else [value])):
            return False
    for name, repeated, inner in fields.messages:
        if repeated:
            nested = getattr(message, name)
        else:
            nested = [getattr(message, name)] if message.HasField(name) else []
        if not all(_are_strings(each, inner) for each in nested):
            return False
    return True
