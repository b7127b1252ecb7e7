"""Checks of the arguments of all methods of the ports, before a store gets them.

The annotation of a parameter in a port defines the check: `str` is a text that UTF-8 can encode, `int` an integer of 64
bits, `float` a finite number, `bool` True or False. So a store gets arguments of the right types, and only checks
whether names, partitions and rows exist. `headrace.rows` checks the values of rows, keys and conditions against the
columns.

An invalid value raises `OptionError`. A missing or unknown argument raises Python's own `TypeError`.
"""

from __future__ import annotations

import collections.abc
import dataclasses
import functools
import inspect
import math
import numbers
import os
import threading
import types
import typing
from abc import ABC
from collections.abc import Callable, Iterable, Iterator, Mapping, Sequence
from typing import Any, Literal, TypeAlias

import pyarrow as pa

from headrace.errors import OptionError, SchemaError, shown
from headrace.model.tables.schema import KeyValue, TableSchema, parse_columns
from headrace.support import counters

Check: TypeAlias = Callable[[Any, str], Any]
"""Takes a value and its name for messages; returns the value, converted from similar types."""

_LARGEST = 2**63 - 1
# In seconds since 1970: stores use microseconds in 64 bits.
_LAST_TIME = 9.2e12
# The longest time that Python can wait.
_LONGEST = threading.TIMEOUT_MAX


class Port(ABC):  # noqa: B024 (subclasses declare abstract methods)
    """The base of the ports: methods that a subclass implements check their arguments first."""

    def __init_subclass__(cls) -> None:
        super().__init_subclass__()
        for name, method in list(vars(cls).items()):
            if not inspect.isfunction(method) or name.startswith("_") or hasattr(method, "__isabstractmethod__"):
                continue
            checks = checks_of(cls, name)
            if checks:
                setattr(cls, name, _checked(method, checks, f"{_port_of(cls, name)}.{name}"))


def _port_of(cls: type, name: str) -> str:
    """Return the name of the port that declares a method."""
    return next(port.__name__ for port in reversed(cls.__mro__) if issubclass(port, Port) and name in vars(port))


def checks_of(cls: type, name: str) -> dict[str, Check]:
    """Return the checks of a method's parameters in order, from the annotations of the port that declares it."""
    declared = next(
        (vars(port)[name] for port in reversed(cls.__mro__) if issubclass(port, Port) and name in vars(port)), None
    )
    if declared is None or declared.__module__.rpartition(".")[0] != __package__:
        # A method that is not part of a port.
        return {}
    declared = inspect.unwrap(declared)
    parameters = list(inspect.signature(declared).parameters.values())[1:]
    return {parameter.name: _check_of_parameter(parameter, declared.__globals__) for parameter in parameters}


def _checked(method: Callable[..., Any], checks: Mapping[str, Check], operation: str) -> Callable[..., Any]:
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
        if not counters.enabled:
            return method(self, *checked, *args[len(checked) :], **kwargs)
        with counters.store_operation(operation):
            return method(self, *checked, *args[len(checked) :], **kwargs)

    return call


# -- plain values ---------------------------------------------------------------------------------------


def text(value: Any, name: str) -> str:
    """Check a text: names, paths, ids."""
    if not isinstance(value, str):
        raise OptionError(f"{name} must be a text", received=shown(value), valid="a str")
    if not value.isascii():
        try:
            value.encode()
        except UnicodeEncodeError:
            raise OptionError(
                f"{name} contains a lone surrogate",
                received=shown(value),
                valid="a text that UTF-8 can encode",
            ) from None
    return value


def path(value: Any, name: str) -> str:
    """Check a path of this machine: a text, or an object such as `pathlib.Path`."""
    if isinstance(value, os.PathLike):
        value = os.fspath(value)
    checked: str = text(value, name)
    if not checked.strip() or "\0" in checked:
        raise OptionError(f"{name} must be a path", received=shown(value), valid="a path without NUL characters")
    return checked


def function(value: Any, name: str) -> Any:
    """Check a function."""
    if not callable(value):
        raise OptionError(f"{name} must be a function", received=shown(value))
    return value


def whole(value: Any, name: str) -> int:
    """Check an integer: partitions, row indexes, counts."""
    if isinstance(value, bool) or not isinstance(value, numbers.Integral):
        raise OptionError(f"{name} must be an integer", received=shown(value), valid="an int")
    number = int(value)
    if not -_LARGEST - 1 <= number <= _LARGEST:
        raise OptionError(f"{name} is out of range", received=shown(value), valid=f"{-_LARGEST - 1} to {_LARGEST}")
    return number


def moment(value: Any, name: str) -> float:
    """Check a time in seconds since 1970."""
    return _number(value, name, -_LAST_TIME, _LAST_TIME)


def duration(value: Any, name: str) -> float:
    """Check a number of seconds."""
    return _number(value, name, 0.0, _LONGEST)


def _number(value: Any, name: str, least: float, most: float) -> float:
    if isinstance(value, bool) or not isinstance(value, numbers.Real):
        raise OptionError(f"{name} must be a number of seconds", received=shown(value), valid="an int or a float")
    try:
        number = float(value)
    except OverflowError:
        number = math.inf
    if not least <= number <= most:
        raise OptionError(f"{name} is out of range", received=shown(value), valid=f"{least:g} to {most:g} seconds")
    return number


def flag(value: Any, name: str) -> bool:
    """Check a boolean. Texts such as "false" are invalid, because they would count as true."""
    if isinstance(value, bool):
        return value
    if type(value).__module__ == "numpy" and type(value).__name__ in ("bool", "bool_"):
        return bool(value)
    raise OptionError(f"{name} must be True or False", received=shown(value))


