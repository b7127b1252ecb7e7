"""Random requests with parameters in their URL and in forms: valid ones with random damage."""

from __future__ import annotations

import random
from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field
from urllib.parse import quote, quote_from_bytes, urlencode

from tests.chaos.fuzz import mutations
from tests.chaos.fuzz.client import Request

METHODS = ("GET", "HEAD", "POST", "PUT", "DELETE", "OPTIONS", "PATCH", "PROPFIND")
ODD_TEXTS = (
    *("", "0", "-1", "1.5", "99999999999999999999", "9" * 5_000, "٣", "1e999", "nan", "null", "true", "[]", "{}"),
    *("..", ".", "/", "//", "/a/../b", "\0", "\n", "\r\nx: y", "é", "\U0001f600", "\ufffd", "%00", "%", "a" * 5_000),
    *("[" * 5_000, '["a", 1]', '[1, "a"]', '{"a": 1}', '["\\ud800", 1]', "0x", "0xzz", "'", '"', "<b>", "a&b=c", ";"),
)
_ODD_HEADERS = (b"", b"\xff", b"x" * 300, b",;=", b"[", b"http://[", b"//", b"\t", b"0", b"-1", b"null", b"a=b; c")
_PRINTABLE = "".join(map(chr, range(0x21, 0x7F)))


@dataclass(frozen=True)
class Sample:
    """A valid request.

    Attributes:
        query: the parameters of the URL, each with its valid values.
        form: the fields of a form; None without one.
        body: bodies other than a form.
    """

    method: str
    path: str
    query: Mapping[str, Sequence[str]] = field(default_factory=dict)
    form: Mapping[str, Sequence[str]] | None = None
    body: Sequence[bytes] = (b"",)


def damaged(
    chance: random.Random,
    samples: Sequence[Sample],
    headers: Mapping[str, Sequence[bytes]],
    *,
    intact: float = 0.15,
    leaves: bool = False,
) -> Request:
    """Return a sample with random values, and with damage in one or several of its parts.

    Args:
        samples: the samples; other ones can give a path or a part.
        headers: headers, each with its valid values.
        intact: the probability of a request without damage.
        leaves: see `Request`.
    """
    sample = chance.choice(samples)
    whole = chance.random() < intact
    others = [*(sample.query or {}), *(sample.form or {}), *(chance.choice(samples).query or {"op": ()})]
    query = urlencode(_values(chance, sample.query, others, intact=whole))
    target = quote(sample.path).encode() + (b"?" + query.encode() if query else b"")
    body = chance.choice(sample.body)
    if sample.form is not None:
        body = urlencode(_values(chance, sample.form, others, intact=whole)).encode()
    method = sample.method
    if not whole:
        if chance.random() < 0.3:
            target = mutations.changed(chance, [target, quote(chance.choice(samples).path).encode()])
        if chance.random() < 0.3:
            body = mutations.changed(chance, [body])
        if chance.random() < 0.1:
            method = chance.choice(METHODS)
    path, query_string = _parts(target)
    given = ((name, _header(chance, values, intact=whole)) for name, values in headers.items())
    sent = tuple((name, value) for name, value in given if value is not None)
    is_complete = whole or chance.random() < 0.98
    return Request(path, body, sent, method, query_string, is_complete, leaves)


def _values(
    chance: random.Random, known: Mapping[str, Sequence[str]], others: Sequence[str], *, intact: bool
) -> list[tuple[str, str]]:
    """Return parameters: some of the known ones, some with odd values, and now and then others."""
    found = [(name, chance.choice(values)) for name, values in known.items() if intact or chance.random() < 0.95]
    if intact:
        return found
    found = [(name, chance.choice(ODD_TEXTS) if chance.random() < 0.1 else value) for name, value in found]
    if others and chance.random() < 0.1:
        found += [(chance.choice(others), chance.choice(ODD_TEXTS)) for _ in range(chance.choice((1, 1, 2, 2, 200)))]
    return found


def _header(chance: random.Random, values: Sequence[bytes], *, intact: bool) -> bytes | None:
    """Return the value of a header, the first one most of the time; None if the header is left out."""
    if intact or chance.random() < 0.9:
        return values[0]
    chosen = chance.random()
    if chosen < 0.3:
        return None
    if chosen < 0.6:
        return chance.choice(values)
    value = chance.choice(_ODD_HEADERS) if chosen < 0.8 else mutations.changed(chance, values)
    # A server takes no others.
    return bytes(each for each in value if each == 9 or 32 <= each != 127).strip(b" \t")


def _parts(target: bytes) -> tuple[str, bytes]:
    """Return the path and the query of a target, as a server splits them."""
    head = b"/" + target.partition(b"#")[0].lstrip(b"/")
    path, _, query = head.partition(b"?")
    return quote_from_bytes(path, safe=_PRINTABLE), quote_from_bytes(query, safe=_PRINTABLE).encode()
