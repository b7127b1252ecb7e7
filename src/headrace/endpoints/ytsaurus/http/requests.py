"""Parsing of requests: headers, query and body are merged into the parameters of a command."""

from __future__ import annotations

import re
from collections.abc import Mapping
from dataclasses import dataclass
from typing import Any
from urllib.parse import parse_qsl

from headrace.endpoints.ytsaurus.configuration import Configuration
from headrace.endpoints.ytsaurus.context import Command
from headrace.endpoints.ytsaurus.errors import refused
from headrace.endpoints.ytsaurus.formats import (
    JSON,
    YSON,
    YSON_TEXT,
    Format,
    format_of_header,
    parse_format,
    read_value,
)
from headrace.endpoints.ytsaurus.parameters import Parameters
from headrace.wire.ytsaurus.errors import Code, YtError

_PIECE = re.compile(r"(x-yt-(?:parameters|input-format|output-format))-?([0-9]{0,6})")
_AUTHORIZATION = re.compile(r"(?:OAuth|Bearer) +(\S+) *", re.IGNORECASE)
_MAX_FIELDS = 1000


@dataclass(frozen=True)
class Call:
    """A command with its parameters from a request."""

    command: Command
    parameters: Parameters
    input_format: Format
    output_format: Format


def user_of(headers: Mapping[str, str], configuration: Configuration) -> str:
    """Return the user of a request.

    Raises:
        YtError: 900, the request has no token or an unknown one.
    """
    found = _AUTHORIZATION.fullmatch(headers.get("authorization", "").strip())
    user = None if found is None else configuration.user(found[1])
    if user is None:
        reason = "the request has no token" if found is None else "the token is not known"
        raise YtError(Code.AUTHENTICATION, f"Authentication failed: {reason}", remedy="set YT_TOKEN")
    return user


def takes_parameters_in_body(command: Command, method: str) -> bool:
    """Return whether the body of a request is parameters, not data. Clients can also use POST to read."""
    return command.input is None and method == "POST"


def read_call(command: Command, headers: Mapping[str, str], query: bytes, body: bytes) -> Call:
    """Merge the parameters of a request, with increasing precedence: headers, query, parameters header, body.

    Args:
        headers: names in lower case; each value has one character, U+0000 to U+00FF, for each byte.
        body: the whole body if it is parameters, else empty.
    """
    values: dict[str, Any] = {}
    pieces = _gathered(headers)
    form = header_format(headers)
    for direction in ("input", "output"):
        given = pieces.get(f"x-yt-{direction}-format")
        # An answer without output or with bytes has no format, even if the client sends one.
        if given is not None and (direction == "input" or command.output not in (None, "binary")):
            values[f"{direction}_format"] = read_value(given, form)
    body_format = _format("input", command, values, headers)
    try:
        values |= parse_qsl(query.decode("latin-1"), keep_blank_values=True, max_num_fields=_MAX_FIELDS)
    except ValueError:
        raise refused("the query of the request has too many parts", valid=f"at most {_MAX_FIELDS}") from None
    if "x-yt-parameters" in pieces:
        values |= _map(read_value(pieces["x-yt-parameters"], form), "X-YT-Parameters")
    if body:
        values |= _map(read_value(body, body_format), "the body")
    parameters = Parameters(values, command.name)
    formats = [_format(direction, command, parameters, headers) for direction in ("input", "output")]
    return Call(command, parameters, *formats)


def _gathered(headers: Mapping[str, str]) -> dict[str, bytes]:
    """Join the headers that clients may split into numbered ones."""
    pieces: dict[str, list[tuple[int, str]]] = {}
    for name, value in headers.items():
        if found := _PIECE.fullmatch(name):
            pieces.setdefault(found[1], []).append((int(found[2] or -1), value))
    return {name: "".join(value for _, value in sorted(found)).encode("latin-1") for name, found in pieces.items()}


def header_format(headers: Mapping[str, str]) -> Format:
    """Return the format of the other headers of a request and its response; the default is JSON.

    The value of this header itself is YSON. A header can only contain text YSON.
    """
    given = headers.get("x-yt-header-format")
    if given is None:
        return JSON
    found = parse_format(read_value(given.strip().encode("latin-1"), YSON_TEXT), "X-YT-Header-Format")
    return found if found.name == "json" else YSON_TEXT


def _map(value: Any, where: str) -> Mapping[str, Any]:
    if not isinstance(value, Mapping):
        raise refused(f"the parameters in {where} must be a map", received=repr(value)[:100])
    return value


def _format(direction: str, command: Command, parameters: Mapping[str, Any], headers: Mapping[str, str]) -> Format:
    name = f"{direction}_format"
    if name in parameters:
        return parse_format(parameters[name], f"parameter /{name}")
    found = format_of_header(headers.get("content-type" if direction == "input" else "accept", ""))
    if found is not None:
        return found
    kind = command.input if direction == "input" else command.output
    if kind == "structured":
        return JSON
    return YSON_TEXT if kind == "tabular" else YSON
