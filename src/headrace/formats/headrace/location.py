"""The store, and the table or queue, that the options of format ``headrace`` name."""

from __future__ import annotations

import os
from typing import Any

from headrace.errors import OptionError
from headrace.formats.format import CheckpointScheme
from headrace.formats.location import Location
from headrace.formats.settings import Settings
from headrace.formats.store_options import (
    add_access_key,
    add_token,
    cluster_options,
    database_options,
    embedded_options,
    instance_options,
    is_cluster,
    is_database,
    is_instance,
    without_none,
)

STORE = "HEADRACE_STORE"
# Variables of libpq that name a server or a database.
_DATABASE_VARIABLES = ("PGSERVICE", "PGHOST", "PGDATABASE")
_ACCESS_KEY = ("accessKeyId", "accessKeySecret", "stsToken")


def default_store() -> str | None:
    """Return the store that the environment names; None if it names none."""
    return os.environ.get(STORE) or None


def default_database() -> str | None:
    """Return the URL of the PostgreSQL database that the environment names; None if it names none."""
    store = default_store()
    if store and is_database(store):
        return store
    return "postgresql://" if any(map(os.environ.get, _DATABASE_VARIABLES)) else None


DATABASE_CHECKPOINTS = CheckpointScheme(
    "postgresql",
    (STORE, *_DATABASE_VARIABLES),
    default_database,
    replaces_sink=lambda store_url: not is_database(store_url),
)
"""Checkpoints in a PostgreSQL database: the one that a query writes, otherwise the one that the environment names."""


def add_environment(options: dict[str, str]) -> dict[str, str]:
    """Return options with the environment's store, access key and token; see `Format`."""
    store = options.get("store") or default_store()
    if store:
        options = options | {"store": store}
    return add_token(add_access_key(options, store, _ACCESS_KEY), store)


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
    return Location(store, table, settings.get("queue"), _store_options(settings, store))


def _store_options(settings: Settings, url: str) -> dict[str, Any]:
    if is_cluster(url):
        return cluster_options(settings, "binaryStrings")
    if is_instance(url):
        options = instance_options(settings, _ACCESS_KEY)
        return without_none({**options, "meta_table": settings.get("metaTable")})
    if is_database(url):
        return database_options(settings)
    return embedded_options(settings)
