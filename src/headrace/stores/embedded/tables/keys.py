"""Keys as JSON: a list of values, with bytes as ``{"b": base64}``. None, an open bound, stays None."""

from __future__ import annotations

import base64
import json
from typing import overload

from headrace.tables.schema import Key


@overload
def key_to_json(key: None) -> None: ...
@overload
def key_to_json(key: Key) -> str: ...
@overload
def key_to_json(key: Key | None) -> str | None: ...
def key_to_json(key: Key | None) -> str | None:
    """Return a key, or the beginning of one, as JSON text."""
    if key is None:
        return None
    values = [{"b": base64.b64encode(value).decode()} if isinstance(value, bytes) else value for value in key]
    return json.dumps(values, separators=(",", ":"), ensure_ascii=False)


@overload
def key_from_json(text: None) -> None: ...
@overload
def key_from_json(text: str) -> Key: ...
@overload
def key_from_json(text: str | None) -> Key | None: ...
def key_from_json(text: str | None) -> Key | None:
    """Read a key back; the inverse of `key_to_json`."""
    if text is None:
        return None
    return tuple(base64.b64decode(value["b"]) if isinstance(value, dict) else value for value in json.loads(text))
