"""Checks of options in statements, for headrace's formats."""

from __future__ import annotations

from collections.abc import Callable, Collection, Mapping
from typing import Any, TypeAlias

from headrace.errors import OptionError
from headrace.formats.option_checks import check_options, options_for
from headrace.formats.registry import format_named
from headrace.options.names import check_names
from headrace.options.option import SINK, Option
from headrace.options.secrets import names_environment, resolved
from headrace.streaming_sql.catalog import TableDefinition
from headrace.streaming_sql.providers import is_headrace
from headrace.streaming_sql.stream_options import KNOWN, StreamOptions

OwnOption: TypeAlias = tuple[str, Callable[[str], object]]
"""The Python name of an option of a new table or queue, and the function that reads its text."""


def options_of(provider: str) -> tuple[Option, ...]:
    """Return the options of one of headrace's formats."""
    return format_named(provider).options


def check_definition(provider: str, options: Mapping[str, str], *, place: str = "") -> None:
    """Check the options of a definition without opening its store.

    Raises:
        OptionError: an option is missing, unknown, or has an invalid value.
    """
    check_given(provider, options, place=place)
    format_named(provider).locate(options)


def check_given(
    provider: str, options: Mapping[str, str], *, use: str | None = None, more: Collection[str] = (), place: str = ""
) -> None:
    """Check the names of options, and the values that do not contain environment variables.

    Args:
        use: the use of the format, whose options are valid; None for all uses.
        more: additional valid names.
        place: the statement, for messages.

    Raises:
        OptionError: an option is unknown, has no effect in this use, or has an invalid value.
    """
    check_options(format_named(provider), options, use=use, more=more, place=place)
    settings = format_named(provider).settings(options)
    own = {option.name.lower() for option in options_of(provider)}
    for name, value in options.items():
        if name.lower() in own and not names_environment(value):
            settings.get(name)


def split_options(
    where: str, provider: str, options: Mapping[str, str], own: Mapping[str, OwnOption]
) -> tuple[dict[str, str], dict[str, Any]]:
    """Return the options of a format, and the values of those of a new table or queue by their Python names.

    Args:
        where: the table or queue, for messages.
        own: the options of a new table or queue, by their names in SQL.

    Raises:
        OptionError: an option is unknown, or has an invalid value.
    """
    known = [option.name for option in options_of(provider)]
    names = check_names(where, options, [*own, *known], any_case=True)
    of_new = {name: value for name, value in options.items() if names[name] in own}
    settings: dict[str, Any] = {}
    for name, text in resolved(of_new, where).items():
        field, read = own[names[name]]
        try:
            settings[field] = read(text)
        except ValueError as error:
            raise OptionError(f"invalid value of option {name}", received=repr(text)[:200], valid=str(error)) from None
    return {name: value for name, value in options.items() if name not in of_new}, settings


def options_for_use(provider: str, options: Mapping[str, str], use: str) -> dict[str, str]:
    """Return the options that apply to one use. A table's definition can have options for several uses."""
    return options_for(format_named(provider), options, use) if is_headrace(provider) else dict(options)


def check_sink_options(
    name: str, target: TableDefinition | None, given: Mapping[str, str], options: StreamOptions
) -> None:
    """Raise `OptionError` for options that neither the stream nor its sink knows. Spark's sinks check their own.

    Args:
        given: the options of the statement, before environment variables are replaced.
    """
    if target is not None and is_headrace(target.provider):
        own = {option: value for option, value in given.items() if option in options.sink}
        place = f"stream {name} into format {target.provider}"
        check_given(target.provider, own, use=SINK, more=KNOWN, place=place)


def sink_options(target: TableDefinition | None, options: StreamOptions) -> dict[str, str]:
    """Return the options of the sink: those of the target table, overridden by those of the stream."""
    if target is None:
        return {}
    return options_for_use(target.provider, target.resolved_options(options.sink), SINK)
