"""The store, and the table or queue, that the options of format ``yt`` name."""

from __future__ import annotations

import os
from pathlib import Path

from headrace.errors import OptionError
from headrace.formats.location import Location
from headrace.options.settings import Settings
from headrace.stores.registry import StoreAddress, find_opening, scheme_of
from headrace_ytsaurus.store.opening import OPENING

PROXY, STORE = "YT_PROXY", "HEADRACE_STORE"
# The format's names of stores' options.
_NAMES = {"token": "token", "binary_strings": "binary_strings", "synchronous": "synchronous"}
# The files in which YTsaurus' client looks for its configuration.
_CONFIGURATIONS = ("~/.yt/config", "/etc/ytclient.conf")


def store_at(proxy: str) -> str:
    """Return the URL or path of the store that a value of option proxy names.

    A path, a URL of a store and a directory that exists name themselves. Other values name a cluster.
    """
    if scheme_of(proxy) in ("http", "https"):
        return f"yt+{proxy}"
    is_path = proxy.startswith(("/", ".", "file:")) or "://" in proxy or Path(proxy).is_dir()
    return proxy if is_path else f"yt://{proxy}"


def default_store() -> str | None:
    """Return the URL of the store that the environment or the configuration of YTsaurus' client names.

    Raises:
        OptionError: the configuration cannot be read.
    """
    named = _default()
    return named.get("store") or (store_at(named["proxy"]) if named else None)


def is_cluster(store_url: str) -> bool:
    """Return whether the URL of a store is that of a cluster."""
    return find_opening(store_url) is OPENING


def replaces_sink(store_url: str) -> bool:
    """Return whether a checkpoint ``yt:///path`` is in the environment's cluster, for a query that writes a store."""
    return bool(os.environ.get(PROXY)) and not is_cluster(store_url)


def add_environment(options: dict[str, str]) -> dict[str, str]:
    """Return options with the environment's store and token; see `Format`."""
    if not options.get("store") and not options.get("proxy"):
        options = options | _default()
    proxy = options.get("proxy")
    store = options.get("store") or (store_at(proxy) if proxy else "")
    return OPENING.with_environment(options, _NAMES) if is_cluster(store) else options


def find(settings: Settings) -> Location:
    """Return the location that the options name.

    Raises:
        OptionError: no option names a store or a path, or the store has no queues.
    """
    store = settings.get("store") or store_at(settings.need("proxy"))
    settings.need("path")
    opening = find_opening(store)
    return Location(
        StoreAddress(store, {} if opening is None else opening.read(settings, _NAMES)), settings.get("path")
    )


def _default() -> dict[str, str]:
    """Return the option that names the store by default; empty if there is none."""
    proxy, store = os.environ.get(PROXY), os.environ.get(STORE)
    if proxy:
        return {"proxy": proxy}
    if store:
        return {"store": store}
    configured = _configured_proxy()
    return {"proxy": configured} if configured else {}


def _configured_proxy() -> str | None:
    """Return the proxy in the configuration of YTsaurus' client; None if there is none, or no client.

    Raises:
        OptionError: the configuration cannot be read.
    """
    files = [Path(path).expanduser() for path in (os.environ.get("YT_CONFIG_PATH"), *_CONFIGURATIONS) if path]
    if "YT_CONFIG_PATCHES" not in os.environ and not any(file.is_file() for file in files):
        # The client takes long to import.
        return None
    try:
        from yt.wrapper.default_config import get_config_from_env
    except ImportError:
        return None
    try:
        proxy = get_config_from_env()["proxy"]["url"]
    except Exception as error:
        # A broken file can raise any error, and the text of the error may quote a token.
        raise OptionError(
            "the configuration of YTsaurus' client cannot be read",
            received=type(error).__name__,
            remedy="set option proxy, or correct the file (YT_CONFIG_PATH, ~/.yt/config)",
        ) from None
    return str(proxy) if proxy else None
