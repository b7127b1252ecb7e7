"""YSON values in YTsaurus' JSON form.

By default every byte of a string is one code point from 0 to 255 (``encode_utf8`` in YTsaurus), so that strings can
contain any bytes. A value with attributes is an object with ``$value`` and ``$attributes``; with ``$type``, the value
can be a number as a text. A key that begins with a dollar gets another dollar; no other key begins with one. A number
is unsigned only if ``$type`` says so. `JsonStyle` has the attributes of the format that change this.
"""

from __future__ import annotations

import math
import re
from collections.abc import Mapping
from dataclasses import dataclass
from typing import Any, Literal

from headrace_ytsaurus.wire.yson.documents import YsonError
from headrace_ytsaurus.wire.yson.scalars import is_boolean

_TYPES = ("string", "int64", "uint64", "double", "boolean")
_BOUNDS = {"int64": (-(1 << 63), (1 << 63) - 1), "uint64": (0, (1 << 64) - 1)}
_NUMBER = re.compile(r"-?[0-9]{1,20}")


@dataclass(frozen=True)
class JsonStyle:
    """The variants of the form, under YTsaurus' names.

    Attributes:
        encode_utf8: strings have one code point for each byte; otherwise they are texts.
        plain: dollars in received objects have no meaning.
        attributes_mode: ``never`` omits attributes, ``always`` writes them for every value.
        stringify: numbers and booleans are written as texts.
        annotate_with_types: scalars are written with ``$type``.
        string_length_limit: longer strings are cut to this number of bytes, and written with ``$incomplete``.
        stringify_nan_and_infinity: these numbers are written as texts. Otherwise they are errors.
    """

    encode_utf8: bool = True
    plain: bool = False
    attributes_mode: Literal["never", "on_demand", "always"] = "on_demand"
    stringify: bool = False
    annotate_with_types: bool = False
    string_length_limit: int | None = None
    stringify_nan_and_infinity: bool = False


USUAL = JsonStyle()


def plain(value: Any, style: JsonStyle = USUAL) -> Any:
    """Convert a value of `documents.loads` to types of JSON.

    Raises:
        YsonError: a string is not UTF-8, and ``encode_utf8`` is false.
    """
    kind, found, incomplete = _plain(value, style)
    if style.attributes_mode == "never":
        return found
    around: dict[str, Any] = {}
    attributes = getattr(value, "__dict__", {}).get("attributes")
    if attributes:
        around["$attributes"] = {_key(name, style): plain(one, style) for name, one in attributes.items()}
    if incomplete:
        around["$incomplete"] = True
    if style.annotate_with_types and kind:
        around["$type"] = kind
    if style.attributes_mode == "always" and not around:
        around["$attributes"] = {}
    return {**around, "$value": found} if around else found


def restored(value: Any, style: JsonStyle = USUAL) -> Any:
    """Convert a JSON value to YSON, with strings and keys as bytes; the inverse of `plain`.

    Raises:
        YsonError: a string has a code point above 255, and ``encode_utf8`` is true; a key begins with one dollar; or
            there are attributes or a type without a value.
    """
    if isinstance(value, str):
        return _bytes(value, style)
    if isinstance(value, list):
        return [restored(one, style) for one in value]
    if not isinstance(value, dict):
        return value
    if "$value" in value and not style.plain:
        return _with_attributes(value, style)
    return {_name(name, style): restored(one, style) for name, one in value.items()}


def unescaped(name: str) -> str:
    """Return a key of a map without the additional dollar.

    Raises:
        YsonError: the key begins with a single dollar, which is reserved for values with attributes.
    """
    if not name.startswith("$"):
        return name
    if name == "$attributes":
        raise YsonError('key "$attributes" without key "$value"')
    if not name.startswith("$$"):
        raise YsonError(f'key {ascii(name)[:60]} starts with single "$"', remedy='write "$$" for a key with a dollar')
    return name[1:]


