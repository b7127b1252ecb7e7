"""With which options a format's options open a store: access keys and tokens, and how rows are written."""

from __future__ import annotations

import os
from collections.abc import Mapping
from pathlib import Path
from typing import TYPE_CHECKING, Any

from headrace.errors import OptionError
from headrace.opening import TABLESTORE_SCHEMES, YTSAURUS_SCHEMES, scheme_of

if TYPE_CHECKING:
    from headrace.formats.options import Settings

# By format: its options for the key's id, its secret, and a token.
_ACCESS_KEY = {
    "headrace": ("accessKeyId", "accessKeySecret", "stsToken"),
    "tablestore": ("access.key.id", "access.key.secret", "sts.token"),
}
_TOKEN = "YT_TOKEN"
# Where YTsaurus' client looks for its configuration.
_CONFIGURATIONS = ("~/.yt/config", "/etc/ytclient.conf")
_ENVIRONMENT = ("HEADRACE_ACCESS_KEY_ID", "HEADRACE_ACCESS_KEY_SECRET", "HEADRACE_STS_TOKEN")
# The service's limits for one request; the connector's own settings may lie above them.
_MOST_ROWS, _MOST_BYTES = 200, 4 << 20


def is_instance(url: str) -> bool:
    """Tell whether a store's address is that of an instance, which takes an access key."""
    return scheme_of(url) in TABLESTORE_SCHEMES


def is_cluster(url: str) -> bool:
    """Tell whether a store's address is that of a YTsaurus cluster, which takes a token."""
    return scheme_of(url) in YTSAURUS_SCHEMES


def proxy_url(proxy: str) -> str:
    """Return the URL of the store that option proxy of format yt names: a cluster's, if it is neither path nor URL."""
    if scheme_of(proxy) in ("http", "https"):
        return f"yt+{proxy}"
    is_path = proxy.startswith(("/", ".", "file:")) or "://" in proxy or Path(proxy).is_dir()
    return proxy if is_path else f"yt://{proxy}"


def configured_proxy() -> str | None:
    """Return the proxy that the configuration of YTsaurus' client names; None if there is none, or no such client.

    Raises:
        OptionError: the configuration cannot be read.
    """
    files = [Path(path).expanduser() for path in (os.environ.get("YT_CONFIG_PATH"), *_CONFIGURATIONS) if path]
    if "YT_CONFIG_PATCHES" not in os.environ and not any(file.is_file() for file in files):
        # Most have none, and the client takes its time to be loaded.
        return None
    try:
        from yt.wrapper.default_config import get_config_from_env
    except ImportError:
        return None
    try:
        proxy = get_config_from_env()["proxy"]["url"]
    except Exception as error:
        # The client's own errors, and whatever else a broken file leads to; their texts may quote a token.
        raise OptionError(
            "the configuration of YTsaurus' client cannot be read",
            received=type(error).__name__,
            remedy="set option proxy, or mend the file (YT_CONFIG_PATH, ~/.yt/config)",
        ) from None
    return str(proxy) if proxy else None


def with_access_key(provider: str, given: Mapping[str, str]) -> dict[str, str]:
    """Return options, names in lower case, with the environment's access key or token where they have none."""
    options = dict(given)
    store = options.get("store") or ""
    if provider.lower() == "yt" and not store and options.get("proxy"):
        store = proxy_url(options["proxy"])
    token = os.environ.get(_TOKEN)
    if provider.lower() in ("yt", "headrace") and is_cluster(store) and token and not options.get("token"):
        options["token"] = token
    names = [name.lower() for name in _ACCESS_KEY.get(provider.lower(), ())]
    address = options.get("endpoint" if provider.lower() == "tablestore" else "store") or ""
    wanted = scheme_of(address) in ("http", "https", *TABLESTORE_SCHEMES)
    if names and wanted and not any(options.get(name) for name in names[:2]):
        for name, variable in zip(names, _ENVIRONMENT, strict=True):
            if os.environ.get(variable):
                options[name] = os.environ[variable]
    return options


def store_options(provider: str, settings: Settings, url: str) -> dict[str, Any]:
    """Return the options to open a store with, see `headrace.open`.

    Raises:
        OptionError: an option cannot be read, or there is no access key for an instance.
    """
    if is_cluster(url):
        token = settings.get("token")
        binary_strings = settings.get("binary_strings" if provider == "yt" else "binaryStrings")
        given = {"token": token, "binary_strings": binary_strings or None}
        return {name: value for name, value in given.items() if value is not None}
    if not is_instance(url):
        return {"synchronous": settings.get("synchronous")}
    if provider == "yt":
        raise OptionError("format yt reads and writes queues, and an instance of Tablestore has none")
    names = _ACCESS_KEY[provider]
    # The connector's users know these messages.
    key = {"access_key_id": settings.need(names[0]), "access_key_secret": settings.need(names[1])}
    options = {**key, "sts_token": settings.get(names[2]), "region": settings.get("region")}
    if provider == "tablestore":
        options |= {"meta_table": settings.get("checkpoint.table"), "client": settings.get("ots.client")}
        options |= _writing(settings)
    else:
        options["meta_table"] = settings.get("metaTable")
    return {name: value for name, value in options.items() if value is not None}


def _writing(settings: Settings) -> dict[str, Any]:
    """Return how rows are written, from the options of both versions of the connector's writer.

    Only what the user sets counts: the writer has better defaults of its own.
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
