"""The identity of a query's store, which travels with its tasks to other processes and machines."""

from __future__ import annotations

import platform
from collections.abc import Callable
from dataclasses import dataclass

from headrace.errors import NotFoundError, StoreError, UnsupportedError
from headrace.ports.store import Store


@dataclass(frozen=True)
class StoreIdentity:
    """What a task must find when it opens the store of its query.

    A path can lead to another disk on each machine, and ``localhost`` to another server. A task must not read or write
    another store than the one for which its batch was planned.

    Attributes:
        version: the release of headrace that planned the task.
        store: the id of the store; None if the plan did not need to open it.
    """

    version: str
    store: str | None = None

    def open(self, open_store: Callable[[], Store]) -> Store:
        """Open the store, and check that it is this one.

        Raises:
            UnsupportedError: this process has another release of headrace.
            NotFoundError: there is no store here.
            StoreError: there is another store here.
        """
        from headrace import __version__

        if self.version != __version__:
            raise UnsupportedError(
                "the driver and an executor have different releases of headrace",
                received=f"{self.version} in the driver, {__version__} on {platform.node()}",
                remedy="install the same release on all machines",
            )
        try:
            store = open_store()
        except NotFoundError as error:
            if self.store is None:
                raise
            raise NotFoundError(
                f"the store of this query is not on machine {platform.node()}", received=error.received, remedy=_REMEDY
            ) from None
        if self.store in (None, store.id):
            return store
        found = store.id
        store.close()
        raise StoreError(
            f"machine {platform.node()} has another store at this address than the driver",
            received=found,
            valid=self.store,
            remedy=_REMEDY,
        )


_REMEDY = (
    "an embedded store is on the disk of one machine: run Spark there (local[*]), or use a store that all machines "
    "reach, such as PostgreSQL"
)


def planned_for(store: Store | None) -> StoreIdentity:
    """Return the identity for tasks that this process plans."""
    from headrace import __version__

    return StoreIdentity(__version__, None if store is None else store.id)