def typed(value: Any, kind: Any) -> Any:
    """Convert a JSON scalar to the type in ``$type``.

    Raises:
        YsonError: the type is unknown, or does not fit the value.
    """
    from yt.yson import YsonUint64

    if kind not in _TYPES:
        raise YsonError('unexpected "$type" value', received=ascii(kind)[:60], valid=", ".join(_TYPES))
    whole = isinstance(value, int) and not isinstance(value, bool)
    try:
        if kind == "string" and isinstance(value, str):
            return value
        if kind == "boolean" and (isinstance(value, bool) or value in ("true", "false")):
            return value in (True, "true")
        if kind == "double" and (whole or isinstance(value, float | str)):
            return float(value)
        if kind in _BOUNDS and (whole or (isinstance(value, str) and _NUMBER.fullmatch(value))):
            number = int(value)
            least, most = _BOUNDS[kind]
            if least <= number <= most:
                return YsonUint64(number) if kind == "uint64" else number
    except ValueError:
        pass
    raise YsonError("type mismatch in JSON", received=ascii(value)[:60], valid=kind)


def _plain(value: Any, style: JsonStyle) -> tuple[str, Any, bool]:
    """Return the name of a scalar's type, the value in JSON without its attributes, and whether it is cut."""
    if isinstance(value, Mapping):
        return "", {_key(name, style): plain(one, style) for name, one in value.items()}, False
    if isinstance(value, list | tuple):
        return "", [plain(one, style) for one in value], False
    if isinstance(value, str | bytes) or hasattr(value, "_bytes"):
        data, limit = _data(value), style.string_length_limit
        cut = limit is not None and len(data) > limit and style.attributes_mode != "never"
        return "string", _text(data[:limit] if cut else data, style), cut
    if is_boolean(value):
        found = bool(value)
        return "boolean", str(found).lower() if style.stringify else found, False
    if isinstance(value, int):
        kind = "uint64" if type(value).__name__ == "YsonUint64" or value >= 1 << 63 else "int64"
        return kind, str(int(value)) if style.stringify else int(value), False
    if isinstance(value, float):
        as_text = style.stringify or (style.stringify_nan_and_infinity and not math.isfinite(value))
        return "double", repr(float(value)).removesuffix(".0") if as_text else float(value), False
    return "", None, False


def _with_attributes(value: dict[str, Any], style: JsonStyle) -> Any:
    from yt.yson import to_yson_type

    attributes = value.get("$attributes") or {}
    if not isinstance(attributes, dict):
        raise YsonError("attributes that are not a map", received=f"a {type(attributes).__name__}")
    # `yt.yson` requires texts as names of attributes.
    around = {_name(name, style).decode(errors="replace"): restored(one, style) for name, one in attributes.items()}
    inner = value["$value"]
    inner = restored(typed(inner, value["$type"]) if "$type" in value else inner, style)
    return to_yson_type(inner, attributes=around) if around else inner


def _key(name: Any, style: JsonStyle) -> str:
    """Return the key of a map for JSON, with an additional dollar if it begins with one."""
    text = _text(_data(name), style)
    return "$" + text if text.startswith("$") else text


def _name(key: str, style: JsonStyle) -> bytes:
    """Return the name that a key in JSON means; the inverse of `_key`."""
    escaped = not style.plain and style.attributes_mode != "never"
    return _bytes(unescaped(key) if escaped else key, style)


def _data(value: Any) -> bytes:
    """Return the bytes of a YSON string; `yt.yson` has a separate class for strings that are not UTF-8."""
    return bytes(value if isinstance(value, bytes) else value.encode() if isinstance(value, str) else value._bytes)


def _text(data: bytes, style: JsonStyle) -> str:
    try:
        return data.decode("latin-1" if style.encode_utf8 else "utf-8")
    except UnicodeDecodeError:
        raise YsonError("a string that is not UTF-8, and no other can be written without encode_utf8") from None


def _bytes(text: str, style: JsonStyle) -> bytes:
    try:
        return text.encode("latin-1" if style.encode_utf8 else "utf-8")
    except UnicodeEncodeError:
        raise YsonError(
            "a JSON string has a character that is not a byte" if style.encode_utf8 else "a JSON string is not Unicode",
            received=ascii(text)[:60],
            valid="U+0000 to U+00FF, one for each byte; or any text with the format attribute encode_utf8=%false",
        ) from None
