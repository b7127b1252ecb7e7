"""Opens the store of an Iceberg catalog by the URL of its database."""

from __future__ import annotations

import os
import re
from collections.abc import Mapping
from pathlib import Path
from typing import TYPE_CHECKING, Any
from urllib.parse import unquote, urlsplit

from headrace.errors import NotFoundError, OptionError, StoreError
from headrace.options.kinds import text
from headrace.options.option import Option
from headrace.stores.opening import Opening, StoreOption

if TYPE_CHECKING:
    from headrace_lake.iceberg.store import IcebergStore

_FORM = "iceberg+sqlite:///directory/catalog.db"
# Readers take paths as URLs, and do not decode them.
_PATH = re.compile(r"/[\w/ .,=+~()@-]+")


def open_store(url: str | os.PathLike[str], options: Mapping[str, Any], create: bool = False) -> IcebergStore:
    """Return the store of a catalog.

    Args:
        url: ``iceberg+sqlite:///directory/catalog.db``: the SQLite database with the catalog.
        options: ``warehouse``: the directory of new tables; by default that of the database. ``catalog``: the name of
            the catalog in the database, ``default`` by default. ``home``: the URL of the store with the state of jobs;
            by default an embedded store in the directory ``_headrace`` of the warehouse.
        create: create the database, the catalog and the warehouse if they do not exist.

    Raises:
        NotFoundError: the database or the warehouse does not exist, and ``create`` is not set.
        OptionError: the URL has another form, or an option has an invalid value.
        StoreError: the file system rejects a path.
    """
    from headrace_lake.iceberg.catalog import Tables
    from headrace_lake.iceberg.store import IcebergStore

    database = _database(str(url))
    warehouse = _absolute("warehouse", options.get("warehouse") or str(database.parent))
    catalog = options.get("catalog") or "default"
    if not isinstance(catalog, str):
        raise OptionError("option catalog must be the name of a catalog", received=repr(catalog)[:200])
    home = options.get("home")
    if home is not None and (not isinstance(home, str) or ("://" not in home and not home.startswith("/"))):
        # Processes of Spark have another working directory. The message shows no URL, which can have a password.
        raise OptionError("option home must be the URL of a store, or an absolute path")
    try:
        if create:
            database.parent.mkdir(parents=True, exist_ok=True)
            warehouse.mkdir(parents=True, exist_ok=True)
        elif not database.is_file():
            raise NotFoundError("no such database", received=str(database), remedy="pass create=True")
        if not warehouse.is_dir():
            raise NotFoundError("no such directory", received=str(warehouse), remedy="set option warehouse")
    except OSError as error:
        raise StoreError(
            f"the warehouse cannot be used: {error.strerror}", received=repr(str(warehouse))[:200]
        ) from error
    tables = Tables(f"sqlite:///{database}?timeout=60", catalog, create=create)
    return IcebergStore(f"iceberg+sqlite://{database}", tables, warehouse, home)


def _database(url: str) -> Path:
    wrong = OptionError(
        "the address of Iceberg tables names the database of their catalog", received="iceberg+sqlite://…", valid=_FORM
    )
    try:
        parts = urlsplit(url)
    except ValueError:
        raise wrong from None
    if parts.netloc not in ("", "localhost") or parts.query or parts.fragment or parts.path in ("", "/"):
        raise wrong
    return _absolute("the address", unquote(parts.path))


def _absolute(what: str, value: object) -> Path:
    """Return a path that all readers understand.

    Raises:
        OptionError: it is relative, or has another character.
    """
    if not isinstance(value, str | os.PathLike) or not _PATH.fullmatch(str(value)):
        raise OptionError(
            f"{what} must have an absolute path that readers of Iceberg tables understand",
            received=repr(value)[:200],
            valid="letters, digits, spaces and /.,=+~()@_-",
        )
    return Path(value).resolve()


OPENING = Opening(
    what="Iceberg tables with a catalog in a SQLite database",
    form=_FORM,
    schemes=("iceberg+sqlite",),
    options=(
        StoreOption("warehouse", Option("icebergWarehouse", "Iceberg: the directory of new tables; by default that of "
                    "the catalog's database", text)),
        StoreOption("catalog", Option("icebergCatalog", "Iceberg: the name of the catalog in its database; `default` "
                    "by default", text)),
        StoreOption("home", Option("icebergHome", "Iceberg: the URL of the store with the state of jobs; by default an "
                    "embedded store in the warehouse", text)),
    ),
    open=open_store,
    extra="headrace[iceberg]",
    packages=("pyiceberg", "sqlalchemy"),
    mistaken_schemes={
        "iceberg": f"Iceberg tables have a catalog: {_FORM}",
        "iceberg+postgresql": f"headrace uses catalogs in SQLite databases: {_FORM}",
        "iceberg+rest": f"headrace uses catalogs in SQLite databases: {_FORM}",
    },
)  # fmt: skip
