"""Opens the store of a directory of Delta Lake tables by its URL."""

from __future__ import annotations

import os
from collections.abc import Mapping
from pathlib import Path
from typing import TYPE_CHECKING, Any
from urllib.parse import unquote, urlsplit

from headrace.errors import NotFoundError, OptionError, StoreError
from headrace.options.kinds import text
from headrace.options.option import Option
from headrace.stores.opening import Opening, StoreOption

if TYPE_CHECKING:
    from headrace_lake.delta.store import DeltaStore

_FORM = "delta:///directory"
_LOCAL_ONLY = "headrace writes Delta tables in a directory of this machine: delta:///directory"


def open_store(url: str | os.PathLike[str], options: Mapping[str, Any], create: bool = False) -> DeltaStore:
    """Return the store of a directory.

    Args:
        url: ``delta:///directory``.
        options: ``home``: the URL of the store with the state of jobs; by default an embedded store in the directory
            ``_headrace`` below the tables.
        create: create the directory if it does not exist.

    Raises:
        NotFoundError: the directory does not exist, and ``create`` is not set.
        OptionError: the URL has another form, or an option has an invalid value.
        StoreError: the file system rejects the path.
    """
    from headrace_lake.delta.store import DeltaStore

    directory = _directory(str(url)).resolve()
    if "%" in str(directory):
        # The package deltalake decodes the path twice.
        raise OptionError("the path of Delta tables cannot contain %", received=str(directory))
    home = options.get("home")
    if home is not None and (not isinstance(home, str) or ("://" not in home and not home.startswith("/"))):
        # Processes of Spark have another working directory. The message shows no URL, which can have a password.
        raise OptionError("option home must be the URL of a store, or an absolute path")
    try:
        if create:
            directory.mkdir(parents=True, exist_ok=True)
        if not directory.is_dir():
            raise NotFoundError("no such directory", received=str(directory), remedy="pass create=True")
        return DeltaStore(directory, home)
    except OSError as error:
        raise StoreError(
            f"the store's directory cannot be used: {error.strerror}", received=repr(str(directory))[:200]
        ) from error


OPENING = Opening(
    what="a directory of Delta Lake tables",
    form=_FORM,
    schemes=("delta",),
    options=(
        StoreOption("home", Option("deltaHome", "Delta Lake: the URL of the store with the state of jobs; by default "
                    "an embedded store below the directory of the tables", text)),
    ),
    open=open_store,
    extra="headrace[delta]",
    packages=("deltalake",),
    mistaken_schemes={
        "delta+s3": _LOCAL_ONLY,
        "ducklake": _LOCAL_ONLY,
        "iceberg": _LOCAL_ONLY,
        "s3": _LOCAL_ONLY,
        "s3a": _LOCAL_ONLY,
    },
)  # fmt: skip


def _directory(url: str) -> Path:
    wrong = OptionError(
        "the address of a directory of Delta tables names the directory and nothing else",
        received="delta://…",
        valid=_FORM,
    )
    try:
        parts = urlsplit(url)
    except ValueError:
        raise wrong from None
    path = unquote(parts.path)
    if parts.netloc not in ("", "localhost") or parts.query or parts.fragment or not path.strip("/") or "\0" in path:
        raise wrong
    return Path(path)
