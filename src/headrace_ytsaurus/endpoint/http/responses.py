"""Responses: status, headers and body for an answer or an error."""

from __future__ import annotations

import json
from collections.abc import Iterable, Iterator, Mapping
from dataclasses import dataclass, field
from typing import Any

from headrace_ytsaurus.endpoint.context import Answer, Command
from headrace_ytsaurus.endpoint.formats import JSON, Format, write_rows, write_value
from headrace_ytsaurus.wire.errors import Code, YtError

ERROR_HEADER_BYTES = 8 << 10
"""The maximum size of the error's header. Clients limit the size of all headers, and read long errors from the body."""
RESPONSE_PARAMETERS = "x-yt-response-parameters"
_BINARY = "application/octet-stream"
_JSON = "application/json"
_RETRY_SECONDS = "1"


@dataclass(frozen=True)
class Response:
    """A response. Either ``body`` or ``stream`` is sent.

    Attributes:
        on_disk: the stream reads a file of this response.
    """

    status: int
    headers: Mapping[str, str]
    body: bytes = b""
    stream: Iterator[bytes] | None = None
    length: int | None = None
    on_disk: bool = False
    code: int = field(default=0)


def answer_response(command: Command, answer: Answer, form: Format, header_form: Format = JSON) -> Response:
    """Return the response for an answer in the client's format; ``header_form`` is the format of its headers."""
    headers = {"content-type": _BINARY if command.output == "binary" else form.content_type}
    if command.output == "tabular" or answer.parameters:
        headers[RESPONSE_PARAMETERS] = write_value(dict(answer.parameters), header_form).decode("latin-1")
    if (tag := _etag(answer)) is not None:
        headers["etag"] = tag
    if answer.stream is not None:
        return Response(200, headers, stream=answer.stream, length=answer.length, on_disk=answer.on_disk)
    if answer.content is not None:
        return Response(200, headers, answer.content)
    if answer.batches is not None:
        return Response(200, headers, write_rows(answer.batches, answer.columns, form))
    return Response(200, headers, b"" if command.output is None else write_value(answer.value, form))


def is_unchanged(answer: Answer, if_none_match: str | None) -> bool:
    """Return whether a client already has the content of an answer, given the header of its request."""
    tag = _etag(answer)
    # A revision alone is an older form of the header.
    return tag is not None and if_none_match in (tag, str(answer.parameters["revision"]))


def _etag(answer: Answer) -> str | None:
    """Return the tag of an answer with the content of a node, None for another answer."""
    node, revision = answer.parameters.get("id"), answer.parameters.get("revision")
    return None if node is None or revision is None else f"{node}:{revision}"


def json_response(value: Any, status: int = 200) -> Response:
    """Return a response with plain JSON."""
    return Response(status, {"content-type": _JSON}, json.dumps(value).encode())


def error_response(error: YtError, status: int | None = None) -> Response:
    """Return the response for an error, which is in the body and in a header."""
    if status is None:
        status = {Code.AUTHENTICATION: 401, Code.REQUEST_QUEUE_FULL: 503, Code.UNAVAILABLE: 503}.get(error.code, 400)  # type: ignore[call-overload]
    body = json.dumps(_jsonable(error.to_json()))
    header = body
    if len(header) > ERROR_HEADER_BYTES:
        # Clients need the codes of the whole tree, but not the whole messages.
        header = json.dumps(_short(error, 1000))
    if len(header) > ERROR_HEADER_BYTES:
        header = json.dumps({"code": error.code, "message": error.message[:1000], "attributes": {}, "inner_errors": []})
    headers = {
        "content-type": _JSON,
        "x-yt-error": header,
        "x-yt-response-code": str(error.code),
        "x-yt-response-message": json.dumps(error.message[:200]),
    }
    if status == 503:
        headers["retry-after"] = _RETRY_SECONDS
    return Response(status, headers, body.encode(), code=error.code)


def descriptors(commands: Iterable[Command]) -> list[dict[str, Any]]:
    """Return the descriptors of commands for clients."""
    return [
        {
            "name": command.name,
            "input_type": command.input or "null",
            "output_type": command.output or "null",
            "is_volatile": command.volatile,
            "is_heavy": command.heavy,
        }
        for command in commands
    ]


def method_of(command: Command) -> str:
    """Return the HTTP method that clients derive from the descriptor of a command."""
    if command.input is not None:
        return "PUT"
    return "POST" if command.volatile else "GET"


def _short(error: YtError, most: int) -> dict[str, Any]:
    inner = [_short(one, most // 4) for one in error.inner[:4]] if most > 100 else []
    return {"code": error.code, "message": error.message[:most], "attributes": {}, "inner_errors": inner}


def _jsonable(value: Any) -> Any:
    """Return a value with texts in place of values that JSON cannot represent."""
    return json.loads(json.dumps(value, default=str, skipkeys=True))
