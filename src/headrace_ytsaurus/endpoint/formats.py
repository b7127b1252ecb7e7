"""Formats of structured values and rows in requests and answers."""

from __future__ import annotations

import dataclasses
import json
import re
from collections.abc import Callable, Iterable, Iterator, Mapping, Sequence
from dataclasses import dataclass
from typing import Any

import pyarrow as pa

from headrace.errors import SchemaError
from headrace_ytsaurus.endpoint.errors import refused
from headrace_ytsaurus.wire.errors import Code, YtError
from headrace_ytsaurus.wire.types import YtColumn
from headrace_ytsaurus.wire.yson import documents, json_rows, rows_decoding, rows_encoding
from headrace_ytsaurus.wire.yson.complex_types import other_form
from headrace_ytsaurus.wire.yson.json_values import USUAL, JsonStyle, plain, restored
from headrace_ytsaurus.wire.yson.rows_decoding import Decoded
from headrace_ytsaurus.wire.yson.scalars import is_entity

_NOT_WHITE = re.compile(r"[^ \t\r\n]")


@dataclass(frozen=True)
class Format:
    """A format: JSON or YSON, with the attributes that the client sets.

    Attributes:
        name: ``json`` or ``yson``.
        text: YSON is written as text; the default is binary.
        pretty: each item is on a line of its own.
        style: the variant of JSON.
        skip_null_values: columns without a value are left out of rows.
        positional: structs and variants are written by numbers instead of names.
        named_dicts: dicts whose keys are strings are written as maps.
    """

    name: str
    text: bool = False
    pretty: bool = False
    style: JsonStyle = USUAL
    skip_null_values: bool = False
    positional: bool = False
    named_dicts: bool = False

    @property
    def content_type(self) -> str:
        """The value of the header ``Content-Type``."""
        if self.name == "json":
            return "application/json"
        return f"application/x-yt-yson-{'pretty' if self.pretty else 'text' if self.text else 'binary'}"

    @property
    def by_columns(self) -> bool:
        """Whether rows are written column by column, which is fast."""
        usual = dataclasses.replace(USUAL, encode_utf8=self.style.encode_utf8)
        return self.style == usual and not (self.pretty or self.skip_null_values)


JSON = Format("json")
YSON = Format("yson")
YSON_TEXT = Format("yson", text=True)


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
        while start := _NOT_WHITE.search(text, at):
            value, at = decoder.raw_decode(text, start.start())
            yield _restored(value, form)
    except (ValueError, RecursionError) as error:
        raise refused(f"Error parsing JSON: {error}") from None


def _restored(value: Any, form: Format) -> Any:
    """Return a value of JSON as `documents.loads` returns the same value of YSON."""
    try:
        documents.check_depth(value)
        yson_value = restored(value, form.style)
        return documents.loads(documents.dumps(yson_value, text=False))
    except documents.YsonError as error:
        raise refused(f"Error parsing JSON: {error}") from None


def write_value(value: Any, form: Format) -> bytes:
    """Write a structured value.

    Raises:
        YtError: the format cannot represent a number in it.
    """
    if form.name == "yson":
        return documents.dumps(value, text=form.text, pretty=form.pretty)
    shape: dict[str, Any] = {"indent": 4} if form.pretty else {"separators": (",", ":")}
    try:
        return json.dumps(plain(value, form.style), allow_nan=False, **shape).encode()
    except ValueError as error:
        if isinstance(error, documents.YsonError):
            raise
        raise refused(
            "Unexpected NaN or infinity encountered during JSON writing",
            remedy="ask for YSON (output_format=yson), or set the format attribute stringify_nan_and_infinity",
        ) from None


def write_items(items: Iterable[Any], form: Format) -> bytes:
    """Write values as items of a list fragment, for example rows."""
    end = b"\n" if form.name == "json" else b";\n" if form.text else b";"
    if form.skip_null_values:
        items = map(_without_nulls, items)
    return b"".join(write_value(item, form) + end for item in items)


def read_rows(data: bytes, form: Format, columns: Sequence[YtColumn], table: str) -> Decoded:
    """Read rows.

    Args:
        columns: the columns of a table that can be written, and additional columns of a command.
        table: the path of the table, for messages.

    Raises:
        YtError: a row is null or has an unknown column; 307, a value does not fit its column.
    """
    try:
        if form.name == "yson":
            decoded = rows_decoding.read_rows(data, columns)
        else:
            decoded = json_rows.read_json_rows(data, columns, form.style)
    except SchemaError as error:
        raise YtError(Code.SCHEMA_VIOLATION, str(error)) from None
    if decoded.unknown:
        raise YtError(
            Code.COLUMN_NOT_FOUND,
            f"No such column {min(decoded.unknown)!r} in table {table}, or it cannot be written",
            valid=", ".join(column.name for column in columns),
            attributes={"path": table},
        )
    if decoded.absent is not None:
        raise refused(f"A row for table {table} is null")
    return decoded


def write_rows(batches: Sequence[pa.RecordBatch], columns: Sequence[YtColumn], form: Format) -> bytes:
    """Write rows, one batch after the other."""
    converts = {
        column.name.encode(): convert
        for column in columns
        if (convert := other_form(column.yt, positional=form.positional, named_dicts=form.named_dicts))
    }
    if converts or not form.by_columns:
        return b"".join(write_items(_items(batch, columns, converts), form) for batch in batches)
    if form.name == "yson":
        return b"".join(rows_encoding.encode_rows(batch, columns, text=form.text) for batch in batches)
    utf8 = form.style.encode_utf8
    return b"".join(json_rows.encode_json_rows(batch, columns, encode_utf8=utf8) for batch in batches)


def _items(
    batch: pa.RecordBatch, columns: Sequence[YtColumn], converts: Mapping[bytes, Callable[[Any], Any]]
) -> list[Any]:
    """Return rows as maps, with values in another form than that of their type."""
    rows = documents.load_fragment(rows_encoding.encode_rows(batch, columns))
    for row in rows:
        for name, convert in converts.items():
            if row[name] is not None:
                row[name] = convert(row[name])
    return rows


def _without_nulls(row: Any) -> Any:
    if not isinstance(row, Mapping):
        return row
    return {name: value for name, value in row.items() if not is_entity(value)}
