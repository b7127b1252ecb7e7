"""A cached property without a lock.

Before Python 3.12, `functools.cached_property` has one lock for all instances of a class. If a process forks while
another thread holds the lock, the child waits for it forever.
"""

from __future__ import annotations

from collections.abc import Callable
from typing import Any, Generic, Self, TypeVar, overload

_Value = TypeVar("_Value")


class cached_property(Generic[_Value]):
    """A property that is computed on the first read. Several threads may compute it at the same time."""

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
        # Later reads find this value before the descriptor, which has no __set__.
        value = instance.__dict__[self._name] = self._compute(instance)
        return value
