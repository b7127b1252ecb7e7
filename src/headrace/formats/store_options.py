"""The options that formats pass to stores: access keys of instances, tokens of clusters, passwords of databases."""

from __future__ import annotations

import os
from typing import Any

from headrace.formats.settings import Settings
from headrace.stores.registry import find_opening, scheme_of

_TOKEN = "YT_TOKEN"
_ACCESS_KEY = ("HEADRACE_ACCESS_KEY_ID", "HEADRACE_ACCESS_KEY_SECRET", "HEADRACE_STS_TOKEN")


def is_instance(url: str) -> bool:
    """Return whether the URL of a store is that of a Tablestore instance."""
    opening = find_opening(url)
    return opening is not None and "access_key_id" in opening.options


def is_cluster(url: str) -> bool:
    """Return whether the URL of a store is that of a YTsaurus cluster."""
    opening = find_opening(url)
    return opening is not None and "token" in opening.options


def is_database(url: str) -> bool:
    """Return whether the URL of a store is that of a PostgreSQL database."""
    opening = find_opening(url)
    return opening is not None and "sslmode" in opening.options


def add_access_key(options: dict[str, str], address: str | None, names: tuple[str, str, str]) -> dict[str, str]:
    """Return options with the environment's access key if they name an instance and have neither id nor secret.

    Args:
        options: the options, names in lower case.
        address: the store's URL, or the instance's endpoint.
        names: the format's options for the key's id, its secret, and the token of a temporary key.
    """
    lower = [name.lower() for name in names]
    wanted = scheme_of(address or "") in ("http", "https") or is_instance(address or "")
    if not wanted or any(options.get(name) for name in lower[:2]):
        return options
    found = {name: os.environ.get(variable) for name, variable in zip(lower, _ACCESS_KEY, strict=True)}
    return options | {name: value for name, value in found.items() if value}


def add_token(options: dict[str, str], store_url: str | None) -> dict[str, str]:
    """Return options with the environment's token if they name a cluster and have no token."""
    token = os.environ.get(_TOKEN)
    if not token or options.get("token") or not is_cluster(store_url or ""):
        return options
    return options | {"token": token}


def embedded_options(settings: Settings) -> dict[str, Any]:
    """Return the options for `headrace.open` for an embedded store."""
    return {"synchronous": settings.get("synchronous")}


def cluster_options(settings: Settings, binary_strings: str) -> dict[str, Any]:
    """Return the options for `headrace.open` for a cluster; ``binary_strings`` is the name of the format's option."""
    return without_none({"token": settings.get("token"), "binary_strings": settings.get(binary_strings) or None})


def database_options(settings: Settings) -> dict[str, Any]:
    """Return the options for `headrace.open` for a PostgreSQL database. libpq finds the options that are not set."""
    return without_none(
        {
            "password": settings.get("password"),
            "service": settings.get("service"),
            "sslmode": settings.get("sslMode"),
            "sslrootcert": settings.get("sslRootCert"),
            "schema": settings.get("headraceSchema"),
            "unrepresentable": settings.get("unrepresentable"),
        }
    )


def instance_options(settings: Settings, names: tuple[str, str, str]) -> dict[str, Any]:
    """Return the access key and region for `headrace.open` for an instance; ``names`` as in `add_access_key`.

    Raises:
        OptionError: there is no access key.
    """
    return {
        "access_key_id": settings.need(names[0]),
        "access_key_secret": settings.need(names[1]),
        "sts_token": settings.get(names[2]),
        "region": settings.get("region"),
    }


def without_none(options: dict[str, Any]) -> dict[str, Any]:
    """Return the options that have a value."""
    return {name: value for name, value in options.items() if value is not None}
