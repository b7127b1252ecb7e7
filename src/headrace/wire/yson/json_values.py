"""YSON values in YTsaurus' JSON form.

By default every byte of a string is one code point from 0 to 255 (``encode_utf8`` in YTsaurus), so that strings can
contain any bytes. A value with attributes is an object with ``$value`` and ``$attributes``; with ``$type``, the value
can be a number as a text. A key that begins with a dollar gets another dollar; no other key begins with one. A number
is unsigned only if ``$type`` says so.
"""

from __future__ import annotations

import re
from collections.abc import Mapping
from typing import Any

from headrace.wire.yson.documents import YsonError

_TYPES = ("string", "int64", "uint64", "double", "boolean")
_BOUNDS = {"int64": (-(1 << 63), (1 << 63) - 1), "uint64": (0, (1 << 64) - 1)}
_NUMBER = re.compile(r"-?[0-9]{1,20}")


def plain(value: Any, *, encode_utf8: bool = True) -> Any:
    """Convert a value of `documents.loads` to types of JSON.

    Raises:
        YsonError: a string is not UTF-8, and ``encode_utf8`` is false.
    """
    attributes = getattr(value, "__dict__", {}).get("attributes")
    found = _plain(value, encode_utf8)
    if not attributes:
        return found
    around = {_text(name, encode_utf8): plain(one, encode_utf8=encode_utf8) for name, one in attributes.items()}
    return {"$value": found, "$attributes": around}


def restored(value: Any, *, encode_utf8: bool = True) -> Any:
    """Convert a JSON value to YSON, with strings and keys as bytes; the inverse of `plain`.

    Raises:
        YsonError: a string has a code point above 255, and ``encode_utf8`` is true; a key begins with one dollar; or
            there are attributes or a type without a value.
    """
    if isinstance(value, str):
        return _bytes(value, encode_utf8)
    if isinstance(value, list):
        return [restored(one, encode_utf8=encode_utf8) for one in value]
    if not isinstance(value, dict):
        return value
    if "$value" in value:
        return _with_attributes(value, encode_utf8)
    return {_bytes(unescaped(name), encode_utf8): restored(one, encode_utf8=encode_utf8) for name, one in value.items()}


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


def _plain(value: Any, encode_utf8: bool) -> Any:
    if isinstance(value, Mapping):
        items = ((_text(name, encode_utf8), plain(one, encode_utf8=encode_utf8)) for name, one in value.items())
        return {"$" + name if name.startswith("$") else name: one for name, one in items}
    if isinstance(value, list | tuple):
        return [plain(one, encode_utf8=encode_utf8) for one in value]
    if isinstance(value, str | bytes) or hasattr(value, "_bytes"):
        return _text(value, encode_utf8)
    if isinstance(value, bool) or type(value).__name__ == "YsonBoolean":
        return bool(value)
    if isinstance(value, int):
        return int(value)
    return float(value) if isinstance(value, float) else None


def _with_attributes(value: dict[str, Any], encode_utf8: bool) -> Any:
    from yt.yson import to_yson_type

    attributes = value.get("$attributes") or {}
    if not isinstance(attributes, dict):
        raise YsonError("attributes that are not a map", received=f"a {type(attributes).__name__}")
    # `yt.yson` requires texts as names of attributes.
    around = {
        _bytes(unescaped(name), encode_utf8).decode(errors="replace"): restored(one, encode_utf8=encode_utf8)
        for name, one in attributes.items()
    }
    inner = value["$value"]
    inner = restored(typed(inner, value["$type"]) if "$type" in value else inner, encode_utf8=encode_utf8)
    return to_yson_type(inner, attributes=around) if around else inner


def _text(value: Any, encode_utf8: bool) -> str:
    """Return a YSON string for JSON; `yt.yson` has a separate class for strings that are not UTF-8."""
    data = value if isinstance(value, bytes) else value.encode() if isinstance(value, str) else value._bytes
    try:
        return bytes(data).decode("latin-1" if encode_utf8 else "utf-8")
    except UnicodeDecodeError:
        raise YsonError("a string that is not UTF-8, and no other can be written without encode_utf8") from None


def _bytes(text: str, encode_utf8: bool) -> bytes:
    try:
        return text.encode("latin-1" if encode_utf8 else "utf-8")
    except UnicodeEncodeError:
        raise YsonError(
            "a JSON string has a character that is not a byte" if encode_utf8 else "a JSON string is not Unicode",
            received=ascii(text)[:60],
            valid="U+0000 to U+00FF, one for each byte; or any text with the format attribute encode_utf8=%false",
        ) from None
