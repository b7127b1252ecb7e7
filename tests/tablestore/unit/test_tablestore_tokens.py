"""Tokens of tunnels' channels."""

from __future__ import annotations

import base64
import contextlib

import pytest
from hypothesis import given
from hypothesis import strategies as st

from headrace.errors import OptionError
from headrace_tablestore.wire import tunnel_pb2
from headrace_tablestore.wire.tokens import FINISHED_TOKEN, BaseToken, StreamToken, decode_token, encode_token

tokens = st.builds(
    StreamToken, st.text(st.characters(codec="utf-8"), min_size=1), st.integers(-(2**63), 2**63 - 1)
) | st.builds(BaseToken, st.binary(min_size=1))


@given(tokens)
def test_tokens_survive_encoding_and_decoding(token: StreamToken | BaseToken) -> None:
    text = encode_token(token)
    assert text.isascii()
    assert decode_token(text) == token
    assert text != FINISHED_TOKEN


def test_a_token_of_version_2_is_decoded() -> None:
    content = tunnel_pb2.TokenContentV2(iterator="here", timestamp=5, total_count=9).SerializeToString()
    text = base64.b64encode(tunnel_pb2.Token(version=2, content=content).SerializeToString()).decode()
    assert decode_token(text) == StreamToken("here", 5)


@given(st.text() | st.binary().map(lambda data: base64.b64encode(data).decode()))
def test_any_other_text_is_refused(text: str) -> None:
    # A random text can be a token; any other error is a defect.
    with contextlib.suppress(OptionError):
        token = decode_token(text)
        assert decode_token(encode_token(token)) == token


@pytest.mark.parametrize("version", [0, 3])
def test_an_unknown_version_is_refused(version: int) -> None:
    content = tunnel_pb2.TokenContent(iterator="here").SerializeToString()
    text = base64.b64encode(tunnel_pb2.Token(version=version, content=content).SerializeToString()).decode()
    with pytest.raises(OptionError):
        decode_token(text)


def test_the_finished_token_and_an_empty_token_have_no_position() -> None:
    empty = base64.b64encode(tunnel_pb2.Token(version=1, content=b"").SerializeToString()).decode()
    for text in (FINISHED_TOKEN, "", empty):
        with pytest.raises(OptionError):
            decode_token(text)
