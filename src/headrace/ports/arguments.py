"""The boundary for arguments: what a caller passes to a port's method is checked before any store sees it.

The annotation of a parameter in a port says what is valid, and the check follows from it: `str` is a text that UTF-8
can encode, `int` a whole number of 64 bits, `float` a finite number, `bool` True or False. A store then knows the types
of what it gets, and checks what only it knows: which names, partitions and rows there are. The values of rows, keys and
conditions are checked against the columns, in `headrace.rows`.

A value that is not valid raises `OptionError`. Calls of another shape (an argument missing, or one that the method does
not have) raise Python's own `TypeError`.
"""

from __future__ import annotations

import collections.abc
import dataclasses
import functools
import inspect
import math
import numbers
import threading
import types
import typing
from abc import ABC
from collections.abc import Callable, Iterable, Iterator, Mapping, Sequence
from typing import Any, TypeAlias

import pyarrow as pa

from headrace.errors import OptionError, SchemaError, shown
from headrace.tables.schema import KeyValue, parse_columns

Check: TypeAlias = Callable[[Any, str], Any]
"""Takes a value and what messages call it; returns the value, in a plain type where it had a similar one."""

_LARGEST = 2**63 - 1
# In seconds since 1970; stores count in microseconds of 64 bits.
_LAST_MOMENT = 9.2e12
# Python can wait no longer.
_LONGEST = threading.TIMEOUT_MAX


class Port(ABC):  # noqa: B024 (what is abstract is the ports' own)
    """The base of the ports: in subclasses, methods of a port check their arguments first."""

    def __init_subclass__(cls) -> None:
        super().__init_subclass__()
        for name, method in list(vars(cls).items()):
            if not inspect.isfunction(method) or name.startswith("_") or hasattr(method, "__isabstractmethod__"):
                continue
            checks = checks_of(cls, name)
            if checks:
                setattr(cls, name, _checked(method, checks))


def checks_of(cls: type, name: str) -> dict[str, Check]:
    """Return the checks of a method's parameters in their order, as the port that declares it annotates them."""
    declared = next(
        (vars(port)[name] for port in reversed(cls.__mro__) if issubclass(port, Port) and name in vars(port)), None
    )
    if declared is None or declared.__module__.rpartition(".")[0] != __package__:
        # A method of the store's own, for code that knows the store.
        return {}
    declared = inspect.unwrap(declared)
    parameters = list(inspect.signature(declared).parameters.values())[1:]
    return {parameter.name: _check_of_parameter(parameter, declared.__globals__) for parameter in parameters}


def _checked(method: Callable[..., Any], checks: Mapping[str, Check]) -> Callable[..., Any]:
    variable = next(
        (each.name for each in inspect.signature(method).parameters.values() if each.kind is each.VAR_KEYWORD), None
    )
    in_order = [(name, check) for name, check in checks.items() if name != variable]
    of_others = any_value if variable is None else checks.get(variable, any_value)

    @functools.wraps(method)
    def call(self: Any, /, *args: Any, **kwargs: Any) -> Any:
        checked = [check(value, name) for value, (name, check) in zip(args, in_order, strict=False)]
        for name, value in kwargs.items():
            kwargs[name] = checks.get(name, of_others)(value, name)
        return method(self, *checked, *args[len(checked) :], **kwargs)

    return call


# -- plain values ---------------------------------------------------------------------------------------


def text(value: Any, name: str) -> str:
    """Check a text: names, paths, ids."""
    if not isinstance(value, str):
        raise OptionError(f"{name} is a text", received=shown(value), valid="a str")
    if not value.isascii():
        try:
            value.encode()
        except UnicodeEncodeError:
            raise OptionError(
                f"{name} has half of a surrogate pair in it",
                received=shown(value),
                valid="a text that UTF-8 can encode",
            ) from None
    return value


def whole(value: Any, name: str) -> int:
    """Check a whole number: partitions, row indexes, counts."""
    if isinstance(value, bool) or not isinstance(value, numbers.Integral):
        raise OptionError(f"{name} is a whole number", received=shown(value), valid="an int")
    number = int(value)
    if not -_LARGEST - 1 <= number <= _LARGEST:
        raise OptionError(f"{name} is out of range", received=shown(value), valid=f"{-_LARGEST - 1} to {_LARGEST}")
    return number


def moment(value: Any, name: str) -> float:
    """Check a time in seconds since 1970."""
    return _number(value, name, -_LAST_MOMENT, _LAST_MOMENT)


def duration(value: Any, name: str) -> float:
    """Check a number of seconds."""
    return _number(value, name, 0.0, _LONGEST)


def _number(value: Any, name: str, least: float, most: float) -> float:
    if isinstance(value, bool) or not isinstance(value, numbers.Real):
        raise OptionError(f"{name} is a number of seconds", received=shown(value), valid="an int or a float")
    try:
        number = float(value)
    except OverflowError:
        number = math.inf
    if not least <= number <= most:
        raise OptionError(f"{name} is out of range", received=shown(value), valid=f"{least:g} to {most:g} seconds")
    return number


def flag(value: Any, name: str) -> bool:
    """Check a switch. A text such as "false" is no switch: it would count as true."""
    if isinstance(value, bool):
        return value
    if type(value).__module__ == "numpy" and type(value).__name__ in ("bool", "bool_"):
        return bool(value)
    raise OptionError(f"{name} is True or False", received=shown(value))


