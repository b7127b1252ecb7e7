"""Requests and responses of the web page, as values."""

from __future__ import annotations

from collections.abc import Iterable, Mapping
from dataclasses import dataclass, field
from typing import Any
from urllib.parse import parse_qsl

from headrace.errors import OptionError
from headrace.http.admission import network_of
from headrace.http.application import Scope

MAX_FORM_BYTES = 256 << 10
_MAX_FIELDS = 100


@dataclass(frozen=True)
class Request:
    """A request.

    Attributes:
        query: the parameters of the URL; of a name that occurs twice, the last value.
        form: the fields of a form; empty without one.
        cookies: the cookies by name.
        port: the port of the server.
        client: the network of the client's address.
        session: the id of the browser's session, see `headrace.ui.access`.
    """

    method: str
    path: str
    query: Mapping[str, str]
    headers: Mapping[str, str] = field(repr=False)
    cookies: Mapping[str, str] = field(repr=False)
    port: int
    client: str = ""
    form: Mapping[str, str] = field(default_factory=dict, repr=False)
    session: str = field(default="", repr=False)

    @classmethod
    def of(cls, scope: Scope) -> Request:
        """Return the request of an ASGI scope, without its form."""
        headers = {name.decode("latin-1"): value.decode("latin-1") for name, value in scope["headers"]}
        pairs = (part.strip().partition("=") for part in headers.get("cookie", "").split(";"))
        return cls(
            method=scope["method"],
            path=scope["path"],
            query=fields(scope["query_string"]),
            headers=headers,
            cookies={name: value for name, _, value in pairs},
            port=(scope.get("server") or ("", 0))[1],
            client=network_of((scope.get("client") or ("", 0))[0]),
        )


@dataclass(frozen=True)
class Page:
    """A template and its values. Its block ``live`` is rendered again while a browser shows the page."""

    template: str
    values: Mapping[str, Any]
    status: int = 200


@dataclass(frozen=True)
class Response:
    """A response: a status, a body and headers."""

    status: int
    body: bytes = b""
    headers: Mapping[str, str] = field(default_factory=dict)


class BadRequestError(Exception):
    """A request that no page of this server sends; the text is shown."""

    def __init__(self, status: int, problem: str) -> None:
        super().__init__(problem)
        self.status = status


def fields(encoded: bytes) -> dict[str, str]:
    """Return the fields of a URL's query, or of a form.

    Raises:
        BadRequestError: there are too many fields.
    """
    try:
        return dict(parse_qsl(encoded.decode("latin-1"), keep_blank_values=True, max_num_fields=_MAX_FIELDS))
    except ValueError:
        raise BadRequestError(400, "The request has too many fields.") from None


def one_of(request: Request, name: str, values: Iterable[str], default: str) -> str:
    """Return a parameter of the URL that has one of some values.

    Raises:
        OptionError: it has another value.
    """
    value = request.query.get(name, default)
    if value != default and value not in (valid := list(values)):
        raise OptionError(f"unknown {name} in the address of the page", received=repr(value), valid=valid)
    return value


def whole_number(text: str, default: int, *, low: int = 0, high: int = 2**53) -> int:
    """Return a number of a URL within bounds; the default if the text is not a number."""
    if not text.isascii() or not text.isdigit() or len(text) > len(str(high)):
        return default
    return max(low, min(int(text), high))
