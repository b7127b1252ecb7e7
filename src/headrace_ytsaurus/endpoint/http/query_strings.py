"""Parameters in the query of a URL: ``path=//tmp&attributes[]=type&output_format[$value]=json``.

As in a cluster's proxy, a text with a whole number is a number, a name in brackets is a key of a map, and a number or
nothing in brackets is a place in a list.
"""

from __future__ import annotations

import re
from typing import Any
from urllib.parse import unquote_to_bytes

from headrace_ytsaurus.endpoint.errors import refused
from headrace_ytsaurus.wire.yson.scalars import as_text

MAX_FIELDS = 1000
_MAX_NESTING = 6
_MAX_INDEX = 1024
_NAME = re.compile(r"([^\[\]]+)((?:\[[^\[\]]*\])*)")
_INSIDE = re.compile(r"\[([^\[\]]*)\]")
_INTEGER = re.compile(r"-?[0-9]{1,19}")
_BOUND = 1 << 63


def parse_query(query: bytes) -> dict[str, Any]:
    """Return the parameters in a query.

    Raises:
        YtError: there are too many, a name is malformed, or two parameters have the same name.
    """
    fields = [field for field in query.split(b"&") if field]
    if len(fields) > MAX_FIELDS:
        raise refused("the query of the request has too many parts", valid=f"at most {MAX_FIELDS}")
    arguments: dict[str, Any] = {}
    for field in fields:
        # The library's parser of whole queries replaces bytes that are not UTF-8.
        name, _, value = (unquote_to_bytes(part.replace(b"+", b" ")) for part in field.partition(b"="))
        _insert(arguments, name.decode(errors="replace"), _scalar(value))
    return arguments


def _scalar(value: bytes) -> Any:
    text = as_text(value)
    if text is None or not _INTEGER.fullmatch(text) or not -_BOUND <= int(text) < _BOUND:
        return value if text is None else text
    return int(text)


def _insert(arguments: dict[str, Any], argument: str, value: Any) -> None:
    parsed = _NAME.fullmatch(argument)
    inside = _INSIDE.findall(parsed[2]) if parsed else []
    if parsed is None or len(inside) > _MAX_NESTING:
        valid = f"name, name[key], name[0] or name[], with at most {_MAX_NESTING} brackets"
        raise refused("the name of a parameter in the query cannot be read", received=argument[:100], valid=valid)
    container: Any = arguments
    key: Any = parsed[1]
    for name in inside:
        inner = container.get(key) if isinstance(container, dict) else container[key]
        place = name == "" or _INTEGER.fullmatch(name) is not None
        if inner is None:
            inner = [] if place else {}
            container[key] = inner
        if isinstance(inner, list) is not place or not isinstance(inner, list | dict):
            raise _conflict(argument)
        container, key = inner, _place(inner, name) if isinstance(inner, list) else name
    if (container.get(key) if isinstance(container, dict) else container[key]) is not None:
        raise _conflict(argument)
    container[key] = value


def _place(items: list[Any], name: str) -> int:
    """Return the index for a name in brackets, after extending the list to it."""
    index = int(name) if name else len(items)
    if not 0 <= index <= _MAX_INDEX:
        raise refused("a list in the query has no such place", received=name, valid=f"0 to {_MAX_INDEX}")
    items.extend([None] * (index + 1 - len(items)))
    return index


def _conflict(argument: str) -> Exception:
    return refused("Conflicting values in the query", received=argument[:100], valid="one value for each name")
