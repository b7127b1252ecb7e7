"""Parsing of requests: headers, query and body are merged into the parameters of a command."""

from __future__ import annotations

import base64
import itertools
import re
from collections.abc import Mapping
from dataclasses import dataclass
from typing import Any

from headrace_ytsaurus.endpoint.configuration import Configuration
from headrace_ytsaurus.endpoint.context import Command, DataKind
from headrace_ytsaurus.endpoint.errors import refused
from headrace_ytsaurus.endpoint.format_attributes import format_of_header, parse_format
from headrace_ytsaurus.endpoint.formats import JSON, YSON, YSON_TEXT, Format, read_value
from headrace_ytsaurus.endpoint.http.query_strings import parse_query
from headrace_ytsaurus.endpoint.parameters import Parameters
from headrace_ytsaurus.endpoint.values import with_json_attributes
from headrace_ytsaurus.wire.errors import Code, YtError

_AUTHORIZATION = re.compile(r"(?:OAuth|Bearer) +(\S+) *", re.IGNORECASE)
_PARAMETERS = "x-yt-parameters"
# Headers into which a client can split one value.
_MAX_PIECES = 1000


@dataclass(frozen=True)
class Call:
    """The parameters and formats of a request."""

    parameters: Parameters
    input_format: Format
    output_format: Format


def user_of(headers: Mapping[str, str], configuration: Configuration) -> str:
    """Return the user of a request.

    Raises:
        YtError: 900, the request has no token or an unknown one.
    """
    token = _AUTHORIZATION.fullmatch(headers.get("authorization", "").strip())
    user = None if token is None else configuration.user(token[1])
    if user is None:
        reason = "the request has no token" if token is None else "the token is not known"
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
    form = header_format(headers)
    has_input, has_output = (kind not in (None, "binary") for kind in (command.input, command.output))
    for direction in ("input", "output"):
        header = _gathered(headers, f"x-yt-{direction}-format")
        # An answer without output or with bytes has no format, even if the client sends one.
        if header is not None and (direction == "input" or has_output):
            values[f"{direction}_format"] = read_value(header, form)
    # The bytes of a file can have any content type.
    sent = headers.get("content-type", "") if has_input or body else ""
    accept = headers.get("accept", "") if has_output else ""
    body_format = _format("input_format", command.input, values, sent)
    in_query = {name: with_json_attributes(value) for name, value in parse_query(query).items()}
    values = _merged(values, in_query)
    if (in_header := _gathered(headers, _PARAMETERS)) is not None:
        values = _merged(values, _map(read_value(in_header, form), "X-YT-Parameters"))
    if body:
        values = _merged(values, _map(read_value(body, body_format), "the body"))
    parameters = Parameters(values, command.name)
    input_format = _format("input_format", command.input, parameters, sent)
    if command.input == "tabular" and input_format.name == "json" and input_format.pretty:
        raise refused("Pretty JSON is not supported for rows in a request", valid="format=text")
    return Call(parameters, input_format, _format("output_format", command.output, parameters, accept))


def _gathered(headers: Mapping[str, str], name: str) -> bytes | None:
    """Return the value of a header, or of the numbered headers into which a client has split it in base64."""
    if name in headers:
        return headers[name].encode("latin-1")
    numbered = (headers.get(f"{name}{number}", headers.get(f"{name}-{number}")) for number in range(_MAX_PIECES))
    pieces = list(itertools.takewhile(lambda piece: piece is not None, numbered))
    if not pieces:
        return None
    try:
        return base64.b64decode("".join(piece for piece in pieces if piece), validate=True)
    except ValueError:
        valid = f"pieces of one text in base64, in {name}-0, {name}-1 and so on; or the text itself in {name}"
        raise refused(f"the headers {name}-0 and following cannot be read", valid=valid) from None


def _merged(base: Mapping[str, Any], patch: Mapping[str, Any]) -> dict[str, Any]:
    """Return two maps as one; the second has precedence, also in maps inside of them."""
    both = {
        name: _merged(base[name], value)
        for name, value in patch.items()
        if isinstance(value, Mapping) and isinstance(base.get(name), Mapping)
    }
    return {**base, **patch, **both}


def header_format(headers: Mapping[str, str]) -> Format:
    """Return the format of the other headers of a request and its response; the default is JSON.

    The value of this header itself is YSON. A header can only contain text YSON.
    """
    header = headers.get("x-yt-header-format")
    if header is None:
        return JSON
    parsed = parse_format(read_value(header.strip().encode("latin-1"), YSON_TEXT), "X-YT-Header-Format")
    return parsed if parsed.name == "json" else YSON_TEXT


def _map(value: Any, where: str) -> Mapping[str, Any]:
    if not isinstance(value, Mapping):
        raise refused(f"the parameters in {where} must be a map", received=repr(value)[:100])
    return value


def _format(name: str, kind: DataKind | None, parameters: Mapping[str, Any], content_type: str) -> Format:
    """Return the format in a parameter, else that of a content type, else the default for a kind of data."""
    if name in parameters:
        return parse_format(parameters[name], f"parameter /{name}")
    form = format_of_header(content_type)
    if form is not None:
        return form
    return JSON if kind == "structured" else YSON_TEXT if kind == "tabular" else YSON
