"""The store, and the table or queue, that the options of format ``headrace`` name."""

from __future__ import annotations

import os

from headrace.errors import OptionError
from headrace.formats.location import Location
from headrace.options.settings import Settings
from headrace.stores.registry import StoreAddress, find_opening

STORE = "HEADRACE_STORE"


def default_store() -> str | None:
    """Return the store that the environment names; None if it names none."""
    return os.environ.get(STORE) or None


def add_environment(options: dict[str, str]) -> dict[str, str]:
    """Return options with the environment's store, and with the variables that the kind of store has; see `Format`."""
    store = options.get("store") or default_store()
    if store:
        options = options | {"store": store}
    opening = find_opening(store) if store else None
    return options if opening is None else opening.with_environment(options)


def find(settings: Settings) -> Location:
    """Return the location that the options name.

    Raises:
        OptionError: no option names a store, or two options exclude each other.
    """
    named = [name for name in ("queue", "queues", "table", "path") if settings.get(name)]
    if len(named) > 1 and named[0] in ("queue", "queues"):
        raise OptionError(f"options {named[0]} and {named[1]} are both set", valid="one of them")
    of_queues = [name for name in ("consumer", "queue", "queues") if settings.get(name)]
    if settings.get("tunnel") and of_queues:
        raise OptionError(
            f"options tunnel and {of_queues[0]} are both set",
            valid="one of them",
            remedy="a tunnel reads the changes of a table, a consumer the rows of queues",
        )
    table = settings.get("table") or settings.get("path")
    store = settings.need("store")
    # The store says what is wrong with an address of no kind.
    opening = find_opening(store)
    address = StoreAddress(store, {} if opening is None else opening.read(settings))
    return Location(address, table, settings.get("queue"))
