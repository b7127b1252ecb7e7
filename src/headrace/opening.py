"""`headrace.open`: from a path or URL to a store. Stores are imported only when one is opened."""

from __future__ import annotations

import os
import re
from pathlib import Path
from typing import Any
from urllib.parse import unquote, urlsplit

from headrace.errors import MissingDependencyError, OptionError, StoreError, UnsupportedError, shown
from headrace.option_names import check_names
from headrace.ports import Store

VALID_URLS = "a path, file:///path, tablestore+https://host/instance, or yt://proxy"
TABLESTORE_SCHEMES = ("tablestore+https", "tablestore+http")
YTSAURUS_SCHEMES = ("yt", "yt+https", "yt+http")
_LATER_SCHEMES = ("postgresql", "postgres")
_NAMED_BY = (
    "a store is named by headrace.open(…), option store (of format yt also proxy), --store, or the environment's "
    "HEADRACE_STORE (of format yt also YT_PROXY)"
)
_SCHEME = re.compile(r"([A-Za-z][A-Za-z0-9+.-]*)://|(file):", re.IGNORECASE)
# With one slash, as a pathlib path leaves of a URL. One letter would be a drive of Windows.
_BROKEN_URL = re.compile(
    r"(file|jdbc|headrace|https?|postgres(?:ql)?|(?:yt|ytsaurus|tablestore)(?:\+https?)?):/?(?!/)", re.IGNORECASE
)
_MEANT = {
    "http": "a cluster of YTsaurus is yt+http://host:port, an instance of Tablestore tablestore+http://host/instance",
    "https": "a cluster of YTsaurus is yt+https://host, an instance of Tablestore tablestore+https://host/instance",
    "headrace": "headrace:///path names a checkpoint in a store; a store is a directory or a URL",
    "tablestore": "an instance of Tablestore is tablestore+https://host/instance",
    "ytsaurus": "a cluster of YTsaurus is yt://proxy",
}
_EMBEDDED_OPTIONS = ("synchronous",)
# What a store's extra brings, by the modules that its code begins with.
_TABLESTORE_MODULES = ("certifi", "google", "google.protobuf", "urllib3")
_YTSAURUS_MODULES = ("yt",)


def open(url: str | os.PathLike[str], *, create: bool | None = None, **options: Any) -> Store:
    """Open a store.

    Args:
        url: a path (``~/`` is the home directory) or a ``file:`` URL of an embedded store's directory, or
            ``tablestore+https://host[:port]/instance`` (``+http`` without encryption) of a Tablestore instance, or
            ``yt://proxy[:port][//directory]`` of a YTsaurus cluster.
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
        StoreError: the file system does not take the path.
    """
    _check_address(url)
    scheme = scheme_of(url)
    if isinstance(url, str) and scheme in TABLESTORE_SCHEMES:
        return _open_tablestore(url, options)
    if isinstance(url, str) and scheme in YTSAURUS_SCHEMES:
        return _open_ytsaurus(url, options)
    directory = _directory(url, scheme)
    check_names("an embedded store", options, _EMBEDDED_OPTIONS)

    from headrace.stores.embedded.store import EmbeddedStore

    try:
        return EmbeddedStore(directory, create=bool(create), **options)
    except OSError as error:
        raise StoreError(
            f"the store's directory cannot be used: {error.strerror}", received=repr(str(directory))[:200]
        ) from error


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


def _check_address(url: object) -> None:
    """Raise `OptionError` for an address that no store can have. No message shows more of a URL than its scheme."""
    text = os.fspath(url) if isinstance(url, os.PathLike) else url
    if not isinstance(text, str):
        received = shown(url) if url is None or isinstance(url, int | float) else type(url).__name__
        raise OptionError("the address of a store is a text or a path", received=received[:80], valid=VALID_URLS)
    if not text.strip():
        raise OptionError("the address of a store is empty", received=repr(text[:20]), valid=VALID_URLS)
    if any(character < " " or "\ud800" <= character <= "\udfff" for character in text):
        raise OptionError(
            "the address of a store has a control character or a lone surrogate", valid=VALID_URLS, remedy=_NAMED_BY
        )
    broken = _BROKEN_URL.match(text)
    if broken and (isinstance(url, os.PathLike) or broken[1].lower() != "file"):
        raise OptionError(
            "this is neither a path nor a URL",
            received=f"{broken[1]}:…",
            valid=VALID_URLS,
            remedy="a URL has two slashes behind the colon, and is passed as a text: a pathlib path drops one",
        )
    scheme = scheme_of(text)
    if scheme in ("file", *TABLESTORE_SCHEMES, *YTSAURUS_SCHEMES) and "?" in text:
        raise OptionError(
            "the address of a store has no options in it",
            received=f"{scheme}://…?…",
            valid=VALID_URLS,
            remedy="pass options as arguments: headrace.open(url, token=…), or as options of the format",
        )


def _directory(url: str | os.PathLike[str], scheme: str | None) -> Path:
    """Return the directory that a path or URL names. No message shows more of a URL than its scheme."""
    if scheme is None:
        return _expanded(Path(url))
    assert isinstance(url, str)
    if scheme == "file":
        return _file_path(url)
    if scheme in _LATER_SCHEMES:
        raise UnsupportedError(
            "this version does not have this kind of store",
            received=f"{scheme}://…",
            valid=VALID_URLS,
            remedy=_NAMED_BY,
        )
    remedy = _MEANT.get(scheme, _NAMED_BY)
    raise OptionError("unknown kind of store", received=f"{scheme}://…", valid=VALID_URLS, remedy=remedy)


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
    return _expanded(Path(unquote(parts.path)))


def _expanded(directory: Path) -> Path:
    """Return a directory with the home directory in the place of a leading ``~``."""
    try:
        return directory.expanduser() if directory.parts[:1] == ("~",) else directory
    except RuntimeError:
        raise OptionError("this user has no home directory", received="~", valid=VALID_URLS) from None
