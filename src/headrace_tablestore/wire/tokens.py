"""Tokens of the tunnel service: positions in a channel, as messages in Base64.

The official clients parse a token only for its kind: for changes they wait after a page that is not full, for base data
they do not. The token at the end of a channel is the text ``finished``, without Base64.
"""

from __future__ import annotations

import base64
import binascii
from dataclasses import dataclass

from google.protobuf.message import DecodeError

from headrace.errors import OptionError
from headrace_tablestore.wire import tunnel_pb2

FINISHED_TOKEN = "finished"

_VERSION = 1
_CONTENTS: dict[int, type[tunnel_pb2.TokenContent] | type[tunnel_pb2.TokenContentV2]] = {
    1: tunnel_pb2.TokenContent,
    2: tunnel_pb2.TokenContentV2,
}


@dataclass(frozen=True)
class StreamToken:
    """A position in a change log: the service's iterator, never empty, and its time."""

    iterator: str
    timestamp: int = 0


@dataclass(frozen=True)
class BaseToken:
    """A position in base data: the next key to read in PlainBuffer, never empty."""

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
    """Return the position of a token of version 1 or 2; ``finished`` has none.

    Raises:
        OptionError: the text is not a token.
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
        "the text is not a token of a tunnel's channel",
        received=repr(text[:100]),
        valid="a token from the tunnel",
    )
