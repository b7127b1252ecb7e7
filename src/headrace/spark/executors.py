"""Work for executors: their version of headrace, and the store that they see, are those of the driver.

An executor can be another machine, with another headrace or none, and with another directory at the path of an embedded
store. So the driver sends its version with the readers and writers (`Sent`, `sent`), and the instance of its store with
each task, which `task_store` compares before the task reads or stages a row.
"""

from __future__ import annotations

import pickle
import socket
import sys
from collections.abc import Callable, Iterator
from contextlib import ExitStack, contextmanager
from typing import Any, TypeVar
from urllib.parse import urlsplit

from pyspark import TaskContext, cloudpickle

from headrace import __version__
from headrace.errors import HeadraceError, NotFoundError, StoreError
from headrace.ports import Store, upgrades
from headrace.spark import arrival, kept_stores
from headrace.stores.registry import StoreAddress

_THIS_HOST = ("localhost", "127.0.0.1", "::1")
_SHARED = (
    "an embedded store is for executors on the driver's machine: local[…] and local-cluster[…]. For others, serve it "
    "with `headrace serve`, or use PostgreSQL, Tablestore or YTsaurus: see docs/deployment.md"
)
# Untyped in pyspark.
_cloudpickle: Any = cloudpickle
_cloudpickle.register_pickle_by_value(arrival)
_Function = TypeVar("_Function", bound=Callable[..., Any])


class Sent:
    """A base of objects that Spark sends to other processes. They are unpacked only by the same version of headrace."""

    def __reduce__(self) -> tuple[Any, ...]:
        return arrival.received, (__version__, pickle.dumps((type(self), self._sent_state())))

    def _sent_state(self) -> dict[str, Any]:
        """Return the attributes that are sent."""
        return self.__dict__


def sent(function: _Function) -> _Function:
    """Return a function for Spark's Python processes that only the same version of headrace unpacks and runs."""
    calling: Any = arrival.calling(__version__, _cloudpickle.dumps(function))
    return calling  # type: ignore[no-any-return]


def task_property(name: str) -> str | None:
    """Return a local property, or a setting of the session, as the current task has it; None without."""
    context = TaskContext.get()
    return context.getLocalProperty(name) if context else None


@contextmanager
def task_store(address: StoreAddress) -> Iterator[Store]:
    """Open the store of a task, and give it back to `headrace.spark.kept_stores` at the end. Never creates a store.

    An error of headrace gets a note that names the host: Spark shows the errors of all executors in one place.

    Args:
        address: the address of the driver's store, with its instance.

    Raises:
        StoreError: on this host, the address has no store, or not the store of the driver.
        MissingDependencyError: the packages of the store are not installed on this host.
    """
    with _with_place(), _of_driver(address) as store:
        yield store


@contextmanager
def _of_driver(address: StoreAddress) -> Iterator[Store]:
    with ExitStack() as stack:
        try:
            with upgrades.not_permitted():
                store = stack.enter_context(kept_stores.lent(address))
        except NotFoundError as error:
            raise StoreError(
                "the store of the driver is not on the host of this task", received=error.received, remedy=_SHARED
            ) from None
        with _with_place(store):
            instance = store.instance()
            if instance != address.instance:
                raise StoreError(
                    "the address of the store leads to another store on the host of this task than on that of the "
                    "driver",
                    received=f"{store.url}, {instance}",
                    valid=address.instance,
                    remedy=_SHARED,
                )
            yield store


@contextmanager
def _with_place(store: Store | None = None) -> Iterator[None]:
    """Add a note to errors of headrace that says where this process is."""
    try:
        yield
    except HeadraceError as error:
        if not getattr(error, "__notes__", None):
            error.add_note(_place(store))
        raise


def _place(store: Store | None = None) -> str:
    """Return where this process is, for the note of an error."""
    place = f"In a task on host {socket.gethostname()}, Python {sys.executable}"
    host = None if store is None else urlsplit(store.url).hostname
    return f"{place}, where {host} is that host itself" if host in _THIS_HOST else place
