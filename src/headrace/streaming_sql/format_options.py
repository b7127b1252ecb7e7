"""The options of headrace's formats in definitions: checked where they are given, not where they are first used."""

from __future__ import annotations

from collections.abc import Collection, Mapping

from headrace.formats.option_checks import check_options, options_for
from headrace.formats.options import OPTIONS_OF, Option, Settings, locate
from headrace.streaming_sql.providers import is_headrace
from headrace.streaming_sql.secrets import names_environment


def options_of(provider: str) -> tuple[Option, ...]:
    """Return the options of one of headrace's formats."""
    return OPTIONS_OF[provider.lower()]


def check_definition(provider: str, options: Mapping[str, str], *, place: str = "") -> None:
    """Make sure that a definition of one of headrace's formats can be used, as far as its text tells.

    Raises:
        OptionError: an option is missing, unknown, or has a value that cannot be read.
    """
    check_given(provider, options, place=place)
    locate(provider, options)


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
    check_options(provider, options, use=use, more=more, place=place)
    settings = Settings(options_of(provider), options)
    own = {option.name.lower() for option in options_of(provider)}
    for name, value in options.items():
        if name.lower() in own and not names_environment(value):
            settings.get(name)


def options_for_use(provider: str, options: Mapping[str, str], use: str) -> dict[str, str]:
    """Return the options that one use of a provider has: those of a table's definition may be for several uses."""
    return options_for(provider, options, use) if is_headrace(provider) else dict(options)
