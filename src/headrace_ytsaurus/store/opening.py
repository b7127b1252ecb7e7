"""Opens the store of a YTsaurus cluster by its URL. Messages show no more of a URL than its scheme."""

from __future__ import annotations

import os
from collections.abc import Mapping
from typing import TYPE_CHECKING, Any
from urllib.parse import unquote, urlsplit

from headrace.errors import OptionError
from headrace.options.kinds import boolean, secret
from headrace.options.option import Option
from headrace.stores.opening import Opening, StoreOption, seconds
from headrace_ytsaurus.wire.paths import PathError, parse_path

if TYPE_CHECKING:
    from headrace_ytsaurus.store.store import YtStore

_VALID_URL = "yt://proxy, yt://host:port, or with a directory of the cluster yt://proxy//home/project"
_DEFAULT_DIRECTORY = "//home/headrace"


def open_store(url: str | os.PathLike[str], options: Mapping[str, Any], create: bool = False) -> YtStore:
    """Return the store of a cluster, without sending a request.

    Args:
        url: ``yt://proxy[:port][//directory]``; ``yt+http`` and ``yt+https`` choose the protocol of the proxy.
            Relative names are looked up in the directory, and headrace keeps its own tables and files there. The
            default is ``//home/headrace``.
        options: ``token``; by default YTsaurus' client looks for one (YT_TOKEN, ~/.yt/token, its configuration).
            ``retry_seconds``: how long a request that fails with a temporary error is repeated; 120 by default.
            ``binary_strings``: columns of the cluster's type ``string`` are binary. By default they are texts, and a
            value that is not UTF-8 is an error.
        create: ignored; a cluster is not created by its clients.

    Raises:
        OptionError: the URL has another form, or an option has an invalid value.
    """
    from headrace_ytsaurus.store.connection import Address
    from headrace_ytsaurus.store.store import YtStore

    proxy, directory = _parse(str(url))
    given = options.get("retry_seconds")
    patience = Address.retry_seconds if given is None else seconds(given, "retry_seconds")
    token = options.get("token") or None
    if token is not None and (not isinstance(token, str) or not token.isascii() or not token.isprintable()):
        raise OptionError("option token is not a token", valid="the text that the cluster issued")
    binary_strings = options.get("binary_strings")
    if isinstance(binary_strings, str):
        binary_strings = {"true": True, "false": False}.get(binary_strings.lower(), binary_strings)
    if binary_strings is not None and not isinstance(binary_strings, bool):
        raise OptionError("option binary_strings must be True or False", received=repr(binary_strings)[:200])
    return YtStore(Address(proxy, token, patience, bool(binary_strings)), directory, str(url))


OPENING = Opening(
    what="a YTsaurus cluster",
    form="yt://proxy",
    schemes=("yt", "yt+https", "yt+http"),
    options=(
        StoreOption("token", Option("token", "YTsaurus: the token for the cluster; by default the environment's "
                    "YT_TOKEN, then the token that YTsaurus' client finds (`~/.yt/token`)", secret), "YT_TOKEN"),
        StoreOption("binary_strings", Option("binaryStrings", "YTsaurus: read columns of the type `string` as binary, "
                    "because they may hold any bytes; `utf8` and `json` stay strings. Without it, a `string` value "
                    "that is not UTF-8 fails the task", boolean, "false")),
        StoreOption("retry_seconds"),
    ),
    environment=("YT_",),
    open=open_store,
    extra="headrace[yt]",
    packages=("yt",),
    mistaken_schemes={
        "http": "a cluster of YTsaurus is yt+http://host:port",
        "https": "a cluster of YTsaurus is yt+https://host",
        "ytsaurus": "a cluster of YTsaurus is yt://proxy",
    },
)  # fmt: skip


def _parse(url: str) -> tuple[str, str]:
    """Return the proxy, as YTsaurus' client takes it, and the directory."""
    wrong = OptionError("this is not the address of a YTsaurus cluster", valid=_VALID_URL)
    try:
        parts = urlsplit(url)
        port = parts.port
    except ValueError:
        raise wrong from None
    if parts.username is not None or parts.password is not None:
        raise OptionError(
            "the address of a store cannot contain a user or password", valid=_VALID_URL, remedy="pass option token"
        )
    if not parts.hostname or parts.query or parts.fragment or port == 0:
        raise wrong
    transport = parts.scheme.partition("+")[2]
    proxy = f"{transport}://{parts.netloc}" if transport else parts.netloc
    path = unquote(parts.path).rstrip("/")
    if not path:
        return proxy, _DEFAULT_DIRECTORY
    try:
        directory = parse_path(path if path.startswith("//") else f"/{path}")
    except PathError:
        raise wrong from None
    if directory.attribute is not None or not directory.nodes or directory.attributes:
        raise wrong
    return proxy, directory.text
