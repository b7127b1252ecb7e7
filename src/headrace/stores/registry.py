"""`headrace.open`: from a path or URL to a store.

Each kind of store is an entry point of the group ``headrace.stores``, which declares its addresses and options. The
modules of these declarations are small; the store itself and the packages that it needs are imported when a store is
opened.
"""

from __future__ import annotations

import os
import re
from collections.abc import Mapping
from dataclasses import dataclass, field, replace
from functools import cache
from pathlib import Path
from typing import Any, Self

from headrace.errors import OptionError, UnsupportedError, shown
from headrace.options.names import check_names
from headrace.ports import Store
from headrace.ports.arguments import flag, path
from headrace.ports.backups import Backup, Progress
from headrace.stores.opening import Opening
from headrace.support import entry_points
from headrace.support.extras import missing_packages

_HOW_TO_NAME_A_STORE = (
    "name a store with headrace.open(…), option store (format yt: also proxy), --store, or the environment variable "
    "HEADRACE_STORE (format yt: also YT_PROXY)"
)
# Schemes of other things that users may take for a store's.
_OTHER_SCHEMES = {
    "headrace": "headrace:///path names a checkpoint in a store; a store is a directory or a URL",
    "jdbc": _HOW_TO_NAME_A_STORE,
}
_SCHEME = re.compile(r"([A-Za-z][A-Za-z0-9+.-]*)://|(file):", re.IGNORECASE)


@cache
def openings() -> tuple[Opening, ...]:
    """Return the kinds of stores that are installed. A kind that takes the address of another one is left out."""
    found: dict[str, Opening] = {}
    owners = dict.fromkeys(_OTHER_SCHEMES, "embedded")
    for name, opening in entry_points.parts(entry_points.STORES, Opening).items():
        owned = [*opening.schemes, *(each.option.name.lower() for each in opening.options if each.option is not None)]
        if opening.takes_paths:
            owned.append("paths without a scheme")
        if entry_points.is_free(entry_points.STORES, name, owned, owners):
            found[name] = opening
    return tuple(found.values())


def valid_addresses() -> str:
    """Return the forms of addresses, for messages."""
    return "; ".join(opening.form for opening in openings())


def open(url: str | os.PathLike[str], *, create: bool | None = None, **options: Any) -> Store:
    """Open a store.

    Args:
        url: a path (``~/`` is the home directory) or a ``file:`` URL of an embedded store's directory, or
            ``postgresql://user@host[:port]/database`` of a PostgreSQL database, or
            ``tablestore+https://host[:port]/instance`` (``+http`` without encryption) of a Tablestore instance, or
            ``yt://proxy[:port][//directory]`` of a YTsaurus cluster, or ``delta:///directory`` of Delta Lake tables, or
            ``ducklake+postgresql://user@host/database`` of a DuckLake, ``iceberg+sqlite:///directory/catalog.db`` or
            ``iceberg+postgresql://user@host/database`` of Iceberg tables.
        create: create an embedded store, a directory of Delta tables, a DuckLake, or an Iceberg catalog, if it
            does not exist; False by default. Other stores ignore it.
        options: an embedded store has ``synchronous``: ``full`` (the default), ``normal`` or ``off``. A Tablestore
            instance has ``access_key_id``, ``access_key_secret``, ``sts_token`` and others, see docs/tablestore.md;
            by default the key comes from the environment variables HEADRACE_ACCESS_KEY_ID and
            HEADRACE_ACCESS_KEY_SECRET. A PostgreSQL database has libpq's ``password``, ``sslmode``, ``service`` and
            others, see docs/postgres.md. A YTsaurus cluster has ``token`` and others, see docs/ytsaurus.md.

    Raises:
        NotFoundError: the store does not exist, and ``create`` is not set.
        OptionError: the address is neither a path nor a URL of a known scheme, an option is unknown or has an invalid
            value, or an access key is missing.
        MissingDependencyError: this kind of store needs packages that are not installed.
        StoreError: the file system rejects the path.

    Examples:
        >>> store = headrace.open("orders-of-today", create=True)
        >>> store.tables()
        []
    """
    _check_address(url)
    may_create = create is not None and flag(create, "create")
    opening = opening_of(url)
    check_names(opening.what, options, [each.name for each in opening.options])
    try:
        return opening.open(url, options, may_create)
    except ImportError as error:
        if opening.extra is None or error.name is None or error.name.partition(".")[0] not in opening.packages:
            raise
        raise missing_packages(opening.what, {opening.extra: [error.name]}) from error


@dataclass(frozen=True)
class StoreAddress:
    """How a process opens a store. Picklable. Its text shows no secret.

    Attributes:
        url: the path or URL.
        options: the options for `open`.
        instance: `Store.instance` of the store that the driver has opened here; None before it has.
    """

    # Both can have a password.
    url: str = field(repr=False)
    options: Mapping[str, Any] = field(default_factory=dict, repr=False, compare=False)
    instance: str | None = None

    def open(self, *, create: bool = False) -> Store:
        """Open the store; see `open`."""
        return open(self.url, create=create, **self.options)

    def of(self, store: Store) -> Self:
        """Return the address for other processes: its URL is absolute, and it leads to this very store."""
        return replace(self, url=store.url, instance=store.instance())