def octets(value: Any, name: str) -> bytes | bytearray | memoryview:
    """Check bytes."""
    if not isinstance(value, bytes | bytearray | memoryview):
        raise OptionError(f"{name} is bytes", received=shown(value), valid="bytes, a bytearray or a memoryview")
    return value


def any_value(value: Any, name: str) -> Any:
    """Accept any value: later code checks it."""
    return value


def setting(value: Any, name: str) -> Any:
    """Check that an option is not an integer of more than 64 bits. The store checks the type."""
    return whole(value, f"option {name}") if isinstance(value, int) and not isinstance(value, bool) else value


# -- values made of others ------------------------------------------------------------------------------


def each(check: Check) -> Check:
    """Check a list or another iterable, but not a text or a mapping."""

    def elements(value: Any, name: str) -> list[Any]:
        if isinstance(value, str | bytes | Mapping) or not isinstance(value, Iterable):
            raise OptionError(f"{name} must be a list", received=shown(value))
        return [check(element, f"each of {name}") for element in value]

    return elements


def mapping(key: Check, item: Check) -> Check:
    """Check a mapping."""

    def pairs(value: Any, name: str) -> Mapping[Any, Any]:
        if not isinstance(value, Mapping):
            raise OptionError(f"{name} must be a mapping", received=shown(value), valid="a dict")
        return {key(at, f"each key of {name}"): item(element, f"each value of {name}") for at, element in value.items()}

    return pairs


@functools.cache
def instance(kind: type) -> Check:
    """Check an instance of a class, and its fields if it is a dataclass."""
    hints = typing.get_type_hints(kind) if dataclasses.is_dataclass(kind) else {}
    fields = {name: check_of(name, hint) for name, hint in hints.items()}

    def checked(value: Any, name: str) -> Any:
        if not isinstance(value, kind):
            raise OptionError(f"{name} must be a {kind.__name__}", received=shown(value))
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
    origin = typing.get_origin(kind)
    found: type = str if origin is Literal else origin or kind
    return found


_PLAIN: dict[Any, Check] = {str: text, int: whole, bool: flag, bytes: octets, Any: any_value, KeyValue: any_value}


def check_of(name: str, kind: Any) -> Check:
    """Return the check for a type.

    Raises:
        LookupError: there is no check for the type.
    """
    if kind is float:
        return moment if name == "timestamp" else duration
    if kind in _PLAIN:
        return _PLAIN[kind]
    origin, inner = typing.get_origin(kind), typing.get_args(kind)
    if origin in (types.UnionType, typing.Union):
        found = [each for each in inner if each is not types.NoneType]
        check = either(name, found) if len(found) > 1 else check_of(name, found[0])
        return check if len(found) == len(inner) else _optional(check)
    if origin is Literal:
        # The store checks the value, and ignores case.
        return text
    if origin in (collections.abc.Sequence, tuple):
        return each(check_of(name, inner[0]))
    if origin is collections.abc.Mapping:
        return mapping(*(check_of(name, part) for part in inner))
    if isinstance(kind, type):
        return instance(kind)
    raise LookupError(f"no check for {name}: {kind}")


def columns(value: Any, name: str) -> Any:
    """Check that columns are a mapping or a schema. `parse_columns` checks their names and types."""
    if not isinstance(value, Mapping | pa.Schema):
        parse_columns(value)
    if isinstance(value, pa.Schema):
        try:
            value.names  # noqa: B018 (reading the names decodes them)
        except UnicodeDecodeError as error:
            raise SchemaError("the name of a column is not UTF-8", received=repr(error.object)) from None
    return value


def batches(value: Any, name: str) -> Iterator[pa.RecordBatch]:
    """Check an iterable of record batches while it is read."""
    if isinstance(value, str | bytes | Mapping) or not isinstance(value, Iterable):
        raise OptionError(f"{name} must be record batches", received=shown(value))
    return _batches(value, name)


def _batches(value: Iterable[Any], name: str) -> Iterator[pa.RecordBatch]:
    for batch in value:
        if not isinstance(batch, pa.RecordBatch):
            raise OptionError(f"{name} must be record batches", received=shown(batch))
        yield batch


# `headrace.rows` checks rows and conditions against the columns.
_BY_ANNOTATION: dict[str, Check] = {
    "Rows": any_value,
    "Where | None": any_value,
    "Iterable[pa.RecordBatch]": batches,
    "str | os.PathLike[str]": path,
    "Progress | None": _optional(function),
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


def checked_prefixes(given: object, schema: TableSchema) -> pa.Table:
    """Return the beginnings of keys in the types of the key's columns; see `headrace.ports.Table.get_by_prefix`.

    Raises:
        OptionError: they are no Arrow table of the first columns of the key, or their values have other types.
    """
    key = schema.primary_key
    if (
        not isinstance(given, pa.Table)
        or not given.num_columns
        or tuple(given.column_names) != key[: given.num_columns]
    ):
        received = given.column_names if isinstance(given, pa.Table) else shown(given)
        raise OptionError("prefixes must be an Arrow table of the first key columns", received=received, valid=key)
    types = pa.schema([(name, schema.arrow.field(name).type) for name in given.column_names])
    try:
        return given.cast(types)
    except (pa.ArrowInvalid, pa.ArrowNotImplementedError, pa.ArrowTypeError) as error:
        raise OptionError("prefixes do not have the types of the key", received=str(error), valid=str(types)) from None
