"""Opens the store of a DuckLake by the URL of the PostgreSQL database with its catalog."""

from __future__ import annotations

import os
from collections.abc import Mapping
from pathlib import Path
from typing import TYPE_CHECKING, Any

from headrace.errors import OptionError
from headrace.options.kinds import name, secret, text
from headrace.options.option import Option
from headrace.stores.opening import Opening, StoreOption

if TYPE_CHECKING:
    from headrace_lake.ducklake.store import DuckLakeStore

_FORM = "ducklake+postgresql://user@host/database"
_CATALOG = "public"


def open_store(url: str | os.PathLike[str], options: Mapping[str, Any], create: bool = False) -> DuckLakeStore:
    """Return the store of a DuckLake.

    Args:
        url: ``ducklake+`` and the URL of the database with the catalog.
        options: ``data``: the directory of the data files, which a new DuckLake needs. ``catalog``: the schema with
            the tables of the catalog, ``public`` by default, as in DuckDB. ``password`` and ``service`` of libpq;
            other parameters come from libpq's environment.
        create: create the DuckLake if the database has none.

    Raises:
        OptionError: the URL has another form, or an option has an invalid value.
    """
    from headrace.stores.postgres import for_lakes
    from headrace_lake.ducklake.store import DuckLakeStore

    own = {"data", "catalog"}
    database = for_lakes.open_store(
        str(url).partition("+")[2], {name: value for name, value in options.items() if name not in own}
    )
    catalog = options.get("catalog") or _CATALOG
    if not isinstance(catalog, str):
        raise OptionError("option catalog must be the name of a schema", received=repr(catalog)[:200])
    store = DuckLakeStore(database, catalog, _data(options.get("data")))
    if create:
        store.create()
    return store


def _data(value: object) -> str | None:
    if value is None:
        return None
    if not isinstance(value, str | os.PathLike) or not Path(value).is_absolute():
        raise OptionError(
            "option data must be the absolute path of a directory", received=repr(value)[:200], valid="/data/lake"
        )
    return f"{Path(value)}/"


OPENING = Opening(
    what="a DuckLake in a PostgreSQL database",
    form=_FORM,
    schemes=("ducklake+postgresql",),
    options=(
        StoreOption("data", Option("duckLakeData", "DuckLake: the directory of the data files, which a new DuckLake "
                    "needs", text)),
        StoreOption("catalog", Option("duckLakeCatalog", "DuckLake: the schema of the database with the tables of the "
                    "catalog; `public` by default", name)),
        StoreOption("password", Option("duckLakePassword", "DuckLake: the password of the database; by default "
                    "PGPASSWORD, `~/.pgpass` or the service file", secret)),
        StoreOption("service", Option("duckLakeService", "DuckLake: the service in libpq's service file that completes "
                    "the address", text)),
        StoreOption("retry_seconds"),
    ),
    open=open_store,
    extra="headrace[postgres]",
    packages=("psycopg", "adbc_driver_manager", "adbc_driver_postgresql"),
    environment=("PG",),
    mistaken_schemes={"ducklake": f"a DuckLake is {_FORM}"},
)  # fmt: skip
