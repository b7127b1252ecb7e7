"""Checks of arguments: a store gets only arguments of the annotated types, with any arguments of a caller."""

from __future__ import annotations

import importlib
import inspect
import math
from collections.abc import Callable, Sequence
from typing import Any, cast

import pytest

from headrace import ports
from headrace.errors import HeadraceError, OptionError, shown
from headrace.model.tunnels.values import Position
from headrace.ports import Files, Queue, Store, Table
from headrace.ports.arguments import Port, checks_of
from tests.unit.hostile_values import VALUES, Unprintable
from tests.unit.test_layers import ROOT

PORTS = [each for each in vars(ports).values() if isinstance(each, type) and issubclass(each, Port)]
METHODS = [
    (port, name)
    for port in PORTS
    for name, method in vars(port).items()
    if inspect.isfunction(method) and not name.startswith("_")
]


def is_text(value: Any) -> bool:
    return isinstance(value, str) and value.encode() is not None


def is_whole(value: Any) -> bool:
    return type(value) is int and -(2**63) <= value < 2**63


def _or_none(valid: Callable[[Any], bool]) -> Callable[[Any], bool]:
    return lambda value: value is None or valid(value)


VALID: dict[str, Callable[[Any], bool]] = {
    "str": is_text,
    "int": is_whole,
    "bool": lambda value: type(value) is bool,
    "float": lambda value: type(value) is float and math.isfinite(value),
    "Mapping[int, int]": lambda value: all(is_whole(each) for pair in value.items() for each in pair),
    "Sequence[str]": lambda value: not isinstance(value, str) and all(map(is_text, value)),
    "Position": lambda value: isinstance(value, Position) and is_text(value.token) and is_whole(value.skip),
}
VALID |= {f"{name} | None": _or_none(valid) for name, valid in VALID.items()}


@pytest.mark.parametrize(("port", "name"), METHODS, ids=lambda part: getattr(part, "__name__", part))
def test_every_argument_of_a_port_has_its_annotated_type_or_is_refused(port: type[Port], name: str) -> None:
    checks = checks_of(port, name)
    parameters = list(inspect.signature(vars(port)[name]).parameters.values())[1:]
    assert list(checks) == [parameter.name for parameter in parameters]
    for parameter in parameters:
        valid = VALID.get(str(parameter.annotation), lambda _: True)
        for value in VALUES:
            try:
                checked = checks[parameter.name](value, parameter.name)
            except HeadraceError as error:
                message = str(error).encode()
            else:
                message = parameter.name.encode()
                assert valid(checked), f"{parameter.name}={shown(value)}"
            assert parameter.name.encode() in message
            assert len(message) < 1_000


def test_the_methods_of_every_store_check_their_arguments() -> None:
    checked = 0
    stores = ("headrace.stores", "headrace_lake.delta", "headrace_tablestore.store", "headrace_ytsaurus.store")
    for package in stores:
        for path in (ROOT / package.replace(".", "/")).rglob("*.py"):
            importlib.import_module(".".join(path.relative_to(ROOT).with_suffix("").parts))
    waiting = list(PORTS)
    while waiting:
        for kind in (found := waiting.pop()).__subclasses__():
            waiting.append(kind)
            if not kind.__module__.startswith(stores):
                continue
            for name, method in vars(kind).items():
                if (found, name) in METHODS or any((port, name) in METHODS for port in kind.__mro__):
                    takes_any = len(inspect.signature(method).parameters) > 1
                    assert hasattr(method, "__wrapped__") == takes_any or isinstance(method, property), (kind, name)
                    checked += takes_any
    assert checked > 200


class Recorder(Queue):
    """A queue with only the methods that the tests call."""

    name = "recorder"
    id = schema = None  # type: ignore[assignment]
    append = bounds = row_at = commit_time = trim = add_partitions = describe = None  # type: ignore[assignment]

    def read(self, partition: int, first_row: int, max_rows: int = 1000, *, until: int | None = None) -> Any:
        return partition, first_row, max_rows, until

    def set_options(self, **changes: Any) -> Any:
        return changes


def test_arguments_are_checked_by_position_and_by_name() -> None:
    recorder = cast(Any, Recorder)()
    assert recorder.read(1, 2, until=3) == (1, 2, 1000, 3)
    assert recorder.read(partition=1, first_row=2, max_rows=3) == (1, 2, 3, None)
    for args, kwargs in (((None, 1), {}), ((1,), {"first_row": 2**63}), ((1, 2, "3"), {})):
        with pytest.raises(OptionError):
            recorder.read(*args, **kwargs)
    with pytest.raises(OptionError, match="retained_rows"):
        recorder.set_options(retained_rows=2**70)


def test_a_call_that_does_not_match_the_signature_is_a_type_error() -> None:
    recorder = cast(Any, Recorder)()
    for args, kwargs in (((1,), {}), ((1, 2, 3, 4), {}), ((1, 2), {"rows": 3})):
        with pytest.raises(TypeError) as raised:
            recorder.read(*args, **kwargs)
        assert not isinstance(raised.value, HeadraceError)


@pytest.mark.parametrize("port", [Store, Table, Files])
def test_a_parameter_without_a_known_check_fails_when_the_class_is_created(port: type[Any]) -> None:
    class Extended(port):  # type: ignore[misc]
        def method(self, value: complex | Sequence[Any]) -> None: ...

    # Not a method of the port: the port determines the checks.
    assert not hasattr(Extended.method, "__wrapped__")


def test_messages_can_be_printed_with_any_values() -> None:
    error = OptionError("a \ud800 name", received=Unprintable(), valid=["\udcff", 10**5_000], remedy="b \ud800")
    assert str(error).encode()
    assert error.received == "not printable (Unprintable)"
    assert len(str(OptionError("x", received="y" * 10**6))) < 2_000
    assert str(shown("\ud800" * 1_000)).isascii()
