"""Names of nodes: any bytes. Those that are no UTF-8 are texts with surrogates, as Python has names of files."""

from __future__ import annotations

from typing import Any

from yt import yson

_MARK = "\0"


def name_of(value: Any) -> Any:
    """Return the name that a string of YSON is, of whatever class; anything else as it is."""
    raw = getattr(value, "_bytes", value)
    return bytes(raw).decode(errors="surrogateescape") if isinstance(raw, bytes) else value


def value_of(name: str) -> Any:
    """Return a name as a string of YSON."""
    return name if _is_text(name) else yson.yson_types.make_byte_key(_bytes(name))


def shown(name: str) -> str:
    """Return a name for a message."""
    return name if _is_text(name) else _bytes(name).decode(errors="backslashreplace")


def kept(name: str) -> str:
    """Return a name as it is kept: SQLite has only texts that are UTF-8."""
    return name if _is_text(name) and not name.startswith(_MARK) else _MARK + _bytes(name).hex()


def restored(text: str) -> str:
    """Return a name that was kept."""
    if not text.startswith(_MARK):
        return text
    try:
        return bytes.fromhex(text[len(_MARK) :]).decode(errors="surrogateescape")
    except ValueError:
        # Earlier versions kept names that begin with a zero as they are.
        return text


def _is_text(name: str) -> bool:
    try:
        name.encode()
    except UnicodeEncodeError:
        return False
    return True


def _bytes(name: str) -> bytes:
    return name.encode(errors="surrogateescape")
