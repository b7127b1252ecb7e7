"""From the URL of a cluster and options to its store. No message shows more of an URL than its scheme."""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any
from urllib.parse import unquote, urlsplit

from headrace.errors import OptionError
from headrace.option_names import check_names
from headrace.stores.ytsaurus.connection import Address
from headrace.stores.ytsaurus.store import YtStore
from headrace.wire.ytsaurus.paths import PathError, parse_path

VALID_URL = "yt://proxy, yt://host:port, or with a directory of the cluster yt://proxy//home/project"
OPTIONS = ("token", "retry_seconds", "binary_strings")
_LONGEST_SECONDS = 1e9
DEFAULT_DIRECTORY = "//home/headrace"


def open_store(url: str, options: Mapping[str, Any]) -> YtStore:
    """Return the store of a cluster; nothing is sent to it yet.

    Args:
        url: ``yt://proxy[:port][//directory]``; ``yt+http`` and ``yt+https`` say how the proxy is spoken to. Names that
            are no paths belong to the directory, and headrace keeps there what it needs; ``//home/headrace`` if not
            given.
        options: ``token``; without it YTsaurus' client looks for one (YT_TOKEN, ~/.yt/token, its configuration).
            ``retry_seconds``, how long a request is tried again that may pass later, 120 if not given.
            ``binary_strings``, whether columns of the cluster's type ``string`` are binary, as they may hold any bytes
            there; without it they are texts, and a value that is not UTF-8 is refused.

    Raises:
        OptionError: the URL is not of this form, or an option is unknown or wrong.
    """
    check_names("a YTsaurus store", options, OPTIONS)
    proxy, directory = _parse(url)
    seconds = options.get("retry_seconds")
    if seconds is not None and not _is_duration(seconds):
        raise OptionError(
            "option retry_seconds cannot be read", received=repr(seconds)[:200], valid="a number of seconds from 0 on"
        )
    token = options.get("token") or None
    if token is not None and (not isinstance(token, str) or not token.isascii() or not token.isprintable()):
        raise OptionError("option token is no token", valid="the text that the cluster gave out")
    binary_strings = options.get("binary_strings")
    if binary_strings is not None and not isinstance(binary_strings, bool):
        raise OptionError("option binary_strings is True or False", received=repr(binary_strings)[:200])
    patience = Address.retry_seconds if seconds is None else float(seconds)
    address = Address(proxy, token, patience, bool(binary_strings))
    return YtStore(address, directory, url)


def _is_duration(seconds: object) -> bool:
    is_number = isinstance(seconds, int | float) and not isinstance(seconds, bool)
    # NaN is neither above 0 nor below the limit.
    return is_number and 0 <= seconds <= _LONGEST_SECONDS  # type: ignore[operator]


def _parse(url: str) -> tuple[str, str]:
    """Return the proxy, as YTsaurus' client takes it, and the directory."""
    wrong = OptionError("this is not the address of a YTsaurus cluster", valid=VALID_URL)
    try:
        parts = urlsplit(url)
        port = parts.port
    except ValueError:
        raise wrong from None
    if parts.username is not None or parts.password is not None:
        raise OptionError(
            "the address of a store has no user or password in it", valid=VALID_URL, remedy="pass option token"
        )
    if not parts.hostname or parts.query or parts.fragment or port == 0:
        raise wrong
    transport = parts.scheme.partition("+")[2]
    proxy = f"{transport}://{parts.netloc}" if transport else parts.netloc
    path = unquote(parts.path).rstrip("/")
    if not path:
        return proxy, DEFAULT_DIRECTORY
    try:
        directory = parse_path(path if path.startswith("//") else f"/{path}")
    except PathError:
        raise wrong from None
    if directory.attribute is not None or not directory.nodes or directory.attributes:
        raise wrong
    return proxy, directory.text
