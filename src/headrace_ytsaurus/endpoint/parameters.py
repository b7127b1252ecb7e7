"""The parameters of a command, with typed getters whose errors show the received and the valid values."""

from __future__ import annotations

from collections.abc import Collection, Iterator, Mapping
from typing import Any, Final

from headrace_ytsaurus.endpoint.ids import NULL_ID, is_id
from headrace_ytsaurus.wire.errors import Code, YtError
from headrace_ytsaurus.wire.paths import PathError, parse_path
from headrace_ytsaurus.wire.yson.scalars import as_flag, as_milliseconds, as_number, as_text, is_entity

_SHOWN = 200


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
        text = as_text(value)
        if text is None or (valid is not None and text not in valid):
            raise self._wrong(name, value, "a text" if valid is None else ", ".join(sorted(valid)))
        return text

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
        return number_of(value, f"parameter /{name}", least=least, most=most)

    def flag(self, name: str, default: bool = False) -> bool:
        """Return a boolean; see `flag_of`."""
        return flag_of(self.value(name, default), f"parameter /{name}")

    def duration(self, name: str, default: int, *, least: int = 0, most: int | None = None) -> int:
        """Return a duration in milliseconds, with inclusive bounds."""
        return duration_of(self.value(name, default), f"parameter /{name}", least=least, most=most)

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
        error = _unreadable(value, f"parameter /{name}", valid)
        error.attributes |= {"command": self._command, "parameter": name}
        return error


def flag_of(value: Any, what: str) -> bool:
    """Return a client's boolean, which may be a text or a number, see `as_flag`.

    Args:
        what: the name of the value, for the message.

    Raises:
        YtError: the value is not a boolean.
    """
    flag = as_flag(value)
    if flag is None:
        raise _unreadable(value, what, "%true or %false")
    return flag


def number_of(value: Any, what: str, *, least: int | None = None, most: int | None = None) -> int:
    """Return a client's whole number, which may be a text; ``least`` and ``most`` are inclusive.

    Raises:
        YtError: the value is not a whole number, or is out of bounds.
    """
    return _in_bounds(as_number(value), value, what, "a whole number", least, most)


def duration_of(value: Any, what: str, *, least: int = 0, most: int | None = None) -> int:
    """Return a client's duration in milliseconds, see `as_milliseconds`; ``least`` and ``most`` are inclusive.

    Raises:
        YtError: the value is not a duration, or is out of bounds.
    """
    return _in_bounds(as_milliseconds(value), value, what, "milliseconds, or a text such as 5m", least, most)


def _in_bounds(found: int | None, value: Any, what: str, valid: str, least: int | None, most: int | None) -> int:
    if found is None or (least is not None and found < least) or (most is not None and found > most):
        lower = "" if least is None else f", at least {least}"
        upper = "" if most is None else f", at most {most}"
        raise _unreadable(value, what, valid + lower + upper)
    return found


def _unreadable(value: Any, what: str, valid: str) -> YtError:
    shown = repr(value)
    shown = shown if len(shown) <= _SHOWN else shown[:_SHOWN] + "…"
    return YtError(Code.GENERIC, f"Error reading {what}", received=shown, valid=valid)
