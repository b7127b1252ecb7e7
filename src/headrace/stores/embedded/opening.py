"""Opens an embedded store by its path or ``file:`` URL."""

from __future__ import annotations

import os
from collections.abc import Mapping
from pathlib import Path
from typing import TYPE_CHECKING, Any
from urllib.parse import unquote, urlsplit

from headrace.errors import OptionError, StoreError
from headrace.model.findings import Finding
from headrace.options.kinds import one_of
from headrace.options.option import Option
from headrace.ports.backups import Backup, Progress
from headrace.stores.opening import Opening, StoreOption

if TYPE_CHECKING:
    from headrace.stores.embedded.store import EmbeddedStore

_VALID_ADDRESS = "a path, or file:///path"


def open_store(address: str | os.PathLike[str], options: Mapping[str, Any], create: bool = False) -> EmbeddedStore:
    """Return the store of a directory.

    Args:
        address: a path (``~/`` is the home directory), or a ``file:`` URL of this machine.
        options: ``synchronous``, see `EmbeddedStore`.
        create: create the store if it does not exist.

    Raises:
        NotFoundError: the store does not exist, and ``create`` is not set.
        OptionError: the address is not a directory of this machine, or an option has an invalid value.
        StoreError: the file system rejects the path.
    """
    from headrace.stores.embedded.store import EmbeddedStore

    directory = _directory(address)
    try:
        return EmbeddedStore(directory, create=create, **options)
    except OSError as error:
        raise StoreError(
            f"the store's directory cannot be used: {error.strerror}", received=repr(str(directory))[:200]
        ) from error


def restore_store(backup: str | os.PathLike[str], address: str | os.PathLike[str], progress: Progress | None) -> Backup:
    """Make a store of a backup, see `headrace.stores.embedded.backup.restore`."""
    from headrace.stores.embedded.backup import restore

    return restore(_expanded(Path(backup)), _directory(address), progress)


def check_place(address: str | os.PathLike[str]) -> list[Finding]:
    """Check the place of a store, see `headrace.stores.embedded.diagnosis.check_place`."""
    from headrace.stores.embedded import diagnosis

    return diagnosis.check_place(_directory(address))


OPENING = Opening(
    what="an embedded store",
    form=_VALID_ADDRESS,
    schemes=("file",),
    options=(
        StoreOption("synchronous", Option("synchronous", "embedded store: when a commit is written to the disk; see "
                    "docs/embedded-store.md", one_of("full", "normal", "off"), "full")),
    ),
    open=open_store,
    takes_paths=True,
    restore=restore_store,
    check_place=check_place,
)  # fmt: skip


def _directory(address: str | os.PathLike[str]) -> Path:
    if isinstance(address, str) and address[:5].lower() == "file:":
        return _expanded(_path_of_url(address))
    return _expanded(Path(address))


def _path_of_url(url: str) -> Path:
    invalid = OptionError(
        "a file URL must name a directory of this machine and nothing else",
        received="file://…",
        valid=_VALID_ADDRESS,
    )
    try:
        parts = urlsplit(url)
    except ValueError:
        raise invalid from None
    if parts.netloc not in ("", "localhost") or parts.query or parts.fragment or not parts.path or "%00" in parts.path:
        raise invalid
    return Path(unquote(parts.path))


def _expanded(directory: Path) -> Path:
    """Return a directory with the home directory in place of a leading ``~``."""
    try:
        return directory.expanduser() if directory.parts[:1] == ("~",) else directory
    except RuntimeError:
        raise OptionError("this user has no home directory", received="~", valid=_VALID_ADDRESS) from None
