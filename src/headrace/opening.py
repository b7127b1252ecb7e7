"""`headrace.open`: from a path or URL to a store. Stores are imported only when one is opened."""

from __future__ import annotations

import os
import re
from pathlib import Path
from typing import Any
from urllib.parse import unquote, urlsplit

from headrace.errors import OptionError, UnsupportedError
from headrace.ports import Store

VALID_URLS = "a path, or file:///path"
_LATER_SCHEMES = ("tablestore+https", "tablestore+http", "yt", "postgresql")
_SCHEME = re.compile(r"([A-Za-z][A-Za-z0-9+.-]*)://|(file):", re.IGNORECASE)
_EMBEDDED_OPTIONS = ("synchronous",)


def open(url: str | os.PathLike[str], *, create: bool | None = None, **options: Any) -> Store:
    """Open a store.

    Args:
        url: a path or a ``file:`` URL of an embedded store's directory.
        create: make the store if it is not there; not done unless asked for.
        options: of an embedded store: ``synchronous``, which is ``full`` (the default), ``normal`` or ``off``.

    Raises:
        NotFoundError: there is no store, and ``create`` is not set.
        OptionError: the URL's scheme or an option is unknown.
        UnsupportedError: this version does not have that kind of store.
    """
    directory = _directory(url)
    for name in options:
        if name not in _EMBEDDED_OPTIONS:
            raise OptionError("unknown option of an embedded store", received=repr(name), valid=_EMBEDDED_OPTIONS)

    from headrace.stores.embedded.store import EmbeddedStore

    return EmbeddedStore(directory, create=bool(create), **options)


def _directory(url: str | os.PathLike[str]) -> Path:
    """Return the directory that a path or URL names. No message shows more of a URL than its scheme."""
    if not isinstance(url, str):
        return Path(url)
    if not url:
        raise OptionError("the address of a store is empty", received="''", valid=VALID_URLS)
    match = _SCHEME.match(url)
    if match is None:
        return Path(url)
    scheme = (match[1] or match[2]).lower()
    if scheme == "file":
        return _file_path(url)
    if scheme in _LATER_SCHEMES:
        raise UnsupportedError("this version has the embedded store only", received=f"{scheme}://…", valid=VALID_URLS)
    raise OptionError(
        "unknown kind of store", received=f"{scheme}://…", valid=[VALID_URLS, *(f"{s}://…" for s in _LATER_SCHEMES)]
    )


def _file_path(url: str) -> Path:
    parts = urlsplit(url)
    if parts.netloc not in ("", "localhost") or parts.query or parts.fragment or not parts.path:
        raise OptionError(
            "a file URL names a directory of this machine and nothing else", received="file://…", valid=VALID_URLS
        )
    return Path(unquote(parts.path))
