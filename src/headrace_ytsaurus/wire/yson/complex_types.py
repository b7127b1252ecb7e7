"""The other forms of composite values: structs as lists, and maps with string keys as YSON maps."""

from __future__ import annotations

from collections.abc import Callable, Mapping
from typing import Any, TypeAlias

from headrace_ytsaurus.wire.types import TypeV3, members_of, type_parts, untagged

Convert: TypeAlias = Callable[[Any], Any]
_STRINGS = ("string", "utf8")


def other_form(yt: TypeV3, *, positional: bool, named_dicts: bool) -> Convert | None:
    """Return a function that converts a value from the usual form of its type; None if the forms are the same.

    Args:
        positional: structs are lists of their members, and variants have the number of their member
            (``complex_type_mode=positional``).
        named_dicts: a dict with strings as keys is a map instead of a list of pairs (``string_keyed_dict_mode=named``).
    """

    def of(part: TypeV3) -> Convert | None:
        return other_form(part, positional=positional, named_dicts=named_dicts)

    name, parts = type_parts(untagged(yt))
    match name:
        case "optional":
            return _of_optional(parts["item"], of(parts["item"]))
        case "list":
            item = of(parts["item"])
            return item and (lambda value: [_call(item, one) for one in value])
        case "dict":
            key, item = of(parts["key"]), of(parts["value"])
            named = named_dicts and type_parts(untagged(parts["key"]))[0] in _STRINGS
            if named:
                return lambda value: {name: _call(item, one) for name, one in _pairs(value)}
            return (key or item) and (lambda value: [[_call(key, one), _call(item, two)] for one, two in _pairs(value)])
        case "struct" | "tuple" | "variant":
            return _of_members(name, untagged(yt), of, positional)
    return None


def _of_optional(item: TypeV3, convert: Convert | None) -> Convert | None:
    if convert is None:
        return None
    if type_parts(untagged(item))[0] == "optional":
        # The value of an optional inside of an optional is a list with one item.
        return lambda value: None if value is None else [_call(convert, one) for one in value]
    return lambda value: _call(convert, value)


def _of_members(name: str, yt: TypeV3, of: Callable[[TypeV3], Convert | None], positional: bool) -> Convert | None:
    members = [(wire_name.encode(), of(part)) for _, wire_name, part in members_of(yt)]
    by_name = "members" in type_parts(yt)[1]
    if not (positional and by_name) and not any(convert for _, convert in members):
        return None
    converts = dict(members)
    numbers = {wire_name: place for place, (wire_name, _) in enumerate(members)}

    def variant(value: Any) -> list[Any]:
        choice = value[0] if by_name else b"%d" % value[0]
        return [numbers[choice] if positional else value[0], _call(converts[choice], value[1])]

    def struct(value: Any) -> Any:
        given = value if isinstance(value, Mapping) else dict(zip(converts, value, strict=True))
        found = {wire_name: _call(convert, given.get(wire_name)) for wire_name, convert in members}
        return found if by_name and not positional else list(found.values())

    return variant if name == "variant" else struct


def _call(convert: Convert | None, value: Any) -> Any:
    return value if convert is None or value is None else convert(value)


def _pairs(value: Any) -> Any:
    return value.items() if isinstance(value, Mapping) else value
