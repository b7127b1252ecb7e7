"""`Settings`: the values of the options that a user gave to a format."""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any

from headrace.errors import OptionError
from headrace.options.kinds import secret
from headrace.options.option import Option


class Settings:
    """The options of one use of a format, as typed values.

    Names are compared without regard to case. `option_checks` checks the names; an unknown name has no effect here.

    Args:
        options: the options of the format.
        given: the texts of the options that the user set, by name.
    """

    def __init__(self, options: tuple[Option, ...], given: Mapping[str, str]) -> None:
        self._options = {option.name.lower(): option for option in options}
        self._given = {name.lower(): value for name, value in given.items()}

    def __repr__(self) -> str:
        # Values may be secrets.
        return f"Settings({', '.join(sorted(self._given))})"

    def get(self, name: str) -> Any:
        """Return the value of an option, or of its default; None if it has neither.

        Raises:
            OptionError: the text is not valid.
        """
        option = self._options[name.lower()]
        text = self._given.get(name.lower(), option.default)
        return None if text is None else self._read(option, text)

    def _read(self, option: Option, text: str) -> Any:
        try:
            return option.kind(text)
        except OptionError:
            raise
        except ValueError as error:
            received = None if option.kind is secret else repr(text)[:200]
            raise OptionError(f"option {option.name} cannot be read", received=received, valid=str(error)) from None

    def need(self, name: str, why: str = "") -> str:
        """Return the text of an option that must be set and not empty.

        Args:
            why: why it must be set, for the message: `` for a stream``.

        Raises:
            OptionError: the option is missing, or its text is not valid.
        """
        text, option = self._given.get(name.lower()), self._options[name.lower()]
        if not text:
            raise OptionError(f"option {option.name} is missing{why}", valid=option.meaning)
        self._read(option, text)
        return text

    def check(self) -> Settings:
        """Return these settings after reading all given options, used or not.

        Raises:
            OptionError: the text of an option is not valid.
        """
        for name in self._given.keys() & self._options.keys():
            self.get(name)
        return self

    def is_set(self, name: str) -> bool:
        """Return whether the user set an option."""
        return name.lower() in self._given

    def first(self, names: tuple[str, ...]) -> Any:
        """Return the first value that is not None of these options; None if there is none."""
        values = (self.get(name) for name in names)
        return next((value for value in values if value is not None), None)
