"""Parsing of formats: their names and attributes, and the content types of HTTP that mean them.

Every attribute of a client changes the format, or is refused by name: a client that is not understood would get another
shape than it expects.
"""

from __future__ import annotations

from collections.abc import Callable, Mapping
from typing import Any, TypeAlias

from headrace_ytsaurus.endpoint.errors import refused
from headrace_ytsaurus.endpoint.formats import JSON, YSON, YSON_TEXT, Format
from headrace_ytsaurus.endpoint.parameters import flag_of, number_of
from headrace_ytsaurus.endpoint.values import attributes_of
from headrace_ytsaurus.wire.yson.json_values import JsonStyle
from headrace_ytsaurus.wire.yson.scalars import as_text, is_entity

Parse: TypeAlias = Callable[[Any, str], Any]

_MIME_TYPES = {
    "application/json": JSON,
    "application/x-yt-yson-text": YSON_TEXT,
    "application/x-yt-yson-pretty": Format("yson", text=True, pretty=True),
    "application/x-yt-yson-binary": YSON,
}
# Content types for which a cluster uses formats that the endpoint does not have.
_OTHER_MIME_TYPES = (
    "application/x-yamr-delimited",
    "application/x-yamr-lenval",
    "application/x-yamr-subkey-delimited",
    "application/x-yamr-subkey-lenval",
    "text/csv",
    "text/tab-separated-values",
    "text/x-tskv",
)


def _one_of(*valid: str) -> Parse:
    """Return a parser of texts of which the endpoint has these."""

    def parse(value: Any, what: str) -> str:
        found = as_text(value)
        if found not in valid:
            raise refused(f"Error reading {what}", received=repr(value)[:100], valid=", ".join(valid))
        return found

    return parse


def _only(expected: bool) -> Parse:
    """Return a parser of a flag of which the endpoint has one value."""

    def parse(value: Any, what: str) -> bool:
        if flag_of(value, what) is not expected:
            valid = f"%{str(expected).lower()}"
            raise refused(f"This endpoint does not have {what}", received=repr(value)[:100], valid=valid)
        return expected

    return parse


def _limit(value: Any, what: str) -> int | None:
    return None if is_entity(value) else number_of(value, what, least=0)


_OF_ROWS: Mapping[str, Parse] = {
    "skip_null_values": flag_of,
    "complex_type_mode": _one_of("named", "positional"),
    "string_keyed_dict_mode": _one_of("positional", "named"),
    "decimal_mode": _one_of("binary"),
    "time_mode": _one_of("binary"),
    "uuid_mode": _one_of("binary"),
    "enable_type_conversion": _only(False),
    "enable_string_to_all_conversion": _only(False),
    "enable_all_to_string_conversion": _only(False),
    "enable_integral_type_conversion": _only(True),
    "enable_integral_to_double_conversion": _only(False),
}
_OF_YSON: Mapping[str, Parse] = {
    **_OF_ROWS,
    "format": _one_of("binary", "text", "pretty"),
    # The attributes that Python's client reads itself, and sends.
    **dict.fromkeys(("ignore_inner_attributes", "always_create_attributes", "lazy", "sort_keys"), flag_of),
}
_STYLE: Mapping[str, Parse] = {
    "encode_utf8": flag_of,
    "plain": flag_of,
    "attributes_mode": _one_of("never", "on_demand", "always"),
    "stringify": flag_of,
    "annotate_with_types": flag_of,
    "string_length_limit": _limit,
    "stringify_nan_and_infinity": flag_of,
}
_OF_JSON: Mapping[str, Parse] = {
    **_OF_ROWS,
    **_STYLE,
    "format": _one_of("text", "pretty"),
    "support_infinity": _only(False),
    # Limits of a cluster's parser; the endpoint has its own.
    **dict.fromkeys(("memory_limit", "buffer_size", "nesting_level_limit"), _limit),
}
_KNOWN = {"json": _OF_JSON, "yson": _OF_YSON}


def parse_format(value: Any, what: str) -> Format:
    """Parse the value of a format parameter or header.

    Args:
        what: the name of the parameter or header, for messages.

    Raises:
        YtError: the endpoint does not have the format, an attribute, or its value.
    """
    name = as_text(value)
    known = _KNOWN.get(name or "")
    if name is None or known is None:
        problem = f"Error reading {what}: this endpoint does not have the format"
        raise refused(problem, received=repr(value)[:200], valid="json, yson")
    found: dict[str, Any] = {}
    for attribute, given in attributes_of(value).items():
        parse = known.get(attribute)
        if parse is None:
            problem = f"Error reading {what}: unknown attribute of the format {name}"
            raise refused(problem, received=attribute, valid=sorted(known))
        found[attribute] = parse(given, f'attribute "{attribute}" of the format in {what}')
    written = found.get("format")
    return Format(
        name,
        text=name == "yson" and written in ("text", "pretty"),
        pretty=written == "pretty",
        style=JsonStyle(**{attribute: found[attribute] for attribute in _STYLE if attribute in found}),
        skip_null_values=found.get("skip_null_values", False),
        positional=found.get("complex_type_mode") == "positional",
        named_dicts=found.get("string_keyed_dict_mode") == "named",
    )


def format_of_header(text: str) -> Format | None:
    """Return the format of a content type, None for one that means no format.

    Raises:
        YtError: a cluster uses another format for the content type.
    """
    kind = text.partition(";")[0].strip().lower()
    if kind in _OTHER_MIME_TYPES:
        raise refused("This endpoint does not have the format of a content type", received=kind, valid=_MIME_TYPES)
    return _MIME_TYPES.get(kind)
