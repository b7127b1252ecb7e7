"""The options of headrace's formats in definitions: checked where they are given, not where they are first used."""

from __future__ import annotations

from collections.abc import Mapping
from typing import TYPE_CHECKING

from headrace.streaming_sql.secrets import names_environment

if TYPE_CHECKING:
    from headrace.spark.options import Option


def options_of(provider: str) -> tuple[Option, ...]:
    """Return the options of one of headrace's formats."""
    from headrace.spark.options import OPTIONS_OF

    return OPTIONS_OF[provider.lower()]


def check_options(provider: str, options: Mapping[str, str]) -> None:
    """Make sure that a definition of one of headrace's formats can be used, as far as its text tells.

    Raises:
        OptionError: an option is missing, almost the name of another, or has a value that cannot be read.
    """
    from headrace.spark.options import Settings, locate

    known = options_of(provider)
    settings = Settings(known, options)
    names = {option.name.lower() for option in known}
    for name, value in options.items():
        if name.lower() in names and not names_environment(value):
            settings.get(name)
    locate(provider, options)