def octets(value: Any, name: str) -> bytes | bytearray | memoryview:
    """Check bytes."""
    if not isinstance(value, bytes | bytearray | memoryview):
        raise OptionError(f"{name} is bytes", received=shown(value), valid="bytes, a bytearray or a memoryview")
    return value


def any_value(value: Any, name: str) -> Any:
    """Check nothing: it is checked where more is known of it."""
    return value


def setting(value: Any, name: str) -> Any:
    """Check the value of an option, whose store knows its type; no option takes a number of more than 64 bits."""
    return whole(value, f"option {name}") if isinstance(value, int) and not isinstance(value, bool) else value


# -- values made of others ------------------------------------------------------------------------------


def each(check: Check) -> Check:
    """Check a list, or anything that can be iterated over but a text or a mapping."""

    def elements(value: Any, name: str) -> list[Any]:
        if isinstance(value, str | bytes | Mapping) or not isinstance(value, Iterable):
            raise OptionError(f"{name} is a list", received=shown(value))
        return [check(element, f"each of {name}") for element in value]

    return elements


def mapping(key: Check, item: Check) -> Check:
    """Check a mapping."""

    def pairs(value: Any, name: str) -> Mapping[Any, Any]:
        if not isinstance(value, Mapping):
            raise OptionError(f"{name} is a mapping", received=shown(value), valid="a dict")
        return {key(at, f"each key of {name}"): item(element, f"each value of {name}") for at, element in value.items()}

    return pairs


@functools.cache
def instance(kind: type) -> Check:
    """Check a value of a class, with its fields where it is a dataclass."""
    hints = typing.get_type_hints(kind) if dataclasses.is_dataclass(kind) else {}
    fields = {name: check_of(name, hint) for name, hint in hints.items()}

    def checked(value: Any, name: str) -> Any:
        if not isinstance(value, kind):
            raise OptionError(f"{name} is a {kind.__name__}", received=shown(value))
        for field, check in fields.items():
            check(getattr(value, field), f"{field} of {name}")
        return value

    return checked


def _optional(check: Check) -> Check:
    return lambda value, name: None if value is None else check(value, name)


def either(name: str, kinds: Sequence[Any]) -> Check:
    """Check a value of one of several types."""
    checks = [(_classes_of(kind), check_of(name, kind)) for kind in kinds]
    *_, (_, last) = checks

    def checked(value: Any, name: str) -> Any:
        found = next((check for classes, check in checks if isinstance(value, classes)), last)
        return found(value, name)

    return checked


def _classes_of(kind: Any) -> type:
    found: type = typing.get_origin(kind) or kind
    return found


_PLAIN: dict[Any, Check] = {str: text, int: whole, bool: flag, bytes: octets, Any: any_value, KeyValue: any_value}


def check_of(name: str, kind: Any) -> Check:
    """Return the check of a parameter of some type.

    Raises:
        LookupError: no check is known for the type.
    """
    if kind is float:
        return moment if name == "timestamp" else duration
    if kind in _PLAIN:
        return _PLAIN[kind]
    origin, inner = typing.get_origin(kind), typing.get_args(kind)
    if origin in (types.UnionType, typing.Union):
        found = [each for each in inner if each is not types.NoneType]
        check = either(name, found) if len(found) > 1 else check_of(name, found[0])
        return (
            check if len(found) == len(inner) else (lambda value, name: None if value is None else check(value, name))
        )
    if origin in (collections.abc.Sequence, tuple):
        return each(check_of(name, inner[0]))
    if origin is collections.abc.Mapping:
        return mapping(*(check_of(name, part) for part in inner))
    if isinstance(kind, type):
        return instance(kind)
    raise LookupError(f"no check for {name}: {kind}")


def columns(value: Any, name: str) -> Any:
    """Check that columns are given as a mapping or schema; their names and types are checked where they are parsed."""
    if not isinstance(value, Mapping | pa.Schema):
        parse_columns(value)
    if isinstance(value, pa.Schema):
        try:
            value.names  # noqa: B018 (names are decoded when they are asked for)
        except UnicodeDecodeError as error:
            raise SchemaError("the name of a column is not UTF-8", received=repr(error.object)) from None
    return value


def batches(value: Any, name: str) -> Iterator[pa.RecordBatch]:
    """Check record batches as they come."""
    if isinstance(value, str | bytes | Mapping) or not isinstance(value, Iterable):
        raise OptionError(f"{name} are record batches", received=shown(value))
    return _batches(value, name)


def _batches(value: Iterable[Any], name: str) -> Iterator[pa.RecordBatch]:
    for batch in value:
        if not isinstance(batch, pa.RecordBatch):
            raise OptionError(f"{name} are record batches", received=shown(batch))
        yield batch


# Rows and conditions are checked against the columns, see `headrace.rows`.
_BY_ANNOTATION: dict[str, Check] = {
    "Rows": any_value,
    "Where | None": any_value,
    "Iterable[pa.RecordBatch]": batches,
    "Mapping[str, str | pa.DataType]": columns,
    "Mapping[str, str | pa.DataType] | pa.Schema": columns,
    "Mapping[str, str | pa.DataType] | pa.Schema | None": _optional(columns),
}


def _check_of_parameter(parameter: inspect.Parameter, names: dict[str, Any]) -> Check:
    annotation = str(parameter.annotation)
    if parameter.kind is parameter.VAR_KEYWORD:
        return setting
    if annotation in _BY_ANNOTATION:
        return _BY_ANNOTATION[annotation]
    return check_of(parameter.name, eval(annotation, names))
