"""The parameters of a command, with typed getters whose errors show the received and the valid values."""

from __future__ import annotations

import re
from collections.abc import Collection, Iterator, Mapping
from typing import Any, Final

from headrace.endpoints.ytsaurus.ids import NULL_ID, is_id
from headrace.wire.ytsaurus.errors import Code, YtError
from headrace.wire.ytsaurus.paths import PathError, parse_path

_SHOWN = 200
_NUMBER = re.compile(r"-?[0-9]{1,20}")


class _Required:
    """The default of a required parameter."""


REQUIRED: Final[Any] = _Required()


def _name(name: Any) -> str:
    try:
        return str(name)
    except TypeError:
        # A string of yt.yson that holds bytes raises `NotUnicodeError`.
        raise YtError(Code.GENERIC, "a parameter whose name is not UTF-8", received=repr(name)[:_SHOWN]) from None


class Parameters(Mapping[str, Any]):
    """The parameters of one command. An entity (``#``, null) counts as a missing parameter.

    Args:
        values: name → value of a plain Python type or one of ``yt.yson``.
        command: the name of the command, for messages.

    Raises:
        YtError: a name is not UTF-8.
    """

    def __init__(self, values: Mapping[str, Any], command: str = "") -> None:
        self._values = {_name(name): value for name, value in values.items() if not is_entity(value)}
        self._command = command

    def __getitem__(self, name: str) -> Any:
        return self._values[name]

    def __iter__(self) -> Iterator[str]:
        return iter(self._values)

    def __len__(self) -> int:
        return len(self._values)

    def value(self, name: str, default: Any = REQUIRED) -> Any:
        """Return a parameter unchanged."""
        if name in self._values:
            return self._values[name]
        if default is REQUIRED:
            raise YtError(Code.GENERIC, f"Missing required parameter /{name}", attributes={"command": self._command})
        return default

    def text(self, name: str, default: Any = REQUIRED, *, valid: Collection[str] | None = None) -> Any:
        """Return a text; if ``valid`` is given, it must be one of these."""
        value = self.value(name, default)
        if name not in self._values:
            return value
        found = as_text(value)
        if found is None or (valid is not None and found not in valid):
            raise self._wrong(name, value, "a text" if valid is None else ", ".join(sorted(valid)))
        return found

    def object_id(self, name: str, default: Any = REQUIRED) -> Any:
        """Return the id of an object; the null id counts as a missing parameter."""
        value = self.text(name, default)
        if name in self._values and not is_id(value):
            raise self._wrong(name, value, "an id: 1-2-3-4")
        return default if value == NULL_ID and default is not REQUIRED else value

    def number(self, name: str, default: Any = REQUIRED, *, least: int | None = None, most: int | None = None) -> Any:
        """Return a whole number, with optional inclusive bounds."""
        value = self.value(name, default)
        if name not in self._values:
            return value
        # Parameters in a URL are texts.
        text = as_text(value)
        if text is not None and _NUMBER.fullmatch(text):
            value = int(text)
        if is_boolean(value) or not isinstance(value, int):
            raise self._wrong(name, value, "a whole number")
        if (least is not None and value < least) or (most is not None and value > most):
            upper = "" if most is None else f" and at most {most}"
            raise self._wrong(name, value, f"a number, at least {least}{upper}")
        return int(value)

    def flag(self, name: str, default: bool = False) -> bool:
        """Return a boolean; the texts "true" and "false" are valid too."""
        value = self.value(name, default)
        if is_boolean(value):
            return bool(value)
        found = as_text(value)
        if found in ("true", "false"):
            return found == "true"
        raise self._wrong(name, value, "%true or %false")

    def mapping(self, name: str, default: Any = REQUIRED) -> Any:
        """Return a map."""
        value = self.value(name, default)
        if name in self._values and not isinstance(value, Mapping):
            raise self._wrong(name, value, "a map")
        return value

    def sequence(self, name: str, default: Any = REQUIRED) -> Any:
        """Return a list."""
        value = self.value(name, default)
        if name in self._values and not isinstance(value, list):
            raise self._wrong(name, value, "a list")
        return value

    def path(self, name: str = "path", default: Any = REQUIRED) -> Any:
        """Return a `YPath` with the attributes of the text."""
        value = self.value(name, default)
        if name not in self._values:
            return value
        raw = getattr(value, "_bytes", value)
        if not isinstance(raw, str | bytes):
            raise self._wrong(name, value, "a path such as //tmp/t")
        try:
            # A string that is not UTF-8 has a separate class, which may have attributes.
            return parse_path(value) if raw is value else parse_path(raw, getattr(value, "attributes", None))
        except PathError as error:
            raise YtError(
                Code.GENERIC,
                f"Error reading parameter /{name}: {error.problem}",
                received=error.received,
                valid=error.valid,
                attributes={"command": self._command, "parameter": name},
            ) from None

    def _wrong(self, name: str, value: Any, valid: str) -> YtError:
        shown = repr(value)
        shown = shown if len(shown) <= _SHOWN else shown[:_SHOWN] + "…"
        return YtError(
            Code.GENERIC,
            f"Error reading parameter /{name}",
            received=shown,
            valid=valid,
            attributes={"command": self._command, "parameter": name},
        )


def is_entity(value: Any) -> bool:
    """Return whether a value is Python's None or YSON's entity."""
    return value is None or type(value).__name__ == "YsonEntity"


def is_boolean(value: Any) -> bool:
    """Return whether a value is a boolean of Python or of YSON, whose class is not a subclass of ``bool``."""
    return isinstance(value, bool) or type(value).__name__ == "YsonBoolean"


def as_text(value: Any) -> str | None:
    """Return a string of any YSON class as ``str``; None for another value and for bytes that are not UTF-8."""
    if isinstance(value, bytes):
        try:
            return bytes(value).decode()
        except UnicodeDecodeError:
            return None
    return str(value) if isinstance(value, str) else None
