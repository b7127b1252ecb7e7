"""Opens the store of an Iceberg catalog by the URL of its database."""

from __future__ import annotations

import os
import re
from collections.abc import Iterator, Mapping
from contextlib import contextmanager
from functools import partial
from pathlib import Path
from typing import TYPE_CHECKING, Any
from urllib.parse import unquote, urlsplit

from headrace.errors import NotFoundError, OptionError, StoreError
from headrace.options.kinds import name, secret, text
from headrace.options.option import Option
from headrace.stores.opening import CREATION, Opening, StoreOption
from headrace.stores.registry import scheme_of
from headrace.support.extras import check_extras

if TYPE_CHECKING:
    from headrace_lake.iceberg.store import IcebergStore

_SQLITE = "iceberg+sqlite:///directory/catalog.db"
_POSTGRESQL = "iceberg+postgresql://user@host/database"
_FORM = f"{_SQLITE} or {_POSTGRESQL}"
# Readers take paths as URLs, and do not decode them.
_PATH = re.compile(r"/[\w/ .,=+~()@-]+")
_DRIVERS = ("headrace[postgres]", "psycopg", "adbc_driver_manager", "adbc_driver_postgresql")
_OF_SQLITE = ("home",)
_OF_DATABASE = ("password", "service", "sslmode", "sslrootcert", "retry_seconds")
_OF_POSTGRESQL = ("schema", *_OF_DATABASE)


def open_store(url: str | os.PathLike[str], options: Mapping[str, Any], create: bool = False) -> IcebergStore:
    """Return the store of a catalog.

    Args:
        url: ``iceberg+sqlite:///directory/catalog.db``: the SQLite database with the catalog; or ``iceberg+`` and the
            URL of a PostgreSQL database with the catalog.
        options: ``warehouse``: the directory of new tables; by default that of the SQLite database. ``catalog``: the
            name of the catalog in the database, ``default`` by default.
            Of SQLite: ``home``: the URL of the store with the state of jobs; by default an embedded store in the
            directory ``_headrace`` of the warehouse.
            Of PostgreSQL: ``schema``: the schema with the tables of the catalog, ``public`` by default. ``password``,
            ``service``, ``sslmode`` and ``sslrootcert`` of libpq; other parameters come from libpq's environment.
            ``retry_seconds``: see `headrace.stores.postgres.opening`.
        create: create the database of SQLite, the catalog and the warehouse if they do not exist.

    Raises:
        NotFoundError: the catalog or the warehouse does not exist, and ``create`` is not set.
        OptionError: the URL has another form, or an option has an invalid value.
        StoreError: the file system rejects a path.
    """
    sqlite = scheme_of(url) == "iceberg+sqlite"
    for each in _OF_POSTGRESQL if sqlite else _OF_SQLITE:
        if options.get(each) is not None:
            other = "PostgreSQL" if sqlite else "SQLite"
            raise OptionError(f"option {each} is for catalogs in {other} databases", valid=_FORM)
    catalog = _name("catalog", options.get("catalog") or "default")
    open_catalog = _open_sqlite if sqlite else _open_postgresql
    return open_catalog(str(url), options, catalog, create)


def _open_sqlite(url: str, options: Mapping[str, Any], catalog: str, create: bool) -> IcebergStore:
    from headrace_lake.home import Home, Owner
    from headrace_lake.iceberg.catalog import Tables, connected
    from headrace_lake.iceberg.store import IcebergStore

    database = _database(url)
    warehouse = _absolute("warehouse", options.get("warehouse") or str(database.parent))
    home = options.get("home")
    if home is not None and (not isinstance(home, str) or ("://" not in home and not home.startswith("/"))):
        # Processes of Spark have another working directory. The message shows no URL, which can have a password.
        raise OptionError("option home must be the URL of a store, or an absolute path")
    with _used(warehouse):
        if create:
            database.parent.mkdir(parents=True, exist_ok=True)
        elif not database.is_file():
            raise NotFoundError("no such database", received=str(database), remedy=CREATION)
        _check_warehouse(warehouse, create=create)
    tables = Tables(partial(connected, catalog, f"sqlite:///{database}?timeout=60"), create=create)
    address = f"iceberg+sqlite://{database}"
    # Catalogs in several directories can have one warehouse, which moves with its own database.
    place = os.path.relpath(database, warehouse)
    owner = Owner(address, f"Iceberg catalog {catalog!r} in {place}")
    return IcebergStore(address, tables, warehouse, Home(warehouse, home, owner))


