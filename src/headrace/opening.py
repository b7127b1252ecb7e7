"""`headrace.open`: from a path or URL to a store. Stores are imported only when one is opened."""

from __future__ import annotations

import os
import re
from pathlib import Path
from typing import Any
from urllib.parse import unquote, urlsplit

from headrace.errors import MissingDependencyError, OptionError, UnsupportedError
from headrace.ports import Store

VALID_URLS = "a path, file:///path, tablestore+https://host/instance, or yt://proxy"
TABLESTORE_SCHEMES = ("tablestore+https", "tablestore+http")
YTSAURUS_SCHEMES = ("yt", "yt+https", "yt+http")
_LATER_SCHEMES = ("postgresql",)
_NAMED_BY = (
    "a store is named by headrace.open(…), option store (of format yt also proxy), --store, or the environment's "
    "HEADRACE_STORE (of format yt also YT_PROXY)"
)
_SCHEME = re.compile(r"([A-Za-z][A-Za-z0-9+.-]*)://|(file):", re.IGNORECASE)
_EMBEDDED_OPTIONS = ("synchronous",)
# What a store's extra brings, by the modules that its code begins with.
_TABLESTORE_MODULES = ("certifi", "google", "google.protobuf", "urllib3")
_YTSAURUS_MODULES = ("yt",)


def open(url: str | os.PathLike[str], *, create: bool | None = None, **options: Any) -> Store:
    """Open a store.

    Args:
        url: a path or a ``file:`` URL of an embedded store's directory, or ``tablestore+https://host[:port]/instance``
            (``+http`` without encryption) of a Tablestore instance, or ``yt://proxy[:port][//directory]`` of a
            YTsaurus cluster.
        create: make an embedded store if it is not there; not done unless asked for. An instance is made elsewhere.
        options: of an embedded store: ``synchronous``, which is ``full`` (the default), ``normal`` or ``off``. Of a
            Tablestore instance: ``access_key_id``, ``access_key_secret``, ``sts_token`` and others, see
            docs/tablestore.md; without them, the environment's HEADRACE_ACCESS_KEY_ID and HEADRACE_ACCESS_KEY_SECRET
            count. Of a YTsaurus cluster: ``token`` and others, see docs/ytsaurus.md.

    Raises:
        NotFoundError: there is no store, and ``create`` is not set.
        OptionError: the address is neither a path nor a URL of a known scheme, an option is unknown, or an access key
            is missing.
        MissingDependencyError: this kind of store needs packages that are not installed.
        UnsupportedError: this version does not have that kind of store.
    """
    scheme = scheme_of(url)
    if isinstance(url, str) and scheme in TABLESTORE_SCHEMES:
        return _open_tablestore(url, options)
    if isinstance(url, str) and scheme in YTSAURUS_SCHEMES:
        return _open_ytsaurus(url, options)
    directory = _directory(url, scheme)
    for name in options:
        if name not in _EMBEDDED_OPTIONS:
            raise OptionError("unknown option of an embedded store", received=repr(name), valid=_EMBEDDED_OPTIONS)

    from headrace.stores.embedded.store import EmbeddedStore

    return EmbeddedStore(directory, create=bool(create), **options)


def scheme_of(url: str | os.PathLike[str]) -> str | None:
    """Return the scheme of a URL in lower case, or None for a path."""
    match = _SCHEME.match(url) if isinstance(url, str) else None
    return None if match is None else (match[1] or match[2]).lower()


def _open_tablestore(url: str, options: dict[str, Any]) -> Store:
    try:
        from headrace.stores.tablestore.opening import open_store
    except ImportError as error:
        if error.name not in _TABLESTORE_MODULES:
            raise
        raise MissingDependencyError(
            "a Tablestore instance needs packages that are not installed",
            received=error.name,
            remedy="pip install 'headrace[tablestore]'",
        ) from error
    return open_store(url, options)


def _open_ytsaurus(url: str, options: dict[str, Any]) -> Store:
    try:
        from headrace.stores.ytsaurus.opening import open_store
    except ImportError as error:
        if (error.name or "").partition(".")[0] not in _YTSAURUS_MODULES:
            raise
        raise MissingDependencyError(
            "a YTsaurus cluster needs packages that are not installed",
            received=error.name,
            remedy="pip install 'headrace[yt]'",
        ) from error
    return open_store(url, options)


def _directory(url: str | os.PathLike[str], scheme: str | None) -> Path:
    """Return the directory that a path or URL names. No message shows more of a URL than its scheme."""
    if isinstance(url, os.PathLike):
        return Path(url)
    if not isinstance(url, str):
        raise OptionError("the address of a store is a text or a path", received=repr(url), valid=VALID_URLS)
    if not url:
        raise OptionError("the address of a store is empty", received="''", valid=VALID_URLS)
    if scheme is None:
        return Path(url)
    if scheme == "file":
        return _file_path(url)
    if scheme in _LATER_SCHEMES:
        raise UnsupportedError(
            "this version does not have this kind of store",
            received=f"{scheme}://…",
            valid=VALID_URLS,
            remedy=_NAMED_BY,
        )
    raise OptionError("unknown kind of store", received=f"{scheme}://…", valid=VALID_URLS, remedy=_NAMED_BY)


def _file_path(url: str) -> Path:
    wrong = OptionError(
        "a file URL names a directory of this machine and nothing else", received="file://…", valid=VALID_URLS
    )
    try:
        parts = urlsplit(url)
    except ValueError:
        raise wrong from None
    if parts.netloc not in ("", "localhost") or parts.query or parts.fragment or not parts.path or "%00" in parts.path:
        raise wrong
    return Path(unquote(parts.path))
