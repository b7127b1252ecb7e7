"""Formats of structured values and rows in requests and answers."""

from __future__ import annotations

import json
import re
from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass, field
from typing import Any

import pyarrow as pa

from headrace.endpoints.ytsaurus.errors import refused
from headrace.endpoints.ytsaurus.parameters import as_text, is_boolean
from headrace.endpoints.ytsaurus.values import attributes_of
from headrace.wire.yson import documents, json_rows, json_values, rows_decoding, rows_encoding
from headrace.wire.ytsaurus.types import YtColumn

_YSON_TYPES = {
    "application/x-yt-yson-text": "text",
    "application/x-yt-yson-pretty": "pretty",
    "application/x-yt-yson-binary": "binary",
}
_JSON_TYPE = "application/json"
_NOT_WHITE = re.compile(r"[^ \t\r\n]")


@dataclass(frozen=True)
class Format:
    """A format: JSON or YSON.

    Attributes:
        name: ``json`` or ``yson``.
        attributes: set by the client, for example ``format`` (text, pretty or binary) for YSON, and ``encode_utf8``
            for JSON.
    """

    name: str
    attributes: Mapping[str, Any] = field(default_factory=dict)

    @property
    def text(self) -> bool:
        """Whether YSON is written as text; the default is binary."""
        return bool(self.attributes.get("format", "binary") != "binary")

    @property
    def encode_utf8(self) -> bool:
        """Whether strings in JSON have one character for each byte, U+0000 to U+00FF."""
        return bool(self.attributes.get("encode_utf8", True))

    @property
    def content_type(self) -> str:
        """The value of the header ``Content-Type``."""
        return _JSON_TYPE if self.name == "json" else f"application/x-yt-yson-{'text' if self.text else 'binary'}"


JSON = Format("json")
YSON = Format("yson")
YSON_TEXT = Format("yson", {"format": "text"})


def parse_format(value: Any, what: str) -> Format:
    """Parse the value of a format parameter or header.

    Args:
        what: the name of the parameter or header, for messages.
    """
    name = as_text(value)
    if name not in ("json", "yson"):
        problem = f"Error reading {what}: this endpoint does not have the format"
        raise refused(problem, received=repr(value)[:200], valid="json, yson")
    return Format(name, {key: _plain(inner) for key, inner in attributes_of(value).items()})


def format_of_header(text: str) -> Format | None:
    """Return the format of a content type, None for an unknown one."""
    kind = text.partition(";")[0].strip().lower()
    if kind == _JSON_TYPE:
        return JSON
    return Format("yson", {"format": _YSON_TYPES[kind]}) if kind in _YSON_TYPES else None


def read_value(data: bytes, form: Format) -> Any:
    """Read a structured value."""
    if form.name == "yson":
        try:
            return documents.loads(data)
        except documents.YsonError as error:
            raise refused(f"Error parsing YSON: {error}") from None
    try:
        value = json.loads(data)
    except (ValueError, RecursionError) as error:
        raise refused(f"Error parsing JSON: {error}") from None
    return _restored(value, form)


def read_json_values(data: bytes, form: Format) -> Iterator[Any]:
    """Read consecutive JSON values, with or without white space between them."""
    decoder, at = json.JSONDecoder(), 0
    try:
        text = data.decode()
        while found := _NOT_WHITE.search(text, at):
            value, at = decoder.raw_decode(text, found.start())
            yield _restored(value, form)
    except (ValueError, RecursionError) as error:
        raise refused(f"Error parsing JSON: {error}") from None


def _restored(value: Any, form: Format) -> Any:
    """Return a value of JSON as `documents.loads` returns the same value of YSON."""
    try:
        documents.check_depth(value)
        found = json_values.restored(value, encode_utf8=form.encode_utf8)
        return documents.loads(documents.dumps(found, text=False))
    except documents.YsonError as error:
        raise refused(f"Error parsing JSON: {error}") from None


def write_value(value: Any, form: Format) -> bytes:
    """Write a structured value.

    Raises:
        YtError: the format cannot represent a number in it.
    """
    if form.name == "yson":
        return documents.dumps(value, text=form.text, pretty=form.attributes.get("format") == "pretty")
    plain = json_values.plain(value, encode_utf8=form.encode_utf8)
    try:
        return json.dumps(plain, separators=(",", ":"), allow_nan=False).encode()
    except ValueError:
        problem = "Unexpected NaN or infinity encountered during JSON writing"
        raise refused(problem, remedy="ask for YSON: output_format=yson") from None


def read_rows(data: bytes, columns: Sequence[YtColumn], form: Format) -> pa.RecordBatch:
    """Read rows into columns; missing values are null."""
    if form.name == "yson":
        return rows_decoding.decode_rows(data, columns)
    return json_rows.decode_json_rows(data, columns, encode_utf8=form.encode_utf8)


def write_rows(batches: Sequence[pa.RecordBatch], columns: Sequence[YtColumn], form: Format) -> bytes:
    """Write rows, one batch after the other."""
    if form.name == "yson":
        return b"".join(rows_encoding.encode_rows(batch, columns, text=form.text) for batch in batches)
    return b"".join(json_rows.encode_json_rows(batch, columns, encode_utf8=form.encode_utf8) for batch in batches)


def _plain(value: Any) -> Any:
    return bool(value) if is_boolean(value) else as_text(value) or value