def _open_postgresql(url: str, options: Mapping[str, Any], catalog: str, create: bool) -> IcebergStore:
    if options.get("warehouse") is None:
        raise OptionError(
            "an Iceberg catalog in PostgreSQL needs a directory for new tables and staged rows",
            remedy="set option warehouse (in Spark icebergWarehouse)",
        )
    warehouse = _absolute("warehouse", options["warehouse"])
    schema = _name("schema", options.get("schema") or "public")
    check_extras("an Iceberg catalog in PostgreSQL", _DRIVERS)
    from headrace.stores.postgres import for_lakes
    from headrace_lake.iceberg.database_store import IcebergDatabaseStore

    of_database = {each: options[each] for each in _OF_DATABASE if options.get(each) is not None}
    database = for_lakes.open_store(url.partition("+")[2], of_database)
    with _used(warehouse):
        _check_warehouse(warehouse, create=create)
    return IcebergDatabaseStore(database, warehouse, schema, catalog, create=create)


@contextmanager
def _used(warehouse: Path) -> Iterator[None]:
    """Raise `StoreError` for errors of the file system."""
    try:
        yield
    except OSError as error:
        raise StoreError(
            f"the warehouse cannot be used: {error.strerror}", received=repr(str(warehouse))[:200]
        ) from error


def _check_warehouse(warehouse: Path, *, create: bool) -> None:
    if create:
        warehouse.mkdir(parents=True, exist_ok=True)
    if not warehouse.is_dir():
        raise NotFoundError("no such directory", received=str(warehouse), remedy="set option warehouse")


def _name(option: str, value: object) -> str:
    if not isinstance(value, str) or "\0" in value:
        raise OptionError(f"option {option} must be the name of a {option}", received=repr(value)[:200])
    return value


def _database(url: str) -> Path:
    wrong = OptionError(
        "the address of Iceberg tables names the database of their catalog",
        received="iceberg+sqlite://…",
        valid=_SQLITE,
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
    what="Iceberg tables with a catalog in a SQLite or PostgreSQL database",
    form=_FORM,
    schemes=("iceberg+sqlite", "iceberg+postgresql"),
    options=(
        StoreOption("warehouse", Option("icebergWarehouse", "Iceberg: the directory of new tables; by default that of "
                    "the catalog's SQLite database", text)),
        StoreOption("catalog", Option("icebergCatalog", "Iceberg: the name of the catalog in its database; `default` "
                    "by default", name)),
        StoreOption("home", Option("icebergHome", "Iceberg with a catalog in SQLite: the URL of the store with the "
                    "state of jobs; by default an embedded store in the warehouse", text)),
        StoreOption("schema", Option("icebergSchema", "Iceberg with a catalog in PostgreSQL: the schema with the "
                    "tables of the catalog; `public` by default", name)),
        StoreOption("password", Option("icebergPassword", "Iceberg with a catalog in PostgreSQL: the password; by "
                    "default PGPASSWORD, `~/.pgpass` or the service file", secret)),
        StoreOption("service", Option("icebergService", "Iceberg with a catalog in PostgreSQL: the service in libpq's "
                    "service file that completes the address", text)),
        StoreOption("sslmode", Option("icebergSslMode", "Iceberg with a catalog in PostgreSQL: libpq's `sslmode`, "
                    "such as `verify-full`", text)),
        StoreOption("sslrootcert", Option("icebergSslRootCert", "Iceberg with a catalog in PostgreSQL: the file with "
                    "the certificates of trusted authorities, libpq's `sslrootcert`", text)),
        StoreOption("retry_seconds"),
    ),
    open=open_store,
    extra="headrace[iceberg]",
    packages=("pyiceberg", "sqlalchemy"),
    environment=("PG",),
    mistaken_schemes={
        "iceberg": f"Iceberg tables have a catalog: {_FORM}",
        "iceberg+postgres": f"the address of a catalog in PostgreSQL is {_POSTGRESQL}",
        "iceberg+rest": f"headrace uses catalogs in SQLite and PostgreSQL databases: {_FORM}",
    },
)  # fmt: skip
