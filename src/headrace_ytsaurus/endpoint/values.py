"""YSON values: plain Python types, and the classes of ``yt.yson`` for values with attributes."""

from __future__ import annotations

import datetime
from collections.abc import Mapping, Sequence
from typing import Any

from yt import yson

from headrace_ytsaurus.endpoint.errors import refused
from headrace_ytsaurus.endpoint.names import name_of
from headrace_ytsaurus.endpoint.names import value_of as name_value
from headrace_ytsaurus.wire.paths import AttributeName, index_in_list
from headrace_ytsaurus.wire.yson.scalars import as_text, is_boolean, is_entity

MISSING: Any = type("Missing", (), {"__repr__": lambda _: "MISSING"})()
"""The result of `look_inside` for a missing value."""
# The end of the year 9999, in milliseconds since 1970.
_MAX_TIME = 253402300799999
_EPOCH = datetime.datetime(1970, 1, 1, tzinfo=datetime.UTC)


def time_text(microseconds: int) -> str:
    """Return a time (µs since 1970) in YTsaurus' form."""
    return (_EPOCH + datetime.timedelta(microseconds=microseconds)).strftime("%Y-%m-%dT%H:%M:%S.%fZ")


def moment_of(value: Any, what: str) -> int:
    """Return the µs since 1970 of a client's time: a text in ISO 8601, UTC by default, or milliseconds since 1970.

    Raises:
        YtError: the value is not a time.
    """
    if isinstance(value, int | float) and not is_boolean(value) and 0 <= value <= _MAX_TIME:
        return int(value * 1000)
    try:
        found = datetime.datetime.fromisoformat(as_text(value) or "")
    except ValueError:
        valid = "a time such as 2030-01-31T00:00:00.000000Z, or milliseconds since 1970"
        raise refused(f"Error reading {what}", received=repr(value)[:100], valid=valid) from None
    found = found if found.tzinfo else found.replace(tzinfo=datetime.UTC)
    return (found - _EPOCH) // datetime.timedelta(microseconds=1)


def with_attributes(value: Any, attributes: Mapping[str, Any]) -> Any:
    """Return a value with attributes; the same value if there are none."""
    if not attributes:
        return value
    raw = getattr(value, "_bytes", None)
    if raw is None:
        return yson.to_yson_type(value, attributes=dict(attributes))
    # For a string that is not UTF-8, `to_yson_type` would use its repr.
    found = yson.yson_types.make_byte_key(raw)
    found.attributes = dict(attributes)
    return found


def with_json_attributes(value: Any) -> Any:
    """Return a map with ``$value``, and perhaps ``$attributes``, as a value with attributes; others unchanged."""
    if not isinstance(value, Mapping) or "$value" not in value or not value.keys() <= {"$value", "$attributes"}:
        return value
    attributes = value.get("$attributes", {})
    if not isinstance(attributes, Mapping):
        raise refused("$attributes must be a map", received=repr(attributes)[:100])
    return with_attributes(value["$value"], attributes)


def attributes_of(value: Any) -> Mapping[str, Any]:
    """Return the attributes of a value."""
    found = getattr(value, "__dict__", {}).get("attributes")
    return found if isinstance(found, Mapping) else {}


def without_attributes(value: Any) -> Any:
    """Return a value without its attributes. Values inside of it keep theirs."""
    if not attributes_of(value):
        return value
    if isinstance(value, Mapping):
        return dict(value)
    if isinstance(value, list):
        return list(value)
    if is_boolean(value):
        return bool(value)
    if isinstance(value, int):
        return yson.YsonUint64(value) if isinstance(value, yson.YsonUint64) else int(value)
    if isinstance(value, float):
        return float(value)
    if isinstance(value, str):
        return str(value)
    return None if is_entity(value) else name_value(name_of(value))


def type_of(value: Any) -> str:
    """Return the type of node for a value."""
    if is_entity(value):
        return "entity"
    if is_boolean(value):
        return "boolean_node"
    if isinstance(value, Mapping):
        return "map_node"
    if isinstance(value, list):
        return "list_node"
    if isinstance(value, int):
        return "uint64_node" if isinstance(value, yson.YsonUint64) or value >= 1 << 63 else "int64_node"
    return "double_node" if isinstance(value, float) else "string_node"


def look_inside(value: Any, names: Sequence[str]) -> Any:
    """Return the value at a path of map keys, list indexes and names of attributes; `MISSING` if there is none."""
    for name in names:
        if isinstance(name, AttributeName):
            value = attributes_of(value).get(name, MISSING) if name else dict(attributes_of(value))
        elif isinstance(value, Mapping):
            value = value.get(name_value(name), MISSING)
        elif isinstance(value, list):
            place = index_in_list(name, len(value))
            value = MISSING if place is None else value[place]
        else:
            return MISSING
        if value is MISSING:
            return MISSING
    return value


def set_inside(value: Any, names: Sequence[str], new: Any, *, recursive: bool = False) -> Any:
    """Return a copy of a value with a new value at a path of map keys and list indexes.

    The last name can also be ``begin``, ``end``, ``before:3`` or ``after:3``, which insert the value into a list.

    Returns:
        `MISSING` if the path does not exist, and cannot be created.
    """
    if not names:
        return new
    name, rest = names[0], names[1:]
    if isinstance(name, AttributeName):
        return MISSING
    if isinstance(value, Mapping):
        name = name_value(name)
        inner = value.get(name, MISSING)
        if inner is MISSING and rest:
            inner = {} if recursive else MISSING
        changed = new if not rest else set_inside(inner, rest, new, recursive=recursive)
        return MISSING if changed is MISSING else {**value, name: changed}
    if isinstance(value, list):
        return _set_in_list(value, name, rest, new, recursive)
    return MISSING


def _set_in_list(value: list[Any], name: str, rest: Sequence[str], new: Any, recursive: bool) -> Any:
    how, _, where = name.partition(":")
    if not rest and name in ("begin", "end"):
        place = 0 if name == "begin" else len(value)
        return [*value[:place], new, *value[place:]]
    if not rest and how in ("before", "after"):
        between = index_in_list(where, len(value))
        if between is None:
            return MISSING
        between += how == "after"
        return [*value[:between], new, *value[between:]]
    at = index_in_list(name, len(value))
    if at is None:
        return MISSING
    changed = set_inside(value[at], rest, new, recursive=recursive)
    return MISSING if changed is MISSING else [*value[:at], changed, *value[at + 1 :]]


def remove_inside(value: Any, names: Sequence[str]) -> Any:
    """Return a copy of a value without the value at a path; `MISSING` if there is none."""
    outer = look_inside(value, names[:-1])
    if isinstance(names[-1], AttributeName) or look_inside(outer, names[-1:]) is MISSING:
        return MISSING
    if isinstance(outer, Mapping):
        smaller: Any = {name: item for name, item in outer.items() if name != name_value(names[-1])}
    else:
        place = index_in_list(names[-1], len(outer))
        smaller = [item for number, item in enumerate(outer) if number != place]
    return set_inside(value, names[:-1], smaller)


def names_of(value: Sequence[Any]) -> list[str]:
    """Return a list of YSON strings as ``str``."""
    found = [as_text(item) for item in value]
    if None in found:
        raise refused("a list has an item that is not a text", received=repr(list(value))[:200])
    return [item for item in found if item is not None]
