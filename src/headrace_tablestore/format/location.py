"""The store and the table that the options of format ``tablestore`` name."""

from __future__ import annotations

import os
from pathlib import Path
from typing import Any
from urllib.parse import urlsplit

from headrace.errors import OptionError
from headrace.formats.location import Location
from headrace.options.settings import Settings
from headrace.stores.registry import StoreAddress, opening_of
from headrace_tablestore.format.columns import parse_catalog
from headrace_tablestore.store.opening import OPENING

# The format's names of the store's options.
_OF_INSTANCE = {
    "access_key_id": "access.key.id",
    "access_key_secret": "access.key.secret",
    "sts_token": "sts.token",
    "region": "region",
    "meta_table": "checkpoint.table",
    "client": "ots.client",
}
_OF_DIRECTORY = {"synchronous": "synchronous"}
# The service's limits for one request. The connector's options may exceed them.
_MOST_ROWS, _MOST_BYTES = 200, 4 << 20
_PROTOCOLS = ("http", "https")


def add_environment(options: dict[str, str]) -> dict[str, str]:
    """Return options with the environment's access key; see `Format`."""
    is_service = urlsplit(options.get("endpoint") or "").scheme in _PROTOCOLS
    return OPENING.with_environment(options, _OF_INSTANCE) if is_service else options


def find(settings: Settings) -> Location:
    """Return the location that the options name.

    Raises:
        OptionError: an option is missing, or its value is not valid.
    """
    # The connector checks the options in this order.
    table, instance = settings.need("table.name"), settings.need("instance.name")
    endpoint = settings.get("endpoint") or ""
    scheme = urlsplit(endpoint).scheme
    columns = None
    if settings.get("catalog"):
        columns = parse_catalog(settings.need("catalog"))
    if scheme in _PROTOCOLS:
        url = f"tablestore+{endpoint.rstrip('/')}/{instance}"
        writing = {name: value for name, value in _writer_options(settings).items() if value is not None}
        address = StoreAddress(url, OPENING.read(settings, _OF_INSTANCE) | writing)
        return Location(address, table, columns=columns)
    path = str(_directory(settings.need("endpoint"), scheme) / _plain_name(instance))
    return Location(StoreAddress(path, opening_of(path).read(settings, _OF_DIRECTORY)), table, columns=columns)


def _directory(endpoint: str, scheme: str) -> Path:
    if scheme != "file":
        return Path(endpoint)
    path = endpoint.removeprefix("file://")
    return Path(path if path.startswith("/") else path.removeprefix("file:"))


def _plain_name(instance: str) -> str:
    if instance in (".", "..") or "/" in instance or os.sep in instance:
        raise OptionError("option instance.name must be a plain name", received=repr(instance))
    return instance


def _writer_options(settings: Settings) -> dict[str, Any]:
    """Return the store's options for writes, from the options of both versions of the connector's writer.

    Options that are not set are None: the store's own defaults then apply.
    """
    rows = [settings.get(name) for name in ("batch.update.size", "writer.max.batch.count")]
    size = settings.get("writer.max.batch.size.byte")
    by_time = settings.get("client.retry.strategy") != "count"
    pause = settings.get("client.retry.pause.ms")
    seconds, count = settings.get("client.retry.time.s"), settings.get("client.retry.count")
    return {
        "rows_per_request": min([_MOST_ROWS, *(given for given in rows if given)]),
        "bytes_per_request": _MOST_BYTES if size is None else min(_MOST_BYTES, size),
        "requests_in_flight": settings.get("writer.concurrency"),
        "max_columns": settings.get("writer.max.column.count"),
        "max_cell_bytes": settings.get("writer.max.attr.size.byte"),
        "max_key_bytes": settings.get("writer.max.pk.size.byte"),
        "retry_seconds": seconds if by_time else None,
        "retry_count": None if by_time else count,
        "retry_pause": None if pause is None else pause / 1000,
        "ignore_failed_rows": settings.get("spark.ignore.on-failure.enabled"),
    }
