"""Names of nodes, which may be any bytes. Bytes that are not UTF-8 become surrogates, as in Python's file names."""

from __future__ import annotations

from typing import Any

from yt import yson

_MARK = "\0"


def name_of(value: Any) -> Any:
    """Return a YSON string of any class as a name, and any other value unchanged."""
    raw = getattr(value, "_bytes", value)
    return bytes(raw).decode(errors="surrogateescape") if isinstance(raw, bytes) else value


def value_of(name: str) -> Any:
    """Return a name as a YSON string."""
    return name if _is_text(name) else yson.yson_types.make_byte_key(_bytes(name))


def shown(name: str) -> str:
    """Return a name in a form for messages."""
    return name if _is_text(name) else _bytes(name).decode(errors="backslashreplace")


def kept(name: str) -> str:
    """Return a name in the form in which it is saved: texts in SQLite must be UTF-8."""
    return name if _is_text(name) and not name.startswith(_MARK) else _MARK + _bytes(name).hex()


def restored(text: str) -> str:
    """Return a saved name."""
    if not text.startswith(_MARK):
        return text
    return bytes.fromhex(text[len(_MARK) :]).decode(errors="surrogateescape")


def _is_text(name: str) -> bool:
    try:
        name.encode()
    except UnicodeEncodeError:
        return False
    return True


def _bytes(name: str) -> bytes:
    return name.encode(errors="surrogateescape")
