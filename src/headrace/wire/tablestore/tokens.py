"""Tokens of the tunnel service, which say where a channel is to be read on: a message in Base64.

The official clients look into a token only to tell the two kinds apart: with changes they wait while pages are not
full, with base data they do not. A third token, the text ``finished``, is the end of a channel and no Base64.
"""

from __future__ import annotations

import base64
import binascii
from dataclasses import dataclass

from google.protobuf.message import DecodeError

from headrace.errors import OptionError
from headrace.wire.tablestore import tunnel_pb2

FINISHED_TOKEN = "finished"

_VERSION = 1
_CONTENTS: dict[int, type[tunnel_pb2.TokenContent] | type[tunnel_pb2.TokenContentV2]] = {
    1: tunnel_pb2.TokenContent,
    2: tunnel_pb2.TokenContentV2,
}


@dataclass(frozen=True)
class StreamToken:
    """A place in a change log: the service's own iterator, never empty, and a time that goes with it."""

    iterator: str
    timestamp: int = 0


@dataclass(frozen=True)
class BaseToken:
    """A place in base data: the PlainBuffer of the next key to read, never empty."""

    primary_key: bytes


def encode_token(token: StreamToken | BaseToken) -> str:
    """Return the text of a token."""
    if isinstance(token, StreamToken):
        content = tunnel_pb2.TokenContent(iterator=token.iterator, timestamp=token.timestamp)
    else:
        content = tunnel_pb2.TokenContent(primary_key=token.primary_key)
    message = tunnel_pb2.Token(version=_VERSION, content=content.SerializeToString())
    return base64.b64encode(message.SerializeToString()).decode()


def decode_token(text: str) -> StreamToken | BaseToken:
    """Read the text of a token, of version 1 or 2; not ``finished``, which stands for no place.

    Raises:
        OptionError: the text is no token.
    """
    try:
        message = tunnel_pb2.Token.FromString(base64.b64decode(text, validate=True))
        content = _CONTENTS[message.version].FromString(message.content)
    except (binascii.Error, ValueError, DecodeError, KeyError):
        raise _not_a_token(text) from None
    if content.iterator:
        return StreamToken(content.iterator, content.timestamp)
    if content.primary_key:
        return BaseToken(content.primary_key)
    raise _not_a_token(text)


def _not_a_token(text: str) -> OptionError:
    return OptionError(
        "this is not a token of a tunnel's channel", received=repr(text[:100]), valid="a token that the tunnel gave out"
    )
