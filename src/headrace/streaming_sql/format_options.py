"""The options of headrace's formats in definitions: checked where they are given, not where they are first used."""

from __future__ import annotations

from collections.abc import Collection, Mapping

from headrace.formats.option_checks import check_options, options_for
from headrace.formats.options import Option
from headrace.formats.registry import format_named
from headrace.streaming_sql.providers import is_headrace
from headrace.streaming_sql.secrets import names_environment


def options_of(provider: str) -> tuple[Option, ...]:
    """Return the options of one of headrace's formats."""
    return format_named(provider).options


def check_definition(provider: str, options: Mapping[str, str], *, place: str = "") -> None:
    """Make sure that a definition of one of headrace's formats can be used, as far as its text tells.

    Raises:
        OptionError: an option is missing, unknown, or has a value that cannot be read.
    """
    check_given(provider, options, place=place)
    format_named(provider).locate(options)


def check_given(
    provider: str, options: Mapping[str, str], *, use: str | None = None, more: Collection[str] = (), place: str = ""
) -> None:
    """Check the names of options, and the values that are not taken from the environment.

    Args:
        use: the only use that the options are for; any if None.
        more: names that the statement takes besides the format's.
        place: the statement, for messages.

    Raises:
        OptionError: an option is unknown, of no effect in this use, or has a value that cannot be read.
    """
    check_options(format_named(provider), options, use=use, more=more, place=place)
    settings = format_named(provider).settings(options)
    own = {option.name.lower() for option in options_of(provider)}
    for name, value in options.items():
        if name.lower() in own and not names_environment(value):
            settings.get(name)


def options_for_use(provider: str, options: Mapping[str, str], use: str) -> dict[str, str]:
    """Return the options that one use of a provider has: those of a table's definition may be for several uses."""
    return options_for(format_named(provider), options, use) if is_headrace(provider) else dict(options)
