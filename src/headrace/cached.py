"""A cached property without a lock.

Before Python 3.12, `functools.cached_property` computes under one lock for all instances of a class. A process that
forks while another thread holds it leaves a child that waits for the lock for ever.
"""

from __future__ import annotations

from collections.abc import Callable
from typing import Any, Generic, Self, TypeVar, overload

_Value = TypeVar("_Value")


class cached_property(Generic[_Value]):
    """A property that is computed when first read; threads that read it at the same time may each compute it."""

    def __init__(self, compute: Callable[[Any], _Value]) -> None:
        self._compute = compute
        self._name = compute.__name__
        self.__doc__ = compute.__doc__

    @overload
    def __get__(self, instance: None, owner: type | None = None) -> Self: ...
    @overload
    def __get__(self, instance: object, owner: type | None = None) -> _Value: ...
    def __get__(self, instance: object | None, owner: type | None = None) -> Self | _Value:
        if instance is None:
            return self
        # Found before this descriptor from now on, because the descriptor has no __set__.
        value = instance.__dict__[self._name] = self._compute(instance)
        return value