def restore(backup: str | os.PathLike[str], url: str | os.PathLike[str], *, progress: Progress | None = None) -> Backup:
    """Make a new store of a backup that `Store.back_up` or ``headrace backup`` has written.

    The backup is verified first. A query whose checkpoint is in the store continues from it exactly once.

    Args:
        backup: the directory of the backup.
        url: the path or URL of the new store.
        progress: is called with the number of bytes that are copied, and of all bytes.

    Raises:
        NotFoundError: there is no complete backup.
        AlreadyExistsError: the store exists.
        StoreDamagedError: the backup is damaged.
        UnsupportedError: headrace cannot restore a store of this kind.
        StoreError: the file system refuses a read or write.

    Examples:
        >>> backup = store.back_up("backup")
        >>> restored = headrace.restore("backup", "copy")
        >>> headrace.open("copy").table("orders").get({"id": "o1"})
        {'id': 'o1', 'price': 10.0}
    """
    _check_address(url)
    opening = opening_of(url)
    if opening.restore is None:
        valid = "; ".join(each.form for each in openings() if each.restore)
        raise UnsupportedError(f"headrace cannot restore {opening.what}", received=f"{scheme_of(url)}://…", valid=valid)
    return opening.restore(path(backup, "backup"), url, progress)


def scheme_of(url: str | os.PathLike[str]) -> str | None:
    """Return the scheme of a URL in lower case, or None for a path."""
    match = _SCHEME.match(url) if isinstance(url, str) else None
    return None if match is None else (match[1] or match[2]).lower()


def absolute(url: str) -> str:
    """Return the address of a store for processes with another working directory: a path becomes absolute."""
    return url if scheme_of(url) else str(Path(url).expanduser().absolute())


def opening_of(url: str | os.PathLike[str]) -> Opening:
    """Return how the store of a path or URL is opened. Messages show no more of a URL than its scheme.

    Raises:
        OptionError: the scheme is unknown.
    """
    opening = find_opening(url)
    if opening is not None:
        return opening
    scheme = scheme_of(url)
    remedies = [opening.mistaken_schemes.get(str(scheme)) for opening in openings()]
    remedies += entry_points.failures(entry_points.STORES)
    raise OptionError(
        "unknown kind of store",
        received=f"{scheme}://…",
        valid=valid_addresses(),
        remedy=", ".join(filter(None, remedies)) or _OTHER_SCHEMES.get(str(scheme), _HOW_TO_NAME_A_STORE),
    )


def extra_of(url: str | os.PathLike[str]) -> tuple[str, ...]:
    """Return what the store of a path or URL needs, for `headrace.support.extras.check_extras`.

    Raises:
        OptionError: the scheme is unknown.
    """
    opening = opening_of(url)
    return (opening.extra or "", *opening.packages)


def find_opening(url: str | os.PathLike[str]) -> Opening | None:
    """Return how the store of a path or URL is opened; None if no store has such addresses."""
    scheme = scheme_of(url)
    return next((each for each in openings() if (each.takes_paths if scheme is None else scheme in each.schemes)), None)


def _check_address(url: object) -> None:
    """Raise `OptionError` for an address that no store can have. Messages show no more of a URL than its scheme."""
    text = os.fspath(url) if isinstance(url, os.PathLike) else url
    if not isinstance(text, str):
        received = shown(url) if url is None or isinstance(url, int | float) else type(url).__name__
        raise OptionError(
            "the address of a store must be a text or a path", received=received[:80], valid=valid_addresses()
        )
    if not text.strip():
        raise OptionError("the address of a store is empty", received=repr(text[:20]), valid=valid_addresses())
    if any(character < " " or "\ud800" <= character <= "\udfff" for character in text):
        raise OptionError(
            "the address of a store has a control character or a lone surrogate",
            valid=valid_addresses(),
            remedy=_HOW_TO_NAME_A_STORE,
        )
    broken = _broken_url().match(text)
    if broken and (isinstance(url, os.PathLike) or broken[1].lower() != "file"):
        raise OptionError(
            "this is neither a path nor a URL",
            received=f"{broken[1]}:…",
            valid=valid_addresses(),
            remedy="a URL has two slashes after the colon and is passed as a text: a pathlib path drops one",
        )
    scheme = scheme_of(text)
    if "?" in text and any(scheme in opening.schemes for opening in openings()):
        raise OptionError(
            "the address of a store cannot contain options",
            received=f"{scheme}://…?…",
            valid=valid_addresses(),
            remedy="pass options as arguments: headrace.open(url, token=…), or as options of the format",
        )


def _broken_url() -> re.Pattern[str]:
    """Return the pattern of a URL with one slash or none, the text that is left of a URL in a pathlib path."""
    # Only known schemes: one letter and a colon would be a drive of Windows.
    schemes = {*_OTHER_SCHEMES}
    for opening in openings():
        schemes |= {*opening.schemes, *opening.mistaken_schemes}
    names = "|".join(re.escape(scheme) for scheme in sorted(schemes))
    return re.compile(rf"({names}):/?(?!/)", re.IGNORECASE)
